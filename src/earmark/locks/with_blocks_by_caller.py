"""Remembers what each task or thread got when it entered a context manager, so that it leaves with the same."""

from __future__ import annotations

from typing import Any


class BlockEntries:
    """The open blocks of one context manager, which many callers may enter at once, and one caller several times."""

    __slots__ = ("_by_caller",)

    def __init__(self) -> None:
        self._by_caller: dict[Any, list[Any]] = {}

    def add(self, caller: Any, entry: Any) -> None:
        """Note what this task or thread has entered."""
        self._by_caller.setdefault(caller, []).append(entry)

    def pop(self, caller: Any) -> Any:
        """What this caller entered last; or, for an exit stack that another caller closes, the latest entry of any."""
        if caller not in self._by_caller:
            caller = next(reversed(self._by_caller))
        entries = self._by_caller[caller]
        entry = entries.pop()
        if not entries:
            del self._by_caller[caller]
        return entry
