"""Locks over HTTP, on a real Redis."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest

from earmark.api.app import create_app
from earmark.locks import Locks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services

SEAT = "event:{opera}:seat:A1"


@pytest.fixture
async def locks(redis_url: str) -> AsyncIterator[Locks]:
    """A worker's own locks."""
    async with Locks.from_url(redis_url, holder="worker-7") as opened:
        yield opened


@pytest.fixture
async def operator(services: Services, redis_url: str, shop: httpx2.AsyncClient) -> AsyncIterator[httpx2.AsyncClient]:
    """The admin of a shop with a Redis."""
    async with Locks.from_url(redis_url) as opened:
        app = create_app(msgspec.structs.replace(services, locks=opened))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=shop.headers) as client:
            yield client


async def test_an_operator_sees_the_holder_of_a_lock_and_may_break_it(
    operator: httpx2.AsyncClient, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock is listed with its holder, is gone once it was broken, and the log has the operator."""
    async with locks.lock(SEAT, ttl=60, raise_if_lost=False) as held:
        [listed] = (await operator.get("/v1/locks", params={"match": "event:*"})).json()["locks"]
        assert (listed["key"], listed["holder"], listed["fence"]) == (SEAT, "worker-7", held.fence)
        assert 0 < listed["ttl_seconds"] <= 60
        assert (await operator.get("/v1/locks", params={"match": "order:*"})).json() == {"locks": []}
        with caplog.at_level(logging.WARNING, logger="earmark"):
            broken = await operator.delete(f"/v1/locks/{quote(SEAT, safe='')}")
        assert (broken.status_code, broken.json()["holder"]) == (200, "worker-7")
        [line] = [one.getMessage() for one in caplog.records if one.getMessage().startswith("break_lock")]
        assert "holder=worker-7" in line
        assert "actor=key:" in line
        assert (await operator.get("/v1/locks")).json() == {"locks": []}
        replayed_response = await operator.delete(f"/v1/locks/{quote(SEAT, safe='')}")
        assert (replayed_response.status_code, replayed_response.json()["code"], replayed_response.json()["key"]) == (
            404,
            "lock_unknown",
            SEAT,
        )


async def test_without_a_redis_there_is_nothing_to_see_or_break(shop: httpx2.AsyncClient) -> None:
    """An empty list, and nothing of that name."""
    assert (await shop.get("/v1/locks")).json() == {"locks": []}
    gone = await shop.delete("/v1/locks/order:7")
    assert (gone.status_code, gone.json()["code"]) == (404, "lock_unknown")


async def test_a_redis_that_is_gone_is_an_outage_and_not_an_empty_list(
    services: Services, shop: httpx2.AsyncClient
) -> None:
    """An operator must not take a missing answer for health."""
    async with Locks.from_url("redis://127.0.0.1:1") as gone:
        app = create_app(msgspec.structs.replace(services, locks=gone))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=shop.headers) as client:
            answers: list[Any] = [await client.get("/v1/locks"), await client.delete("/v1/locks/order:7")]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "unavailable")] * 2
