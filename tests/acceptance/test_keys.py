"""API keys over real servers: created and revoked by command, effective on every server; and limits on bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from .support import Caller, Service, answered, calling, earmark, eventually, refused, unique

JSON_TYPE = {"Content-Type": "application/json"}


def keys(service: Service, *arguments: str) -> Any:
    done = earmark("keys", *arguments, "--json", "--database", service.database)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_key_is_good_at_every_server_until_it_is_revoked(fleet: tuple[Service, ...]) -> None:
    """Made while the servers run; then the servers refuse it and its tokens, and its secret is stored nowhere."""
    made = keys(fleet[0], "create", "the shop", "--scope", "sell", "--test")
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(calling(one, token=made["secret"])) for one in fleet]
        issued = answered(await callers[0].http.post("/v1/tokens", json={"buyer": unique("ann")}), 201)
        buyers = [await stack.enter_async_context(calling(one, token=issued["token"])) for one in fleet]
        for one in (*callers, *buyers):
            answered(await one.http.get("/v1/events"), 200)
        keys(fleet[0], "revoke", made["id"])
        for one in (*callers, *buyers):
            await eventually(partial(_status, one), lambda status: status == 401)
    for service in fleet:
        log = service.log()
        assert made["secret"] not in log
        assert issued["token"] not in log


async def _status(caller: Caller) -> int:
    return (await caller.http.get("/v1/events")).status_code


async def test_a_compressed_body_is_not_unpacked(shop: Caller) -> None:
    """Ten kilobytes that would unpack to ten megabytes are refused by their encoding."""
    bomb = gzip.compress(b'{"event_id": "' + b"a" * 10_000_000 + b'"}')
    assert len(bomb) < 64_000
    answer = await shop.http.post("/v1/bookings", content=bomb, headers=JSON_TYPE | {"Content-Encoding": "gzip"})
    assert refused(answer, 415)["code"] == "unsupported_media_type"


async def test_a_million_items_are_too_many(shop: Caller) -> None:
    """Of a hold, by its size; of an event, by their number, whatever they are."""
    hold = json.dumps({"event_id": "e", "buyer": "b", "seats": ["A1"] * 1_000_000}).encode()
    refused(await shop.http.post("/v1/bookings", content=hold, headers=JSON_TYPE), 413, "body_too_large")
    name = unique("evt")
    numbers = b",".join([b"1"] * 1_000_000)
    event = b'{"id": "%s", "name": "x", "currency": "EUR", "seats": [%s]}' % (name.encode(), numbers)
    refused(await shop.http.post("/v1/events", content=event, headers=JSON_TYPE), 422, "invalid_request")
    pools = [{"id": f"P{n}", "capacity": 1, "price": 1} for n in range(1001)]
    many = {"id": name, "name": "x", "currency": "EUR", "pools": pools}
    refused(await shop.http.post("/v1/events", json=many), 422, "invalid_request")
    assert refused(await shop.http.get(f"/v1/events/{name}"), 404)["code"] == "event_unknown"


async def test_clients_that_send_bodies_slowly_delay_no_other_client(service: Service, shop: Caller) -> None:
    """Two hundred clients that announced a body and sent one byte of it cost the others nothing."""
    event = await shop.theatre()
    head = (
        f"POST /v1/bookings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
    ).encode()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", service.port))) for _ in range(200)]
        for one in slow:
            one.sendall(head)
        async with asyncio.timeout(30), calling(service) as other:
            held = await other.held(event, seats=["A1"])
            for one in slow:
                one.sendall(b" ")
            assert (await other.booking(held["id"]))["state"] == "held"


async def test_brackets_without_end_are_refused_by_their_depth(shop: Caller) -> None:
    """The error names the depth, for a hold and for an event."""
    for path in ("/v1/bookings", "/v1/events"):
        deep = b'{"name":' * 5000 + b"1" + b"}" * 5000
        problem = refused(await shop.http.post(path, content=deep, headers=JSON_TYPE), 422, "invalid_request")
        assert "nested deeper" in problem["detail"]
