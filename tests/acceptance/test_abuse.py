"""Requests that should never have been sent: refused in one shape, and nothing has happened."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import string
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from .support import Caller, Json, Service, answered, calling, refused, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

GA = [{"id": "GA", "capacity": 100, "price": 2500}]
SHORT_NAMES = ["".join(letters) for letters in itertools.product(string.ascii_uppercase, repeat=3)]
NO_SUCH = (404, 422)


def hold(**fields: Any) -> Json:
    """A sound hold of A3, with fields replaced or added; None takes one away."""
    body = {"event_id": "EVENT", "buyer": "mallory", "seats": ["A3"]} | fields
    return {name: value for name, value in body.items() if value is not None}


# Each is called by its name: the body, the statuses, the codes, and a word that the error message must contain.
HOLDS: dict[str, tuple[Any, int | tuple[int, ...], str | tuple[str, ...] | None, str]] = {
    "the same seat twice": (hold(seats=["A3", "A3"]), 422, "invalid_request", "seats"),
    "an unknown seat": (hold(seats=["A3", "Z99"]), 404, "seat_unknown", "Z99"),
    "an unknown event": (hold(event_id="evt-unknown"), 404, "event_unknown", ""),
    "an unknown pool": (hold(seats=None, pools={"VIP": 1}), 404, None, "VIP"),
    "ten thousand seats": (hold(seats=SHORT_NAMES[:10_000]), 422, "invalid_request", "seats"),
    "nothing at all": ({}, 422, "invalid_request", "event_id"),
    "no event": (hold(event_id=None), 422, "invalid_request", "event_id"),
    "no buyer": (hold(buyer=None), 422, "invalid_request", "buyer"),
    "an empty buyer": (hold(buyer=""), 422, "invalid_request", "buyer"),
    "a buyer that is a number": (hold(buyer=7), 422, "invalid_request", "buyer"),
    "a buyer of 300 characters": (hold(buyer="b" * 300), 422, "invalid_request", "buyer"),
    "a buyer with a line break": (hold(buyer="ann\r\nadmin=true"), 422, "invalid_request", "buyer"),
    "a buyer with a null": (hold(buyer="ann\x00"), 422, "invalid_request", "buyer"),
    "an empty claim": (hold(seats=None), 422, "invalid_request", ""),
    "an empty list of seats": (hold(seats=[]), 422, "invalid_request", ""),
    "empty pools": (hold(seats=None, pools={}), 422, "invalid_request", ""),
    "seats as text": (hold(seats="A3"), 422, "invalid_request", "seats"),
    "seats of numbers": (hold(seats=[1, 2]), 422, "invalid_request", "seats"),
    "seats of nothing": (hold(seats=[None]), 422, "invalid_request", "seats"),
    "a seat without a name": (hold(seats=[""]), NO_SUCH, ("seat_unknown", "invalid_request"), ""),
    "a seat with a null": (hold(seats=["A\x003"]), NO_SUCH, ("seat_unknown", "invalid_request"), ""),
    "a seat of braces": (hold(seats=["{}"]), NO_SUCH, ("seat_unknown", "invalid_request"), ""),
    "a seat of 300 characters": (hold(seats=["A" * 300]), NO_SUCH, ("seat_unknown", "invalid_request"), ""),
    "a seat of SQL": (hold(seats=["A3'; DROP TABLE seats;--"]), NO_SUCH, ("seat_unknown", "invalid_request"), ""),
    "an event with a null": (hold(event_id="e\x00"), NO_SUCH, ("event_unknown", "invalid_request"), ""),
    "an event of braces": (hold(event_id="{}"), NO_SUCH, ("event_unknown", "invalid_request"), ""),
    "an event of 300 characters": (hold(event_id="e" * 300), NO_SUCH, ("event_unknown", "invalid_request"), ""),
    "no units": (hold(pools={"GA": 0}), 422, "invalid_request", "pools"),
    "units below nothing": (hold(pools={"GA": -1}), 422, "invalid_request", "pools"),
    "more units than there are": (hold(pools={"GA": 101}), (409, 422), ("pool_exhausted", "invalid_request"), ""),
    "units beyond 64 bits": (hold(pools={"GA": 2**63}), 422, "invalid_request", "pools"),
    "units beyond everything": (hold(pools={"GA": 10**40}), 422, "invalid_request", "pools"),
    "half a unit": (hold(pools={"GA": 0.5}), 422, "invalid_request", "pools"),
    "a truth of units": (hold(pools={"GA": True}), 422, "invalid_request", "pools"),
    "units as text": (hold(pools={"GA": "1"}), 422, "invalid_request", "pools"),
    "pools as a list": (hold(pools=["GA"]), 422, "invalid_request", "pools"),
    "no time": (hold(ttl_seconds=0), 422, "invalid_request", "ttl_seconds"),
    "time below nothing": (hold(ttl_seconds=-60), 422, "invalid_request", "ttl_seconds"),
    "a year": (hold(ttl_seconds=31_536_000), 422, "invalid_request", "ttl_seconds"),
    "time beyond 64 bits": (hold(ttl_seconds=2**64), 422, "invalid_request", "ttl_seconds"),
    "a second and a half": (hold(ttl_seconds=1.5), 422, "invalid_request", "ttl_seconds"),
    "time as text": (hold(ttl_seconds="60"), 422, "invalid_request", "ttl_seconds"),
    "a truth of time": (hold(ttl_seconds=True), 422, "invalid_request", "ttl_seconds"),
    "an unknown field": (hold(colour="red"), 422, "invalid_request", "colour"),
    "its own price": (hold(total={"amount": 1, "currency": "EUR"}), 422, "invalid_request", "total"),
    "its own state": (hold(state="confirmed"), 422, "invalid_request", "state"),
    "a list": ([hold()], 422, "invalid_request", ""),
    "a text": ("hold", 422, "invalid_request", ""),
    "a number": (7, 422, "invalid_request", ""),
}

JSON_TYPE = {"Content-Type": "application/json"}

# Each is called by its name: the bytes, their headers, and the statuses that are right.
RAW: dict[str, tuple[bytes, dict[str, str], tuple[int, ...]]] = {
    "an empty body": (b"", JSON_TYPE, (422,)),
    "half an object": (b'{"event_id": "EVENT", "buyer"', JSON_TYPE, (422,)),
    "two objects": (b"{}{}", JSON_TYPE, (422,)),
    "not a number": (b'{"event_id": "EVENT", "buyer": "m", "seats": ["A3"], "ttl_seconds": NaN}', JSON_TYPE, (422,)),
    "full-width digits": (
        '{"event_id": "EVENT", "buyer": "m", "seats": ["A3"], "ttl_seconds": ６０}'.encode(),  # noqa: RUF001
        JSON_TYPE,
        (422,),
    ),
    "bytes that are no text": (b'{"event_id": "EVENT", "buyer": "\xff\xfe", "seats": ["A3"]}', JSON_TYPE, (422,)),
    "half a character": (b'{"event_id": "EVENT", "buyer": "\\ud800", "seats": ["A3"]}', JSON_TYPE, (422,)),
    "thirty thousand brackets": (b"[" * 30_000 + b"]" * 30_000, JSON_TYPE, (422,)),
    "braces without end": (b'{"a":' * 12_000, JSON_TYPE, (422,)),
    "a form": (b"event_id=EVENT&buyer=m", {"Content-Type": "application/x-www-form-urlencoded"}, (415, 422)),
    "xml": (b"<hold/>", {"Content-Type": "application/xml"}, (415, 422)),
    "json called text": (
        b'{"event_id": "EVENT", "buyer": "m", "seats": ["A3"]}',
        {"Content-Type": "text/plain"},
        (415, 422),
    ),
    "something zipped": (b"\x1f\x8b\x08\x00", JSON_TYPE | {"Content-Encoding": "gzip"}, (400, 415, 422)),
}


@pytest.fixture(scope="module")
def made() -> dict[int, str]:
    """The event that all tests here abuse, by the server it is on."""
    return {}


@pytest.fixture
async def event(service: Service, shop: Caller, made: dict[int, str]) -> AsyncIterator[str]:
    """An event with something held, sold and blocked; whatever a test does to it must leave it as it is."""
    if service.port not in made:
        made[service.port] = await shop.theatre(pools=GA)
        await shop.held(made[service.port], buyer="ann", seats=["A1"], pools={"GA": 2})
        await shop.sold(made[service.port], buyer="bob", seats=["A2"])
        answered(await shop.patch(made[service.port], seats=[{"id": "B5", "blocked": True}]), 200)
    before = await shop.picture(made[service.port])
    yield made[service.port]
    assert await shop.picture(made[service.port]) == before


@pytest.mark.parametrize("name", HOLDS)
async def test_an_invalid_hold_is_refused(shop: Caller, event: str, name: str) -> None:
    """Every invalid hold gets a clear refusal, the same each time, and takes nothing."""
    body, status, code, word = HOLDS[name]
    if isinstance(body, dict) and body.get("event_id") == "EVENT":
        body = body | {"event_id": event}
    for _ in range(2):
        response = await shop.http.post("/v1/bookings", json=body)
        problem = refused(response, status, code)
        facts = {fact: value for fact, value in problem.items() if fact != "instance"}
        assert word in json.dumps(facts), problem


@pytest.mark.parametrize("name", RAW)
async def test_what_is_not_json_is_refused(shop: Caller, event: str, name: str) -> None:
    """A body that cannot be parsed is refused with a clear error, not a crash."""
    body, headers, statuses = RAW[name]
    body = body.replace(b"EVENT", event.encode())
    code = "invalid_request" if statuses == (422,) else None
    problem = refused(await shop.http.post("/v1/bookings", content=body, headers=headers), statuses, code)
    assert problem["status"] in statuses


async def test_unknown_seats_are_named(shop: Caller, event: str) -> None:
    """All the unknown ones are named, and only they."""
    problem = refused(await shop.hold(event, seats=["Z9", "A3", "Z8"]), 404, "seat_unknown")
    assert sorted(problem["seats"]) == ["Z8", "Z9"]


async def test_a_blocked_seat_says_why(shop: Caller, event: str) -> None:
    """A seat off sale is not reported as taken by another buyer."""
    problem = refused(await shop.hold(event, seats=["B5"]), 409, "seats_taken")
    assert (problem["seats"], problem["why"]) == (["B5"], "blocked")
    problem = refused(await shop.hold(event, seats=["A2"]), 409, "seats_taken")
    assert problem.get("why") != "blocked"


async def test_an_oversized_hold_is_cut_off(shop: Caller, event: str) -> None:
    """Ten megabytes are refused by their size, with and without a Content-Length."""
    body = json.dumps(hold(event_id=event, buyer="b" * 10_000_000)).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    for content in (body, pieces()):
        problem = refused(await shop.http.post("/v1/bookings", content=content, headers=JSON_TYPE), 413)
        assert problem["code"] == "body_too_large"


async def test_an_oversized_event_is_cut_off(shop: Caller) -> None:
    """An event has a largest size: seventeen megabytes are refused."""
    name = unique("evt")
    body = json.dumps({"id": name, "name": "x" * 17_000_000, "currency": "EUR"}).encode()
    problem = refused(await shop.http.post("/v1/events", content=body, headers=JSON_TYPE), 413)
    assert problem["code"] == "body_too_large"
    refused(await shop.http.get(f"/v1/events/{name}"), 404, "event_unknown")


async def test_a_thousand_silent_connections_do_not_block_other_clients(service: Service, shop: Caller) -> None:
    """A client that connects and sends nothing, or half a request, costs the other clients nothing."""
    event = await shop.theatre()
    with ExitStack() as stack:
        for n in range(1100):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            silent.sendall(b"POST /v1/bookings HTTP/1.1\r\nHost: x\r\n" if n % 2 else b"")
        async with asyncio.timeout(10), calling(service) as other:
            held = await other.held(event, seats=["A1"])
    assert held["state"] == "held"


VERBS: dict[str, tuple[str, Any]] = {
    "extend by nothing": ("extend", {"seconds": 0}),
    "extend backwards": ("extend", {"seconds": -60}),
    "extend by a part": ("extend", {"seconds": 1.5}),
    "extend by a text": ("extend", {"seconds": "60"}),
    "extend by a truth": ("extend", {"seconds": True}),
    "extend beyond 64 bits": ("extend", {"seconds": 2**64}),
    "extend without a number": ("extend", {}),
    "extend with more": ("extend", {"seconds": 60, "expires_at": "2099-01-01T00:00:00Z"}),
    "confirm with a list": ("confirm", {"payment_id": ["p"]}),
    "confirm with a long payment": ("confirm", {"payment_id": "p" * 5000}),
    "confirm with a null": ("confirm", {"payment_id": "p\x00"}),
    "confirm with more": ("confirm", {"payment_id": "p", "total": 0}),
    "cancel with more": ("cancel", {"refund": "none", "to": "mallory"}),
    "cancel of a text": ("cancel", "none"),
    "cancel of a number of seats": ("cancel", {"refund": "none", "seats": 2}),
}


@pytest.mark.parametrize("name", VERBS)
async def test_an_invalid_verb_body_is_refused(shop: Caller, event: str, name: str) -> None:
    """An invalid body of a verb is refused and the booking stays as it is."""
    verb, body = VERBS[name]
    wanted = "confirmed" if verb == "cancel" else "held"
    booking = (await shop.bookings(event_id=event, state=wanted))[0]["id"]
    refused(await shop.verb(booking, verb, body), 422, "invalid_request")
    assert await shop.state(booking) == wanted


@pytest.mark.parametrize(
    "lines", [{"seats": ["A1"]}, {"seats": ["Z99"]}, {"pools": {"GA": 1}}, {"seats": ["A2", "A2"]}, {"seats": [""]}]
)
async def test_only_what_a_booking_has_can_be_cancelled_of_it(shop: Caller, event: str, lines: Json) -> None:
    """Another's seat, an unknown one or units it never had cannot be cancelled."""
    booking = (await shop.bookings(event_id=event, state="confirmed"))[0]["id"]
    refused(await shop.cancel(booking, **lines), (404, 409, 422))
    assert await shop.state(booking) == "confirmed"


@pytest.mark.parametrize(
    "booking_id",
    ["unknown", "%00", "%7B%7D", "b" * 300, "..%2F..", "1%27%20OR%20%271%27=%271", "%F0%9F%8E%AB", "%0d%0a"],
)
async def test_an_invalid_booking_id_is_unknown(shop: Caller, booking_id: str) -> None:
    """Any text given as a booking's id is answered 404, not with a crash."""
    requests: list[tuple[str, str, Json | None]] = [
        ("GET", "", None),
        ("GET", "/history", None),
        ("POST", "/extend", {"seconds": 60}),
        ("POST", "/confirm", {"payment_id": unique("pay")}),
        ("POST", "/release", None),
        ("POST", "/cancel", {"refund": "none"}),
    ]
    for method, path, body in requests:
        response = await shop.http.request(method, f"/v1/bookings/{booking_id}{path}", json=body)
        assert refused(response, NO_SUCH)["code"] != "internal"


@pytest.mark.parametrize("event_id", ["unknown", "%00", "%7B%7D", "e" * 300, "%0d%0a", "%F0%9F%8E%AB"])
async def test_an_invalid_event_id_is_unknown(shop: Caller, event_id: str) -> None:
    """Any text given as an event's id is answered 404, not with a crash."""
    for path in ("", "/seats", "/seats/A1"):
        problem = refused(await shop.http.get(f"/v1/events/{event_id}{path}"), NO_SUCH)
        assert problem["code"] in {"event_unknown", "invalid_request"}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=1000000000",
        "limit=ten",
        "limit=1.5",
        "cursor=nonsense",
        "cursor=%00",
        "cursor=",
        "state=sold",
        "buyer=%00",
        "event_id=%00",
    ],
)
async def test_an_invalid_query_does_not_crash_the_server(shop: Caller, query: str) -> None:
    """An invalid list query is refused in the common shape, or answered with an empty or bounded list."""
    response = await shop.http.get(f"/v1/bookings?{query}")
    if response.status_code == 200:
        assert query.split("=", maxsplit=1)[0] in {"buyer", "event_id", "limit", "cursor"}, response.text
        assert len(response.json()["bookings"]) <= 1000
    else:
        refused(response, (404, 422))


WRONG_TURNS = [
    ("DELETE", "/v1/events/EVENT", 405),
    ("PUT", "/v1/bookings", 405),
    ("PATCH", "/v1/events/EVENT/seats", 405),
    ("GET", "/v1/bookings/x/release", 405),
    ("POST", "/healthz", 405),
    ("GET", "/v1/nonsense", 404),
    ("POST", "/v2/bookings", 404),
    ("GET", "/v1/events/EVENT/nonsense", 404),
    ("GET", "/nonsense", 404),
    ("GET", "/../../etc/passwd", 404),
]


@pytest.mark.parametrize("method, path, status", WRONG_TURNS)
async def test_a_wrong_path_or_method_is_a_problem_like_any_other(
    shop: Caller, event: str, method: str, path: str, status: int
) -> None:
    """Unknown paths and wrong methods answer in the same shape; a wrong method says the right ones."""
    response: httpx2.Response = await shop.http.request(method, path.replace("EVENT", event))
    refused(response, status)
    if status == 405:
        assert response.headers["allow"]
