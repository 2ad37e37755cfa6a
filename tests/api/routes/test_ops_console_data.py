"""What the console shows, over every store: what needs an operator, of one mode, at most what a page can show."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY, house_over

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.api.routes import ops_console_data
from earmark.domain.api_key import Scope
from earmark.domain.id_types import WebhookId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.engine.ports.number_and_read_journal import START
from earmark.errors import StoreUnavailable
from earmark.locks import Locks
from earmark.schemas import ops_console as ops_words
from earmark.version import __version__
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store

SEATS = 30
EVENT = {
    "id": "concert",
    "name": "A concert",
    "currency": "EUR",
    "layout": {"rows": 1, "seats_per_row": SEATS, "price": 4500},
}


class OpsShop:
    """A shop over one store, and its callers."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.store = services.engine.store
        self.client = _client(services, KEY)

    async def key(self, *scopes: Scope, mode: Mode = Mode.TEST) -> httpx2.AsyncClient:
        """A client with a key of these scopes."""
        secret = new_key(mode=mode)
        await self.store.keys.create(
            new_key_id(), name="a key", mode=mode, scopes=frozenset(scopes), secret_hash=hash_of(secret)
        )
        return _client(self.services, secret)

    async def look(self, client: httpx2.AsyncClient | None = None) -> ops_words.OpsAnswer:
        """What the console gets, as the document describes it."""
        answer = await (client or self.client).get("/v1/ops")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ops_words.OpsAnswer)

    async def hold(self, seat: str, **asked: Any) -> str:
        """A seat for a buyer whose name must not show."""
        body = {"event_id": "concert", "buyer": "canary-buyer", "seats": [seat]} | asked
        held = await self.client.post("/v1/bookings", json=body)
        assert held.status_code == 201, held.text
        booking_id: str = held.json()["id"]
        return booking_id

    async def pay(self, booking_id: str, method: str) -> str:
        """The id of the payment."""
        paid = await self.client.post(
            f"/v1/bookings/{booking_id}/pay", json={"method": method}, headers={"Idempotency-Key": f"pay-{booking_id}"}
        )
        assert paid.status_code in {200, 202}, paid.text
        payment_id: str = paid.json()["payment"]["id"]
        return payment_id

    async def flag(self, seat: str) -> tuple[str, str]:
        """A payment that needs attention, for its refund is refused; its id and that of its booking."""
        booking_id = await self.hold(seat)
        payment_id = await self.pay(booking_id, "pm_card_refund_fail")
        back = await self.client.post(
            f"/v1/bookings/{booking_id}/refunds", json={"amount": 4500}, headers={"Idempotency-Key": f"b-{booking_id}"}
        )
        assert back.status_code == 201, back.text
        return payment_id, booking_id

    async def beat(self, number: int = 1, **outcomes: str) -> None:
        """A process has every role; all is well unless the test changes it."""
        pulses = [HeartbeatReport(role=role, outcome=outcomes.get(role, "ok"), rounds=3) for role in ROLES]
        await self.store.heartbeats.write(Process(id=UUID(int=number), host=f"host-{number}", version="1"), pulses)

    async def save_webhook(self, webhook_id: UUID, **fields: Any) -> None:
        """As a webhook worker leaves it."""
        known = await self.store.webhooks.read(WebhookId(webhook_id))
        assert known is not None
        assert await self.store.webhooks.save(msgspec.structs.replace(known, version=known.version + 1, **fields))

    async def number(self) -> None:
        """What a relay does."""
        await self.store.outbox.number(after=START, limit=1000, tell=False)


def _client(services: Services, key: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://shop", headers={"Authorization": f"Bearer {key}"})


@pytest.fixture
async def shop(store: Store, clock: MovableClock) -> AsyncIterator[OpsShop]:
    services = house_over(store, clock)
    services = msgspec.structs.replace(services, authenticator=Authenticator(admin_key=KEY, keys=store.keys))
    opened = OpsShop(services)
    assert (await opened.client.post("/v1/events", json=EVENT)).status_code == 201
    await opened.number()
    yield opened
    await services.authenticator.close()


def said(answer: ops_words.OpsAnswer) -> dict[str, str]:
    return {need.area: f"{need.said} {need.what_to_do}" for need in answer.needs}


async def test_a_shop_in_order_needs_no_operator(shop: OpsShop) -> None:
    """Every worker runs, nothing waits: that is reported, and not left out."""
    await shop.beat()
    seen = await shop.look()
    assert (seen.needs, seen.roles_missing, seen.mode, seen.version) == ([], [], Mode.TEST, __version__)
    assert [(part.name, part.up) for part in seen.parts] == [("server", True), ("database", True)]
    assert (seen.payments.attention, seen.payments.open, seen.payments.cases) == (0, 0, [])
    assert (seen.holds.held, seen.holds.next_in_seconds, seen.holds.due) == (0, None, 0)
    assert (seen.relay.unsent, seen.webhooks.known, seen.locks.configured) == (0, 0, False)
    assert {(worker.role, worker.host, worker.health, worker.rounds) for worker in seen.workers} == {
        (role, "host-1", "well", 3) for role in ROLES
    }


async def test_a_payment_that_needs_attention_shows_why_and_which_command_helps(shop: OpsShop) -> None:
    """The ids to copy, the refund that was refused, and first of all that there is something to do."""
    payment_id, booking_id = await shop.flag("A1")
    await shop.pay(await shop.hold("A2"), "pm_card_processing")
    seen = await shop.look()
    assert seen.needs[0].said == "1 payment needs review."
    assert (seen.payments.attention, seen.payments.open) == (1, 1)
    [case] = seen.payments.cases
    assert (case.payment_id, case.booking_id, case.gateway) == (payment_id, booking_id, "sandbox")
    assert (case.amount.amount, case.captured, case.refunded) == (4500, 4500, 0)
    assert case.what_to_do == "Give the money back another way, or decide to keep it."
    assert case.commands == [
        f"earmark payments settle {payment_id} --as refunded|kept --note …",
        f"earmark explain {booking_id}",
    ]
    [refused] = case.refused
    assert refused.amount == 4500


async def test_a_key_sees_the_money_holds_and_webhooks_of_its_own_kind_alone(shop: OpsShop) -> None:
    """A live operator sees nothing of the test mode: neither a number nor an id."""
    payment_id, booking_id = await shop.flag("A1")
    await shop.hold("A2")
    made = await shop.client.post("/v1/webhooks", json={"url": "https://canary.example/"})
    webhook_id = made.json()["id"]
    await shop.beat()
    seen = await shop.look(await shop.key(Scope.OPS, mode=Mode.TEST))
    assert (seen.mode, seen.payments.attention, seen.holds.held, seen.webhooks.known) == (Mode.TEST, 1, 1, 1)
    other = await shop.key(Scope.OPS, mode=Mode.LIVE)
    seen = await shop.look(other)
    assert (seen.mode, seen.payments.attention, seen.holds.held, seen.webhooks.known) == (Mode.LIVE, 0, 0, 0)
    assert seen.needs == []
    text = (await other.get("/v1/ops")).text
    assert not [one for one in (payment_id, booking_id, webhook_id, "canary") if one in text]


async def test_only_the_scope_ops_may_read_it(shop: OpsShop) -> None:
    """A key that sells or sets up events does not operate the service."""
    for scope in (Scope.SELL, Scope.MANAGE):
        refused = await (await shop.key(scope)).get("/v1/ops")
        assert (refused.status_code, refused.json()["code"], refused.json()["needs"]) == (403, "forbidden", "ops")
    anonymous = await _client(shop.services, "ek_test_" + "0" * 64).get("/v1/ops")
    assert (anonymous.status_code, anonymous.json()["code"]) == (401, "unauthorized")
    assert (await (await shop.key(Scope.OPS)).get("/v1/ops")).status_code == 200


async def test_no_buyer_and_no_secret_is_shown(shop: OpsShop) -> None:
    """An operator's key is not for bookings; and an address may carry a password."""
    await shop.flag("A1")
    url = "https://user:canary-word@shop.example/canary-path?token=canary-token"
    made = await shop.client.post("/v1/webhooks", json={"url": url.replace("user:canary-word@", "")})
    await shop.client.post(f"/v1/webhooks/{made.json()['id']}/test", json={})
    text = (await shop.client.get("/v1/ops")).text
    assert "shop.example" in text
    assert "canary" not in text
    assert made.json()["secret"] not in text


async def test_what_workers_leave_undone_is_shown_with_what_to_do(shop: OpsShop, clock: MovableClock) -> None:
    """Holds not ended, entries not numbered, and roles without a worker; a minute late and not before."""
    await shop.beat()
    await shop.hold("A1", ttl_seconds=60)
    clock.advance(61)
    await shop.beat(2)
    soon = await shop.look()
    assert (soon.holds.held, soon.holds.due) == (0, 1)
    assert "holds" not in said(soon)
    clock.advance(70)
    seen = await shop.look()
    assert set(said(seen)) == {"workers", "holds", "relay"}
    assert "No sweeper, reconciler, relay, webhook_dispatcher or janitor is running." in said(seen)["workers"]
    assert "earmark worker" in said(seen)["workers"]
    assert "1 hold is due and not ended" in said(seen)["holds"]
    assert "1 journal entry has no number" in said(seen)["relay"]
    assert (seen.relay.unsent, seen.roles_missing) == (1, list(ROLES))
    assert {worker.health for worker in seen.workers} == {"silent"}
    assert max(worker.age_seconds for worker in seen.workers) >= 131


async def test_a_worker_that_makes_no_progress_is_named(shop: OpsShop, clock: MovableClock) -> None:
    """Which worker fails, and how; healthy workers of other roles follow."""
    await shop.beat(1)
    await shop.beat(2, webhook_dispatcher="unavailable")
    clock.advance(5)
    seen = await shop.look()
    assert said(seen) == {
        "workers": "The webhook_dispatcher on host-2 fails: unavailable. Its log has the whole error."
    }
    assert (seen.workers[0].role, seen.workers[0].health) == ("webhook_dispatcher", "failing")
    assert seen.workers[0].age_seconds >= 5


async def test_a_webhook_in_trouble_is_shown_and_a_quiet_one_only_counted(shop: OpsShop, clock: MovableClock) -> None:
    """One that has failed for long and one that has just begun to, one that was given up, one that waits."""
    await shop.beat()
    ids = {}
    for name in ("quiet", "late", "failing", "shaky", "given-up", "off"):
        types = ["booking.held"] if name == "late" else ["booking.cancelled"]
        body = {"url": f"https://{name}.example/", "types": types}
        ids[name] = UUID((await shop.client.post("/v1/webhooks", json=body)).json()["id"])
    moment = clock.now()
    await shop.save_webhook(ids["failing"], failing_since=moment - timedelta(seconds=300))
    await shop.save_webhook(ids["shaky"], failing_since=moment)
    await shop.save_webhook(ids["given-up"], disabled_at=moment, disabled_because="410 Gone")
    await shop.client.patch(f"/v1/webhooks/{ids['off']}", json={"active": False})
    await shop.hold("A1")
    await shop.number()
    clock.advance(90)
    await shop.beat()
    seen = (await shop.look()).webhooks
    assert (seen.known, seen.pending) == (6, 1)
    assert [(one.host, one.health, one.pending) for one in seen.listed] == [
        ("given-up.example", "disabled", 0),
        ("failing.example", "failing", 0),
        ("shaky.example", "failing", 0),
        ("late.example", "well", 1),
        ("off.example", "off", 0),
    ]
    assert 90 <= seen.late_seconds < 900
    told = [need.said for need in (await shop.look()).needs if need.area == "webhooks"]
    gone, fails, _ = told
    assert gone == "The webhook to given-up.example is switched off: 410 Gone."
    assert fails.startswith("The webhook to failing.example fails, for ")


async def test_queues_show_batches_and_expiries_how_holds_ended(shop: OpsShop, clock: MovableClock) -> None:
    """Counted by the server itself; an operator sees a rate by two reads."""
    for seat in ("A1", "A2"):
        await shop.hold(seat, ttl_seconds=60)
    queues = {queue.verb: queue for queue in (await shop.look()).queues}
    assert set(queues) == {"hold", "change", "extend", "confirm", "release", "cancel"}
    assert (queues["hold"].requests, queues["hold"].batches, queues["hold"].waiting) == (2, 2, 0)
    clock.advance(61)
    await shop.services.engine.expire(limit=1)
    await shop.hold("A1")
    await shop.hold("A2")
    assert (await shop.look()).holds.expired == ops_words.OpsExpired(swept=1, met=1, made_room=0)


async def test_every_list_is_bounded_and_every_number_whole(shop: OpsShop) -> None:
    """A page that every operator opens when all goes wrong must not be what fails next."""
    assert SEATS > ops_console_data.CASES_MAX
    for number in range(1, SEATS + 1):
        await shop.flag(f"A{number}")
    for number in range(1, 3 + ops_console_data.WORKERS_MAX // len(ROLES)):
        await shop.beat(number)
    async with Locks.from_url("memory://", holder="worker-7") as locks:
        for number in range(ops_console_data.LOCKS_MAX + 1):
            await locks.acquire(f"order:{number}", ttl=60)
        seen = await OpsShop(msgspec.structs.replace(shop.services, locks=locks)).look()
    assert (seen.payments.attention, len(seen.payments.cases)) == (SEATS, ops_console_data.CASES_MAX)
    assert len(seen.workers) == ops_console_data.WORKERS_MAX
    assert (len(seen.locks.listed), seen.locks.more) == (ops_console_data.LOCKS_MAX, True)
    assert {lock.holder for lock in seen.locks.listed} == {"worker-7"}


async def test_a_missing_redis_is_reported_and_everything_else_shown(services: Services) -> None:
    """The console is needed most when something is down."""
    async with Locks.from_url("redis://127.0.0.1:1") as gone:
        seen = await OpsShop(msgspec.structs.replace(services, locks=gone)).look()
    assert (seen.locks.configured, seen.locks.up, seen.locks.listed) == (True, False, [])
    assert "The Redis of the locks does not answer." in said(seen)["locks"]
    assert "workers" in said(seen)


async def test_a_server_that_is_about_to_stop_reports_it(services: Services) -> None:
    """As readiness does."""
    services.in_flight.begin_shutdown()
    seen = await OpsShop(services).look()
    assert [(part.name, part.up) for part in seen.parts] == [("server", False), ("database", True)]
    assert "about to stop" in said(seen)["server"]


async def test_without_the_database_there_is_an_outage_and_no_zeros(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator must not take a missing answer for health."""

    async def silent() -> None:
        raise StoreUnavailable(because="gone")

    monkeypatch.setattr(services.engine.store, "check", silent)
    answer = await OpsShop(services).client.get("/v1/ops")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
