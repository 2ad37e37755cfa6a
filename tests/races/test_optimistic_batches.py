"""Drafts that travel together, and twins: one effect for a key, and nobody pays for the company they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.engine.commands import Decided, Replayed
from earmark.errors import SeatsTaken

from . import shortcuts
from .commands import a_confirm, a_hold, an_extend
from .optimistic_writes import by_another, decided_again, drafting, idempotency, kept
from .support import AS_BUILT, LOST_ITS_SEAT, Shortcut, granted

if TYPE_CHECKING:
    from earmark.engine.commands import Command

    from .support import House, Till

_SEATS = (
    "INSERT INTO seats (event_id, id, price, position) SELECT 'play', 'C' || n, 1, n FROM generate_series(1, 100) n"
)


async def test_a_key_that_is_not_written_with_its_effect_has_it_twice(bare_house: House) -> None:
    """Two processes, one key, and units enough for both."""
    first = await drafting(bare_house, a_hold(units=1, idempotency=idempotency()), shortcut=shortcuts.FORGETS_THE_KEY)
    twin = await drafting(bare_house, a_hold(units=1, idempotency=idempotency()), shortcut=shortcuts.FORGETS_THE_KEY)
    granted(await kept(first))
    granted(await kept(twin))
    assert await bare_house.observer.fetchval("SELECT count(*) FROM bookings") == 2


@pytest.mark.parametrize("seats", [(), ("A1",)])
async def test_a_key_has_one_effect_and_one_answer(either_house: House, seats: tuple[str, ...]) -> None:
    """The twin looked before the first was written: its draft is nothing, and it gets the very same bytes."""
    twin = await drafting(either_house, a_hold(*seats, units=1, idempotency=idempotency()))
    first = await by_another(either_house, a_hold(*seats, units=1, idempotency=idempotency()))
    replayed = await decided_again(twin)
    assert isinstance(replayed, Replayed)
    assert replayed.record == first.record
    assert await either_house.observer.fetchval("SELECT count(*) FROM bookings") == 1
    assert not await either_house.flaws()


async def a_batch_has_a_twin_elsewhere(services: House, shortcut: Shortcut) -> tuple[Till, Till]:
    """The first of two is being decided under locks by another process; the second is a stranger."""
    elsewhere = (await services.payments("before write")).ask(a_hold("A1", idempotency=idempotency()))
    await elsewhere.reached("before write")
    batch = await drafting(
        services, a_hold("A1", idempotency=idempotency()), a_hold("A2", buyer="cid"), shortcut=shortcut
    )
    return elsewhere, batch


async def test_a_draft_that_waits_for_a_twin_keeps_strangers_waiting(bare_house: House) -> None:
    """The stranger's seat is free, and nobody is told so."""
    elsewhere, batch = await a_batch_has_a_twin_elsewhere(bare_house, shortcuts.WAITS_FOR_A_TWIN)
    batch.go()
    await batch.waits_for_a_lock()
    assert await bare_house.owner("A2") is None
    granted(await elsewhere.outcome())
    await batch.outcome()


async def test_a_twin_elsewhere_hurts_no_stranger_in_its_batch(either_house: House) -> None:
    """The stranger is served while the twin is still being decided; the twin comes again."""
    elsewhere, batch = await a_batch_has_a_twin_elsewhere(either_house, AS_BUILT)
    _, stranger = await decided_again(batch)
    assert granted(stranger).id == await either_house.owner("A2")
    assert await either_house.owner("A1") is None
    assert granted(await elsewhere.outcome()).id == await either_house.owner("A1")
    assert not await either_house.flaws()


def hundred() -> list[Command]:
    """Ninety-nine seats, one of them wanted twice."""
    return [a_hold(f"C{n}", buyer=f"buyer-{n}") for n in (*range(1, 100), 7)]


async def test_without_a_count_a_batch_sells_what_it_did_not_get(bare_house: House) -> None:
    """One seat of the batch was somebody else's by then; its booking is written all the same."""
    await bare_house.observer.execute(_SEATS)
    batch = await drafting(bare_house, *hundred(), shortcut=shortcuts.FORGETS_TO_COUNT_SEATS)
    granted(await by_another(bare_house, a_hold("C50", buyer="eve")))
    granted((await kept(batch))[49])
    assert LOST_ITS_SEAT in await bare_house.flaws()


async def test_one_that_moved_costs_the_others_nothing(either_house: House) -> None:
    """All of the batch is decided again, in the order in which it came, and only the one is refused."""
    await either_house.observer.execute(_SEATS)
    asks = hundred()
    batch = await drafting(either_house, *asks)
    granted(await by_another(either_house, a_hold("C50", buyer="eve")))
    told = await decided_again(batch)
    assert [n for n, outcome in enumerate(told) if isinstance(outcome, SeatsTaken)] == [49, 99]
    won = [(ask, outcome) for ask, outcome in zip(asks, told, strict=True) if isinstance(outcome, Decided)]
    assert len(won) == 98
    for ask, outcome in won:
        assert granted(outcome).id == getattr(ask, "booking_id", None)
        assert await either_house.owner(granted(outcome).lines.seats[0].id) == granted(outcome).id
    assert not await either_house.flaws()


async def test_two_changes_of_one_booking_in_a_batch_keep_a_sale_that_came_between(either_house: House) -> None:
    """A batch may move a booking by two versions: it is still the version that was seen which must be there."""
    old = await either_house.held("A1")
    twice = await drafting(either_house, an_extend(old, seconds=60), an_extend(old, seconds=60))
    granted(await by_another(either_house, a_confirm(old)))
    outcomes = await twice.outcome()
    assert not [outcome for outcome in outcomes if isinstance(outcome, Decided)]
    assert await either_house.state(old) == "confirmed"
    assert not await either_house.flaws()


async def test_two_changes_of_one_booking_in_a_batch_are_written_as_drafted(either_house: House) -> None:
    """Nobody came between: there is nothing to lock for."""
    old = await either_house.held("A1")
    twice = await drafting(either_house, an_extend(old, seconds=60), an_extend(old, seconds=60))
    assert [granted(outcome).version for outcome in await kept(twice)] == [2, 3]
    assert not await either_house.flaws()
