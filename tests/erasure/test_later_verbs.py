"""After an erasure every verb still does what it did: money is refunded, and never twice."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from tests.payments.gateways.balance.account_shop import CODES, PRICE, Shop

from earmark.domain.id_types import BookingId
from earmark.domain.payment import ALL_BY_HAND, payment_id_of
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.store import load_named_sql

from .conftest import HOURS, Place, event_body, later, shop_api_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CODE = "GIFT-CARD-OF-ALICE-9F2K"
NAMES: dict[str, Callable[[str], str]] = {
    "the account's id": lambda account: account,
    "a part of that id": lambda account: account.split("-")[1],
    "the end of the code": lambda account: CODE[-4:],  # noqa: ARG005 (of every account)
    "the whole reference": lambda account: f"{account}/…{CODE[-4:]}",
}
"""What a buyer may be called that stands in the reference of a payment to its account."""
CONTROLS = {
    "sqlite": ("CASE gateway WHEN 'balance' THEN method ELSE unname(method, 'method') END", "unname(method, 'method')"),
    "postgres": ("CASE q.gateway WHEN 'balance' THEN q.method", "CASE q.gateway WHEN '' THEN q.method"),
}
"""What leaves a reference alone, and the same without it."""


class World:
    """A shop whose buyers pay from accounts, and one buyer's booking."""

    def __init__(self, place: Place) -> None:
        self.place = place
        accounts: Any = place.store.accounts
        self.shop = Shop(place.store, BalanceGateway(accounts, codes=CODES))

    async def sell(self, *, buyer: str, method: str = CODE) -> tuple[str, str]:
        """A booking and its payment; the show is over by now."""
        starts_at = later(self.place, hours=1)
        await self.shop.earmark.create_event(
            "opera", name="An opera", currency="EUR", starts_at=starts_at, seats={"A1": PRICE}
        )
        held = await self.shop.earmark.hold("opera", buyer=buyer, seats=["A1"])
        paid = await self.shop.earmark.pay(held.id, method=method)
        assert paid.payment is not None
        assert paid.payment.state == "captured"
        self.place.clock.advance(2 * HOURS)
        return held.id, paid.payment.id

    async def cancel(self, booking_id: str, payment_id: str) -> tuple[int, int]:
        """What is owed and what was refunded, after a cancellation and as many looks as a worker would take."""
        await self.shop.earmark.cancel(booking_id, refund="full")
        ours = payment_id_of(payment_id)
        assert ours is not None
        for _ in range(3):
            await self.shop.earmark.payment_service.driver.advance(ours, ask_gateway=True)
        ((payment, _),) = await self.place.store.list_payments(BookingId(UUID(booking_id)))
        return payment.refunding, payment.refunded


@pytest.fixture
async def world(place: Place) -> AsyncIterator[World]:
    """Over each database."""
    made = World(place)
    yield made
    await made.shop.earmark.payment_service.close()


@pytest.mark.parametrize("name", NAMES)
async def test_money_is_refunded_to_the_account_of_an_erased_buyer(world: World, name: str) -> None:
    """The payment keeps its reference to the account, whatever the buyer was called."""
    account = await world.shop.open(CODE, PRICE)
    buyer = NAMES[name](account.id)
    sold = await world.sell(buyer=buyer)
    assert (await world.place.erase(buyer)).changed["bookings"] == 1
    assert await world.cancel(*sold) == (PRICE, PRICE)
    assert (await world.shop.accounts.read(account.id)).balance == PRICE
    assert await world.place.store.find_flaws(limit=10) == []


@asynccontextmanager
async def without_the_exception(place: Place, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """An erasure that takes a reference for a text as any other."""
    if place.file is not None:
        sql = load_named_sql.sql("sqlite", "erase_buyer.sql")
        left_alone, weakened = CONTROLS["sqlite"]
        assert left_alone in sql["erase_payments"]
        with monkeypatch.context() as weak:
            weak.setattr(
                load_named_sql,
                "sql",
                lambda *_: sql | {"erase_payments": sql["erase_payments"].replace(left_alone, weakened)},
            )
            yield
        return
    left_alone, weakened = CONTROLS["postgres"]
    connection = await asyncpg.connect(place.url)
    source = await connection.fetchval("SELECT pg_get_functiondef('earmark_erase_buyer'::regproc)")
    assert left_alone in source
    try:
        await connection.execute(source.replace(left_alone, weakened))
        yield
    finally:
        await connection.execute(source)
        await connection.close()


async def test_without_the_reference_that_money_stays_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a blank reference leads to no account, and the refund is promised for ever."""
    account = await world.shop.open(CODE, PRICE)
    sold = await world.sell(buyer=account.id)
    async with without_the_exception(world.place, monkeypatch):
        assert (await world.place.erase(account.id)).changed["payments"] == 1
    assert await world.cancel(*sold) == (PRICE, 0)


async def test_what_an_operator_refunded_is_not_refunded_again(place: Place) -> None:
    """The payment's code shows it; a buyer whose name is a part of that code is erased all the same."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": "hand", "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/pay", {"method": "pm_card_visa"}, key="2")
        await place.run("UPDATE payments SET state = 'needs_attention'")
        await place.run(f"UPDATE payments SET state = 'settled', code = '{ALL_BY_HAND}'")
        place.clock.advance(2 * HOURS)
        assert (await place.erase("hand")).changed["bookings"] == 1
        await shop_api.post(f"bookings/{held['id']}/cancel", {"refund": "full"}, key="3")
    assert await promised(place, held["id"]) == 0


async def test_without_its_code_that_payment_is_refunded_again(place: Place) -> None:
    """The control: the code is what stands between the buyer and a second refund."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": "hand", "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/pay", {"method": "pm_card_visa"}, key="2")
        await place.run("UPDATE payments SET state = 'needs_attention'")
        await place.run("UPDATE payments SET state = 'settled', code = NULL")
        await shop_api.post(f"bookings/{held['id']}/cancel", {"refund": "full"}, key="3")
    assert await promised(place, held["id"]) == 1


async def promised(place: Place, booking_id: str) -> int:
    """How many refunds of a booking were promised or made."""
    found = await place.store.list_payments(BookingId(UUID(booking_id)))
    return sum(len(refunds) for _, refunds in found)
