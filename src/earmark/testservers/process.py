"""The launcher's end of a supervised server: start it, stop it, kill it, and know its private directory."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from earmark.testservers.account import Account, may_enter
from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.ports import free_port

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS; the longest name in a directory is ours.
_BASE_LENGTH_MAX = 60
_ANSWER_SECONDS_MAX = 180.0
_RUN_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 60.0
_CLOSE_SECONDS_MAX = 45.0
_LOG_TAIL_BYTES = 4_000
_PORT_ATTEMPTS_MAX = 5

# Nothing else of the caller's environment reaches a server: it may hold secrets, and PG* would change what it does.
_ENVIRONMENT_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")

_Server = TypeVar("_Server")


class Supervised:
    """A server under its supervisor. Closing it, or the death of this process, ends both and removes the directory."""

    def __init__(self, *, name: str, prefix: str, who: Account, signals: Sequence[str]) -> None:
        self.name = name
        self.who = who
        self.pid = 0
        self._one_at_a_time = threading.Lock()
        self._turn = 0
        self._pending = b""
        self._log_offset = 0
        settings = {
            "base": str(_base_directory(who)),
            "prefix": prefix,
            "uid": who.uid,
            "gid": who.gid,
            "dropped": who.dropped,
            "signals": list(signals),
        }
        script = Path(__file__).with_name("supervise.py")
        self._supervisor = subprocess.Popen(  # noqa: S603 -- this interpreter, and a file of this package
            [sys.executable, "-I", "-S", "-B", str(script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        try:
            self.directory = Path(self._receive("make a private directory")["directory"])
        except BaseException:
            self.close()
            raise
        self.log = self.directory / "log"

    def run(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a program to its end as the server's account; its exit code and what it said."""
        answer = self._ask("run", argv=list(argv), environment=environment(), seconds=_RUN_SECONDS_MAX)
        return answer["code"], answer["output"]

    def start(self, argv: Sequence[str]) -> None:
        """Start the server; whether it is ready is for the caller to find out."""
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        self.pid = self._ask("start", argv=list(argv), environment=environment(), log=str(self.log))["pid"]

    def exit_code(self) -> int | None:
        """How the server ended, or None while it runs."""
        code: int | None = self._ask("poll")["code"]
        return code

    def stop(self) -> None:
        """Stop the server in an orderly way and keep its data. One that does not run is stopped already."""
        code = self._ask("stop", seconds=_STOP_SECONDS_MAX)["code"]
        if code:
            raise self.failure(f"{self.name} did not stop cleanly: it ended with {code}.")

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and keep its data."""
        self._ask("kill")

    def close(self) -> None:
        """Stop the server for good and remove its directory."""
        supervisor = self._supervisor
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdin.close()
        try:
            supervisor.wait(_CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
        supervisor.stdout.close()

    def on_free_port(self, begin: Callable[[int], _Server]) -> _Server:
        """Begin on a free port, and on another one when somebody takes it between the look and the leap."""
        for _ in range(_PORT_ATTEMPTS_MAX - 1):
            try:
                return begin(free_port())
            except ServerUnavailable:
                if "Address already in use" not in self.log_tail():
                    raise
        return begin(free_port())

    def failure(self, sentence: str) -> ServerUnavailable:
        """An error that carries the end of the server's log."""
        return ServerUnavailable(f"{sentence} The end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that the server wrote since it was started."""
        try:
            written = self.log.read_bytes()[self._log_offset :]
        except FileNotFoundError:
            return "(no log)"
        return written[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "(empty)"

    def write(self, name: str, text: str) -> Path:
        """Append to a file in the directory, which then belongs to the server's account. Follows no link."""
        path = self.directory / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.who.dropped:
                os.fchown(descriptor, self.who.uid, self.who.gid)
            file.write(text)
        return path

    def _ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self._supervisor.stdin is not None
        with self._one_at_a_time:
            self._turn += 1
            command = {"turn": self._turn, "verb": verb, **arguments}
            try:
                self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")
            except (BrokenPipeError, ValueError) as error:
                raise ServerUnavailable(f"{self.name} was closed, or its supervisor was killed.") from error
            return self._receive(verb)

    def _receive(self, verb: str) -> dict[str, Any]:
        """The answer to this turn. An older one is passed over: whoever asked was interrupted while waiting."""
        deadline = time.monotonic() + _ANSWER_SECONDS_MAX
        while True:
            answer: dict[str, Any] = json.loads(self._receive_line(deadline))
            if answer["turn"] != self._turn:
                continue
            if "error" in answer:
                raise ServerUnavailable(f"{self.name}: cannot {verb}: {answer['error']}")
            return answer

    def _receive_line(self, deadline: float) -> bytes:
        assert self._supervisor.stdout is not None
        descriptor = self._supervisor.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ServerUnavailable(f"{self.name}: its supervisor did not answer.")
                received = os.read(descriptor, 65_536)
                if not received:
                    raise ServerUnavailable(f"{self.name}: its supervisor ended with {self._supervisor.wait()}.")
                self._pending += received
        line, self._pending = self._pending.split(b"\n", 1)
        return line


def environment() -> dict[str, str]:
    """What a server or a tool of its sees: enough to run, in English, and nothing else of the caller's."""
    return {name: os.environ[name] for name in _ENVIRONMENT_KEPT if name in os.environ} | {"LC_ALL": "C"}


def _base_directory(who: Account) -> Path:
    """Where private directories go: the usual temporary directory, unless its path is long or closed to the account."""
    usual = Path(tempfile.gettempdir())
    if len(os.fsencode(usual)) <= _BASE_LENGTH_MAX and may_enter(usual, who):
        return usual
    return Path("/tmp")  # noqa: S108 -- mkdtemp makes a private directory in it
