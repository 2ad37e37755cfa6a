"""The event loop of a server process: threads wake it with one byte instead of one byte per call.

Granian's threads pass every request on with `call_soon_threadsafe`. asyncio then writes a byte to a socket each time,
also when the loop is awake or was just woken, and each write releases the GIL. Here a byte is written only when the
last one has been read: 4 % more holds over HTTP.

No call is lost. A thread first adds its call and then checks whether the loop was woken; the loop reads the byte,
clears the flag, and then runs the calls. So the call of a thread that writes no byte is in that run.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class ServerEventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop, woken by one byte for all calls since the last wake-up."""

    _is_woken = False
    _csock: socket.socket | None
    """The writing end of asyncio's socket pair."""

    def _write_to_self(self) -> None:
        if self._is_woken or self._csock is None:
            return
        self._is_woken = True
        try:
            self._csock.send(b"\0")
        except BaseException as failed:
            # The next call tries again, as asyncio's own loop does. A full buffer wakes the loop as well.
            self._is_woken = False
            if not isinstance(failed, OSError):
                raise

    def _read_from_self(self) -> None:
        try:
            super()._read_from_self()  # type: ignore[misc]
        finally:
            self._is_woken = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, with `ServerEventLoop` where this Python supports it."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(work)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None (asyncio's default loop) on Windows and where asyncio wakes its loop in another way."""
    changed = ("_write_to_self", "_read_from_self", "_make_self_pipe")
    fits = sys.platform != "win32" and all(hasattr(asyncio.SelectorEventLoop, name) for name in changed)
    return ServerEventLoop if fits else None
