"""The stream at the door: who may follow, in which words, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark.api.app import create_app
from earmark.api.auth.api_keys import Doubt, Identity, Scope, hash_of, new_key, new_key_id
from earmark.api.auth.guest_cookie import COOKIE
from earmark.api.endpoint import House
from earmark.api.middleware.rate_limits import Limits
from earmark.api.routes.events import draw
from earmark.domain.ids import Buyer
from earmark.engine.engine import Engine
from earmark.engine.ports.outbox import START
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.observability.metrics.metrics import Metrics
from earmark.payments.service import Till
from earmark.seatmap.cache import Availability
from earmark.seatmap.entry_feed import Feed
from earmark.store.memory import MemoryStore

from .streaming import FACT_SECONDS_MAX, hub_over, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.ids import KeyId
    from earmark.uuids import Uuid7Ids

KEY = "ek_test_0123456789abcdef"
PATH = "/v1/events/play/stream"


@pytest.fixture
async def house(clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[House]:
    engine = Engine(MemoryStore(clock=clock), ids=ids)
    hub = hub_over(engine.store, clock=clock, feed=Feed(), stall_seconds=0.2, tick_seconds=0.05, readers_max=2)
    made = House(
        engine=engine,
        identity=Identity(admin_key=KEY, keys=engine.store.keys),
        metrics=Metrics(version="test"),
        clock=clock,
        guests=True,
        availability=Availability(engine, clock=clock, word=draw),
        till=Till(engine, {}),
        hub=hub,
    )
    yield made
    await made.identity.close()
    await hub.close()


@pytest.fixture
async def shop(house: House) -> Earmark:
    shop = Earmark(house.engine, live=False)
    await shop.create("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 2}, pools={"GA": (10, 5)})
    return shop


class Client:
    """One request, by hand: a stream is never at its end."""

    def __init__(self, house: House, *, path: str = PATH, method: str = "GET", **headers: str) -> None:
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
        app = house.in_flight.around(create_app(house))
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
async def test_a_buyer_follows_by_cookie_or_token(house: House, shop: Earmark, shown: str) -> None:
    """EventSource cannot send a header, so the guest's cookie is enough; `mine` is theirs."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    token = house.identity.issue(Buyer("alice"), now=house.clock.now(), seconds=600)
    client = Client(house, **({"cookie": f"{COOKIE}={token}"} if shown == "cookie" else bearer(token)))
    start = await client.take()
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-store", b"no")
    assert b"content-length" not in headers
    event = await client.event()
    assert (event["event"], event["id"]) == ("snapshot", "0")
    assert [seat["mine"] for seat in event["data"]["seats"]] == [True, False]
    await client.hang_up()
    assert house.hub is not None
    assert house.hub.readers == 0


async def test_the_snapshot_is_the_map_byte_for_byte(house: House, shop: Earmark) -> None:
    """With its version: who knows the map's ETag knows whether they have it."""
    await shop.hold("play", buyer="alice", seats=["A2"])
    for who in (bearer(), bearer(house.identity.issue(Buyer("alice"), now=house.clock.now(), seconds=600))):
        asked = Client(house, path="/v1/events/play/seats", **who)
        await asked.take()
        body = (await asked.take())["body"]
        followed = Client(house, **who)
        await followed.take()
        assert b"\ndata: " + body + b"\n\n" in (await followed.take())["body"]
        await followed.hang_up()


async def test_only_who_may_see_the_map_may_follow_it(house: House, shop: Earmark) -> None:
    """No key, a forged one, an event that is not there, or one of the other kind: as for the map."""
    await Earmark(shop.engine, live=True).create("live", name="Live", currency="EUR", seats={"A1": 1})
    for headers, path, status in (
        ({}, PATH, 401),
        (bearer("ek_test_of-somebody-else"), PATH, 401),
        (bearer(), "/v1/events/nowhere/stream", 404),
        (bearer(), "/v1/events/live/stream", 404),
    ):
        client = Client(house, path=path, **headers)
        assert (await client.take())["status"] == status
        await client.task


@pytest.mark.parametrize("said", ["header", "parameter", "nonsense"])
async def test_who_names_the_last_event_is_told_what_came_after(house: House, shop: Earmark, said: str) -> None:
    """By the header that browsers send, or by a parameter; what is no number gets the whole map."""
    await shop.hold("play", buyer="alice", seats=["A1"])
    await house.engine.store.outbox.number(after=START, limit=10)
    given = bearer() | {"header": {"last_event_id": "1"}, "nonsense": {"last_event_id": "-1"}}.get(said, {})
    client = Client(house, path=PATH + ("?last_event_id=1" if said == "parameter" else ""), **given)
    await client.take()
    event = await client.event()
    assert (event["event"], event["id"]) == ("snapshot" if said == "nonsense" else "delta", "2")
    assert len(event["data"]["seats"]) == (2 if said == "nonsense" else 1)
    await client.hang_up()


async def test_more_readers_than_one_process_serves_are_refused(house: House, shop: Earmark) -> None:
    """503, to come again; and there is room again once somebody has left."""
    del shop
    clients = [Client(house, **bearer()) for _ in range(2)]
    for client in clients:
        assert (await client.take())["status"] == 200
        await client.take()
    refused = Client(house, **bearer())
    start = await refused.take()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    await clients[0].hang_up()
    let_in = Client(house, **bearer())
    assert (await let_in.take())["status"] == 200
    for client in (clients[1], let_in):
        await client.hang_up()


@pytest.mark.parametrize("who", ["buyer", "key"])
async def test_one_caller_has_so_many_streams_at_once(house: House, shop: Earmark, who: str) -> None:
    """429 to the one more, though the process has room; others come in, and there is room again once one has left."""
    del shop
    bounded = msgspec.structs.replace(house, limits=Limits(streams_per_buyer=1, streams_per_key=1))
    alice = house.identity.issue(Buyer("alice"), now=house.clock.now(), seconds=600)
    mine, other = (alice, KEY) if who == "buyer" else (KEY, alice)
    first = await following(bounded, mine)
    refused = Client(bounded, **bearer(mine))
    start = await refused.take()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (429, b"1")
    problem = json.loads((await refused.take())["body"])
    assert (problem["code"], problem["per"], problem["limit"]) == ("too_many_requests", who, 1)
    await (await following(bounded, other)).hang_up()
    await first.hang_up()
    again = await following(bounded, mine)
    control = await following(house, mine)
    for client in (again, control):
        await client.hang_up()
    assert house.hub is not None
    assert not house.hub._callers, "nothing is left behind"


async def test_one_address_has_so_many_streams_at_once(house: House, shop: Earmark) -> None:
    """A guest costs nothing, and each has a limit of its own: together they have another. The shop's key has none."""
    del shop
    bounded = msgspec.structs.replace(house, limits=Limits(streams_per_buyer=9, streams_per_address=1))
    one, other = (house.identity.issue(Buyer(name), now=house.clock.now(), seconds=600) for name in ("alice", "bob"))
    first = await following(bounded, one)
    refused = Client(bounded, **bearer(other))
    assert (await refused.take())["status"] == 429
    problem = json.loads((await refused.take())["body"])
    assert (problem["code"], problem["per"], problem["limit"]) == ("too_many_requests", "address", 1)
    await (await following(bounded, KEY)).hang_up()
    await (await following(house, other)).hang_up()
    await first.hang_up()
    await (await following(bounded, other)).hang_up()
    assert house.hub is not None
    assert not house.hub._addresses, "nothing is left behind"


async def test_a_server_with_few_connections_serves_fewer_streams(house: House, shop: Earmark) -> None:
    """Streams stay: they must not take all connections, and one setting does not raise another."""
    del shop
    assert house.hub is not None
    house.hub.keep_room(1_000_000)
    house.hub.keep_room(1)
    first = await following(house, KEY)
    refused = Client(house, **bearer())
    assert (await refused.take())["status"] == 503
    await first.hang_up()


async def test_a_stream_that_is_refused_is_not_counted(house: House, shop: Earmark) -> None:
    """Who asks for an event that is not there, again and again, may still follow one that is."""
    del shop
    bounded = msgspec.structs.replace(house, limits=Limits(streams_per_key=1))
    for _ in range(3):
        unknown = Client(bounded, path="/v1/events/nothing/stream", **bearer())
        assert (await unknown.take())["status"] == 404
    await (await following(bounded, KEY)).hang_up()


async def test_a_client_that_takes_nothing_is_let_go(house: House, shop: Earmark) -> None:
    """Its request ends like any other: no error is logged for it, and nothing is left running."""
    del shop
    client = Client(house, **bearer())
    await client.take()
    client.stuck = True
    assert house.hub is not None
    house.hub.hear(hearing=True)
    for reader in house.hub._readers[next(iter(house.hub._readers))]:
        reader._beat = True
        reader.wake()
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    assert (house.hub.dropped, house.hub.readers) == (1, 0)


async def test_a_head_request_is_answered_at_once(house: House, shop: Earmark) -> None:
    """There is no body to wait for."""
    del shop
    client = Client(house, method="HEAD", **bearer())
    assert (await client.take())["status"] == 200
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)


async def test_a_server_that_goes_away_ends_streams_and_is_not_ready(house: House, shop: Earmark) -> None:
    """A last event; then 503 with a code, and answers that close their connections."""
    del shop
    client = Client(house, **bearer())
    await client.take()
    await client.take()
    assert house.hub is not None
    house.in_flight.begin_shutdown()
    house.hub.end()
    assert (await client.event())["event"] == "end"
    assert (await client.take())["more_body"] is False
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    asked = Client(house, path="/readyz")
    start = await asked.take()
    assert start["status"] == 503
    assert (b"connection", b"close") in start["headers"]
    assert b'"code":"stopping"' in (await asked.take())["body"]


async def stored_key(house: House) -> tuple[KeyId, str]:
    key_id, secret = new_key_id(), new_key(live=False)
    await house.engine.store.keys.create(
        key_id, name="k", live=False, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
    )
    return key_id, secret


async def token_of(house: House, secret: str, buyer: str, *, seconds: int = 600) -> str:
    doubt = house.identity.recognise(secret, now=house.clock.now())
    by = await house.identity.look_up(doubt, now=house.clock.now()) if isinstance(doubt, Doubt) else doubt
    assert by is not None
    return house.identity.issue(Buyer(buyer), now=house.clock.now(), seconds=seconds, by=by)


async def following(house: House, credential: str) -> Client:
    client = Client(house, **bearer(credential))
    assert (await client.take())["status"] == 200
    assert (await client.event())["event"] == "snapshot"
    return client


@pytest.mark.parametrize("shown", ["the key", "its token"])
async def test_a_stream_ends_with_the_key_that_let_it_in(house: House, shop: Earmark, shown: str) -> None:
    """Revoked, its streams and those of its tokens get a last event that says why; others go on."""
    del shop
    key_id, secret = await stored_key(house)
    credential = secret if shown == "the key" else await token_of(house, secret, "alice")
    client, admin = await following(house, credential), await following(house, KEY)
    await house.engine.store.keys.revoke(key_id)
    ended = await client.event()
    assert (ended["event"], ended["data"]["reason"]) == ("end", "credential_ended")
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)
    back = Client(house, **bearer(credential))
    assert (await back.take())["status"] == 401
    assert not admin.task.done()
    await admin.hang_up()
    assert house.identity._vigil is not None
    assert (house.identity._vigil._watched, house.identity._vigil._task) == ({}, None), "nothing is left behind"


@pytest.mark.parametrize("issuer", ["a key", "the house"])
async def test_a_stream_ends_with_its_token(house: House, shop: Earmark, issuer: str) -> None:
    """A token that is over lets nobody follow, whoever issued it."""
    del shop
    if issuer == "a key":
        token = await token_of(house, (await stored_key(house))[1], "alice", seconds=3)
    else:
        token = house.identity.issue(Buyer("guest"), now=house.clock.now(), seconds=3)
    client = await following(house, token)
    ended = await client.event()
    assert (ended["event"], ended["data"]["reason"]) == ("end", "credential_ended")
    await asyncio.wait_for(client.task, timeout=FACT_SECONDS_MAX)


async def test_a_store_that_does_not_say_ends_no_stream(
    house: House, shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent away by guessing; once the store speaks again, it is asked again."""
    del shop
    key_id, secret = await stored_key(house)
    client = await following(house, secret)
    ring, asked = house.identity._ring, asyncio.Queue[None]()
    assert ring is not None
    look = ring.look

    async def silent(handle: bytes | str) -> None:
        del handle
        asked.put_nowait(None)
        raise StoreUnavailable(because="a test")

    monkeypatch.setattr(ring, "look", silent)
    await house.engine.store.keys.revoke(key_id)
    for _ in range(2):
        await asyncio.wait_for(asked.get(), timeout=FACT_SECONDS_MAX)
    assert client.sent.empty()
    monkeypatch.setattr(ring, "look", look)
    assert (await client.event())["data"]["reason"] == "credential_ended"


async def test_without_the_vigil_a_stream_outlives_its_key(
    house: House, shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nobody looks again, and news still comes after the key was revoked."""
    monkeypatch.setattr(house.identity, "_vigil", None)
    key_id, secret = await stored_key(house)
    client = await following(house, secret)
    await house.engine.store.keys.revoke(key_id)
    status = 200
    while status != 401:
        status = (await Client(house, path="/v1/events", **bearer(secret)).take())["status"]
    await shop.hold("play", buyer="alice", seats=["A1"])
    await house.engine.store.outbox.number(after=START, limit=10)
    assert (await client.event())["event"] == "delta"
    await client.hang_up()
