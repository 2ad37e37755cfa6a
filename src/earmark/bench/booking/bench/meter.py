"""What the database's processes have cost the machine's cores, read from /proc.

A server elsewhere, or a machine without /proc, has no such figure: then it is None, never a guess.
"""

from __future__ import annotations

import os
from pathlib import Path

LOOKS_MAX = 50
_PROC = Path("/proc")
# As proc(5) numbers them, less the three fields up to the name, which may have spaces and parentheses of its own.
_PARENT, _USER, _SYSTEM, _USER_DEAD, _SYSTEM_DEAD = (number - 3 for number in (4, 14, 15, 16, 17))


class Meter:
    """The core seconds of one PostgreSQL server so far: postmaster, living children, and those that ended."""

    def __init__(self, postmaster: int | None) -> None:
        self._postmaster = postmaster
        self._tick = os.sysconf("SC_CLK_TCK")

    def read(self) -> float | None:
        """None where it cannot be known."""
        if self._postmaster is None or (own := _fields(str(self._postmaster))) is None:
            return None
        for _ in range(LOOKS_MAX):
            ticks = own[_USER] + own[_SYSTEM] + own[_USER_DEAD] + own[_SYSTEM_DEAD] + self._living()
            if (again := _fields(str(self._postmaster))) is None:
                return None
            if again[_USER_DEAD : _SYSTEM_DEAD + 1] == own[_USER_DEAD : _SYSTEM_DEAD + 1]:
                return ticks / self._tick
            # A child ended between the looks: it would be missing, or be there twice.
            own = again
        return None

    def _living(self) -> int:
        ticks = 0
        for process in _PROC.iterdir():
            if process.name.isdigit() and (child := _fields(process.name)) and child[_PARENT] == self._postmaster:
                ticks += child[_USER] + child[_SYSTEM]
        return ticks


def _fields(process: str) -> list[int] | None:
    """The numbers of a process's stat line; the first, its state, as 0. None when it is gone."""
    try:
        line = (_PROC / process / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return [0, *(int(field) for field in line.rpartition(")")[2].split()[1:])]
