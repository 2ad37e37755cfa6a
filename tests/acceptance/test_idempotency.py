"""The same request twice has one effect and one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .support import Caller, answered, refused, unique

if TYPE_CHECKING:
    import httpx2

Guests = list[tuple[str, Caller]]


def replayed(response: httpx2.Response) -> bool:
    return response.headers.get("idempotency-replayed") == "true"


async def test_a_repeated_hold_is_answered_byte_for_byte(shop: Caller) -> None:
    """A retry gets the first answer, unchanged even when the booking has long moved on."""
    event = await shop.theatre()
    key = unique("key")
    first = await shop.hold(event, seats=["A1"], idempotency_key=key)
    booking = answered(first, 201)
    assert not replayed(first)
    again = await shop.hold(event, seats=["A1"], idempotency_key=key)
    answered(await shop.confirm(booking["id"]), 200)
    later = await shop.hold(event, seats=["A1"], idempotency_key=key)
    for response in (again, later):
        assert (response.status_code, response.content) == (201, first.content)
        assert response.headers["content-type"] == first.headers["content-type"]
        assert replayed(response)
    assert len(await shop.bookings(event_id=event)) == 1
    assert await shop.state(booking["id"]) == "confirmed"


async def test_every_verb_of_a_booking_can_be_retried(shop: Caller) -> None:
    """Extend, confirm and release replay; an extend that is repeated adds its time once."""
    event = await shop.theatre()
    booking = await shop.held(event, seats=["A1"])
    once = unique("key")
    first = await shop.extend(booking["id"], seconds=60, idempotency_key=once)
    second = await shop.extend(booking["id"], seconds=60, idempotency_key=once)
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert (replayed(first), replayed(second)) == (False, True)
    assert (await shop.booking(booking["id"]))["expires_at"] == first.json()["expires_at"]
    for verb, target in (("confirm", booking), ("release", await shop.held(event, seats=["A2"]))):
        body = {"payment_id": unique("pay")} if verb == "confirm" else None
        key = unique("key")
        first = await shop.verb(target["id"], verb, body, idempotency_key=key)
        second = await shop.verb(target["id"], verb, body, idempotency_key=key)
        assert answered(first, 200)["id"] == target["id"]
        assert (second.status_code, second.content) == (200, first.content)
        assert replayed(second)


async def test_a_repeated_event_is_created_once(shop: Caller) -> None:
    """The key is accepted on every post: a shop that retries has one event, not two."""
    key = {"Idempotency-Key": unique("key")}
    body = {"name": unique("Show"), "currency": "EUR", "pools": [{"id": "GA", "capacity": 1, "price": 1}]}
    first = await shop.http.post("/v1/events", json=body, headers=key)
    second = await shop.http.post("/v1/events", json=body, headers=key)
    assert answered(first, 201)["id"] == answered(second, 201)["id"]
    assert first.content == second.content
    assert (replayed(first), replayed(second)) == (False, True)


async def test_a_key_belongs_to_one_request(shop: Caller) -> None:
    """The same key with another body or on another path is refused with an error, and does nothing."""
    event = await shop.theatre()
    key = unique("key")
    first = answered(await shop.hold(event, seats=["A1"], idempotency_key=key), 201)
    before = await shop.picture(event)
    refused(await shop.hold(event, seats=["A2"], idempotency_key=key), 422, "idempotency_mismatch")
    refused(await shop.hold(event, buyer="bob", seats=["A1"], idempotency_key=key), 422, "idempotency_mismatch")
    refused(await shop.release(first["id"], idempotency_key=key), 422, "idempotency_mismatch")
    assert await shop.picture(event) == before


async def test_a_refusal_is_decided_anew(shop: Caller) -> None:
    """A refusal is not recorded: when the seat becomes free, the same request with the same key succeeds."""
    event = await shop.theatre()
    theirs = await shop.held(event, buyer="bob", seats=["A1"])
    key = unique("key")
    for _ in range(2):
        response = await shop.hold(event, seats=["A1"], idempotency_key=key)
        refused(response, 409, "seats_taken")
        assert not replayed(response)
    answered(await shop.release(theirs["id"]), 200)
    mine = await shop.held_again(event, seats=["A1"], idempotency_key=key)
    again = await shop.hold(event, seats=["A1"], idempotency_key=key)
    assert answered(again, 201)["id"] == mine["id"]
    assert replayed(again)


async def test_a_refused_key_may_carry_another_request(shop: Caller) -> None:
    """What was refused left no trace, not even its key."""
    event = await shop.theatre()
    await shop.held(event, buyer="bob", seats=["A1"])
    key = unique("key")
    refused(await shop.hold(event, seats=["A1"], idempotency_key=key), 409, "seats_taken")
    made = answered(await shop.hold(event, seats=["A2"], idempotency_key=key), 201)
    assert [seat["id"] for seat in made["seats"]] == ["A2"]


async def test_two_callers_may_choose_the_same_key(shop: Caller, guests: Guests) -> None:
    """A key is its caller's own: no caller is answered with another's booking."""
    event = await shop.theatre()
    key = unique("key")
    made = []
    for seat, (name, guest) in zip(("A1", "A2"), guests, strict=True):
        booking = answered(await guest.hold(event, buyer=name, seats=[seat], idempotency_key=key), 201)
        assert booking["buyer"] == name
        made.append(booking["id"])
    made.append(answered(await shop.hold(event, buyer="ann", seats=["A3"], idempotency_key=key), 201)["id"])
    assert len(set(made)) == 3


async def test_one_callers_retry_is_not_anothers(shop: Caller, guests: Guests) -> None:
    """The very same body under the very same key from another caller is a request of its own."""
    event = await shop.theatre()
    key = unique("key")
    (_, first), (_, second) = guests
    mine = await first.hold(event, buyer=None, seats=["A1"], idempotency_key=key)
    answered(mine, 201)
    theirs = await second.hold(event, buyer=None, seats=["A1"], idempotency_key=key)
    refused(theirs, 409, "seats_taken")
    assert mine.json()["id"] not in theirs.text


@pytest.mark.parametrize("key", ["k" * 256, "k" * 5000], ids=["one too long", "far too long"])
async def test_a_key_has_a_length(shop: Caller, key: str) -> None:
    """255 characters are enough for any key; longer ones are refused and nothing is held."""
    event = await shop.theatre()
    before = await shop.picture(event)
    refused(await shop.hold(event, seats=["A1"], idempotency_key=key), 422, "invalid_request")
    assert await shop.picture(event) == before


async def test_a_key_of_full_length_works(shop: Caller) -> None:
    """255 characters are allowed."""
    event = await shop.theatre()
    key = unique("key").ljust(255, "k")
    first = await shop.hold(event, seats=["A1"], idempotency_key=key)
    second = await shop.hold(event, seats=["A1"], idempotency_key=key)
    assert answered(first, 201) == answered(second, 201)
    assert replayed(second)
