"""A command that the tests fork is the one that a user starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from . import forked_commands
from .support import EARMARK, environment

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [["--version"], ["verify", "--database", "sqlite:///missing.sqlite3"], ["no-such-command"]]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_it_prints_and_returns_what_a_new_process_does(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output, errors and exit code are the same, whether a command succeeds, refuses or is unknown."""
    monkeypatch.chdir(tmp_path)
    command, own = [str(EARMARK), *words], environment()
    anew = subprocess.run(command, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    forked = forked_commands.run(command, environment=own, seconds_max=60)
    assert (forked.returncode, forked.stdout, forked.stderr) == (anew.returncode, anew.stdout, anew.stderr)
    assert anew.stdout or anew.stderr


def test_a_signal_ends_it(tmp_path: Path) -> None:
    """A kill is seen in its exit code, and a command that waits for it is told."""
    with (tmp_path / "output").open("wb") as output:
        words = [str(EARMARK), "demo", "--no-open", "--port", "0"]
        command = forked_commands.start(words, environment=environment(), output=output.fileno())
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0)
        command.kill()
        assert command.wait(10) == -signal.SIGKILL


def test_what_imports_read_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code, another program and every command of a proof are started anew."""
    monkeypatch.delenv("EARMARK_PROOF", raising=False)
    assert forked_commands.is_forked(str(EARMARK), {"EARMARK_GUESTS": "on", "PYTHONPATH": ""})
    assert not forked_commands.is_forked(str(EARMARK), {"PYTHONPATH": "/other/code"})
    assert not forked_commands.is_forked(sys.executable, {})
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/metrics")
    assert not forked_commands.is_forked(str(EARMARK), environment())
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    monkeypatch.setenv("EARMARK_PROOF", "1")
    assert not forked_commands.is_forked(str(EARMARK), {})
