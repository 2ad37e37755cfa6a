"""One booking from first hold to its end, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from .support import Caller, answered, eventually, refused, timeless, unique


def moment(text: str) -> datetime:
    """A time as the API writes it: RFC 3339, in UTC."""
    found = datetime.fromisoformat(text)
    assert found.utcoffset() == timedelta(0), f"{text} is not in UTC"
    return found


def state_in(fact: Any) -> Any:
    """The state on one side of a history entry."""
    return fact["state"] if isinstance(fact, dict) else fact


async def test_a_booking_goes_from_hold_to_sale(shop: Caller) -> None:
    """Hold, read, extend, confirm: one booking, one id, and the seat is sold."""
    event = await shop.theatre()
    held = await shop.held(event, buyer="ann", seats=["A1", "A2"])
    assert held["state"] == "held"
    assert held["event_id"] == event
    assert held["buyer"] == "ann"
    assert {seat["id"] for seat in held["seats"]} == {"A1", "A2"}
    assert [seat["price"] for seat in held["seats"]] == [4500, 4500]
    assert held["total"] == {"amount": 9000, "currency": "EUR"}
    assert timeless(await shop.booking(held["id"])) == timeless(held)
    extended = answered(await shop.extend(held["id"], seconds=60), 200)
    assert moment(extended["expires_at"]) - moment(held["expires_at"]) == timedelta(seconds=60)
    payment = unique("pay")
    sold = answered(await shop.confirm(held["id"], payment_id=payment, payment_method="card"), 200)
    assert (sold["id"], sold["state"]) == (held["id"], "confirmed")
    assert (sold["payment_id"], sold["payment_method"]) == (payment, "card")
    assert moment(sold["confirmed_at"]) >= moment(held["created_at"])
    assert {seat["id"] for seat in sold["seats"]} == {"A1", "A2"}
    assert sold["total"] == held["total"]
    states = await shop.states(event)
    assert (states["A1"], states["A2"], states["A3"]) == ("booked", "booked", "available")


async def test_a_hold_reports_when_it_expires(shop: Caller) -> None:
    """The answer carries the moment of expiry and the seconds left, and they agree with the requested TTL."""
    event = await shop.theatre(hold_ttl_seconds=300)
    usual = await shop.held(event, seats=["A1"])
    asked = await shop.held(event, seats=["A2"], ttl_seconds=90)
    for booking, seconds in ((usual, 300), (asked, 90)):
        life = moment(booking["expires_at"]) - moment(booking["created_at"])
        assert abs(life - timedelta(seconds=seconds)) < timedelta(seconds=1)
        assert 0 < booking["expires_in"] <= seconds
        assert moment(booking["expires_at"]) > datetime.now(tz=UTC)


async def test_a_held_seat_is_refused_to_the_next_buyer_by_name(shop: Caller) -> None:
    """The refusal names a taken seat, held or sold; the free seat of the same request stays free."""
    event = await shop.theatre()
    first = await shop.held(event, buyer="ann", seats=["A1"])
    while_held = refused(await shop.hold(event, buyer="bob", seats=["A1", "A2"]), 409, "seats_taken")
    assert while_held["seats"] == ["A1"]
    answered(await shop.confirm(first["id"]), 200)
    when_sold = refused(await shop.hold(event, buyer="bob", seats=["A2", "A1"]), 409, "seats_taken")
    assert when_sold["seats"] == ["A1"]
    assert (await shop.states(event))["A2"] == "available"


async def test_a_refusal_points_a_buyer_to_the_booking_that_is_already_theirs(shop: Caller) -> None:
    """A buyer who already holds the seat learns their booking's id; other buyers do not."""
    event = await shop.theatre()
    mine = await shop.held(event, buyer="ann", seats=["A1"])
    again = refused(await shop.hold(event, buyer="ann", seats=["A1"]), 409, "seats_taken")
    assert again["yours"] == {"A1": mine["id"]}
    other = await shop.hold(event, buyer="bob", seats=["A1"])
    refused(other, 409, "seats_taken")
    assert mine["id"] not in other.text


async def test_a_released_seat_is_free_at_once(shop: Caller) -> None:
    """A release makes every seat free."""
    event = await shop.theatre()
    mine = await shop.held(event, buyer="ann", seats=["A1", "A2"])
    released = answered(await shop.release(mine["id"]), 200)
    assert (released["id"], released["state"]) == (mine["id"], "released")
    theirs = await shop.held_again(event, buyer="bob", seats=["A2", "A1"])
    assert await shop.state(mine["id"]) == "released"
    assert await shop.state(theirs["id"]) == "held"


async def test_a_cancelled_sale_frees_its_seats(shop: Caller) -> None:
    """Cancelling undoes the sale and the seats can be sold again."""
    event = await shop.theatre()
    mine = await shop.sold(event, buyer="ann", seats=["A1"])
    cancelled = answered(await shop.cancel(mine["id"]), 200)
    assert (cancelled["id"], cancelled["state"]) == (mine["id"], "cancelled")
    assert (await shop.states(event))["A1"] == "available"
    again = await shop.held_again(event, buyer="bob", seats=["A1"])
    theirs = answered(await shop.confirm(again["id"]), 200)
    assert theirs["state"] == "confirmed"


async def test_a_part_of_a_sale_can_be_cancelled(shop: Caller) -> None:
    """The named seat becomes free, the rest stays sold, and the total changes with it."""
    event = await shop.theatre(pools=[{"id": "GA", "capacity": 10, "price": 2500}])
    mine = await shop.sold(event, buyer="ann", seats=["A1", "A2"], pools={"GA": 3})
    assert mine["total"]["amount"] == 2 * 4500 + 3 * 2500
    rest = answered(await shop.cancel(mine["id"], seats=["A1"], pools={"GA": 1}), 200)
    assert rest["state"] == "confirmed"
    assert rest["total"]["amount"] == 4500 + 2 * 2500
    states = await shop.states(event)
    assert (states["A1"], states["A2"]) == ("available", "booked")
    assert (await shop.pool(event))["available"] == 8
    await shop.held_again(event, buyer="bob", seats=["A1"])


async def test_money_taken_outside_is_not_refunded_by_a_cancel(shop: Caller) -> None:
    """Earmark cannot refund what it never captured: such a cancel is refused and the sale stays."""
    event = await shop.theatre()
    mine = await shop.sold(event, seats=["A1"])
    for refund in ("full", 100):
        refused(await shop.cancel(mine["id"], refund=refund), 409, "refund_refused")
    for nonsense in (0.5, -1, "half"):
        refused(await shop.cancel(mine["id"], refund=nonsense), 422, "invalid_request")
    assert await shop.state(mine["id"]) == "confirmed"
    assert (await shop.states(event))["A1"] == "booked"


async def test_any_buyer_can_take_a_lapsed_hold_at_once(shop: Caller) -> None:
    """After `expires_at` map and lists show the seat free, and the first request gets it; no sweeper is needed."""
    event = await shop.theatre()
    mine = await shop.held(event, buyer="ann", seats=["A1"], ttl_seconds=1)
    await eventually(lambda: shop.states(event), lambda states: states["A1"] == "available")
    assert [booking["id"] for booking in await shop.bookings(event_id=event, state="expired")] == [mine["id"]]
    assert await shop.bookings(event_id=event, state="held") == []
    theirs = await shop.held_again(event, buyer="bob", seats=["A1"])
    assert await shop.state(mine["id"]) == "expired"
    assert await shop.state(theirs["id"]) == "held"
    refused(await shop.confirm(mine["id"]), 410, "booking_expired")
    answered(await shop.confirm(theirs["id"]), 200)


async def test_an_extended_hold_outlives_its_first_expiry(shop: Caller) -> None:
    """Past its first expiry the seat is still refused to other buyers and can still be sold."""
    event = await shop.theatre()
    mine = await shop.held(event, buyer="ann", seats=["A1"], ttl_seconds=2)
    answered(await shop.extend(mine["id"], seconds=120), 200)
    witness = await shop.held(event, buyer="eve", seats=["A2"], ttl_seconds=2)
    await eventually(lambda: shop.state(witness["id"]), lambda state: state == "expired")
    refused(await shop.hold(event, buyer="bob", seats=["A1"]), 409, "seats_taken")
    assert answered(await shop.confirm(mine["id"]), 200)["state"] == "confirmed"


async def test_a_hold_cannot_be_extended_for_ever(shop: Caller) -> None:
    """Time is added up to a cap; then the extension is refused and nothing is shortened."""
    event = await shop.theatre()
    expires_at = (await shop.held(event, seats=["A1"]))["expires_at"]
    booking = (await shop.bookings(event_id=event))[0]["id"]
    for _ in range(300):
        response = await shop.extend(booking, seconds=600)
        if response.status_code != 200:
            break
        assert moment(response.json()["expires_at"]) > moment(expires_at)
        expires_at = response.json()["expires_at"]
    refused(response, 409, "extension_refused")
    found = await shop.booking(booking)
    assert (found["state"], found["expires_at"]) == ("held", expires_at)


async def test_the_history_has_every_move_once(shop: Caller) -> None:
    """The timeline is gap-free by version and has before, after, actor and time."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    answered(await shop.extend(booking["id"]), 200)
    answered(await shop.confirm(booking["id"]), 200)
    answered(await shop.cancel(booking["id"]), 200)
    entries = await shop.history(booking["id"])
    assert [entry["verb"] for entry in entries] == ["hold", "extend", "confirm", "cancel"]
    first = entries[0]["version"]
    assert [entry["version"] for entry in entries] == list(range(first, first + 4))
    assert (await shop.booking(booking["id"]))["version"] == entries[-1]["version"]
    assert [state_in(entry["after"]) for entry in entries] == ["held", "held", "confirmed", "cancelled"]
    assert [state_in(entry["before"]) for entry in entries[1:]] == ["held", "held", "confirmed"]
    assert all(entry["actor"] for entry in entries)
    moments = [moment(entry["at"]) for entry in entries]
    assert moments == sorted(moments)


async def test_refusals_and_repeats_write_no_history(shop: Caller) -> None:
    """What changed nothing is not in the timeline."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    refused(await shop.cancel(booking["id"]), 409, "booking_not_confirmed")
    for _ in range(3):
        answered(await shop.confirm(booking["id"]), 200)
    refused(await shop.release(booking["id"]), 409, "booking_resolved")
    assert [entry["verb"] for entry in await shop.history(booking["id"])] == ["hold", "confirm"]


async def test_bookings_are_listed_by_buyer_event_and_state(shop: Caller) -> None:
    """Filters narrow the list, ended bookings are in it too, and the cursor loses and repeats nothing."""
    event = await shop.theatre()
    made = [await shop.held(event, buyer=f"buyer-{n % 2}", seats=[f"A{n + 1}"]) for n in range(5)]
    answered(await shop.confirm(made[0]["id"]), 200)
    answered(await shop.release(made[1]["id"]), 200)
    everything = {booking["id"] for booking in made}
    paged = await shop.bookings(event_id=event, limit="2")
    assert len(paged) == 5
    assert {booking["id"] for booking in paged} == everything
    firsts = await shop.bookings(event_id=event, buyer="buyer-0")
    assert {booking["id"] for booking in firsts} == {made[n]["id"] for n in (0, 2, 4)}
    for state, expected in (("confirmed", [made[0]]), ("released", [made[1]]), ("held", made[2:])):
        found = await shop.bookings(event_id=event, state=state)
        assert {booking["id"] for booking in found} == {booking["id"] for booking in expected}


async def test_a_lapse_reaches_clients_that_poll_with_an_etag(shop: Caller) -> None:
    """An unchanged map is not sent again; a hold changes it, and so does a lapse that no worker wrote down."""
    event = await shop.theatre()
    path = f"/v1/events/{event}/seats"
    empty = (await shop.http.get(path)).headers["etag"]
    unchanged = await shop.http.get(path, headers={"If-None-Match": empty})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    await shop.held(event, seats=["A1"], ttl_seconds=1)
    changed = await shop.http.get(path, headers={"If-None-Match": empty})
    assert {seat["id"]: seat["state"] for seat in answered(changed, 200)["seats"]}["A1"] == "held"
    held = changed.headers["etag"]
    assert held != empty
    lapsed = await eventually(
        lambda: shop.http.get(path, headers={"If-None-Match": held}), lambda response: response.status_code == 200
    )
    assert {seat["id"]: seat["state"] for seat in lapsed.json()["seats"]}["A1"] == "available"
