"""Two more events of `earmark demo`: an arena of some 10,000 seats in curved rows, and a club night without seats.

Their ids come after the theatre's, which is the first event of the list.
"""

from __future__ import annotations

import math
import string
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from earmark.domain.bookable_event import Event
from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Confirm, CreateEvent, Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from earmark.engine.commands_and_results import Actor
    from earmark.engine.engine import Engine

CLUB = EventId("underground-club")
ARENA = EventId("zenith-arena")
ROW_GAP = 1.1
FOCUS_Y = 8.0
"""The rows of the bowl are arcs around a point on the floor, a little before the stage; one unit is a seat."""
BOWL_DEGREES = 200.0
"""How far the bowl reaches around the floor; the stage is at its open side."""
FLOOR_ROWS, FLOOR_COLUMNS = 12, 14
SOUND_DESK = range(5, 11)
"""It stands on these seats of the last rows, at the back of the floor."""
PER_BUYER_MAX = 8


class Tier(NamedTuple):
    """A ring of sections, each with the same rows."""

    first_section: int
    sections: int
    rows: int
    radius: float


LOWER = Tier(first_section=101, sections=12, rows=16, radius=40.0)
UPPER = Tier(first_section=201, sections=18, rows=28, radius=60.0)


class SeatPosition(NamedTuple):
    """A seat of the arena before it is one of an event."""

    section: str
    row: str
    number: int
    category: str
    price: int
    x: float
    y: float


async def create_arena(engine: Engine, actor: Actor) -> None:
    """The arena; some rows are sold, and some seats are not for sale."""
    places = [*_floor(), *_tier(LOWER), *_tier(UPPER)]
    seats = tuple(_seat(place) for place in places)
    await _create(engine, actor, ARENA, "Nightfall world tour", seats=seats)
    for section, row in (("Floor 2", "A"), ("Floor 1", "C"), ("106", "A"), ("107", "C"), ("209", "F"), ("210", "AB")):
        sold = [_id(place) for place in places if (place.section, place.row) == (section, row)]
        await sell(engine, actor, ARENA, buyer=f"fans-{section}-{row}", seats=sold[:PER_BUYER_MAX])


async def create_club(engine: Engine, actor: Actor) -> None:
    """A night with two kinds of tickets and no seat."""
    pools = tuple(
        Pool(event_id=CLUB, id=PoolId(name), capacity=capacity, price=price)
        for name, capacity, price in (("Early entry", 60, 1200), ("Dance floor", 400, 1800), ("Gallery", 80, 3200))
    )
    await _create(engine, actor, CLUB, "Underground club night", pools=pools)


async def _create(
    engine: Engine,
    actor: Actor,
    event_id: EventId,
    name: str,
    *,
    seats: Iterable[Seat] = (),
    pools: Iterable[Pool] = (),
) -> None:
    now = (await engine.store.read_map(event_id)).now
    event = Event(
        id=event_id,
        name=name,
        currency="EUR",
        mode=actor.mode,
        created_at=now,
        starts_at=(now + timedelta(days=30)).replace(hour=20, minute=0, second=0, microsecond=0),
        per_buyer_max=PER_BUYER_MAX,
    )
    entry_id = engine.ids.entry_id()
    await engine.create_event(
        CreateEvent(actor=actor, entry_id=entry_id, event=event, seats=tuple(seats), pools=tuple(pools))
    )


async def sell(engine: Engine, actor: Actor, event_id: EventId, *, buyer: str, seats: Iterable[str]) -> None:
    """Sell seats to a buyer, paid in cash."""
    hold = Hold(
        actor=actor,
        entry_id=engine.ids.entry_id(),
        booking_id=engine.ids.booking_id(),
        event_id=event_id,
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


def _floor() -> Iterator[SeatPosition]:
    for block in range(6):
        line, column = divmod(block, 3)
        for row in range(FLOOR_ROWS):
            for number in range(FLOOR_COLUMNS):
                yield SeatPosition(
                    section=f"Floor {block + 1}",
                    row=_letters(row),
                    number=number + 1,
                    category="floor",
                    price=8900 if line == 0 else 7900,
                    x=(column - 1) * (FLOOR_COLUMNS + 2.5) + number - (FLOOR_COLUMNS - 1) / 2,
                    y=4 + line * (FLOOR_ROWS * ROW_GAP + 2.5) + row * ROW_GAP,
                )


def _tier(tier: Tier) -> Iterator[SeatPosition]:
    degrees = BOWL_DEGREES / tier.sections
    for section in range(tier.sections):
        middle = BOWL_DEGREES / 2 - (section + 0.5) * degrees
        side = abs(middle) > BOWL_DEGREES / 4
        category, price = _category(upper=tier is UPPER, side=side)
        for row in range(tier.rows):
            radius = tier.radius + row * ROW_GAP
            seats = int(math.radians(degrees) * radius - 1.2)
            for number in range(seats):
                # From the right end of the arc to its left end, as seen from the stage.
                angle = math.radians(middle) - (number - (seats - 1) / 2) / radius
                yield SeatPosition(
                    section=str(tier.first_section + section),
                    row=_letters(row),
                    number=number + 1,
                    category=category,
                    price=price,
                    x=-radius * math.sin(angle),
                    y=FOCUS_Y + radius * math.cos(angle),
                )


def _category(*, upper: bool, side: bool) -> tuple[str, int]:
    if upper:
        return ("upper side", 3200) if side else ("upper bowl", 4500)
    return ("lower side", 5400) if side else ("lower bowl", 6900)


def _letters(row: int) -> str:
    """A to Z, then AA, AB and so on."""
    letters = string.ascii_uppercase
    return letters[row] if row < len(letters) else "A" + letters[row - len(letters)]


def _id(place: SeatPosition) -> SeatId:
    return SeatId(f"{place.section}-{place.row}{place.number}".replace(" ", ""))


def _seat(place: SeatPosition) -> Seat:
    return Seat(
        event_id=ARENA,
        id=_id(place),
        price=place.price,
        row=place.row,
        number=place.number,
        section=place.section,
        category=place.category,
        x=round(place.x, 2),
        y=round(place.y, 2),
        blocked=place.section == "Floor 5" and place.row in "KL" and place.number in SOUND_DESK,
    )
