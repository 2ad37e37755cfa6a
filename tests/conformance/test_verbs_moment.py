"""The very microsecond, over the stores whose clock a test can stop (PostgreSQL keeps its own)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from earmark.clock import MovableClock
from earmark.domain.booking_state_machine import State
from earmark.errors import BookingExpired, SaleClosed, SeatsTaken
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from earmark.engine.ports.store import Store

    from .conftest import Shop

pytestmark = pytest.mark.usefixtures("the_books_balance")

TICK = timedelta(microseconds=1)


class StoppedClock(MovableClock):
    """Stands still until it is pushed, to the microsecond."""

    _start = datetime(2030, 6, 1, 20, 0, 0, 123_456, tzinfo=UTC)

    def now(self) -> datetime:
        """Where it was left."""
        return self._start + self.offset

    def put(self, moment: datetime) -> None:
        """Exactly there."""
        self.offset = moment - self._start


@pytest.fixture
def clock() -> StoppedClock:
    """Time that only a test moves."""
    return StoppedClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: StoppedClock) -> Store:
    """The stores that ask the clock."""
    if request.param == "memory":
        return MemoryStore(clock=clock)
    found: Store = request.getfixturevalue("sqlite_store")
    return found


async def test_a_hold_keeps_its_seat_until_the_microsecond_of_its_end(shop: Shop, clock: StoppedClock) -> None:
    """Half-open, in the store as in the rules: at expires_at the seat is the next buyer's."""
    await shop.create()
    held = await shop.hold("ada", "A1", ttl=60)
    clock.put(held.expires_at - TICK)
    assert (await shop.seats())["A1"] == "held"
    assert await shop.engine.expire(limit=10) == []
    with pytest.raises(SeatsTaken):
        await shop.hold("bob", "A1")
    clock.put(held.expires_at)
    assert (await shop.seats())["A1"] == "available"
    assert (await shop.hold("bob", "A1")).state is State.HELD
    assert (await shop.read(held)).state is State.EXPIRED


async def test_the_last_microsecond_is_in_time_for_a_confirm(shop: Shop, clock: StoppedClock) -> None:
    """One tick before the end confirms; at the end it is over."""
    await shop.create()
    one, two = await shop.hold("ada", "A1", ttl=60), await shop.hold("ada", "A2", ttl=60)
    clock.put(one.expires_at - TICK)
    assert (await shop.confirm(one)).confirmed_at == one.expires_at - TICK
    clock.put(two.expires_at)
    with pytest.raises(BookingExpired):
        await shop.confirm(two)


async def test_units_lapse_and_are_swept_at_the_same_microsecond(shop: Shop, clock: StoppedClock) -> None:
    """Map, sweeper and list agree on the moment."""
    await shop.create()
    held = await shop.hold("ada", pools={"GA": 4}, ttl=60)
    clock.put(held.expires_at - TICK)
    assert await shop.pool() == (6, 4, 0)
    assert await shop.bookings(state=State.EXPIRED) == []
    assert await shop.store.seconds_to_next_due() == TICK.total_seconds()
    clock.put(held.expires_at)
    assert await shop.pool() == (10, 0, 0)
    assert await shop.bookings(state=State.EXPIRED) == [held]
    assert await shop.store.seconds_to_next_due() == 0
    assert [booking.id for booking in await shop.engine.expire(limit=10)] == [held.id]


async def test_a_sale_opens_and_closes_at_its_microsecond(shop: Shop, clock: StoppedClock) -> None:
    """From the opening, until the close."""
    opens = clock.now() + timedelta(seconds=10)
    closes = opens + timedelta(seconds=10)
    await shop.create(sale_opens_at=opens, sale_closes_at=closes)
    for moment, on_sale in ((opens - TICK, False), (opens, True), (closes - TICK, True), (closes, False)):
        clock.put(moment)
        if on_sale:
            await shop.release(await shop.hold("ada", "A1"))
        else:
            with pytest.raises(SaleClosed):
                await shop.hold("ada", "A1")
