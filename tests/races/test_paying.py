"""A booking whose payment is under way is nobody else's, however long ago its hold's time was over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.engine.engine import Engine
from earmark.errors import PaymentInProgress, PoolExhausted, SeatsTaken

from .asks import IDS, TTL_SECONDS, a_block, a_hold, a_play, a_release
from .support import granted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports import Store

    Pay = Callable[[Booking], Awaitable[None]]

_MOVE = "UPDATE bookings SET state = 'paying', version = 2, paying_until = {until} WHERE id = {id}"
_TELL = (
    "INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, at, facts) "
    "SELECT {entry}, event_id, id, 2, 'pay', 'held', 'paying', 'shop', created_at, '{{}}' FROM bookings WHERE id = {id}"
)


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def truth(request: pytest.FixtureRequest) -> Store:
    """The stores that can be written to by hand."""
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def pay(request: pytest.FixtureRequest, truth: Store) -> Pay:
    """Begin a payment by hand, as the verb for it will: the hold is paying, for an hour."""
    if type(truth).__name__ == "PostgresStore":
        return _paying_on_postgres(request.getfixturevalue("postgres_url"))
    return _paying_on_sqlite(request.getfixturevalue("tmp_path") / "earmark.sqlite3")


def _paying_on_postgres(url: str) -> Pay:
    async def pay(booking: Booking) -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute(_MOVE.format(id="$1", until="expires_at + interval '1 hour'"), booking.id)
            await connection.execute(_TELL.format(id="$1", entry="$2"), booking.id, IDS.entry_id())
        await connection.close()

    return pay


def _paying_on_sqlite(path: Path) -> Pay:
    async def pay(booking: Booking) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(_MOVE.format(id="?", until="expires_at + 3600000000"), (str(booking.id),))
            told = (str(IDS.entry_id()), str(booking.id))
            connection.execute(_TELL.format(id="?", entry="?"), told)

    return pay


@pytest.fixture
async def paid(truth: Store, clock: MovableClock, pay: Pay) -> tuple[Engine, Booking]:
    """A booking that is paying, past the end of its hold."""
    engine = Engine(truth, ids=IDS)
    await engine.create(a_play())
    booking = granted(await engine.hold(a_hold("A1", "A2", units=10, buyer="ann")))
    await pay(booking)
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
        await engine.change(a_block("A1"))
    await assert_still_paying(engine, booking)


async def test_no_caller_releases_a_paying_booking(paid: tuple[Engine, Booking]) -> None:
    """The payment decides now."""
    engine, booking = paid
    with pytest.raises(PaymentInProgress):
        await engine.release(a_release(booking))
    await assert_still_paying(engine, booking)
