"""The four ways to two holders of one lock, each played for real, and what the fence does about it.

A lock that runs out by itself cannot promise that there is one holder: it can only promise that the later one has the
greater number. Each way is played twice against the same account. Without the number the money of the right holder
vanishes: that is the control, and it shows that the way is real. With the number the late writer is refused.

    late    reads 100 ──────────── (the disaster) ──────────────────── writes 50
    right                                    reads 100 ── writes 70
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conformance.support import BOUND
from tests.locks.faulty_proxy import Proxy
from tests.locks.hazard_support import KEY, Account, Inside, pause, resume
from tests.locks.topologies import ask, replication, start_private, start_redlock, wait_until

from earmark.locks import LockBusy, Locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.locks.topologies import Topology

    from earmark.locks import Held
    from earmark.testservers import Valkey

ROOT = Path(__file__).parents[2]
PAUSED_TTL = 0.7
"""Of the lease that a paused process sleeps through: long enough to be won and read under on a busy machine."""
BEFORE = 100
LATE_TAKES = 50
RIGHT_TAKES = 30

# The check before the write is there, and it is of no use: the pause comes after it.
HOLDER = """
import json, sys
from pathlib import Path
from tests.locks.hazard_support import KEY, Account
from earmark.locks import Locks

url, path, ttl, fenced = sys.argv[1:]
account = Account(Path(path))
with Locks.from_url(url) as locks, locks.lock(KEY, ttl=float(ttl)) as held:
    fence = held.fence if fenced == "True" else None
    seen = account.read(fence)
    held.check()
    print("checked", flush=True)
    sys.stdin.readline()
    wrote = account.write(seen - 50, fence)
    print(json.dumps({"wrote": wrote, "lost": held.lost, "released": held.release(), "fence": held.fence}), flush=True)
"""

in_two_ways = pytest.mark.parametrize("fenced", [False, True], ids=["without-the-fence", "with-the-fence"])


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "accounts.sqlite3")


@pytest.fixture(scope="module")
def own_redis(one_redis: Topology) -> Iterator[Topology]:  # noqa: ARG001 -- where no server can be had, it says so
    """One server whose data may be lost."""
    with start_private() as topology:
        yield topology


@pytest.fixture
def own_pair(one_redis: Topology) -> Iterator[Topology]:  # noqa: ARG001 -- as above
    with start_redlock(2) as topology:
        yield topology


@pytest.fixture
def own_three(one_redis: Topology) -> Iterator[Topology]:  # noqa: ARG001 -- as above
    with start_redlock(3) as topology:
        yield topology


def withdraw(account: Account, held: Held, *, fenced: bool) -> None:
    """What the right holder does: nothing is wrong with it, and it is never refused."""
    fence = held.fence if fenced else None
    seen = account.read(fence)
    assert account.write(seen - RIGHT_TAKES, fence), "the right holder was refused"


def judge(account: Account, way: str, *, wrote: bool, fenced: bool) -> None:
    """The control shows the damage, the fence prevents it. One line says what happened."""
    balance = account.read()
    if fenced:
        assert not wrote, "the late holder's write was accepted"
        assert balance == BEFORE - RIGHT_TAKES
        said = f"the late write was refused, {balance} is right"
    else:
        assert wrote, "no write was late: this control shows nothing"
        assert balance == BEFORE - LATE_TAKES
        said = f"two holders, {balance} where {BEFORE - RIGHT_TAKES - LATE_TAKES} is right: an update was lost"
    print(f"\n{way}, {'with' if fenced else 'without'} the fence: {said}")  # noqa: T201 (what happened)


async def play(
    account: Account, *, late_locks: Locks, right_locks: Locks, disaster: Callable[[], object], fenced: bool
) -> bool:
    """One caller holds the lock, a disaster happens, and another has it too. Whether the late write was accepted."""
    late = await late_locks.acquire(KEY, ttl=60)
    with pytest.raises(LockBusy):
        await right_locks.acquire(KEY)
    fence = late.fence if fenced else None
    seen = account.read(fence)
    await asyncio.to_thread(disaster)
    # A server that was away is asked again after a second.
    right = await right_locks.acquire(KEY, ttl=60, wait=BOUND)
    # Each of them has every reason to believe that it is alone.
    late.check()
    right.check()
    withdraw(account, right, fenced=fenced)
    wrote = account.write(seen - LATE_TAKES, fence)
    assert await late.release() is False
    assert (await right_locks.attempt(KEY, lambda: None)).busy, "the late release took the right holder's lock"
    assert await right.release() is True
    return wrote


@contextmanager
def holder(url: str, account: Account, *, fenced: bool) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, has read and has checked, and waits for a word before it writes."""
    arguments = [sys.executable, "-c", HOLDER, url, str(account.path), str(PAUSED_TTL), str(fenced)]
    with subprocess.Popen(arguments, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "checked\n"
            yield process
        finally:
            process.kill()


@in_two_ways
def test_a_holder_that_is_paused_past_its_time(own_redis: Topology, account: Account, *, fenced: bool) -> None:
    """A process that is stopped between its last check and its write comes too late and cannot know it."""
    with Locks.from_url(own_redis.url) as locks, holder(own_redis.url, account, fenced=fenced) as late:
        pause(late.pid)
        assert late.stdin is not None
        assert late.stdout is not None
        late.stdin.write("go on\n")
        late.stdin.flush()
        with locks.lock(KEY, ttl=60, wait=BOUND) as right:
            fence = right.fence if fenced else None
            assert account.write(account.read(fence) - RIGHT_TAKES, fence), "the right holder was refused"
            resume(late.pid)
            reported = json.loads(late.stdout.readline())
            assert right.fence > reported["fence"]
            assert reported["lost"], "it would have seen it, had it looked again"
            assert reported["released"] is False
            right.extend()
    judge(account, "a pause past the TTL (SIGSTOP)", wrote=reported["wrote"], fenced=fenced)


def follow(replica: Valkey, connection: Proxy, primary: Valkey) -> None:
    """Make one the replica of the other, over a wire that can be held, and see that it receives."""
    ask(primary, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    ask(replica, "REPLICAOF", "127.0.0.1", str(connection.port))
    wait_until(lambda: replication(replica)["master_link_status"] == "up")
    ask(primary, "SET", "sign", "of life")
    wait_until(lambda: ask(replica, "GET", "sign") == "of life")


@in_two_ways
async def test_a_failover_to_a_replica_that_had_not_received_the_key(
    own_pair: Topology, account: Account, *, fenced: bool
) -> None:
    """Replication is asynchronous: what the primary granted last may be unknown to its successor."""
    primary, replica = own_pair.nodes
    with Proxy(primary.port) as replication_wire, Proxy(primary.port) as service:
        await asyncio.to_thread(follow, replica, replication_wire, primary)
        replication_wire.hold()

        def fail_over() -> None:
            assert Inside(primary).lease() is not None
            assert Inside(replica).lease() is None, "the replica had received it"
            primary.kill()
            ask(replica, "REPLICAOF", "NO", "ONE")
            service.target = replica.port

        async with Locks.from_url(service.url) as late, Locks.from_url(service.url) as right:
            wrote = await play(account, late_locks=late, right_locks=right, disaster=fail_over, fenced=fenced)
    judge(account, "a failover without the key", wrote=wrote, fenced=fenced)


@in_two_ways
async def test_a_redlock_server_that_restarts_empty(
    own_three: Topology, account: Account, locks_database: str, *, fenced: bool
) -> None:
    """Two of three had the lock and one of these forgot: with the third, which never had it, that is a majority."""
    _, forgets, away = own_three.nodes

    def restart_empty() -> None:
        away.start()
        forgets.kill()
        forgets.start()
        assert Inside(forgets).lease() is None

    # The servers count no common fence, so that the number comes from a database.
    knobs: dict[str, Any] = {"fence": "database", "database": locks_database} if fenced else {}
    async with Locks.from_url(own_three.url, **knobs) as late, Locks.from_url(own_three.url, **knobs) as right:
        away.kill()
        wrote = await play(account, late_locks=late, right_locks=right, disaster=restart_empty, fenced=fenced)
    judge(account, "a Redlock server that restarts empty", wrote=wrote, fenced=fenced)


@in_two_ways
async def test_data_that_are_lost(own_redis: Topology, account: Account, *, fenced: bool) -> None:
    """After FLUSHALL no lock is held, and the holder works on."""
    (server,) = own_redis.nodes
    async with Locks.from_url(own_redis.url) as late, Locks.from_url(own_redis.url) as right:
        wrote = await play(
            account, late_locks=late, right_locks=right, disaster=lambda: ask(server, "FLUSHALL"), fenced=fenced
        )
    judge(account, "data loss (FLUSHALL)", wrote=wrote, fenced=fenced)


def test_a_fence_that_redis_only_counts_goes_back_with_its_data(own_redis: Topology, account: Account) -> None:
    """The control of the fence itself: a plain counter begins anew, and the right holder is refused."""
    (server,) = own_redis.nodes
    ask(server, "INCR", "counter")
    late = int(ask(server, "INCR", "counter"))
    seen = account.read(late)
    ask(server, "FLUSHALL")
    right = int(ask(server, "INCR", "counter"))
    assert right < late
    assert account.write(seen - RIGHT_TAKES, right) is False
    assert account.write(seen - LATE_TAKES, late) is True


async def test_without_a_disaster_there_is_one_holder(own_redis: Topology, account: Account) -> None:
    """The control of all of these: the same two callers take turns, and no update is lost."""
    async with Locks.from_url(own_redis.url) as first, Locks.from_url(own_redis.url) as second:

        async def take(locks: Locks, amount: int) -> None:
            async with locks.lock(KEY, wait=BOUND):
                seen = account.read()
                await asyncio.sleep(0)
                assert account.write(seen - amount)

        await asyncio.gather(take(first, LATE_TAKES), take(second, RIGHT_TAKES))
    assert account.read() == BEFORE - LATE_TAKES - RIGHT_TAKES
