"""Every verb, repeated or sent too late, has one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .support import Caller, Json, answered, refused, timeless, unique

if TYPE_CHECKING:
    import httpx2

VERBS = ("extend", "confirm", "release", "cancel")


async def ask(shop: Caller, verb: str, booking_id: str) -> httpx2.Response:
    """The verb with a sound body."""
    bodies: dict[str, Json | None] = {
        "extend": {"seconds": 60},
        "confirm": {"payment_id": f"pay-{booking_id}"},
        "release": None,
        "cancel": {"refund": "none"},
    }
    return await shop.verb(booking_id, verb, bodies[verb])


async def ended(shop: Caller, state: str, event: str) -> Json:
    """A booking in the given state."""
    booking = await shop.held(event, seats=["A1"])
    if state in ("confirmed", "cancelled"):
        answered(await shop.confirm(booking["id"]), 200)
    if state == "cancelled":
        answered(await shop.cancel(booking["id"]), 200)
    if state == "released":
        answered(await shop.release(booking["id"]), 200)
    return await shop.booking(booking["id"])


@pytest.mark.parametrize(
    "state, repeated", [("confirmed", "confirm"), ("released", "release"), ("cancelled", "cancel")]
)
async def test_the_same_verb_again_answers_with_the_booking(shop: Caller, state: str, repeated: str) -> None:
    """A double click is not an error: the same confirm, release or cancel again is 200 and changes nothing."""
    booking = await ended(shop, state, await shop.theatre())
    beside = {"money": None} if repeated == "cancel" else {}
    for _ in range(3):
        assert timeless(answered(await ask(shop, repeated, booking["id"]), 200)) == timeless(booking) | beside
    assert timeless(await shop.booking(booking["id"])) == timeless(booking)


@pytest.mark.parametrize(
    "state, verbs",
    [
        ("confirmed", ("extend", "release")),
        ("released", ("extend", "confirm", "cancel")),
        ("cancelled", ("extend", "confirm", "release")),
    ],
)
async def test_any_other_verb_on_a_resolved_booking_is_refused(
    shop: Caller, state: str, verbs: tuple[str, ...]
) -> None:
    """A booking resolves once: other verbs are refused, the refusal says the state, and it stays."""
    booking = await ended(shop, state, await shop.theatre())
    for verb in verbs:
        problem = refused(await ask(shop, verb, booking["id"]), 409, "booking_resolved")
        assert problem["state"] == state
    assert timeless(await shop.booking(booking["id"])) == timeless(booking)


async def test_every_verb_on_an_expired_booking_is_answered_410(shop: Caller) -> None:
    """Expired is 410 for every verb, however often; the seat is free and the timeline has one expiry."""
    event = await shop.theatre()
    booking = await shop.lapsed(event, seats=["A1"])
    for verb in (*VERBS, *VERBS):
        refused(await ask(shop, verb, booking["id"]), 410, "booking_expired")
    assert await shop.state(booking["id"]) == "expired"
    assert (await shop.states(event))["A1"] == "available"
    await shop.held(event, buyer="bob", seats=["A1"])
    assert [entry["verb"] for entry in await shop.history(booking["id"])] == ["hold", "expire"]


async def test_a_hold_cannot_be_cancelled(shop: Caller) -> None:
    """Cancel undoes a sale; a hold is released instead, and stays as it was."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    refused(await shop.cancel(booking["id"]), 409, "booking_not_confirmed")
    assert await shop.state(booking["id"]) == "held"
    answered(await shop.release(booking["id"]), 200)


async def test_a_sale_cannot_be_confirmed_with_another_payment(shop: Caller) -> None:
    """The first payment made the sale; a second one is refused and the first stays."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    first, second = unique("pay"), unique("pay")
    answered(await shop.confirm(booking["id"], payment_id=first), 200)
    problem = refused(await shop.confirm(booking["id"], payment_id=second), 409, "booking_resolved")
    assert problem["state"] == "confirmed"
    assert (await shop.booking(booking["id"]))["payment_id"] == first


async def test_one_payment_confirms_one_booking(shop: Caller) -> None:
    """Money that bought one booking does not buy a second."""
    event = await shop.theatre()
    payment = unique("pay")
    first = await shop.held(event, buyer="ann", seats=["A1"])
    second = await shop.held(event, buyer="bob", seats=["A2"])
    answered(await shop.confirm(first["id"], payment_id=payment), 200)
    refused(await shop.confirm(second["id"], payment_id=payment), 409, "payment_used")
    assert await shop.state(second["id"]) == "held"
    answered(await shop.confirm(second["id"], payment_id=unique("pay")), 200)


async def test_a_confirm_needs_a_payment(shop: Caller) -> None:
    """A sale without money is a mistake of the caller's, not a sale."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    for body in (None, {}, {"payment_id": None}, {"payment_id": ""}, {"payment_id": 7}):
        refused(await shop.verb(booking["id"], "confirm", body), 422, "invalid_request")
    assert await shop.state(booking["id"]) == "held"
