"""Requests in one batch are independent: no request gains or loses by the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Confirm, Hold, KeyedRequest
from earmark.engine.engine import Engine
from earmark.errors import (
    BookingResolved,
    IdempotencyInProgress,
    LimitExceeded,
    OutcomeUnknown,
    Overloaded,
    PaymentUsed,
    PoolExhausted,
    SeatsTaken,
)

from .commands import IDS, a_confirm, a_hold, a_limit
from .support import granted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from earmark.engine.commands_and_results import Result

    from .support import RaceDatabase


async def in_one_batch(database: RaceDatabase, asks: Sequence[Hold | Confirm]) -> list[Any]:
    """Queue the commands behind one that is under way, so that they form one batch; their results."""
    server = await database.server("before write")
    engine = Engine(server.engine.store, ids=IDS, connection_slots=1)
    ahead: Hold | Confirm = a_hold("B9", buyer="eve")
    if isinstance(asks[0], Confirm):
        ahead = a_confirm(await database.held("B9", buyer="eve"))
    under_way = asyncio.ensure_future(submitted(engine, ahead))
    await server.reached("before write", under_way)
    waiting = [asyncio.ensure_future(submitted(engine, ask)) for ask in asks]
    await asyncio.sleep(0)
    server.go()
    granted(await under_way)
    return await asyncio.gather(*waiting, return_exceptions=True)


def submitted(engine: Engine, ask: Hold | Confirm) -> Awaitable[Result]:
    return engine.hold(ask) if isinstance(ask, Hold) else engine.confirm(ask)


async def test_a_seat_goes_to_the_first_buyer_that_may_have_it(either_database: RaceDatabase) -> None:
    """The first request of the batch wants too many units; the second gets the seat."""
    await either_database.held(buyer="dan", units=8)
    first, second = await in_one_batch(
        either_database, [a_hold("A1", units=3, buyer="ann"), a_hold("A1", units=2, buyer="bob")]
    )
    assert isinstance(first, PoolExhausted | SeatsTaken)
    assert granted(second).id == await either_database.owner("A1")
    assert not await either_database.flaws()


async def test_a_buyer_over_the_limit_does_not_keep_the_seat_from_the_next(either_database: RaceDatabase) -> None:
    """The second buyer gets the seat although the first is over their limit."""
    granted(await (await either_database.server()).submit(a_limit(2)).outcome())
    await either_database.held("B1", "B2", buyer="ann")
    first, second, third = await in_one_batch(
        either_database, [a_hold("A1", buyer="ann"), a_hold("A1", buyer="bob"), a_hold("A1", buyer="cid")]
    )
    assert isinstance(first, LimitExceeded | SeatsTaken)
    assert granted(second).id == await either_database.owner("A1")
    assert isinstance(third, SeatsTaken)
    assert not await either_database.flaws()


async def test_a_request_that_fails_fails_alone(either_database: RaceDatabase) -> None:
    """Its batch is split until it is by itself; the others get their seats, and nothing of it is kept."""

    def broken(_: object, __: object) -> tuple[int, bytes]:
        raise ZeroDivisionError

    idempotency = KeyedRequest(key=IdempotencyKey("shop", "poison"), request_hash=b"", write=broken)
    asks = [a_hold(f"A{n}", buyer=f"buyer-{n}", idempotency=idempotency if n == 4 else None) for n in range(1, 8)]
    outcomes = await in_one_batch(either_database, asks)
    assert isinstance(outcomes.pop(3), ZeroDivisionError)
    for outcome in outcomes:
        assert granted(outcome).state == "held"
    assert await either_database.owner("A4") is None
    assert not await either_database.flaws()


async def test_a_request_withdrawn_while_it_waited_never_happens(database: RaceDatabase) -> None:
    """Its deadline passed before its turn: it is refused for certain. The outcome of the one under way is unknown."""
    server = await database.server()
    granted(await server.submit(a_hold("A9")).outcome())
    server.stop_at("before write")
    engine = Engine(server.engine.store, ids=IDS, connection_slots=1, request_seconds_max=0.5)
    ahead, behind = a_hold("A1"), a_hold("A2")
    under_way = asyncio.ensure_future(engine.hold(ahead))
    await server.reached("before write", under_way)
    with pytest.raises(Overloaded):
        await engine.hold(behind)
    with pytest.raises(OutcomeUnknown):
        await under_way
    server.go()
    await engine._holds.close()
    assert await database.owner("A1") == ahead.booking_id
    assert await database.owner("A2") is None
    assert (await engine.store.read_booking(behind.booking_id))[1] is None
    assert not await database.flaws()


async def test_a_duplicate_past_its_deadline_gets_in_progress(
    database: RaceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the first, gives up, and never happens by itself."""
    monkeypatch.setattr("earmark.engine.batch_transaction.REPEAT_DELAY_SECONDS", 60)
    idempotency = KeyedRequest(
        key=IdempotencyKey("shop", "twin"), request_hash=b"", write=lambda booking, _: (201, str(booking.id).encode())
    )
    first = (await database.server("before write")).submit(a_hold("A1", idempotency=idempotency))
    await first.reached("before write")
    server = await database.server()
    granted(await server.submit(a_hold("A9", buyer="eve")).outcome())
    engine = Engine(server.engine.store, ids=IDS, request_seconds_max=0.5)
    twin = a_hold("A1", idempotency=idempotency)
    with pytest.raises(IdempotencyInProgress):
        await engine.hold(twin)
    await engine._holds.close()
    assert granted(await first.outcome()).id == await database.owner("A1")
    assert (await engine.store.read_booking(twin.booking_id))[1] is None


async def test_one_payment_named_twice_confirms_the_first(either_database: RaceDatabase) -> None:
    """In one batch as in two."""
    mine, yours = await either_database.held("A1"), await either_database.held("A2", buyer="bob")
    first, second = await in_one_batch(
        either_database, [a_confirm(mine, payment_id="p1"), a_confirm(yours, payment_id="p1")]
    )
    assert granted(first).payment_id == "p1"
    assert isinstance(second, PaymentUsed)
    assert not await either_database.flaws()


async def test_a_payment_that_confirmed_nothing_is_still_free(either_database: RaceDatabase) -> None:
    """A refusal changes nothing: the second payment for one booking can pay for another, now or later."""
    mine, yours = await either_database.held("A1"), await either_database.held("A2", buyer="bob")
    later = await either_database.held("A3", buyer="cid")
    first, second, third, fourth = await in_one_batch(
        either_database,
        [
            a_confirm(mine, payment_id="p1"),
            a_confirm(mine, payment_id="p2"),
            a_confirm(mine, payment_id="p3"),
            a_confirm(yours, payment_id="p2"),
        ],
    )
    assert granted(first).payment_id == "p1"
    assert isinstance(second, BookingResolved)
    assert isinstance(third, BookingResolved)
    assert granted(fourth).payment_id == "p2"
    assert granted(await either_database.tried(a_confirm(later, payment_id="p3"))).payment_id == "p3"
    assert not await either_database.flaws()


async def test_a_hold_respects_a_limit_that_was_lowered_meanwhile(database: RaceDatabase) -> None:
    """The limit was read before the operator changed it: the hold is granted by the old one or refused by the new."""
    holding = (await database.server("after read_events", retries=True)).submit(a_hold("A1", "A2"))
    await holding.reached("after read_events")
    granted(await (await database.server()).submit(a_limit(1)).outcome())
    outcome = await holding.outcome()
    assert isinstance(outcome, LimitExceeded) or granted(outcome).lines.units == 2
    assert not await database.flaws()
