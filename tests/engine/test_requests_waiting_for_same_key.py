"""A repeat whose twin another process is deciding: it costs other requests nothing, and few transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.engine.conftest import NOW, number_of
from tests.engine.store_with_locks import unused
from tests.engine.virtual_clock import run_virtually

from earmark.domain.id_types import EntryId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine import requests_waiting_for_same_key
from earmark.engine.commands_and_results import Actor, Command, Decided, TryAgain
from earmark.engine.group_commit import BatchQueue
from earmark.engine.requests_waiting_for_same_key import RequestsWaitingForSameKey
from earmark.engine.wait_for_one_locked_row import LockedRowWaits
from earmark.errors import IdempotencyInProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from earmark.engine.commands_and_results import Outcome

REPEATS_MAX = 1000
"""Requests with a lower number are repeats."""
TWIN = TryAgain(refusal=IdempotencyInProgress(), rounds_max=1000, delay_seconds=0.01)
TWIN_SECONDS = 4.0
"""How long the other process takes."""


class Repeats:
    """A queue whose low numbers are repeats of what another process decides for some seconds."""

    def __init__(self, *, waiting_max: int = 5000) -> None:
        self.queue: BatchQueue[Command] = BatchQueue(
            self._run,
            make_room_in=unused,
            have_due=unused,
            row_waits=LockedRowWaits(unused),
            waiting_max=waiting_max,
        )
        self.batches: list[tuple[int, ...]] = []

    async def _run(self, begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        assert lock_seconds > 0
        numbers = tuple(map(number_of, begin()))
        self.batches.append(numbers)
        await asyncio.sleep(0.004)
        is_over = asyncio.get_running_loop().time() >= TWIN_SECONDS
        return [Decided(value=number, now=NOW) if is_over or number >= REPEATS_MAX else TWIN for number in numbers]

    async def ask(self, number: int) -> object:
        """Its result, or the name of its error."""
        command = Command(actor=Actor(name="shop", mode=Mode.LIVE), entry_id=EntryId(UUID(int=number)))
        try:
            result: Any = await self.queue.submit(command, within=15)
        except Exception as refused:  # noqa: BLE001 (compared)
            return type(refused).__name__
        return result.value

    @property
    def mixed(self) -> int:
        """How many batches had repeats and other requests, but for those in which the repeats first came."""
        later = self.batches[2:]
        return sum(min(batch) < REPEATS_MAX <= max(batch) for batch in later)


async def ten_repeats_and_others() -> Repeats:
    """The others come all the time, until the twins are decided."""
    shop = Repeats()
    asked = [asyncio.create_task(shop.ask(number)) for number in range(10)]
    number = REPEATS_MAX
    while asyncio.get_running_loop().time() < TWIN_SECONDS + 1:
        asked.append(asyncio.create_task(shop.ask(number)))
        number += 1
        await asyncio.sleep(0.002)
    assert await asyncio.gather(*asked) == [*range(10), *range(REPEATS_MAX, number)]
    await shop.queue.close()
    return shop


def test_repeats_are_decided_in_batches_of_their_own() -> None:
    """The database refuses a batch with a key that is being decided elsewhere: no other request is in it."""
    assert run_virtually(ten_repeats_and_others()).mixed == 0


def test_control_queued_with_the_others_they_are_in_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a hundred times a second a batch of strangers was run in vain."""

    def queue_with_the_others(queue: BatchQueue[Any], again: Sequence[tuple[Any, TryAgain]]) -> None:
        loop = asyncio.get_running_loop()
        for request, outcome in again:
            loop.call_later(outcome.delay_seconds, queue._enter, request)

    monkeypatch.setattr(BatchQueue, "_retry", queue_with_the_others)
    assert run_virtually(ten_repeats_and_others()).mixed > 100


async def batches_of_one_repeat() -> int:
    """It waits for four seconds."""
    shop = Repeats()
    assert await shop.ask(1) == 1
    return len(shop.batches)


def test_the_pauses_of_a_repeat_grow() -> None:
    """It asks soon at first, for most twins are decided at once."""
    assert run_virtually(batches_of_one_repeat()) < 35


def test_control_a_repeat_whose_pauses_do_not_grow_asks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: one transaction every fourteen milliseconds."""
    monkeypatch.setattr(requests_waiting_for_same_key, "PAUSE_SECONDS_MAX", TWIN.delay_seconds)
    assert run_virtually(batches_of_one_repeat()) > 250


async def crowd_of_repeats(*, waiting_max: int) -> list[object]:
    """Six that come while another request is decided, and so share a batch."""
    shop = Repeats(waiting_max=waiting_max)
    asked = [asyncio.create_task(shop.ask(number)) for number in (REPEATS_MAX, *range(6))]
    return list(await asyncio.gather(*asked))[1:]


def test_repeats_that_are_too_many_are_refused() -> None:
    """At most half as many as the queue takes may wait for twins, beside it; the clients of the others ask again."""
    told = run_virtually(crowd_of_repeats(waiting_max=8))
    assert told == [0, 1, 2, 3, "IdempotencyInProgress", "IdempotencyInProgress"]


def test_control_a_longer_queue_has_place_for_all_repeats() -> None:
    """It is the bound that refuses them."""
    assert run_virtually(crowd_of_repeats(waiting_max=80)) == [0, 1, 2, 3, 4, 5]


async def close_while_a_repeat_is_under_way() -> tuple[object, Repeats]:
    """The queue closes in the moment in which its batch runs; how it ends within a second."""
    shop = Repeats()
    asked = asyncio.create_task(shop.ask(1))
    await asyncio.sleep(0.002)
    await shop.queue.close()
    await asyncio.wait((asked,), timeout=1)
    told = asked.result() if asked.done() else "it still waits"
    asked.cancel()
    return told, shop


def test_a_queue_that_closes_refuses_its_repeats() -> None:
    """It does not wait for another process."""
    told, shop = run_virtually(close_while_a_repeat_is_under_way())
    assert (told, shop.batches) == ("IdempotencyInProgress", [(1,)])


def test_control_a_queue_that_only_refuses_those_that_pause_leaves_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repeat that was under way then waits for its twin in a queue that is closed."""
    monkeypatch.setattr(RequestsWaitingForSameKey, "close", lambda _: None)
    told, _ = run_virtually(close_while_a_repeat_is_under_way())
    assert told == "it still waits"
