"""Twins: two requests with one idempotency key, at once. One is carried out, and both get its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.domain.journal import IdempotencyKey
from earmark.engine.commands import KeyedRequest, Replayed
from earmark.errors import SeatsTaken

from . import shortcuts
from .commands import a_hold
from .support import AS_BUILT, Shortcut, granted

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking

    from .support import House


def render(booking: Booking, _: datetime) -> tuple[int, bytes]:
    return 201, str(booking.id).encode()


MEMO = KeyedRequest(key=IdempotencyKey("shop", "key-1"), request_hash=b"same", write=render)


async def a_twin_has_begun_when_the_first_commits(
    services: House, shortcut: Shortcut, *, seats: tuple[str, ...] = ("A1",), units: int = 0
) -> tuple[Any, Any]:
    """Both have asked for the key's memory, and there was none; then the first commits."""
    first = (await services.payments("before write", shortcut=shortcut)).ask(
        a_hold(*seats, units=units, idempotency=MEMO)
    )
    await first.reached("before write")
    twin = (await services.payments("after begin", shortcut=shortcut)).ask(
        a_hold(*seats, units=units, idempotency=MEMO)
    )
    await twin.reached("after begin")
    answer = await first.outcome()
    return answer, await twin.outcome()


async def test_a_key_that_is_looked_up_and_not_claimed_tells_the_twin_of_a_success_no(bare_house: House) -> None:
    """The buyer has the seat, and is told that it is taken: by themselves."""
    first, twin = await a_twin_has_begun_when_the_first_commits(bare_house, shortcuts.LOOKS_KEYS_UP_WITHOUT_CLAIMING)
    granted(first)
    assert isinstance(twin, SeatsTaken)


async def test_the_journal_lets_no_key_be_used_twice(services: House) -> None:
    """The last line, where nothing else would collide: the second booking of one key is refused as a whole."""
    first, twin = await a_twin_has_begun_when_the_first_commits(
        services, shortcuts.LOOKS_KEYS_UP_WITHOUT_CLAIMING, seats=(), units=1
    )
    granted(first)
    assert isinstance(twin, asyncpg.UniqueViolationError)
    assert twin.constraint_name == "journal_by_key"
    assert not await services.flaws()


async def test_a_twin_gets_the_answer_of_the_first(either_house: House) -> None:
    """A key that is being decided is busy; the twin comes again and gets the same bytes."""
    first, twin = await a_twin_has_begun_when_the_first_commits(either_house, AS_BUILT)
    assert isinstance(twin, Replayed)
    assert twin.record == first.record
    assert await either_house.observer.fetchval("SELECT count(*) FROM bookings") == 1
    assert not await either_house.flaws()


async def test_a_twin_of_a_refusal_is_decided_by_itself(either_house: House) -> None:
    """A refusal is not remembered: when the first fails, the key is free and the twin may succeed."""
    holder = await either_house.held("A1")
    first = (await either_house.payments("after read_seats")).ask(a_hold("A1", idempotency=MEMO))
    await first.reached("after read_seats")
    twin = (await either_house.payments("after begin")).ask(a_hold("A1", idempotency=MEMO))
    await twin.reached("after begin")
    assert isinstance(await first.outcome(), SeatsTaken)
    either_house.pass_the_end(holder)
    assert granted(await twin.outcome()).id == await either_house.owner("A1")
    assert not await either_house.flaws()


async def test_claiming_a_key_and_reading_it_in_one_statement_finds_neither(bare_house: House) -> None:
    """The claim waits for the first, and then reads as of before the wait: no memory of what was just kept."""
    first = (await bare_house.payments("before write")).ask(a_hold("A1", idempotency=MEMO))
    await first.reached("before write")
    twin = (await bare_house.payments(shortcut=shortcuts.CLAIMS_AND_READS_KEYS_AT_ONCE)).ask(
        a_hold("A1", idempotency=MEMO)
    )
    await twin.waits_for_a_lock()
    granted(await first.outcome())
    assert isinstance(await twin.outcome(), SeatsTaken)


async def test_a_key_is_read_in_a_statement_after_its_claim(either_house: House) -> None:
    """However close behind the first the twin claims the key, it then sees what the first has kept."""
    first = (await either_house.payments("before write")).ask(a_hold("A1", idempotency=MEMO))
    await first.reached("before write")
    twin = (await either_house.payments("before begin")).ask(a_hold("A1", idempotency=MEMO))
    await twin.reached("before begin")
    answer = await first.outcome()
    replayed = await twin.outcome()
    assert isinstance(replayed, Replayed)
    assert replayed.record == answer.record
