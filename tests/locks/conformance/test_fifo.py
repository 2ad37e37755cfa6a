"""Waiting in a queue: in order of arrival, woken by the release, bounded, and not blocked by dead waiters."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.locks.conftest import GROUPS, SHARED, TIMED
from tests.locks.topologies import ask

from earmark.locks import LockBusy, QueueFull
from earmark.locks.backend_protocol import Group

from .support import BOUND, KEY, SEATS, SHORT, eventually, soon_lost, until_nothing_is_left, until_waiting, waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.conftest import Place
    from tests.locks.topologies import Topology

    from earmark.locks import Locks
    from earmark.testservers import Valkey

TIMED_LINES = tuple(name for name in TIMED if Group.FIFO in GROUPS[name])
SHARED_LINES = tuple(name for name in SHARED if Group.FIFO in GROUPS[name])
COMMANDS_MAX = 20
"""In a wait of a second. Who polls every 10 ms sends five times as many."""
WAITER = """
import asyncio, sys
from earmark.locks import Locks

async def main() -> None:
    async with Locks.from_url(sys.argv[1], prefix=sys.argv[2]) as locks:
        await locks.acquire(sys.argv[3], wait=600, ttl=600)

asyncio.run(main())
"""


@pytest.fixture
def locks(fifo_place: Place, open_locks: Callable[..., Locks]) -> Locks:
    """Locks on each backend with a queue."""
    return open_locks(fifo_place)


async def test_waiters_are_served_in_order_of_arrival(locks: Locks) -> None:
    """First come, first served; a latecomer with luck does not overtake."""
    served = []

    async def wait(number: int) -> None:
        async with locks.lock(KEY, wait=BOUND):
            served.append(number)

    held = await locks.acquire(KEY)
    arrivals = []
    for number in range(8):
        arrivals.append(asyncio.create_task(wait(number)))
        await until_waiting(locks, number + 1)
    await held.release()
    await asyncio.gather(*arrivals)
    assert served == list(range(8))
    await until_nothing_is_left(locks)


async def test_no_new_caller_overtakes_the_waiters(locks: Locks) -> None:
    """A caller at the moment of the release finds the lock taken: the first waiter has it."""
    held = await locks.acquire(KEY)
    waiter = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    await until_waiting(locks, 1)
    await held.release()
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    await (await waiter).release()


async def test_the_queue_behind_a_waiter_for_several_keys_is_kept(locks: Locks) -> None:
    """The first waiter wants a second key too: the waiters behind it stay queued, and one of them is next."""
    held = await locks.acquire(SEATS[0])
    several = asyncio.create_task(locks.acquire(*SEATS[:2], wait=BOUND))
    await until_waiting(locks, 1, SEATS[0])
    behind = asyncio.create_task(locks.acquire(SEATS[0], wait=BOUND))
    await until_waiting(locks, 2, SEATS[0])
    await held.release()
    both = await several
    assert both.keys == SEATS[:2]
    assert await waiters(locks, SEATS[0]) == 1
    assert await both.release() is True
    with pytest.raises(LockBusy):
        await locks.acquire(SEATS[0])
    assert await (await behind).release() is True
    await until_nothing_is_left(locks)


async def test_the_queue_is_kept_by_an_extension(locks: Locks) -> None:
    """A holder that extends its lock is still followed by the first waiter."""
    held = await locks.acquire(KEY, ttl=5)
    behind = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    await until_waiting(locks, 1)
    await held.extend(ttl=60)
    (seen,) = await locks.holdings()
    assert (len(seen.waiters), seen.ttl_seconds > 30) == (1, True)
    assert await held.release() is True
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    assert await (await behind).release() is True


@pytest.mark.parametrize("fifo_place", SHARED_LINES, indirect=True)
async def test_the_queue_is_shown(fifo_place: Place, open_locks: Callable[..., Locks]) -> None:
    """An operator sees the waiters, in the order of the queue."""
    tills = [open_locks(fifo_place, holder=f"till-{number}") for number in range(3)]
    held = await tills[0].acquire(KEY)
    arrivals = []
    for number in (1, 2):
        arrivals.append(asyncio.create_task(tills[number].acquire(KEY, wait=BOUND)))
        await until_waiting(tills[0], number)
    (seen,) = await tills[0].holdings()
    assert ["till-1" in seen.waiters[0], "till-2" in seen.waiters[1]] == [True, True]
    await held.release()
    await (await arrivals[0]).release()
    await (await arrivals[1]).release()


@pytest.mark.parametrize("fifo_place", TIMED_LINES, indirect=True)
async def test_a_waiter_that_gave_up_is_passed_over(locks: Locks) -> None:
    """Its deadline came before the lock: the one behind it is served."""
    held = await locks.acquire(KEY)
    impatient = asyncio.create_task(locks.acquire(KEY, wait=SHORT))
    await until_waiting(locks, 1, unless=impatient)
    behind = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
    with pytest.raises(LockBusy):
        await impatient
    await held.release()
    await (await behind).release()
    await until_nothing_is_left(locks)


@pytest.mark.parametrize("fifo_place", TIMED_LINES, indirect=True)
async def test_waiters_behind_a_crashed_holder_are_served(locks: Locks) -> None:
    """The lease is not released but runs out, and the first waiter has it."""
    await soon_lost(locks, KEY)
    first = asyncio.create_task(locks.acquire(KEY, ttl=60, wait=BOUND))
    await until_waiting(locks, 1, unless=first)
    second = asyncio.create_task(locks.acquire(KEY, ttl=60, wait=BOUND))
    held = await first
    await until_waiting(locks, 1)
    assert not second.done()
    await held.release()
    await (await second).release()


@pytest.mark.parametrize("fifo_place", TIMED_LINES, indirect=True)
async def test_a_lease_ends_in_time_though_its_waiters_gave_up(locks: Locks) -> None:
    """A caller waited for it and gave up: that neither keeps it alive nor hides that it ended."""
    crashed = await locks.acquire(KEY, ttl=1)
    with pytest.raises(LockBusy):
        await locks.acquire(KEY, wait=SHORT)
    await until_nothing_is_left(locks)
    async with locks.lock(KEY, ttl=5) as held:
        assert await crashed.release() is False
        held.check()
        (seen,) = await locks.holdings()
        assert seen.token == held.token
        assert seen.ttl_seconds <= 5


async def test_the_queue_is_bounded(fifo_place: Place, open_locks: Callable[..., Locks]) -> None:
    """Past the bound no caller waits: the refusal comes at once, and names the key and the bound."""
    locks = open_locks(fifo_place, queue_max=2)
    held = await locks.acquire(KEY)
    waiters = []
    for number in range(2):
        waiters.append(asyncio.create_task(locks.acquire(KEY, wait=BOUND)))
        await until_waiting(locks, number + 1)
    with pytest.raises(QueueFull) as refused:
        await locks.acquire(KEY, wait=BOUND)
    assert (refused.value.key, refused.value.queue_max) == (KEY, 2)
    assert refused.value.transient
    with pytest.raises(LockBusy):
        await locks.acquire(KEY)
    await held.release()
    for waiter in waiters:
        await (await waiter).release()
    await until_nothing_is_left(locks)


def commands_sent(server: Valkey) -> int:
    """How many commands the server has done, by its own count; this question is one of them."""
    lines = ask(server, "INFO", "commandstats").splitlines()
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "calls=" in line)


async def test_a_waiter_is_woken_and_does_not_poll(
    redis_place: Place, one_redis: Topology, open_locks: Callable[..., Locks]
) -> None:
    """While ten wait for a second, the server gets next to no calls."""
    locks = open_locks(redis_place)
    (server,) = one_redis.nodes
    held = await locks.acquire(KEY)
    waiters = [asyncio.create_task(locks.acquire(KEY, wait=BOUND)) for _ in range(10)]
    await until_waiting(locks, 10)
    before = commands_sent(server)
    await asyncio.sleep(1)
    quiet = commands_sent(server) - before
    await held.release()
    for waiter in asyncio.as_completed(waiters):
        await (await waiter).release()
    assert quiet <= COMMANDS_MAX


async def test_polling_would_be_noticed(
    redis_place: Place, one_redis: Topology, open_locks: Callable[..., Locks]
) -> None:
    """The control: ten callers that poll every 100 ms are counted far above the bound."""
    locks = open_locks(redis_place)
    (server,) = one_redis.nodes

    async def poll() -> None:
        for _ in range(10):
            assert (await locks.attempt(KEY, lambda: None)).busy
            await asyncio.sleep(0.01)

    async with locks.lock(KEY):
        before = commands_sent(server)
        for _ in range(3):
            await poll()
        assert commands_sent(server) - before > COMMANDS_MAX


@pytest.mark.parametrize("fifo_place", SHARED_LINES, indirect=True)
async def test_a_waiter_that_is_killed_does_not_block_those_behind_it(fifo_place: Place, locks: Locks) -> None:
    """Kill -9 sends no message: the waiter behind the dead one gets the lock all the same."""
    held = await locks.acquire(KEY, ttl=60)
    arguments = [sys.executable, "-c", WAITER, fifo_place.url, fifo_place.prefix, KEY]
    with subprocess.Popen(arguments) as doomed:  # noqa: ASYNC220 -- it returns at once, and it is a process to kill
        try:
            await until_waiting(locks, 1)
            behind = asyncio.create_task(locks.acquire(KEY, ttl=60, wait=BOUND))
            await until_waiting(locks, 2)
        finally:
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
        await held.release()
        next_holder = await behind

        async def only_one() -> bool:
            return await waiters(locks) == 0

        await eventually(only_one)
        assert await next_holder.release() is True
    await until_nothing_is_left(locks)
