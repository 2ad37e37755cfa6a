"""The janitor removes expired rows in small steps, as a worker and by command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from earmark import Earmark, config
from earmark.cli import main
from earmark.domain.id_types import EventId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import DeliveryState, Webhook
from earmark.engine.commands_and_results import Actor, Hold, KeyedRequest
from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.engine.ports.number_and_read_journal import START
from earmark.engine.ports.webhook_storage import DeliveryResult
from earmark.testing import open_in_memory
from earmark.uuids import new_webhook_id
from earmark.webhooks.sign_and_send_one_webhook import new_secret
from earmark.wiring.workers import janitor_for
from earmark.workers.old_row_janitor import BEATS_SECONDS, Janitor

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.clock import MovableClock

DAY = 86_400


async def keyed(earmark: Earmark, *seats: str) -> None:
    """Holds with a key each."""
    engine = earmark.engine
    for seat in seats:
        ask: Any = Hold(
            actor=Actor(name="shop", mode=Mode.LIVE),
            entry_id=engine.ids.entry_id(),
            booking_id=engine.ids.booking_id(),
            event_id="play",  # type: ignore[arg-type]
            buyer="alice",  # type: ignore[arg-type]
            seats=(seat,),  # type: ignore[arg-type]
            idempotency=KeyedRequest(key=IdempotencyKey("shop", seat), request_hash=b"r", write=lambda *_: (201, b"")),
        )
        await engine.hold(ask)


async def test_it_clears_expired_keys_and_heartbeats(clock: MovableClock) -> None:
    """A batch of each in a round, at once again while there is more, and then it sleeps."""
    async with open_in_memory(clock=clock) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={f"A{n}": 1 for n in range(1, 6)})
        await keyed(shop, "A1", "A2", "A3", "A4")
        store = shop.engine.store
        process = Process(id=UUID(int=1), host="h", version="1")
        await store.heartbeats.write(process, [HeartbeatReport(role="relay", outcome="ok")])
        janitor = Janitor(store, batch_size_max=3, interval_seconds_max=1000)
        assert await janitor.act() >= 800
        clock.advance(max(DAY, BEATS_SECONDS))
        await keyed(shop, "A5")
        assert await janitor.act() < 800
        assert (await store.heartbeats.read(limit=1)).heartbeats == []
        assert (await janitor.tidy()) == (
            {"keys": 2, "beats": 0, "deliveries": 0, "mails": 0, "payment_keys": 0, "payers": 0},
            False,
        )
        assert await janitor.act() >= 800


async def test_it_clears_deliveries_that_ended_and_keeps_what_waits(clock: MovableClock) -> None:
    """By the setting; an entry that was sent stays in the journal, which is outbox and audit in one."""
    async with open_in_memory(clock=clock) as shop:
        store = shop.engine.store
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1})
        webhook = Webhook(
            id=new_webhook_id(),
            mode=Mode.LIVE,
            url="https://shop.example/",
            secret=new_secret(),
            created_at=clock.now(),
        )
        assert await store.webhooks.make(webhook, limit=9)
        for seat in ("A1", "A2"):
            await shop.hold("play", buyer="alice", seats=[seat])
        numbered = await store.outbox.number(after=START, limit=10)
        assert numbered.count == 3
        (errand,) = await store.webhooks.claim(busy=(), webhooks=1, each=1, failing=False, lease_seconds=60)
        (sent,) = errand.deliveries
        told = DeliveryResult(
            delivery_id=sent.id, attempt=sent.attempts, state=DeliveryState.DELIVERED, due_at=sent.due_at
        )
        await store.webhooks.record(webhook.id, [told], None)
        janitor = Janitor(store, clock=clock, deliveries_seconds=config.Settings().webhook_log_seconds)
        clock.advance(config.Settings().webhook_log_seconds - 1)
        assert (await janitor.tidy())[0]["deliveries"] == 0
        clock.advance(2)
        assert (await janitor.tidy())[0]["deliveries"] == 1
        left = await store.webhooks.log(webhook.id, state=None, before=None, limit=9)
        assert {one.state for one in left} == {DeliveryState.PENDING}
        assert await store.outbox.count([EventId("play")]) == {EventId("play"): 3}


async def test_several_janitors_do_no_harm(clock: MovableClock) -> None:
    """What one has cleared the other does not count."""
    async with open_in_memory(clock=clock) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1})
        await keyed(shop, "A1", "A2")
        clock.advance(DAY)
        janitors = [janitor_for(config.Settings(), shop.engine.store) for _ in range(2)]
        done = [await janitor.tidy() for janitor in janitors]
        assert [cleared["keys"] for cleared, _ in done] == [2, 0]


async def test_it_tidies_by_command(tmp_path: Path, clock: MovableClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Until nothing is left, and from the start where that is requested."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    clock.advance(-2 * DAY)
    async with Earmark.open(url, clock=clock) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1})
        await keyed(shop, "A1", "A2")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["tidy", "--database", url, *arguments])
        assert not ended.value.code
        return capsys.readouterr().out

    rest = "0 beats, 0 deliveries, 0 mails, 0 payment keys, 0 payers.\n"
    assert await asyncio.to_thread(run) == f"Cleared: 2 keys, {rest}"
    assert await asyncio.to_thread(run, "--from-start") == f"Cleared: 0 keys, {rest}"
