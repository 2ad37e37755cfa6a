"""The supervisor: a small program between a test run and one server, so that the server never outlives the run.

It runs as a script with the standard library alone, in its own session, so that Ctrl-C does not reach it.

    test run ──(pipe: commands)──▶ supervisor ──▶ server
             ◀─(pipe: replies)───      └── makes, and in the end removes, the private directory

One JSON object per line each way. When the command pipe closes, or the parent process has changed, the supervisor
stops the server and removes the directory; this also happens when the run is killed with SIGKILL.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PARENT_CHECK_SECONDS = 0.5
_REMOVE_ATTEMPTS_MAX = 50
_OUTPUT_BYTES_MAX = 16_384
_PR_SET_PDEATHSIG = 1
_IPC_RMID = 0


class Supervisor:
    """A private directory and at most one running server in it."""

    def __init__(self, *, base: str, prefix: str, uid: int, gid: int, dropped: bool, signals: list[str]) -> None:
        self.uid = uid
        self.gid = gid
        self.dropped = dropped
        self.signals = [getattr(signal, name) for name in signals]
        self.server: subprocess.Popen[bytes] | None = None
        self.program = ""
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        try:
            if dropped:
                os.chown(self.directory, uid, gid)
        except OSError:
            self.directory.rmdir()
            raise

    def run(self, *, argv: list[str], environment: dict[str, str], seconds: float) -> dict[str, Any]:
        """Run a program as the server's account and wait for its end."""
        done = subprocess.run(  # noqa: S603 -- the test run names the program, by an absolute path
            argv,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=environment,
            **self._identity(),
        )
        return {"code": done.returncode, "output": done.stdout[-_OUTPUT_BYTES_MAX:].decode(errors="replace")}

    def start(self, *, argv: list[str], environment: dict[str, str], log: str) -> dict[str, Any]:
        """Start the server, with its output in the log, without waiting until it is ready."""
        if self.server is not None and self.server.poll() is None:
            return {"error": "the server is running already"}
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            self.server = subprocess.Popen(  # noqa: S603 -- the test run names the program, by an absolute path
                argv,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd=self.directory,
                env=environment,
                preexec_fn=_die_with_supervisor(self.signals[0]),  # noqa: PLW1509 -- this program has one thread
                **self._identity(),
            )
        finally:
            os.close(descriptor)
        self.program = os.path.realpath(argv[0])
        return {"pid": self.server.pid}

    def poll(self) -> dict[str, Any]:
        """The server's exit code, or null while it runs."""
        return {"code": self.server.poll() if self.server else None}

    def stop(self, *, seconds: float, signals: Sequence[signal.Signals] | None = None) -> dict[str, Any]:
        """Stop the server by each of its signals in turn, and at last by SIGKILL.

        SIGCONT follows each signal, because a paused server does not handle signals.
        """
        if self.server is None or self.server.poll() is not None:
            return {"code": 0}
        for number in signals or self.signals:
            self.server.send_signal(number)
            self.server.send_signal(signal.SIGCONT)
            try:
                return {"code": self.server.wait(seconds)}
            except subprocess.TimeoutExpired:
                continue
        return self.kill()

    def kill(self) -> dict[str, Any]:
        """Kill the server with SIGKILL and keep its data."""
        if self.server is None:
            return {"code": None}
        if self.server.poll() is None:
            self.server.kill()
        return {"code": self.server.wait()}

    def close(self) -> None:
        """Stop the server the fastest way, and remove its processes, shared memory and directory."""
        self.stop(seconds=10.0, signals=self.signals[-1:])
        self._kill_orphans()
        self._remove_shared_memory()
        for _ in range(_REMOVE_ATTEMPTS_MAX):
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists():
                return
            time.sleep(0.1)

    def _identity(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.dropped else {}

    def _kill_orphans(self) -> None:
        """Kill the processes that a killed server left: the same program, with a working directory inside ours."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                inside = (entry / "cwd").readlink().is_relative_to(self.directory)
                if inside and str((entry / "exe").readlink()) == self.program:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # It ended meanwhile, or belongs to another account.

    def _remove_shared_memory(self) -> None:
        """Free the System V segment of a killed PostgreSQL, which only the server's account may do.

        The pid file of a killed server names the segment; a server that stopped has removed both.
        """
        try:
            _key, identifier = (self.directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()
            segment = int(identifier)
        except (OSError, IndexError, ValueError):
            return
        own = os.geteuid()
        os.seteuid(self.uid if self.dropped else own)
        try:
            ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)
        finally:
            os.seteuid(own)


def _die_with_supervisor(number: int) -> Callable[[], None] | None:
    """A hook that, on Linux, makes the kernel signal the server when this supervisor is killed."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(_PR_SET_PDEATHSIG, int(number))


def main() -> None:
    """Run commands until the pipe closes or the parent process ends, then clean up."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP):
        # An empty handler and not SIG_IGN, which the server would inherit.
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        supervisor = Supervisor(**json.loads(sys.argv[1]))
    except OSError as error:
        _reply({"number": 0, "error": f"{type(error).__name__}: {error}"})
        return
    try:
        _reply({"number": 0, "directory": str(supervisor.directory)})
        _run_commands(supervisor, parent=parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.close()


def _run_commands(supervisor: Supervisor, *, parent: int) -> None:
    pending = b""
    while os.getppid() == parent:
        # The parent check is for a run that forked: its children keep the pipe open after its end.
        ready, _, _ = select.select([0], [], [], _PARENT_CHECK_SECONDS)
        supervisor.poll()
        if not ready:
            continue
        received = os.read(0, 65_536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            number = command.pop("number")
            _reply({"number": number, **_perform(supervisor, command)})


def _perform(supervisor: Supervisor, command: dict[str, Any]) -> dict[str, Any]:
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "run": supervisor.run,
        "start": supervisor.start,
        "poll": supervisor.poll,
        "stop": supervisor.stop,
        "kill": supervisor.kill,
    }
    try:
        return verbs[command.pop("verb")](**command)
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _reply(reply: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(reply).encode() + b"\n")
    except BrokenPipeError:
        return  # The run has closed the pipe; the closed command pipe ends the loop.


if __name__ == "__main__":
    main()
