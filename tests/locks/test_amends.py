"""Whoever asks for a lock may go before it hears: what is owed for the call must not overtake it.

On another connection it could. The server would find nothing to give back, then grant the lock, to nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.proxy import Proxy
from tests.locks.support_hazards import KEY, Inside, until
from tests.locks.topologies import start_private

from earmark.locks import Locks, LocksUnavailable
from earmark.locks.redis.cluster import ClusterWire, SlotLeaseScript
from earmark.locks.redis.inbox import Post
from earmark.locks.redis.script import Call, Names
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


@pytest.mark.parametrize("patient", [True, False], ids=["as-built", "without-waiting"])
@pytest.mark.parametrize("wait", [0.0, LONG])
async def test_a_release_that_is_owed_follows_the_acquisition(
    server: Valkey, monkeypatch: pytest.MonkeyPatch, *, wait: float, patient: bool
) -> None:
    """Nothing is sent for a caller that has gone until the server has answered the caller."""
    if not patient:
        monkeypatch.setattr(ServerWire, "settle", _at_once)
    with Proxy(server.port) as proxy:
        async with Locks.from_url(proxy.url, timeout=LONG) as locks:
            async with locks.lock(KEY):
                pass
            proxy.hold()
            before = proxy.heard
            acquiring = asyncio.ensure_future(locks.acquire(KEY, ttl=600, wait=wait))
            await until(lambda: proxy.heard > before)
            acquiring.cancel()
            await asyncio.wait([acquiring])
            asked = proxy.heard
            if patient:
                await asyncio.sleep(0.1)
                assert proxy.heard == asked
            else:
                await until(lambda: proxy.heard > asked)
            proxy.flow()
            await until(lambda: proxy.heard > asked)
            if patient:
                await until(lambda: Inside(server).lease() is None)
                async with locks.lock(KEY):
                    pass


async def _at_once(wire: ServerWire) -> None:
    del wire


class SlowCluster:
    """A client of a cluster that answers when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.asked = 0

    async def initialize(self) -> None:
        """The slots are known."""

    async def aclose(self) -> None:
        """Nothing is open."""

    async def execute_command(self, *words: object) -> list[Any]:
        """The same answer to everything."""
        del words
        self.asked += 1
        return await asyncio.shield(self.answer)


def slow_wire(cluster: SlowCluster, *, timeout: float) -> ClusterWire:
    names = Names("earmark")
    script = SlotLeaseScript(names, Post(prefix="earmark"))
    return ClusterWire(cluster, script=script, timeout=timeout)  # type: ignore[arg-type]


async def test_a_cluster_settles_when_it_has_answered_those_who_have_gone() -> None:
    """The call of a caller that has gone goes on, and is waited for."""
    cluster = SlowCluster()
    wire = slow_wire(cluster, timeout=LONG)
    asking = asyncio.ensure_future(wire.send([Call(("earmark:lock:{a}", "earmark:queue:{a}"), ("a", 1, "me", 1))]))
    await until(lambda: cluster.asked == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    settling = asyncio.ensure_future(wire.settle())
    await asyncio.sleep(0.01)
    assert not settling.done()
    cluster.answer.set_result([7, []])
    await settling
    await wire.close()


async def test_a_cluster_settles_when_the_time_of_those_who_have_gone_is_over() -> None:
    """A silent cluster keeps what is owed no longer than a call."""
    cluster = SlowCluster()
    wire = slow_wire(cluster, timeout=0.2)
    call = Call(("earmark:lock:{a}", "earmark:queue:{a}"), ("a", 1, "me", 1))
    with pytest.raises(LocksUnavailable, match=r"no answer in 0\.2 s"):
        await wire.send([call])
    asking = asyncio.ensure_future(wire.send([call]))
    await until(lambda: cluster.asked == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await wire.settle()
    await wire.close()
