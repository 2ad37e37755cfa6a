"""Requests of one process for one seat: while Redis is asked for the first, the others wait for that answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.proxy import Proxy

from earmark.admission import Pass
from earmark.domain.ids import Buyer
from earmark.domain.journal import Key
from earmark.engine.admission import Busy

from .support import DEADLINE, EVENT, passed, refused, seats, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import Gate
    from earmark.domain.ids import SeatId
    from earmark.servers import Valkey

A1, A2 = seats("A1", "A2")
CROWD = 200


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A wire that can be held up."""
    with Proxy(server.port) as wire:
        yield wire


async def admit(gate: Gate, *names: SeatId, **about: Any) -> Pass | Busy | None:
    """As the engine does: ask and wait for the answer in one step."""
    return await gate.admit(EVENT, names, **about)


def asked(gate: Gate) -> int:
    """How many requests Redis has answered."""
    return gate.counts.admitted + gate.counts.refused


async def test_a_crowd_for_one_seat_asks_redis_once(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """One gets the pass; the others hear from its answer that the seat is being decided."""
    gate = open_gate(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(gate, A1, buyer=Buyer(f"b{n}")) for n in range(CROWD)))
    assert [type(one) for one in found].count(Pass) == 1
    assert asked(gate) == 1
    # A few buyers share the winner's bits of the hash: the store is asked about those.
    assert gate.counts.remembered + gate.counts.matched == CROWD - 1


async def test_without_the_wait_every_one_of_them_asks(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """The control."""
    gate = open_gate(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(gate, A1, wait=False) for _ in range(CROWD)))
    assert [type(one) for one in found].count(Pass) == 1
    assert asked(gate) == CROWD


async def test_where_nothing_is_remembered_no_request_waits(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """The answer to another request would teach it nothing."""
    gate = open_gate(server.url, remember_seconds=0)
    await asyncio.gather(*(admit(gate, A1) for _ in range(CROWD)))
    assert asked(gate) == CROWD


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


async def test_the_same_request_again_is_no_rival_of_itself(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """A repeat with the same key is let through, as Redis would let it."""
    gate = open_gate(server.url, remember_seconds=5.0)
    key = Key("shop", "order-7")
    await asyncio.gather(*(passed(admit(gate, A1, key=key)) for _ in range(3)))
    assert gate.counts.admitted == 3


async def test_a_silent_redis_keeps_nobody_waiting_twice(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """All that wait pass to the store when the time of the first is over, and none of them asks after that."""
    gate = open_gate(proxy.url, timeout=DEADLINE, remember_seconds=5.0)
    gate.leave(await passed(gate.admit(EVENT, seats("warm"))))
    await until(lambda: not gate._lines[0].flights._flying)
    proxy.hold()
    heard = proxy.heard
    assert await asyncio.gather(*(admit(gate, A1) for _ in range(CROWD))) == [None] * CROWD
    assert gate.counts.bypassed == CROWD
    assert proxy.heard - heard < 10, "the one call, and what makes amends for it"
    proxy.flow()


async def test_a_rival_whose_caller_has_gone_keeps_nobody_waiting(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """Its answer will not be heard here; the request that waited for it asks by itself."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    gate.leave(await passed(gate.admit(EVENT, seats("warm"))))
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
    assert asked(gate) == 2
    assert not gate._asking


async def test_a_request_that_gives_up_its_wait_disturbs_no_other(proxy: Proxy, open_gate: Callable[..., Gate]) -> None:
    """The rival and the others that wait for it have their answers."""
    gate = open_gate(proxy.url, remember_seconds=5.0)
    gate.leave(await passed(gate.admit(EVENT, seats("warm"))))
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
