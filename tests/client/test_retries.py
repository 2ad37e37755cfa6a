"""When the client retries a call, and when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest

from earmark.client import AsyncClient, Client, http_messages, retry_schedule
from earmark.errors import (
    IdempotencyInProgress,
    Overloaded,
    Refusal,
    SeatsTaken,
    SetupError,
    Unreachable,
)
from earmark.schemas.errors_to_json_and_back import OtherOutage

from .conftest import booked, problem

if TYPE_CHECKING:
    from .conftest import Answer, Script

LOST = httpx2.ReadError("the line is dead")


@pytest.mark.parametrize(
    "trouble",
    [
        httpx2.ConnectError("connection refused"),
        LOST,
        httpx2.ReadTimeout("no answer"),
        problem(503, "overloaded"),
        problem(503, "outcome_unknown"),
        problem(409, "idempotency_in_progress"),
        problem(429, "rate_limited"),
        httpx2.Response(502, text="<html>Bad Gateway</html>"),
    ],
    ids=["connect", "lost", "silent", "overloaded", "unknown", "in progress", "limited", "proxy"],
)
async def test_a_transient_failure_is_retried_with_the_same_key_and_the_same_body(
    earmark: AsyncClient, script: Script, trouble: Answer
) -> None:
    """However often it is sent, it is one request: so it has one effect."""
    script.says(trouble, trouble, booked())
    booking = await earmark.hold("play", buyer="alice", seats=["A1"])
    assert booking.state == "held"
    assert len(script.requests) == 3
    assert len(set(script.keys)) == 1
    assert script.keys[0]
    assert len({request.content for request in script.requests}) == 1


async def test_every_call_has_a_key_of_its_own_unless_one_is_given(earmark: AsyncClient, script: Script) -> None:
    """Two holds are two requests; a program that was killed repeats its first request with that request's key."""
    script.says(booked(), booked(), booked(), booked())
    for key in (None, None, "basket-7", "basket-7"):
        await earmark.hold("play", buyer="alice", seats=["A1"], key=key)
    first, second, *own = script.keys
    assert first != second
    assert own == ["basket-7", "basket-7"]


async def test_a_refusal_is_not_retried(earmark: AsyncClient, script: Script) -> None:
    """A retry would change nothing, and would only cost."""
    script.says(problem(409, "seats_taken", seats=["A1"]))
    with pytest.raises(SeatsTaken) as refused:
        await earmark.hold("play", buyer="alice", seats=["A1"])
    assert refused.value.seats == ["A1"]
    assert len(script.requests) == 1


async def test_retries_have_an_end(earmark: AsyncClient, script: Script) -> None:
    """The caller gets the last attempt's error; or, where there was no answer, the key to retry with."""
    script.says(*[problem(503, "overloaded") for _ in range(retry_schedule.RETRIES + 1)])
    with pytest.raises(Overloaded):
        await earmark.hold("play", buyer="alice", seats=["A1"])
    script.says(*[problem(409, "idempotency_in_progress") for _ in range(retry_schedule.RETRIES + 1)])
    with pytest.raises(IdempotencyInProgress):
        await earmark.release("b")
    script.says(*[LOST for _ in range(retry_schedule.RETRIES + 1)])
    with pytest.raises(Unreachable) as silent:
        await earmark.extend("b", seconds=60)
    assert silent.value.key == script.keys[-1]
    assert not script.answers


async def test_a_read_is_retried_without_a_key(earmark: AsyncClient, script: Script) -> None:
    """To read twice does no harm."""
    script.says(LOST, httpx2.Response(200, json={"entries": []}))
    assert await earmark.history("b") == []
    assert script.keys == [None, None]


def test_without_a_key_nothing_that_changes_is_sent_twice() -> None:
    """The guard itself: a request that has none is given up after its first loss."""
    bare = http_messages.ApiRequest(method="POST", path="/v1/bookings", content=b"{}")
    with pytest.raises(Unreachable):
        retry_schedule.RetrySchedule(bare, url="http://shop", retries=5, deadline_seconds=30).after_loss(LOST)
    keyed = http_messages.post("bookings", body={}, key=None)
    assert retry_schedule.RetrySchedule(keyed, url="http://shop", retries=5, deadline_seconds=30).after_loss(LOST) >= 0


def patience(*, now: list[float], retries: int = 99, deadline_seconds: float = 30.0) -> retry_schedule.RetrySchedule:
    """With a clock to push, and chance at its worst."""
    return retry_schedule.RetrySchedule(
        http_messages.post("bookings", body={}, key="k"),
        url="http://shop",
        retries=retries,
        deadline_seconds=deadline_seconds,
        clock=lambda: now[0],
        chance=lambda _, most: most,
    )


def test_pauses_double_up_to_a_bound() -> None:
    """A server in trouble is not flooded; and random pauses spread the waiting clients over the whole pause."""
    calm = patience(now=[0.0])
    pauses = [calm.after_loss(LOST) for _ in range(8)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == retry_schedule.PAUSE_SECONDS_MAX


def test_the_server_says_how_long_to_wait() -> None:
    """Retry-After is the least; a date, or nonsense, is none."""
    headers = {"retry-after": "7"}
    assert patience(now=[0.0]).after(503, headers, b"") == 7.1
    assert patience(now=[0.0]).after(429, {"retry-after": "Wed, 21 Oct 2030 07:28:00 GMT"}, b"") == 0.1
    assert patience(now=[0.0]).after(429, {"retry-after": "-5"}, b"") == 0.1


def test_no_client_waits_past_the_deadline() -> None:
    """A pause that would end after it is not begun, and no attempt is given more time than is left."""
    now = [0.0]
    calm = patience(now=now)
    assert calm.after(503, {"retry-after": "60"}, b"") is None
    assert calm.seconds(10.0) == 10.0
    now[0] = 25.0
    assert calm.seconds(10.0) == 5.0
    now[0] = 30.0
    with pytest.raises(Unreachable):
        calm.after_loss(LOST)


def test_an_invalid_address_is_refused_at_once() -> None:
    """Not after half a minute of trying."""
    with pytest.raises(SetupError, match=r"shop\.example"):
        Client("shop.example")


async def test_an_answer_that_cannot_be_read_is_no_success(earmark: AsyncClient, script: Script) -> None:
    """Another service answers at this address, or a version that is too different."""
    script.says(httpx2.Response(200, text="hello"), httpx2.Response(404, text="no such page"))
    for _ in range(2):
        with pytest.raises((Refusal, OtherOutage)) as odd:
            await earmark.booking("b")
        assert odd.value.code in {"answer_unknown", "http_404"}
