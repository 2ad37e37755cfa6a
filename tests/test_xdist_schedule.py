"""Files that take long come first in a run, and keep their place when they are moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import xdist_schedule

ROOT = Path(__file__).parent.parent
GROUPS = {"fleet", "fleet with redis"}


@pytest.mark.parametrize("names", [xdist_schedule.LONGEST_FILES, xdist_schedule.FIRST_IN_A_PROOF])
def test_every_file_that_comes_first_exists(names: tuple[str, ...]) -> None:
    """A name that is left behind when its file is moved is passed over in silence, and the run takes longer."""
    assert [name for name in names if name not in GROUPS and not (ROOT / name).exists()] == []


def test_every_proof_of_ci_exists() -> None:
    """`.ci/run` ends with a sample of the long proofs, by path."""
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_long_file_comes_before_its_folder_and_before_others() -> None:
    """The first name that fits is what counts; what has no name comes last."""
    long, folder, other = (
        xdist_schedule.place(f"tests/{file}::test_it[1]")
        for file in ("browser/test_shop.py", "browser/test_reference.py", "domain/test_booking.py")
    )
    assert long < folder < other == len(xdist_schedule.LONGEST_FILES)


def test_long_files_and_others_take_turns() -> None:
    """Long files wait for servers, and others need a core: one after the other they would leave the cores idle."""
    long = [name for name in xdist_schedule.LONGEST_FILES if name.endswith(".py")][:6]
    others = [f"tests/domain/test_{number}.py" for number in range(6)]
    turns = xdist_schedule.take_turns([*others, *reversed(long)])
    assert [name for name in turns if name in long] == long
    assert [name for name in turns if name in others] == others
    assert all({*turns[first : first + 4]} & {*long} for first in range(0, 8, 4)), "no worker is left to work only"
    assert turns[-1] in others


def test_files_that_share_servers_are_one_group() -> None:
    """Else each worker starts the servers again; a file that kills its servers is on its own."""
    assert xdist_schedule.group("tests/acceptance/test_races.py::test_it") == "fleet with redis"
    assert xdist_schedule.group("tests/acceptance/test_abuse.py::test_it") == "fleet"
    assert xdist_schedule.group("tests/acceptance/test_stopping.py::test_it") == "tests/acceptance/test_stopping.py"
