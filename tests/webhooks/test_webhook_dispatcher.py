"""The webhook worker, over real sockets: signed, at least once, and no receiver delays another."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from standardwebhooks import WebhookVerificationError
from tests.webhooks.conftest import (
    DAY,
    PATIENCE_SECONDS,
    again,
    answer,
    courier_over,
    deliver,
    dispatcher,
    eventually,
    hold,
    log,
    open_play,
    receiver,
    relay,
    subscribe,
)

from earmark.domain.webhook import (
    GRACE_SECONDS,
    DeliveryState,
    rotated,
)
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.store.sqlite.memory import MemoryStore
from earmark.webhooks.sign_and_send_one_webhook import SHOWN_BYTES_MAX, new_secret
from earmark.workers import loop
from earmark.workers.webhook_dispatcher import AT_ONCE_MAX, GAVE_UP, GONE, OFF

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.webhooks.conftest import Received

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.library import Earmark
    from earmark.uuids import Uuid7Ids

ENTRIES = 1000 if os.environ.get("EARMARK_PROOF") else 200


@pytest.fixture
def memory(clock: MovableClock) -> MemoryStore:
    """For what is the worker's own, and the same over every store."""
    return MemoryStore(clock=clock)


@pytest.fixture
async def play(memory: MemoryStore, ids: Uuid7Ids) -> Earmark:
    """A play in memory."""
    return await open_play(memory, ids)


async def test_a_receiver_gets_what_happened_and_can_verify_it(shop: Earmark, store: Store) -> None:
    """Signed as Standard Webhooks says, with actor, verb, position in the history and changes; it is in the log."""
    async with receiver() as endpoint, dispatcher(store) as own:
        webhook = await subscribe(store, endpoint.url)
        held = await hold(shop)
        await shop.confirm(held.id, payment_id="till-1", payment_method="account:secret")
        await relay(store)
        await deliver(own)
        told = [received.verify(webhook.secret) for received in endpoint.received]
        by_type = {one["type"]: one["data"] for one in told}
        assert set(by_type) == {"booking.held", "booking.confirmed"}
        sold = by_type["booking.confirmed"]
        assert {name: sold[name] for name in ("event_id", "booking_id", "sequence", "version", "verb")} == {
            "event_id": "play",
            "booking_id": str(held.id),
            "sequence": 3,
            "version": 2,
            "verb": "confirm",
        }
        assert (sold["before"], sold["after"], sold["facts"]["payment_id"]) == ("held", "confirmed", "till-1")
        assert b"account:secret" not in b"".join(received.body for received in endpoint.received)
        with pytest.raises(WebhookVerificationError):
            endpoint.received[0].verify(new_secret())
        for one in await log(store, webhook):
            assert (one.state, one.status, one.attempts) == (DeliveryState.DELIVERED, 204, 1)
            assert one.took_ms is not None
            assert one.body in {received.body for received in endpoint.received if received.id == str(one.id)}


@pytest.mark.parametrize(
    "said",
    [answer(500, b"x" * 1000), answer(302, Location="http://127.0.0.1:1/"), answer(404), answer(199 + 1)[:5], b""],
    ids=["500", "redirect", "404", "cut short", "nothing"],
)
async def test_any_status_but_2xx_is_a_failure_and_is_sent_again(
    play: Earmark, memory: MemoryStore, clock: MovableClock, said: bytes
) -> None:
    """The same bytes under the same id, a redirect is not followed, and little of the response is kept."""
    answers = [said, answer(204)]
    hangs_up = not said.endswith(b"\r\n\r\n") and b"\r\n\r\n" not in said

    def says(received: Received) -> bytes:
        assert received.id
        if len(endpoint.received) == 1 and hangs_up:
            raise ConnectionError
        return answers[min(len(endpoint.received), 2) - 1]

    async with receiver(says) as endpoint, dispatcher(memory) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        (tried,) = await log(memory, webhook)
        assert (tried.state, tried.attempts) == (DeliveryState.PENDING, 1)
        assert tried.error is not None
        assert len(tried.error) <= SHOWN_BYTES_MAX + 20
        clock.advance(60)
        await deliver(own)
        (done,) = await log(memory, webhook)
        assert (done.state, done.attempts, done.error) == (DeliveryState.DELIVERED, 2, None)
        first, second = endpoint.received
        assert (first.id, first.body) == (second.id, second.body)
        assert second.verify(webhook.secret)


async def test_a_worker_that_is_killed_in_mid_delivery_loses_nothing(
    shop: Earmark, store: Store, clock: MovableClock
) -> None:
    """When its lease is over another delivers, under the same id."""
    hanging = asyncio.Event()

    async def says(_: Received) -> bytes:
        if len(endpoint.received) == 1:
            await hanging.wait()
        return answer(204)

    async with receiver(says) as endpoint, dispatcher(store) as heir:
        webhook = await subscribe(store, endpoint.url)
        await hold(shop)
        await relay(store)
        killed = courier_over(store)
        await eventually(lambda: bool(endpoint.received), step=killed.act)
        for task in killed._running:
            task.cancel()
        await asyncio.gather(*killed._running, return_exceptions=True)
        killed._sender.close()
        await deliver(heir)
        assert len(endpoint.received) == 1, "the lease is not over"
        clock.advance(killed.lease_seconds + 1)
        await deliver(heir)
        first, second = endpoint.received
        assert (first.id, first.body) == (second.id, second.body)
        (done,) = await log(store, webhook)
        assert (done.state, done.attempts) == (DeliveryState.DELIVERED, 2)


async def test_a_worker_that_is_stopped_returns_what_it_has_not_sent(play: Earmark, memory: MemoryStore) -> None:
    """A receiver that answers is waited for; the others are there for the next worker at once."""
    go_on = asyncio.Event()

    async def says(_: Received) -> bytes:
        await go_on.wait()
        return answer(204)

    async with receiver(says) as endpoint, dispatcher(memory) as heir:
        webhook = await subscribe(memory, endpoint.url)
        for number in range(1, 9):
            await hold(play, number)
        await relay(memory)
        own = courier_over(memory)
        await eventually(lambda: len(endpoint.received) == AT_ONCE_MAX, step=own.act)
        closing = asyncio.create_task(own.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        states = [one.state for one in await log(memory, webhook)]
        assert states == [DeliveryState.DELIVERED] * 4 + [DeliveryState.PENDING] * 4
        await deliver(heir)
        assert {one.state for one in await log(memory, webhook)} == {DeliveryState.DELIVERED}
        assert len(endpoint.received) == len({received.id for received in endpoint.received}) == 8


async def test_a_dead_receiver_delays_no_other(play: Earmark, memory: MemoryStore) -> None:
    """One hangs on every call, one refuses connections; a third receives everything meanwhile."""
    never = asyncio.Event()

    async def hang(_: Received) -> bytes:
        await never.wait()
        return answer(204)

    async with receiver() as closes:
        refusing = closes.url
    async with receiver(hang) as dead, receiver() as good, dispatcher(memory, timeout_seconds=3600) as own:
        slow = await subscribe(memory, dead.url)
        closed = await subscribe(memory, refusing)
        webhook = await subscribe(memory, good.url)
        held = []
        for number in range(1, 10):
            held.append(await hold(play, number))
            await relay(memory)
            await eventually(lambda: len(good.received) == len(held), step=own.act)
        assert {one.state for one in await log(memory, webhook)} == {DeliveryState.DELIVERED}
        assert dead.most_at_once <= AT_ONCE_MAX
        assert {one.state for one in await log(memory, slow)} == {DeliveryState.PENDING}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await again(memory, closed)).failing_since is None:
                await own.act()
        assert [one.attempts for one in await log(memory, closed)] == [1] + [0] * 8, "it pauses, and the others wait"
        never.set()


async def test_a_receiver_that_fails_is_tried_with_one_message_at_a_time(
    play: Earmark, memory: MemoryStore, clock: MovableClock
) -> None:
    """With the oldest that is due; when it answers again, all the others follow."""
    well = False

    def says(_: Received) -> bytes:
        return answer(204 if well else 503)

    async with receiver(says) as endpoint, dispatcher(memory) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        for number in range(2, 9):
            await hold(play, number)
        await relay(memory)
        await deliver(own)
        assert len(endpoint.received) == 1, "it pauses"
        clock.advance(60)
        await deliver(own)
        assert [received.id for received in endpoint.received] == [endpoint.received[0].id] * 2, "one, and the oldest"
        well = True
        clock.advance(120)
        await deliver(own)
        assert {one.state for one in await log(memory, webhook)} == {DeliveryState.DELIVERED}
        assert (await again(memory, webhook)).failing_since is None


async def test_what_fails_for_the_whole_span_has_failed_and_the_webhook_is_disabled(
    shop: Earmark, store: Store, clock: MovableClock
) -> None:
    """It stays in the log, to be replayed once an operator has enabled the webhook again."""
    well = False

    def says(_: Received) -> bytes:
        return answer(204 if well else 500, b"sorry")

    async with receiver(says) as endpoint, dispatcher(store, retry_seconds_max=DAY) as own:
        webhook = await subscribe(store, endpoint.url)
        await hold(shop)
        await relay(store)
        await deliver(own)
        await hold(shop, 2)
        await relay(store)
        clock.advance(DAY + 1)
        await deliver(own)
        known = await again(store, webhook)
        assert (known.disabled_at is not None, known.disabled_because) == (True, GAVE_UP)
        first, second = await log(store, webhook)
        assert (first.state, first.attempts, first.error) == (DeliveryState.FAILED, 2, "HTTP 500: sorry")
        assert (second.state, second.attempts, second.error) == (DeliveryState.FAILED, 0, OFF)
        assert len(endpoint.received) == 2
        await hold(shop, 3)
        await relay(store)
        assert len(await log(store, webhook)) == 2, "a disabled webhook gets nothing"
        well = True
        assert await store.webhooks.save(
            msgspec.structs.replace(webhook, version=2, disabled_at=None, failing_since=None, resting_until=None)
        )
        await store.webhooks.replay(webhook.id, second.id)
        await deliver(own)
        assert [one.state for one in await log(store, webhook)] == [DeliveryState.FAILED, DeliveryState.DELIVERED]


async def test_one_bad_message_disables_no_webhook_that_takes_the_others(
    play: Earmark, memory: MemoryStore, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a message that always fails has failed in the end, and the webhook stays enabled."""
    monkeypatch.setattr("random.random", lambda: 1.0)
    refused = "A1"

    def says(received: Received) -> bytes:
        return answer(500 if f'"{refused}"'.encode() in received.body else 204)

    async with receiver(says) as endpoint, dispatcher(memory, retry_seconds_max=DAY) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        await hold(play, 2)
        await relay(memory)
        for _ in range(10):
            clock.advance(60)
            await deliver(own)
        clock.advance(DAY + 1)
        await deliver(own)
        bad, good = await log(memory, webhook)
        assert (bad.state, good.state) == (DeliveryState.FAILED, DeliveryState.DELIVERED)
        assert (await again(memory, webhook)).disabled_at is None


async def test_410_gone_disables_a_webhook_at_once(play: Earmark, memory: MemoryStore) -> None:
    """The receiver wants no more messages."""
    async with receiver(lambda _: answer(410)) as endpoint, dispatcher(memory) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        assert (await again(memory, webhook)).disabled_because == GONE
        assert [one.state for one in await log(memory, webhook)] == [DeliveryState.FAILED]


@pytest.mark.parametrize("asked", ["600", "date"])
async def test_a_receiver_is_left_alone_for_its_retry_after(
    play: Earmark, memory: MemoryStore, clock: MovableClock, asked: str
) -> None:
    """`Retry-After`, in seconds or as a date."""
    until = datetime.now(UTC) + timedelta(seconds=600)
    text = f"{until:%a, %d %b %Y %H:%M:%S} GMT" if asked == "date" else asked
    async with receiver(lambda _: answer(429, Retry_After=text)) as endpoint, dispatcher(memory) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        (delivery,) = await log(memory, webhook)
        assert delivery.tried_at is not None
        assert 500 < (delivery.due_at - delivery.tried_at).total_seconds() < 900
        clock.advance(400)
        await deliver(own)
        assert len(endpoint.received) == 1
        clock.advance(600)
        await deliver(own)
        assert len(endpoint.received) == 2


async def test_no_answer_is_a_failure_when_the_time_is_over(play: Earmark, memory: MemoryStore) -> None:
    """Also when bytes keep trickling in."""
    never = asyncio.Event()

    async def hang(_: Received) -> bytes:
        await never.wait()
        return answer(204)

    async with receiver(hang) as endpoint, dispatcher(memory, timeout_seconds=0.2) as own:
        webhook = await subscribe(memory, endpoint.url)
        await hold(play)
        await relay(memory)
        await deliver(own)
        (delivery,) = await log(memory, webhook)
        assert (delivery.state, delivery.error) == (DeliveryState.PENDING, "no answer within 0.2 s")


async def test_both_secrets_sign_for_a_while_after_a_rotation(
    play: Earmark, memory: MemoryStore, clock: MovableClock
) -> None:
    """So that a receiver may change over in its own time; then only the new one does."""
    async with receiver() as endpoint, dispatcher(memory) as own:
        webhook = await subscribe(memory, endpoint.url)
        changed = rotated(webhook, secret=new_secret(), now=clock.now())
        assert await memory.webhooks.save(changed)
        await hold(play)
        await relay(memory)
        await deliver(own)
        assert endpoint.received[0].verify(webhook.secret) == endpoint.received[0].verify(changed.secret)
        clock.advance(GRACE_SECONDS + 1)
        await hold(play, 2)
        await relay(memory)
        await deliver(own)
        assert endpoint.received[1].verify(changed.secret)
        with pytest.raises(WebhookVerificationError):
            endpoint.received[1].verify(webhook.secret)


async def share(stores: Sequence[Store], *, ids: Uuid7Ids, count: int) -> None:
    """Two workers deliver so many entries while they happen."""
    store = stores[0]
    shop = await open_play(store, ids, seats=count // 2)
    async with receiver() as endpoint:
        webhook = await subscribe(store, endpoint.url)
        dispatchers = [courier_over(one) for one in stores]
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(dispatchers, stop))

        async def buy(number: int) -> None:
            held = await hold(shop, number)
            await shop.confirm(held.id, payment_id=f"till-{number}")

        await asyncio.gather(*(buy(number) for number in range(1, count // 2 + 1)))
        await relay(store)
        await eventually(lambda: len({received.id for received in endpoint.received}) == count)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await log(store, webhook, DeliveryState.PENDING):  # noqa: ASYNC110 (only the store knows)
                await asyncio.sleep(0.01)
        stop.set()
        await running
        for own in dispatchers:
            await own.close()
        told = [received.verify(webhook.secret)["data"] for received in endpoint.received]
        assert {one["sequence"] for one in told} == set(range(2, count + 2))
        stories: dict[str, list[Any]] = {}
        for one in sorted(told, key=lambda one: one["sequence"]):
            stories.setdefault(one["booking_id"], []).append((one["version"], one["after"]))
        assert {tuple(dict.fromkeys(disabled_webhook)) for disabled_webhook in stories.values()} == {
            ((1, "held"), (2, "confirmed"))
        }
        assert {one.state for one in await log(store, webhook)} == {DeliveryState.DELIVERED}
        assert endpoint.most_at_once <= 2 * AT_ONCE_MAX
        assert endpoint.connections < count, "a connection is used for more than one message"


async def test_two_workers_share_the_deliveries(
    postgres_store: PostgresStore, second_postgres_store: PostgresStore, ids: Uuid7Ids
) -> None:
    """Every entry is delivered at least once, each by one of them, and its sequence number orders it."""
    await share([postgres_store, second_postgres_store], ids=ids, count=ENTRIES)


async def test_two_workers_share_one_file(
    sqlite_store: SqliteStore, tmp_path: Path, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The same, with one writer at a time."""
    twin = await SqliteStore.open(tmp_path / "earmark.sqlite3", clock=clock)
    await share([sqlite_store, twin], ids=ids, count=ENTRIES // 2)
    await twin.close()


@pytest.fixture
async def second_postgres_store(postgres_url: str, clock: MovableClock) -> AsyncIterator[PostgresStore]:
    """The same database, as another process has it."""
    store = await PostgresStore.connect(postgres_url, clock=clock)
    yield store
    await store.close()


async def test_workers_that_claim_at_once_skip_each_others_claims(
    postgres_store: PostgresStore, second_postgres_store: PostgresStore, ids: Uuid7Ids
) -> None:
    """No delivery is given to two, and no worker waits."""
    shop = await open_play(postgres_store, ids)
    await subscribe(postgres_store, "https://shop.example/")
    for number in range(1, 11):
        await hold(shop, number)
    await relay(postgres_store)
    asked: dict[str, Any] = {"busy": (), "webhooks": 5, "each": 3, "failing": False, "lease_seconds": 60}
    claimed = await asyncio.gather(
        *(one.webhooks.claim(**asked) for one in (postgres_store, second_postgres_store) * 3)
    )
    given = [delivery.id for errands in claimed for errand in errands for delivery in errand.deliveries]
    assert len(given) == len(set(given)) >= 3
