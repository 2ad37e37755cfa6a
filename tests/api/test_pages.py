"""Queries and pages: nothing unknown is ignored, and paging is right while other clients change the list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx2

    from earmark.clock import MovableClock


async def hold(shop: httpx2.AsyncClient, event: str, buyer: str, **fields: Any) -> str:
    body = {"event_id": event, "buyer": buyer, "pools": {"GA": 1}} | fields
    booking_id: str = (await shop.post("/v1/bookings", json=body)).json()["id"]
    return booking_id


async def large(shop: httpx2.AsyncClient) -> str:
    body = {"id": "large", "name": "A", "currency": "EUR", "pools": [{"id": "GA", "capacity": 1000, "price": 1}]}
    assert (await shop.post("/v1/events", json=body)).status_code == 201
    return "large"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/bookings?byer=alice",
        "/v1/bookings?limit=1&limit=2",
        "/v1/events?state=held",
        "/v1/events/concert?verbose=1",
        "/v1/events/concert/seats?section=A",
        "/v1/locks?cursor=x",
        "/healthz?deep=1",
    ],
)
async def test_a_parameter_that_a_call_does_not_know_is_refused(
    shop: httpx2.AsyncClient, event: str, path: str
) -> None:
    """A filter that is misspelt and passed over would answer with everything."""
    assert event == "concert"
    answer = await shop.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["path"] in path


async def test_paging_shows_what_was_there_all_along_once_and_only_once(
    shop: httpx2.AsyncClient, clock: MovableClock
) -> None:
    """Whatever others add, confirm, release and let run out between two pages, and whatever the pages' size."""
    event = await large(shop)
    there = [await hold(shop, event, f"buyer-{n}", ttl_seconds=60 if n % 4 == 3 else 600) for n in range(24)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for page in range(100):
        answer = (await shop.get("/v1/bookings", params={"limit": "5", "event_id": event} | cursor)).json()
        seen += [booking["id"] for booking in answer["bookings"]]
        if answer["next_cursor"] is None:
            break
        cursor = {"cursor": answer["next_cursor"]}
        at = page * 4
        await asyncio.gather(
            hold(shop, event, f"late-{page}"),
            shop.post(f"/v1/bookings/{there[at % 24]}/confirm", json={"payment_id": f"p{page}"}),
            shop.post(f"/v1/bookings/{there[(at + 1) % 24]}/release", json={}),
        )
        clock.advance(30)
    assert len(seen) == len(set(seen)), "a row was shown twice"
    assert [booking for booking in seen if booking in there] == there, "a row was missed, or out of order"


async def test_filtered_paging_misses_no_booking_that_fits_all_along(shop: httpx2.AsyncClient) -> None:
    """Bookings that leave the filter are left out; those that stay in it are all shown."""
    event = await large(shop)
    there = [await hold(shop, event, f"buyer-{n}") for n in range(12)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        query = {"limit": "2", "event_id": event, "state": "held"} | cursor
        answer = (await shop.get("/v1/bookings", params=query)).json()
        seen += [booking["id"] for booking in answer["bookings"]]
        if answer["next_cursor"] is None:
            break
        cursor = {"cursor": answer["next_cursor"]}
        # The very row that the cursor names leaves the list, and so does one that is still to come.
        for gone in (seen[-1], there[min(len(seen) + 1, 11)]):
            await shop.post(f"/v1/bookings/{gone}/release", json={})
    states = {one: (await shop.get(f"/v1/bookings/{one}")).json()["state"] for one in there}
    assert {one for one in there if states[one] == "held"} <= set(seen)
    assert len(seen) == len(set(seen))


async def test_a_cursor_is_good_for_its_own_list_and_caller_alone(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str
) -> None:
    """Of another list, of another caller, changed or made up: refused, and the field is named."""
    second = await large(shop)
    await stranger.post("/v1/guests")
    for n in range(2):
        await hold(shop, event, f"buyer-{n}")
        await stranger.post("/v1/bookings", json={"event_id": event, "pools": {"GA": 1}})
    of_events = (await shop.get("/v1/events", params={"limit": 1})).json()["next_cursor"]
    of_bookings = (await shop.get("/v1/bookings", params={"limit": 1})).json()["next_cursor"]
    of_guest = (await stranger.get("/v1/bookings", params={"limit": 1})).json()["next_cursor"]
    assert (await shop.get("/v1/events", params={"cursor": of_events})).json()["events"][0]["id"] == second
    assert (await stranger.get("/v1/bookings", params={"cursor": of_guest})).status_code == 200
    wrong = [
        (shop, "/v1/bookings", of_events),
        (shop, "/v1/events", of_bookings),
        (shop, "/v1/bookings", of_guest),
        (stranger, "/v1/bookings", of_bookings),
        (shop, "/v1/bookings", f"A{of_bookings}"),
        (shop, "/v1/bookings", "concert"),
        (shop, "/v1/bookings", ""),
        (shop, "/v1/bookings", "\N{SNOWMAN}"),
    ]
    for caller, path, cursor in wrong:
        answer = await caller.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "cursor"), (path, cursor)
