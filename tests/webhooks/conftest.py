"""Fixtures of the webhook tests: a shop, a relay, webhook workers, and receivers on real sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook as Verifier
from tests.socket_server import listening

from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import WEBHOOKS_MAX, DeliveryState, Webhook
from earmark.engine.engine import Engine
from earmark.engine.ports.number_and_read_journal import START
from earmark.library import Earmark
from earmark.uuids import new_webhook_id
from earmark.webhooks.check_target_addresses import Targets
from earmark.webhooks.sign_and_send_one_webhook import WebhookSender, new_secret
from earmark.workers.webhook_dispatcher import WebhookDispatcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.domain.webhook import Delivery
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

PLAY = EventId("play")
PATIENCE_SECONDS = 60.0
DAY = 86_400.0


@dataclass
class Received:
    """One request that a receiver has read whole."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The message's."""
        return self.headers["webhook-id"]

    def verify(self, secret: str) -> Any:
        """As the receiver's side does, by the standard library for it."""
        return Verifier(secret).verify(self.body, self.headers)


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of the answer."""
    told = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


@dataclass
class Receiver:
    """A web server of a few lines, on a real socket."""

    url: str
    port: int
    says: Any
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        self.connections += 1
        while received := await self._read(reader):
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.received.append(received)
            said = self.says(received)
            said = said if isinstance(said, bytes) else await said
            self.at_once -= 1
            writer.write(said)
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Received(headers=headers, body=body)


@asynccontextmanager
async def receiver(says: Any = lambda _: answer(204), *, tls: Any = None) -> AsyncIterator[Receiver]:
    """One that answers as the test sets it."""
    own = Receiver(url="", port=0, says=says)
    async with listening(own.serve, tls=tls) as own.port:
        own.url = f"http://127.0.0.1:{own.port}/hook"
        yield own


async def eventually(fact: Callable[[], bool], *, step: Callable[[], Awaitable[Any]] | None = None) -> None:
    """Wait until something is so, doing a step in between; a generous bound, for machines that stall."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not fact():
            await (step() if step else asyncio.sleep(0.005))


async def relay(store: Store, *, mail: bool = False) -> None:
    """Number all there is; with `mail`, queue the mails about it."""
    after, behind = START, True
    while behind or after != START:
        behind = behind and after != START
        numbering = await store.outbox.number(after=after, limit=100, tell=False, mail=mail)
        after, behind = numbering.after, behind or numbering.more


async def subscribe(store: Store, url: str, **fields: Any) -> Webhook:
    """A live webhook, written to the store."""
    made = {"id": new_webhook_id(), "mode": Mode.LIVE, "secret": new_secret(), "created_at": await now_of(store)}
    webhook = Webhook(url=url, **made | fields)
    assert await store.webhooks.make(webhook, limit=WEBHOOKS_MAX)
    return webhook


async def now_of(store: Store) -> Any:
    """The store's own time."""
    return (await store.read_map(PLAY)).now


async def again(store: Store, webhook: Webhook) -> Webhook:
    """As it is by now."""
    found = await store.webhooks.read(webhook.id)
    assert found is not None
    return found


async def log(store: Store, webhook: Webhook, state: DeliveryState | None = None) -> list[Delivery]:
    """Its deliveries, oldest first."""
    return (await store.webhooks.log(webhook.id, state=state, before=None, limit=10_000))[::-1]


def courier_over(
    store: Store, *, targets: Targets | None = None, timeout_seconds: float = 30.0, **knobs: Any
) -> WebhookDispatcher:
    """A webhook worker that may call any address, and does not sleep for long."""
    sender = WebhookSender(targets or Targets(private=True), timeout_seconds=timeout_seconds)
    settings: dict[str, Any] = {"retry_seconds_max": 3 * DAY, "interval_seconds_max": 0.05}
    return WebhookDispatcher(store.webhooks, sender, **settings | knobs)


@asynccontextmanager
async def dispatcher(store: Store, **knobs: Any) -> AsyncIterator[WebhookDispatcher]:
    """One that is closed at the end."""
    own = courier_over(store, **knobs)
    try:
        yield own
    finally:
        await own.close()


async def deliver(own: WebhookDispatcher) -> None:
    """Rounds until nothing is on its way and nothing more is due."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await own.act() == 0:
            continue


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again before the test has pushed its clock, however long the machine stalls."""
    monkeypatch.setattr("earmark.domain.webhook.WAIT_SECONDS_MIN", 45.0)
    monkeypatch.setattr("earmark.workers.webhook_dispatcher.GRACE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
async def shop(store: Store, ids: Uuid7Ids) -> Earmark:
    """A play with ten seats, over each store in turn, and its first entry numbered."""
    return await open_play(store, ids)


async def open_play(store: Store, ids: Uuid7Ids, *, seats: int = 10) -> Earmark:
    """A play."""
    earmark = Earmark(Engine(store, ids=ids))
    await earmark.create_event(PLAY, name="A play", currency="EUR", seats={f"A{n}": 4500 for n in range(1, seats + 1)})
    await relay(store)
    return earmark


async def hold(shop: Earmark, number: int = 1) -> Any:
    """One more seat is held."""
    return await shop.hold(PLAY, buyer="alice", seats=[f"A{number}"])
