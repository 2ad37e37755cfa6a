"""Batches of optimistic writes, and duplicates: one effect for a key, and no request delays others of its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.engine.commands_and_results import Decided, Replayed
from earmark.errors import SeatsTaken

from . import shortcuts
from .commands import a_confirm, a_hold, an_extend
from .optimistic_writes import by_another, decided_again, decided_without_locks, idempotency, kept
from .support import AS_BUILT, LOST_ITS_SEAT, Shortcut, granted

if TYPE_CHECKING:
    from earmark.engine.commands_and_results import Command

    from .support import RaceDatabase, Server

_SEATS = (
    "INSERT INTO seats (event_id, id, price, position) SELECT 'play', 'C' || n, 1, n FROM generate_series(1, 100) n"
)


async def test_a_key_that_is_not_written_with_its_effect_has_it_twice(bare_database: RaceDatabase) -> None:
    """Two processes, one key, and units enough for both."""
    first = await decided_without_locks(
        bare_database, a_hold(units=1, idempotency=idempotency()), shortcut=shortcuts.FORGETS_THE_KEY
    )
    twin = await decided_without_locks(
        bare_database, a_hold(units=1, idempotency=idempotency()), shortcut=shortcuts.FORGETS_THE_KEY
    )
    granted(await kept(first))
    granted(await kept(twin))
    assert await bare_database.observer.fetchval("SELECT count(*) FROM bookings") == 2


@pytest.mark.parametrize("seats", [(), ("A1",)])
async def test_a_key_has_one_effect_and_one_answer(either_database: RaceDatabase, seats: tuple[str, ...]) -> None:
    """The duplicate read before the first was written: its optimistic write is dropped, and it gets the same bytes."""
    twin = await decided_without_locks(either_database, a_hold(*seats, units=1, idempotency=idempotency()))
    first = await by_another(either_database, a_hold(*seats, units=1, idempotency=idempotency()))
    replayed = await decided_again(twin)
    assert isinstance(replayed, Replayed)
    assert replayed.record == first.record
    assert await either_database.observer.fetchval("SELECT count(*) FROM bookings") == 1
    assert not await either_database.flaws()


async def a_batch_has_a_duplicate_elsewhere(database: RaceDatabase, shortcut: Shortcut) -> tuple[Server, Server]:
    """The first of two is being decided under locks by another process; the second is unrelated."""
    elsewhere = (await database.server("before write")).submit(a_hold("A1", idempotency=idempotency()))
    await elsewhere.reached("before write")
    batch = await decided_without_locks(
        database, a_hold("A1", idempotency=idempotency()), a_hold("A2", buyer="cid"), shortcut=shortcut
    )
    return elsewhere, batch


async def test_an_optimistic_write_that_waits_for_a_duplicate_keeps_other_requests_waiting(
    bare_database: RaceDatabase,
) -> None:
    """The other request's seat is free, and it gets no answer."""
    elsewhere, batch = await a_batch_has_a_duplicate_elsewhere(bare_database, shortcuts.WAITS_FOR_A_TWIN)
    batch.go()
    await batch.waits_for_a_lock()
    assert await bare_database.owner("A2") is None
    granted(await elsewhere.outcome())
    await batch.outcome()


async def test_a_duplicate_elsewhere_delays_no_other_request_of_its_batch(either_database: RaceDatabase) -> None:
    """The other request is served while the duplicate is still being decided; the duplicate is retried."""
    elsewhere, batch = await a_batch_has_a_duplicate_elsewhere(either_database, AS_BUILT)
    _, stranger = await decided_again(batch)
    assert granted(stranger).id == await either_database.owner("A2")
    assert await either_database.owner("A1") is None
    assert granted(await elsewhere.outcome()).id == await either_database.owner("A1")
    assert not await either_database.flaws()


def hundred() -> list[Command]:
    """Ninety-nine seats, one of them wanted twice."""
    return [a_hold(f"C{n}", buyer=f"buyer-{n}") for n in (*range(1, 100), 7)]


async def test_without_a_count_a_batch_sells_what_it_did_not_get(bare_database: RaceDatabase) -> None:
    """Another buyer took one seat of the batch meanwhile; its booking is written all the same."""
    await bare_database.observer.execute(_SEATS)
    batch = await decided_without_locks(bare_database, *hundred(), shortcut=shortcuts.FORGETS_TO_COUNT_SEATS)
    granted(await by_another(bare_database, a_hold("C50", buyer="eve")))
    granted((await kept(batch))[49])
    assert LOST_ITS_SEAT in await bare_database.flaws()


async def test_a_changed_seat_costs_the_other_requests_nothing(either_database: RaceDatabase) -> None:
    """All of the batch is decided again, in the order in which it came, and only the one is refused."""
    await either_database.observer.execute(_SEATS)
    asks = hundred()
    batch = await decided_without_locks(either_database, *asks)
    granted(await by_another(either_database, a_hold("C50", buyer="eve")))
    told = await decided_again(batch)
    assert [n for n, outcome in enumerate(told) if isinstance(outcome, SeatsTaken)] == [49, 99]
    won = [(ask, outcome) for ask, outcome in zip(asks, told, strict=True) if isinstance(outcome, Decided)]
    assert len(won) == 98
    for ask, outcome in won:
        assert granted(outcome).id == getattr(ask, "booking_id", None)
        assert await either_database.owner(granted(outcome).lines.seats[0].id) == granted(outcome).id
    assert not await either_database.flaws()


async def test_two_changes_of_one_booking_in_a_batch_keep_a_sale_that_came_between(
    either_database: RaceDatabase,
) -> None:
    """A batch may move a booking by two versions: it is still the version that was seen which must be there."""
    old = await either_database.held("A1")
    twice = await decided_without_locks(either_database, an_extend(old, seconds=60), an_extend(old, seconds=60))
    granted(await by_another(either_database, a_confirm(old)))
    outcomes = await twice.outcome()
    assert not [outcome for outcome in outcomes if isinstance(outcome, Decided)]
    assert await either_database.state(old) == "confirmed"
    assert not await either_database.flaws()


async def test_two_changes_of_one_booking_in_a_batch_are_written_as_decided(either_database: RaceDatabase) -> None:
    """No other transaction came between: there is nothing to lock for."""
    old = await either_database.held("A1")
    twice = await decided_without_locks(either_database, an_extend(old, seconds=60), an_extend(old, seconds=60))
    assert [granted(outcome).version for outcome in await kept(twice)] == [2, 3]
    assert not await either_database.flaws()
