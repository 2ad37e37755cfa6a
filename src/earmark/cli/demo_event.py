"""The theatre of `earmark demo`: stalls, balcony and standing room, some seats already sold or blocked."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.api.auth.keys_and_tokens import TEST_PREFIX
from earmark.cli import demo_arena_and_club
from earmark.domain.bookable_event import Event
from earmark.domain.id_types import EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Actor, CreateEvent
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
    """Create the events that an earlier run has not."""
    assert settings.admin_key is not None
    engine = await runtime.open_engine(msgspec.structs.replace(settings, redis_url=None))
    actor = Actor(name="demo", mode=Mode.TEST if settings.admin_key.startswith(TEST_PREFIX) else Mode.LIVE)
    try:
        for create in (_create_theatre, demo_arena_and_club.create_club, demo_arena_and_club.create_arena):
            with suppress(EventExists):
                await create(engine, actor)
    finally:
        await engine.close()
    return THEATRE


async def _create_theatre(engine: Engine, actor: Actor) -> None:
    await _create(engine, actor)
    await _sell_some(engine, actor)


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
        buyer_cancel_until_seconds=86_400,
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
        await demo_arena_and_club.sell(engine, actor, THEATRE, buyer=buyer, seats=seats)
