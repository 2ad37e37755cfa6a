"""A hold that Redis refuses is surely no repeat where the seat has only ever had another owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from earmark.domain.ids import BookingId, EventId, SeatId, SeatRef
from earmark.domain.journal import Key
from earmark.engine.engine import Engine
from earmark.engine.first_owners import FirstOwners
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from earmark.engine.ports import Store

EVENT = EventId("play")
A1, A2 = SeatRef(EVENT, SeatId("A1")), SeatRef(EVENT, SeatId("A2"))
OWNERS, STRANGERS = Key(caller="shop", key="first"), Key(caller="shop", key="another")


class Question:
    """The store's answer, by hand."""

    def __init__(self) -> None:
        self.asked: list[dict[SeatRef, BookingId]] = []
        self.changed: set[SeatRef] = set()
        self.broken: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, owners: Mapping[SeatRef, BookingId]) -> Collection[SeatRef]:
        """Those that a test calls changed."""
        self.asked.append(dict(owners))
        await self.may_answer.wait()
        if self.broken:
            raise self.broken
        return self.changed & owners.keys()


async def shop_with_a_hold(store: Store) -> tuple[Earmark, FirstOwners]:
    """A1 and A2 held by their first buyer, and what a process would know of that."""
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    await shop.create("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1, "A3": 1})
    held = await shop.hold("play", buyer="ada", seats=["A1", "A2"])
    owners = FirstOwners(store.changed_owners)
    _, booking = await store.read_booking(BookingId(UUID(held.id)))
    assert booking is not None
    owners.add(booking, key=OWNERS)
    return shop, owners


async def test_a_seat_that_is_still_its_first_owners_was_never_anothers(store: Store) -> None:
    """The store says so, for every store alike."""
    _, owners = await shop_with_a_hold(store)
    assert await owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS)
    assert await owners.had_another(EVENT, [SeatId("A3"), SeatId("A2")], key=STRANGERS)


async def test_the_owners_own_request_is_never_called_new(store: Store) -> None:
    """It is the one whose key would be found."""
    _, owners = await shop_with_a_hold(store)
    assert not await owners.had_another(EVENT, [SeatId("A1"), SeatId("A2")], key=OWNERS)


async def test_nothing_is_said_of_a_seat_whose_first_owner_is_not_known(store: Store) -> None:
    """Another process may have given it away."""
    _, owners = await shop_with_a_hold(store)
    assert not await owners.had_another(EVENT, [SeatId("A3")], key=STRANGERS)


async def test_a_seat_that_changed_hands_proves_nothing(store: Store) -> None:
    """Also if it came back: a buyer who had it in between may be the one who asks."""
    shop, owners = await shop_with_a_hold(store)
    (first,) = [booking async for booking in shop.bookings(buyer="ada", event_id="play")]
    await shop.release(first.id)
    await shop.hold("play", buyer="bob", seats=["A1"])
    assert not await owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS)


async def test_a_seat_that_one_buyer_gave_back_of_a_sale_proves_nothing(store: Store) -> None:
    """Its pointer is cleared, and its fence has risen."""
    shop, owners = await shop_with_a_hold(store)
    (first,) = [booking async for booking in shop.bookings(buyer="ada", event_id="play")]
    await shop.confirm(first.id, payment_id="p1")
    await shop.cancel(first.id, seats=["A1"])
    assert not await owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS)
    assert await owners.had_another(EVENT, [SeatId("A2")], key=STRANGERS)


async def test_requests_that_wait_share_the_next_question() -> None:
    """And a request is answered only by a question that was asked after it came."""
    question = Question()
    owners = FirstOwners(question.ask)
    one, two = BookingId(Uuid7Ids().booking_id()), BookingId(Uuid7Ids().booking_id())
    owners._owners = {A1: (one, OWNERS), A2: (two, OWNERS)}
    question.may_answer.clear()
    first = asyncio.ensure_future(owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [
        asyncio.ensure_future(owners.had_another(EVENT, [SeatId(seat)], key=STRANGERS)) for seat in ("A1", "A2", "A1")
    ]
    await asyncio.sleep(0)
    question.may_answer.set()
    assert await asyncio.gather(first, *later) == [True] * 4
    assert question.asked == [{A1: one}, {A1: one, A2: two}]


async def test_a_store_that_is_silent_is_told_of() -> None:
    """A request whose store cannot be asked is not called new."""
    question = Question()
    question.broken = StoreUnavailable(because="gone")
    owners = FirstOwners(question.ask)
    owners._owners = {A1: (Uuid7Ids().booking_id(), OWNERS)}
    with pytest.raises(StoreUnavailable):
        await owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS)
    question.broken = None
    assert await owners.had_another(EVENT, [SeatId("A1")], key=STRANGERS)


async def test_what_is_known_of_first_owners_is_bounded(store: Store) -> None:
    """The oldest are forgotten, and cost a look-up of the key again."""
    _, owners = await shop_with_a_hold(store)
    owners._seats_max = 1
    (_, booking) = await store.read_booking(next(iter(owners._owners.values()))[0])
    assert booking is not None
    owners.add(booking, key=OWNERS)
    assert len(owners._owners) == 1
