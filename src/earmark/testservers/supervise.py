"""The supervisor: a small program between a test run and one server, so that the server never outlives the run.

It is started as a script, on the standard library alone, in a session of its own: Ctrl-C does not reach it.

    test run ──(pipe: commands)──▶ supervisor ──▶ server
             ◀─(pipe: answers)───      └── makes, and in the end removes, the private directory

One JSON object per line each way. When the command pipe closes, or the parent is another than at the start,
the server is stopped and the directory removed: that is also what happens when the run is killed with SIGKILL.
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
    """One private directory and at most one running server in it."""

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
        """Run a program to its end, as the server's account."""
        done = subprocess.run(  # noqa: S603 -- the launcher names the program, by an absolute path
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
        """Start the server; its output goes to the log. Says nothing about whether it is ready."""
        if self.server is not None and self.server.poll() is None:
            return {"error": "the server is running already"}
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            self.server = subprocess.Popen(  # noqa: S603 -- the launcher names the program, by an absolute path
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
        """How the server ended, or null while it runs."""
        return {"code": self.server.poll() if self.server else None}

    def stop(self, *, seconds: float) -> dict[str, Any]:
        """Ask the server to stop, then insist."""
        return self._stop(self.signals, seconds=seconds)

    def _stop(self, signals: Sequence[signal.Signals], *, seconds: float) -> dict[str, Any]:
        """By each of these in turn. A paused server is woken, or it could not hear the question."""
        if self.server is None or self.server.poll() is not None:
            return {"code": 0}
        for number in signals:
            self.server.send_signal(number)
            self.server.send_signal(signal.SIGCONT)
            try:
                return {"code": self.server.wait(seconds)}
            except subprocess.TimeoutExpired:
                continue
        return self.kill()

    def kill(self) -> dict[str, Any]:
        """End the server with SIGKILL and leave its data as they are."""
        if self.server is None:
            return {"code": None}
        if self.server.poll() is None:
            self.server.kill()
        return {"code": self.server.wait()}

    def close(self) -> None:
        """Leave nothing behind: no process, no shared memory, no directory. Data that go too need no tidy end."""
        self._stop(self.signals[-1:], seconds=10.0)
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
        """End what a killed server left running: the same program, working inside our directory."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                inside = (entry / "cwd").readlink().is_relative_to(self.directory)
                if inside and str((entry / "exe").readlink()) == self.program:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # It ended meanwhile, or it is not ours to look at.

    def _remove_shared_memory(self) -> None:
        """Free the System V segment of a killed PostgreSQL, which only its own account may do.

        The pid file that it left behind names the segment; one that stopped by itself leaves neither.
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
    """On Linux the kernel itself signals the server when this supervisor is killed."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(_PR_SET_PDEATHSIG, int(number))


def main() -> None:
    """Obey commands until the pipe closes or the parent is gone, then clean up."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP):
        # A handler that does nothing, because a plain "ignore" would be inherited by the server.
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        supervisor = Supervisor(**json.loads(sys.argv[1]))
    except OSError as error:
        _answer({"turn": 0, "error": f"{type(error).__name__}: {error}"})
        return
    try:
        _answer({"turn": 0, "directory": str(supervisor.directory)})
        _obey(supervisor, parent=parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.close()


def _obey(supervisor: Supervisor, *, parent: int) -> None:
    pending = b""
    while os.getppid() == parent:
        # The parent check is for a run that forked: its children hold the pipe open after its death.
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
            turn = command.pop("turn")
            _answer({"turn": turn, **_perform(supervisor, command)})


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


def _answer(reply: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(reply).encode() + b"\n")
    except BrokenPipeError:
        return  # Nobody reads any more; the closed command pipe ends the loop.


if __name__ == "__main__":
    main()
