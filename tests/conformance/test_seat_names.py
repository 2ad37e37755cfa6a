"""A booking names its seats as people do: section, row and number of each, and its category, from the event's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark.domain.booking import SeatLine
from earmark.domain.id_types import EventId, SeatId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import KeyedRequest, Replayed
from earmark.schemas import to_response

from .conftest import BEHIND_A_POOLER_IN_A_PROOF

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_IN_A_PROOF]

NAMED = SeatLine(id=SeatId("S1"), price=4500, section="Stalls", row="K", number=12, category="premium")
HALF = SeatLine(id=SeatId("S2"), price=4500, section="Balcony")
PLAIN = SeatLine(id=SeatId("S3"), price=4500)


async def furnish(shop: Shop) -> None:
    """A seat with every name, one with a section alone, and one that has only its id."""
    named = tuple(
        Seat(event_id=EventId("concert"), **msgspec.structs.asdict(line), blocked=False, x=1.0, y=2.0)
        for line in (NAMED, HALF, PLAIN)
    )
    await shop.engine.create_event(msgspec.structs.replace(shop.ask_create(), seats=named))


def told(booking: Booking, now: datetime) -> list[dict[str, Any]]:
    """The seats as a client reads them."""
    return list(msgspec.to_builtins(to_response.booking_value(booking, now).seats))


async def test_a_hold_and_all_that_follows_name_the_seats(shop: Shop) -> None:
    """At once and from the rows, also after a part was cancelled."""
    await furnish(shop)
    held = await shop.hold("ada", "S2", "S1", "S3")
    assert held.lines.seats == (NAMED, HALF, PLAIN)
    assert await shop.read(held) == held
    [entry] = await shop.history(held)
    told_seats = msgspec.to_builtins(entry.facts["lines"])["seats"]
    assert told_seats[0] == {
        "id": "S1",
        "price": 4500,
        "section": "Stalls",
        "row": "K",
        "number": 12,
        "category": "premium",
    }
    assert told_seats[2] == {"id": "S3", "price": 4500}, "a name that a seat does not have costs no room in the journal"
    sold = await shop.confirm(held)
    assert sold.lines.seats == (NAMED, HALF, PLAIN)
    less = await shop.cancel(sold, "S3")
    assert (await shop.read(less)).lines.seats == (NAMED, HALF)


async def test_a_client_reads_every_name_also_where_there_is_none(shop: Shop) -> None:
    """One shape for every seat: what the plan does not say is null."""
    await furnish(shop)
    held = await shop.hold("ada", "S1", "S3")
    assert told(held, held.created_at) == [
        {"id": "S1", "price": 4500, "row": "K", "number": 12, "section": "Stalls", "category": "premium"},
        {"id": "S3", "price": 4500, "row": None, "number": None, "section": None, "category": None},
    ]


async def test_the_names_stay_when_a_seat_changes_hands(shop: Shop, clock: MovableClock) -> None:
    """Whichever way a seat came to be free: its next booking names it too."""
    await furnish(shop)
    await shop.release(await shop.hold("ada", "S1", "S2"))
    lapsed = await shop.hold("ada", "S1", ttl=60)
    await shop.release(await shop.hold("ada", "S2"))
    clock.advance(seconds=61)
    again = await shop.hold("bob", "S1", "S2")
    assert again.lines.seats == (NAMED, HALF)
    assert (await shop.read(lapsed)).lines.seats == (NAMED,)


async def test_a_repeat_reads_the_first_answer_byte_for_byte(shop: Shop) -> None:
    """With the names that stood in it."""
    await furnish(shop)

    def render(booking: Booking, now: datetime) -> tuple[int, bytes]:
        return 201, msgspec.json.encode(to_response.booking_value(booking, now))

    idempotency = KeyedRequest(key=IdempotencyKey("key:1", "basket-7"), request_hash=b"1", write=render)
    first = await shop.engine.hold(shop.ask_hold("ada", "S1", idempotency=idempotency))
    again = await shop.engine.hold(shop.ask_hold("ada", "S1", idempotency=idempotency))
    assert isinstance(again, Replayed)
    assert first.record is not None
    assert again.record.body == first.record.body
    assert b'"row":"K","number":12,"section":"Stalls"' in again.record.body


def test_a_booking_from_before_there_were_names_is_read_as_it_is() -> None:
    """Its seats have no names, and nothing else is other than it was."""
    old = msgspec.json.decode(b'{"id": "A1", "price": 4500}', type=SeatLine)
    assert old == SeatLine(id=SeatId("A1"), price=4500)
    assert msgspec.json.encode(old) == b'{"id":"A1","price":4500}'
