"""Webhooks over HTTP: the calls of a shop, from creating one to replaying what it did not receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from standardwebhooks import Webhook as Verifier
from tests.api.conftest import KEY, authenticator, event, services, shop
from tests.webhooks.conftest import answer, deliver, dispatcher, receiver, relay

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator
from earmark.domain.webhook import GRACE_SECONDS, WEBHOOKS_MAX
from earmark.webhooks.check_target_addresses import Targets

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

__all__ = ["KEY", "authenticator", "event", "services", "shop"]

URL = "https://shop.example/hook"


async def make(client: httpx2.AsyncClient, **body: Any) -> Any:
    made = await client.post("/v1/webhooks", json={"url": URL, **body})
    assert made.status_code == 201, made.text
    return made.json()


async def hold(client: httpx2.AsyncClient, seat: str) -> None:
    held = await client.post("/v1/bookings", json={"event_id": "concert", "buyer": "alice", "seats": [seat]})
    assert held.status_code == 201, held.text


async def test_the_secret_is_shown_once(shop: httpx2.AsyncClient) -> None:
    """When the webhook is made, and when it gets a new one."""
    made = await make(shop, types=["booking.confirmed"], description="the till")
    assert made["secret"].startswith("whsec_")
    assert Verifier(made["secret"]) is not None
    read = await shop.get(f"/v1/webhooks/{made['id']}")
    listed = await shop.get("/v1/webhooks")
    for told in (read.json(), listed.json()["webhooks"][0]):
        assert told | {"id": made["id"], "url": URL, "types": ["booking.confirmed"], "active": True} == told
    assert made["secret"] not in read.text + listed.text
    rotated = (await shop.post(f"/v1/webhooks/{made['id']}/rotate")).json()
    assert rotated["secret"] != made["secret"]
    assert rotated["old_secret_until"] is not None
    assert rotated["secret"] not in (await shop.get(f"/v1/webhooks/{made['id']}")).text


async def test_a_webhook_is_changed_switched_off_and_removed(shop: httpx2.AsyncClient, event: str) -> None:
    """What is not named stays; null clears what may be missing."""
    made = await make(shop, event_id=event, description="the till")
    path = f"/v1/webhooks/{made['id']}"
    changed = (await shop.patch(path, json={"types": ["booking.held"], "description": None})).json()
    assert (changed["types"], changed["description"], changed["event_id"]) == (["booking.held"], None, event)
    off = (await shop.patch(path, json={"active": False})).json()
    assert (off["active"], off["disabled_because"]) == (False, "switched off by the shop")
    refused = await shop.post(f"{path}/test")
    assert (refused.status_code, refused.json()["code"]) == (409, "webhook_disabled")
    assert (await shop.patch(path, json={"active": True, "event_id": None})).json()["active"]
    assert (await shop.delete(path)).json()["id"] == made["id"]
    for method, place in (("GET", path), ("DELETE", path), ("POST", f"{path}/rotate"), ("GET", f"{path}/deliveries")):
        gone = await shop.request(method, place)
        assert (gone.status_code, gone.json()["code"]) == (404, "webhook_unknown")


async def test_an_invalid_webhook_is_refused_by_name(shop: httpx2.AsyncClient, services: Services) -> None:
    """Unknown types, events, states and cursors, and forbidden addresses."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"url": "nonsense"}, "url"),
        ({"url": URL, "types": ["booking.sold"]}, "types[0]"),
        ({"url": URL, "types": ["webhook.ping"]}, "types[0]"),
        ({"url": URL, "description": "a\x00b"}, "description"),
        ({}, "url"),
    ]
    for body, place in wrong:
        refused = await shop.post("/v1/webhooks", json=body)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, place), refused.text
    unknown = await shop.post("/v1/webhooks", json={"url": URL, "event_id": "nothing"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "event_unknown")
    made = await make(shop)
    path = f"/v1/webhooks/{made['id']}/deliveries"
    for query in ("state=lost", "cursor=%21", "cursor=YWJj", "limit=0"):
        assert (await shop.get(f"{path}?{query}")).status_code == 422, query
    assert (await shop.get("/v1/webhooks?cursor=YWJj")).status_code == 422
    for delivery in ("nonsense", made["id"]):
        missing = await shop.post(f"{path}/{delivery}/replay")
        assert (missing.status_code, missing.json()["code"]) == (404, "delivery_unknown")
    assert (await shop.get("/v1/webhooks/nonsense")).json()["code"] == "webhook_unknown"
    for _ in range(WEBHOOKS_MAX - 1):
        await make(shop)
    assert (await shop.post("/v1/webhooks", json={"url": URL})).status_code == 422
    assert services.targets is not None


async def test_a_private_address_is_refused_when_the_webhook_is_made_and_when_it_is_changed(services: Services) -> None:
    """With the guard's error, and nothing is kept."""

    async def inside(_host: str, _port: int) -> list[str]:
        return ["169.254.169.254"]

    guarded = msgspec.structs.replace(services, targets=Targets(resolve=inside))
    transport = httpx2.ASGITransport(app=create_app(guarded))
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        refused = await client.post("/v1/webhooks", json={"url": URL})
        assert refused.json()["errors"] == [
            {"path": "url", "message": "its host shop.example is not on the public internet"}
        ]
        assert (await client.get("/v1/webhooks")).json()["webhooks"] == []


async def test_test_keys_see_test_webhooks_and_buyers_see_none(shop: httpx2.AsyncClient, services: Services) -> None:
    """A live key neither sees nor removes what a test key has made."""
    made = await make(shop)
    live = msgspec.structs.replace(services, authenticator=Authenticator(admin_key="ek_live_0123456789abcdef"))
    transport = httpx2.ASGITransport(app=create_app(live))
    headers = {"Authorization": "Bearer ek_live_0123456789abcdef"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        assert (await client.get("/v1/webhooks")).json()["webhooks"] == []
        assert (await client.delete(f"/v1/webhooks/{made['id']}")).status_code == 404
        assert (await client.post("/v1/webhooks", json={"url": URL})).status_code == 201
    assert len((await shop.get("/v1/webhooks")).json()["webhooks"]) == 1
    transport = httpx2.ASGITransport(app=create_app(services))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as guest:
        await guest.post("/v1/guests")
        assert (await guest.get("/v1/webhooks")).status_code == 403


async def test_a_log_shows_what_became_of_each_message_and_replays_it(
    shop: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """From the ping to the failure, and from the failure to the message that arrives in the end."""
    assert event
    store = services.engine.store
    well = False

    def says(_: Any) -> bytes:
        return answer(204) if well else answer(500, b"no")

    async with receiver(says) as endpoint, dispatcher(store, retry_seconds_max=60) as own:
        await relay(store)
        made = await make(shop, url=endpoint.url)
        path = f"/v1/webhooks/{made['id']}"
        ping = (await shop.post(f"{path}/test")).json()
        assert (ping["type"], ping["state"], ping["attempts"]) == ("webhook.ping", "pending", 0)
        await deliver(own)
        await hold(shop, "A1")
        await hold(shop, "A2")
        await relay(store)
        clock.advance(61)
        await deliver(own)
        read = (await shop.get(path)).json()
        assert (read["active"], read["disabled_because"] is None) == (False, False)
        first = (await shop.get(f"{path}/deliveries?limit=2")).json()
        rest = (await shop.get(f"{path}/deliveries?limit=2&cursor={first['next_cursor']}")).json()
        assert (len(first["deliveries"]), len(rest["deliveries"]), rest["next_cursor"]) == (2, 1, None)
        (tried,) = rest["deliveries"]
        assert tried | {"id": ping["id"], "state": "failed", "status": 500, "error": "HTTP 500: no"} == tried
        assert (await shop.get(f"{path}/deliveries?state=delivered")).json()["deliveries"] == []
        well = True
        assert (await shop.patch(path, json={"active": True})).json()["failing_since"] is None
        for delivery in first["deliveries"]:
            replayed = await shop.post(f"{path}/deliveries/{delivery['id']}/replay")
            assert (replayed.status_code, replayed.json()["state"]) == (202, "pending")
        await deliver(own)
        received = [one.verify(made["secret"])["type"] for one in endpoint.received]
        assert received == ["webhook.ping", "webhook.ping", "booking.held", "booking.held"]
        done = (await shop.get(f"{path}/deliveries?state=delivered")).json()["deliveries"]
        assert {one["id"] for one in done} == {one["id"] for one in first["deliveries"]}
        clock.advance(GRACE_SECONDS)


@pytest.mark.parametrize("path", ["/v1/webhooks", "/v1/webhooks/x", "/v1/webhooks/x/deliveries"])
async def test_without_a_key_a_client_learns_nothing(services: Services, path: str) -> None:
    """Not even whether there is one."""
    transport = httpx2.ASGITransport(app=create_app(services))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as stranger:
        assert (await stranger.get(path)).status_code == 401
