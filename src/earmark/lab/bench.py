"""A first benchmark: many buyers hold and confirm at once, and the database says how many did.

Figures from one machine and one run compare with nothing but each other. What counts is taken from the tables
afterwards, never from what the clients believe.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.event import Event
from earmark.domain.ids import BookingId, Buyer, EventId, SeatId
from earmark.domain.machine import State
from earmark.domain.seat import Seat
from earmark.engine.asks import Actor, Confirm, Create, Hold
from earmark.engine.ports import BookingFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.engine.engine import Engine

PRICE = 4500


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed."""

    flows_per_second: float
    hold_p50_ms: float
    hold_p99_ms: float
    confirmed: int
    flaws: int


async def run(engine: Engine, *, clients: int, flows: int, seats_each: int) -> Figures:
    """`flows` times: hold `seats_each` seats of one's own and confirm, `clients` at a time."""
    event_id = EventId(f"bench-{engine.ids.booking_id().hex}")
    actor = Actor(name="bench", live=False)
    await _open_house(engine, actor, event_id, seats=flows * seats_each)
    numbers = iter(range(flows))
    waits: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(
        *(_client(engine, actor, event_id, numbers, waits, seats_each=seats_each) for _ in range(clients))
    )
    took = time.perf_counter() - started
    waits.sort()
    return Figures(
        flows_per_second=flows / took,
        hold_p50_ms=waits[len(waits) // 2] * 1000,
        hold_p99_ms=waits[len(waits) * 99 // 100] * 1000,
        confirmed=await _count_confirmed(engine, event_id),
        flaws=len(await engine.store.find_flaws(limit=100)),
    )


async def _open_house(engine: Engine, actor: Actor, event_id: EventId, *, seats: int) -> None:
    now = (await engine.store.read_map(event_id)).now
    event = Event(id=event_id, name="A benchmark", currency="EUR", live=False, created_at=now)
    house = tuple(Seat(event_id=event_id, id=SeatId(f"S{number}"), price=PRICE) for number in range(seats))
    await engine.create(Create(actor=actor, entry_id=engine.ids.entry_id(), event=event, seats=house))


async def _client(
    engine: Engine, actor: Actor, event_id: EventId, numbers: Iterator[int], waits: list[float], *, seats_each: int
) -> None:
    for number in numbers:
        seats = range(number * seats_each, (number + 1) * seats_each)
        hold = Hold(
            actor=actor,
            entry_id=engine.ids.entry_id(),
            booking_id=engine.ids.booking_id(),
            event_id=event_id,
            buyer=Buyer(f"buyer-{number}"),
            seats=tuple(SeatId(f"S{seat}") for seat in seats),
        )
        began = time.perf_counter()
        await engine.hold(hold)
        waits.append(time.perf_counter() - began)
        paid = Confirm(
            actor=actor,
            entry_id=engine.ids.entry_id(),
            booking_id=hold.booking_id,
            payment_id=f"{event_id}-{number}",
        )
        await engine.confirm(paid)


async def _count_confirmed(engine: Engine, event_id: EventId) -> int:
    """Page by page, from the tables."""
    counted = 0
    after: BookingId | None = None
    while True:
        wanted = BookingFilter(live=False, limit=1000, after=after, event_id=event_id, state=State.CONFIRMED)
        _, found = await engine.store.list_bookings(wanted)
        if not found:
            return counted
        counted += len(found)
        after = found[-1].id
