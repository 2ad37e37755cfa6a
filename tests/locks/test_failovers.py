"""Servers die: what callers see meanwhile, that it ends, and that no holder is outranked by an earlier one.

Each of these kills or pauses servers, so each has its own. One failover serves several questions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.locks.topologies import ask, start_cluster, start_private, start_redlock, start_sentinels

from earmark.locks import LockBusy, LockLost, Locks, LocksUnavailable
from earmark.locks.backend_protocol import Group
from earmark.locks.circuit_breaker import BreakerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from tests.locks.topologies import Cluster, Sentinels, Topology

    from earmark.testservers import Valkey

KEYS = tuple(f"order:{number}" for number in range(6))
ANSWER_SECONDS_MAX = 30.0
"""Five times what a failover takes on a slow machine. No test waits for it when all is well."""


class Grant(msgspec.Struct, frozen=True):
    """What one holder was given, in order of giving."""

    key: str
    fence: int


class Stream:
    """Several tasks that lock and unlock a few keys as fast as they can, and write down what happens."""

    def __init__(self, locks: Locks) -> None:
        self.grants: list[Grant] = []
        self.outages = 0
        self._locks = locks
        self._tasks = [asyncio.create_task(self._come_and_go(key)) for key in KEYS * 2]

    async def stop(self) -> None:
        """Stop all of them; a failure that is no outage fails the test."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            assert task.cancelled() or task.exception() is None, task.exception()

    async def until_granted(self, keys: tuple[str, ...] = KEYS) -> None:
        """Until each of these keys was granted once more."""
        seen = len(self.grants)
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while not set(keys) <= {grant.key for grant in self.grants[seen:]}:
            assert time.monotonic() < deadline, "no lock was granted again"
            await asyncio.sleep(0.01)

    async def until_refused(self) -> None:
        """Until a caller was refused because no server answers."""
        seen = self.outages
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while self.outages == seen:
            assert time.monotonic() < deadline, "a server was killed and no caller was refused"
            await asyncio.sleep(0.01)

    async def _come_and_go(self, key: str) -> None:
        while True:
            try:
                async with self._locks.lock(key, ttl=2, wait=0.5) as held:
                    self.grants.append(Grant(key, held.fence))
            except LocksUnavailable:
                self.outages += 1
                await asyncio.sleep(0.02)
            except (LockBusy, LockLost):
                continue

    def fences_of(self, key: str) -> list[int]:
        """In order of giving."""
        return [grant.fence for grant in self.grants if grant.key == key]


@pytest.fixture(scope="module", autouse=True)
def starting(one_redis: Topology) -> Iterator[Mapping[str, Future[Any]]]:  # noqa: ARG001 -- it says if none can be had
    """The shapes that take seconds to start do so in the background, while the quick ones are tested."""
    with ThreadPoolExecutor(2) as threads:
        coming: dict[str, Future[Any]] = {
            "sentinels": threads.submit(start_sentinels),
            "cluster": threads.submit(start_cluster),
        }
        try:
            yield coming
        finally:
            for topology in (each.result() for each in coming.values() if not each.exception()):
                topology.close()


@pytest.fixture
def own_sentinels(starting: Mapping[str, Future[Any]]) -> Sentinels:
    topology: Sentinels = starting["sentinels"].result()
    return topology


@pytest.fixture
def own_cluster(starting: Mapping[str, Future[Any]]) -> Cluster:
    topology: Cluster = starting["cluster"].result()
    return topology


@pytest.fixture
def own_redlock() -> Iterator[Topology]:
    with start_redlock() as topology:
        yield topology


@pytest.fixture
def own_redis() -> Iterator[Topology]:
    with start_private() as topology:
        yield topology


@contextmanager
def paused(nodes: Iterable[Valkey]) -> Iterator[None]:
    """They are there, take what is sent to them, and say nothing."""
    stopped = list(nodes)
    for node in stopped:
        os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for node in stopped:
            os.kill(node.pid, signal.SIGCONT)


async def in_thread(act: Callable[[], object]) -> None:
    """What blocks, without holding up the stream."""
    await asyncio.to_thread(act)


async def test_redlock_works_without_a_minority_and_refuses_without_a_majority(own_redlock: Topology) -> None:
    """Two of five down is nothing, also to a lock that was there before; three down is a refusal, never a lock."""
    async with Locks.from_url(own_redlock.url) as locks:
        before = await locks.acquire("order:before", ttl=20)
        for node in own_redlock.nodes[:2]:
            node.kill()
        assert (await locks.attempt("order:before", lambda: None)).busy
        await before.extend(ttl=60)
        assert await before.release() is True
        for key in KEYS:
            async with locks.lock(key) as held:
                held.check()
                assert (await locks.attempt(key, lambda: None)).busy
        own_redlock.nodes[2].kill()
        for key in KEYS:
            with pytest.raises(LocksUnavailable):
                await locks.acquire(key)
        own_redlock.restore()
        await until_granted(locks, KEYS[0])
        assert await locks.holdings() == []


async def test_redlock_needs_a_majority_and_keeps_no_minority(redlock_nodes: Topology) -> None:
    """Where another caller has three of five servers, nothing stays on the other two; two are no obstacle."""
    prefix = f"minority{os.getpid()}"
    async with AsyncExitStack() as stack:
        locks = await stack.enter_async_context(Locks.from_url(redlock_nodes.url, prefix=prefix))
        alone = [
            await stack.enter_async_context(Locks.from_url(node.url, prefix=prefix)) for node in redlock_nodes.nodes
        ]
        rivals = [await server.acquire(KEYS[0], ttl=60) for server in alone[:3]]
        with pytest.raises(LockBusy) as refused:
            await locks.acquire(KEYS[0], ttl=60)
        assert list(refused.value.keys) == [KEYS[0]]
        assert [await server.holdings() for server in alone[3:]] == [[], []]
        await rivals.pop().release()
        async with locks.lock(KEYS[0], ttl=60) as held:
            # Clocks run at different speeds: a hundredth of the time is not relied on.
            assert held.remaining <= 60 * 0.99
            assert [len(await server.holdings()) for server in alone] == [1, 1, 1, 1, 1]
        assert [len(await server.holdings()) for server in alone] == [1, 1, 0, 0, 0]
        for rival in rivals:
            assert await rival.release() is True


async def test_redlock_works_while_a_minority_hangs(own_redlock: Topology) -> None:
    """A server that says nothing is as good as a dead one, and costs no more than its deadline."""
    async with Locks.from_url(own_redlock.url, timeout=0.3) as locks:
        with paused(own_redlock.nodes[:2]):
            for key in KEYS:
                async with locks.lock(key, ttl=20) as held:
                    held.check()
                    assert (await locks.attempt(key, lambda: None)).busy
        with paused(own_redlock.nodes[:3]), pytest.raises(LocksUnavailable):
            await locks.acquire(KEYS[0])
        await until_granted(locks, KEYS[0])
        assert await locks.holdings() == []


async def test_one_server_grants_locks_when_it_starts_and_when_it_restarts(own_redis: Topology) -> None:
    """Start-up does not wait for Redis, nothing proceeds unguarded without it, and no program needs a restart."""
    (server,) = own_redis.nodes
    server.kill()
    async with Locks.from_url(own_redis.url) as locks:
        with pytest.raises(LocksUnavailable):
            await locks.acquire(KEYS[0])
        server.start()
        fence = await until_granted(locks, KEYS[0])
        server.kill()
        for _ in range(5):
            with pytest.raises(LocksUnavailable):
                await locks.acquire(KEYS[0])
        server.start()
        assert await until_granted(locks, KEYS[0]) > fence


async def test_a_server_that_hangs_refuses_within_the_deadline_and_leaves_nothing_behind(own_redis: Topology) -> None:
    """Paused, it answers no caller: every call ends, the breaker opens, and it closes by itself when it goes on.

    What callers asked for meanwhile lay in its inbox and was granted later: it is given back as soon as it can be.
    """
    async with Locks.from_url(own_redis.url, timeout=0.2) as locks:
        held = await locks.acquire("order:own", ttl=600)
        with paused(own_redis.nodes):
            asked = await until_the_breaker_opens(locks, ttl=600)
            with pytest.raises(LocksUnavailable):
                await locks.acquire("order:other", wait=20)
            with pytest.raises(LocksUnavailable):
                await held.extend()
        await until_granted(locks, "order:other")
        assert breaker_state(locks) is BreakerState.CLOSED
        for key in asked:
            await until_granted(locks, key)
        held.check()
        assert await held.release() is True


async def test_an_answer_after_the_caller_was_cancelled_leaves_no_lock(own_redis: Topology) -> None:
    """The server was paused with the call in its buffer: what it grants to a caller that gave up is given back."""
    async with Locks.from_url(own_redis.url, timeout=10) as locks:
        async with locks.lock(KEYS[0]) as held:
            held.check()
        with paused(own_redis.nodes):
            gone = asyncio.create_task(locks.acquire(KEYS[0], ttl=600))
            await asyncio.sleep(0.1)
            assert not gone.done()
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        async with locks.lock(KEYS[0], wait=ANSWER_SECONDS_MAX) as held:
            held.check()


async def test_locks_come_back_after_the_primary_under_sentinel_is_killed(own_sentinels: Sentinels) -> None:
    """Callers are refused while there is no primary, and get greater fences from the successor."""
    async with Locks.from_url(own_sentinels.url) as locks:
        stream = Stream(locks)
        await stream.until_granted()
        killed = own_sentinels.kill_primary()
        await stream.until_refused()
        await in_thread(lambda: own_sentinels.wait_for_successor(killed))
        await stream.until_granted()
        outages = stream.outages
        await stream.until_granted()
        await stream.stop()
        assert stream.outages == outages, "still refused after the successor had answered every caller"
        async with locks.lock(KEYS[0], wait=ANSWER_SECONDS_MAX) as held:
            assert held.fence > max(stream.fences_of(KEYS[0]))
    assert own_sentinels.primaries() != (killed,)
    for key in KEYS:
        assert stream.fences_of(key) == sorted(set(stream.fences_of(key)))


async def owners_of(cluster: Cluster, locks: Locks) -> dict[str, Valkey]:
    """Which server keeps the lock of each key: the one that has something of that name while it is held."""
    owners = {}
    for key in KEYS:
        async with locks.lock(key):
            owners[key] = next(node for node in cluster.primaries() if ask(node, "KEYS", f"*{key}*"))
    return owners


async def test_locks_come_back_after_a_primary_of_the_cluster_is_killed(own_cluster: Cluster) -> None:
    """Its keys are refused until its replica leads, the keys of the others are served meanwhile, and fences grow."""
    async with Locks.from_url(own_cluster.url, prefix="test") as locks:
        owners = await owners_of(own_cluster, locks)
        killed = owners[KEYS[0]]
        lost = tuple(key for key in KEYS if owners[key] is killed)
        stream = Stream(locks)
        await stream.until_granted()
        killed.kill()
        await stream.until_refused()
        before = len(stream.grants)
        await stream.until_granted(tuple(key for key in KEYS if key not in lost))
        meanwhile = {grant.key for grant in stream.grants[before:]}
        await in_thread(lambda: own_cluster.wait_for_successor(killed))
        await stream.until_granted()
        outages = stream.outages
        await stream.until_granted()
        await stream.stop()
        assert stream.outages == outages, "still refused after the successor had answered every caller"
    assert len(set(owners.values())) > 1, "all keys of the test live on one server"
    assert meanwhile >= set(KEYS) - set(lost)
    assert killed not in own_cluster.primaries()
    for key in KEYS:
        assert stream.fences_of(key) == sorted(set(stream.fences_of(key)))


async def until_granted(locks: Locks, key: str) -> int:
    """Until a lock is to be had again; its fence, or 0 where there is none."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            async with locks.lock(key, wait=1) as held:
                return held.fence if Group.FENCE in locks.groups else 0
        except (LocksUnavailable, LockBusy):
            assert time.monotonic() < deadline, "no lock was granted again"
            await asyncio.sleep(0.02)


async def until_the_breaker_opens(locks: Locks, *, ttl: float = 30) -> list[str]:
    """Try to lock one key after the other until no server is called any more. Each call is refused, and each ends."""
    asked: list[str] = []
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while breaker_state(locks) is not BreakerState.OPEN:
        assert time.monotonic() < deadline, "the breaker never opened"
        asked.append(f"order:{len(asked)}")
        with pytest.raises(LocksUnavailable):
            await locks.acquire(asked[-1], ttl=ttl)
    return asked


def breaker_state(locks: Locks) -> BreakerState:
    """How the breaker stands now."""
    assert locks.breaker is not None
    return locks.breaker.state
