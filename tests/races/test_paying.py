"""A booking whose payment is under way keeps its seats, however long ago its hold's time was over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.engine.engine import Engine
from earmark.errors import PaymentInProgress, PoolExhausted, SeatsTaken
from earmark.payments.open_and_conclude_payment import open_payment

from .commands import IDS, TTL_SECONDS, a_block, a_hold, a_payment, a_play, a_release
from .support import granted

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def writable_store(request: pytest.FixtureRequest) -> Store:
    """The stores that a test can write to directly."""
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture
async def paid(writable_store: Store, clock: MovableClock) -> tuple[Engine, Booking]:
    """A booking that is paying, past the end of its hold."""
    engine = Engine(writable_store, ids=IDS)
    await engine.create_event(a_play())
    booking = granted(await engine.hold(a_hold("A1", "A2", units=10, buyer="ann")))
    await open_payment(engine, a_payment(booking))
    clock.advance(TTL_SECONDS + 1)
    return engine, booking


async def assert_still_paying(engine: Engine, booking: Booking) -> None:
    """Its state, its seats and its units are its own."""
    _, found = await engine.store.read_booking(booking.id)
    assert found is not None
    assert found.state == "paying"
    assert {seat.owner_id for seat in (await engine.store.read_map(booking.event_id)).seats[-2:]} == {booking.id}
    assert not await engine.store.find_flaws(limit=10)


async def test_no_hold_takes_over_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """The clock that ends holds does not end payments."""
    engine, booking = paid
    with pytest.raises(SeatsTaken) as refused:
        await engine.hold(a_hold("A1"))
    assert refused.value.seats == ["A1"]
    await assert_still_paying(engine, booking)


async def test_no_hold_takes_the_units_of_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """Making room before a pool is called exhausted makes none of what is being paid."""
    engine, booking = paid
    with pytest.raises(PoolExhausted):
        await engine.hold(a_hold(units=1))
    await assert_still_paying(engine, booking)


async def test_no_sweeper_ends_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """Nor does the sweeper, which looks for holds."""
    engine, booking = paid
    assert await engine.expire(limit=100) == []
    await assert_still_paying(engine, booking)


async def test_no_operator_blocks_the_seat_of_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """It is taken."""
    engine, booking = paid
    with pytest.raises(SeatsTaken):
        await engine.change_event(a_block("A1"))
    await assert_still_paying(engine, booking)


async def test_no_caller_releases_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """The payment decides now."""
    engine, booking = paid
    with pytest.raises(PaymentInProgress):
        await engine.release(a_release(booking))
    await assert_still_paying(engine, booking)
