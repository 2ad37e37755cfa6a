"""Whether Redis answers is measured when a page is made, and not kept from the last hold."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from tests.conftest import unavailable
from tests.observability.promql import read

from earmark.admission import open_admission
from earmark.clock import MovableClock
from earmark.engine.engine import Engine
from earmark.locks import Locks
from earmark.observability.metrics.metrics_page import Metrics
from earmark.store.sqlite.memory import MemoryStore
from earmark.testservers import ServerUnavailable, start_valkey
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.testservers import Valkey

FACT_SECONDS_MAX = 30.0


@pytest.fixture
def servers() -> Iterator[list[Valkey]]:
    """Two that a test may kill."""
    with ExitStack() as stack:
        try:
            yield [stack.enter_context(start_valkey()) for _ in range(2)]
        except ServerUnavailable as reason:
            unavailable(reason)


async def shown(metrics: Metrics, series: str, wanted: list[float]) -> None:
    """Wait until a page shows these values. No hold is made meanwhile."""
    async with asyncio.timeout(FACT_SECONDS_MAX):
        while True:
            page = read((await metrics.page(now=datetime.now(UTC))).decode())
            samples = page.get(series, {})
            if [value for _, value in sorted(samples.items(), key=lambda one: sorted(one[0]))] == wanted:
                return
            await asyncio.sleep(0.02)


async def test_a_killed_redis_is_down_without_a_single_hold_and_up_when_it_is_started_again(
    servers: list[Valkey],
) -> None:
    """Each address has its own sample; the other server goes on being up."""
    servers.sort(key=lambda server: server.url)
    dying, _ = servers
    admission = open_admission([server.url for server in servers])
    metrics = Metrics(version="test")
    metrics.watch(Engine(MemoryStore(clock=MovableClock()), ids=Uuid7Ids(), admission=admission), gateways=[])
    await shown(metrics, "earmark_redis_up", [1.0, 1.0])
    dying.kill()
    await shown(metrics, "earmark_redis_up", [0.0, 1.0])
    dying.start()
    await shown(metrics, "earmark_redis_up", [1.0, 1.0])
    await admission.close()


async def test_the_server_of_the_locks_is_measured_too(servers: list[Valkey]) -> None:
    """A server takes no locks itself, so nothing else would show it."""
    dying, _ = servers
    async with Locks.from_url(dying.url) as locks:
        metrics = Metrics(version="test")
        metrics.watch_locks(locks)
        await shown(metrics, "earmark_lock_server_up", [1.0])
        dying.kill()
        await shown(metrics, "earmark_lock_server_up", [0.0])
        dying.start()
        await shown(metrics, "earmark_lock_server_up", [1.0])


async def test_an_address_on_the_page_has_no_password() -> None:
    """Pages of metrics need no key."""
    admission = open_admission("redis://user:hunter22@127.0.0.1:1/3")
    assert await admission.answering(within=0.5) == {"127.0.0.1:1/3": False}
    await admission.close()
