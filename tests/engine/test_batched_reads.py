"""Queries to the store that many requests share: bounded in number and in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.engine import batched_reads as module
from earmark.engine.batched_reads import SharedReads
from earmark.errors import Overloaded, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


class Store:
    """Answers each number with itself, when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.broken: Exception | None = None

    async def command(self, numbers: Sequence[int]) -> list[int]:
        """One call."""
        self.asked.append(list(numbers))
        await self.may_answer.wait()
        if self.broken:
            raise self.broken
        return list(numbers)


async def waiting_queries(questions: SharedReads[int, int], *numbers: int) -> list[asyncio.Future[int]]:
    """So many requests, each with its query."""
    answers = [questions.read(number) for number in numbers]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return answers


async def test_waiting_queries_share_the_next_call() -> None:
    """The call under way is not theirs: it may have looked before they came."""
    store = Store()
    questions = SharedReads(store.command)
    first = await waiting_queries(questions, 1)
    later = await waiting_queries(questions, 2, 3)
    store.may_answer.set()
    assert await asyncio.gather(*first, *later) == [1, 2, 3]
    assert store.asked == [[1], [2, 3]]


async def test_too_many_queries_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs fills no memory with waiting queries."""
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    store = Store()
    questions = SharedReads(store.command)
    taken = [*await waiting_queries(questions, 1), *await waiting_queries(questions, 2, 3)]
    with pytest.raises(Overloaded):
        await questions.read(4)
    store.may_answer.set()
    assert await asyncio.gather(*taken) == [1, 2, 3]


async def test_a_store_that_hangs_refuses_for_now() -> None:
    """Nothing was begun for them, so they may retry; and the next ones are queried all the same."""
    store = Store()
    questions = SharedReads(store.command, seconds_max=0.01)
    (lost,) = await waiting_queries(questions, 1)
    with pytest.raises(Overloaded):
        await lost
    store.may_answer.set()
    assert await questions.read(2) == 2


async def test_a_request_that_left_is_not_queried() -> None:
    """Its caller does not wait any more."""
    store = Store()
    questions = SharedReads(store.command)
    first = await waiting_queries(questions, 1)
    gone, stays = await waiting_queries(questions, 2, 3)
    gone.cancel()
    await asyncio.sleep(0)
    store.may_answer.set()
    assert await asyncio.gather(*first, stays) == [1, 3]
    assert store.asked == [[1], [3]]


async def test_a_failed_query_fails_the_requests_that_wait_for_it() -> None:
    """And to no later one."""
    store = Store()
    store.may_answer.set()
    questions = SharedReads(store.command)
    store.broken = StoreUnavailable(because="gone")
    with pytest.raises(StoreUnavailable):
        await questions.read(1)
    store.broken = None
    assert await questions.read(2) == 2


async def test_requests_behind_a_failed_call_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent store is not queried again for each few of them: the last would wait for all before it."""
    monkeypatch.setattr(module, "BATCH_MAX", 2)
    store = Store()
    questions = SharedReads(store.command, seconds_max=0.05)
    waiting = [*await waiting_queries(questions, 1), *await waiting_queries(questions, *range(2, 12))]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in told] == [Overloaded] * 11
    assert store.asked == [[1]]
    store.may_answer.set()
    assert await questions.read(12) == 12


async def test_a_task_that_ended_at_once_keeps_no_later_query_waiting() -> None:
    """Where the event loop begins tasks eagerly, a store that answers without a wait has the first one done at once."""
    store = Store()
    store.may_answer.set()
    questions = SharedReads(store.command)
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    questions._reading = ended  # type: ignore[assignment] # as done as such a task
    assert await asyncio.wait_for(questions.read(1), timeout=5) == 1
