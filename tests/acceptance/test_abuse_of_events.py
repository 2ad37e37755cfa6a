"""Invalid events are not created, and invalid changes change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from .support import Caller, Json, answered, refused, unique

GA: Json = {"id": "GA", "capacity": 10, "price": 2500}
SEAT: Json = {"id": "A1", "price": 4500}


def making(**fields: Any) -> Json:
    body = {"name": "Evening show", "currency": "EUR", "pools": [GA]} | fields
    return {name: value for name, value in body.items() if value is not None}


EVENTS: dict[str, Json] = {
    "no name": making(name=None),
    "a name with a null": making(name="Even\x00ing"),
    "a name that is a number": making(name=7),
    "no currency": making(currency=None),
    "an unknown currency": making(currency="XQX"),
    "a currency that is a word": making(currency="euro"),
    "a currency that is a number": making(currency=978),
    "an id with a null": making(id="e\x00"),
    "an id with a line break": making(id="e\n1"),
    "an id of braces": making(id="{}"),
    "an id of 300 characters": making(id="e" * 300),
    "an empty id": making(id=""),
    "a seat with a null": making(seats=[SEAT | {"id": "A\x001"}]),
    "a seat of braces": making(seats=[SEAT | {"id": "{}"}]),
    "a seat of 300 characters": making(seats=[SEAT | {"id": "A" * 300}]),
    "a seat without a name": making(seats=[SEAT | {"id": ""}]),
    "the same seat twice": making(seats=[SEAT, SEAT]),
    "the same pool twice": making(pools=[GA, GA]),
    "a seat without a price": making(seats=[{"id": "A1"}]),
    "a price with a point": making(seats=[SEAT | {"price": 45.5}]),
    "a price as text": making(seats=[SEAT | {"price": "4500"}]),
    "a price below nothing": making(seats=[SEAT | {"price": -1}]),
    "a price beyond 64 bits": making(seats=[SEAT | {"price": 2**63}]),
    "a truth of a price": making(seats=[SEAT | {"price": True}]),
    "a pool below nothing": making(pools=[GA | {"capacity": -1}]),
    "a pool of a part": making(pools=[GA | {"capacity": 1.5}]),
    "a pool beyond 64 bits": making(pools=[GA | {"capacity": 2**63}]),
    "a pool of a truth": making(pools=[GA | {"capacity": True}]),
    "a pool's price with a point": making(pools=[GA | {"price": 2.5}]),
    "a layout of no rows": making(layout={"rows": 0, "seats_per_row": 5, "price": 1}),
    "a layout without end": making(layout={"rows": 10**6, "seats_per_row": 10**6, "price": 1}),
    "a layout of negative rows": making(layout={"rows": -1, "seats_per_row": 5, "price": 1}),
    "a start that is no time": making(starts_at="tomorrow"),
    "a start without a zone": making(starts_at="2030-01-01T00:00:00"),
    "a window that closes before it opens": making(
        sale_opens_at="2030-01-02T00:00:00Z", sale_closes_at="2030-01-01T00:00:00Z"
    ),
    "holds without time": making(hold_ttl_seconds=0),
    "holds of a year": making(hold_ttl_seconds=31_536_000),
    "holds of negative time": making(hold_ttl_seconds=-1),
    "a limit below nothing": making(per_buyer_max=-1),
    "an unknown field": making(colour="red"),
    "an unknown field of a seat": making(seats=[SEAT | {"state": "booked"}]),
    "an unknown field of a pool": making(pools=[GA | {"sold": 10}]),
}

CHANGES: dict[str, Json] = {
    "another currency": {"currency": "USD"},
    "another id": {"id": "evt-other"},
    "an unknown field": {"colour": "red"},
    "a seat that is not named": {"seats": [{"blocked": True}]},
    "a block that is a word": {"seats": [{"id": "A2", "blocked": "yes"}]},
    "a price with a point": {"seats": [{"id": "A2", "price": 1.5}]},
    "a price below nothing": {"seats": [{"id": "A2", "price": -1}]},
    "a capacity below nothing": {"pools": [{"id": "GA", "capacity": -1}]},
    "a capacity of a part": {"pools": [{"id": "GA", "capacity": 0.5}]},
    "a capacity beyond 64 bits": {"pools": [{"id": "GA", "capacity": 2**63}]},
    "the same seat twice": {"seats": [{"id": "A2", "blocked": True}, {"id": "A2", "blocked": False}]},
    "holds without time": {"hold_ttl_seconds": 0},
    "a limit below nothing": {"per_buyer_max": -1},
    "a window that is no time": {"sale_opens_at": "now"},
    "a name with a null": {"name": "\x00"},
    "a seat's owner": {"seats": [{"id": "A2", "booking_id": "mine"}]},
}


@pytest.mark.parametrize("name", EVENTS)
async def test_an_invalid_event_is_not_created(shop: Caller, name: str) -> None:
    """The refusal says what is wrong with it, and the event does not exist afterwards."""
    event_id = unique("evt")
    body = {"id": event_id} | EVENTS[name]
    assert refused(await shop.http.post("/v1/events", json=body), 422, "invalid_request")["errors"]
    gone = refused(await shop.http.get(f"/v1/events/{event_id}"), 404)
    assert gone["code"] == "event_unknown"


@pytest.mark.parametrize("name", CHANGES)
async def test_an_invalid_change_changes_nothing(shop: Caller, name: str) -> None:
    """A change is made whole or not at all."""
    event = await shop.theatre(pools=[GA])
    await shop.held(event, seats=["A1"], pools={"GA": 1})
    before = await shop.picture(event)
    refused(await shop.patch(event, **CHANGES[name]), 422, "invalid_request")
    mixed: Json = {"name": "Changed"} | CHANGES[name]
    refused(await shop.patch(event, **mixed), 422, "invalid_request")
    assert await shop.picture(event) == before


@pytest.mark.parametrize("price", [2**53, 2**62, 2**63 - 1])
async def test_a_total_never_overflows(shop: Caller, price: int) -> None:
    """Prices so large that their sum would not fit are refused when set or when added up, not crashed on."""
    event_id = unique("evt")
    seats = [{"id": f"A{n}", "price": price} for n in range(1, 5)]
    response = await shop.http.post(
        "/v1/events", json={"id": event_id, "name": "Dear", "currency": "EUR", "seats": seats}
    )
    if response.status_code != 201:
        refused(response, 422, "invalid_request")
        return
    answer = await shop.hold(event_id, seats=[seat["id"] for seat in seats])  # type: ignore[misc]
    if answer.status_code == 201:
        assert answered(answer, 201)["total"]["amount"] == 4 * price
    else:
        refused(answer, 422)
        assert set((await shop.states(event_id)).values()) == {"available"}
