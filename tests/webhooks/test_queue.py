"""The queue of deliveries, over each store: nothing is lost, nothing is there twice, and no worker takes another's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.webhooks.conftest import PLAY, again, hold, log, now_of, relay, subscribe

from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import DeliveryState
from earmark.engine.engine import Engine
from earmark.engine.ports.number_and_read_journal import START
from earmark.engine.ports.webhook_storage import DeliveryResult, WebhookHealth
from earmark.library import Earmark
from earmark.store import load_named_sql
from earmark.uuids import new_delivery_id, new_webhook_id

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.webhook import Delivery, Webhook
    from earmark.engine.ports.store import Store
    from earmark.engine.ports.webhook_storage import DeliveryLease
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

URL = "https://shop.example/hook"
LEASE_SECONDS = 60.0


async def claim(store: Store, **asked: Any) -> list[DeliveryLease]:
    usual: dict[str, Any] = {"busy": (), "webhooks": 10, "each": 10, "failing": False, "lease_seconds": LEASE_SECONDS}
    return await store.webhooks.claim(**usual | asked)


def outcome(delivery: Delivery, state: DeliveryState, **fields: Any) -> DeliveryResult:
    usual: dict[str, Any] = {
        "delivery_id": delivery.id,
        "attempt": delivery.attempts,
        "due_at": delivery.due_at,
        "took_ms": 3,
    }
    return DeliveryResult(state=state, **usual | fields)


async def test_what_is_numbered_is_queued_once_for_each_webhook_that_wants_it(shop: Earmark, store: Store) -> None:
    """In the order of the entries; what was numbered before a webhook was made is not for it."""
    everything = await subscribe(store, URL)
    sales = await subscribe(store, URL, types=("booking.confirmed",))
    held = await hold(shop)
    await shop.confirm(held.id, payment_id="till-1")
    await relay(store)
    await relay(store)
    assert [one.type for one in await log(store, everything)] == ["booking.held", "booking.confirmed"]
    assert [one.type for one in await log(store, sales)] == ["booking.confirmed"]
    later = await subscribe(store, URL)
    await shop.cancel(held.id)
    await relay(store)
    assert [one.type for one in await log(store, later)] == ["booking.cancelled"]


async def test_test_events_are_for_test_webhooks_and_one_event_s_for_its_own(
    shop: Earmark, store: Store, ids: Uuid7Ids
) -> None:
    """No webhook gets what it did not subscribe to."""
    rehearsal = Earmark(Engine(store, ids=ids), mode=Mode.TEST)
    live, test = await subscribe(store, URL), await subscribe(store, URL, mode=Mode.TEST)
    play, other = [await subscribe(store, URL, event_id=EventId(event)) for event in ("play", "another")]
    off = await subscribe(store, URL)
    assert await store.webhooks.save(_next(off, disabled_at=await now_of(store), disabled_because="by hand"))
    await rehearsal.create_event("rehearsal", name="A rehearsal", currency="EUR", pools={"GA": (10, 100)})
    await hold(shop)
    await relay(store)
    received = {one.id: [each.type for each in await log(store, one)] for one in (live, test, play, other, off)}
    assert received == {
        live.id: ["booking.held"],
        test.id: ["event.created"],
        play.id: ["booking.held"],
        other.id: [],
        off.id: [],
    }


def _next(webhook: Webhook, **fields: Any) -> Webhook:
    import msgspec

    return msgspec.structs.replace(webhook, version=webhook.version + 1, **fields)


async def test_a_number_and_its_deliveries_are_kept_together_or_not_at_all(
    store: Store, shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that is killed between the two has done neither."""
    webhook = await subscribe(store, URL)
    await hold(shop)

    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("earmark.store.both_databases.webhooks_and_deliveries.deliveries_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            await store.outbox.number(after=START, limit=10)
    assert await log(store, webhook) == []
    assert [one.sequence for one in await store.outbox.read_numbered(PLAY, after=1, limit=10)] == []
    await relay(store)
    assert [one.type for one in await log(store, webhook)] == ["booking.held"]


async def test_a_claim_is_alone_until_its_lease_is_over(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """No other worker is given the same, and an unanswered delivery is given out again, under the same id."""
    webhook = await subscribe(store, URL)
    for number in range(1, 4):
        await hold(shop, number)
    await relay(store)
    (errand,) = await claim(store, each=2)
    assert (errand.webhook.id, len(errand.deliveries)) == (webhook.id, 2)
    assert [one.attempts for one in errand.deliveries] == [1, 1]
    (rest,) = await claim(store)
    assert len(rest.deliveries) == 1
    assert await claim(store) == []
    clock.advance(LEASE_SECONDS + 1)
    assert await claim(store, busy=[webhook.id]) == []
    (once_more,) = await claim(store)
    assert [one.id for one in once_more.deliveries] == [one.id for one in (*errand.deliveries, *rest.deliveries)]
    assert [one.body for one in once_more.deliveries] == [one.body for one in (*errand.deliveries, *rest.deliveries)]
    assert [one.attempts for one in once_more.deliveries] == [2, 2, 2]


async def test_each_webhook_is_given_its_share(shop: Earmark, store: Store) -> None:
    """However much waits for the one, the other is served too, the longest due first."""
    first = await subscribe(store, URL)
    for number in range(1, 6):
        await hold(shop, number)
    await relay(store)
    second = await subscribe(store, URL)
    await hold(shop, 6)
    await relay(store)
    errands = await claim(store, each=2)
    assert {one.webhook.id: len(one.deliveries) for one in errands} == {first.id: 2, second.id: 1}
    (only,) = await claim(store, webhooks=1)
    assert only.webhook.id == first.id


async def test_outcomes_are_kept_and_old_ones_are_not(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """A failure of an attempt that was given to another meanwhile says nothing; a success always does."""
    webhook = await subscribe(store, URL)
    for number in range(1, 4):
        await hold(shop, number)
    await relay(store)
    (stale,) = await claim(store)
    clock.advance(LEASE_SECONDS + 1)
    (fresh,) = await claim(store)
    a, b, c = stale.deliveries
    late = [
        outcome(a, DeliveryState.DELIVERED, status=204),
        outcome(b, DeliveryState.FAILED, status=500, error="late"),
        outcome(c, DeliveryState.PENDING, sent=False),
    ]
    assert not await store.webhooks.record(webhook.id, late, None)
    states = [(one.state, one.attempts, one.status, one.error) for one in await log(store, webhook)]
    pending = (DeliveryState.PENDING, 2, None, None)
    assert states == [(DeliveryState.DELIVERED, 2, 204, None), pending, pending]
    _, b, c = fresh.deliveries
    due = fresh.now + timedelta(seconds=5)
    outcomes = [
        outcome(b, DeliveryState.PENDING, status=500, error="HTTP 500", due_at=due),
        outcome(c, DeliveryState.PENDING, sent=False, due_at=fresh.now),
    ]
    await store.webhooks.record(webhook.id, outcomes, None)
    _, b, c = await log(store, webhook)
    assert (b.attempts, b.status, b.error, b.took_ms, b.due_at) == (2, 500, "HTTP 500", 3, due)
    assert (c.attempts, c.due_at, c.first_at) == (1, fresh.now, stale.now)


async def test_a_webhook_that_fails_waits_and_is_claimed_apart(
    shop: Earmark, store: Store, clock: MovableClock
) -> None:
    """It pauses, it is disabled only if nothing succeeded since, and a success makes it like any other."""
    webhook = await subscribe(store, URL)
    await hold(shop)
    await relay(store)
    (errand,) = await claim(store)
    (delivery,) = errand.deliveries
    failed = WebhookHealth(ok=False, failed_at=errand.now, resting_until=errand.now + timedelta(seconds=300))
    await store.webhooks.record(webhook.id, [outcome(delivery, DeliveryState.PENDING, error="no")], failed)
    assert (await again(store, webhook)).failing_since == errand.now
    clock.advance(LEASE_SECONDS + 1)
    assert await claim(store) == await claim(store, failing=True) == []
    clock.advance(300)
    (probe,) = await claim(store, failing=True)
    earlier = errand.now - timedelta(seconds=1)
    ends = WebhookHealth(ok=False, failed_at=probe.now, disabled_because="no answer", unless_well_since=earlier)
    assert not await store.webhooks.record(webhook.id, [outcome(probe.deliveries[0], DeliveryState.PENDING)], ends)
    known = await again(store, webhook)
    assert (known.disabled_at, known.failing_since) == (None, errand.now), "it has failed since, not since before"
    well = WebhookHealth(ok=True, failed_at=probe.now)
    await store.webhooks.record(webhook.id, [outcome(probe.deliveries[0], DeliveryState.DELIVERED)], well)
    known = await again(store, webhook)
    assert (known.failing_since, known.resting_until) == (None, None)
    gone = WebhookHealth(ok=False, failed_at=probe.now, disabled_because="no answer", unless_well_since=probe.now)
    assert await store.webhooks.record(webhook.id, [outcome(probe.deliveries[0], DeliveryState.PENDING)], gone)
    assert (await again(store, webhook)).disabled_because == "no answer"


async def test_a_log_is_read_in_pages_and_pruned_in_bounds(shop: Earmark, store: Store, clock: MovableClock) -> None:
    """Newest first; only what has ended long ago goes, a few at a time."""
    webhook = await subscribe(store, URL)
    for number in range(1, 7):
        await hold(shop, number)
    await relay(store)
    (errand,) = await claim(store, each=4)
    ended = [outcome(one, DeliveryState.DELIVERED) for one in errand.deliveries[:3]]
    ended += [outcome(errand.deliveries[3], DeliveryState.FAILED, error="no")]
    await store.webhooks.record(webhook.id, ended, None)
    known = await log(store, webhook)
    page = await store.webhooks.log(webhook.id, state=None, before=known[4].number, limit=2)
    assert [one.number for one in page] == [known[3].number, known[2].number]
    assert [one.error for one in await log(store, webhook, DeliveryState.FAILED)] == ["no"]
    now = await now_of(store)
    assert await store.webhooks.prune(before=now - timedelta(seconds=60), limit=100) == 0
    clock.advance(120)
    moment = now + timedelta(seconds=60)
    pruned = [await store.webhooks.prune(before=moment, limit=3) for _ in range(3)]
    assert pruned == [3, 1, 0]
    assert [one.state for one in await log(store, webhook)] == [DeliveryState.PENDING] * 2


async def test_a_replay_is_the_same_message_as_if_for_the_first_time(shop: Earmark, store: Store) -> None:
    """Only of the webhook it belongs to."""
    webhook, other = await subscribe(store, URL), await subscribe(store, URL, types=("booking.failed",))
    await hold(shop)
    await relay(store)
    (errand,) = await claim(store)
    (delivery,) = errand.deliveries
    await store.webhooks.record(webhook.id, [outcome(delivery, DeliveryState.FAILED, error="no")], None)
    assert await store.webhooks.replay(other.id, delivery.id) is None
    assert await store.webhooks.replay(webhook.id, new_delivery_id()) is None
    replayed = await store.webhooks.replay(webhook.id, delivery.id)
    assert replayed is not None
    assert (replayed.id, replayed.body, replayed.attempts, replayed.first_at) == (delivery.id, delivery.body, 0, None)
    (once_more,) = await claim(store)
    assert [one.id for one in once_more.deliveries] == [delivery.id]


async def test_a_webhook_is_saved_as_it_was_read_and_removed_with_its_deliveries(shop: Earmark, store: Store) -> None:
    """Two concurrent changes do not undo each other, and there are only so many."""
    webhook = await subscribe(store, URL, types=("booking.held",), description="a till")
    assert await again(store, webhook) == webhook
    assert await store.webhooks.save(_next(webhook, url="https://shop.example/new"))
    assert not await store.webhooks.save(_next(webhook, url="https://shop.example/other"))
    assert (await again(store, webhook)).url == "https://shop.example/new"
    second = await subscribe(store, URL)
    assert not await store.webhooks.make(_next(webhook, id=new_webhook_id()), limit=2)
    assert [one.id for one in await store.webhooks.page(mode=Mode.LIVE, after=None, limit=1)] == [webhook.id]
    assert [one.id for one in await store.webhooks.page(mode=Mode.LIVE, after=webhook.id, limit=9)] == [second.id]
    assert await store.webhooks.page(mode=Mode.TEST, after=None, limit=9) == []
    await hold(shop)
    await relay(store)
    assert await store.webhooks.remove(webhook.id)
    assert not await store.webhooks.remove(webhook.id)
    assert (await store.webhooks.read(webhook.id), await log(store, webhook)) == (None, [])
    assert len(await log(store, second)) == 1


async def test_the_schema_queues_an_entry_once(postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids) -> None:
    """Even hand-written SQL cannot queue it twice."""
    from tests.webhooks.conftest import open_play

    shop = await open_play(postgres_store, ids)
    await subscribe(postgres_store, URL)
    await hold(shop)
    await relay(postgres_store)
    connection = await asyncpg.connect(postgres_url)
    twice = (
        "INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at) "
        "SELECT gen_random_uuid(), webhook_id, entry_id, type, body, created_at, due_at FROM deliveries"
    )
    with pytest.raises(asyncpg.UniqueViolationError, match="entry_is_queued_once"):
        await connection.execute(twice)
    await connection.close()


async def test_a_webhook_that_is_being_queued_for_is_not_removed_meanwhile(
    postgres_store: PostgresStore, postgres_url: str, ids: Uuid7Ids
) -> None:
    """A relay that has seen it can write its deliveries; the control, without the lock, cannot write any."""
    from tests.webhooks.conftest import open_play

    await open_play(postgres_store, ids)
    guarded = load_named_sql.sql("postgres", "webhooks.sql")["find_wanted"]
    relaying = await asyncpg.connect(postgres_url)
    write = (
        "INSERT INTO deliveries (id, webhook_id, type, body, created_at, due_at) VALUES ($1, $2, 'x', '', now(), now())"
    )
    webhook = await subscribe(postgres_store, URL)
    async with relaying.transaction():
        assert len(await relaying.fetch(guarded, ["play"])) == 1
        removing = asyncio.create_task(postgres_store.webhooks.remove(webhook.id))
        while not await relaying.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 (only the server knows)
            await asyncio.sleep(0.01)
        await relaying.execute(write, new_delivery_id(), webhook.id)
    assert await removing
    assert await log(postgres_store, webhook) == []
    webhook = await subscribe(postgres_store, URL)
    async with relaying.transaction():
        assert len(await relaying.fetch(guarded.partition("FOR KEY SHARE")[0], ["play"])) == 1
        assert await postgres_store.webhooks.remove(webhook.id)
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            async with relaying.transaction():
                await relaying.execute(write, new_delivery_id(), webhook.id)
    await relaying.close()


async def test_an_operator_sees_what_waits_for_each_webhook_of_a_mode(shop: Earmark, store: Store) -> None:
    """How much, up to a limit, and since when it is due; nothing of the other kind, and none that has nothing."""
    busy = await subscribe(store, URL)
    await subscribe(store, URL, types=("booking.confirmed",))
    other = await subscribe(store, URL, mode=Mode.TEST)
    assert await store.webhooks.waiting(mode=Mode.LIVE, limit=10) == []
    for number in (1, 2, 3):
        await hold(shop, number)
    await relay(store)
    [seen] = await store.webhooks.waiting(mode=Mode.LIVE, limit=10)
    first = (await log(store, busy))[0]
    assert (seen.webhook_id, seen.pending, seen.due_at) == (busy.id, 3, first.due_at)
    [counted] = await store.webhooks.waiting(mode=Mode.LIVE, limit=2)
    assert counted.pending == 2
    assert await store.webhooks.waiting(mode=Mode.TEST, limit=10) == []
    assert await log(store, other) == []
