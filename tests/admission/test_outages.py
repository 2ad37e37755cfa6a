"""Redis stops, dies, forgets, slows down, is cut off or talks nonsense: requests pass to the store, and soon.

Nothing here waits for time to be over: whoever is let through while Redis is silent did not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.locks.proxy import Proxy
from tests.locks.support_hazards import stopped
from tests.locks.topologies import ask, start_cluster

from earmark.admission import Pass, open_admission
from earmark.admission.gate import Counts
from earmark.admission.hints import Doubts
from earmark.admission.script import SOURCE
from earmark.domain.ids import EventId
from earmark.locks.breaker import BreakerState
from earmark.testservers.free_port import free_port

from .support import BOUND, DEADLINE, EVENT, Inside, Liar, Slow, passed, refs, refused, seats, until, until_true
from .test_gate import is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import Gate
    from earmark.testservers import Valkey

LONG = 60.0
"""A lifetime that no test waits for: what is gone before did not run out."""


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A wire that misbehaves when it is told to."""
    with Proxy(server.port) as wire:
        yield wire


async def let_through(gate: Gate, count: int = 50, *, start: int = 0) -> bool:
    """Whether so many requests, all at once, passed without Redis."""
    calls = (gate.admit(EVENT, seats(f"A{number}")) for number in range(start, start + count))
    async with asyncio.timeout(BOUND):
        return await asyncio.gather(*calls) == [None] * count


async def asked_again(gate: Gate) -> bool:
    """Whether Redis is asked again, and lets a request pass or not."""
    admitted = gate.counts.admitted + gate.counts.refused
    if isinstance(found := await gate.admit(EVENT, seats("again")), Pass):
        gate.leave(found)
    return gate.counts.admitted + gate.counts.refused > admitted


async def warm(gate: Gate) -> None:
    """Connections stand and the server knows the script: what fails then is what the test makes fail.

    On a busy machine the first of it can take longer than a request waits.
    """
    await until_true(lambda: asked_again(gate))
    gate.counts = Counts()


async def test_requests_pass_while_redis_is_stopped(own_server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """The connection stands and nobody speaks: nobody waits for longer than the deadline; then all is as before."""
    gate = open_gate(own_server.url, timeout=DEADLINE)
    await warm(gate)
    with stopped(own_server):
        for round_number in range(4):
            assert await let_through(gate, start=100 * round_number)
        assert gate._lines[0].breaker.state is not BreakerState.CLOSED
    await until_true(lambda: asked_again(gate))
    await until_true(lambda: is_free(gate, "A1"))


async def test_requests_pass_while_redis_takes_half_a_second(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """Every answer would be a pass if it was waited for."""
    with Slow(server.port, seconds=0.0) as slow:
        gate = open_gate(slow.url, timeout=DEADLINE)
        await warm(gate)
        slow.seconds = 0.5
        for round_number in range(4):
            assert await let_through(gate, start=100 * round_number)
        slow.seconds = 0.0
        await until_true(lambda: asked_again(gate))


async def test_requests_would_wait_for_a_slow_redis_without_the_deadline(
    server: Valkey, open_gate: Callable[..., Gate]
) -> None:
    """The control: with a deadline past the delay, the same request has its answer from Redis."""
    with Slow(server.port, seconds=0.5) as slow:
        gate = open_gate(slow.url, timeout=BOUND)
        await passed(gate.admit(EVENT, seats("A1")))
        assert gate.counts.bypassed == 0


async def test_an_open_breaker_does_not_even_ask(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """After a few failures nobody waits at all; what was still to be sent is sent when Redis answers again."""
    gate = open_gate(proxy.url, timeout=DEADLINE)
    await warm(gate)
    proxy.hold()
    breaker = gate._lines[0].breaker
    await until_true(lambda: opened(gate))
    breaker._next_at += LONG
    heard = proxy.heard
    assert await let_through(gate, 500)
    assert proxy.heard == heard
    proxy.flow()
    breaker._next_at = 0.0
    await until_true(lambda: asked_again(gate))
    assert breaker.state is BreakerState.CLOSED


async def opened(gate: Gate) -> bool:
    await gate.admit(EVENT, seats("A1"))
    return gate._lines[0].breaker.state is BreakerState.OPEN


async def test_redis_is_killed_and_comes_back(
    own_server: Valkey, open_gate: Callable[..., Gate], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has to restart anything, and the log says when Redis went and when it came."""
    gate = open_gate(own_server.url, timeout=DEADLINE)
    found = await passed(gate.admit(EVENT, seats("A1")))
    own_server.kill()
    with caplog.at_level(logging.WARNING, logger="earmark.admission"):
        for round_number in range(4):
            assert await let_through(gate, start=100 * round_number)
        gate.settle(found, seconds=600)
        own_server.start()
        await until_true(lambda: asked_again(gate))
    assert [record.levelname for record in caplog.records][:: len(caplog.records) - 1] == ["ERROR", "WARNING"]


async def test_redis_that_was_never_there_keeps_nobody_waiting(open_gate: Callable[..., Gate]) -> None:
    """A program starts and sells without its Redis."""
    gate = open_gate(f"redis://127.0.0.1:{free_port()}/0", timeout=DEADLINE)
    assert await let_through(gate)
    gate.drop(refs("A1"))


async def test_redis_loses_everything_in_between(own_server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """Who was in flight goes on, and the next is let through to the store, which knows better."""
    gate = open_gate(own_server.url)
    first = await passed(gate.admit(EVENT, seats("A1")))
    ask(own_server, "FLUSHALL")
    second = await passed(gate.admit(EVENT, seats("A1")))
    gate.settle(first, seconds=600)
    gate.leave(second)
    await until_true(lambda: is_free(gate, "A1"))
    assert gate.counts.bypassed == 0, "it was asked all the time"


async def test_redis_that_refuses_to_write_is_as_good_as_gone(
    own_server: Valkey, open_gate: Callable[..., Gate]
) -> None:
    """Out of memory, a full disk, a replica that was promoted to nothing: an error is no answer."""
    gate = open_gate(own_server.url)
    await passed(gate.admit(EVENT, seats("warm")))
    ask(own_server, "CONFIG", "SET", "maxmemory", "1")
    assert await let_through(gate)
    ask(own_server, "CONFIG", "SET", "maxmemory", "0")
    await until_true(lambda: asked_again(gate))


async def test_a_pass_whose_answer_was_lost_is_taken_back(
    proxy: Proxy, inside: Inside, open_gate: Callable[..., Gate]
) -> None:
    """The mark is there and its request knows nothing of it: it goes as soon as Redis is heard again."""
    gate = open_gate(proxy.url, timeout=DEADLINE, ttl_seconds=LONG)
    await warm(gate)
    proxy.lose_answers()
    assert await gate.admit(EVENT, seats("A1")) is None
    assert inside.kind("A1") == "f"
    proxy.flow()
    await until_true(lambda: asked_again(gate))
    await until(lambda: inside.kind("A1") == "")
    assert await is_free(gate, "A1")


async def test_a_connection_that_breaks_over_the_answer_is_made_again(
    proxy: Proxy, open_gate: Callable[..., Gate]
) -> None:
    """The request is repeated, and finds its own mark: it is no rival of itself."""
    gate = open_gate(proxy.url)
    await warm(gate)
    proxy.break_after(b"EVALSHA")
    assert (await passed(gate.admit(EVENT, seats("A1", "A2")))).seats == ("A1", "A2")
    assert gate.counts.bypassed == 0


async def test_a_seat_given_back_while_redis_is_cut_off_sells_again(
    proxy: Proxy, server: Valkey, inside: Inside, open_gate: Callable[..., Gate]
) -> None:
    """The hint cannot be dropped, and dies by itself; until then others are refused, and after that they are not."""
    cut_off = open_gate(proxy.url, timeout=DEADLINE, ttl_seconds=1.0)
    elsewhere = open_gate(server.url, ttl_seconds=1.0)
    cut_off.settle(await passed(cut_off.admit(EVENT, seats("A1"))), seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    proxy.hold()
    cut_off.drop(refs("A1"))
    assert await refused(elsewhere.admit(EVENT, seats("A1"))) == ["A1"]
    assert 0 < inside.left_ms("A1") <= 1000
    await until_true(lambda: is_free(elsewhere, "A1"))


async def arrived_late(gate: Gate, proxy: Proxy, server: Valkey, inside: Inside) -> str:
    """What word of a sale does to its seat when it was held up until the hold had ended."""
    found = await passed(gate.admit(EVENT, seats("A1")))
    proxy.hold()
    gate.settle(found, seconds=LONG / 2)
    # As if two thirds of the lifetime had passed meanwhile.
    ask(server, "PEXPIRE", inside.name("A1"), str(int(LONG * 1000) // 3))
    proxy.flow()
    await until(lambda: inside.kind("A1") != "f")
    return inside.kind("A1")


async def test_a_hint_that_was_on_its_way_when_redis_was_cut_off_does_not_come_to_life_later(
    proxy: Proxy, server: Valkey, inside: Inside, open_gate: Callable[..., Gate]
) -> None:
    """The seat was sold and given back meanwhile: word of the sale, held up in the network, blocks it no longer."""
    assert await arrived_late(open_gate(proxy.url, ttl_seconds=LONG), proxy, server, inside) == ""


async def test_a_hint_that_counts_from_its_arrival_would_come_to_life(
    proxy: Proxy, server: Valkey, inside: Inside, open_gate: Callable[..., Gate]
) -> None:
    """The control: it blocks a seat that is free."""
    from_now = SOURCE.replace(b"end_ms - TTL + (left_of(key) or 0)", b"end_ms")
    assert from_now != SOURCE
    gate = open_gate(proxy.url, ttl_seconds=LONG, source=from_now)
    assert await arrived_late(gate, proxy, server, inside) == "h"


async def test_a_process_that_is_killed_between_admission_and_answer_blocks_its_seats_for_the_ttl_at_most(
    server: Valkey, prefix: str, open_gate: Callable[..., Gate]
) -> None:
    """Its marks run out by themselves: nobody else has to know that it died."""
    program = f"""
import asyncio
from earmark.admission.gate import Gate
from earmark.admission.hints import Hints
from earmark.admission.redis import open_lines

async def main():
    lines = open_lines({server.url!r}, timeout=5, ttl_seconds=1)
    gate = Gate(lines, prefix={prefix!r}, ttl_seconds=1, hints=Hints())
    await gate.admit({EVENT!r}, ("A1", "A2"))
    print("admitted", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    gate = open_gate(server.url)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = await process.stdout.readline()
    process.kill()
    await process.wait()
    assert said == b"admitted\n"
    inside = Inside(server, prefix=prefix)
    assert inside.left_ms("A1") <= 1000
    await until_true(lambda: is_free(gate, "A1", "A2"))


NONSENSE = {
    "nothing": b"$-1\r\n",
    "a number": b":0\r\n",
    "a word": b"+OK\r\n",
    "too few answers": b"*0\r\n",
    "too many answers": b"*40\r\n" + b":0\r\n" * 40,
    "words for numbers": b"*1\r\n*1\r\n$1\r\n7\r\n",
    "another number of seats": b"*1\r\n*2\r\n:7\r\n:7\r\n",
    "a refusal without a reason": b"*1\r\n*1\r\n:0\r\n",
    "an error": b"-ERR no\r\n",
    "no Redis at all": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("says", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_no_answer(says: bytes, open_gate: Callable[..., Gate]) -> None:
    """Nobody is refused by it, nobody fails by it, and after a few times it is not asked any more."""
    with Liar(says) as liar:
        gate = open_gate(liar.url, cooldown_seconds=LONG)
        for number in range(10):
            assert await gate.admit(EVENT, seats(f"A{number}")) is None
        assert gate._lines[0].breaker.state is BreakerState.OPEN
        asked = liar.asked
        assert all([await let_through(gate) for _ in range(50)])
        assert liar.asked - asked < 10, "more than what was on its way when the breaker opened"


async def test_a_redis_that_calls_every_seat_taken_is_not_believed_for_ever(open_gate: Callable[..., Gate]) -> None:
    """A lie in the right shape can delay a sale, and every refusal says to come again; then the store is asked."""
    with Liar(b"*1\r\n*1\r\n:-5000\r\n") as liar:
        gate = open_gate(liar.url, doubts=Doubts(seconds_max=0.3))
        believes = open_gate(liar.url, doubts=Doubts(seconds_max=LONG))
        assert await refused(believes.admit(EVENT, seats("A1"))) == ["A1"]
        assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]
        await until_true(lambda: passes(gate))
        assert gate.counts.bypassed == 1
        assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]
        # The control: without the doubt nobody would ever have got through.
        assert await refused(believes.admit(EVENT, seats("A1"))) == ["A1"]


async def passes(gate: Gate) -> bool:
    return not await refused(gate.admit(EVENT, seats("A1")))


async def test_a_gate_is_closed_within_a_bound_while_redis_is_stopped(own_server: Valkey, prefix: str) -> None:
    """A program that ends does not wait for a server that does not answer."""
    gate = open_admission(own_server.url, prefix=prefix)
    found = await passed(gate.admit(EVENT, seats("A1")))
    with stopped(own_server):
        gate.leave(found)
        async with asyncio.timeout(BOUND):
            await gate.close()
    assert gate.counts.admitted == 1


async def test_a_cluster_that_loses_a_node_is_passed_by_until_another_takes_its_place(
    server: Valkey,  # noqa: ARG001 -- where no server can be had, it says so
    open_gate: Callable[..., Gate],
) -> None:
    """Requests for the events of a dead node pass to the store, and are asked about again after the failover."""
    with ExitStack() as stack:
        cluster = stack.enter_context(start_cluster())
        gate = open_gate(cluster.url, timeout=1.0)
        shows = [EventId(f"show-{number}") for number in range(30)]
        await asyncio.gather(*(passed(gate.admit(show, seats("A1"))) for show in shows))
        killed = cluster.owner("{show-0}")
        killed.kill()
        answers = await asyncio.gather(*(gate.admit(show, seats("A2")) for show in shows))
        assert answers[0] is None
        await asyncio.to_thread(cluster.wait_for_successor, killed)

        async def serves_again() -> bool:
            found = await gate.admit(shows[0], seats("A3"))
            return found is not None

        await until_true(serves_again)
