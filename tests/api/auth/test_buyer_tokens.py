"""Tokens: one buyer each, of one kind, for as long as the key that issued them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import msgspec
import pytest
from tests.api.matrix import Ticks

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.api.routes.issue_buyer_token import TOKEN_SECONDS_MAX
from earmark.domain.api_key import Scope
from earmark.domain.live_or_test_mode import Mode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock
    from earmark.domain.id_types import KeyId

LAYOUT = {"rows": 1, "seats_per_row": 4, "price": 1}
CONCERT = {"id": "concert", "name": "A concert", "currency": "EUR", "layout": LAYOUT}


class Shop:
    """A shop with stored keys, and its callers."""

    def __init__(self, services: Services, ticks: Ticks) -> None:
        self.ticks = ticks
        self.keys = services.engine.store.keys
        authenticator = Authenticator(admin_key="ek_live_of-the-token-tests", keys=self.keys, timer=ticks)
        self.services = msgspec.structs.replace(services, authenticator=authenticator)
        self._transport = httpx2.ASGITransport(app=create_app(self.services), raise_app_exceptions=False)

    async def key(self, *scopes: Scope, mode: Mode = Mode.LIVE) -> tuple[KeyId, str]:
        """A new key: its id and its secret."""
        key_id, secret = new_key_id(), new_key(mode=mode)
        await self.keys.create(key_id, name="k", mode=mode, scopes=frozenset(scopes), secret_hash=hash_of(secret))
        return key_id, secret

    def caller(self, credential: str | None) -> httpx2.AsyncClient:
        """A client with this credential."""
        headers = {"Authorization": f"Bearer {credential}"} if credential else {}
        return httpx2.AsyncClient(transport=self._transport, base_url="http://shop", headers=headers)


@pytest.fixture
async def shop(services: Services) -> AsyncIterator[Shop]:
    shop = Shop(services, Ticks())
    yield shop
    await shop.services.authenticator.close()


async def issued(shop: Shop, secret: str, buyer: str = "alice", **more: int) -> str:
    async with shop.caller(secret) as seller:
        answer = await seller.post("/v1/tokens", json={"buyer": buyer, **more})
        assert (answer.status_code, answer.json()["buyer"]) == (201, buyer), answer.text
        assert answer.headers["Cache-Control"] == "no-store"
        return str(answer.json()["token"])


async def test_a_token_lets_one_buyer_hold_pay_and_release(shop: Shop) -> None:
    """Their own, and in their name."""
    _, secret = await shop.key(Scope.SELL, Scope.MANAGE, mode=Mode.TEST)
    async with shop.caller(secret) as seller, shop.caller(await issued(shop, secret)) as alice:
        assert (await seller.post("/v1/events", json=CONCERT)).status_code == 201
        held = await alice.post("/v1/bookings", json={"event_id": "concert", "seats": ["A1"]})
        assert (held.status_code, held.json()["buyer"]) == (201, "alice")
        path = f"/v1/bookings/{held.json()['id']}"
        paid = await alice.post(f"{path}/pay", json={"method": "pm_card_visa"}, headers={"Idempotency-Key": "1"})
        assert (paid.status_code, paid.json()["state"]) == (200, "confirmed")
        other = await alice.post("/v1/bookings", json={"event_id": "concert", "seats": ["A2"]})
        assert (await alice.post(f"/v1/bookings/{other.json()['id']}/release")).json()["state"] == "released"
        history = (await seller.get(f"{path}/history")).json()["entries"]
        assert history[0]["actor"] == "buyer:alice"


async def test_a_key_is_named_in_the_journal(shop: Shop) -> None:
    """By its id, whichever secret it was shown by."""
    key_id, secret = await shop.key(Scope.SELL, Scope.MANAGE, mode=Mode.TEST)
    async with shop.caller(secret) as seller:
        await seller.post("/v1/events", json=CONCERT)
        held = await seller.post("/v1/bookings", json={"event_id": "concert", "buyer": "bob", "seats": ["A1"]})
        history = (await seller.get(f"/v1/bookings/{held.json()['id']}/history")).json()["entries"]
    assert history[0]["actor"] == f"key:{key_id}"


async def test_a_rotation_keeps_idempotency_keys_and_tokens(shop: Shop) -> None:
    """A repeat with the new secret is the repeat of the old one's request."""
    key_id, old = await shop.key(Scope.SELL, Scope.MANAGE, mode=Mode.TEST)
    token = await issued(shop, old)
    new = new_key(mode=Mode.TEST)
    body = {"event_id": "concert", "buyer": "bob", "seats": ["A1"]}
    async with shop.caller(old) as before, shop.caller(new) as after, shop.caller(token) as alice:
        await before.post("/v1/events", json=CONCERT)
        first = await before.post("/v1/bookings", json=body, headers={"Idempotency-Key": "k"})
        await shop.keys.rotate(key_id, secret_hash=hash_of(new), grace_seconds=60)
        shop.ticks.now += 1
        replayed_response = await after.post("/v1/bookings", json=body, headers={"Idempotency-Key": "k"})
        assert (replayed_response.content, replayed_response.headers["Idempotency-Replayed"]) == (first.content, "true")
        assert (await alice.get("/v1/events")).status_code == 200
        assert (await before.get("/v1/events")).status_code == 200
        await shop.keys.rotate(key_id, secret_hash=hash_of(new_key(mode=Mode.TEST)), grace_seconds=0)
        shop.ticks.now += 1
        assert [(await one.get("/v1/events")).status_code for one in (before, after, alice)] == [401, 401, 200]


async def test_the_same_buyer_in_both_kinds_has_two_sets_of_idempotency_keys(shop: Shop) -> None:
    """A test must never be answered with what is live, nor the other way round."""
    answers = []
    for mode in (Mode.LIVE, Mode.TEST):
        _, secret = await shop.key(Scope.SELL, Scope.MANAGE, mode=mode)
        event = CONCERT | {"id": mode.value}
        async with shop.caller(secret) as seller, shop.caller(await issued(shop, secret)) as alice:
            await seller.post("/v1/events", json=event)
            listed = [one["id"] for one in (await seller.get("/v1/events")).json()["events"]]
            assert listed == [event["id"]]
            answers.append(
                await alice.post(
                    "/v1/bookings", json={"event_id": "live", "seats": ["A1"]}, headers={"Idempotency-Key": "k"}
                )
            )
    assert [answer.status_code for answer in answers] == [201, 404]
    assert "Idempotency-Replayed" not in answers[1].headers


@pytest.mark.parametrize("seconds", [0, -1, TOKEN_SECONDS_MAX + 1, 1.5, "60"])
async def test_a_token_expires_within_bounds(shop: Shop, seconds: object) -> None:
    """A credential without an end is a key."""
    _, secret = await shop.key(Scope.SELL)
    async with shop.caller(secret) as seller:
        answer = await seller.post("/v1/tokens", json={"buyer": "alice", "seconds": seconds})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "seconds")


async def test_a_token_ends_at_its_time_or_with_its_key(shop: Shop, clock: MovableClock) -> None:
    """Whichever comes first."""
    key_id, secret = await shop.key(Scope.SELL)
    short, long = await issued(shop, secret, seconds=60), await issued(shop, secret, seconds=600)
    async with shop.caller(short) as one, shop.caller(long) as other:
        assert [(await who.get("/v1/events")).status_code for who in (one, other)] == [200, 200]
        clock.advance(61)
        assert [(await who.get("/v1/events")).status_code for who in (one, other)] == [401, 200]
        await shop.keys.revoke(key_id)
        shop.ticks.now += 1
        assert (await other.get("/v1/events")).status_code == 401


async def test_a_token_is_not_made_into_a_guest_s(shop: Shop) -> None:
    """A guest's token outlives every key: a client with a key's token becomes a new guest, with another name."""
    for mode in Mode:
        _, secret = await shop.key(Scope.SELL, mode=mode)
        async with shop.caller(await issued(shop, secret)) as alice:
            welcomed = await alice.post("/v1/guests")
            assert welcomed.status_code == 201
            assert welcomed.json()["buyer"].startswith("guest_")


async def test_a_buyer_issues_no_tokens(shop: Shop) -> None:
    """Nor does a key that may not sell."""
    _, secret = await shop.key(Scope.SELL)
    _, manager = await shop.key(Scope.MANAGE)
    for credential in (await issued(shop, secret), manager):
        async with shop.caller(credential) as other:
            answer = await other.post("/v1/tokens", json={"buyer": "bob"})
            assert (answer.status_code, answer.json()["needs"]) == (403, "sell")


async def test_a_manager_reads_events_and_no_bookings(shop: Shop) -> None:
    """The key that makes an event may read it; its buyers are not for that key."""
    _, manager = await shop.key(Scope.MANAGE)
    async with shop.caller(manager) as box_office:
        assert (await box_office.post("/v1/events", json=CONCERT)).status_code == 201
        for path in ("", "/seats", "/seats/A1", "/seats/A1/explain"):
            assert (await box_office.get(f"/v1/events/concert{path}")).status_code == 200
        assert (await box_office.get("/v1/bookings")).status_code == 403


async def test_a_manager_sees_what_became_of_its_own_requests(shop: Shop) -> None:
    """Of an event that it made, and of no other caller's keys; a key that neither buys nor manages sees nothing."""
    (_, own), (_, another), (_, operator) = [await shop.key(scope) for scope in (Scope.MANAGE, Scope.MANAGE, Scope.OPS)]
    asked = "/v1/idempotency/concert-1"
    async with shop.caller(own) as manager:
        made = await manager.post("/v1/events", json=CONCERT, headers={"Idempotency-Key": "concert-1"})
        assert made.status_code == 201
        told = await manager.get(asked)
        assert (told.status_code, told.json()["state"], told.json()["answer"]) == (200, "done", made.json())
    async with shop.caller(another) as same_mode:
        assert (await same_mode.get(asked)).json()["state"] == "unknown"
    async with shop.caller(operator) as without_scope:
        assert (await without_scope.get(asked)).status_code == 403


async def test_a_silent_database_makes_no_key_wrong(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 for a good key that was not seen lately, and for a token of one; never 401."""
    from earmark.errors import StoreUnavailable

    _, secret = await shop.key(Scope.SELL)
    token = await issued(shop, secret)
    assert shop.services.authenticator._cache is not None

    async def silent(_: object) -> None:
        raise StoreUnavailable(because="a test says so")

    monkeypatch.setattr(shop.services.authenticator._cache._keys, "find", silent)
    monkeypatch.setattr(shop.services.authenticator._cache._keys, "read", silent)
    async with shop.caller(secret) as seller, shop.caller(token) as alice:
        assert (await seller.get("/v1/events")).status_code == 200
        shop.ticks.now += 1
        for one in (seller, alice):
            answer = await one.get("/v1/events")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["Retry-After"]


async def test_a_buyer_s_token_holds_the_best_seats(shop: Shop) -> None:
    """It says how many, and gets them in its own name; of more than there are it is told how many are left."""
    _, secret = await shop.key(Scope.SELL, Scope.MANAGE)
    async with shop.caller(secret) as seller:
        assert (await seller.post("/v1/events", json=CONCERT)).status_code == 201
    async with shop.caller(await issued(shop, secret)) as alice:

        async def best(count: int, **more: str) -> httpx2.Response:
            body = {"event_id": "concert", "best_available": {"count": count}} | more
            return await alice.post("/v1/bookings", json=body)

        held = await best(2)
        assert (held.status_code, held.json()["buyer"], len(held.json()["seats"])) == (201, "alice", 2)
        refused = await best(3)
        assert (refused.status_code, refused.json()["code"], refused.json()["available"]) == (409, "none_available", 2)
        other = await best(1, buyer="bob")
        assert (other.status_code, other.json()["code"]) == (403, "forbidden")
