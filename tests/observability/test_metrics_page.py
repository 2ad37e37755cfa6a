"""What the page of metrics shows: complete, described, and never at the price of a slow database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest
from tests.api.pages import families, value, whole_page
from tests.docs.pages import codes, read, table

from earmark.domain.id_types import Buyer
from earmark.errors import StoreUnavailable
from earmark.observability.metrics import database_gauges, metrics_page
from earmark.observability.metrics.metrics_page import WATCH_SECONDS

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

REFERENCE = "docs/reference/metrics.md"


async def page(client: httpx2.AsyncClient) -> str:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return answer.text


async def hold(shop: httpx2.AsyncClient, *seats: str, key: str | None = None, **more: Any) -> httpx2.Response:
    headers = {"Idempotency-Key": key} if key else {}
    body = {"event_id": "concert", "buyer": "alice", "seats": list(seats), **more}
    return await shop.post("/v1/bookings", json=body, headers=headers)


async def test_every_metric_is_in_the_reference_as_the_page_has_it() -> None:
    """Name, type, labels and meaning; none is missing there, and none is there that no page has."""
    shown = []
    for name, family in families(await whole_page()).items():
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown.append([f"`{name}`", family.type, labels, family.documentation])
    rows = [[name, kind, sorted(codes(labels)), about] for name, kind, labels, about in table(read(REFERENCE))]
    assert rows == shown


async def test_the_names_follow_one_convention() -> None:
    """Ours, in base units, and no label can hold an id."""
    for name, family in families(await whole_page()).items():
        assert name.startswith("earmark_"), name
        assert not name.endswith(("_ms", "_minutes", "_count", "_sum")), name
        assert family.documentation.endswith("."), name
        assert not {label for one in family.samples for label in one.labels} & {"booking", "event", "buyer", "seat"}


@pytest.mark.usefixtures("event")
async def test_calls_are_counted_by_verb_outcome_and_status(shop: httpx2.AsyncClient) -> None:
    """And timed; a conflict is counted as one."""
    await hold(shop, "A1")
    await hold(shop, "A1")
    await hold(shop, pools={"GA": 11})
    await shop.get("/nowhere")
    seen = await page(shop)
    assert value(seen, "earmark_verbs_total", verb="hold", outcome="ok") == 1
    assert value(seen, "earmark_verbs_total", verb="hold", outcome="seats_taken") == 1
    assert value(seen, "earmark_conflicts_total", reason="seats_taken") == 1
    assert value(seen, "earmark_conflicts_total", reason="pool_exhausted") == 1
    assert value(seen, "earmark_verb_seconds_count", verb="hold") == 3
    assert value(seen, "earmark_responses_total", status="404") == 1
    assert value(seen, "earmark_responses_total", status="409") == 2
    assert value(seen, "earmark_requests_in_flight") == 1


@pytest.mark.usefixtures("event")
async def test_what_a_key_did_is_counted(shop: httpx2.AsyncClient) -> None:
    """The hit rate is replays by all that came with a key."""
    await hold(shop, "A1", key="one")
    await hold(shop, "A1", key="one")
    await hold(shop, "A2", key="one")
    await hold(shop, "A3")
    seen = await page(shop)
    counted = {one: value(seen, "earmark_idempotency_total", outcome=one) for one in ("first", "replay", "mismatch")}
    assert counted == {"first": 1, "replay": 1, "mismatch": 1}


@pytest.mark.usefixtures("event")
async def test_batches_are_counted_and_queues_are_shown(shop: httpx2.AsyncClient) -> None:
    """Requests that come together form a batch, and the page shows it."""
    await asyncio.gather(*(hold(shop, seat) for seat in ("A1", "A2", "A3", "B1", "B2", "B3")))
    seen = await page(shop)
    count, total = (
        value(seen, "earmark_batch_size_count", verb="hold"),
        value(seen, "earmark_batch_size_sum", verb="hold"),
    )
    assert count is not None
    assert total == 6
    assert count < 6
    assert value(seen, "earmark_transaction_seconds_count", verb="hold") == count
    assert value(seen, "earmark_queue_waiting", verb="hold") == 0
    assert value(seen, "earmark_batches_in_flight", verb="hold") == 0


@pytest.mark.usefixtures("event")
async def test_expiries_are_counted_by_how_they_came_about(
    shop: httpx2.AsyncClient, services: Services, clock: MovableClock
) -> None:
    """Swept, ended by a buyer who wanted the seat, or ended to make room in a pool."""
    await hold(shop, "A1", ttl_seconds=1)
    clock.advance(2)
    await hold(shop, "A1")
    await hold(shop, pools={"GA": 10}, ttl_seconds=1)
    clock.advance(2)
    await hold(shop, pools={"GA": 10}, ttl_seconds=1)
    clock.advance(2)
    assert len(await services.engine.expire(limit=10)) == 1
    seen = await page(shop)
    counted = {how: value(seen, "earmark_expired_total", how=how) for how in ("met", "made_room", "swept")}
    assert counted == {"met": 1, "made_room": 1, "swept": 1}
    assert value(seen, "earmark_decided_again_total", verb="hold", reason="pool_exhausted") == 1


@pytest.mark.usefixtures("event")
async def test_what_was_not_swept_or_sent_shows_its_age(
    shop: httpx2.AsyncClient, services: Services, clock: MovableClock
) -> None:
    """How late the sweeper and the relay are, by the database."""
    await hold(shop, "A1", ttl_seconds=60)
    clock.advance(90)
    seen = await page(shop)
    assert value(seen, "earmark_holds_due_oldest_seconds") == pytest.approx(30, abs=5)
    assert value(seen, "earmark_outbox_unsent") == 2
    assert value(seen, "earmark_outbox_oldest_seconds") == pytest.approx(90, abs=5)
    await services.engine.expire(limit=10)
    clock.advance(WATCH_SECONDS)
    assert value(await page(shop), "earmark_holds_due_oldest_seconds") == 0


async def test_a_page_does_not_wait_for_a_slow_database(
    shop: httpx2.AsyncClient, services: Services, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the figures are missing, and shows them once they are there."""
    answers = asyncio.Event()
    real = services.engine.store.watch_money

    async def slow(**asked: Any) -> Any:
        await answers.wait()
        return await real(**asked)

    monkeypatch.setattr(database_gauges, "PAGE_WAIT_SECONDS_MAX", 0.01)
    monkeypatch.setattr(services.engine.store, "watch_money", slow)
    for _ in range(2):
        seen = await page(shop)
        assert value(seen, "earmark_store_up") == 0
        assert value(seen, "earmark_outbox_unsent") is None
        clock.advance(WATCH_SECONDS)
    answers.set()
    while value(seen, "earmark_store_up") == 0:
        await asyncio.sleep(0)
        seen = await page(shop)
    assert value(seen, "earmark_outbox_unsent") == 0


async def test_a_page_survives_whatever_a_reading_raises(
    shop: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in one figure does not blind the operator to the others."""

    async def broken(**_: Any) -> None:
        raise KeyError("row")

    monkeypatch.setattr(services.engine.store, "watch_money", broken)
    seen = await page(shop)
    assert value(seen, "earmark_store_up") == 0
    assert value(seen, "earmark_stream_readers") == 0


class Agent:
    """Acts as the test sets it."""

    name = "sweeper"

    def __init__(self, *rounds: Exception | float) -> None:
        self._rounds = list(rounds)

    async def act(self) -> float:
        """The next round."""
        done = self._rounds.pop(0)
        if isinstance(done, Exception):
            raise done
        return done


async def test_a_workers_rounds_are_counted_and_a_failed_one_is_not_a_success(
    shop: httpx2.AsyncClient, services: Services
) -> None:
    """A worker that only fails does not look alive."""
    outage = StoreUnavailable(because="gone")
    (worker,) = services.metrics.recorder.watching([Agent(outage, 0.5)])
    with pytest.raises(StoreUnavailable):
        await worker.act()
    seen = await page(shop)
    assert value(seen, "earmark_worker_rounds_total", worker="sweeper", outcome="unavailable") == 1
    assert value(seen, "earmark_worker_last_round_timestamp_seconds", worker="sweeper") is None
    assert await worker.act() == 0.5
    seen = await page(shop)
    assert value(seen, "earmark_worker_rounds_total", worker="sweeper", outcome="ok") == 1
    assert value(seen, "earmark_worker_last_round_timestamp_seconds", worker="sweeper") is not None


async def test_followers_of_an_event_are_counted_by_the_process_that_serves_them(
    shop: httpx2.AsyncClient, services: Services
) -> None:
    """The page reads the figure when it is made."""
    readers = [Buyer("alice"), Buyer("bob")]
    services.metrics.watch_stream(lambda: len(readers))
    assert value(await page(shop), "earmark_stream_readers") == 2
    readers.clear()
    assert value(await page(shop), "earmark_stream_readers") == 0


@pytest.mark.parametrize("seconds, worded", [(1.0, 2), (0.0, 20)], ids=["shared", "control"])
async def test_pages_of_one_second_are_one(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch, seconds: float, worded: int
) -> None:
    """The page needs no key, and to render it blocks the event loop."""
    pages: list[bytes] = []

    def generate(registry: Any) -> bytes:
        pages.append(generate_latest(registry))
        return pages[-1]

    monkeypatch.setattr(metrics_page, "generate_latest", generate)
    now = 100.0
    shared = metrics_page.Metrics(version="test", page_seconds=seconds, timer=lambda: now)
    gone = asyncio.create_task(shared.page(now=clock.now()))
    await asyncio.sleep(0)
    gone.cancel()
    seen = await asyncio.gather(*(shared.page(now=clock.now()) for _ in range(19)))
    assert set(seen) <= set(pages)
    now += 1.0
    await shared.page(now=clock.now())
    assert len(pages) == worded
