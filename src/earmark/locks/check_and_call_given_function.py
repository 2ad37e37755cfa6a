"""Runs the function that `run` and `attempt` are given, and waits for it, so that none of its work is left for later.

A coroutine does nothing before it is awaited, and a generator nothing before it is iterated over. Returned to the
caller, either would do its work after the lock is released.

The exception is a plain function in a thread, which cannot be stopped: where the caller is cancelled, `perform` ends at
once, and the function goes on while the lock is released.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ASYNC_IN_A_THREAD = "{} is async, and locks.sync cannot await it: use await locks.run(…) or await locks.attempt(…)"
GENERATOR = "{} is a generator, whose body would run after the lock is released: give a function that returns"


def check(work: Callable[..., Any]) -> None:
    """Raise `TypeError` for work that could not be done under a lock."""
    called = _called(work)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(GENERATOR.format(_name(work)))


def check_plain(work: Callable[..., Any]) -> None:
    """The same for a thread, which cannot await."""
    check(work)
    if inspect.iscoroutinefunction(_called(work)):
        raise TypeError(ASYNC_IN_A_THREAD.format(_name(work)))


async def perform(work: Callable[..., Any], held: Any) -> Any:
    """What the work returns; a plain function runs in a thread, and what it returns is awaited if it can be."""
    call = with_held(work, held)
    if inspect.iscoroutinefunction(work):
        return await call()
    answer = await asyncio.to_thread(call)
    return await answer if inspect.isawaitable(answer) else answer


def perform_plain(work: Callable[..., Any], held: Any) -> Any:
    """What the work returns, in this thread. That a function is async may show only when it has returned."""
    answer = with_held(work, held)()
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(ASYNC_IN_A_THREAD.format(f"What {_name(work)} returns"))
    return answer


def with_held(work: Callable[..., Any], held: Any) -> Callable[[], Any]:
    """The call of `work`, with the held lock if it takes an argument."""
    try:
        inspect.signature(work).bind()
    except TypeError:
        return functools.partial(work, held)
    except ValueError:  # Some built-in functions have no signature.
        return work
    return work


def _called(work: Callable[..., Any]) -> Any:
    """The function behind partials and callable objects."""
    while isinstance(work, functools.partial):
        work = work.func
    return work if inspect.isroutine(work) or inspect.isclass(work) else type(work).__call__


def _name(work: Callable[..., Any]) -> str:
    called = work.func if isinstance(work, functools.partial) else work
    return getattr(called, "__qualname__", type(called).__qualname__)
