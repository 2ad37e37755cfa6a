"""Duplicates: two requests with one idempotency key, at once. One is carried out, and both get its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import KeyedRequest, Replayed
from earmark.errors import SeatsTaken

from . import shortcuts
from .commands import a_hold
from .support import AS_BUILT, Shortcut, granted

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking

    from .support import RaceDatabase


def render(booking: Booking, _: datetime) -> tuple[int, bytes]:
    return 201, str(booking.id).encode()


MEMO = KeyedRequest(key=IdempotencyKey("shop", "key-1"), request_hash=b"same", write=render)


async def a_duplicate_has_begun_when_the_first_commits(
    database: RaceDatabase, shortcut: Shortcut, *, seats: tuple[str, ...] = ("A1",), units: int = 0
) -> tuple[Any, Any]:
    """Both have read the key's record, and there was none; then the first commits."""
    first = (await database.server("before write", shortcut=shortcut)).submit(
        a_hold(*seats, units=units, idempotency=MEMO)
    )
    await first.reached("before write")
    twin = (await database.server("after begin", shortcut=shortcut)).submit(
        a_hold(*seats, units=units, idempotency=MEMO)
    )
    await twin.reached("after begin")
    answer = await first.outcome()
    return answer, await twin.outcome()


async def test_a_key_that_is_read_and_not_claimed_refuses_the_duplicate_of_a_success(
    bare_database: RaceDatabase,
) -> None:
    """The buyer has the seat, and the duplicate is refused because the buyer's own hold has it."""
    first, twin = await a_duplicate_has_begun_when_the_first_commits(
        bare_database, shortcuts.LOOKS_KEYS_UP_WITHOUT_CLAIMING
    )
    granted(first)
    assert isinstance(twin, SeatsTaken)


async def test_the_journal_lets_no_key_be_used_twice(database: RaceDatabase) -> None:
    """The schema's guard, where nothing else would collide: the second booking of one key is refused as a whole."""
    first, twin = await a_duplicate_has_begun_when_the_first_commits(
        database, shortcuts.LOOKS_KEYS_UP_WITHOUT_CLAIMING, seats=(), units=1
    )
    granted(first)
    assert isinstance(twin, asyncpg.UniqueViolationError)
    assert twin.constraint_name == "journal_by_key"
    assert not await database.flaws()


async def test_a_duplicate_gets_the_answer_of_the_first(either_database: RaceDatabase) -> None:
    """A key that is being decided is busy; the duplicate retries and gets the same bytes."""
    first, twin = await a_duplicate_has_begun_when_the_first_commits(either_database, AS_BUILT)
    assert isinstance(twin, Replayed)
    assert twin.record == first.record
    assert await either_database.observer.fetchval("SELECT count(*) FROM bookings") == 1
    assert not await either_database.flaws()


async def test_a_duplicate_of_a_refusal_is_decided_by_itself(either_database: RaceDatabase) -> None:
    """A refusal is not recorded: when the first fails, the key is free and the duplicate may succeed."""
    holder = await either_database.held("A1")
    first = (await either_database.server("after read_seats")).submit(a_hold("A1", idempotency=MEMO))
    await first.reached("after read_seats")
    twin = (await either_database.server("after begin")).submit(a_hold("A1", idempotency=MEMO))
    await twin.reached("after begin")
    assert isinstance(await first.outcome(), SeatsTaken)
    either_database.pass_the_end(holder)
    assert granted(await twin.outcome()).id == await either_database.owner("A1")
    assert not await either_database.flaws()


async def test_claiming_a_key_and_reading_it_in_one_statement_finds_neither(bare_database: RaceDatabase) -> None:
    """The claim waits for the first, and then reads as of before the wait: it misses the record just committed."""
    first = (await bare_database.server("before write")).submit(a_hold("A1", idempotency=MEMO))
    await first.reached("before write")
    twin = (await bare_database.server(shortcut=shortcuts.CLAIMS_AND_READS_KEYS_AT_ONCE)).submit(
        a_hold("A1", idempotency=MEMO)
    )
    await twin.waits_for_a_lock()
    granted(await first.outcome())
    assert isinstance(await twin.outcome(), SeatsTaken)


async def test_a_key_is_read_in_a_statement_after_its_claim(either_database: RaceDatabase) -> None:
    """However close behind the first the duplicate claims the key, it then reads the first's record."""
    first = (await either_database.server("before write")).submit(a_hold("A1", idempotency=MEMO))
    await first.reached("before write")
    twin = (await either_database.server("before begin")).submit(a_hold("A1", idempotency=MEMO))
    await twin.reached("before begin")
    answer = await first.outcome()
    replayed = await twin.outcome()
    assert isinstance(replayed, Replayed)
    assert replayed.record == answer.record
