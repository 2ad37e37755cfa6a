"""A limit for events that say nothing themselves: the same in every store, and also in a crowd."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import State
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.id_types import Buyer, EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Actor, CreateEvent, Hold, Release, Result
from earmark.engine.engine import Engine
from earmark.engine.ports.store import BookingFilter
from earmark.errors import InvalidRequest, LimitExceeded
from earmark.schemas import to_command
from earmark.schemas.requests import HoldBody
from earmark.store.postgres.optimistic_transaction import NeedsLocks, OptimisticWrite

if TYPE_CHECKING:
    from earmark.engine.ports.store import Store
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

SHOP = Actor(name="shop", mode=Mode.TEST)
SEATS = 40


async def opened(store: Store, ids: Uuid7Ids, *, limit: int | None = 2, own: int | None = None) -> Engine:
    """An engine with this limit, and an event with that one."""
    engine = Engine(store, ids=ids, policy=Policy(per_buyer_max=limit))
    event_id = EventId("concert")
    event = Event(
        id=event_id, name="A concert", currency="EUR", mode=Mode.TEST, created_at=datetime.now(UTC), per_buyer_max=own
    )
    seats = tuple(Seat(event_id=event_id, id=SeatId(f"A{n}"), price=1) for n in range(SEATS))
    await engine.create_event(CreateEvent(actor=SHOP, entry_id=ids.entry_id(), event=event, seats=seats))
    return engine


async def hold(engine: Engine, *seats: int, buyer: str = "ann") -> Result:
    return await engine.hold(
        Hold(
            actor=SHOP,
            entry_id=engine.ids.entry_id(),
            booking_id=engine.ids.booking_id(),
            event_id=EventId("concert"),
            buyer=Buyer(buyer),
            seats=tuple(SeatId(f"A{n}") for n in seats),
        )
    )


async def test_an_event_that_says_nothing_has_the_policy_s_limit(store: Store, ids: Uuid7Ids) -> None:
    """Per buyer, over all their bookings, with the facts."""
    engine = await opened(store, ids)
    await hold(engine, 1)
    with pytest.raises(LimitExceeded) as refused:
        await hold(engine, 2, 3)
    assert refused.value.facts() == {"limit": 2, "have": 1, "asked": 2}
    await hold(engine, 2)
    await hold(engine, 3, 4, buyer="bob")


@pytest.mark.parametrize("own,fits", [(1, 1), (4, 4)])
async def test_an_event_s_own_limit_wins(store: Store, ids: Uuid7Ids, own: int, fits: int) -> None:
    """Lower or higher."""
    engine = await opened(store, ids, own=own)
    await hold(engine, *range(fits))
    with pytest.raises(LimitExceeded):
        await hold(engine, 10)


async def test_the_limit_bounds_live_holds_too(store: Store, ids: Uuid7Ids) -> None:
    """Every hold has something, so there are no more holds than units; one that ends makes room for another."""
    engine = await opened(store, ids, limit=3)
    first = await hold(engine, 0)
    for seat in (1, 2):
        await hold(engine, seat)
    with pytest.raises(LimitExceeded):
        await hold(engine, 3)
    ended = first.value.id  # type: ignore[union-attr]
    await engine.release(Release(actor=SHOP, entry_id=ids.entry_id(), booking_id=ended))
    await hold(engine, 3)
    wanted = BookingFilter(mode=Mode.TEST, limit=10, buyer=Buyer("ann"), state=State.HELD)
    _, active = await store.list_bookings(wanted)
    assert len(active) == 3
    with pytest.raises(InvalidRequest):
        to_command.hold(
            HoldBody(event_id="concert", buyer="ann"),
            buyer=Buyer("ann"),
            booking_id=ids.booking_id(),
            actor=SHOP,
            entry_id=ids.entry_id(),
            idempotency=None,
        )


async def test_without_a_policy_there_is_no_limit(store: Store, ids: Uuid7Ids) -> None:
    """As ever."""
    engine = await opened(store, ids, limit=None)
    answer = await hold(engine, *range(30))
    assert len(answer.value.lines.seats) == 30  # type: ignore[union-attr]


async def crowd(store: Store, ids: Uuid7Ids, second: Store) -> int:
    """One buyer at two servers at once; how much they got."""
    engine = await opened(store, ids)
    other = Engine(second, ids=ids, policy=Policy(per_buyer_max=2))
    asked = [hold(engine if n % 2 else other, n) for n in range(SEATS)]
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert not [one for one in told if isinstance(one, BaseException) and not isinstance(one, LimitExceeded)]
    return sum(not isinstance(one, LimitExceeded) for one in told)


async def test_a_crowd_of_one_buyer_s_requests_stays_within_it(
    postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids
) -> None:
    """At two servers, without a lock anywhere but on the buyer's own row."""
    second = await type(postgres_store).connect(postgres_url, clock=postgres_store._clock)
    try:
        assert await crowd(postgres_store, ids, second) == 2
    finally:
        await second.close()


async def test_a_draft_alone_would_not_keep_it(
    postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: judged without a lock, one buyer gets more than they may, for the event's row knows no limit."""
    locked = OptimisticWrite.lock_totals

    async def unlocked(self: OptimisticWrite, refs: object) -> object:
        try:
            return await locked(self, refs)  # type: ignore[arg-type]
        except NeedsLocks:
            return dict.fromkeys(refs, 0)  # type: ignore[call-overload]

    monkeypatch.setattr(OptimisticWrite, "lock_totals", unlocked)
    second = await type(postgres_store).connect(postgres_url, clock=postgres_store._clock)
    try:
        assert await crowd(postgres_store, ids, second) > 2
    finally:
        await second.close()
