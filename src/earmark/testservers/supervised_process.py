"""A server process under its supervisor: start, stop and kill it, and write to its private directory."""

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

from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.free_port import free_port
from earmark.testservers.os_account import OsAccount, may_enter

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS, including the names of our own directories.
_BASE_LENGTH_MAX = 60
_ANSWER_SECONDS_MAX = 180.0
_RUN_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 60.0
_CLOSE_SECONDS_MAX = 45.0
_LOG_TAIL_BYTES = 4_000
_PORT_ATTEMPTS_MAX = 5

# No other variable of the caller reaches a server: it may be a secret, and PG* would change what the server does.
_ENVIRONMENT_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")

_Server = TypeVar("_Server")


class SupervisedProcess:
    """A server and its supervisor. Both end, and the directory is removed, when this is closed or this process ends."""

    def __init__(self, *, name: str, prefix: str, account: OsAccount, signals: Sequence[str]) -> None:
        self.name = name
        self.account = account
        self.pid = 0
        self._lock = threading.Lock()
        self._command_number = 0
        self._pending = b""
        self._log_offset = 0
        settings = {
            "base": str(_base_directory(account)),
            "prefix": prefix,
            "uid": account.uid,
            "gid": account.gid,
            "dropped": account.dropped,
            "signals": list(signals),
        }
        script = Path(__file__).with_name("supervisor.py")
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
        """Run a program as the server's account; returns its exit code and output."""
        reply = self._command("run", argv=list(argv), environment=environment(), seconds=_RUN_SECONDS_MAX)
        return reply["code"], reply["output"]

    def start(self, argv: Sequence[str]) -> None:
        """Start the server, without waiting until it is ready."""
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        self.pid = self._command("start", argv=list(argv), environment=environment(), log=str(self.log))["pid"]

    def exit_code(self) -> int | None:
        """The server's exit code, or None while it runs."""
        code: int | None = self._command("poll")["code"]
        return code

    def stop(self) -> None:
        """Shut the server down and keep its data. Does nothing when it is not running."""
        code = self._command("stop", seconds=_STOP_SECONDS_MAX)["code"]
        if code:
            raise self.failure(f"{self.name} did not stop cleanly: it ended with {code}.")

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and keep its data."""
        self._command("kill")

    def close(self) -> None:
        """Stop the server and remove its directory."""
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

    def on_free_port(self, start: Callable[[int], _Server]) -> _Server:
        """Start on a free port, and on another one when a process takes it before the server does."""
        for _ in range(_PORT_ATTEMPTS_MAX - 1):
            try:
                return start(free_port())
            except ServerUnavailable:
                if "Address already in use" not in self.log_tail():
                    raise
        return start(free_port())

    def failure(self, sentence: str) -> ServerUnavailable:
        """An error with the end of the server's log."""
        return ServerUnavailable(f"{sentence} The end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that the server has logged since its start."""
        try:
            written = self.log.read_bytes()[self._log_offset :]
        except FileNotFoundError:
            return "(no log)"
        return written[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "(empty)"

    def write(self, name: str, text: str) -> Path:
        """Append to a file in the directory and give it to the server's account. Follows no symbolic link."""
        path = self.directory / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.account.dropped:
                os.fchown(descriptor, self.account.uid, self.account.gid)
            file.write(text)
        return path

    def _command(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self._supervisor.stdin is not None
        with self._lock:
            self._command_number += 1
            command = {"number": self._command_number, "verb": verb, **arguments}
            try:
                self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")
            except (BrokenPipeError, ValueError) as error:
                raise ServerUnavailable(f"{self.name} was closed, or its supervisor was killed.") from error
            return self._receive(verb)

    def _receive(self, verb: str) -> dict[str, Any]:
        """The reply to this command. A reply to an earlier command, whose caller was interrupted, is skipped."""
        deadline = time.monotonic() + _ANSWER_SECONDS_MAX
        while True:
            reply: dict[str, Any] = json.loads(self._receive_line(deadline))
            if reply["number"] != self._command_number:
                continue
            if "error" in reply:
                raise ServerUnavailable(f"{self.name}: cannot {verb}: {reply['error']}")
            return reply

    def _receive_line(self, deadline: float) -> bytes:
        assert self._supervisor.stdout is not None
        descriptor = self._supervisor.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ServerUnavailable(f"{self.name}: its supervisor did not reply.")
                received = os.read(descriptor, 65_536)
                if not received:
                    raise ServerUnavailable(f"{self.name}: its supervisor ended with {self._supervisor.wait()}.")
                self._pending += received
        line, self._pending = self._pending.split(b"\n", 1)
        return line


def environment() -> dict[str, str]:
    """The environment of servers and their tools: a few variables of the caller, and English messages."""
    return {name: os.environ[name] for name in _ENVIRONMENT_KEPT if name in os.environ} | {"LC_ALL": "C"}


def _base_directory(account: OsAccount) -> Path:
    """The parent of private directories: the temporary directory, or /tmp if its path is too long or not accessible."""
    usual = Path(tempfile.gettempdir())
    if len(os.fsencode(usual)) <= _BASE_LENGTH_MAX and may_enter(usual, account):
        return usual
    return Path("/tmp")  # noqa: S108 -- mkdtemp makes a private directory in it
