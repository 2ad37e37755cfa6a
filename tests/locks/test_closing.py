"""What is under way when locks are closed ends, and its connection with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio.connection import Connection, ConnectionPool
from tests.locks.proxy import Proxy
from tests.locks.support_hazards import KEY, until, until_true
from tests.locks.topologies import start_private

from earmark.locks import Locks, LocksUnavailable
from earmark.locks.redis.inbox import Post
from earmark.locks.redis.script import LeaseScript, Names
from earmark.locks.redis.servers import connection_options, one_pool
from earmark.locks.redis.wire import ServerWire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.locks.topologies import Topology

    from earmark.testservers import Valkey

LONG = 30.0


@pytest.fixture
def server(one_redis: Topology) -> Iterator[Valkey]:  # noqa: ARG001 -- where no server can be had, it says so
    with start_private() as topology:
        yield topology.nodes[0]


def wire_over(pool: ConnectionPool, *, timeout: float = LONG) -> ServerWire:
    return ServerWire(pool, script=LeaseScript(Names("earmark"), Post(prefix="earmark")), timeout=timeout)


async def test_locks_close_when_the_call_that_is_under_way_was_answered(server: Valkey) -> None:
    """Closing waits for it, and cuts nobody off."""
    with Proxy(server.port) as proxy:
        locks = Locks.from_url(proxy.url, timeout=LONG)
        async with locks.lock(KEY):
            pass
        proxy.hold()
        before = proxy.heard
        acquiring = asyncio.create_task(locks.acquire(KEY, ttl=600))
        await until(lambda: proxy.heard > before)
        closing = asyncio.create_task(locks.close())
        await asyncio.wait([closing], timeout=0.1)
        assert not closing.done()
        proxy.flow()
        assert (await acquiring).keys == (KEY,)
        await closing


async def test_a_connection_outlives_its_wire_only_until_the_answer_is_there(server: Valkey) -> None:
    """A question that nobody counted as under way leaves no open socket behind."""
    other = wire_over(one_pool(server.url, timeout=LONG))
    wire = wire_over(one_pool(server.url, timeout=LONG))
    alone = await _clients(other)
    blocked = asyncio.create_task(wire.command("BLPOP", "nothing", 0))
    await until_true(lambda: _clients_are(other, alone + 1))
    await wire.close()
    await other.command("RPUSH", "nothing", "at last")
    assert await blocked == [b"nothing", b"at last"]
    await until_true(lambda: _clients_are(other, alone))
    await other.close()


async def _clients(wire: ServerWire) -> int:
    listed: bytes = await wire.command("CLIENT", "LIST")
    return len(listed.splitlines())


async def _clients_are(wire: ServerWire, count: int) -> bool:
    return await _clients(wire) == count


class LateConnection(Connection):
    """One that is connected only when its caller's time is over."""

    async def connect(self) -> Any:
        """Connect, after a while."""
        await asyncio.sleep(0.3)
        return await super().connect()  # type: ignore[no-untyped-call]


async def test_a_connection_that_comes_too_late_is_not_waited_on(server: Valkey) -> None:
    """The deadline found nothing to cut; a server that is silent from there on must not be waited for."""
    pool = ConnectionPool(
        connection_class=LateConnection, host="127.0.0.1", port=server.port, **connection_options(LONG)
    )
    wire = wire_over(pool)
    deadline = asyncio.get_running_loop().time() + 0.1
    with pytest.raises(LocksUnavailable, match="no answer in"):
        await wire.command("BLPOP", "nothing", 0, deadline=deadline)
    await wire.close()
