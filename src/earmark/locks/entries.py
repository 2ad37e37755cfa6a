"""What the blocks of one context manager object were entered with, for each task or thread that entered it."""

from __future__ import annotations

from typing import Any


class Entries:
    """One object may be entered by many callers at once, and again by the same one: each leaves what it entered."""

    __slots__ = ("_by_caller",)

    def __init__(self) -> None:
        self._by_caller: dict[Any, list[Any]] = {}

    def add(self, caller: Any, entry: Any) -> None:
        """This task or thread has entered."""
        self._by_caller.setdefault(caller, []).append(entry)

    def pop(self, caller: Any) -> Any:
        """What this caller entered last. Exit stacks may be closed by another caller: then the latest entry of any."""
        if caller not in self._by_caller:
            caller = next(reversed(self._by_caller))
        entries = self._by_caller[caller]
        entry = entries.pop()
        if not entries:
            del self._by_caller[caller]
        return entry
