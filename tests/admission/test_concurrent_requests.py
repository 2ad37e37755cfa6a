"""Requests of one process for one seat: while Redis is asked for the first, the others wait for that answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.proxy import Proxy

from earmark.admission import Pass
from earmark.domain.ids import Buyer
from earmark.domain.journal import IdempotencyKey
from earmark.engine.ports.admission import Busy
from earmark.locks.breaker import BreakerState
from earmark.locks.errors import LocksNotAsked

from .support import BOUND, DEADLINE, EVENT, passed, refused, seats, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import Gate
    from earmark.domain.ids import SeatId
    from earmark.locks.redis.script import Call
    from earmark.testservers import Valkey

A1, A2 = seats("A1", "A2")
CROWD = 200


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A proxy that can delay Redis."""
    with Proxy(server.port) as wire:
        yield wire


async def admit(gate: Gate, *names: SeatId, **about: Any) -> Pass | Busy | None:
    """As the engine does: ask and wait for the answer in one step."""
    return await gate.admit(EVENT, names, **about)


async def warm(gate: Gate) -> None:
    """Connect, and come to rest."""
    gate.leave(await passed(gate.admit(EVENT, seats("warm"))))
    await until(lambda: not gate._lines[0].flights._flying)


def waiting(gate: Gate) -> int:
    """How many requests wait for the answer to another one."""
    return sum(len(asking.waiting) for asking in set(gate._asking.values()))


def in_flight(gate: Gate) -> int:
    """How many calls are on their way to Redis, or wait for that."""
    flights = gate._lines[0].flights
    return flights._aloft + len(flights._gathered)


def answered_by_redis(gate: Gate) -> int:
    """How many requests Redis has answered."""
    return gate.counts.admitted + gate.counts.refused


async def test_a_crowd_for_one_seat_asks_redis_once(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """One gets the pass; the others hear from its answer that the seat is being decided."""
    gate = open_gate(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(gate, A1, buyer=Buyer(f"b{n}")) for n in range(CROWD)))
    assert [type(one) for one in found].count(Pass) == 1
    assert answered_by_redis(gate) == 1
    # A few buyers share the winner's bits of the hash: the store is asked about those.
    assert gate.counts.remembered + gate.counts.matched == CROWD - 1


async def test_without_the_wait_every_one_of_them_asks(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """Control: with `wait=False` every request asks Redis."""
    gate = open_gate(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(gate, A1, wait=False) for _ in range(CROWD)))
    assert [type(one) for one in found].count(Pass) == 1
    assert answered_by_redis(gate) == CROWD


async def test_where_nothing_is_remembered_no_request_waits(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """The answer to another request would teach it nothing."""
    gate = open_gate(proxy.url, remember_seconds=0)
    await warm(gate)
    proxy.hold()
    asking = [asyncio.create_task(admit(gate, A1)) for _ in range(3)]
    await until(lambda: in_flight(gate) == 3)
    assert not gate._asking
    proxy.flow()
    assert [type(one) for one in await asyncio.gather(*asking)].count(Pass) == 1


async def test_a_seat_that_the_rival_did_not_get_is_asked_for(
    gate: Gate, server: Valkey, open_gate: Callable[..., Gate]
) -> None:
    """The rival is refused for another seat: the one that both want is free."""
    elsewhere, gate = gate, open_gate(server.url, remember_seconds=5.0)
    await passed(elsewhere.admit(EVENT, (A1,)))
    rival, mine = await asyncio.gather(admit(gate, A1, A2), admit(gate, A2))
    assert isinstance(rival, Busy)
    assert rival.seats == ["A1"]
    assert isinstance(mine, Pass)


async def test_the_same_request_again_is_no_rival_of_itself(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """A repeat with the same key waits for nothing, and is let through, as Redis would let it."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    proxy.hold()
    key = IdempotencyKey("shop", "order-7")
    asking = [asyncio.create_task(passed(admit(gate, A1, key=key))) for _ in range(3)]
    await until(lambda: in_flight(gate) == 3)
    assert waiting(gate) == 0
    proxy.flow()
    await asyncio.gather(*asking)


async def test_an_answer_that_comes_before_the_wait_begins_is_heard(
    proxy: Proxy, open_gate: Callable[..., Gate]
) -> None:
    """The request was noted at its rival when it was made, not when it was begun."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    proxy.hold()
    rival = asyncio.create_task(admit(gate, A1))
    await until(lambda: len(gate._asking) == 1)
    later = gate.admit(EVENT, (A1,))
    proxy.flow()
    assert isinstance(await rival, Pass)
    assert await asyncio.wait_for(refused(later), BOUND) == ["A1"]


async def test_no_request_waits_for_one_that_only_tries_whether_redis_is_back(
    proxy: Proxy, open_gate: Callable[..., Gate]
) -> None:
    """While the breaker is not closed, requests go to the store at once, whatever one of them has asked."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    proxy.hold()
    rival = asyncio.create_task(admit(gate, A1))
    await until(lambda: len(gate._asking) == 1)
    breaker = gate._lines[0].breaker
    while breaker.state is BreakerState.CLOSED:
        breaker.failed()
    breaker._next_at += BOUND
    assert await admit(gate, A1) is None
    assert waiting(gate) == 0
    proxy.flow()
    assert isinstance(await rival, Pass)


async def test_those_that_wait_for_a_call_that_was_never_made_ask_by_themselves(
    proxy: Proxy, open_gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was too late to be sent, because this process was busy: the others came later."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patched:
        patched.setattr(gate._lines[0].flights, "ask", lambda *_, **__: never)
        rival = asyncio.create_task(admit(gate, A1))
        await until(lambda: len(gate._asking) == 1)
    later = asyncio.create_task(admit(gate, A1))
    await until(lambda: waiting(gate) == 1)
    never.set_exception(LocksNotAsked(because="it took too long before Redis was asked"))
    assert await rival is None
    assert isinstance(await later, Pass)


async def test_requests_that_wait_on_a_silent_redis_go_to_the_store_without_asking(
    proxy: Proxy, open_gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time of the first is over, all that waited for it pass: one call was made for them all."""
    gate = open_gate(proxy.url, timeout=DEADLINE, remember_seconds=5.0)
    await warm(gate)
    flights = gate._lines[0].flights
    calls: list[Call] = []
    ask = flights.ask

    def counted(call: Call, **amends: Any) -> Any:
        calls.append(call)
        return ask(call, **amends)

    monkeypatch.setattr(flights, "ask", counted)
    proxy.hold()
    assert await asyncio.gather(*(admit(gate, A1) for _ in range(CROWD))) == [None] * CROWD
    proxy.flow()
    assert gate.counts.bypassed == CROWD
    assert [call.words[0] for call in calls].count("a") == 1


async def test_a_request_asks_redis_itself_when_its_rival_is_cancelled(
    proxy: Proxy, open_gate: Callable[..., Gate]
) -> None:
    """Its answer will not be heard here; the request that waited for it asks by itself."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    proxy.hold()
    rival = asyncio.create_task(admit(gate, A1))
    await until(lambda: len(gate._asking) == 1)
    waiting = asyncio.create_task(admit(gate, A1))
    await until(lambda: all(asking.waiting for asking in gate._asking.values()))
    rival.cancel()
    await until(rival.done)
    proxy.flow()
    # What the rival marked before it went is taken back, so the seat is free at the latest then.
    answer = await waiting
    assert isinstance(answer, Pass | Busy)
    assert answered_by_redis(gate) == 2, "the one to warm up, and this one"
    assert not gate._asking


async def test_a_request_that_gives_up_its_wait_disturbs_no_other(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """The rival and the others that wait for it have their answers."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    await warm(gate)
    proxy.hold()
    rival = asyncio.create_task(admit(gate, A1))
    await until(lambda: len(gate._asking) == 1)
    leaving, staying = (asyncio.create_task(refused(admit(gate, A1))) for _ in range(2))
    await until(lambda: all(len(asking.waiting) == 2 for asking in gate._asking.values()))
    leaving.cancel()
    await until(leaving.done)
    proxy.flow()
    assert isinstance(await rival, Pass)
    assert await staying == ["A1"]
