"""Redis stops, dies, forgets, slows down, is cut off or talks nonsense: requests pass to the store, and soon.

Nothing here waits for time to be over: a request that passes while Redis is silent did not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.locks.faulty_proxy import Proxy
from tests.locks.hazard_support import stopped
from tests.locks.topologies import ask, start_cluster

from earmark.admission import AdmissionPass, open_admission
from earmark.admission.encode_and_decode_script_calls import SOURCE
from earmark.admission.recently_refused_seats_and_buyers import RefusedSeats
from earmark.admission.seat_admission import AdmissionCounts
from earmark.domain.id_types import EventId
from earmark.locks.circuit_breaker import BreakerState
from earmark.testservers.free_port import free_port

from .support import BOUND, DEADLINE, EVENT, Inside, Liar, Slow, passed, refs, refused, seats, until, until_true
from .test_seat_admission import is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import SeatAdmission
    from earmark.testservers import Valkey

LONG = 60.0
"""A lifetime that no test waits for: what is gone before did not run out."""


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A connection with faults on request."""
    with Proxy(server.port) as connection:
        yield connection


async def let_through(admission: SeatAdmission, count: int = 50, *, start: int = 0) -> bool:
    """Whether so many requests, all at once, passed without Redis."""
    calls = (admission.admit(EVENT, seats(f"A{number}")) for number in range(start, start + count))
    async with asyncio.timeout(BOUND):
        return await asyncio.gather(*calls) == [None] * count


async def asked_again(admission: SeatAdmission) -> bool:
    """Whether Redis is asked again, and lets a request pass or not."""
    admitted = admission.counts.admitted + admission.counts.refused
    if isinstance(found := await admission.admit(EVENT, seats("again")), AdmissionPass):
        admission.withdraw(found)
    return admission.counts.admitted + admission.counts.refused > admitted


async def warm(admission: SeatAdmission) -> None:
    """Connections stand and the server knows the script: what fails then is what the test makes fail.

    On a busy machine the first of it can take longer than a request waits.
    """
    await until_true(lambda: asked_again(admission))
    admission.counts = AdmissionCounts()


async def test_requests_pass_while_redis_is_stopped(
    own_server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The connection stands and Redis is silent: no request waits longer than the deadline; then all is as before."""
    admission = open_seat_admission(own_server.url, timeout=DEADLINE)
    await warm(admission)
    with stopped(own_server):
        for round_number in range(4):
            assert await let_through(admission, start=100 * round_number)
        assert admission._servers[0].breaker.state is not BreakerState.CLOSED
    await until_true(lambda: asked_again(admission))
    await until_true(lambda: is_free(admission, "A1"))


async def test_requests_pass_while_redis_takes_half_a_second(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Every answer would be a pass if it was waited for."""
    with Slow(server.port, seconds=0.0) as slow:
        admission = open_seat_admission(slow.url, timeout=DEADLINE)
        await warm(admission)
        slow.seconds = 0.5
        for round_number in range(4):
            assert await let_through(admission, start=100 * round_number)
        slow.seconds = 0.0
        await until_true(lambda: asked_again(admission))


async def test_requests_would_wait_for_a_slow_redis_without_the_deadline(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The control: with a deadline past the delay, the same request has its answer from Redis."""
    with Slow(server.port, seconds=0.5) as slow:
        admission = open_seat_admission(slow.url, timeout=BOUND)
        await passed(admission.admit(EVENT, seats("A1")))
        assert admission.counts.bypassed == 0


async def test_an_open_breaker_does_not_even_ask(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """After a few failures no request waits at all; unsent calls are sent when Redis answers again."""
    admission = open_seat_admission(proxy.url, timeout=DEADLINE)
    await warm(admission)
    proxy.hold()
    breaker = admission._servers[0].breaker
    await until_true(lambda: opened(admission))
    breaker._next_at += LONG
    received = proxy.received
    assert await let_through(admission, 500)
    assert proxy.received == received
    proxy.flow()
    breaker._next_at = 0.0
    await until_true(lambda: asked_again(admission))
    assert breaker.state is BreakerState.CLOSED


async def opened(admission: SeatAdmission) -> bool:
    await admission.admit(EVENT, seats("A1"))
    return admission._servers[0].breaker.state is BreakerState.OPEN


async def test_redis_is_killed_and_restarted(
    own_server: Valkey, open_seat_admission: Callable[..., SeatAdmission], caplog: pytest.LogCaptureFixture
) -> None:
    """No process has to be restarted, and the log says when Redis stopped and when it answered again."""
    admission = open_seat_admission(own_server.url, timeout=DEADLINE)
    found = await passed(admission.admit(EVENT, seats("A1")))
    own_server.kill()
    with caplog.at_level(logging.WARNING, logger="earmark.admission"):
        for round_number in range(4):
            assert await let_through(admission, start=100 * round_number)
        admission.record_grant(found, seconds=600)
        own_server.start()
        await until_true(lambda: asked_again(admission))
    assert [record.levelname for record in caplog.records][:: len(caplog.records) - 1] == ["ERROR", "WARNING"]


async def test_redis_that_was_never_there_delays_no_request(open_seat_admission: Callable[..., SeatAdmission]) -> None:
    """A program starts and sells without its Redis."""
    admission = open_seat_admission(f"redis://127.0.0.1:{free_port()}/0", timeout=DEADLINE)
    assert await let_through(admission)
    admission.drop_hints(refs("A1"))


async def test_redis_loses_everything_in_between(
    own_server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """A request in flight goes on, and the next is passed on to the store, which decides."""
    admission = open_seat_admission(own_server.url)
    first = await passed(admission.admit(EVENT, seats("A1")))
    ask(own_server, "FLUSHALL")
    second = await passed(admission.admit(EVENT, seats("A1")))
    admission.record_grant(first, seconds=600)
    admission.withdraw(second)
    await until_true(lambda: is_free(admission, "A1"))
    assert admission.counts.bypassed == 0, "it was asked all the time"


async def test_redis_that_refuses_to_write_counts_as_down(
    own_server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Out of memory, a full disk, a replica that was promoted to nothing: an error is no answer."""
    admission = open_seat_admission(own_server.url)
    await passed(admission.admit(EVENT, seats("warm")))
    ask(own_server, "CONFIG", "SET", "maxmemory", "1")
    assert await let_through(admission)
    ask(own_server, "CONFIG", "SET", "maxmemory", "0")
    await until_true(lambda: asked_again(admission))


async def test_a_pass_whose_answer_was_lost_is_taken_back(
    proxy: Proxy, inside: Inside, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The mark is there and its request knows nothing of it: it is removed as soon as Redis is reachable again."""
    admission = open_seat_admission(proxy.url, timeout=DEADLINE, ttl_seconds=LONG)
    await warm(admission)
    proxy.lose_answers()
    assert await admission.admit(EVENT, seats("A1")) is None
    assert inside.kind("A1") == "f"
    proxy.flow()
    await until_true(lambda: asked_again(admission))
    await until(lambda: inside.kind("A1") == "")
    assert await is_free(admission, "A1")


async def test_a_connection_that_breaks_over_the_answer_is_made_again(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The request is repeated, and finds its own mark: it is no rival of itself."""
    admission = open_seat_admission(proxy.url)
    await warm(admission)
    proxy.break_after(b"EVALSHA")
    assert (await passed(admission.admit(EVENT, seats("A1", "A2")))).seats == ("A1", "A2")
    assert admission.counts.bypassed == 0


async def test_a_seat_given_back_while_redis_is_cut_off_sells_again(
    proxy: Proxy, server: Valkey, inside: Inside, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The hint cannot be dropped, and dies by itself; until then others are refused, and after that they are not."""
    cut_off = open_seat_admission(proxy.url, timeout=DEADLINE, ttl_seconds=1.0)
    elsewhere = open_seat_admission(server.url, ttl_seconds=1.0)
    cut_off.record_grant(await passed(cut_off.admit(EVENT, seats("A1"))), seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    proxy.hold()
    cut_off.drop_hints(refs("A1"))
    assert await refused(elsewhere.admit(EVENT, seats("A1"))) == ["A1"]
    assert 0 < inside.left_ms("A1") <= 1000
    await until_true(lambda: is_free(elsewhere, "A1"))


async def arrived_late(admission: SeatAdmission, proxy: Proxy, server: Valkey, inside: Inside) -> str:
    """What word of a sale does to its seat when it was held up until the hold had ended."""
    found = await passed(admission.admit(EVENT, seats("A1")))
    proxy.hold()
    admission.record_grant(found, seconds=LONG / 2)
    # As if two thirds of the lifetime had passed meanwhile.
    ask(server, "PEXPIRE", inside.name("A1"), str(int(LONG * 1000) // 3))
    proxy.flow()
    await until(lambda: inside.kind("A1") != "f")
    return inside.kind("A1")


async def test_a_hint_that_was_on_its_way_when_redis_was_cut_off_does_not_come_to_life_later(
    proxy: Proxy, server: Valkey, inside: Inside, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The seat was sold and given back meanwhile: word of the sale, held up in the network, blocks it no longer."""
    assert await arrived_late(open_seat_admission(proxy.url, ttl_seconds=LONG), proxy, server, inside) == ""


async def test_a_hint_that_counts_from_its_arrival_would_come_to_life(
    proxy: Proxy, server: Valkey, inside: Inside, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The control: it blocks a seat that is free."""
    from_now = SOURCE.replace(b"end_ms - TTL + (left_of(key) or 0)", b"end_ms")
    assert from_now != SOURCE
    admission = open_seat_admission(proxy.url, ttl_seconds=LONG, source=from_now)
    assert await arrived_late(admission, proxy, server, inside) == "h"


async def test_a_process_that_is_killed_between_admission_and_answer_blocks_its_seats_for_the_ttl_at_most(
    server: Valkey, prefix: str, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Its marks run out by themselves: no other process has to know that it died."""
    program = f"""
import asyncio
from earmark.admission.seat_admission import SeatAdmission
from earmark.admission.local_taken_seats_cache import LocalHints
from earmark.admission.redis_servers import open_servers

async def main():
    servers = open_servers({server.url!r}, timeout=5, ttl_seconds=1)
    admission = SeatAdmission(servers, prefix={prefix!r}, ttl_seconds=1, hints=LocalHints())
    await admission.admit({EVENT!r}, ("A1", "A2"))
    print("admitted", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    admission = open_seat_admission(server.url)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = await process.stdout.readline()
    process.kill()
    await process.wait()
    assert said == b"admitted\n"
    inside = Inside(server, prefix=prefix)
    assert inside.left_ms("A1") <= 1000
    await until_true(lambda: is_free(admission, "A1", "A2"))


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
async def test_nonsense_is_no_answer(says: bytes, open_seat_admission: Callable[..., SeatAdmission]) -> None:
    """It refuses no request and fails none, and after a few times it is not called any more."""
    with Liar(says) as liar:
        admission = open_seat_admission(liar.url, cooldown_seconds=LONG)
        for number in range(10):
            assert await admission.admit(EVENT, seats(f"A{number}")) is None
        assert admission._servers[0].breaker.state is BreakerState.OPEN
        asked = liar.asked
        assert all([await let_through(admission) for _ in range(50)])
        assert liar.asked - asked < 10, "more than what was on its way when the breaker opened"


async def test_a_redis_that_calls_every_seat_taken_is_not_believed_for_ever(
    open_seat_admission: Callable[..., SeatAdmission],
) -> None:
    """A lie in the right shape can delay a sale, and every refusal says to come again; then the store is asked."""
    with Liar(b"*1\r\n*1\r\n:-5000\r\n") as liar:
        admission = open_seat_admission(liar.url, refused_seats=RefusedSeats(seconds_max=0.3))
        believes = open_seat_admission(liar.url, refused_seats=RefusedSeats(seconds_max=LONG))
        assert await refused(believes.admit(EVENT, seats("A1"))) == ["A1"]
        assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]
        await until_true(lambda: passes(admission))
        assert admission.counts.bypassed == 1
        assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]
        # The control: without the bound on refusals no request would ever have passed.
        assert await refused(believes.admit(EVENT, seats("A1"))) == ["A1"]


async def passes(admission: SeatAdmission) -> bool:
    return not await refused(admission.admit(EVENT, seats("A1")))


async def test_admission_is_closed_within_a_bound_while_redis_is_stopped(own_server: Valkey, prefix: str) -> None:
    """A program that ends does not wait for a server that does not answer."""
    admission = open_admission(own_server.url, prefix=prefix)
    found = await passed(admission.admit(EVENT, seats("A1")))
    with stopped(own_server):
        admission.withdraw(found)
        async with asyncio.timeout(BOUND):
            await admission.close()
    assert admission.counts.admitted == 1


async def test_a_cluster_that_loses_a_node_is_passed_by_until_another_takes_its_place(
    server: Valkey,  # noqa: ARG001 -- where no server can be had, it says so
    open_seat_admission: Callable[..., SeatAdmission],
) -> None:
    """Requests for the events of a dead node pass to the store, and are asked about again after the failover."""
    with ExitStack() as stack:
        cluster = stack.enter_context(start_cluster())
        admission = open_seat_admission(cluster.url, timeout=1.0)
        shows = [EventId(f"show-{number}") for number in range(30)]
        await asyncio.gather(*(passed(admission.admit(show, seats("A1"))) for show in shows))
        killed = cluster.owner("{show-0}")
        killed.kill()
        answers = await asyncio.gather(*(admission.admit(show, seats("A2")) for show in shows))
        assert answers[0] is None
        await asyncio.to_thread(cluster.wait_for_successor, killed)

        async def serves_again() -> bool:
            found = await admission.admit(shows[0], seats("A3"))
            return found is not None

        await until_true(serves_again)
