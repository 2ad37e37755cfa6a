"""Requests of one process for one seat: while Redis is asked for the first, the others wait for that answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.faulty_proxy import Proxy

from earmark.admission import AdmissionPass
from earmark.domain.id_types import Buyer
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.ports.seat_admission import Busy
from earmark.locks.circuit_breaker import BreakerState
from earmark.locks.errors import LocksNotCalled

from .support import BOUND, DEADLINE, EVENT, passed, refused, seats, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import SeatAdmission
    from earmark.domain.id_types import SeatId
    from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall
    from earmark.testservers import Valkey

A1, A2 = seats("A1", "A2")
CROWD = 200


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A proxy that can delay Redis."""
    with Proxy(server.port) as connection:
        yield connection


async def admit(admission: SeatAdmission, *names: SeatId, **about: Any) -> AdmissionPass | Busy | None:
    """As the engine does: ask and wait for the answer in one step."""
    return await admission.admit(EVENT, names, **about)


async def warm(admission: SeatAdmission) -> None:
    """Connect, and come to rest."""
    admission.withdraw(await passed(admission.admit(EVENT, seats("warm"))))
    await until(lambda: not admission._servers[0].batcher._senders)


def waiting(admission: SeatAdmission) -> int:
    """How many requests wait for the answer to another one."""
    return sum(len(pending.waiting) for pending in set(admission._pending.values()))


def in_flight(admission: SeatAdmission) -> int:
    """How many calls are on their way to Redis, or wait for that."""
    batcher = admission._servers[0].batcher
    return batcher._calls_in_progress + len(batcher._queued)


def answered_by_redis(admission: SeatAdmission) -> int:
    """How many requests Redis has answered."""
    return admission.counts.admitted + admission.counts.refused


async def test_many_requests_for_one_seat_make_one_call_to_redis(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """One gets the pass; the others learn from its answer that the seat is being decided."""
    admission = open_seat_admission(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(admission, A1, buyer=Buyer(f"b{n}")) for n in range(CROWD)))
    assert [type(one) for one in found].count(AdmissionPass) == 1
    assert answered_by_redis(admission) == 1
    # A few buyers share the winner's bits of the hash: the store is asked about those.
    assert admission.counts.remembered + admission.counts.matched == CROWD - 1


async def test_without_the_wait_every_one_of_them_asks(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Control: with `wait=False` every request asks Redis."""
    admission = open_seat_admission(server.url, remember_seconds=5.0)
    found = await asyncio.gather(*(admit(admission, A1, wait=False) for _ in range(CROWD)))
    assert [type(one) for one in found].count(AdmissionPass) == 1
    assert answered_by_redis(admission) == CROWD


async def test_where_nothing_is_remembered_no_request_waits(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The answer to another request would teach it nothing."""
    admission = open_seat_admission(proxy.url, remember_seconds=0)
    await warm(admission)
    proxy.hold()
    pending = [asyncio.create_task(admit(admission, A1)) for _ in range(3)]
    await until(lambda: in_flight(admission) == 3)
    assert not admission._pending
    proxy.flow()
    assert [type(one) for one in await asyncio.gather(*pending)].count(AdmissionPass) == 1


async def test_a_seat_that_the_rival_did_not_get_is_asked_for(
    admission: SeatAdmission, server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The rival is refused for another seat: the one that both want is free."""
    elsewhere, admission = admission, open_seat_admission(server.url, remember_seconds=5.0)
    await passed(elsewhere.admit(EVENT, (A1,)))
    rival, mine = await asyncio.gather(admit(admission, A1, A2), admit(admission, A2))
    assert isinstance(rival, Busy)
    assert rival.seats == ["A1"]
    assert isinstance(mine, AdmissionPass)


async def test_the_same_request_again_is_no_rival_of_itself(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """A repeat with the same key waits for nothing, and is let through, as Redis would let it."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    proxy.hold()
    key = IdempotencyKey("shop", "order-7")
    pending = [asyncio.create_task(passed(admit(admission, A1, key=key))) for _ in range(3)]
    await until(lambda: in_flight(admission) == 3)
    assert waiting(admission) == 0
    proxy.flow()
    await asyncio.gather(*pending)


async def test_an_answer_that_arrives_before_the_wait_begins_is_read(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The request was noted at its rival when it was made, not when it was begun."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    proxy.hold()
    rival = asyncio.create_task(admit(admission, A1))
    await until(lambda: len(admission._pending) == 1)
    later = admission.admit(EVENT, (A1,))
    proxy.flow()
    assert isinstance(await rival, AdmissionPass)
    assert await asyncio.wait_for(refused(later), BOUND) == ["A1"]


async def test_no_request_waits_for_one_that_only_tries_whether_redis_is_back(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """While the breaker is not closed, requests go to the store at once, whatever one of them has asked."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    proxy.hold()
    rival = asyncio.create_task(admit(admission, A1))
    await until(lambda: len(admission._pending) == 1)
    breaker = admission._servers[0].breaker
    while breaker.state is BreakerState.CLOSED:
        breaker.failed()
    breaker._next_at += BOUND
    assert await admit(admission, A1) is None
    assert waiting(admission) == 0
    proxy.flow()
    assert isinstance(await rival, AdmissionPass)


async def test_requests_that_wait_for_a_call_that_was_never_sent_call_by_themselves(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was too late to be sent, because this process was busy: the others came later."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patched:
        patched.setattr(admission._servers[0].batcher, "send", lambda *_, **__: never)
        rival = asyncio.create_task(admit(admission, A1))
        await until(lambda: len(admission._pending) == 1)
    later = asyncio.create_task(admit(admission, A1))
    await until(lambda: waiting(admission) == 1)
    never.set_exception(LocksNotCalled(because="it waited too long in this process"))
    assert await rival is None
    assert isinstance(await later, AdmissionPass)


async def test_requests_that_wait_on_a_silent_redis_go_to_the_store_without_asking(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time of the first is over, all that waited for it pass: one call was made for them all."""
    admission = open_seat_admission(proxy.url, timeout=DEADLINE, remember_seconds=5.0)
    await warm(admission)
    batcher = admission._servers[0].batcher
    calls: list[ScriptCall] = []
    ask = batcher.send

    def counted(call: ScriptCall, **undo: Any) -> Any:
        calls.append(call)
        return ask(call, **undo)

    monkeypatch.setattr(batcher, "send", counted)
    proxy.hold()
    assert await asyncio.gather(*(admit(admission, A1) for _ in range(CROWD))) == [None] * CROWD
    proxy.flow()
    assert admission.counts.bypassed == CROWD
    assert [call.words[0] for call in calls].count("a") == 1


async def test_a_request_asks_redis_itself_when_its_rival_is_cancelled(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Its answer will not be read here; the request that waited for it calls Redis by itself."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    proxy.hold()
    rival = asyncio.create_task(admit(admission, A1))
    await until(lambda: len(admission._pending) == 1)
    waiting = asyncio.create_task(admit(admission, A1))
    await until(lambda: all(pending.waiting for pending in admission._pending.values()))
    rival.cancel()
    await until(rival.done)
    proxy.flow()
    # What the rival marked before it was cancelled is removed, so the seat is free at the latest then.
    answer = await waiting
    assert isinstance(answer, AdmissionPass | Busy)
    assert answered_by_redis(admission) == 2, "the one to warm up, and this one"
    assert not admission._pending


async def test_a_request_that_gives_up_its_wait_disturbs_no_other(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The rival and the others that wait for it have their answers."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await warm(admission)
    proxy.hold()
    rival = asyncio.create_task(admit(admission, A1))
    await until(lambda: len(admission._pending) == 1)
    leaving, staying = (asyncio.create_task(refused(admit(admission, A1))) for _ in range(2))
    await until(lambda: all(len(pending.waiting) == 2 for pending in admission._pending.values()))
    leaving.cancel()
    await until(leaving.done)
    proxy.flow()
    assert isinstance(await rival, AdmissionPass)
    assert await staying == ["A1"]
