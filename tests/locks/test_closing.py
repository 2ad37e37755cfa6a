"""What is under way when locks are closed ends, and its connection with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio.connection import Connection, ConnectionPool
from tests.locks.faulty_proxy import Proxy
from tests.locks.hazard_support import KEY, until, until_true
from tests.locks.topologies import start_private

from earmark.locks import Locks, LocksUnavailable
from earmark.locks.redis.connection_pools import connection_options, one_pool
from earmark.locks.redis.encode_and_decode_script_calls import LeaseScript, RedisKeys
from earmark.locks.redis.handover_subscription import HandoverWaiters
from earmark.locks.redis.script_connection import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.locks.topologies import Topology

    from earmark.testservers import Valkey

LONG = 30.0


@pytest.fixture
def server(one_redis: Topology) -> Iterator[Valkey]:  # noqa: ARG001 -- where no server can be had, it says so
    with start_private() as topology:
        yield topology.nodes[0]


def connection_over(pool: ConnectionPool, *, timeout: float = LONG) -> ServerConnection:
    return ServerConnection(
        pool, script=LeaseScript(RedisKeys("earmark"), HandoverWaiters(prefix="earmark")), timeout=timeout
    )


async def test_locks_close_when_the_call_that_is_under_way_was_answered(server: Valkey) -> None:
    """Closing waits for it, and ends no call early."""
    with Proxy(server.port) as proxy:
        locks = Locks.from_url(proxy.url, timeout=LONG)
        async with locks.lock(KEY):
            pass
        proxy.hold()
        before = proxy.received
        acquiring = asyncio.create_task(locks.acquire(KEY, ttl=600))
        await until(lambda: proxy.received > before)
        closing = asyncio.create_task(locks.close())
        await asyncio.wait([closing], timeout=0.1)
        assert not closing.done()
        proxy.flow()
        assert (await acquiring).keys == (KEY,)
        await closing


async def test_a_connection_outlives_its_wire_only_until_the_answer_is_there(server: Valkey) -> None:
    """A call that is not counted as in progress leaves no open socket behind."""
    other = connection_over(one_pool(server.url, timeout=LONG))
    connection = connection_over(one_pool(server.url, timeout=LONG))
    alone = await _clients(other)
    blocked = asyncio.create_task(connection.command("BLPOP", "nothing", 0))
    await until_true(lambda: _clients_are(other, alone + 1))
    await connection.close()
    await other.command("RPUSH", "nothing", "at last")
    assert await blocked == [b"nothing", b"at last"]
    await until_true(lambda: _clients_are(other, alone))
    await other.close()


async def _clients(connection: ServerConnection) -> int:
    listed: bytes = await connection.command("CLIENT", "LIST")
    return len(listed.splitlines())


async def _clients_are(connection: ServerConnection, count: int) -> bool:
    return await _clients(connection) == count


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
    connection = connection_over(pool)
    deadline = asyncio.get_running_loop().time() + 0.1
    with pytest.raises(LocksUnavailable, match="no answer in"):
        await connection.command("BLPOP", "nothing", 0, deadline=deadline)
    await connection.close()
