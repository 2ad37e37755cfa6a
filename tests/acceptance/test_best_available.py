"""Seats that the engine chooses for the buyer: the best there are, for one buyer or for many at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from .support import Caller, Json, answered, keyed, refused, unique

if TYPE_CHECKING:
    import httpx2

BUYERS = 50


async def best(
    caller: Caller, event: str, count: int, *, buyer: str = "ann", key: str | None = None, **kind: Any
) -> httpx2.Response:
    body = {"event_id": event, "buyer": buyer, "best_available": {"count": count} | kind}
    return await caller.http.post("/v1/bookings", json=body, headers=keyed(key))


def seats(booking: Json) -> list[str]:
    return [seat["id"] for seat in booking["seats"]]


async def test_fifty_buyers_of_two_share_a_hundred_seats(callers: list[Caller]) -> None:
    """Every buyer gets two seats side by side and no seat has two buyers; after the last hold the event is sold out."""
    event = await callers[0].theatre(rows=5, seats_per_row=20)
    responses = await asyncio.gather(
        *(best(callers[n % len(callers)], event, 2, buyer=f"buyer-{n}", together=True) for n in range(BUYERS))
    )
    assert Counter(response.status_code for response in responses) == {201: BUYERS}
    sold = [seat for response in responses for seat in seats(response.json())]
    assert len(sold) == len(set(sold)) == 2 * BUYERS
    for response in responses:
        first, second = (response.json()["seats"][at]["id"] for at in (0, 1))
        assert first[0] == second[0]
        assert abs(int(first[1:]) - int(second[1:])) == 1
    problem = refused(await best(callers[-1], event, 1), 409, "none_available")
    assert (problem["available"], problem["transient"]) == (0, True), "holds may still run out"


async def test_a_repeat_gets_the_seats_that_were_chosen_first(shop: Caller) -> None:
    """Byte for byte, though better seats came free meanwhile, and though none is left."""
    event = await shop.theatre(rows=1, seats_per_row=4)
    theirs = await shop.held(event, buyer="bob", seats=["A1", "A2"])
    key = unique("key")
    first = await best(shop, event, 2, key=key)
    assert seats(answered(first, 201)) == ["A3", "A4"]
    for _ in range(2):
        again = await best(shop, event, 2, key=key)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotency-Replayed"] == "true"
        answered(await shop.release(theirs["id"]), 200)
    refused(await best(shop, event, 1, key=key), 422, "idempotency_mismatch")


async def test_two_concurrent_requests_with_one_key_get_one_booking_of_the_last_seats(callers: list[Caller]) -> None:
    """A double click on the last pair: one hold, and both requests get it."""
    event = await callers[0].theatre(rows=1, seats_per_row=2)
    key = unique("key")
    twins = await asyncio.gather(*(best(caller, event, 2, key=key) for caller in callers[:4]))
    assert {(twin.status_code, twin.content) for twin in twins} == {(201, twins[0].content)}
    assert len(await callers[0].bookings(event_id=event)) == 1


async def test_an_impossible_choice_is_refused_with_the_number_of_free_seats(shop: Caller) -> None:
    """Not side by side, not so many, not of that kind, never a blocked one; and nothing is held by it."""
    event = await shop.theatre(rows=1, seats_per_row=5)
    answered(await shop.patch(event, seats=[{"id": "A3", "blocked": True}]), 200)
    before = await shop.picture(event)
    apart = refused(await best(shop, event, 3, together=True), 409, "none_available")
    assert (apart["asked"], apart["available"], apart["transient"]) == (3, 4, False)
    assert "side by side" in apart["detail"]
    assert refused(await best(shop, event, 5), 409, "none_available")["available"] == 4
    assert refused(await best(shop, event, 1, category="gold"), 409, "none_available")["available"] == 0
    assert refused(await best(shop, event, 1, price_max=1), 409, "none_available")["available"] == 0
    refused(await best(shop, unique("evt"), 1), 404, "event_unknown")
    assert await shop.picture(event) == before
    assert sorted(seats(answered(await best(shop, event, 4), 201))) == ["A1", "A2", "A4", "A5"]


@pytest.mark.parametrize(
    "body",
    [
        {"best_available": {"count": 0}},
        {"best_available": {"count": 101}},
        {"best_available": {"count": 1, "row": "A"}},
        {"best_available": {"count": 1}, "seats": ["A1"]},
        {"best_available": {}},
    ],
    ids=["none", "too many", "unknown field", "and seats", "no count"],
)
async def test_an_invalid_best_available_request_is_refused(shop: Caller, body: Json) -> None:
    """Before it reaches the engine, and the error names the field."""
    event = await shop.theatre()
    asked = {"event_id": event, "buyer": "ann"} | body
    problem = refused(await shop.http.post("/v1/bookings", json=asked), 422, "invalid_request")
    assert problem["errors"][0]["path"].startswith("best_available")


async def test_pool_units_and_the_limit_count_with_the_chosen_seats(shop: Caller) -> None:
    """One hold, all or nothing, under the same rules as if the seats had been named."""
    event = await shop.theatre(per_buyer_max=3, pools=[{"id": "GA", "capacity": 5, "price": 1000}])
    body = {"event_id": event, "buyer": "ann", "best_available": {"count": 2}, "pools": {"GA": 2}}
    refused(await shop.http.post("/v1/bookings", json=body), 409, "limit_exceeded")
    made = answered(await shop.http.post("/v1/bookings", json=body | {"pools": {"GA": 1}}), 201)
    assert (len(made["seats"]), made["total"]["amount"]) == (2, 2 * 4500 + 1000)
    closed = await shop.theatre(sale_closes_at="2020-01-01T00:00:00Z")
    refused(await best(shop, closed, 1), 409, "sale_closed")
