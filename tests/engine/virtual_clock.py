"""An event loop whose clock jumps to the next timer: minutes of waiting take no time, and each run is the same."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting so many seconds, it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Called by the loop when no task can run."""
        assert timeout is not None, "no task can run, and no timer is set: what is awaited never comes"
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose seconds are those that its selector counted."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """What this work returns, in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
