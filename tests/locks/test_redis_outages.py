"""Redis stops, dies, restarts, answers nonsense, or its answers are lost: what callers see, with real servers.

Nothing ever proceeds unguarded, every call returns within its deadline, and no program has to be restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.conformance.support import BOUND, warnings_in
from tests.locks.faulty_proxy import Kind, Proxy
from tests.locks.hazard_support import (
    KEY,
    RETURN_SECONDS_MAX,
    TIMEOUT,
    Inside,
    outcome,
    stopped,
    until,
    until_served,
    until_true,
    wait,
)
from tests.locks.topologies import ask, start_private

from earmark.locks import LockBusy, LockLost, Locks, LocksUnavailable
from earmark.locks.circuit_breaker import BreakerState
from earmark.testservers.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.locks.topologies import Topology

    from earmark.locks import Held, SyncHeld
    from earmark.testservers import Valkey

COOLDOWN_SECONDS = 0.1
REFUSALS = 200
"""How many calls are made to an open breaker."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(one_redis: Topology) -> Iterator[Valkey]:  # noqa: ARG001 -- where no server can be had, it says so
    """A server that a test may stop, and lets go on. It knows the script: no answer about that is lost or held."""
    with start_private() as topology:
        with Locks.from_url(topology.url) as locks, locks.lock(KEY) as held:
            held.check()
        yield topology.nodes[0]


@pytest.fixture
def own_server(one_redis: Topology) -> Iterator[Valkey]:  # noqa: ARG001 -- as above
    """A server that a test may kill or spoil."""
    with start_private() as topology:
        yield topology.nodes[0]


@pytest.fixture
def prefix() -> str:
    """No two tests meet on one server."""
    return f"outage{next(_numbers)}"


def opened(url: str, **knobs: Any) -> Locks:
    """Locks whose calls have a short deadline, and whose breaker tries again soon."""
    locks = Locks.from_url(url, **{"timeout": TIMEOUT, **knobs})
    if locks.breaker is not None:
        locks.breaker._cooldown_seconds = locks.breaker._cooldown_seconds_least = COOLDOWN_SECONDS
    return locks


# --- stopped by SIGSTOP ---------------------------------------------------------------------------------------------


async def fifty_at_once(locks: Locks) -> None:
    """Raise what all of them raise."""
    answers = await asyncio.gather(*(locks.acquire(f"order:{n}") for n in range(50)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [LocksUnavailable] * 50
    raise LocksUnavailable(because="all of them said so")


CALLS: dict[str, Callable[[Locks, Held], Awaitable[Any]]] = {
    "acquire": lambda locks, _: locks.acquire("order:1"),
    "acquire what is taken": lambda locks, _: locks.acquire(KEY),
    "acquire several": lambda locks, _: locks.acquire("order:1", "order:2"),
    "wait in line": lambda locks, _: locks.acquire(KEY, wait=TIMEOUT),
    "wait in line for long": lambda locks, _: locks.acquire(KEY, wait=BOUND),
    "fifty at once": lambda locks, _: fifty_at_once(locks),
    "extend": lambda _, held: held.extend(),
    "release": lambda _, held: held.release(),
    "run": lambda locks, _: locks.run("order:1", lambda: "unguarded"),
    "attempt": lambda locks, _: locks.attempt("order:1", lambda: "unguarded"),
    "evict": lambda locks, _: locks.evict(KEY),
    "put up a marker": lambda locks, _: locks.marker("order:1").set(),
    "ping": lambda locks, _: locks.ping(),
}
LOOKS: dict[str, Callable[[Locks, Held], Awaitable[Any]]] = {
    "holdings": lambda locks, _: locks.holdings(),
    "look at a marker": lambda locks, _: locks.marker("order:1").is_set(),
}


async def outcomes_while_stopped(
    server: Valkey, prefix: str, calls: dict[str, Callable[[Locks, Held], Awaitable[Any]]], *, database: int = 0
) -> dict[str, Any]:
    """What each call answers while the server is stopped, each by locks of its own: no breaker spares any of them."""
    url = f"redis://127.0.0.1:{server.port}/{database}"
    async with AsyncExitStack() as stack:
        ready = {}
        for number, name in enumerate(calls):
            locks = await stack.enter_async_context(opened(url, prefix=f"{prefix}x{number}"))
            ready[name] = (locks, await locks.acquire(KEY, ttl=60))
        with stopped(server):
            answers = await asyncio.gather(*(outcome(call(*ready[name])) for name, call in calls.items()))
    return dict(zip(calls, answers, strict=True))


def assert_refused(answers: dict[str, Any]) -> None:
    """Every call returned, and none with a lock or with work that was done without one."""
    # A release that does not get through is an answer, not a failure: the work is done, and the lease runs out.
    wrong = {
        name: said for name, said in answers.items() if name != "release" and not isinstance(said, LocksUnavailable)
    }
    assert not wrong
    assert answers.get("release", False) is False


async def test_every_call_returns_within_its_deadline_while_redis_is_stopped(server: Valkey, prefix: str) -> None:
    """The connection stands and the server is silent: each call times out by itself, and none goes on unguarded."""
    assert_refused(await outcomes_while_stopped(server, prefix, CALLS))


async def test_every_look_returns_within_its_deadline_while_redis_is_stopped(server: Valkey, prefix: str) -> None:
    """A caller that only reads waits no longer than one that locks."""
    assert_refused(await outcomes_while_stopped(server, prefix, LOOKS))


async def test_a_connection_that_is_being_made_has_the_same_deadline(server: Valkey, prefix: str) -> None:
    """A stopped server accepts connections: a new one waits for the first answer, and no longer than others."""
    url = f"redis://127.0.0.1:{server.port}/1"
    programs = [opened(url, prefix=prefix) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for locks in programs:
            stack.push_async_callback(locks.close)
        with stopped(server):
            first, second, third = await asyncio.gather(
                outcome(programs[0].acquire(KEY)),
                outcome(programs[1].acquire(KEY, wait=BOUND)),
                outcome(programs[2].__aenter__()),
            )
    assert isinstance(first, LocksUnavailable)
    assert isinstance(second, LocksUnavailable)
    assert third is programs[2], "a program starts without its lock server"


async def test_locks_are_closed_within_a_bound_while_redis_is_stopped(server: Valkey, prefix: str) -> None:
    """A program that ends does not wait for a server that does not answer."""
    locks = opened(server.url, prefix=prefix)
    held = await locks.acquire(KEY, ttl=60)
    waiter = asyncio.create_task(outcome(locks.acquire(KEY, wait=BOUND)))
    await Inside(server, prefix=prefix).until_waiting(1)
    with stopped(server):
        assert await held.release() is False
        waiter.cancel()
        await asyncio.wait([waiter])
        assert await outcome(locks.close()) is None


PLAIN_CALLS: dict[str, Callable[[Locks, SyncHeld], Any]] = {
    "acquire": lambda locks, _: locks.sync.acquire("order:1"),
    "wait in line": lambda locks, _: locks.sync.acquire(KEY, wait=TIMEOUT),
    "wait in line for long": lambda locks, _: locks.sync.acquire(KEY, wait=BOUND),
    "extend": lambda _, held: held.extend(),
    "release": lambda _, held: held.release(),
    "run": lambda locks, _: locks.sync.run("order:1", lambda: "unguarded"),
    "attempt": lambda locks, _: locks.sync.attempt("order:1", lambda: "unguarded"),
    "evict": lambda locks, _: locks.sync.evict(KEY),
    "put up a marker": lambda locks, _: locks.sync.marker("order:1").set(),
    "ping": lambda locks, _: locks.sync.ping(),
}


def plain_outcome(call: Callable[[], Any]) -> Any:
    began = time.monotonic()
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 -- the error is the answer here
        answer = error
    took = time.monotonic() - began
    return answer if took < RETURN_SECONDS_MAX else f"did not return within {RETURN_SECONDS_MAX:g} s"


def test_every_call_of_a_thread_returns_within_its_deadline_while_redis_is_stopped(server: Valkey, prefix: str) -> None:
    """The same for threads, with the direct backend and with the one in the background thread."""
    with ExitStack() as stack, ThreadPoolExecutor(len(PLAIN_CALLS)) as threads:
        ready = {}
        for number, name in enumerate(PLAIN_CALLS):
            locks = stack.enter_context(opened(server.url, prefix=f"{prefix}x{number}"))
            ready[name] = (locks, locks.sync.acquire(KEY, ttl=60))
        with stopped(server):
            asked = {
                name: threads.submit(plain_outcome, functools.partial(call, *ready[name]))
                for name, call in PLAIN_CALLS.items()
            }
            wait(lambda: all(each.done() for each in asked.values()))
        answers = {name: each.result() for name, each in asked.items()}
    assert_refused(answers)


async def test_the_breaker_opens_and_later_calls_are_refused_without_being_sent(server: Valkey, prefix: str) -> None:
    """After a few silent calls no caller waits for the timeout any more; it closes by itself when it answers."""
    with Proxy(server.port) as proxy:
        async with Locks.from_url(proxy.url, timeout=TIMEOUT, prefix=prefix) as locks:
            held = await locks.acquire(KEY, ttl=60)
            with stopped(server):
                before = proxy.received
                await until_open(locks)
                assert proxy.received > before, "the control: a call that is let through reaches the proxy"
                with frozen(locks):
                    received = proxy.received
                    took = [await refused(locks) for _ in range(REFUSALS)]
                    assert isinstance(await outcome(locks.acquire(KEY, wait=BOUND)), LocksUnavailable)
                    assert isinstance(await outcome(held.extend()), LocksUnavailable)
                    with pytest.raises(LocksUnavailable):
                        locks.sync.acquire(KEY)
                    assert await held.release() is False
                    assert proxy.received == received, "an open breaker let something through"
            median = statistics.median(took)
            assert median < 0.1
            print(f"\nan open breaker refuses in {median * 1e6:.0f} µs (the median of {REFUSALS})")  # noqa: T201
            await until_served(locks, "order:2")
            assert locks.breaker is not None
            assert locks.breaker.state is BreakerState.CLOSED


async def test_what_a_stopped_server_received_leaves_no_lease_behind(server: Valkey, prefix: str) -> None:
    """The server gets the calls when it goes on, and grants locks without a caller: all of them are given back."""
    async with opened(server.url, prefix=prefix) as locks:
        await until_served(locks, "order:2")
        with stopped(server):
            for _ in range(3):
                assert isinstance(await outcome(locks.acquire(KEY, ttl=600)), LocksUnavailable)
        await until_served(locks, "order:2")
        await until(lambda: ask(server, "KEYS", f"{prefix}:lock:*") == [], seconds=RETURN_SECONDS_MAX)


async def until_open(locks: Locks) -> None:
    """Ask until the breaker has had enough."""
    assert locks.breaker is not None
    for _ in range(10):
        assert isinstance(await outcome(locks.acquire("order:1")), LocksUnavailable)
        if locks.breaker.state is BreakerState.OPEN:
            return
    pytest.fail("the breaker never opened")


@contextmanager
def frozen(locks: Locks) -> Iterator[None]:
    """Stop the breaker's clock, so that its cool-down does not end on a slow machine."""
    breaker = locks.breaker
    assert breaker is not None
    now = time.monotonic()
    breaker._clock = lambda: now
    yield
    breaker._clock = time.monotonic


async def refused(locks: Locks) -> float:
    """Seconds until a refusal."""
    began = time.perf_counter()
    with pytest.raises(LocksUnavailable):
        await locks.acquire("order:1")
    return time.perf_counter() - began


# --- killed, and not there yet --------------------------------------------------------------------------------------


async def test_a_server_that_is_killed_sends_its_waiters_away_and_serves_them_when_it_is_back(
    own_server: Valkey,
) -> None:
    """Waiters fail at once when the server dies; afterwards tasks, threads and queues work as before."""
    inside = Inside(own_server)
    async with opened(own_server.url) as locks:
        held = await locks.acquire(KEY, ttl=60)
        queue = [asyncio.create_task(outcome(locks.acquire(KEY, wait=BOUND))) for _ in range(3)]
        await inside.until_waiting(3)
        own_server.kill()
        for waiter in queue:
            assert isinstance(await waiter, LocksUnavailable)
        own_server.start()
        await until_served(locks)
        with pytest.raises(LockLost):
            await held.extend()
        assert await held.release() is False
        with locks.lock(KEY, ttl=60) as in_thread:
            waiter = asyncio.create_task(locks.acquire(KEY, wait=BOUND))
            await inside.until_waiting(1)
            in_thread.check()
        assert await (await waiter).release() is True
    assert inside.is_empty()


async def test_a_program_starts_without_redis_and_says_so(own_server: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what becomes of locks meanwhile; calls are refused, and served once Redis is there."""
    own_server.kill()
    async with opened(own_server.url) as locks:
        assert "cannot be reached" in warnings_in(caplog)
        assert "refused until it answers" in warnings_in(caplog)
        for call in (locks.acquire(KEY), locks.acquire(KEY, wait=BOUND), locks.run(KEY, lambda: "unguarded")):
            assert isinstance(await outcome(call), LocksUnavailable)
        own_server.start()
        await until_served(locks)


def test_a_threaded_program_starts_without_redis_and_says_so(
    own_server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    """The same with plain `with`."""
    own_server.kill()
    with opened(own_server.url) as locks:
        assert "cannot be reached" in warnings_in(caplog)
        with pytest.raises(LocksUnavailable), locks.lock(KEY):
            pytest.fail("the block must not run")
        own_server.start()
        wait(lambda: _granted(locks))


def _granted(locks: Locks) -> bool:
    try:
        with locks.lock(KEY):
            return True
    except LocksUnavailable:
        return False


async def test_a_program_that_finds_redis_warns_of_nothing(
    server: Valkey, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: what is said without Redis is not said with it."""
    async with opened(server.url, prefix=prefix, timeout=BOUND) as locks:
        async with locks.lock(KEY) as held:
            held.check()
        assert warnings_in(caplog) == ""


# --- the database meanwhile -----------------------------------------------------------------------------------------


async def test_the_database_guards_while_redis_is_stopped(server: Valkey, prefix: str, locks_database: str) -> None:
    """Calls go on, two programs exclude each other there, and when Redis is back it guards again."""
    knobs: dict[str, Any] = {"prefix": prefix, "when_gone": "database", "database": locks_database}
    async with opened(server.url, **knobs) as mine, opened(server.url, **knobs) as theirs:
        with stopped(server):
            # Short, for the server may get these calls when it goes on, and keep leases without a holder.
            held = await mine.acquire(KEY, ttl=2)
            for attempt in (theirs.acquire(KEY, ttl=2), theirs.acquire(KEY, ttl=2, wait=TIMEOUT)):
                assert isinstance(await outcome(attempt), LockBusy)
            waiter = asyncio.create_task(theirs.acquire(KEY, ttl=2, wait=BOUND))
            await held.extend()
            assert await held.release() is True
            assert await (await waiter).release() is True
            with theirs.lock(KEY, ttl=2) as in_thread:
                in_thread.check()
                assert isinstance(await outcome(mine.acquire(KEY, ttl=2)), LockBusy)

        async def in_redis() -> bool:
            async with theirs.lock("order:1", ttl=2, wait=BOUND):
                return Inside(server, prefix=prefix, key="order:1").lease() is not None

        await until_true(in_redis)


async def test_with_redis_and_the_database_gone_nothing_proceeds(server: Valkey, prefix: str) -> None:
    """Two guards that are gone are none: the work is not begun, and the refusal is no "busy"."""
    begun: list[str] = []
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    async with opened(server.url, prefix=prefix, when_gone="database", database=nowhere) as locks:
        with stopped(server):
            for call in (
                locks.run(KEY, lambda: begun.append("run")),
                locks.attempt(KEY, lambda: begun.append("attempt")),
                locks.acquire(KEY),
                locks.acquire(KEY, wait=TIMEOUT),
            ):
                assert isinstance(await outcome(call), LocksUnavailable)
            with pytest.raises(LocksUnavailable), locks.lock(KEY):
                begun.append("with")
    assert begun == []


async def test_a_lock_from_before_the_switch_is_outranked(server: Valkey, prefix: str, locks_database: str) -> None:
    """Redis does not inform the database of its holders: two may hold at once, and one count shows which is late."""
    knobs: dict[str, Any] = {"prefix": prefix, "when_gone": "database", "database": locks_database}
    knobs["fence"] = "database"
    key = f"order:{prefix}"
    async with opened(server.url, **knobs) as mine, opened(server.url, **knobs) as theirs:
        in_redis = await mine.acquire(key, ttl=60)
        with stopped(server):
            in_database = await theirs.acquire(key, ttl=60)
        in_redis.check()
        in_database.check()
        await mine.evict(key)
        await in_database.release()
        await until_served(mine, key)
        async with theirs.lock(key, wait=BOUND) as later:
            assert in_redis.fence < in_database.fence < later.fence


# --- the effect happened, the answer was lost -----------------------------------------------------------------------


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A wire to the server that can be made to misbehave."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def inside(server: Valkey, prefix: str) -> Inside:
    return Inside(server, prefix=prefix)


async def test_a_grant_whose_answer_was_lost_is_given_back(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """No caller knows of the lease, so none would ever release it: it is released long before its time is over."""
    async with opened(proxy.url, prefix=prefix) as locks:
        proxy.lose_answers()
        asking = asyncio.create_task(outcome(locks.acquire(KEY, ttl=600)))
        # It is there for a moment only, which a slow machine may miss.
        await until(lambda: inside.lease() is not None or asking.done())
        assert isinstance(await asking, LocksUnavailable)
        await inside.until_empty()
        assert proxy.lost > 0
        proxy.flow()
        await until_served(locks)


def test_a_grant_to_a_thread_whose_answer_was_lost_is_given_back(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """The same with the direct backend."""
    with opened(proxy.url, prefix=prefix) as locks, ThreadPoolExecutor(1) as thread:
        proxy.lose_answers()
        asking = thread.submit(plain_outcome, lambda: locks.sync.acquire(KEY, ttl=600))
        # It is there for a moment only, which a slow machine may miss.
        wait(lambda: inside.lease() is not None or asking.done())
        assert isinstance(asking.result(), LocksUnavailable)
        wait(inside.is_empty)
        proxy.flow()


async def test_a_grant_that_cannot_be_given_back_runs_out(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """When the way back is lost too, the lease ends with its time, and the next one has the lock."""
    async with opened(proxy.url, prefix=prefix) as locks, opened(proxy.url, prefix=prefix) as others:
        proxy.hold_answers()
        asking = asyncio.create_task(outcome(locks.acquire(KEY, ttl=1.5)))
        await until(lambda: inside.lease() is not None)
        proxy.lose_requests()
        assert isinstance(await asking, LocksUnavailable)
        await until(lambda: proxy.unheard > 0)
        assert inside.lease() is not None, "it was given back: this is not what is tested here"
        proxy.cut()
        proxy.flow()
        await until_served(others)


async def test_a_release_that_does_not_arrive_lets_the_lease_run_out(
    proxy: Proxy, inside: Inside, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done and does not fail for it; the log says so, and the next one waits for the time to be over."""
    async with opened(proxy.url, prefix=prefix) as locks, opened(proxy.url, prefix=prefix) as others:
        held = await locks.acquire(KEY, ttl=1)
        proxy.lose_requests()
        assert await outcome(held.release()) is False
        assert "could not release" in warnings_in(caplog)
        assert inside.lease() is not None
        proxy.cut()
        proxy.flow()
        async with others.lock(KEY, wait=BOUND) as next_holder:
            next_holder.check()


async def test_a_release_whose_answer_was_lost_has_released(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """The next one has the lock at once, and what the late releaser may repeat does not touch it."""
    async with opened(proxy.url, prefix=prefix) as locks, opened(proxy.url, prefix=prefix) as others:
        held = await locks.acquire(KEY, ttl=600)
        proxy.lose_answers()
        assert await outcome(held.release()) is False
        assert inside.lease() is None
        proxy.cut()
        proxy.flow()
        async with others.lock(KEY, ttl=600) as next_holder:
            await held.release()
            await next_holder.extend()


async def test_a_release_that_did_not_arrive_is_not_reported_as_done(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """Asked again it releases, or says again that it could not: what it says is what is so."""
    async with opened(proxy.url, prefix=prefix) as locks:
        held = await locks.acquire(KEY, ttl=60)
        proxy.lose_requests()
        assert await outcome(held.release()) is False
        proxy.cut()
        proxy.flow()
        released = await held.release()
        assert released == (inside.lease() is None)


async def test_an_extension_whose_answer_was_lost_is_not_counted_on(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """The holder relies on what it knows: never on more time than the server gave, and it may extend again."""
    async with opened(proxy.url, prefix=prefix) as locks:
        held = await locks.acquire(KEY, ttl=60)
        proxy.lose_answers()
        assert isinstance(await outcome(held.extend(ttl=600)), LocksUnavailable)
        assert inside.ttl_seconds() > 300
        assert held.remaining <= 60
        proxy.cut()
        proxy.flow()
        await held.extend(ttl=600)
        assert 300 < held.remaining <= 600
        assert await held.release() is True


async def test_a_place_in_the_queue_whose_answer_was_lost_is_removed(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """A caller that was queued without knowing it is not queued any more when the lock is released."""
    async with opened(proxy.url, prefix=prefix) as locks:
        held = await locks.acquire(KEY, ttl=600)
        listening = asyncio.create_task(locks.acquire(KEY, ttl=600, wait=BOUND))
        await inside.until_waiting(1)
        proxy.lose_answers(Kind.COMMANDS)
        lost = asyncio.create_task(outcome(locks.acquire(KEY, ttl=600, wait=BOUND)))
        await inside.until_waiting(2)
        assert isinstance(await lost, LocksUnavailable)
        await inside.until_waiting(1)
        proxy.cut(Kind.COMMANDS)
        proxy.flow()
        assert await held.release() is True
        assert await (await listening).release() is True
    await inside.until_empty()


@pytest.mark.parametrize("several", [False, True])
async def test_a_call_whose_connection_broke_is_repeated_and_has_what_it_had(
    proxy: Proxy, inside: Inside, prefix: str, *, several: bool
) -> None:
    """The answer is lost with the connection; the same call again is granted the same lease, under the same fence."""
    keys = (KEY, "account:43") if several else (KEY,)
    async with opened(proxy.url, prefix=prefix, timeout=BOUND) as locks:
        proxy.hold_answers()
        asking = asyncio.create_task(locks.acquire(*keys, ttl=600))
        await until(lambda: inside.lease() is not None)
        stored = inside.lease()
        proxy.cut()
        proxy.flow()
        held = await asking
        assert stored is not None
        assert inside.lease() == stored
        assert f"|{held.fence}" in stored
        assert await held.release() is True


async def test_a_place_in_the_queue_whose_connection_broke_is_one_place(
    proxy: Proxy, inside: Inside, prefix: str
) -> None:
    """The call is repeated: a caller that is queued twice would be handed the lock again after its release."""
    async with opened(proxy.url, prefix=prefix, timeout=BOUND) as locks:
        async with locks.lock(KEY, ttl=600):
            first = asyncio.create_task(locks.acquire(KEY, ttl=600, wait=BOUND))
            await inside.until_waiting(1)
            proxy.break_after(b"EVALSHA")
            second = asyncio.create_task(locks.acquire(KEY, ttl=600, wait=BOUND))
            await until(lambda: proxy.lost > 0)
            # Once these are answered, what was asked before them has been repeated.
            for number in range(3):
                async with locks.lock(f"order:{number}"):
                    assert len(set(inside.queue())) == 2
            assert len(inside.queue()) == 2
        for waiter in (first, second):
            assert await (await waiter).release() is True
    await inside.until_empty()


async def test_an_eviction_whose_connection_broke_takes_one_lock_and_not_two(
    server: Valkey, proxy: Proxy, inside: Inside, prefix: str
) -> None:
    """The same call again finds the next holder, which has done nothing: its lock is not the one to take away."""
    async with opened(proxy.url, prefix=prefix, timeout=BOUND) as operator, opened(server.url, prefix=prefix) as others:
        hanging = await others.acquire(KEY, ttl=600)
        waiter = asyncio.create_task(others.acquire(KEY, ttl=600, wait=BOUND))
        await inside.until_waiting(1)
        proxy.break_after(b"EVALSHA")
        await outcome(operator.evict(KEY))
        assert proxy.lost > 0
        next_holder = await waiter
        assert next_holder.token in (inside.lease() or "no lease")
        assert await next_holder.release() is True
        assert await hanging.release() is False


async def test_connections_that_break_in_the_middle_of_traffic_cost_no_update(
    proxy: Proxy, inside: Inside, prefix: str
) -> None:
    """Some calls are refused and tried again, some are repeated: no two callers are ever inside together."""
    counter = inside_now = 0

    def has_come_to(mark: int) -> bool:
        return counter >= mark

    async with opened(proxy.url, prefix=prefix, timeout=BOUND) as locks:

        async def count() -> None:
            nonlocal counter, inside_now
            turns = 0
            while turns < 10:
                await asyncio.sleep(0)
                with contextlib.suppress(LocksUnavailable):
                    async with locks.lock(KEY, ttl=60, wait=BOUND):
                        inside_now += 1
                        assert inside_now == 1, "two hold the lock"
                        await asyncio.sleep(0)
                        inside_now -= 1
                        counter += 1
                        turns += 1

        async def cut() -> None:
            # Whenever a few have succeeded, so that on a slow machine some calls succeed as well.
            for mark in range(3, 100, 3):
                await until(functools.partial(has_come_to, mark))
                proxy.cut()

        await asyncio.gather(cut(), *(count() for _ in range(10)))
    assert counter == 100
    await inside.until_empty()


async def test_a_block_whose_release_was_carried_out_but_not_answered_lost_nothing(
    proxy: Proxy, inside: Inside, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The release is repeated and finds nothing, as after a loss: it is unknown, and the result is not thrown away."""
    async with opened(proxy.url, prefix=prefix, timeout=BOUND) as locks:
        async with locks.lock(KEY, ttl=600) as held:
            proxy.break_after(b"EVALSHA")
        assert proxy.lost > 0
        assert not held.lost
        assert "could not release the lock" in caplog.text
        with locks.lock("order:1", ttl=600) as in_thread:
            proxy.break_after(b"EVALSHA")
        assert not in_thread.lost
    await inside.until_empty()


async def test_work_under_renewal_is_cancelled_when_its_time_is_over(server: Valkey, prefix: str) -> None:
    """Not when the last call to a silent server has timed out: by then another caller may hold the lock."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def work(locks: Locks) -> None:
        async with locks.lock(KEY, ttl=0.6, renew=True):
            begun.set()
            try:
                await asyncio.sleep(BOUND)
            finally:
                over.set()

    async with opened(server.url, prefix=prefix, timeout=2 * RETURN_SECONDS_MAX) as locks:
        working = asyncio.create_task(work(locks))
        await begun.wait()
        with stopped(server):
            result = await outcome(over.wait())
        await asyncio.wait([working])
    assert result is True, "it worked on without a lock"
    assert isinstance(working.exception(), LockLost)


async def test_a_subscription_that_was_never_answered_is_made_anew(proxy: Proxy, inside: Inside, prefix: str) -> None:
    """A firewall forgot one connection: later waiters are not refused for it for ever."""
    async with opened(proxy.url, prefix=prefix) as locks:
        held = await locks.acquire(KEY, ttl=600)
        proxy.hold(Kind.SUBSCRIPTION)
        assert isinstance(await outcome(locks.acquire(KEY, wait=BOUND)), LocksUnavailable)
        proxy.strand(Kind.SUBSCRIPTION)
        proxy.flow()
        for _ in range(5):
            said = await outcome(locks.acquire(KEY, wait=TIMEOUT))
            if isinstance(said, LockBusy):
                break  # It was queued until its wait was over.
        assert isinstance(said, LockBusy), "no caller can wait any more"
        assert await held.release() is True
    await inside.until_empty()


# --- a server that answers with an error ----------------------------------------------------------------------------


def spoil_memory(server: Valkey) -> Callable[[], object]:
    ask(server, "CONFIG", "SET", "maxmemory", "1")
    return lambda: ask(server, "CONFIG", "SET", "maxmemory", "0")


def spoil_disk(server: Valkey) -> Callable[[], object]:
    """A snapshot that cannot be written makes a server refuse writes."""

    def mend() -> None:
        server.directory.chmod(0o700)
        ask(server, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")

    ask(server, "CONFIG", "SET", "save", "3600 1")
    server.directory.chmod(0o500)
    ask(server, "BGSAVE")
    wait(lambda: "rdb_last_bgsave_status:err" in ask(server, "INFO", "persistence"))
    return mend


def demote(server: Valkey) -> Callable[[], object]:
    ask(server, "REPLICAOF", "127.0.0.1", "1")
    return lambda: ask(server, "REPLICAOF", "NO", "ONE")


def abandon(server: Valkey) -> Callable[[], object]:
    ask(server, "CONFIG", "SET", "min-replicas-to-write", "1")
    return lambda: ask(server, "CONFIG", "SET", "min-replicas-to-write", "0")


def load_slowly(server: Valkey) -> Callable[[], object]:
    """A server that restarts with a lot of data answers, and says that it is not ready."""
    ask(server, "CONFIG", "SET", "rdbcompression", "no")
    for number in range(20):
        ask(server, "SET", f"filling{number}", "x" * 4000)
    ask(server, "SAVE")
    server.kill()
    with (server.directory / "valkey.conf").open("a", encoding="utf-8") as settings:
        settings.write("key-load-delay 50000\nloading-process-events-interval-bytes 1024\n")
    starting = threading.Thread(target=server.start)
    starting.start()
    wait(lambda: _says(server, "LOADING"))
    return starting.join


def _says(server: Valkey, word: str) -> bool:
    import redis

    try:
        ask(server, "GET", "anything")
    except redis.RedisError as error:
        return word in str(error) or "loading" in str(error).lower()
    return False


@pytest.mark.parametrize(
    "word, spoil",
    [
        ("maxmemory", spoil_memory),
        ("MISCONF", spoil_disk),
        ("read only", demote),
        ("NOREPLICAS", abandon),
        ("loading", load_slowly),
    ],
    ids=["OOM", "MISCONF", "READONLY", "NOREPLICAS", "LOADING"],
)
async def test_a_server_that_answers_with_an_error_counts_as_down(
    own_server: Valkey, word: str, spoil: Callable[[Valkey], Callable[[], object]]
) -> None:
    """It counts as a silent one: callers are refused until it is repaired; the breaker opens and closes."""
    async with opened(own_server.url) as locks:
        await until_served(locks)
        mend = await asyncio.to_thread(spoil, own_server)
        try:
            said = await outcome(locks.acquire(KEY))
            assert isinstance(said, LocksUnavailable)
            assert word.lower() in said.because.lower()
            with pytest.raises(LocksUnavailable):
                locks.sync.acquire(KEY)
            await until_open(locks)
        finally:
            await asyncio.to_thread(mend)
        await until_served(locks)
        assert locks.breaker is not None
        assert locks.breaker.state is BreakerState.CLOSED


async def test_a_server_that_forgot_the_script_gets_it_again(server: Valkey, prefix: str) -> None:
    """SCRIPT FLUSH in the middle of traffic costs no caller a lock: no call fails, and no update is lost."""
    counter = 0

    async with opened(server.url, prefix=prefix, timeout=BOUND) as locks:

        async def count() -> None:
            nonlocal counter
            for _ in range(5):
                async with locks.lock(KEY, wait=BOUND):
                    seen = counter
                    await asyncio.sleep(0)
                    counter = seen + 1

        def count_in_a_thread() -> None:
            for number in range(10):
                with locks.lock(f"order:{number}"):
                    ask(server, "SCRIPT", "FLUSH")

        await asyncio.gather(*(count() for _ in range(20)), asyncio.to_thread(count_in_a_thread))
        assert locks.breaker is not None
        assert locks.breaker.opened_count == 0
        assert locks.stats.snapshot().refusals["unavailable"] == 0
    assert counter == 100


async def test_an_outage_is_said_aloud_and_so_is_its_end(
    server: Valkey, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator reads in the log when locks became unavailable and when they were available again."""
    caplog.set_level(logging.INFO, logger="earmark.locks")
    async with opened(server.url, prefix=prefix) as locks:
        await until_served(locks)
        with stopped(server):
            await until_open(locks)
        assert "does not answer" in warnings_in(caplog)
        await until_served(locks)
        assert "answers again" in warnings_in(caplog)
