"""The demo's key: on the screen for its reader, and in no command line and no address."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from earmark.server import child_process_main
from earmark.server.serve_in_one_process import first_free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

EARMARK = Path(sys.executable).with_name("earmark")
DONE = "Ctrl-C to stop."
START_SECONDS_MAX = 30.0


class Demo:
    """A demo on a terminal, with a browser that notes how it was started."""

    def __init__(self, folder: Path) -> None:
        self.started = folder / "browser.txt"
        program = folder / "browser"
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.started}.new && mv {self.started}.new {self.started}\n'
        )
        program.chmod(0o700)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EARMARK_")}
        self._terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [EARMARK, "demo", "--port", str(first_free_port("127.0.0.1", first=18080))],
            cwd=folder,
            env=environment | {"BROWSER": str(program), "COLUMNS": "300"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.said = self._read_until(DONE)

    def _read_until(self, end: str) -> str:
        said = ""
        while end not in said:
            said += os.read(self._terminal, 4096).decode()
        return said

    def opened(self) -> str:
        """How the browser was started, once it was."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.started.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.started.read_text()

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self._terminal)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_no_command_line_has_the_demo_s_key(demo: Demo) -> None:
    """`ps` shows command lines to every user of the machine, and browsers and terminals keep addresses."""
    (key,) = re.findall(r"key\s+(ek_test_\w+)", demo.said)
    opened = demo.opened()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", opened)
    lines = [line for line in Path("/proc").glob("[0-9]*/cmdline") if key.encode() in _read(line)]
    assert lines == []
    assert demo.said.count(key) == 1, "on its own line, and in no address"


def test_the_control_finds_a_key_on_a_command_line() -> None:
    """The same look sees a process that was started with one."""
    command = [sys.executable, "-c", "print(flush=True); input()", "ek_test_shown"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        assert shown.stdout.readline(), "it runs"
        seen = _read(Path(f"/proc/{shown.pid}/cmdline"))
        shown.communicate(b"\n")
    assert b"ek_test_shown" in seen


def test_a_worker_is_started_without_settings() -> None:
    """They come to it through a pipe."""
    assert child_process_main.command(verbose=True) == [
        sys.executable,
        "-m",
        "earmark.server.child_process_main",
        "--verbose",
    ]


def _read(line: Path) -> bytes:
    try:
        return line.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
