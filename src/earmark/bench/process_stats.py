"""What processes cost the machine, read from /proc: CPU seconds, memory, child processes.

A server on another machine, or a system without /proc, has no such figure: then it is None, never a guess.
"""

from __future__ import annotations

import os
from pathlib import Path

READS_MAX = 50
PROC = Path("/proc")
# As proc(5) numbers them, less the three fields up to the name, which may contain spaces and parentheses.
_PARENT, _USER, _SYSTEM, _USER_ENDED, _SYSTEM_ENDED = (number - 3 for number in (4, 14, 15, 16, 17))
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class DatabaseCpu:
    """The CPU seconds of one PostgreSQL server so far: postmaster, running children, and those that have ended."""

    def __init__(self, postmaster: int | None) -> None:
        self._postmaster = postmaster

    def read(self) -> float | None:
        """None where it cannot be known."""
        if self._postmaster is None or (own := _fields(self._postmaster)) is None:
            return None
        for _ in range(READS_MAX):
            ticks = own[_USER] + own[_SYSTEM] + own[_USER_ENDED] + own[_SYSTEM_ENDED] + self._running_children()
            if (again := _fields(self._postmaster)) is None:
                return None
            if again[_USER_ENDED : _SYSTEM_ENDED + 1] == own[_USER_ENDED : _SYSTEM_ENDED + 1]:
                return ticks / _TICKS_PER_SECOND
            # A child ended between the two reads: it would be missing, or be counted twice.
            own = again
        return None

    def _running_children(self) -> int:
        children = (fields for fields in _all_fields().values() if fields[_PARENT] == self._postmaster)
        return sum(child[_USER] + child[_SYSTEM] for child in children)


def spent(before: float | None, after: float | None) -> float | None:
    """The difference of two readings, where both are known."""
    return None if before is None or after is None else after - before


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of one process so far, without its children; zero of one that has ended."""
    fields = _fields(pid)
    return (fields[_USER] + fields[_SYSTEM]) / _TICKS_PER_SECOND if fields else 0.0


def process_tree(pid: int) -> set[int]:
    """A process, its children, and theirs."""
    parents = {process: fields[_PARENT] for process, fields in _all_fields().items()}
    found, children = {pid}, {pid}
    while children:
        children = {child for child, parent in parents.items() if parent in found} - found
        found |= children
    return found


def resident_bytes(pid: int) -> int:
    """The memory of one process; zero of one that has ended."""
    try:
        return int((PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _all_fields() -> dict[int, list[int]]:
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: fields for pid in pids if (fields := _fields(pid)) is not None}


def _fields(pid: int) -> list[int] | None:
    """The numbers of a process's stat line; the first, its state, as 0. None when it has ended."""
    try:
        line = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return [0, *(int(field) for field in line.rpartition(")")[2].split()[1:])]
