"""Idempotency keys of requests about webhooks: one effect for one key, and no secret kept beside its webhook."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
from tests.api.conftest import KEY, authenticator, house_over, services, shop
from tests.webhooks.conftest import again, now_of, subscribe

from earmark.api.app import create_app
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.webhook_storage import AlreadyDone, WebhookChange
from earmark.uuids import new_webhook_id
from earmark.webhooks.sign_and_send_one_webhook import new_secret
from earmark.workers.old_row_janitor import KEYS_SECONDS, Janitor

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock
    from earmark.domain.webhook import Webhook
    from earmark.engine.ports.store import Store

__all__ = ["KEY", "authenticator", "services", "shop"]

URL = "https://shop.example/hook"
KEYED = {"Idempotency-Key": "make-1"}
TWINS = 20


async def make(client: httpx2.AsyncClient, *, key: str = "make-1", **body: Any) -> httpx2.Response:
    return await client.post("/v1/webhooks", json={"url": URL, **body}, headers={"Idempotency-Key": key})


async def count(client: httpx2.AsyncClient) -> int:
    return len((await client.get("/v1/webhooks")).json()["webhooks"])


async def deed_about(store: Store, webhook: Webhook, *, key: str = "k", **fields: Any) -> WebhookChange:
    usual = {"request_hash": b"r" * 32, "webhook_id": webhook.id, "status": 200, "done_at": await now_of(store)}
    return WebhookChange(key=IdempotencyKey("shop", key), **usual | fields)


async def test_a_webhook_is_made_once_for_one_key(shop: httpx2.AsyncClient) -> None:
    """The same answer again, with the secret that was lost on the way; without a key, twice is twice."""
    first, second = await make(shop), await make(shop)
    assert (first.status_code, second.status_code, second.content) == (201, 201, first.content)
    assert second.headers["Location"] == first.headers["Location"]
    assert (first.headers.get("Idempotency-Replayed"), second.headers["Idempotency-Replayed"]) == (None, "true")
    assert await count(shop) == 1
    assert (await make(shop, key="make-2")).json()["id"] != first.json()["id"]
    for _ in range(2):
        assert (await shop.post("/v1/webhooks", json={"url": URL})).status_code == 201
    assert await count(shop) == 4


async def test_a_key_belongs_to_one_request_and_one_caller(shop: httpx2.AsyncClient, services: Services) -> None:
    """Another body or another webhook is refused, and nothing is done; a refused request leaves no key behind."""
    wrong = await make(shop, event_id="nothing")
    assert (wrong.status_code, wrong.json()["code"]) == (404, "event_unknown")
    made = (await make(shop)).json()
    other = await make(shop, description="another")
    rotated = await shop.post(f"/v1/webhooks/{made['id']}/rotate", headers=KEYED)
    for refused in (other, rotated):
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    assert await count(shop) == 1
    assert (await services.engine.store.webhooks.page(mode=Mode.TEST, after=None, limit=9))[0].secret == made["secret"]
    assert (await make(shop, key="no key\x7f")).status_code == 422


async def test_a_rotation_sent_twice_does_not_push_out_the_receivers_secret(
    shop: httpx2.AsyncClient, services: Services
) -> None:
    """The receiver still has the first secret: with the second answer lost and the request repeated, it still signs."""
    made = (await make(shop)).json()
    path = f"/v1/webhooks/{made['id']}/rotate"
    answers = [await shop.post(path, headers={"Idempotency-Key": "rotate-1"}) for _ in range(3)]
    assert {answer.content for answer in answers} == {answers[0].content}
    (webhook,) = await services.engine.store.webhooks.page(mode=Mode.TEST, after=None, limit=9)
    assert webhook.secrets(now=services.clock.now()) == (answers[0].json()["secret"], made["secret"])
    for _ in range(2):
        await shop.post(path)
    (webhook,) = await services.engine.store.webhooks.page(mode=Mode.TEST, after=None, limit=9)
    assert made["secret"] not in webhook.secrets(now=services.clock.now()), "the control: without a key, twice is twice"


async def test_a_repeat_returns_the_webhook_as_it_is_now(shop: httpx2.AsyncClient) -> None:
    """The answer is worded from the webhook: a newer secret is the one that signs, and one that is gone is gone."""
    made = (await make(shop)).json()
    newer = (await shop.post(f"/v1/webhooks/{made['id']}/rotate")).json()
    assert (await make(shop)).json()["secret"] == newer["secret"]
    await shop.delete(f"/v1/webhooks/{made['id']}")
    gone = await make(shop)
    assert (gone.status_code, gone.json()["code"]) == (404, "webhook_unknown")
    assert await count(shop) == 0, "a late repeat does not bring it back"


async def test_the_key_look_up_returns_the_webhook_without_the_secret(shop: httpx2.AsyncClient) -> None:
    """Done, with the webhook as it is; the secret is only in the answer to the request itself."""
    asked = "/v1/idempotency/make-1"
    assert (await shop.get(asked)).json() == {"key": "make-1", "state": "unknown"}
    made = (await make(shop)).json()
    told = await shop.get(asked)
    assert (told.json()["state"], told.json()["status"], told.json()["answer"]["id"]) == ("done", 201, made["id"])
    assert made["secret"] not in told.text
    await shop.delete(f"/v1/webhooks/{made['id']}")
    assert (await shop.get(asked)).json() == {"key": "make-1", "state": "done", "status": 201}


async def test_pings_and_replays_and_tokens_take_a_key_and_record_nothing(shop: httpx2.AsyncClient) -> None:
    """A ping is one more ping, a replay is known by its message's id, and no token is kept; a bad key is refused."""
    made = (await make(shop)).json()
    path = f"/v1/webhooks/{made['id']}"
    pings = [(await shop.post(f"{path}/test", headers=KEYED)).json() for _ in range(2)]
    assert pings[0]["id"] != pings[1]["id"]
    replay = f"{path}/deliveries/{pings[0]['id']}/replay"
    again_ = [(await shop.post(replay, headers=KEYED)).json()["id"] for _ in range(2)]
    assert again_ == [pings[0]["id"]] * 2
    issue: dict[str, Any] = {"url": "/v1/tokens", "json": {"buyer": "alice"}}
    issued = [await shop.post(**issue, headers={"Idempotency-Key": "token-1"}) for _ in range(2)]
    assert [one.status_code for one in issued] == [201, 201]
    assert (await shop.get("/v1/idempotency/token-1")).json()["state"] == "unknown"
    for url, body in ((f"{path}/test", {}), (replay, None), ("/v1/tokens", {"buyer": "alice"})):
        bad = await shop.post(url, json=body, headers={"Idempotency-Key": "a\x7fb"})
        assert (bad.status_code, bad.json()["code"]) == (422, "invalid_request"), url


async def test_duplicates_have_one_effect_over_each_store(store: Store, clock: MovableClock) -> None:
    """Many at once with one key: one webhook, one secret, in every answer."""
    served = house_over(store, clock)
    transport = httpx2.ASGITransport(app=create_app(served), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        answers = await asyncio.gather(*(make(client) for _ in range(TWINS)))
        assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers]
        assert {answer.content for answer in answers} == {answers[0].content}
        made = answers[0].json()
        path, rotate = f"/v1/webhooks/{made['id']}/rotate", {"Idempotency-Key": "rotate-1"}
        rotated = await asyncio.gather(*(client.post(path, headers=rotate) for _ in range(TWINS)))
        assert {answer.status_code for answer in rotated} == {200}, [answer.text for answer in rotated]
        (webhook,) = await store.webhooks.page(mode=Mode.TEST, after=None, limit=9)
    assert {answer.json()["secret"] for answer in rotated} == {webhook.secret}
    assert (webhook.old_secret, webhook.version) == (made["secret"], 2)


async def test_a_key_is_recorded_with_its_effect_or_not_at_all(store: Store) -> None:
    """Where nothing was made or saved, the key is free; where it was done, it is done once."""
    webhook = await subscribe(store, URL)
    deed = await deed_about(store, webhook)
    fresh = msgspec.structs.replace(webhook, id=new_webhook_id(), secret=new_secret())
    stale = msgspec.structs.replace(webhook, version=webhook.version + 2)
    assert not await store.webhooks.make(fresh, limit=1, deed=deed)
    assert not await store.webhooks.save(stale, deed=deed)
    assert await store.webhooks.look_up_key(deed.key) is None
    assert await store.webhooks.save(msgspec.structs.replace(webhook, version=2), deed=deed)
    assert await store.webhooks.look_up_key(deed.key) == deed
    for work in (
        store.webhooks.make(fresh, limit=9, deed=deed),
        store.webhooks.save(msgspec.structs.replace(webhook, version=3), deed=deed),
    ):
        try:
            await work
        except AlreadyDone:
            continue
        raise AssertionError("it was done twice")
    assert (await again(store, webhook)).version == 2
    assert await store.webhooks.read(fresh.id) is None
    assert await store.webhooks.look_up_key(IdempotencyKey("another", deed.key.key)) is None


async def test_the_janitor_removes_such_records_with_the_keys(store: Store, clock: MovableClock) -> None:
    """When the time of a key is over, a few at a time, and the webhook stays."""
    webhook = await subscribe(store, URL)
    for number in range(1, 4):
        deed = await deed_about(store, webhook, key=f"k{number}", done_at=clock.now() + timedelta(seconds=number))
        webhook = msgspec.structs.replace(webhook, version=webhook.version + 1)
        assert await store.webhooks.save(webhook, deed=deed)
    clock.advance(KEYS_SECONDS + 2.5)
    janitor = Janitor(store, clock=clock, batch_size_max=2)
    cleared, more = await janitor.tidy()
    assert (cleared["keys"], more) == (2, True)
    left = [await store.webhooks.look_up_key(IdempotencyKey("shop", f"k{number}")) for number in range(1, 4)]
    assert [deed is None for deed in left] == [True, True, False]
    clock.advance(10)
    assert (await janitor.tidy())[0]["keys"] == 1
    assert await again(store, webhook) == webhook
