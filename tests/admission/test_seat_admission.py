"""The rules of admission, on every Redis topology."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.admission import AdmissionPass, open_admission
from earmark.admission.recently_refused_seats_and_buyers import RefusedSeats
from earmark.domain.id_types import Buyer, EventId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.ports.seat_admission import Busy
from earmark.errors import SetupError

from .support import EVENT, admission_on, passed, refs, refused, seats, until, until_true

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.topologies import Topology

    from earmark.admission import SeatAdmission
    from earmark.testservers import Valkey

    from .support import Inside

everywhere = pytest.mark.parametrize("topology", ["redis", "sentinel", "cluster", "several"], indirect=True)


@everywhere
async def test_a_seat_in_flight_is_refused_to_others_until_it_is_withdrawn(
    topology: Topology, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Of the requests for a seat at one moment, one reaches the store and the others are refused, in any process."""
    ours, theirs = open_seat_admission(topology.url), open_seat_admission(topology.url)
    first = await passed(ours.admit(EVENT, seats("A1")))
    assert await refused(ours.admit(EVENT, seats("A1"))) == ["A1"]
    assert await refused(theirs.admit(EVENT, seats("A1"))) == ["A1"]
    ours.withdraw(first)
    await until_true(lambda: is_free(theirs, "A1"))


@everywhere
async def test_a_granted_seat_is_hinted_at_until_it_is_dropped(
    topology: Topology, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """After the sale the next are refused without the store; after a release they are not, in any process."""
    ours, theirs = open_seat_admission(topology.url), open_seat_admission(topology.url)
    ours.record_grant(await passed(ours.admit(EVENT, seats("A1", "A2"))), seconds=600)
    assert await refused(theirs.admit(EVENT, seats("A2", "A3"))) == ["A2"]
    theirs.drop_hints(refs("A1", "A2"))
    await until_true(lambda: is_free(ours, "A2"))


@everywhere
async def test_a_claim_is_admitted_whole_or_not_at_all(
    topology: Topology, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """A request that is refused for one seat leaves the others to the next."""
    admission = open_seat_admission(topology.url)
    await passed(admission.admit(EVENT, seats("A2")))
    assert await refused(admission.admit(EVENT, seats("A1", "A2", "A3"))) == ["A2"]
    assert (await passed(admission.admit(EVENT, seats("A1", "A3")))).seats == ("A1", "A3")


@everywhere
async def test_one_seat_in_two_events_is_two_seats(
    topology: Topology, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The same chair on another evening. On a cluster these are on different nodes, and travel in one tick."""
    admission = open_seat_admission(topology.url)
    evenings = [EventId(f"show-{n}") for n in range(12)]
    passes = await asyncio.gather(*(passed(admission.admit(evening, seats("A1", "A2"))) for evening in evenings))
    assert len(passes) == len(evenings)
    for found in passes:
        admission.record_grant(found, seconds=600)
    answers = await asyncio.gather(*(refused(admission.admit(evening, seats("A2"))) for evening in evenings))
    assert answers == [["A2"]] * len(evenings)
    admission.drop_hints([ref for evening in evenings for ref in refs("A1", "A2", event=evening)])
    for evening in evenings:
        await until_true(lambda evening=evening: is_free(admission, "A1", "A2", event=evening))  # type: ignore[misc]


@everywhere
async def test_of_overlapping_claims_in_opposite_orders_one_is_admitted(
    topology: Topology, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """One by one, two claims would each get the seat that the other lacks; in one step one of them gets both."""
    admissions = [open_seat_admission(topology.url) for _ in range(2)]
    for number in range(20):
        a, b = f"A{number}", f"B{number}"
        answers = await asyncio.gather(admissions[0].admit(EVENT, seats(a, b)), admissions[1].admit(EVENT, seats(b, a)))
        assert sorted(isinstance(answer, Busy) for answer in answers) == [False, True]


async def test_seats_marked_one_by_one_would_admit_no_request(admission: SeatAdmission) -> None:
    """The control: without the one step, claims that overlap in opposite orders refuse each other."""
    first, second = await passed(admission.admit(EVENT, seats("A1"))), await passed(admission.admit(EVENT, seats("A2")))
    assert await refused(admission.admit(EVENT, seats("A2"))) == ["A2"]
    assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]
    admission.withdraw(first)
    admission.withdraw(second)


async def test_of_many_at_once_exactly_one_passes(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """However the calls of a tick are packed, each is decided in turn."""
    admissions = [open_seat_admission(server.url) for _ in range(4)]
    answers = await asyncio.gather(*(refused(admissions[n % 4].admit(EVENT, seats("A1"))) for n in range(400)))
    assert answers.count([]) == 1


async def test_the_same_request_again_is_no_rival_of_itself(admission: SeatAdmission, inside: Inside) -> None:
    """A repeat must reach the store, which has its answer: in flight, and after it was granted."""
    key = IdempotencyKey("shop", "order-7")
    first = await passed(admission.admit(EVENT, seats("A1"), key=key))
    again = await passed(admission.admit(EVENT, seats("A1"), key=key))
    assert await refused(admission.admit(EVENT, seats("A1"), key=IdempotencyKey("shop", "order-8"))) == ["A1"]
    admission.record_grant(first, seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    admission.withdraw(again)
    later = await passed(admission.admit(EVENT, seats("A1"), key=key))
    admission.withdraw(later)
    assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"], "the repeat took the hint away"


async def test_a_mark_belongs_to_its_request(admission: SeatAdmission, inside: Inside) -> None:
    """A request that comes too late neither removes nor settles what the next one has."""
    late = await passed(admission.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    admission.withdraw(late)
    admission.record_grant(late, seconds=600)
    admission.drop_hints(refs("A1"))
    await passed(admission.admit(EVENT, seats("B1")))  # By now all of these have arrived.
    assert inside.kind("A1") == "f"
    assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]


async def test_what_the_store_knows_to_be_taken_becomes_a_hint(admission: SeatAdmission, inside: Inside) -> None:
    """A sold seat whose hint has ended sends one request to the store, not one after the other."""
    found = await passed(admission.admit(EVENT, seats("A1", "A2", "A3")))
    admission.withdraw(found, taken={seats("A2")[0]: 3.0})
    await until(lambda: inside.kinds("A1", "A2", "A3") == "-h-")
    assert 0 < inside.left_ms("A2") <= 3000


async def test_a_hint_never_outlives_its_hold_however_long_the_store_took(
    admission: SeatAdmission, inside: Inside
) -> None:
    """A hint that counted from the store's answer would refuse a seat that is free again."""
    found = await passed(admission.admit(EVENT, seats("A1", "A2")))
    await asyncio.sleep(0.3)
    admission.record_grant(found, seconds=2.0)
    await until(lambda: inside.kinds("A1", "A2") == "hh")
    assert 0 < inside.left_ms("A1") <= 2000 - 300


async def test_a_mark_and_a_hint_live_five_seconds_at_most(admission: SeatAdmission, inside: Inside) -> None:
    """Whatever process dies or is cut off, a seat sells again soon."""
    found = await passed(admission.admit(EVENT, seats("A1")))
    assert 0 < inside.left_ms("A1") <= 5000
    admission.record_grant(found, seconds=600)
    await until(lambda: inside.kind("A1") == "h")
    assert 0 < inside.left_ms("A1") <= 5000


async def test_a_hint_ends_with_its_hold(admission: SeatAdmission, inside: Inside) -> None:
    """A hold that has less than five seconds left is not hinted at any longer than that."""
    admission.record_grant(await passed(admission.admit(EVENT, seats("A1"))), seconds=0.2)
    admission.record_grant(await passed(admission.admit(EVENT, seats("A2"))), seconds=0)
    admission.record_grant(await passed(admission.admit(EVENT, seats("A3"))), seconds=-7)
    await until_true(lambda: is_free(admission, "A2"))
    await until_true(lambda: is_free(admission, "A3"))
    assert inside.left_ms("A1") <= 200
    await until_true(lambda: is_free(admission, "A1"))


async def test_a_hint_that_did_not_end_with_its_hold_would_outlive_it(admission: SeatAdmission, inside: Inside) -> None:
    """The control: made for a long hold, the same hint is still there when the short one is over."""
    admission.record_grant(await passed(admission.admit(EVENT, seats("A1"))), seconds=600)
    admission.record_grant(await passed(admission.admit(EVENT, seats("A2"))), seconds=0.2)
    await until_true(lambda: is_free(admission, "A2"))
    assert inside.left_ms("A1") > 1000
    assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]


async def test_a_request_that_is_given_up_leaves_nothing_behind(admission: SeatAdmission, inside: Inside) -> None:
    """A client that disconnects while the call is in progress blocks no seat."""
    calls = [asyncio.ensure_future(admission.admit(EVENT, seats(f"A{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await until(lambda: inside.kinds(*(f"A{n}" for n in range(50))) == "-" * 50)
    assert await refused(admission.admit(EVENT, seats("A0", "A49"))) == []


async def test_a_claim_without_seats_or_with_very_many_is_not_asked_about(admission: SeatAdmission) -> None:
    """Pools have no marks, and a script over a thousand seats would delay all other requests."""
    assert await admission.admit(EVENT, ()) is None
    assert await admission.admit(EVENT, seats(*map(str, range(1000)))) is None
    admission.record_grant(None, seconds=1)
    admission.withdraw(None)


async def test_a_name_that_cannot_be_sent_fails_no_other_request(admission: SeatAdmission) -> None:
    """Calls are sent in batches; one that cannot be sent goes to the store alone."""
    odd = seats("A1\ud800")
    answers = await asyncio.gather(
        *(admission.admit(EVENT, seats(f"B{n}")) for n in range(5)),
        admission.admit(EVENT, odd),
        admission.admit(EventId("a}b"), seats("Ä1")),
    )
    assert [answer is None for answer in answers] == [False] * 5 + [True, False]


async def test_the_close_sends_what_was_still_to_be_sent(server: Valkey, prefix: str, inside: Inside) -> None:
    """A process that ends in good order leaves no marks."""
    admission = admission_on(server.url, prefix=prefix)
    admission.withdraw(await passed(admission.admit(EVENT, seats("A1"))))
    admission.record_grant(await passed(admission.admit(EVENT, seats("A2"))), seconds=600)
    await admission.close()
    assert inside.kinds("A1", "A2") == "-h"


async def test_admission_counts_its_outcomes(admission: SeatAdmission) -> None:
    """How much the store was spared is there to be seen."""
    await passed(admission.admit(EVENT, seats("A1")))
    await refused(admission.admit(EVENT, seats("A1")))
    assert (admission.counts.admitted, admission.counts.refused, admission.counts.bypassed) == (1, 1, 0)


async def test_a_request_that_is_cancelled_as_its_answer_comes_leaves_its_marks(admission: SeatAdmission) -> None:
    """Redis let it pass, and no other part of the process would ever take the marks away."""
    landed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    first = await passed(admission.admit(EVENT, seats("A1")))
    hearing = asyncio.create_task(admission._await_answer(first, landed))
    await asyncio.sleep(0)
    landed.set_result(0)
    hearing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hearing
    await until_true(lambda: is_free(admission, "A1"))


async def test_a_buyer_whose_hold_could_never_be_granted_marks_nothing_for_a_while(admission: SeatAdmission) -> None:
    """A claim above the limit, asked again and again, keeps no other buyer from these seats."""
    greedy = Buyer("greedy")
    admission.withdraw(await passed(admission.admit(EVENT, seats("A1", "A2"), buyer=greedy)), hopeless=True)
    await until_true(lambda: is_free(admission, "A1"))
    assert await admission.admit(EVENT, seats("A1", "A2"), buyer=greedy) is None, (
        "the store judges it, and no seat is marked"
    )
    await passed(admission.admit(EVENT, seats("A1"), buyer=Buyer("ann")))


async def test_a_buyer_that_was_merely_too_late_is_admitted(admission: SeatAdmission) -> None:
    """The control: a request that was not called hopeless marks its seats again."""
    late = Buyer("late")
    admission.withdraw(await passed(admission.admit(EVENT, seats("A1", "A2"), buyer=late)))
    await until_true(lambda: is_free(admission, "A1"))
    await passed(admission.admit(EVENT, seats("A1", "A2"), buyer=late))
    assert await refused(admission.admit(EVENT, seats("A1"), buyer=Buyer("ann"))) == ["A1"]


@pytest.mark.parametrize("granted", [True, False])
async def test_marks_that_come_to_nothing_hide_a_seat_from_the_store_only_for_so_long(
    admission: SeatAdmission, *, granted: bool
) -> None:
    """Requests mark a seat in turn and are never given it: after a while a refused one is let through to the store.

    The control: where the store gave the seat to one of them, the wait begins anew.
    """
    clock = [100.0]
    admission._refused_seats = RefusedSeats(seconds_max=10, clock=lambda: clock[0])
    answers = []
    for _ in range(4):
        mark = await passed_in_the_end(admission, "A1")
        answers.append(await refused(admission.admit(EVENT, seats("A1"))))
        if granted:
            admission.record_grant(mark, seconds=0)
        else:
            admission.withdraw(mark)
        clock[0] += 4
    assert answers == ([["A1"]] * 4 if granted else [["A1"], ["A1"], ["A1"], []])


async def passed_in_the_end(admission: SeatAdmission, *names: str) -> AdmissionPass:
    """What was left or settled before may still be on its way to Redis."""
    while True:
        if isinstance(found := await admission.admit(EVENT, seats(*names)), AdmissionPass):
            return found
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("url", ["memory://", "postgresql://localhost/shop", "sentinel://localhost", "localhost:6379"])
async def test_an_address_that_is_no_redis_is_said_so(url: str) -> None:
    """A wrong setting is found at the start, not at the first sale."""
    with pytest.raises(SetupError):
        open_admission(url)


async def is_free(admission: SeatAdmission, *names: str, event: EventId = EVENT) -> bool:
    """Whether a request for these would be admitted now. It is withdrawn again."""
    found = await admission.admit(event, seats(*names))
    if isinstance(found, Busy):
        return False
    admission.withdraw(found)
    return True
