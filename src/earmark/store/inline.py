"""Running a verb where nothing can suspend it: stores with one writer take their steps without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.ports.store import Transaction

T = TypeVar("T")


def drive(work: Callable[[Transaction], Awaitable[T]], transaction: Transaction) -> T:
    """Run the whole work at once, on this thread. It may await nothing but its transaction, and that never waits."""
    steps = work(transaction).__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a verb awaited something outside its transaction")
