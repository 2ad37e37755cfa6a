"""Programs, each in a process of its own, forked from one that has imported Earmark: most of them only start up."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOADED = ["earmark", "earmark.client", "earmark.testing", "earmark.cli.main", "earmark.wiring", "earmark.locks"]
CHILD = "child"
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(LOADED)


def run(
    command: Sequence[str | Path], *, environment: Mapping[str, str], folder: Path, seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """As `python -W error command` runs in that folder, with this environment."""
    with tempfile.TemporaryDirectory() as place:
        said, cried = Path(place) / "stdout", Path(place) / "stderr"
        words = [str(word) for word in command]
        asked = {"words": words, "environment": dict(environment), "folder": folder, "said": said, "cried": cried}
        # By path: the child process has no folder of tests to import from.
        process = _forks.Process(target=runpy.run_path, args=(__file__, {"ASKED": asked}, CHILD))
        process.start()
        process.join(seconds_max)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, seconds_max, said.read_text(), cried.read_text())
        return subprocess.CompletedProcess(words, process.exitcode, said.read_text(), cried.read_text())


def _begin(words: list[str], environment: dict[str, str], folder: Path, said: Path, cried: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, said), (2, cried)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    warnings.simplefilter("error")
    program = Path(words[0]).absolute()
    sys.argv = [str(program), *words[1:]]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


if __name__ == CHILD:
    _begin(**globals()["ASKED"])
