"""The event of `earmark demo`: a theatre with stalls, balcony and standing room, some seats already sold or blocked."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.api.auth.keys_and_tokens import TEST_PREFIX
from earmark.domain.bookable_event import Event
from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Actor, Confirm, CreateEvent, Hold
from earmark.errors import EventExists
from earmark.wiring import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.config import Settings
    from earmark.engine.engine import Engine

THEATRE = EventId("theatre")
STALLS, BALCONY = "ABCDEFGH", "JKL"
PER_ROW = 16


async def seed(settings: Settings) -> EventId:
    """Create the event, unless an earlier run has."""
    assert settings.admin_key is not None
    engine = await runtime.open_engine(msgspec.structs.replace(settings, redis_url=None))
    actor = Actor(name="demo", mode=Mode.TEST if settings.admin_key.startswith(TEST_PREFIX) else Mode.LIVE)
    try:
        await _create(engine, actor)
        await _sell_some(engine, actor)
    except EventExists:
        pass
    finally:
        await engine.close()
    return THEATRE


async def _create(engine: Engine, actor: Actor) -> None:
    now = (await engine.store.read_map(THEATRE)).now
    event = Event(
        id=THEATRE,
        name="The Tempest, opening night",
        currency="EUR",
        mode=actor.mode,
        created_at=now,
        starts_at=(now + timedelta(days=14)).replace(hour=19, minute=30, second=0, microsecond=0),
        per_buyer_max=8,
    )
    pools = (Pool(event_id=THEATRE, id=PoolId("standing"), capacity=40, price=1200),)
    command = CreateEvent(actor=actor, entry_id=engine.ids.entry_id(), event=event, seats=tuple(_seats()), pools=pools)
    await engine.create_event(command)


def _seats() -> Iterator[Seat]:
    for section, rows, price in (("Stalls", STALLS, 4500), ("Balcony", BALCONY, 2800)):
        for row in rows:
            for number in range(1, PER_ROW + 1):
                yield Seat(
                    event_id=THEATRE,
                    id=SeatId(f"{row}{number}"),
                    price=price + (1500 if row in "AB" else 0),
                    row=row,
                    number=number,
                    section=section,
                    category="premium" if row in "AB" else "standard",
                    blocked=row == "H" and number in {1, 2, PER_ROW - 1, PER_ROW},
                )


async def _sell_some(engine: Engine, actor: Actor) -> None:
    for buyer, seats in (("early-bird-1", ("C7", "C8")), ("early-bird-2", ("D9", "D10", "D11"))):
        hold = Hold(
            actor=actor,
            entry_id=engine.ids.entry_id(),
            booking_id=engine.ids.booking_id(),
            event_id=THEATRE,
            buyer=Buyer(buyer),
            seats=tuple(SeatId(seat) for seat in seats),
        )
        await engine.hold(hold)
        paid = Confirm(
            actor=actor,
            entry_id=engine.ids.entry_id(),
            booking_id=hold.booking_id,
            payment_id=f"demo-{buyer}",
            payment_method="cash",
        )
        await engine.confirm(paid)
