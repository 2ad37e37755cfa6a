"""Commands of Earmark, each in a process of its own, forked from one that has imported all that they import.

A command that is started anew spends most of its work on imports. A proof starts each anew, as a user does.
Run as a program, this file is such a command: shells find it as `earmark`, and it passes on signals and the exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

PARENT = "--parent-of-commands"
LOADED = (
    "asyncpg",
    "earmark.cli.main",
    "earmark.engine.verbs",
    "earmark.locks.redis",
    "earmark.server.processes",
    "earmark.server.serve_in_one_process",
    "earmark.store.postgres",
    "earmark.store.sqlite",
    "earmark.wiring",
    "granian.server.embed",
    "redis.asyncio",
)
READ_BY_IMPORTS = ("PYTHON", "PROMETHEUS_")
"""How variables begin that count before the first line of a command: with one of them it is started anew."""
AT_START = dict(os.environ)
"""The environment before any test changed it: the one that the process which forks commands is started with."""
_LENGTH = struct.Struct("!I")
_parents: list[tuple[subprocess.Popen[bytes], str]] = []


def is_forked(program: str, environment: Mapping[str, str]) -> bool:
    """Whether this program is Earmark's, and may be forked in this environment."""
    if os.environ.get("EARMARK_PROOF") or program != os.path.join(os.path.dirname(sys.executable), "earmark"):  # noqa: PTH118, PTH120
        return False
    own = [name for name, value in environment.items() if value and AT_START.get(name) != value]
    return not any(name.startswith(READ_BY_IMPORTS) for name in own)


class ForkedCommand:
    """One command: what the tests use of `subprocess.Popen`. If this object goes, the command is killed."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        place: str,
        environment: Mapping[str, str],
        files: tuple[int, int, int],
        own_session: bool = False,
    ) -> None:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        folder = os.getcwd()  # noqa: PTH109 (no pathlib: a shell's command is to begin quickly)
        asked = json.dumps([list(words), dict(environment), folder, limit, own_session]).encode()
        self.args = list(words)
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(place)
        socket.send_fds(self._line, [_LENGTH.pack(len(asked))], list(files))
        self._line.sendall(asked)
        self._told = self._line.makefile("rb")
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, waited for."""
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                import subprocess

                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As a shell's `kill` does."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = int(self._told.readline())
        self._told.close()
        self._line.close()


def parent() -> str:
    """The address of the process that forks commands for this run; the first call starts it."""
    if not _parents:
        import atexit
        import subprocess

        clean = {name: value for name, value in AT_START.items() if not name.startswith("EARMARK_")}
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, PARENT],
            env=clean,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        _parents.append((process, process.stdout.readline().decode().strip()))
        atexit.register(_stop_parent)
    return _parents[0][1]


def _stop_parent() -> None:
    process, _ = _parents.pop()
    process.communicate(timeout=10)


def start(
    words: Sequence[str], *, environment: Mapping[str, str], output: int, own_session: bool = False
) -> ForkedCommand:
    """Start a command that writes to one file."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        files = (nothing.fileno(), output, output)
        return ForkedCommand(words, place=parent(), environment=environment, files=files, own_session=own_session)


def run(
    words: Sequence[str], *, environment: Mapping[str, str], seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    import subprocess
    import tempfile

    with open(os.devnull, "rb") as nothing, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as cried:  # noqa: PTH123
        files = (nothing.fileno(), said.fileno(), cried.fileno())
        command = ForkedCommand(words, place=parent(), environment=environment, files=files)
        try:
            code = command.wait(seconds_max)
        finally:
            command.kill()
        texts = []
        for file in (said, cried):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), code, *texts)


def write_shell_command(folder: Path) -> None:
    """Write what a shell is to find as `earmark`."""
    import shlex

    name = folder / "earmark"
    script = shlex.join([sys.executable, "-IS", __file__, parent(), str(name)])
    name.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    name.chmod(0o755)


# --------------------------------------------------------------------------------------------- as a shell's command


def be_command(place: str, words: list[str]) -> int:
    """Run it on this process's files and with its environment, and pass signals on to it."""
    command = ForkedCommand(words, place=place, environment=os.environ, files=(0, 1, 2))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(command.pid, number))
    return command.wait()


# ------------------------------------------------------------------------------------------ the parent of all commands


class Parent:
    """Forks a command for each connection, and tells on it the process's number and its exit code."""

    def __init__(self, place: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place)
        self._listener.listen(64)
        self._lines: dict[int, socket.socket] = {}
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def commands(self) -> dict[str, Any] | None:
        """Fork until the run has ended: nothing in the parent, and in each child what it is to be."""
        while True:
            watched: list[int | socket.socket] = [0, self._woken, self._listener, *self._lines.values()]
            ready, _, _ = select.select(watched, [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._tell_ends()
            for pid, line in list(self._lines.items()):
                if line in ready:  # it says nothing: its other end is closed
                    os.kill(pid, signal.SIGKILL)
                    del self._lines[pid]
                    line.close()
            if self._listener in ready and (asked := self._fork()) is not None:
                return asked
            if 0 in ready:
                for pid in self._lines:
                    os.kill(pid, signal.SIGKILL)
                return None

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (line := self._lines.pop(ended[0], None)) is not None:
                    with contextlib.suppress(OSError), line:
                        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))

    def _fork(self) -> dict[str, Any] | None:
        line, _ = self._listener.accept()
        head, files, _, _ = socket.recv_fds(line, _LENGTH.size, 3)
        with line.makefile("rb") as asked:
            words, environment, folder, limit, own_session = json.loads(asked.read(*_LENGTH.unpack(head)))
        if pid := os.fork():
            self._lines[pid] = line
            for file in files:
                os.close(file)
            line.sendall(b"%d\n" % pid)
            return None
        signal.set_wakeup_fd(-1)
        for other in (line, self._listener, *self._lines.values()):
            other.close()
        for file in (self._woken, self._wakes):
            os.close(file)
        facts = {"words": words, "environment": environment, "folder": folder, "limit": limit}
        return facts | {"own_session": own_session, "files": files}


def become(
    *,
    words: list[str],
    environment: dict[str, str],
    folder: str,
    limit: list[int],
    own_session: bool,
    files: list[int],
) -> None:
    """Make this process one that was started with these words, files and limits."""
    import resource

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if own_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0], limit[1]))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = words


def be_parent() -> None:
    """Import, tell the address, fork; in each child, be the command."""
    import gc
    import importlib
    import shutil
    import tempfile
    import threading

    for name in LOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    gc.collect()
    gc.freeze()
    place = tempfile.mkdtemp()
    forks = Parent(f"{place}/commands")
    sys.stdout.write(f"{place}/commands\n")
    sys.stdout.flush()
    asked = forks.commands()
    if asked is None:
        shutil.rmtree(place)
        return
    become(**asked)
    from earmark.cli import main

    main()


if __name__ == "__main__":
    if sys.argv[1] == PARENT:
        be_parent()
    else:
        sys.exit(be_command(sys.argv[1], sys.argv[2:]))
