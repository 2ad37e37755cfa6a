"""Ownership of bookings: guests see and move their own, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .support import Caller, Json, Service, answered, calling, refused

if TYPE_CHECKING:
    import httpx2

Guests = list[tuple[str, Caller]]

READS = ("", "/history")
OWN_VERBS: dict[str, Json | None] = {"extend": {"seconds": 60}, "release": None}
SHOP_VERBS: dict[str, Json | None] = {"confirm": {"payment_id": "pay-stolen"}, "cancel": {}}
OPEN_TO_ALL = ("/v1/guests", "/v1/payments/", "/v1/tickets/page/")


def another(booking_id: str) -> str:
    """A well-formed id that no booking has."""
    return booking_id[:-1] + ("0" if booking_id[-1] != "0" else "1")


def without_id(response: httpx2.Response, *, without: str) -> Json:
    """A refusal without the requested id."""
    problem = response.json()
    return {name: str(value).replace(without, "…") for name, value in problem.items() if name != "instance"}


async def test_a_guest_gets_a_token_in_a_cookie_that_scripts_cannot_read(service: Service) -> None:
    """An anonymous buyer has an identity from then on: by cookie or by bearer token."""
    async with calling(service, token="") as anonymous:
        response = await anonymous.http.post("/v1/guests")
        made = answered(response, 201)
        assert {"buyer", "expires_at"} == set(made)
        cookie = response.headers["set-cookie"]
        token = cookie.partition("=")[2].partition(";")[0]
        assert token not in response.text
        assert "httponly" in cookie.lower()
        assert "samesite" in cookie.lower()
        anonymous.http.cookies.clear()
        headers = {"Cookie": cookie.split(";")[0], "Origin": service.url}
        listed = await anonymous.http.get("/v1/bookings", headers=headers)
        assert answered(listed, 200)["bookings"] == []
    async with calling(service, token=token) as guest:
        assert await guest.bookings() == []


async def test_a_guest_books_in_their_own_name(shop: Caller, guests: Guests) -> None:
    """Hold, read, extend, list and release of one's own need no more than the token."""
    (name, guest), _ = guests
    event = await shop.theatre()
    booking = await guest.held(event, buyer=name, seats=["A1"])
    assert booking["buyer"] == name
    assert (await guest.states(event))["A1"] == "held"
    assert (await guest.booking(booking["id"]))["id"] == booking["id"]
    answered(await guest.extend(booking["id"]), 200)
    assert [found["id"] for found in await guest.bookings(event_id=event)] == [booking["id"]]
    assert [entry["verb"] for entry in await guest.history(booking["id"])] == ["hold", "extend"]
    answered(await guest.release(booking["id"]), 200)
    assert await shop.state(booking["id"]) == "released"


async def test_a_guest_need_not_say_their_name(shop: Caller, guests: Guests) -> None:
    """The token identifies the buyer."""
    (name, guest), _ = guests
    booking = await guest.held(await shop.theatre(), buyer=None, seats=["A1"])
    assert booking["buyer"] == name


async def test_a_guest_cannot_book_in_anothers_name(shop: Caller, guests: Guests) -> None:
    """A token is for one buyer: nothing is made in another's name, nor counted against their limit."""
    (_, guest), (victim, _) = guests
    event = await shop.theatre(per_buyer_max=1)
    refused(await guest.hold(event, buyer=victim, seats=["A1"]), (403, 422))
    assert await shop.bookings(event_id=event) == []
    await shop.held(event, buyer=victim, seats=["A1"])


async def test_anothers_booking_looks_like_none_at_all(shop: Caller, guests: Guests) -> None:
    """Reads and verbs on another's booking are 404, word for word as for a booking that does not exist."""
    (name, owner), (_, stranger) = guests
    event = await shop.theatre()
    booking = await owner.held(event, buyer=name, seats=["A1"])
    before = await shop.picture(event)
    missing = another(booking["id"])
    for read in READS:
        theirs = await stranger.http.get(f"/v1/bookings/{booking['id']}{read}")
        refused(theirs, 404, "booking_unknown")
        unknown = await stranger.http.get(f"/v1/bookings/{missing}{read}")
        assert without_id(theirs, without=booking["id"]) == without_id(unknown, without=missing)
    for verb, body in OWN_VERBS.items():
        theirs = await stranger.verb(booking["id"], verb, body)
        refused(theirs, 404, "booking_unknown")
        unknown = await stranger.verb(missing, verb, body)
        assert without_id(theirs, without=booking["id"]) == without_id(unknown, without=missing)
    assert await shop.picture(event) == before


async def test_another_buyers_list_does_not_show_it(shop: Caller, guests: Guests) -> None:
    """A list filtered by another buyer's name shows none of their bookings."""
    (name, owner), (_, stranger) = guests
    event = await shop.theatre()
    booking = await owner.held(event, buyer=name, seats=["A1"])
    assert await stranger.bookings(event_id=event) == []
    asked = await stranger.http.get("/v1/bookings", params={"buyer": name})
    assert asked.status_code in (200, 403), asked.text
    assert booking["id"] not in asked.text


@pytest.mark.parametrize("verb", SHOP_VERBS)
async def test_only_the_shop_sells_and_undoes(shop: Caller, guests: Guests, verb: str) -> None:
    """Confirm needs a key that may sell, and so does cancel where the event lets no buyer cancel."""
    (name, owner), (_, stranger) = guests
    event = await shop.theatre()
    booking = await owner.held(event, buyer=name, seats=["A1"])
    if verb == "cancel":
        answered(await shop.confirm(booking["id"]), 200)
    before = await shop.picture(event)
    own = await owner.verb(booking["id"], verb, SHOP_VERBS[verb])
    refused(own, *((409, "cancel_refused") if verb == "cancel" else (403, "forbidden")))
    theirs = await stranger.verb(booking["id"], verb, SHOP_VERBS[verb])
    refused(theirs, (403, 404))
    missing = another(booking["id"])
    unknown = await stranger.verb(missing, verb, SHOP_VERBS[verb])
    assert without_id(theirs, without=booking["id"]) == without_id(unknown, without=missing)
    assert await shop.picture(event) == before


async def test_a_guest_manages_no_events(shop: Caller, guests: Guests) -> None:
    """Creating and changing events needs a key that may manage."""
    (_, guest), _ = guests
    event = await shop.theatre()
    before = await shop.picture(event)
    refused(await guest.http.post("/v1/events", json={"name": "Mine", "currency": "EUR"}), 403)
    refused(await guest.patch(event, seats=[{"id": "A1", "price": 1}]), 403)
    assert await shop.picture(event) == before


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ek_test_00000000000000000000000000000000",
        "Bearer not-a-key",
        "Basic ZWs6dGVzdA==",
        "Bearer \xe9\xff",
        "Bearer " + "x" * 4000,
    ],
    ids=["none", "empty", "wrong", "shapeless", "basic", "not ascii", "long"],
)
async def test_without_a_good_key_nothing_is_answered(service: Service, shop: Caller, header: str | None) -> None:
    """A missing or wrong key is 401 and says how to authenticate."""
    event = await shop.theatre()
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    async with calling(service, token="") as anonymous:
        for path in (f"/v1/events/{event}/seats", "/v1/bookings"):
            response = await anonymous.http.get(path, headers=headers)
            refused(response, 401)
            assert response.headers["www-authenticate"].lower().startswith("bearer")


async def test_an_altered_token_is_refused(service: Service, guests: Guests) -> None:
    """Not one character of a buyer token can be changed."""
    (_, guest), _ = guests
    token = guest.http.headers["authorization"].removeprefix("Bearer ")
    for place in (0, len(token) // 2, len(token) - 2):
        letter = "A" if token[place] != "A" else "B"
        spoilt = token[:place] + letter + token[place + 1 :]
        async with calling(service, token=spoilt) as caller:
            assert refused(await caller.http.get("/v1/bookings"), 401)["status"] == 401


async def test_every_documented_call_requires_a_key(service: Service) -> None:
    """No path of the API reference answers a caller without a key, except the public ones."""
    async with calling(service, token="") as anonymous:
        paths: Json = answered(await anonymous.http.get("/openapi.json"), 200)["paths"]
        asked = 0
        for path, operations in paths.items():
            if not path.startswith("/v1/") or path.startswith(OPEN_TO_ALL):
                continue
            filled = path.replace("{", "").replace("}", "")
            for method in sorted({"get", "post", "patch", "put", "delete"} & set(operations)):
                body: Json | None = None if method in ("get", "delete") else {}
                refused(await anonymous.http.request(method.upper(), filled, json=body), 401)
                asked += 1
        assert asked >= 12
