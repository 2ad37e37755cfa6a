"""Following an event, at a server that plays a script; and what else only a service has."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark import Delta, Map
from earmark.client import retry_schedule
from earmark.client.stream_position_and_reconnect import StreamPosition
from earmark.errors import EventUnknown, Unreachable

from .conftest import problem

if TYPE_CHECKING:
    from earmark.client import AsyncClient

    from .conftest import Script

SEAT = {
    "id": "A1", "state": "available", "price": 4500, "row": None, "number": None,
    "section": None, "category": None, "x": None, "y": None, "mine": False,
}  # fmt: skip
SNAPSHOT = ("snapshot", {"version": "a", "seats": [SEAT], "pools": []})
HELD = ("delta", {"seats": [SEAT | {"state": "held"}], "pools": []})
SOLD = ("delta", {"seats": [SEAT | {"state": "booked"}]})
END = ("end", {"reason": "stopping", "retry_seconds": 0})


def streamed(*events: tuple[int, tuple[str, Any]]) -> httpx2.Response:
    """A stream that says this and then is over."""
    told = "".join(f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for number, (kind, data) in events)
    return httpx2.Response(200, text=f": hello\n\n{told}", headers={"Content-Type": "text/event-stream"})


async def follow(earmark: AsyncClient, count: int) -> list[Map | Delta]:
    """The first so many changes."""
    heard: list[Map | Delta] = []
    async with aclosing(earmark.stream("play")) as changes:  # type: ignore[type-var]
        async for change in changes:
            heard.append(change)
            if len(heard) == count:
                break
    return heard


async def test_a_follower_has_the_map_and_then_what_changes(earmark: AsyncClient, script: Script) -> None:
    """Values, not text; unknown events are skipped."""
    script.says(streamed((7, SNAPSHOT), (8, ("gossip", {})), (8, HELD)))
    whole, change = await follow(earmark, 2)
    assert isinstance(whole, Map)
    assert isinstance(change, Delta)
    assert [seat.state for seat in (*whole.seats, *change.seats)] == ["available", "held"]
    assert script.requests[0].url.path == "/v1/events/play/stream"


@pytest.mark.parametrize("cut", ["broken", "ended", "sent away", "busy"])
async def test_a_follower_resumes_where_it_was(earmark: AsyncClient, script: Script, cut: str) -> None:
    """The client sends the last number it received, so nothing is missed and little is sent twice."""
    between: dict[str, list[httpx2.Response | Exception]] = {
        "broken": [streamed((7, SNAPSHOT)), httpx2.ReadError("gone"), httpx2.ConnectError("gone")],
        "ended": [streamed((7, SNAPSHOT))],
        "sent away": [streamed((7, SNAPSHOT), (7, END))],
        "busy": [streamed((7, SNAPSHOT)), problem(503, "overloaded", retry_after="0")],
    }
    script.says(*between[cut], streamed((8, HELD)), streamed((9, SOLD)))
    heard = await follow(earmark, 3)
    assert [seat.state for change in heard for seat in change.seats] == ["available", "held", "booked"]
    asked = [request.headers.get("last-event-id") for request in script.requests]
    assert asked[0] is None
    assert asked[1:] == ["7"] * (len(asked) - 2) + ["8"]


async def test_a_followers_refusal_is_raised(earmark: AsyncClient, script: Script) -> None:
    """A refusal is not retried here either."""
    script.says(problem(404, "event_unknown", event_id="play"))
    with pytest.raises(EventUnknown):
        await follow(earmark, 1)


async def test_a_follower_gives_up_after_a_while(earmark: AsyncClient, script: Script) -> None:
    """Only when nothing is received in between: a connection that breaks once an hour is followed for ever."""
    for number in range(retry_schedule.RETRIES + 3):
        script.says(streamed((number, HELD)))
    script.says(*[httpx2.ConnectError("gone") for _ in range(retry_schedule.RETRIES)])
    with pytest.raises(Unreachable):
        await follow(earmark, 99)
    assert not script.answers


def test_the_retry_time_is_counted_from_the_loss() -> None:
    """A quiet stream is no outage: however long nothing changed, a break is only a break."""
    now = [0.0]
    position = StreamPosition("play", url="http://shop", retries=5, deadline_seconds=30, clock=lambda: now[0])
    position.read_event(SNAPSHOT[0], json.dumps(SNAPSHOT[1]), "7")
    now[0] = 3600.0
    assert position.after_loss(httpx2.ReadError("gone")) >= 0
    now[0] = 3630.0
    with pytest.raises(Unreachable):
        position.after_loss(httpx2.ConnectError("gone"))


async def test_a_key_can_be_looked_up(earmark: AsyncClient, script: Script) -> None:
    """By the caller who chose it."""
    script.says(httpx2.Response(200, json={"key": "k/1", "state": "done", "status": 201, "answer": {"id": "b"}}))
    told = await earmark.idempotency("k/1")
    assert (told.state, told.status, told.answer, told.booking_id) == ("done", 201, {"id": "b"}, None)
    assert script.requests[0].url.raw_path == b"/v1/idempotency/k%2F1"


async def test_a_buyer_can_be_given_a_token(earmark: AsyncClient, script: Script) -> None:
    """For as long as the shop says, or else the server."""
    token = {"token": "et_x", "buyer": "alice", "expires_at": "2030-01-01T00:00:00Z"}
    script.says(httpx2.Response(201, json=token), httpx2.Response(201, json=token))
    assert (await earmark.token("alice", seconds=60)).token == "et_x"
    assert (await earmark.token("alice")).expires_at.year == 2030
    assert [json.loads(request.content) for request in script.requests] == [
        {"buyer": "alice", "seconds": 60},
        {"buyer": "alice"},
    ]
