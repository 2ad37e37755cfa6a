"""The stream over HTTP: which callers may follow, in which format, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.seatmap.streaming import FACT_SECONDS_MAX, hub_over, parse

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, Scope, UnverifiedCredential, hash_of, new_key, new_key_id
from earmark.api.auth.read_and_set_guest_cookie import COOKIE
from earmark.api.middleware.rate_limits import RateLimits
from earmark.api.open_services_for_handlers import Services
from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.engine.ports.number_and_read_journal import START
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas.render_seat_map import render_map
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.id_types import KeyId
    from earmark.uuids import Uuid7Ids

KEY = "ek_test_0123456789abcdef"
PATH = "/v1/events/play/stream"


@pytest.fixture
async def services(clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[Services]:
    engine = Engine(MemoryStore(clock=clock), ids=ids)
    hub = hub_over(engine.store, clock=clock, feed=EntryFeed(), stall_seconds=0.2, tick_seconds=0.05, readers_max=2)
    made = Services(
        engine=engine,
        authenticator=Authenticator(admin_key=KEY, keys=engine.store.keys),
        metrics=Metrics(version="test"),
        clock=clock,
        guests=True,
        seat_map_cache=SeatMapCache(engine, clock=clock, render=render_map),
        payments=PaymentService(engine, {}),
        hub=hub,
    )
    yield made
    await made.authenticator.close()
    await hub.close()


@pytest.fixture
async def shop(services: Services) -> Earmark:
    shop = Earmark(services.engine, mode=Mode.TEST)
    await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 2}, pools={"GA": (10, 5)})
    return shop


class Client:
    """One request, at the ASGI interface: a stream is never at its end."""

    def __init__(self, services: Services, *, path: str = PATH, method: str = "GET", **headers: str) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._asked.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.stuck = False
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "scheme": "http",
        }
        app = services.in_flight.around(create_app(services))
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(scope, self._asked.get, self._send))

    async def _send(self, message: Any) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.sent.put_nowait(message)

    async def take(self) -> dict[str, Any]:
        """The next thing that was sent."""
        return await asyncio.wait_for(self.sent.get(), timeout=FACT_SECONDS_MAX)

    async def event(self) -> dict[str, Any]:
        """The next event of the stream."""
        return parse((await self.take())["body"])

    async def hang_up(self) -> None:
        """Close the connection, and see the request end."""
        self._asked.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(self.task, timeout=FACT_SECONDS_MAX)


def bearer(credential: str = KEY) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


@pytest.mark.parametrize("shown", ["cookie", "token"])
async def test_a_buyer_follows_by_cookie_or_token(services: Services, shop: Earmark, shown: str) -> None:
    """EventSource cannot send a header, so the guest's cookie is enough; `mine` is theirs."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    token = services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=600)
    client = Client(services, **({"cookie": f"{COOKIE}={token}"} if shown == "cookie" else bearer(token)))
    start = await client.take()
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-store", b"no")
    assert b"content-length" not in headers
    event = await client.event()
    assert (event["event"], event["id"]) == ("snapshot", "0")
    assert [seat["mine"] for seat in event["data"]["seats"]] == [True, False]
    await client.hang_up()
    assert services.hub is not None
    assert services.hub.readers == 0


async def test_the_snapshot_is_the_map_byte_for_byte(services: Services, shop: Earmark) -> None:
    """With its version: a client with the map's ETag knows whether it has it."""
    await shop.hold("play", buyer="alice", seats=["A2"])
    for who in (bearer(), bearer(services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=600))):
        asked = Client(services, path="/v1/events/play/seats", **who)
        await asked.take()
        body = (await asked.take())["body"]
        followed = Client(services, **who)
        await followed.take()
        assert b"\ndata: " + body + b"\n\n" in (await followed.take())["body"]
        await followed.hang_up()


async def test_only_a_caller_that_may_see_the_map_may_follow_it(services: Services, shop: Earmark) -> None:
    """No key, a forged one, an event that is not there, or one of the other kind: as for the map."""
    await Earmark(shop.engine, mode=Mode.LIVE).create_event("live", name="Live", currency="EUR", seats={"A1": 1})
    for headers, path, status in (
        ({}, PATH, 401),
        (bearer("ek_test_of-another-shop"), PATH, 401),
        (bearer(), "/v1/events/nowhere/stream", 404),
        (bearer(), "/v1/events/live/stream", 404),
    ):
        client = Client(services, path=path, **headers)
        assert (await client.take())["status"] == status
        await client.task


@pytest.mark.parametrize("said", ["header", "parameter", "nonsense"])
async def test_a_reader_that_names_the_last_event_gets_what_came_after(
    services: Services, shop: Earmark, said: str
) -> None:
    """By the header that browsers send, or by a parameter; what is no number gets the whole map."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    await services.engine.store.outbox.number(after=START, limit=10)
    given = bearer() | {"header": {"last_event_id": "1"}, "nonsense": {"last_event_id": "-1"}}.get(said, {})
    client = Client(services, path=PATH + ("?last_event_id=1" if said == "parameter" else ""), **given)
    await client.take()
    event = await client.event()
    assert (event["event"], event["id"]) == ("snapshot" if said == "nonsense" else "delta", "2")
    assert len(event["data"]["seats"]) == (2 if said == "nonsense" else 1)
    await client.hang_up()


async def test_more_readers_than_one_process_serves_are_refused(services: Services, shop: Earmark) -> None:
    """503 with Retry-After; and there is room again once a reader has left."""
    del shop
    clients = [Client(services, **bearer()) for _ in range(2)]
    for client in clients:
        assert (await client.take())["status"] == 200
        await client.take()
    refused = Client(services, **bearer())
    start = await refused.take()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    await clients[0].hang_up()
    let_in = Client(services, **bearer())
    assert (await let_in.take())["status"] == 200
    for client in (clients[1], let_in):
        await client.hang_up()


@pytest.mark.parametrize("who", ["buyer", "key"])
async def test_one_caller_has_so_many_streams_at_once(services: Services, shop: Earmark, who: str) -> None:
    """429 to the one more, though the process has room; others may follow, and there is room once one has left."""
    del shop
    bounded = msgspec.structs.replace(services, limits=RateLimits(streams_per_buyer=1, streams_per_key=1))
    alice = services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=600)
    mine, other = (alice, KEY) if who == "buyer" else (KEY, alice)
    first = await following(bounded, mine)
    refused = Client(bounded, **bearer(mine))
    start = await refused.take()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (429, b"1")
    problem = json.loads((await refused.take())["body"])
    assert (problem["code"], problem["per"], problem["limit"]) == ("too_many_requests", who, 1)
    await (await following(bounded, other)).hang_up()
    await first.hang_up()
    replayed_response = await following(bounded, mine)
    control = await following(services, mine)
    for client in (replayed_response, control):
        await client.hang_up()
    assert services.hub is not None
    assert not services.hub._callers, "nothing is left behind"


async def test_one_address_has_so_many_streams_at_once(services: Services, shop: Earmark) -> None:
    """A guest costs nothing, and each has a limit of its own: together they have another. The shop's key has none."""
    del shop
    bounded = msgspec.structs.replace(services, limits=RateLimits(streams_per_buyer=9, streams_per_address=1))
    one, other = (
        services.authenticator.issue(Buyer(name), now=services.clock.now(), seconds=600) for name in ("alice", "bob")
    )
    first = await following(bounded, one)
    refused = Client(bounded, **bearer(other))
    assert (await refused.take())["status"] == 429
    problem = json.loads((await refused.take())["body"])
    assert (problem["code"], problem["per"], problem["limit"]) == ("too_many_requests", "address", 1)
    await (await following(bounded, KEY)).hang_up()
    await (await following(services, other)).hang_up()
    await first.hang_up()
    await (await following(bounded, other)).hang_up()
    assert services.hub is not None
    assert not services.hub._addresses, "nothing is left behind"


async def test_a_server_with_few_connections_serves_fewer_streams(services: Services, shop: Earmark) -> None:
    """Streams stay: they must not take all connections, and one setting does not raise another."""
    del shop
    assert services.hub is not None
    services.hub.keep_room(1_000_000)
    services.hub.keep_room(1)
    first = await following(services, KEY)
    refused = Client(services, **bearer())
    assert (await refused.take())["status"] == 503
    await first.hang_up()


async def test_a_stream_that_is_refused_is_not_counted(services: Services, shop: Earmark) -> None:
    """A client that requests an unknown event, again and again, may still follow a known one."""
    del shop
    bounded = msgspec.structs.replace(services, limits=RateLimits(streams_per_key=1))
    for _ in range(3):
        unknown = Client(bounded, path="/v1/events/nothing/stream", **bearer())
        assert (await unknown.take())["status"] == 404
    await (await following(bounded, KEY)).hang_up()


async def test_a_client_that_reads_nothing_is_disconnected(services: Services, shop: Earmark) -> None:
    """Its request ends like any other: no error is logged for it, and nothing is left running."""
    del shop
    client = Client(services, **bearer())
    await client.take()
    client.stuck = True
    assert services.hub is not None
    services.hub.on_connection(connected=True)
    for reader in services.hub._readers[next(iter(services.hub._readers))]:
        reader._keep_alive = True
        reader.wake()
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    assert (services.hub.dropped, services.hub.readers) == (1, 0)


async def test_a_head_request_is_answered_at_once(services: Services, shop: Earmark) -> None:
    """There is no body to wait for."""
    del shop
    client = Client(services, method="HEAD", **bearer())
    assert (await client.take())["status"] == 200
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)


async def test_a_server_that_stops_ends_streams_and_is_not_ready(services: Services, shop: Earmark) -> None:
    """A last event; then 503 with a code, and answers that close their connections."""
    del shop
    client = Client(services, **bearer())
    await client.take()
    await client.take()
    assert services.hub is not None
    services.in_flight.begin_shutdown()
    services.hub.end()
    assert (await client.event())["event"] == "end"
    assert (await client.take())["more_body"] is False
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    asked = Client(services, path="/readyz")
    start = await asked.take()
    assert start["status"] == 503
    assert (b"connection", b"close") in start["headers"]
    assert b'"code":"stopping"' in (await asked.take())["body"]


async def stored_key(services: Services) -> tuple[KeyId, str]:
    key_id, secret = new_key_id(), new_key(mode=Mode.TEST)
    await services.engine.store.keys.create(
        key_id, name="k", mode=Mode.TEST, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
    )
    return key_id, secret


async def token_of(services: Services, secret: str, buyer: str, *, seconds: int = 600) -> str:
    credential = services.authenticator.authenticate(secret, services.clock)
    by = (
        await services.authenticator.look_up(credential, now=services.clock.now())
        if isinstance(credential, UnverifiedCredential)
        else credential
    )
    assert by is not None
    return services.authenticator.issue(Buyer(buyer), now=services.clock.now(), seconds=seconds, by=by)


async def following(services: Services, credential: str) -> Client:
    client = Client(services, **bearer(credential))
    assert (await client.take())["status"] == 200
    assert (await client.event())["event"] == "snapshot"
    return client


@pytest.mark.parametrize("shown", ["the key", "its token"])
async def test_a_stream_ends_with_its_key(services: Services, shop: Earmark, shown: str) -> None:
    """Revoked, its streams and those of its tokens get a last event that says why; others go on."""
    del shop
    key_id, secret = await stored_key(services)
    credential = secret if shown == "the key" else await token_of(services, secret, "alice")
    client, admin = await following(services, credential), await following(services, KEY)
    await services.engine.store.keys.revoke(key_id)
    ended = await client.event()
    assert (ended["event"], ended["data"]["reason"]) == ("end", "credential_ended")
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    back = Client(services, **bearer(credential))
    assert (await back.take())["status"] == 401
    assert not admin.task.done()
    await admin.hang_up()
    assert services.authenticator._revocation is not None
    assert (services.authenticator._revocation._streams, services.authenticator._revocation._task) == ({}, None), (
        "nothing is left behind"
    )


@pytest.mark.parametrize("issuer", ["a key", "the house"])
async def test_a_stream_ends_with_its_token(services: Services, shop: Earmark, issuer: str) -> None:
    """An expired token may not follow, whichever key issued it."""
    del shop
    if issuer == "a key":
        token = await token_of(services, (await stored_key(services))[1], "alice", seconds=3)
    else:
        token = services.authenticator.issue(Buyer("guest"), now=services.clock.now(), seconds=3)
    client = await following(services, token)
    ended = await client.event()
    assert (ended["event"], ended["data"]["reason"]) == ("end", "credential_ended")
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)


async def test_a_store_that_does_not_say_ends_no_stream(
    services: Services, shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream is ended by guessing; once the store answers again, it is queried again."""
    del shop
    key_id, secret = await stored_key(services)
    client = await following(services, secret)
    cache, asked = services.authenticator._cache, asyncio.Queue[None]()
    assert cache is not None
    look_up = cache.look_up

    async def silent(handle: bytes | str) -> None:
        del handle
        asked.put_nowait(None)
        raise StoreUnavailable(because="a test")

    monkeypatch.setattr(cache, "look_up", silent)
    await services.engine.store.keys.revoke(key_id)
    for _ in range(2):
        await asyncio.wait_for(asked.get(), timeout=FACT_SECONDS_MAX)
    assert client.sent.empty()
    monkeypatch.setattr(cache, "look_up", look_up)
    assert (await client.event())["data"]["reason"] == "credential_ended"


async def test_control_without_revocation_checks_a_stream_outlives_its_key(
    services: Services, shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the key is not read again, and changes still arrive after it was revoked."""
    monkeypatch.setattr(services.authenticator, "_revocation", None)
    key_id, secret = await stored_key(services)
    client = await following(services, secret)
    await services.engine.store.keys.revoke(key_id)
    status = 200
    while status != 401:
        status = (await Client(services, path="/v1/events", **bearer(secret)).take())["status"]
    await shop.hold("play", buyer="alice", seats=["A1"])
    await services.engine.store.outbox.number(after=START, limit=10)
    assert (await client.event())["event"] == "delta"
    await client.hang_up()
