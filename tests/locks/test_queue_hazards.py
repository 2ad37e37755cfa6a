"""The queue of waiters on one real Redis, with a fault at the worst moment.

The tests read Redis directly: when all is over, the key is free and has no queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conformance.support import BOUND, SHORT
from tests.locks.faulty_proxy import Kind, Proxy
from tests.locks.hazard_support import KEY, RETURN_SECONDS_MAX, Inside, outcome, until, wait
from tests.locks.topologies import ask, start_private

from earmark.locks import LockBusy, LockLost, Locks, LocksUnavailable
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.locks.topologies import Topology

    from earmark.locks import Held
    from earmark.testservers import Valkey

ROOT = Path(__file__).parents[2]
OTHER = "account:43"
MANY = 10 if os.environ.get("EARMARK_PROOF") else 1
"""How many times as long the rounds go on in a long proof."""
SERVED_SECONDS_MAX = 6.0
"""A waiter that no message reached asks again after five seconds at most."""

# Says when it is queued, then once for every time that it has the lock, and for how long the wait was.
TILL = """
import asyncio, sys
from earmark.locks import Locks

url, prefix, key, waiters, turns = sys.argv[1:]

async def till(locks, number):
    for _ in range(int(turns)):
        async with locks.lock(key, ttl=60, wait=600):
            print(sys.argv[0], flush=True)

async def main():
    async with Locks.from_url(url, prefix=prefix, timeout=30) as locks:
        await asyncio.gather(*(till(locks, number) for number in range(int(waiters))))

asyncio.run(main())
"""

# Says how often a lock that it was given was not its own.
FORKED = """
import os, signal, sys
import redis
from earmark.locks import Locks
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys

url, prefix = sys.argv[1:]
locks = Locks.from_url(url, prefix=prefix, timeout=2)
with locks.lock("order:1"):
    pass  # From now on there is a connection that idles.
child = os.fork()
signal.alarm(20)
me = "parent" if child else "child"
server = redis.Redis.from_url(url, decode_responses=True)
foreign = failed = 0
for _ in range(200):
    try:
        with locks.lock(f"order:{me}") as held:
            stored = server.get(RedisKeys(prefix).pair(f"order:{me}")[0]) or ""
            foreign += not (stored.startswith(held.token) and f"|{held.fence}" in stored)
    except Exception:
        failed += 1
    if foreign or failed > 3:
        break
print(f"{me}: {foreign} foreign, {failed} failed", flush=True)
if child:
    os.waitpid(child, 0)
os._exit(0)
"""

# The parent has waited once before, so that its background thread is there when it forks.
FORKED_WAITER = """
import os, signal, sys
from earmark.locks import LockBusy, Locks

url, prefix = sys.argv[1:]
locks = Locks.from_url(url, prefix=prefix, timeout=2)
held = locks.sync.acquire("order:1", ttl=60)

def wait(me):
    try:
        locks.sync.acquire("order:1", wait=0.1)
    except LockBusy:
        print(f"{me}: busy", flush=True)

wait("parent")
child = os.fork()
if not child:
    signal.alarm(3)
    wait("child")
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""

# Three tasks wait, and the program closes its locks.
CLOSED = """
import asyncio, os, sys
from earmark.locks import Locks

url, prefix, key = sys.argv[1:]

async def main():
    locks = Locks.from_url(url, prefix=prefix, timeout=2)
    held = await locks.acquire(key, ttl=60)
    line = [asyncio.create_task(locks.acquire(key, ttl=60, wait=20)) for _ in range(3)]
    while sum(len(each.waiters) for each in await locks.holdings()) < 3:
        await asyncio.sleep(0.01)
    await locks.close()
    await asyncio.wait(line, timeout=2)
    for waiter in line:
        print(type(waiter.exception()).__name__ if waiter.done() else "still waiting", flush=True)
    print(sum("_read" in repr(task) for task in asyncio.all_tasks()), "readers left", flush=True)
    os._exit(0)

asyncio.run(main())
"""

# Three threads wait, and the program closes its locks.
CLOSED_THREADS = """
import os, sys, threading, time
from earmark.locks import Locks

url, prefix, key = sys.argv[1:]
locks = Locks.from_url(url, prefix=prefix, timeout=2)
held = locks.sync.acquire(key, ttl=60)
said = []

def stand():
    try:
        locks.sync.acquire(key, ttl=60, wait=20)
    except Exception as error:
        said.append(type(error).__name__)

threads = [threading.Thread(target=stand, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
while sum(len(each.waiters) for each in locks.sync.holdings()) < 3:
    time.sleep(0.01)
locks.sync.close()
for thread in threads:
    thread.join(2)
print("\\n".join(said), flush=True)
os._exit(0)
"""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(one_redis: Topology) -> Iterator[Valkey]:  # noqa: ARG001 -- where no server can be had, it says so
    """A server of these tests alone: some of them end all subscriptions. It knows the script."""
    with start_private() as topology:
        with Locks.from_url(topology.url) as locks, locks.lock(KEY) as held:
            held.check()
        yield topology.nodes[0]


@pytest.fixture
def prefix() -> str:
    """No two tests meet on one server."""
    return f"hazard{next(_numbers)}"


@pytest.fixture
def inside(server: Valkey, prefix: str) -> Inside:
    return Inside(server, prefix=prefix)


@pytest.fixture
async def locks(server: Valkey, prefix: str) -> AsyncIterator[Locks]:
    async with Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as locks:
        yield locks


@pytest.fixture
def plain_locks(server: Valkey, prefix: str) -> Iterator[Locks]:
    with Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as locks:
        yield locks


async def in_line(locks: Locks, inside: Inside, count: int, **how: Any) -> list[asyncio.Task[Held]]:
    """So many tasks that wait, in this order, with no waiter before them."""
    queue = []
    for number in range(count):
        queue.append(asyncio.create_task(locks.acquire(KEY, **{"ttl": 60, "wait": BOUND, **how})))
        await inside.until_waiting(number + 1)
    return queue


# --- cancelled, killed, too late ------------------------------------------------------------------------------------


async def test_waiters_that_are_cancelled_at_any_moment_leave_nothing(
    locks: Locks, inside: Inside, server: Valkey, prefix: str
) -> None:
    """Release and cancellation cross in every order: in the end the key is free and the queue is empty."""
    chance = random.Random(4711)  # noqa: S311 -- the same moments every time
    won = cancelled = 0
    async with Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as others:
        for number in range(60 * MANY):
            held = await locks.acquire(KEY, ttl=60, wait=BOUND)
            waiters = [asyncio.create_task(each.acquire(KEY, ttl=60, wait=BOUND)) for each in (locks, others)]
            await inside.until_waiting(2) if number % 3 else await asyncio.sleep(0)
            releasing = asyncio.create_task(held.release())
            await asyncio.sleep(chance.uniform(0, 0.002))
            for waiter in waiters:
                waiter.cancel()
            assert await releasing is True
            for waiter in waiters:
                with contextlib.suppress(asyncio.CancelledError):
                    assert await (await waiter).release() is True
                    won += 1
                    continue
                cancelled += 1
        await inside.until_empty()
    assert cancelled
    assert locks.stats.snapshot().waiters == 0
    print(f"\n{cancelled} waiters were cancelled in time, {won} had the lock by then")  # noqa: T201


async def test_waiters_whose_subscription_was_killed_are_served(locks: Locks, inside: Inside, server: Valkey) -> None:
    """The messages that wake them are lost: they try again by themselves, in their order, and none hangs."""
    for _ in range(5):
        held = await locks.acquire(KEY, ttl=60)
        queue = await in_line(locks, inside, 3)
        ask(server, "CLIENT", "KILL", "TYPE", "pubsub")
        assert await held.release() is True
        for waiter in asyncio.as_completed(queue, timeout=BOUND):
            assert await (await waiter).release() is True
    await inside.until_empty()


async def test_twenty_waiters_behind_a_dead_holder_get_the_lock_in_order(locks: Locks, inside: Inside) -> None:
    """The first lease is never released: it runs out, and from then on each holder hands over to the next."""
    await locks.acquire(KEY, ttl=1)
    served: list[str] = []
    fences: list[int] = []

    async def stand() -> None:
        async with locks.lock(KEY, ttl=60, wait=BOUND) as held:
            served.append(held.token)
            fences.append(held.fence)

    queue = [asyncio.create_task(stand()) for _ in range(20)]
    await inside.until_waiting(20)
    arrived = inside.queue()
    await asyncio.gather(*queue)
    assert served == arrived
    assert fences == sorted(set(fences))
    await inside.until_empty()


async def test_evicting_hands_over_to_the_first_waiter(locks: Locks, inside: Inside) -> None:
    """An operator takes the lock from a holder that hangs; the first waiter has it, not the last."""
    held = await locks.acquire(KEY, ttl=600)
    first, second = await in_line(locks, inside, 2)
    assert await locks.evict(KEY) is True
    next_holder = await first
    assert not second.done()
    with pytest.raises(LockLost):
        await held.extend()
    assert await held.release() is False
    assert await next_holder.release() is True
    assert await (await second).release() is True
    await inside.until_empty()


async def test_the_places_of_a_dead_process_are_passed_over(
    locks: Locks, inside: Inside, server: Valkey, prefix: str
) -> None:
    """Five entries of a process without a subscription cost the waiter behind them nothing."""
    held = await locks.acquire(KEY, ttl=600)
    for number in range(5):
        ask(server, "RPUSH", inside.queue_name, f"{number:032x}@gone|600000|{prefix}:wake:gone")
    behind = asyncio.create_task(locks.acquire(KEY, ttl=600, wait=BOUND))
    await inside.until_waiting(6)
    assert await held.release() is True
    assert await (await behind).release() is True
    await inside.until_empty()


async def test_a_queue_of_dead_processes_only_blocks_no_caller(
    locks: Locks, inside: Inside, server: Valkey, prefix: str
) -> None:
    """The holder and all waiters died: once the lease has run out the lock is granted, also without waiting."""
    await locks.acquire(KEY, ttl=0.5)
    (waiter,) = await in_line(locks, inside, 1)
    for number in range(5):
        ask(server, "RPUSH", inside.queue_name, f"{number:032x}@gone|600000|{prefix}:wake:gone")
    waiter.cancel()
    await until(lambda: inside.lease() is None)
    async with locks.lock(KEY) as held:
        held.check()
        assert inside.queue() == []
    await inside.until_empty()


async def test_a_lease_that_is_handed_to_a_waiter_that_gave_up_goes_back(
    server: Valkey, inside: Inside, prefix: str
) -> None:
    """It gave up while the server was unreachable, so it is still queued: it returns what it is granted."""
    with Proxy(server.port) as proxy:
        async with (
            Locks.from_url(proxy.url, prefix=prefix, timeout=SHORT) as cut_off,
            Locks.from_url(server.url, prefix=prefix, timeout=BOUND, holder="behind") as others,
        ):
            held = await others.acquire(KEY, ttl=600)
            gone = asyncio.create_task(outcome(cut_off.acquire(KEY, ttl=600, wait=1)))
            await inside.until_waiting(1)
            proxy.lose_requests(Kind.COMMANDS)
            assert isinstance(await gone, LockBusy)
            await until(lambda: proxy.unheard > 0)
            assert len(inside.queue()) == 1, "it left the queue: this is not what is tested here"
            behind = asyncio.create_task(others.acquire(KEY, ttl=600, wait=BOUND))
            await until(lambda: "behind" in inside.waiting_holders())
            proxy.flow()
            assert await held.release() is True
            served, _ = await asyncio.wait([behind], timeout=RETURN_SECONDS_MAX)
            assert served, "a lock without a holder keeps all callers out"
            assert await (await behind).release() is True
            await inside.until_empty()


async def test_a_lease_is_not_counted_on_for_longer_than_the_server_gives_it(
    server: Valkey, inside: Inside, prefix: str
) -> None:
    """The message that hands it over is lost and the waiter asks again later: its time began at the hand-over."""
    with Proxy(server.port) as proxy:
        async with (
            Locks.from_url(proxy.url, prefix=prefix) as deaf,
            Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as others,
        ):
            held = await others.acquire(KEY, ttl=1)
            waiter = asyncio.create_task(deaf.acquire(KEY, ttl=60, wait=BOUND))
            await inside.until_waiting(1)
            proxy.lose_answers(Kind.SUBSCRIPTION)
            assert await held.release() is True
            await until(lambda: proxy.lost > 0)
            proxy.flow()
            mine = await waiter
            given = inside.ttl_seconds()
            assert mine.remaining <= given + 0.005, "the holder relies on time that the server does not give it"
            assert await mine.release() is True
    await inside.until_empty()


@pytest.mark.parametrize("how", ["cancelled", "cut"])
async def test_a_release_whose_answer_is_lost_still_wakes_the_first_waiter(
    server: Valkey, inside: Inside, prefix: str, how: str
) -> None:
    """The answer would have named the new holder: a waiter of the same program learns it some other way."""
    with Proxy(server.port) as proxy:
        async with Locks.from_url(proxy.url, prefix=prefix, timeout=BOUND) as locks:
            held = await locks.acquire(KEY, ttl=60)
            (waiter,) = await in_line(locks, inside, 1)
            proxy.hold_answers(Kind.COMMANDS)
            releasing = asyncio.create_task(held.release())
            await until(lambda: held.token not in (inside.lease() or held.token))
            if how == "cancelled":
                releasing.cancel()
            else:
                proxy.cut(Kind.COMMANDS)
            proxy.flow()
            served, _ = await asyncio.wait([waiter], timeout=RETURN_SECONDS_MAX)
            await asyncio.wait([releasing])
            assert await (await waiter).release() is True
    assert served, "it had the lock and did not know it"
    await inside.until_empty()


async def test_a_message_about_a_lease_that_ran_out_is_no_lock(server: Valkey, inside: Inside, prefix: str) -> None:
    """It arrived after the lease had ended, and another caller has the lock by now: the wait goes on."""
    with Proxy(server.port) as proxy:
        async with (
            Locks.from_url(proxy.url, prefix=prefix) as slow,
            Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as others,
        ):
            held = await others.acquire(KEY, ttl=1)
            waiter = asyncio.create_task(outcome(slow.acquire(KEY, ttl=SHORT, wait=2)))
            await inside.until_waiting(1)
            behind = asyncio.create_task(others.acquire(KEY, ttl=60, wait=BOUND))
            await inside.until_waiting(2)
            proxy.hold_answers(Kind.SUBSCRIPTION)
            assert await held.release() is True
            # The lease of the first waiter runs out unused, and the next one has the lock. The first calls again and
            # is queued once more, and only then does it get the message about the lease that has ended.
            other = await behind
            await until(lambda: len(inside.queue()) == 1 or waiter.done())
            proxy.flow()
            answer = await waiter
            assert isinstance(answer, LockBusy | LocksUnavailable), "two hold the lock"
            assert await other.release() is True
    await inside.until_empty()


async def test_a_lease_that_ran_out_on_its_way_is_no_lock(server: Valkey, inside: Inside, prefix: str) -> None:
    """The answer took longer than the lease lives: the caller must not work under it."""
    with Proxy(server.port) as proxy:
        async with Locks.from_url(proxy.url, prefix=prefix, timeout=BOUND) as locks:
            proxy.hold_answers()
            asking = asyncio.create_task(outcome(locks.acquire(KEY, ttl=SHORT)))
            # A machine that is slow enough never sees the lease itself; what was counted for it stays.
            await until(lambda: ask(server, "GET", RedisKeys(prefix).fence) is not None)
            await until(lambda: inside.lease() is None)
            # The server counts in milliseconds, and may have been early by one.
            await asyncio.sleep(0.01)
            proxy.flow()
            answer = await asking
            assert isinstance(answer, LockLost | LocksUnavailable), f"granted, and lost already: {answer.remaining} s"


async def test_a_waiter_whose_connection_was_forgotten_is_served_among_others(
    server: Valkey, inside: Inside, prefix: str
) -> None:
    """It gets no message and does not know that: other callers must not keep it out for ever."""
    others_go_on = True
    with Proxy(server.port) as proxy:
        async with (
            Locks.from_url(proxy.url, prefix=prefix) as forgotten,
            Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as others,
        ):
            async with forgotten.lock(KEY):
                waiter = asyncio.create_task(forgotten.acquire(KEY, wait=BOUND))
                await inside.until_waiting(1)
            await (await waiter).release()
            proxy.strand(Kind.SUBSCRIPTION)
            ask(server, "CLIENT", "KILL", "TYPE", "pubsub")

            async def come_and_go() -> None:
                while others_go_on:
                    async with others.lock(KEY, ttl=SHORT, wait=BOUND):
                        await asyncio.sleep(0.002)

            crowd = [asyncio.create_task(come_and_go()) for _ in range(3)]
            await inside.until_waiting(2)
            waiter = asyncio.create_task(forgotten.acquire(KEY, ttl=60, wait=BOUND))
            served, _ = await asyncio.wait([waiter], timeout=SERVED_SECONDS_MAX)
            others_go_on = False
            await asyncio.gather(*crowd, (await waiter).release())
    assert served, "it was served when the others had gone, and not before"
    await inside.until_empty()


async def test_a_subscription_that_is_made_anew_is_one_subscription(
    server: Valkey, inside: Inside, prefix: str
) -> None:
    """Three waiters find out at the same time that their subscription is dead: they share a new one, and end it."""
    with Proxy(server.port) as proxy:
        async with (
            Locks.from_url(proxy.url, prefix=prefix) as forgotten,
            Locks.from_url(server.url, prefix=prefix, timeout=BOUND) as others,
        ):
            held = await others.acquire(KEY, ttl=1)
            queue = await in_line(forgotten, inside, 3)
            proxy.strand(Kind.SUBSCRIPTION)
            ask(server, "CLIENT", "KILL", "TYPE", "pubsub")
            behind = asyncio.create_task(others.acquire(KEY, ttl=60, wait=BOUND))
            await inside.until_waiting(4)
            assert await held.release() is True
            next_holder = await behind
            await inside.until_waiting(3)
            assert await next_holder.release() is True
            for waiter in asyncio.as_completed(queue, timeout=BOUND):
                assert await (await waiter).release() is True
            listeners = subscriptions(server, prefix)
        await until(lambda: subscriptions(server, prefix) == [0, 0])
    assert sorted(listeners) == [1, 1]
    await inside.until_empty()


def subscriptions(server: Valkey, prefix: str) -> list[int]:
    """How many subscribers each channel of a test has, with a zero for each channel that has none any more."""
    channels: list[str] = ask(server, "PUBSUB", "CHANNELS", f"{prefix}:wake:*")
    counts: list[str] = ask(server, "PUBSUB", "NUMSUB", *channels)[1::2] if channels else []
    return [int(count) for count in counts] + [0] * (2 - len(channels))


# --- several keys ---------------------------------------------------------------------------------------------------


async def test_a_waiter_for_several_keys_holds_none_of_them(locks: Locks, server: Valkey, prefix: str) -> None:
    """While the second is taken the first stays free, and the waiter is in one queue only."""
    first, second = (Inside(server, prefix=prefix, key=key) for key in (KEY, OTHER))
    held = await locks.acquire(OTHER, ttl=60)
    both = asyncio.create_task(locks.acquire(KEY, OTHER, ttl=60, wait=BOUND))
    await second.until_waiting(1)
    assert first.is_empty()
    async with locks.lock(KEY, ttl=60):
        assert await held.release() is True
        await first.until_waiting(1)
        await second.until_empty()
    pair = await both
    assert first.lease() == second.lease()
    assert await pair.release() is True
    await first.until_empty()
    await second.until_empty()


async def test_a_holder_of_several_keys_hands_each_of_them_over(locks: Locks, server: Valkey, prefix: str) -> None:
    """The waiters for one of its keys are woken when it releases all of them."""
    first, second = (Inside(server, prefix=prefix, key=key) for key in (KEY, OTHER))
    held = await locks.acquire(KEY, ttl=60)
    both = asyncio.create_task(locks.acquire(KEY, OTHER, ttl=60, wait=BOUND))
    await first.until_waiting(1)
    behind = asyncio.create_task(locks.acquire(KEY, ttl=60, wait=BOUND))
    await first.until_waiting(2)
    assert await held.release() is True
    assert await (await both).release() is True
    served, _ = await asyncio.wait([behind], timeout=RETURN_SECONDS_MAX)
    assert await (await behind).release() is True
    assert served, "the lock was free and no waiter was woken"
    await first.until_empty()
    await second.until_empty()


async def test_waiters_for_the_same_keys_in_opposite_orders_never_hang(
    locks: Locks, server: Valkey, prefix: str
) -> None:
    """Each names the keys in another order, some only one of them, some give up: all of it ends and nothing is left."""
    chance = random.Random(42)  # noqa: S311 -- as above
    keys = [KEY, OTHER, "account:44"]
    holders = dict.fromkeys(keys, 0)
    fences = dict.fromkeys(keys, 0)
    granted = 0

    async def come_and_go() -> None:
        nonlocal granted
        for _ in range(10 * MANY):
            wanted = chance.sample(keys, chance.randint(1, 3))
            with contextlib.suppress(LockBusy):
                async with locks.lock(*wanted, ttl=60, wait=chance.choice([0.005, BOUND])) as held:
                    granted += 1
                    for key in held.keys:
                        holders[key] += 1
                        assert holders[key] == 1, "two hold one key"
                        assert held.fence > fences[key], "an earlier holder outranks a later one"
                        fences[key] = held.fence
                    await asyncio.sleep(0)
                    for key in held.keys:
                        holders[key] -= 1

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(come_and_go() for _ in range(20)))
    assert granted
    for key in keys:
        await Inside(server, prefix=prefix, key=key).until_empty()


# --- processes, loops and threads -----------------------------------------------------------------------------------


def test_two_processes_take_turns(plain_locks: Locks, server: Valkey, inside: Inside, prefix: str) -> None:
    """Waiters get the lock in order of arrival; neither process keeps the other from its turn."""
    waiters, turns = 5, 20
    arguments = [sys.executable, "-c", TILL, server.url, prefix, KEY, str(waiters), str(turns)]
    read, write = os.pipe()
    with plain_locks.lock(KEY, ttl=600):
        tills = [
            subprocess.Popen([*arguments[:2], TILL.replace("sys.argv[0]", f"'{name}'"), *arguments[3:]], stdout=write)
            for name in "ab"
        ]
        os.close(write)
        try:
            wait(lambda: len(inside.queue()) == 2 * waiters)
        except BaseException:
            for each in tills:
                each.kill()
            raise
    with os.fdopen(read, encoding="utf-8") as result:
        order = result.read().split()
    assert [each.wait(BOUND) for each in tills] == [0, 0]
    assert len(order) == 2 * waiters * turns
    # Both are queued all the time: a window of two rounds of the queue shows both, except at the very end.
    windows = [order[start : start + 4 * waiters] for start in range(0, len(order) - 8 * waiters, waiters)]
    assert all({"a", "b"} <= set(window) for window in windows), "one of them was kept out"
    shares = [order[: len(order) // 2].count(name) for name in "ab"]
    print(f"\nof the first {sum(shares)} turns {shares[0]} were the one's and {shares[1]} the other's")  # noqa: T201
    assert min(shares) >= sum(shares) / 4
    wait(inside.is_empty)


def test_one_toolbox_in_two_event_loops_of_two_threads(plain_locks: Locks, inside: Inside) -> None:
    """Each loop has connections, waiters and messages of its own, and both exclude each other and plain threads."""
    counter = 0

    def count_in_a_thread() -> None:
        nonlocal counter
        for _ in range(10 * MANY):
            with plain_locks.lock(KEY, ttl=60, wait=BOUND):
                seen = counter
                time.sleep(0)
                counter = seen + 1

    async def count_in_a_loop() -> None:
        async def count() -> None:
            nonlocal counter
            for _ in range(10 * MANY):
                async with plain_locks.lock(KEY, ttl=60, wait=BOUND):
                    seen = counter
                    await asyncio.sleep(0)
                    counter = seen + 1

        mine = plain_locks.backend()
        await asyncio.gather(*(count() for _ in range(4)))
        assert plain_locks.backend() is mine
        await mine.close()
        plain_locks._backends.pop(asyncio.get_running_loop())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            work = [threads.submit(asyncio.run, count_in_a_loop()) for _ in range(2)]
            work += [threads.submit(count_in_a_thread) for _ in range(2)]
            for each in work:
                each.result(BOUND)
    finally:
        sys.setswitchinterval(interval)
    assert counter == 100 * MANY
    wait(inside.is_empty)


async def test_a_lock_is_released_by_another_task(locks: Locks, inside: Inside) -> None:
    """The holder of a lock is known by its token, not by its task."""
    held = await locks.acquire(KEY, ttl=60)
    (waiter,) = await in_line(locks, inside, 1)
    assert await asyncio.create_task(held.release()) is True
    assert await asyncio.create_task((await waiter).release()) is True
    await inside.until_empty()


async def test_a_block_is_left_by_another_task_than_entered_it(locks: Locks, inside: Inside) -> None:
    """Another task may close fixtures and exit stacks: the lock is given back all the same."""

    async def enter_and_leave() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.create_task(stack.enter_async_context(locks.lock(KEY, ttl=60)))
            assert inside.lease() is not None

    assert await outcome(enter_and_leave()) is None
    await inside.until_empty()


async def test_one_lock_object_is_entered_by_twenty_tasks(locks: Locks, inside: Inside) -> None:
    """Each entry is an acquisition of its own: one at a time, twenty in all, and each leaves what it entered."""
    lock = locks.lock(KEY, ttl=60, wait=BOUND)
    within = 0
    tokens = set()

    async def enter() -> None:
        nonlocal within
        async with lock as held:
            within += 1
            assert within == 1
            tokens.add(held.token)
            await asyncio.sleep(0)
            within -= 1

    await asyncio.gather(*(enter() for _ in range(20)))
    assert len(tokens) == 20
    await inside.until_empty()


async def test_locks_of_different_keys_are_nested(locks: Locks, server: Valkey, inside: Inside, prefix: str) -> None:
    """One inside the other, also of one task, and each is released on its own."""
    async with locks.lock(KEY, ttl=60) as outer:
        async with locks.lock(OTHER, ttl=60) as inner:
            assert inner.fence > outer.fence
        await Inside(server, prefix=prefix, key=OTHER).until_empty()
        await outer.extend()
    await inside.until_empty()


async def test_a_lock_is_not_taken_twice_by_one_task(locks: Locks, plain_locks: Locks, inside: Inside) -> None:
    """Re-entry is a refusal and not a hang, with the same object too, and the lock that is held stays held."""
    lock = locks.lock(KEY, ttl=60)
    async with lock as held:
        with pytest.raises(LockBusy):
            await locks.acquire(KEY)
        with pytest.raises(LockBusy):
            await locks.acquire(KEY, wait=SHORT)
        with pytest.raises(LockBusy):
            async with lock:
                pytest.fail("the block must not run")
        with pytest.raises(LockBusy), plain_locks.lock(KEY):
            pytest.fail("the block must not run")
        await held.extend()
        await inside.until_waiting(0)
    await inside.until_empty()


async def test_a_lock_object_whose_lease_ran_out_is_entered_again(locks: Locks, inside: Inside) -> None:
    """The outer block lost its lock, the inner one has it: each is left with what it entered with."""
    lock = locks.lock(KEY, ttl=SHORT, wait=BOUND, raise_if_lost=False)

    async def nest() -> None:
        async with lock as outer:
            async with lock as inner:
                assert outer.lost
                await inner.extend(ttl=60)
                assert inside.lease() is not None
            await inside.until_empty()

    assert await outcome(nest()) is None
    await inside.until_empty()


def test_a_lock_object_whose_lease_ran_out_is_entered_again_by_a_thread(plain_locks: Locks, inside: Inside) -> None:
    """The same with plain `with`."""
    lock = plain_locks.lock(KEY, ttl=SHORT, wait=BOUND, raise_if_lost=False)
    with lock as outer:
        with lock as inner:
            assert outer.lost
            inner.extend(ttl=60)
        assert inside.is_empty()
    assert inside.is_empty()


async def test_an_exception_in_the_block_releases(locks: Locks, plain_locks: Locks, inside: Inside) -> None:
    """The failure is raised as it was, the lock is released, and the next waiter has it."""
    queue: list[asyncio.Task[Held]] = []

    async def fail() -> None:
        async with locks.lock(KEY, ttl=60):
            queue.extend(await in_line(locks, inside, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await (await queue[0]).release() is True
    with pytest.raises(ZeroDivisionError), plain_locks.lock(KEY, ttl=60):
        raise ZeroDivisionError
    await inside.until_empty()


@pytest.mark.parametrize("moment", ["as it begins to wait", "while it waits"])
def test_a_thread_that_is_interrupted_leaves_the_queue(
    plain_locks: Locks, inside: Inside, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Ctrl-C at any moment: an interrupted caller is not queued any more, and is not handed the lock later."""
    send = asyncio.run_coroutine_threadsafe

    def dawdle(*work: Any) -> Any:
        """The call is made, and its caller has not begun to wait for the answer."""
        asked = send(*work)
        time.sleep(BOUND)
        return asked

    def interrupt_when_queued() -> None:
        wait(lambda: len(inside.queue()) == 1)
        interrupt()

    with interruptions() as interrupt, plain_locks.lock(KEY, ttl=600), ThreadPoolExecutor(1) as thread:
        if moment == "as it begins to wait":
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", dawdle)
        for _ in range(3):
            interrupting = thread.submit(interrupt_when_queued)
            with pytest.raises(KeyboardInterrupt):
                plain_locks.sync.acquire(KEY, ttl=600, wait=BOUND)
            interrupting.result(BOUND)
            wait(lambda: inside.queue() == [], seconds=RETURN_SECONDS_MAX)
        monkeypatch.undo()
    wait(inside.is_empty)


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], None]]:
    """What interrupts the main thread as Ctrl-C does."""

    def as_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, as_ctrl_c)
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


class Overtaken:
    """A future whose result is there, and whose reader is interrupted before it has it."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def result(self) -> None:
        """Wait for it in vain."""
        self._future.result()
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)


def test_an_interruption_at_the_moment_of_the_grant_leaves_no_lease(
    plain_locks: Locks, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was handed to a waiting thread and Ctrl-C came before the thread knew: then the lock is free."""
    send = asyncio.run_coroutine_threadsafe
    held = plain_locks.sync.acquire(KEY, ttl=600)

    def release_to_the_next() -> bool:
        wait(lambda: len(inside.queue()) == 1)
        return held.release()

    with ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *work: Overtaken(send(*work)))
        releasing = thread.submit(release_to_the_next)
        with contextlib.suppress(KeyboardInterrupt):
            plain_locks.sync.acquire(KEY, ttl=600, wait=BOUND).release()
        assert releasing.result(BOUND) is True
        monkeypatch.undo()
    wait(inside.is_empty, seconds=RETURN_SECONDS_MAX)


def test_a_forked_process_has_connections_of_its_own(server: Valkey, prefix: str) -> None:
    """Two processes on one socket read each other's grants, and believe in locks that they do not have."""
    done = run_script(FORKED, server.url, prefix)
    assert done == ["child: 0 foreign, 0 failed", "parent: 0 foreign, 0 failed"]


def test_a_forked_process_can_wait(server: Valkey, prefix: str) -> None:
    """The thread that waits for others does not live on in a child: the child has one of its own, or hangs."""
    done = run_script(FORKED_WAITER, server.url, prefix)
    assert done == ["child: busy", "parent: busy"]


def run_script(script: str, *arguments: str) -> list[str]:
    """What a program says, in order of the alphabet."""
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=BOUND, check=False
    )
    return sorted(result.stdout.splitlines()) or result.stderr.splitlines()[-3:]


# --- the end --------------------------------------------------------------------------------------------------------


def test_closing_ends_tasks_that_wait(server: Valkey, inside: Inside, prefix: str) -> None:
    """They get an error at once and not when their wait is over, and leave nothing behind."""
    assert run_script(CLOSED, server.url, prefix, KEY) == ["0 readers left"] + ["LocksUnavailable"] * 3
    assert inside.queue() == []
    assert inside.lease() is not None, "what is held is kept until it runs out"


def test_closing_ends_threads_that_wait(server: Valkey, inside: Inside, prefix: str) -> None:
    """A thread that waited gets the error too; it does not hang in a loop that has ended."""
    assert run_script(CLOSED_THREADS, server.url, prefix, KEY) == ["LocksUnavailable"] * 3
    assert inside.queue() == []
