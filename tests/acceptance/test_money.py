"""Money is a whole number of minor units, in the event's currency, at the price of the moment of the hold."""

from __future__ import annotations

import pytest

from .support import Caller, answered, refused


@pytest.mark.parametrize(
    "currency, price, total",
    [
        pytest.param("EUR", 4550, 13_650, id="two places"),
        pytest.param("JPY", 7000, 21_000, id="no places"),
        pytest.param("KWD", 12_345, 37_035, id="three places"),
    ],
)
async def test_every_currency_is_kept_in_minor_units(shop: Caller, currency: str, price: int, total: int) -> None:
    """The API returns cents, yen and fils as the integers that went in, and they add up exactly."""
    event = await shop.theatre(price=price, currency=currency, pools=[{"id": "GA", "capacity": 5, "price": price}])
    booking = await shop.held(event, seats=["A1", "A2"], pools={"GA": 1})
    assert booking["total"] == {"amount": total, "currency": currency}
    amounts = [seat["price"] for seat in booking["seats"]] + [line["price"] for line in booking["pools"]]
    assert amounts == [price] * 3
    assert all(type(amount) is int for amount in [*amounts, booking["total"]["amount"]])
    sold = answered(await shop.confirm(booking["id"]), 200)
    assert sold["total"] == booking["total"]


async def test_a_new_price_is_for_new_holds(shop: Caller) -> None:
    """A buyer who holds or has bought keeps the price they saw; the next buyer pays the new one."""
    event = await shop.theatre(price=4500, pools=[{"id": "GA", "capacity": 10, "price": 2500}])
    held = await shop.held(event, buyer="ann", seats=["A1"], pools={"GA": 1})
    sold = await shop.sold(event, buyer="bob", seats=["A2"])
    change = {
        "seats": [{"id": seat, "price": 9900} for seat in ("A1", "A2", "A3")],
        "pools": [{"id": "GA", "price": 100}],
    }
    answered(await shop.patch(event, **change), 200)
    assert (await shop.booking(held["id"]))["total"] == {"amount": 7000, "currency": "EUR"}
    assert (await shop.booking(sold["id"]))["total"] == {"amount": 4500, "currency": "EUR"}
    assert answered(await shop.extend(held["id"]), 200)["total"]["amount"] == 7000
    assert answered(await shop.confirm(held["id"]), 200)["total"]["amount"] == 7000
    new = await shop.held(event, buyer="eve", seats=["A3"], pools={"GA": 2})
    assert new["total"]["amount"] == 9900 + 2 * 100
    assert {seat["id"]: seat["price"] for seat in (await shop.seat_map(event))["seats"]}["A3"] == 9900
    answered(await shop.cancel(sold["id"]), 200)
    assert (await shop.held(event, buyer="dan", seats=["A2"]))["total"]["amount"] == 9900


async def test_a_free_seat_costs_nothing_and_is_booked_all_the_same(shop: Caller) -> None:
    """A price of zero is a price."""
    event = await shop.theatre(price=0)
    booking = await shop.sold(event, seats=["A1", "A2"])
    assert booking["total"] == {"amount": 0, "currency": "EUR"}
    refused(await shop.hold(event, buyer="bob", seats=["A1"]), 409, "seats_taken")


@pytest.mark.parametrize("price, cents", [("45.0", 45), ("1e3", 1000)])
async def test_a_whole_number_is_a_price_however_it_is_written(shop: Caller, price: str, cents: int) -> None:
    """JSON Schema, and so the API's own document, calls it an integer. It is an amount in cents, with a point too."""
    headers = {"Content-Type": "application/json"}
    body = f'{{"name": "Show", "currency": "EUR", "seats": [{{"id": "A1", "price": {price}}}]}}'
    made = await shop.http.post("/v1/events", content=body, headers=headers)
    assert made.status_code == 201
    assert (await shop.held(made.json()["id"], buyer="dan", seats=["A1"]))["total"]["amount"] == cents


@pytest.mark.parametrize("price", ["45.5", "45e-1", "-1", "NaN", '"4500"', "true", "null", "9223372036854775808"])
async def test_what_is_not_a_whole_number_is_no_price(shop: Caller, price: str) -> None:
    """Neither when an event is made nor when its price is changed."""
    event = await shop.theatre()
    before = await shop.picture(event)
    headers = {"Content-Type": "application/json"}
    body = f'{{"name": "Show", "currency": "EUR", "seats": [{{"id": "A1", "price": {price}}}]}}'
    refused(await shop.http.post("/v1/events", content=body, headers=headers), 422, "invalid_request")
    if price == "null":
        return  # In a change, no price may just as well mean: leave it.
    body = f'{{"seats": [{{"id": "A1", "price": {price}}}]}}'
    refused(await shop.http.patch(f"/v1/events/{event}", content=body, headers=headers), 422, "invalid_request")
    assert await shop.picture(event) == before
