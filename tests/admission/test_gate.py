"""The gate's rules, on Redis in every shape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.admission import Pass, open_admission
from earmark.admission.hints import Doubts
from earmark.domain.ids import Buyer, EventId
from earmark.domain.journal import IdempotencyKey
from earmark.engine.ports.admission import Busy
from earmark.errors import SetupError

from .support import EVENT, gate_on, passed, refs, refused, seats, until, until_true

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.topologies import Topology

    from earmark.admission import Gate
    from earmark.testservers import Valkey

    from .support import Inside

everywhere = pytest.mark.parametrize("topology", ["redis", "sentinel", "cluster", "several"], indirect=True)


@everywhere
async def test_a_seat_in_flight_is_refused_to_others_until_it_is_left(
    topology: Topology, open_gate: Callable[..., Gate]
) -> None:
    """Of those who want a seat at once, one asks the store and the others hear no at once, in any process."""
    ours, theirs = open_gate(topology.url), open_gate(topology.url)
    first = await passed(ours.admit(EVENT, seats("A1")))
    assert await refused(ours.admit(EVENT, seats("A1"))) == ["A1"]
    assert await refused(theirs.admit(EVENT, seats("A1"))) == ["A1"]
    ours.leave(first)
    await until_true(lambda: is_free(theirs, "A1"))


@everywhere
async def test_a_granted_seat_is_hinted_at_until_it_is_dropped(
    topology: Topology, open_gate: Callable[..., Gate]
) -> None:
    """After the sale the next are refused without the store; after a release they are not, whoever released it."""
    ours, theirs = open_gate(topology.url), open_gate(topology.url)
    ours.settle(await passed(ours.admit(EVENT, seats("A1", "A2"))), seconds=600)
    assert await refused(theirs.admit(EVENT, seats("A2", "A3"))) == ["A2"]
    theirs.drop(refs("A1", "A2"))
    await until_true(lambda: is_free(ours, "A2"))


@everywhere
async def test_a_claim_is_admitted_whole_or_not_at_all(topology: Topology, open_gate: Callable[..., Gate]) -> None:
    """Who is refused for one seat leaves the others to the next."""
    gate = open_gate(topology.url)
    await passed(gate.admit(EVENT, seats("A2")))
    assert await refused(gate.admit(EVENT, seats("A1", "A2", "A3"))) == ["A2"]
    assert (await passed(gate.admit(EVENT, seats("A1", "A3")))).seats == ("A1", "A3")


@everywhere
async def test_one_seat_in_two_events_is_two_seats(topology: Topology, open_gate: Callable[..., Gate]) -> None:
    """The same chair on another evening. On a cluster these are on different nodes, and travel in one tick."""
    gate = open_gate(topology.url)
    evenings = [EventId(f"show-{n}") for n in range(12)]
    passes = await asyncio.gather(*(passed(gate.admit(evening, seats("A1", "A2"))) for evening in evenings))
    assert len(passes) == len(evenings)
    for found in passes:
        gate.settle(found, seconds=600)
    answers = await asyncio.gather(*(refused(gate.admit(evening, seats("A2"))) for evening in evenings))
    assert answers == [["A2"]] * len(evenings)
    gate.drop([ref for evening in evenings for ref in refs("A1", "A2", event=evening)])
    for evening in evenings:
        await until_true(lambda evening=evening: is_free(gate, "A1", "A2", event=evening))  # type: ignore[misc]


@everywhere
async def test_overlapping_claims_in_opposite_orders_let_somebody_pass(
    topology: Topology, open_gate: Callable[..., Gate]
) -> None:
    """One by one, two claims would each get the seat that the other lacks; in one step one of them gets both."""
    gates = [open_gate(topology.url) for _ in range(2)]
    for number in range(20):
        a, b = f"A{number}", f"B{number}"
        answers = await asyncio.gather(gates[0].admit(EVENT, seats(a, b)), gates[1].admit(EVENT, seats(b, a)))
        assert sorted(isinstance(answer, Busy) for answer in answers) == [False, True]


async def test_seats_marked_one_by_one_would_let_nobody_pass(gate: Gate) -> None:
    """The control: without the one step, claims that overlap in opposite orders refuse each other."""
    first, second = await passed(gate.admit(EVENT, seats("A1"))), await passed(gate.admit(EVENT, seats("A2")))
    assert await refused(gate.admit(EVENT, seats("A2"))) == ["A2"]
    assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]
    gate.leave(first)
    gate.leave(second)


async def test_of_many_at_once_exactly_one_passes(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """However the calls of a tick are packed, each is decided in turn."""
    gates = [open_gate(server.url) for _ in range(4)]
    answers = await asyncio.gather(*(refused(gates[n % 4].admit(EVENT, seats("A1"))) for n in range(400)))
    assert answers.count([]) == 1


async def test_the_same_request_again_is_no_rival_of_itself(gate: Gate, inside: Inside) -> None:
    """A repeat must reach the store, which has its answer: in flight, and after it was granted."""
    key = IdempotencyKey("shop", "order-7")
    first = await passed(gate.admit(EVENT, seats("A1"), key=key))
    again = await passed(gate.admit(EVENT, seats("A1"), key=key))
    assert await refused(gate.admit(EVENT, seats("A1"), key=IdempotencyKey("shop", "order-8"))) == ["A1"]
    gate.settle(first, seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    gate.leave(again)
    later = await passed(gate.admit(EVENT, seats("A1"), key=key))
    gate.leave(later)
    assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"], "the repeat took the hint away"


async def test_a_mark_belongs_to_its_request(gate: Gate, inside: Inside) -> None:
    """A request that comes too late neither removes nor settles what the next one has."""
    late = await passed(gate.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    gate.leave(late)
    gate.settle(late, seconds=600)
    gate.drop(refs("A1"))
    await passed(gate.admit(EVENT, seats("B1")))  # By now all of these have arrived.
    assert inside.kind("A1") == "f"
    assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]


async def test_what_the_store_knows_to_be_taken_becomes_a_hint(gate: Gate, inside: Inside) -> None:
    """A sold seat whose hint has ended sends one request to the store, not one after the other."""
    found = await passed(gate.admit(EVENT, seats("A1", "A2", "A3")))
    gate.leave(found, taken={seats("A2")[0]: 3.0})
    await until(lambda: inside.kinds("A1", "A2", "A3") == "-h-")
    assert 0 < inside.left_ms("A2") <= 3000


async def test_a_hint_never_outlives_its_hold_however_long_the_store_took(gate: Gate, inside: Inside) -> None:
    """A hint that counted from the store's answer would refuse a seat that is free again."""
    found = await passed(gate.admit(EVENT, seats("A1", "A2")))
    await asyncio.sleep(0.3)
    gate.settle(found, seconds=2.0)
    await until(lambda: inside.kinds("A1", "A2") == "hh")
    assert 0 < inside.left_ms("A1") <= 2000 - 300


async def test_a_mark_and_a_hint_live_five_seconds_at_most(gate: Gate, inside: Inside) -> None:
    """Whoever dies or is cut off, a seat sells again soon."""
    found = await passed(gate.admit(EVENT, seats("A1")))
    assert 0 < inside.left_ms("A1") <= 5000
    gate.settle(found, seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    assert 0 < inside.left_ms("A1") <= 5000


async def test_a_hint_ends_with_its_hold(gate: Gate, inside: Inside) -> None:
    """A hold that has less than five seconds left is not hinted at any longer than that."""
    gate.settle(await passed(gate.admit(EVENT, seats("A1"))), seconds=0.2)
    gate.settle(await passed(gate.admit(EVENT, seats("A2"))), seconds=0)
    gate.settle(await passed(gate.admit(EVENT, seats("A3"))), seconds=-7)
    await until_true(lambda: is_free(gate, "A2"))
    await until_true(lambda: is_free(gate, "A3"))
    assert inside.left_ms("A1") <= 200
    await until_true(lambda: is_free(gate, "A1"))


async def test_a_hint_that_did_not_end_with_its_hold_would_outlive_it(gate: Gate, inside: Inside) -> None:
    """The control: told of a long hold, the same hint stands when the short one is over."""
    gate.settle(await passed(gate.admit(EVENT, seats("A1"))), seconds=600)
    gate.settle(await passed(gate.admit(EVENT, seats("A2"))), seconds=0.2)
    await until_true(lambda: is_free(gate, "A2"))
    assert inside.left_ms("A1") > 1000
    assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]


async def test_a_request_that_is_given_up_leaves_nothing_behind(gate: Gate, inside: Inside) -> None:
    """A client that hangs up while Redis is asked keeps nobody out."""
    calls = [asyncio.ensure_future(gate.admit(EVENT, seats(f"A{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await until(lambda: inside.kinds(*(f"A{n}" for n in range(50))) == "-" * 50)
    assert await refused(gate.admit(EVENT, seats("A0", "A49"))) == []


async def test_a_claim_without_seats_or_with_very_many_is_not_asked_about(gate: Gate) -> None:
    """Pools have no marks, and a script over a thousand seats would keep everybody else waiting."""
    assert await gate.admit(EVENT, ()) is None
    assert await gate.admit(EVENT, seats(*map(str, range(1000)))) is None
    gate.settle(None, seconds=1)
    gate.leave(None)


async def test_a_name_that_cannot_be_sent_spoils_nobody_elses_request(gate: Gate) -> None:
    """Calls travel together; one that cannot travel goes to the store alone."""
    odd = seats("A1\ud800")
    answers = await asyncio.gather(
        *(gate.admit(EVENT, seats(f"B{n}")) for n in range(5)),
        gate.admit(EVENT, odd),
        gate.admit(EventId("a}b"), seats("Ä1")),
    )
    assert [answer is None for answer in answers] == [False] * 5 + [True, False]


async def test_the_close_sends_what_was_still_to_be_sent(server: Valkey, prefix: str, inside: Inside) -> None:
    """A process that ends in good order leaves no marks."""
    gate = gate_on(server.url, prefix=prefix)
    gate.leave(await passed(gate.admit(EVENT, seats("A1"))))
    gate.settle(await passed(gate.admit(EVENT, seats("A2"))), seconds=600)
    await gate.close()
    assert inside.kinds("A1", "A2") == "-h"


async def test_the_gate_counts_what_it_did(gate: Gate) -> None:
    """How much the store was spared is there to be seen."""
    await passed(gate.admit(EVENT, seats("A1")))
    await refused(gate.admit(EVENT, seats("A1")))
    assert (gate.counts.admitted, gate.counts.refused, gate.counts.bypassed) == (1, 1, 0)


async def test_a_request_that_is_cancelled_as_its_answer_comes_leaves_its_marks(gate: Gate) -> None:
    """Redis let it pass, and no other part of the process would ever take the marks away."""
    landed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    first = await passed(gate.admit(EVENT, seats("A1")))
    hearing = asyncio.create_task(gate._await_answer(first, landed))
    await asyncio.sleep(0)
    landed.set_result(0)
    hearing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hearing
    await until_true(lambda: is_free(gate, "A1"))


async def test_a_buyer_whose_hold_could_never_be_granted_marks_nothing_for_a_while(gate: Gate) -> None:
    """A claim above the limit, asked again and again, keeps no other buyer from these seats."""
    greedy = Buyer("greedy")
    gate.leave(await passed(gate.admit(EVENT, seats("A1", "A2"), buyer=greedy)), hopeless=True)
    await until_true(lambda: is_free(gate, "A1"))
    assert await gate.admit(EVENT, seats("A1", "A2"), buyer=greedy) is None, (
        "the store judges it, and no seat is marked"
    )
    await passed(gate.admit(EVENT, seats("A1"), buyer=Buyer("ann")))


async def test_a_buyer_who_was_merely_too_late_is_trusted(gate: Gate) -> None:
    """The control: a request that was not called hopeless marks its seats again."""
    late = Buyer("late")
    gate.leave(await passed(gate.admit(EVENT, seats("A1", "A2"), buyer=late)))
    await until_true(lambda: is_free(gate, "A1"))
    await passed(gate.admit(EVENT, seats("A1", "A2"), buyer=late))
    assert await refused(gate.admit(EVENT, seats("A1"), buyer=Buyer("ann"))) == ["A1"]


@pytest.mark.parametrize("granted", [True, False])
async def test_marks_that_come_to_nothing_hide_a_seat_from_the_store_only_for_so_long(
    gate: Gate, *, granted: bool
) -> None:
    """Requests mark a seat in turn and are never given it: after a while a refused one is let through to the store.

    The control: where the store gave the seat to one of them, the wait begins anew.
    """
    clock = [100.0]
    gate._doubts = Doubts(seconds_max=10, clock=lambda: clock[0])
    answers = []
    for _ in range(4):
        mark = await passed_in_the_end(gate, "A1")
        answers.append(await refused(gate.admit(EVENT, seats("A1"))))
        if granted:
            gate.settle(mark, seconds=0)
        else:
            gate.leave(mark)
        clock[0] += 4
    assert answers == ([["A1"]] * 4 if granted else [["A1"], ["A1"], ["A1"], []])


async def passed_in_the_end(gate: Gate, *names: str) -> Pass:
    """What was left or settled before may still be on its way to Redis."""
    while True:
        if isinstance(found := await gate.admit(EVENT, seats(*names)), Pass):
            return found
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("url", ["memory://", "postgresql://localhost/shop", "sentinel://localhost", "localhost:6379"])
async def test_an_address_that_is_no_redis_is_said_so(url: str) -> None:
    """A wrong setting is found at the start, not at the first sale."""
    with pytest.raises(SetupError):
        open_admission(url)


async def is_free(gate: Gate, *names: str, event: EventId = EVENT) -> bool:
    """Whether a request for these would pass now. It goes away again."""
    found = await gate.admit(event, seats(*names))
    if isinstance(found, Busy):
        return False
    gate.leave(found)
    return True
