"""A caller of a lock may be cancelled before it has the answer: the call that undoes it must not overtake it.

On another connection it could. The server would find nothing to give back, and then grant a lock without a holder.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.faulty_proxy import Proxy
from tests.locks.hazard_support import KEY, Inside, until
from tests.locks.topologies import start_private

from earmark.locks import Locks, LocksUnavailable
from earmark.locks.redis.cluster import ClusterConnection, SlotLeaseScript
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys, ScriptCall
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


@pytest.mark.parametrize("patient", [True, False], ids=["as-built", "without-waiting"])
@pytest.mark.parametrize("wait", [0.0, LONG])
async def test_the_release_that_undoes_an_acquisition_follows_it(
    server: Valkey, monkeypatch: pytest.MonkeyPatch, *, wait: float, patient: bool
) -> None:
    """Nothing is sent for a caller that has gone until the server has answered the caller."""
    if not patient:
        monkeypatch.setattr(ServerConnection, "wait_for_abandoned_calls", _at_once)
    with Proxy(server.port) as proxy:
        async with Locks.from_url(proxy.url, timeout=LONG) as locks:
            async with locks.lock(KEY):
                pass
            proxy.hold()
            before = proxy.received
            acquiring = asyncio.ensure_future(locks.acquire(KEY, ttl=600, wait=wait))
            await until(lambda: proxy.received > before)
            acquiring.cancel()
            await asyncio.wait([acquiring])
            asked = proxy.received
            if patient:
                await asyncio.sleep(0.1)
                assert proxy.received == asked
            else:
                await until(lambda: proxy.received > asked)
            proxy.flow()
            await until(lambda: proxy.received > asked)
            if patient:
                await until(lambda: Inside(server).lease() is None)
                async with locks.lock(KEY):
                    pass


async def _at_once(connection: ServerConnection) -> None:
    del connection


class SlowCluster:
    """A client of a cluster that answers when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.asked = 0

    async def initialize(self) -> None:
        """The slots are known."""

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""

    async def execute_command(self, *words: object) -> list[Any]:
        """The same answer to everything."""
        del words
        self.asked += 1
        return await asyncio.shield(self.answer)


def slow_connection(cluster: SlowCluster, *, timeout: float) -> ClusterConnection:
    names = RedisKeys("earmark")
    script = SlotLeaseScript(names, HandoverWaiters(prefix="earmark"))
    return ClusterConnection(cluster, script=script, timeout=timeout)  # type: ignore[arg-type]


async def test_a_cluster_waits_for_the_answers_to_cancelled_callers() -> None:
    """The call of a cancelled caller goes on, and is waited for."""
    cluster = SlowCluster()
    connection = slow_connection(cluster, timeout=LONG)
    asking = asyncio.ensure_future(
        connection.send([ScriptCall(("earmark:lock:{a}", "earmark:queue:{a}"), ("a", 1, "me", 1))])
    )
    await until(lambda: cluster.asked == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    settling = asyncio.ensure_future(connection.wait_for_abandoned_calls())
    await asyncio.sleep(0.01)
    assert not settling.done()
    cluster.answer.set_result([7, []])
    await settling
    await connection.close()


async def test_a_cluster_waits_no_longer_than_the_timeout_of_cancelled_calls() -> None:
    """A silent cluster delays an undo no longer than a call."""
    cluster = SlowCluster()
    connection = slow_connection(cluster, timeout=0.2)
    call = ScriptCall(("earmark:lock:{a}", "earmark:queue:{a}"), ("a", 1, "me", 1))
    with pytest.raises(LocksUnavailable, match=r"no answer in 0\.2 s"):
        await connection.send([call])
    asking = asyncio.ensure_future(connection.send([call]))
    await until(lambda: cluster.asked == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await connection.wait_for_abandoned_calls()
    await connection.close()
