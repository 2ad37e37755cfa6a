"""The event loop of a server process: threads that have something for it wake it once, not each of them.

Granian's threads hand every request over with `call_soon_threadsafe`. asyncio then writes a byte to a socket each time,
also when the loop is awake or was just woken, and each write lets go of the interpreter's lock: a tenth of a server's
time. Here a byte is written only when the last one has been read.

No call is lost. A thread first adds its call and then looks whether the loop was woken; the loop reads the byte,
forgets that it was woken, and then looks for calls. So a thread that writes nothing has its call seen in that look.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class ServerEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own, but for how it is woken."""

    _is_woken = False

    def _write_to_self(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            super()._write_to_self()  # type: ignore[misc]

    def _read_from_self(self) -> None:
        try:
            super()._read_from_self()  # type: ignore[misc]
        finally:
            self._is_woken = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in such a loop where this Python has what it changes."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(work)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None, which is asyncio's choice, on Windows and where asyncio wakes its loop in another way."""
    changed = ("_write_to_self", "_read_from_self")
    fits = sys.platform != "win32" and all(hasattr(asyncio.SelectorEventLoop, name) for name in changed)
    return ServerEventLoop if fits else None
