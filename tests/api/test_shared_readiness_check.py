"""`/readyz` needs no key: for any number of probes the store is queried once a second; a stopping server says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.api.shared_readiness_check import Readiness
from earmark.errors import StoreUnavailable

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services


class ReadyStore:
    """The store's queries, and its answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.down: Exception | None = None
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self) -> None:
        """Ready or not, in its own time."""
        self.asked += 1
        self.begun.set()
        await self.may_answer.wait()
        if self.down is not None:
            raise self.down


class Time:
    """Of the probes, which a test pushes."""

    now = 1000.0

    def __call__(self) -> float:
        """As `time.monotonic` says it."""
        return self.now


@pytest.fixture
def now(services: Services) -> Time:
    """The services use this clock."""
    services.readiness._clock = moment = Time()
    return moment


@pytest.fixture
def store(services: Services, monkeypatch: pytest.MonkeyPatch) -> ReadyStore:
    """The store, as far as readiness goes."""
    store = ReadyStore()
    monkeypatch.setattr(services.engine.store, "check_ready", store.answer)
    return store


async def probe(client: httpx2.AsyncClient) -> int:
    return (await client.get("/readyz")).status_code


async def refusal(client: httpx2.AsyncClient) -> tuple[int, str]:
    """The status, and the code: a query without an answer has another code."""
    told = await client.get("/readyz")
    return told.status_code, told.json()["code"]


async def test_many_probes_query_the_store_once(stranger: httpx2.AsyncClient, store: ReadyStore, now: Time) -> None:
    """Probes that come together wait for one query, and those within a second get its answer."""
    store.may_answer.clear()
    crowd = [asyncio.ensure_future(probe(stranger)) for _ in range(50)]
    await store.begun.wait()
    store.may_answer.set()
    assert set(await asyncio.gather(*crowd)) == {200}
    now.now += 0.9
    assert await probe(stranger) == 200
    assert store.asked == 1
    now.now += 0.1
    assert await probe(stranger) == 200
    assert store.asked == 2


async def test_control_probes_that_share_no_answer_query_the_store_each(
    stranger: httpx2.AsyncClient, store: ReadyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with several statements, on the connections of readers."""
    monkeypatch.setattr(Readiness, "_shared", lambda _: None)
    assert set(await asyncio.gather(*(probe(stranger) for _ in range(50)))) == {200}
    assert store.asked == 50


async def test_an_outage_of_the_store_is_seen_a_second_later(
    stranger: httpx2.AsyncClient, store: ReadyStore, now: Time
) -> None:
    """A no is shared as a yes is, and for no longer."""
    assert await probe(stranger) == 200
    store.down = StoreUnavailable(because="the cable was cut")
    now.now += 1.0
    assert {await probe(stranger) for _ in range(5)} == {503}
    assert store.asked == 2
    store.down = None
    now.now += 1.0
    assert await probe(stranger) == 200


@pytest.mark.usefixtures("now")
async def test_a_server_that_stops_gives_no_answer_of_a_moment_ago(
    services: Services, stranger: httpx2.AsyncClient, store: ReadyStore
) -> None:
    """Though the store has just answered, and probes share that answer."""
    assert await probe(stranger) == 200
    assert await probe(stranger) == 200
    services.in_flight.begin_shutdown()
    assert await refusal(stranger) == (503, "stopping")
    assert store.asked == 1


async def test_a_server_that_stops_reports_it_at_once(
    services: Services, stranger: httpx2.AsyncClient, store: ReadyStore, now: Time
) -> None:
    """A query that is under way is not waited for, and its answer is not used."""
    assert await probe(stranger) == 200
    now.now += 1.0
    store.begun.clear()
    store.may_answer.clear()
    waiting = asyncio.ensure_future(refusal(stranger))
    await store.begun.wait()
    services.in_flight.begin_shutdown()
    assert await refusal(stranger) == (503, "stopping")
    store.may_answer.set()
    assert await waiting == (503, "stopping")


async def test_a_query_that_hangs_does_not_delay_all_probes(
    stranger: httpx2.AsyncClient, store: ReadyStore, now: Time
) -> None:
    """It may hang on a broken connection; once the store answers others, the server is ready."""
    store.may_answer.clear()
    hanging = asyncio.ensure_future(probe(stranger))
    await store.begun.wait()
    store.may_answer = asyncio.Event()
    store.may_answer.set()
    now.now += 3.0
    assert await asyncio.wait_for(probe(stranger), timeout=10) == 200
    hanging.cancel()


async def test_a_probe_that_disconnects_leaves_the_query_to_the_others(store: ReadyStore) -> None:
    """Also the one that came first."""
    readiness = Readiness()
    store.may_answer.clear()
    first, second = (asyncio.ensure_future(readiness.check(store.answer)) for _ in range(2))
    await store.begun.wait()
    first.cancel()
    await asyncio.wait([first])
    store.may_answer.set()
    await asyncio.wait_for(second, timeout=10)
    assert store.asked == 1


async def test_closing_leaves_no_query_under_way(store: ReadyStore) -> None:
    """Not even one that hangs."""
    readiness = Readiness()
    store.may_answer.clear()
    waiting: asyncio.Future[Any] = asyncio.ensure_future(readiness.check(store.answer))
    await store.begun.wait()
    await asyncio.wait_for(readiness.close(), timeout=10)
    await asyncio.wait([waiting])
    assert not readiness._under_way
