"""Running a coroutine that never waits to its end, without an event loop: a store with one writer runs verbs so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.ports.store import Transaction

T = TypeVar("T")


def run_inline(work: Callable[[Transaction], Awaitable[T]], transaction: Transaction) -> T:
    """Run the whole work now, on this thread. It may await nothing but its transaction, which never waits."""
    steps = work(transaction).__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a verb awaited something outside its transaction")
