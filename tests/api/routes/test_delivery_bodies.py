"""What a `manage` key learns of bookings through webhooks: that something was delivered, and not what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.domain.api_key import Scope
from earmark.domain.id_types import WebhookId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import Delivery, DeliveryState
from earmark.engine.ports.webhook_storage import DeliveryResult
from earmark.uuids import new_delivery_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services

CANARY = "alice-the-buyer"


class WebhookShop:
    """A shop with one webhook, and a delivery of it about a buyer."""

    def __init__(self, services: Services) -> None:
        authenticator = Authenticator(admin_key=KEY, keys=services.engine.store.keys)
        self.services = msgspec.structs.replace(services, authenticator=authenticator)
        self._transport = httpx2.ASGITransport(app=create_app(self.services), raise_app_exceptions=False)
        self.path = ""
        self.delivery = new_delivery_id()

    async def open(self) -> None:
        """Make the webhook, and what was to be delivered."""
        made = await self.ask("POST", "/v1/webhooks", KEY, json={"url": "http://127.0.0.1:9/"})
        self.path = f"/v1/webhooks/{made.json()['id']}"
        now = self.services.clock.now()
        webhook_id = WebhookId(UUID(made.json()["id"]))
        body = b'{"type":"booking.held","buyer":"%s"}' % CANARY.encode()
        error = f"HTTP 500: cannot book for {CANARY}"
        told = Delivery(
            id=self.delivery,
            webhook_id=webhook_id,
            type="booking.held",
            body=body,
            created_at=now,
            due_at=now,
        )
        webhooks = self.services.engine.store.webhooks
        await webhooks.queue(told)
        await webhooks.claim(busy=(), webhooks=1, each=1, failing=False, lease_seconds=60)
        failed = DeliveryResult(
            delivery_id=self.delivery, attempt=1, state=DeliveryState.PENDING, due_at=now, status=500, error=error
        )
        await webhooks.record(webhook_id, [failed], None)

    async def key(self, *scopes: Scope) -> str:
        """A key with these scopes."""
        secret = new_key(mode=Mode.TEST)
        await self.services.engine.store.keys.create(
            new_key_id(), name="k", mode=Mode.TEST, scopes=frozenset(scopes), secret_hash=hash_of(secret)
        )
        return secret

    async def ask(self, method: str, path: str, key: str, **more: Any) -> httpx2.Response:
        """One request."""
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(transport=self._transport, base_url="http://shop", headers=headers) as client:
            return await client.request(method, path, **more)


@pytest.fixture
async def shop(services: Services) -> AsyncIterator[WebhookShop]:
    shop = WebhookShop(services)
    await shop.open()
    yield shop
    await shop.services.authenticator.close()


async def test_a_key_that_only_manages_reads_no_booking_in_the_log(shop: WebhookShop) -> None:
    """The listing stays, with what became of each; the message, and the receiver's answer to it, are withheld."""
    managing = await shop.key(Scope.MANAGE)
    assert (await shop.ask("GET", "/v1/bookings", managing)).status_code == 403
    listed = await shop.ask("GET", f"{shop.path}/deliveries", managing)
    replayed_response = await shop.ask("POST", f"{shop.path}/deliveries/{shop.delivery}/replay", managing)
    for answer, status in ((listed, 200), (replayed_response, 202)):
        assert answer.status_code == status
        assert CANARY not in answer.text
    (shown,) = listed.json()["deliveries"]
    assert (shown["id"], shown["type"], shown["state"]) == (str(shop.delivery), "booking.held", "pending")
    assert (shown["body"], shown["status"], shown["error"]) == (None, 500, "HTTP 500")
    ping = await shop.ask("POST", f"{shop.path}/test", managing, json={})
    assert ping.json()["body"], "a ping is about no buyer"


async def test_a_key_that_sells_too_reads_it(shop: WebhookShop) -> None:
    """The control: this key may read the buyer of the body by other calls."""
    for key in (await shop.key(Scope.MANAGE, Scope.SELL), KEY):
        listed = await shop.ask("GET", f"{shop.path}/deliveries", key)
        (shown,) = listed.json()["deliveries"]
        assert CANARY in shown["body"]
        assert CANARY in shown["error"]


async def test_a_key_that_only_manages_names_no_address(shop: WebhookShop) -> None:
    """The receiver of a webhook reads bookings: only a key that may read them says where they are sent, and which.

    Nor does it get a secret, by which it could sign messages to the receiver.
    """
    managing = await shop.key(Scope.MANAGE)
    made = await shop.ask("POST", "/v1/webhooks", managing, json={"url": "http://127.0.0.1:7/"})
    moved = await shop.ask("PATCH", shop.path, managing, json={"url": "http://127.0.0.1:7/"})
    widened = [
        await shop.ask("PATCH", shop.path, managing, json={"event_id": None}),
        await shop.ask("PATCH", shop.path, managing, json={"types": []}),
    ]
    signed = await shop.ask("POST", f"{shop.path}/rotate", managing, json={})
    for answer in (made, moved, *widened, signed):
        assert (answer.status_code, answer.json()["code"], answer.json()["needs"]) == (403, "forbidden", "sell")
    (only,) = (await shop.ask("GET", "/v1/webhooks", managing)).json()["webhooks"]
    assert only["url"] == "http://127.0.0.1:9/"
    named = await shop.ask("PATCH", shop.path, managing, json={"description": "the till", "active": False})
    assert (named.status_code, named.json()["description"], named.json()["active"]) == (200, "the till", False)


async def test_a_key_that_sells_too_names_addresses(shop: WebhookShop) -> None:
    """The control: it may read the bookings by other calls as well."""
    both = await shop.key(Scope.MANAGE, Scope.SELL)
    assert (await shop.ask("POST", "/v1/webhooks", both, json={"url": "http://127.0.0.1:7/"})).status_code == 201
    moved = await shop.ask("PATCH", shop.path, both, json={"url": "http://127.0.0.1:7/"})
    assert moved.json()["url"] == "http://127.0.0.1:7/"
