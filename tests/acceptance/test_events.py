"""Creating, reading and changing events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from .support import Caller, Json, answered, eventually, refused, unique


def in_minutes(minutes: int) -> str:
    return (datetime.now(tz=UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_layout_names_its_seats_row_by_row(shop: Caller) -> None:
    """Ten rows of twenty are A1 to J20, every one available at the layout's price."""
    event = await shop.theatre(rows=10, seats_per_row=20, price=4500)
    seats = (await shop.seat_map(event))["seats"]
    assert {seat["id"] for seat in seats} == {f"{row}{number}" for row in "ABCDEFGHIJ" for number in range(1, 21)}
    assert len(seats) == 200
    assert {seat["state"] for seat in seats} == {"available"}
    assert {seat["price"] for seat in seats} == {4500}
    found = next(seat for seat in seats if seat["id"] == "C12")
    assert (str(found["row"]), str(found["number"])) == ("C", "12")


async def test_named_seats_keep_their_attributes(shop: Caller) -> None:
    """The API returns row, number, section, category, price and place as they were given."""
    given = {"id": "L-7", "row": "L", "number": 7, "section": "Balcony", "category": "gold", "price": 7000}
    event = await shop.create_event(seats=[given | {"x": 1.5, "y": 2.5}, {"id": "plain", "price": 0}])
    seat = answered(await shop.http.get(f"/v1/events/{event['id']}/seats/L-7"), 200)
    assert {name: str(seat[name]) for name in given} == {name: str(value) for name, value in given.items()}
    assert (seat["x"], seat["y"], seat["state"]) == (1.5, 2.5, "available")
    found = {seat["id"]: seat for seat in (await shop.seat_map(event["id"]))["seats"]}
    assert found["plain"]["price"] == 0
    assert found["L-7"]["section"] == "Balcony"


@pytest.mark.parametrize("label", ["Upper circle, left", "King's box", "Parkett/Mitte", "Stalls & pit", "Balcon été"])
async def test_a_section_may_have_any_label(shop: Caller, label: str) -> None:
    """Labels are for people, not names for machines: the API returns them as they were written."""
    seat = {"id": "L-7", "price": 7000, "section": label, "category": label}
    event = await shop.create_event(seats=[seat])
    found = answered(await shop.http.get(f"/v1/events/{event['id']}/seats/L-7"), 200)
    assert {name: found[name] for name in seat} == seat


async def test_one_seat_is_read_by_its_name(shop: Caller) -> None:
    """A seat's own page follows its booking; a seat that is not there is unknown."""
    event = await shop.theatre()
    path = f"/v1/events/{event}/seats/A1"
    assert answered(await shop.http.get(path), 200)["state"] == "available"
    booking = await shop.held(event, seats=["A1"])
    assert answered(await shop.http.get(path), 200)["state"] == "held"
    answered(await shop.confirm(booking["id"]), 200)
    assert answered(await shop.http.get(path), 200)["state"] == "booked"
    refused(await shop.http.get(f"/v1/events/{event}/seats/Z99"), 404, "seat_unknown")


async def test_an_event_reads_as_it_was_made(shop: Caller) -> None:
    """What the create answered is what a read answers; without an id the server makes one."""
    body = {"name": "Drop", "currency": "EUR", "per_buyer_max": 4, "hold_ttl_seconds": 120, "starts_at": in_minutes(60)}
    pools = [{"id": "SKU-1", "capacity": 7, "price": 1999}]
    made = answered(await shop.http.post("/v1/events", json=body | {"pools": pools}), 201)
    assert made["id"]
    found = answered(await shop.http.get(f"/v1/events/{made['id']}"), 200)
    assert found == made
    assert {name: found[name] for name in ("name", "currency", "per_buyer_max", "hold_ttl_seconds")} == {
        "name": "Drop",
        "currency": "EUR",
        "per_buyer_max": 4,
        "hold_ttl_seconds": 120,
    }
    assert datetime.fromisoformat(found["starts_at"]) == datetime.fromisoformat(body["starts_at"])  # type: ignore[arg-type]


async def test_events_are_listed_page_by_page(shop: Caller) -> None:
    """The cursor loses and repeats nothing."""
    made = {await shop.theatre(rows=1, seats_per_row=1) for _ in range(3)}
    listed = [event["id"] for event in await shop.pages("/v1/events", "events", {"limit": "40"})]
    assert made <= set(listed)
    assert len(listed) == len(set(listed))


async def test_an_event_id_is_used_once(shop: Caller) -> None:
    """A second event of the same id is refused and the first one stays as it was."""
    event = await shop.theatre()
    before = await shop.picture(event)
    body = {"id": event, "name": "Another", "currency": "USD", "pools": [{"id": "GA", "capacity": 1, "price": 1}]}
    refused(await shop.http.post("/v1/events", json=body), 409)
    assert await shop.picture(event) == before


async def test_the_same_seat_of_two_shows_is_two_seats(shop: Caller) -> None:
    """Seat A1 of one event is independent of seat A1 of another."""
    tonight, tomorrow = await shop.theatre(), await shop.theatre()
    first = await shop.held(tonight, buyer="ann", seats=["A1"])
    second = await shop.held(tomorrow, buyer="bob", seats=["A1"])
    assert (first["event_id"], second["event_id"]) == (tonight, tomorrow)
    assert refused(await shop.hold(tonight, buyer="bob", seats=["A1"]), 409, "seats_taken")["seats"] == ["A1"]


@pytest.mark.parametrize(
    "window",
    [
        pytest.param({"sale_opens_at": 60}, id="not yet open"),
        pytest.param({"sale_opens_at": -60, "sale_closes_at": -30}, id="closed"),
    ],
)
async def test_nothing_is_sold_outside_the_sale_window(shop: Caller, window: dict[str, int]) -> None:
    """Outside its window a sale is closed; changing the window opens it."""
    times: Json = {name: in_minutes(minutes) for name, minutes in window.items()}
    event = await shop.theatre(**times)
    refused(await shop.hold(event, seats=["A1"]), 409, "sale_closed")
    answered(await shop.patch(event, sale_opens_at=in_minutes(-90), sale_closes_at=in_minutes(90)), 200)
    assert (await shop.held(event, seats=["A1"]))["state"] == "held"
    answered(await shop.patch(event, sale_closes_at=in_minutes(-1)), 200)
    assert refused(await shop.hold(event, buyer="bob", seats=["A2"]), 409)["code"] == "sale_closed"


async def test_a_hold_made_in_time_can_be_confirmed_after_the_sale_closed(shop: Caller) -> None:
    """The sale window guards the hold; a buyer who holds may finish."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    answered(await shop.patch(event, sale_closes_at=in_minutes(-1)), 200)
    assert answered(await shop.confirm(booking["id"]), 200)["state"] == "confirmed"


async def test_a_patch_changes_what_it_names_and_nothing_else(shop: Caller) -> None:
    """Name, start, hold time and limit can be changed one by one."""
    event = await shop.theatre(hold_ttl_seconds=300)
    before = answered(await shop.http.get(f"/v1/events/{event}"), 200)
    for change in ({"name": "Late show"}, {"hold_ttl_seconds": 120}, {"per_buyer_max": 1}):
        after = answered(await shop.patch(event, **change), 200)
        assert {name: after[name] for name in change} == change
        assert {name: after[name] for name in ("id", "currency")} == {name: before[name] for name in ("id", "currency")}
        assert answered(await shop.http.get(f"/v1/events/{event}"), 200) == after
    assert 0 < (await shop.held(event, buyer="ann", seats=["A1"]))["expires_in"] <= 120
    refused(await shop.hold(event, buyer="ann", seats=["A2"]), 409, "limit_exceeded")


async def test_a_limit_counts_seats_and_units_held_and_sold(shop: Caller) -> None:
    """One buyer has at most so much of an event; a release makes room; other buyers are not affected."""
    event = await shop.theatre(per_buyer_max=3, pools=[{"id": "GA", "capacity": 50, "price": 2500}])
    first = await shop.sold(event, buyer="ann", seats=["A1"])
    second = await shop.held(event, buyer="ann", pools={"GA": 1})
    refused(await shop.hold(event, buyer="ann", seats=["A2"], pools={"GA": 1}), 409, "limit_exceeded")
    third = await shop.held(event, buyer="ann", seats=["A2"])
    refused(await shop.hold(event, buyer="ann", pools={"GA": 1}), 409, "limit_exceeded")
    refused(await shop.hold(event, buyer="bob", seats=["B1", "B2", "B3", "B4"]), 409, "limit_exceeded")
    await shop.held(event, buyer="bob", seats=["B1", "B2", "B3"])
    answered(await shop.cancel(first["id"]), 200)
    answered(await shop.release(second["id"]), 200)
    await shop.held(event, buyer="ann", pools={"GA": 2})
    assert await shop.state(third["id"]) == "held"


async def test_a_blocked_seat_is_never_sold_until_it_is_unblocked(shop: Caller) -> None:
    """Blocking takes a free seat off sale, and the refusal says why."""
    event = await shop.theatre()
    answered(await shop.patch(event, seats=[{"id": "A1", "blocked": True}]), 200)
    assert (await shop.states(event))["A1"] == "blocked"
    problem = refused(await shop.hold(event, seats=["A1", "A2"]), 409, "seats_taken")
    assert (problem["seats"], problem["why"]) == (["A1"], "blocked")
    answered(await shop.patch(event, seats=[{"id": "A1", "blocked": False}]), 200)
    await shop.held(event, seats=["A1", "A2"])


async def test_a_held_or_sold_seat_is_not_blocked(shop: Caller) -> None:
    """Neither a held nor a sold seat can be taken off sale, and one of them stops the whole change."""
    event = await shop.theatre()
    await shop.held(event, buyer="ann", seats=["A1"])
    await shop.sold(event, buyer="bob", seats=["A2"])
    before = await shop.picture(event)
    for seat in ("A1", "A2"):
        change = [{"id": "A3", "blocked": True}, {"id": seat, "blocked": True}]
        problem = refused(await shop.patch(event, seats=change, name="Changed"), 409, "seats_taken")
        assert problem["seats"] == [seat]
    assert await shop.picture(event) == before


async def test_a_lapsed_hold_does_not_stop_a_block(shop: Caller) -> None:
    """Blocking expires a lapsed hold first."""
    event = await shop.theatre()
    booking = await shop.lapsed(event, seats=["A1"])
    answered(await shop.patch(event, seats=[{"id": "A1", "blocked": True}]), 200)
    assert (await shop.states(event))["A1"] == "blocked"
    assert await shop.state(booking["id"]) == "expired"
    refused(await shop.confirm(booking["id"]), 410, "booking_expired")


async def test_capacity_grows_and_shrinks_down_to_what_is_taken(shop: Caller) -> None:
    """A pool can never be smaller than what is held and sold of it."""
    event = (await shop.create_event(pools=[{"id": "GA", "capacity": 10, "price": 2500}]))["id"]
    await shop.held(event, buyer="ann", pools={"GA": 4})
    await shop.sold(event, buyer="bob", pools={"GA": 3})
    refused(await shop.patch(event, pools=[{"id": "GA", "capacity": 6}]), 409, "capacity_in_use")
    assert (await shop.pool(event))["capacity"] == 10
    answered(await shop.patch(event, pools=[{"id": "GA", "capacity": 7}]), 200)
    refused(await shop.hold(event, buyer="eve", pools={"GA": 1}), 409, "pool_exhausted")
    answered(await shop.patch(event, pools=[{"id": "GA", "capacity": 12}]), 200)
    assert (await shop.pool(event))["available"] == 5
    await shop.held(event, buyer="eve", pools={"GA": 5})


async def test_a_lapsed_hold_does_not_keep_capacity_in_use(shop: Caller) -> None:
    """Only active holds prevent a smaller pool."""
    event = (await shop.create_event(pools=[{"id": "GA", "capacity": 10, "price": 2500}]))["id"]
    await shop.lapsed(event, buyer="ann", pools={"GA": 8})
    answered(await shop.patch(event, pools=[{"id": "GA", "capacity": 2}]), 200)
    pool = await eventually(lambda: shop.pool(event), lambda found: bool(found["capacity"] == 2))
    assert pool["available"] == 2


async def test_an_event_of_many_seats_may_be_large(shop: Caller) -> None:
    """An event's body may exceed what a booking's may: a hall of two thousand named seats is no abuse."""
    section = "Upper circle left side behind the orchestra pit"
    seats = [{"id": f"U-{n}", "section": section, "price": 4500} for n in range(2000)]
    event = await shop.create_event(seats=seats)
    assert len(await shop.states(event["id"])) == 2000


async def test_a_change_to_an_unknown_event_seat_or_pool_is_refused(shop: Caller) -> None:
    """An unknown thing cannot be changed, and nothing else in the request is changed either."""
    event = await shop.theatre(pools=[{"id": "GA", "capacity": 10, "price": 2500}])
    before = await shop.picture(event)
    refused(await shop.patch(unique("evt"), name="Unknown"), 404, "event_unknown")
    seats = [{"id": "A1", "blocked": True}, {"id": "Z99", "blocked": True}]
    problem = refused(await shop.patch(event, seats=seats), 404, "seat_unknown")
    assert problem["seats"] == ["Z99"]
    refused(await shop.patch(event, pools=[{"id": "GA", "capacity": 5}, {"id": "NO", "capacity": 5}]), 404)
    assert await shop.picture(event) == before
