"""Work that `run` and `attempt` are given is over before its lock is released, whatever kind of callable it is."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from .support import KEY, holding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.locks import Locks


class AsyncCallable:
    """An object whose call is a coroutine: Python does not call it a coroutine function."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    async def __call__(self) -> Any:
        """Await the work that this object wraps."""
        return await self._work()


def _returns(work: Callable[[], Any]) -> Any:
    return work()


ASYNC_KINDS: dict[str, Callable[[Callable[[], Any]], Callable[..., Any]]] = {
    "function": lambda work: work,
    "with held": lambda work: lambda held: work() if held else None,
    "function that returns it": lambda work: functools.partial(_returns, work),
    "partial": functools.partial,
    "object": AsyncCallable,
    "bound method": lambda work: AsyncCallable(work).__call__,
}


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("verb", ["run", "attempt"])
@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_async_work_ends_under_its_lock(locks: Locks, verb: str, kind: str) -> None:
    """Both verbs await what the work returns, and the lock is held until then."""

    async def work() -> bool:
        return await holding(locks) is not None

    answer = await getattr(locks, verb)(KEY, ASYNC_KINDS[kind](work))
    value = answer if verb == "run" else answer.value
    if inspect.iscoroutine(value):
        value.close()
    assert value is True
    assert await locks.holdings() == []


@pytest.mark.parametrize("verb", ["run", "attempt"])
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_async_work_is_refused_in_a_thread(plain_locks: Locks, verb: str, kind: str) -> None:
    """A thread cannot await: the refusal says so, and the work does not begin."""
    begun = []

    async def work() -> None:
        begun.append(1)

    with pytest.raises(TypeError, match=r"await locks\.run"):
        getattr(plain_locks.sync, verb)(KEY, ASYNC_KINDS[kind](work))
    assert begun == []
    assert plain_locks.sync.holdings() == []


@pytest.mark.parametrize("work", [generator, async_generator, functools.partial(generator)])
@pytest.mark.parametrize("verb", ["run", "attempt"])
@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_generator_is_no_work(locks: Locks, verb: str, work: Callable[[], Any]) -> None:
    """Its body would run when the caller iterates over it, after the lock is released."""
    with pytest.raises(TypeError, match="generator"):
        await getattr(locks, verb)(KEY, work)
    with pytest.raises(TypeError, match="generator"):
        getattr(locks.sync, verb)(KEY, work)
    assert locks.stats.snapshot().acquired == 0


def test_a_refused_kind_of_work_is_not_run_for_a_lock_that_is_taken(plain_locks: Locks) -> None:
    """The mistake is reported whether or not the lock is free: a test finds it without a rival."""

    async def work() -> None:
        pass

    with plain_locks.lock(KEY), pytest.raises(TypeError, match=r"await locks\.run"):
        plain_locks.sync.attempt(KEY, work)
