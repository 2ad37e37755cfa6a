"""The API under load: which requests are refused, how, and what it costs the others. And clients that send slowly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.api.limit_rejections_per_second import RejectionThrottle
from earmark.api.middleware.read_and_decode_body import BodyTimeout
from earmark.engine.group_commit import BatchQueue

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services

FEW = 3


async def test_a_request_that_would_wait_too_long_gets_retry_after(
    shop: httpx2.AsyncClient, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with `Retry-After`, before the request is read: not even a senseless one is looked at."""
    monkeypatch.setattr(BatchQueue, "is_full", True)
    answer = await shop.post("/v1/bookings", content=b"senseless")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["code"] == "overloaded"
    assert answer.json()["transient"] is True
    assert (await shop.get(f"/v1/events/{event}/seats")).status_code == 200, "a read is not queued"
    assert b'earmark_verbs_total{outcome="overloaded",verb="hold"} 1.0' in (await shop.get("/metrics")).content
    monkeypatch.undo()
    body = {"event_id": event, "buyer": "ann", "seats": ["A1"]}
    assert (await shop.post("/v1/bookings", json=body)).status_code == 201


async def test_every_verb_of_the_engine_has_a_queue_that_the_endpoint_can_check(services: Services) -> None:
    """A verb whose queue has another name than its call would never be found full."""
    assert set(services.engine.queues) == {"hold", "change", "extend", "confirm", "release", "cancel"}


async def test_few_rejections_are_answered_at_once_and_many_in_turn() -> None:
    """A burst passes; after it, rejections are answered in order, and none is forgotten."""
    turnstile, passed = RejectionThrottle(per_second=1000, burst=FEW), []

    async def go(number: int) -> None:
        await turnstile.turn()
        passed.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(10)]
    await asyncio.sleep(0)
    assert passed[:FEW] == [0, 1, 2]
    await asyncio.gather(*tasks)
    assert passed == list(range(10))


async def test_a_client_that_leaves_the_rejection_queue_takes_no_others_turn() -> None:
    """A connection that breaks while it waits for its no costs the next one nothing."""
    turnstile = RejectionThrottle(per_second=10, burst=1)
    await turnstile.turn()
    leaver, stayer = asyncio.create_task(turnstile.turn()), asyncio.create_task(turnstile.turn())
    await asyncio.sleep(0)
    leaver.cancel()
    await stayer
    assert leaver.cancelled()


async def test_a_timeout_ends_a_slow_client_and_no_other() -> None:
    """One timer for all: a client that sent in time is not affected, a slow one is given up."""
    patience, never = BodyTimeout(0.05), asyncio.get_running_loop().create_future()
    soon = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(patience.wait(soon))
    late = asyncio.create_task(patience.wait(never))
    await asyncio.sleep(0)
    soon.set_result("here")
    assert await waiting == "here"
    with pytest.raises(TimeoutError):
        await late
    assert not late.cancelled()


async def test_a_timeout_does_not_swallow_a_cancellation() -> None:
    """A request that is cancelled for another reason gets no error about being slow."""
    patience = BodyTimeout(60)
    waiting = asyncio.create_task(patience.wait(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
