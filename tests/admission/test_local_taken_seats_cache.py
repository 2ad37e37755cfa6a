"""What a process remembers by itself: enough to spare Redis a stampede, and never long enough to mislead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.locks.faulty_proxy import Proxy

from earmark.admission.local_taken_seats_cache import LocalHints
from earmark.admission.recently_refused_seats_and_buyers import RefusedBuyers, RefusedSeats
from earmark.domain.id_types import Buyer, EventId
from earmark.domain.idempotency_record import IdempotencyKey

from .support import EVENT, Inside, passed, refs, refused, seats, until, until_true
from .test_seat_admission import is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.admission import SeatAdmission
    from earmark.domain.id_types import SeatId
    from earmark.testservers import Valkey

A1, A2, A3 = seats("A1", "A2", "A3")
OTHER_REQUEST = 1


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        """As the test has set it."""
        return self.time


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def hints(now: Now) -> LocalHints:
    return LocalHints(seconds_max=0.1, seats_max=2, clock=now)


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    """A wire that counts what travels."""
    with Proxy(server.port) as connection:
        yield connection


def test_a_hint_is_remembered_for_a_moment_only(hints: LocalHints, now: Now) -> None:
    """What another process has changed meanwhile is learnt of when the moment is over."""
    hints.learn(EVENT, A1, owner=7, seconds=5)
    assert list(hints.busy(EVENT, (A1, A2), OTHER_REQUEST)) == [A1]
    now.time += 0.11
    assert list(hints.busy(EVENT, (A1, A2), OTHER_REQUEST)) == []


def test_a_hint_is_not_remembered_past_its_own_end(hints: LocalHints, now: Now) -> None:
    """A hold that has 20 ms left refuses no request for 100."""
    hints.learn(EVENT, A1, owner=7, seconds=0.02)
    now.time += 0.03
    assert list(hints.busy(EVENT, (A1,), OTHER_REQUEST)) == []


def test_a_hint_refuses_all_requests_but_its_owners(hints: LocalHints) -> None:
    """The same request again must reach the store, which has its answer."""
    hints.learn(EVENT, A1, owner=7, seconds=5)
    assert list(hints.busy(EVENT, (A1,), 7)) == []
    assert list(hints.busy(EVENT, (A1,), 8)) == [A1]


def test_what_is_remembered_has_a_bound(hints: LocalHints) -> None:
    """At the bound all hints of all events are cleared; the next one is stored."""
    another = EventId("another")
    hints.learn(another, A1, owner=7, seconds=5)
    for seat in (A2, A2):
        hints.learn(EVENT, seat, owner=7, seconds=5)
    assert len(hints) == 2
    hints.learn(EVENT, A3, owner=7, seconds=5)
    assert len(hints) == 1
    assert list(hints.busy(EVENT, (A1, A2, A3), OTHER_REQUEST)) == [A3]
    assert not hints.busy(another, (A1,), OTHER_REQUEST)
    hints.forget(EVENT, (A1, A3))
    assert len(hints) == 0


def test_a_lifetime_of_nothing_remembers_nothing(now: Now) -> None:
    """The memory can be switched off."""
    hints = LocalHints(seconds_max=0, clock=now)
    hints.learn(EVENT, A1, owner=7, seconds=5)
    assert len(hints) == 0


def test_a_seat_that_was_refused_for_too_long_is_worth_a_question(now: Now) -> None:
    """Once, and then not before as long again; a request that passed in between begins it anew."""
    refused_seats = RefusedSeats(seconds_max=10, seats_max=2, clock=now)
    asked = []
    for _ in range(24):
        asked.append(refused_seats.refused(EVENT, (A1,)))
        now.time += 1
    assert asked.count(True) == 2
    refused_seats.refused(EVENT, (A2,))
    now.time += 9
    refused_seats.decided(EVENT, (A2,))
    now.time += 2
    assert not refused_seats.refused(EVENT, (A2, A3))
    assert len(refused_seats) == 2


def test_distrust_ends_and_is_bounded(now: Now) -> None:
    """For some seconds, for one event, and for so many buyers at most."""
    distrusted = RefusedBuyers(seconds=5, buyers_max=2, clock=now)
    for buyer in ("ann", "bob", "ann", "eve"):
        distrusted.add(EVENT, Buyer(buyer))
    assert [distrusted.has(EVENT, Buyer(buyer)) for buyer in ("ann", "bob", "eve")] == [True, False, True]
    assert not distrusted.has(EventId("another"), Buyer("ann"))
    assert len(distrusted) == 2
    now.time += 5
    assert not distrusted.has(EVENT, Buyer("ann"))


async def test_a_stampede_on_a_sold_seat_does_not_travel(
    proxy: Proxy, admission: SeatAdmission, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Another process sold it: the first request that is refused learns it from Redis, the next ones from the first."""
    elsewhere, admission = admission, open_seat_admission(proxy.url, remember_seconds=5.0)
    await sell(elsewhere, "A1", "A2")
    await until_true(lambda: is_hinted(admission, A1))
    received, remembered = proxy.received, admission.counts.remembered
    answers = await asyncio.gather(*(refused(admission.admit(EVENT, (A3, A1))) for _ in range(300)))
    assert answers == [["A1"]] * 300
    assert proxy.received == received
    assert admission.counts.remembered == remembered + 300


async def test_a_process_knows_what_it_has_in_flight(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """It put the mark there itself: Redis would say the same."""
    admission = open_seat_admission(proxy.url, remember_seconds=5.0)
    await passed(admission.admit(EVENT, (A1, A2)))
    received = proxy.received
    assert await refused(admission.admit(EVENT, (A1, A3))) == ["A1"]
    assert proxy.received == received
    assert (admission.counts.remembered, admission.counts.refused) == (1, 0)


async def test_a_seat_that_another_server_releases_is_free_at_once(
    admission: SeatAdmission, server: Valkey, prefix: str, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The server that granted it remembers nothing of that by itself, however long it may remember a hint."""
    remembering = open_seat_admission(server.url, remember_seconds=60.0)
    await sell(remembering, "A1")
    await until(lambda: Inside(server, prefix=prefix).kind("A1") == "h")
    admission.drop_hints(refs("A1"))
    await until(lambda: Inside(server, prefix=prefix).kind("A1") == "")
    assert await is_free(remembering, "A1")


async def test_without_the_memory_redis_is_asked_for_a_process_own_seats(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The control: without local hints every request calls Redis."""
    admission = open_seat_admission(proxy.url, remember_seconds=0)
    await passed(admission.admit(EVENT, (A1, A2)))
    received = proxy.received
    assert await refused(admission.admit(EVENT, (A1, A3))) == ["A1"]
    assert proxy.received > received
    assert (admission.counts.remembered, admission.counts.refused) == (0, 1)


async def test_a_stampede_would_travel_without_the_memory(
    proxy: Proxy, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The control: switched off, every refusal is asked for."""
    admission = open_seat_admission(proxy.url, remember_seconds=0)
    await sell(admission, "A1")
    assert await refused(admission.admit(EVENT, (A1,))) == ["A1"]
    received = proxy.received
    answers = await asyncio.gather(*(refused(admission.admit(EVENT, (A1,))) for _ in range(300)))
    assert answers == [["A1"]] * 300
    assert proxy.received > received
    assert admission.counts.remembered == 0


async def test_what_another_process_has_in_flight_is_not_remembered(
    admission: SeatAdmission, server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Its mark may be gone in a millisecond: only Redis knows."""
    remembering = open_seat_admission(server.url, remember_seconds=5.0)
    found = await passed(admission.admit(EVENT, (A1,)))
    assert await refused(remembering.admit(EVENT, (A1,))) == ["A1"]
    admission.withdraw(found)
    await until_true(lambda: is_free(remembering, "A1"))
    assert remembering.counts.remembered == 0


async def test_what_this_process_drops_it_forgets_at_once(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """A seat that was released here is free here, without waiting for the moment to be over."""
    admission = open_seat_admission(server.url, remember_seconds=5.0)
    await sell(admission, "A1")
    assert await refused(admission.admit(EVENT, (A1,))) == ["A1"]
    admission.drop_hints(refs("A1"))
    assert await refused(admission.admit(EVENT, (A1,))) == []


@pytest.mark.parametrize("end", ["record_grant", "withdraw"])
async def test_what_this_process_records_is_newer_than_what_it_read(admission: SeatAdmission, end: str) -> None:
    """Neither the hint of a former owner nor its own mark is remembered; Redis says what is true now."""
    admission._hints = LocalHints(seconds_max=5.0)
    found = await passed(admission.admit(EVENT, (A1, A2)))
    for seat in (A1, A2, A3):
        admission._hints.learn(EVENT, seat, owner=7, seconds=5)
    if end == "record_grant":
        admission.record_grant(found, seconds=600)
    else:
        admission.withdraw(found)
    assert admission._hints.busy(EVENT, (A1, A2, A3), OTHER_REQUEST) == {A3: 7}


async def test_a_remembered_hint_ends_with_the_hint(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """However long it might be remembered, a short hold's seat is free when the hold is over."""
    admission = open_seat_admission(server.url, remember_seconds=60.0)
    admission.record_grant(await passed(admission.admit(EVENT, (A1,))), seconds=0.3)
    assert await refused(admission.admit(EVENT, (A1,))) == ["A1"]
    await until_true(lambda: is_free(admission, "A1"))


async def test_the_owner_of_a_hint_is_not_refused_by_memory(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """This process remembers that the seat is taken; its own buyer repeats the request."""
    admission, elsewhere = open_seat_admission(server.url, remember_seconds=5.0), open_seat_admission(server.url)
    key = IdempotencyKey("shop", "order-7")
    elsewhere.record_grant(await passed(elsewhere.admit(EVENT, (A1,), key=key)), seconds=600)
    assert await refused(admission.admit(EVENT, (A1,))) == ["A1"]
    assert await refused(admission.admit(EVENT, (A1,))) == ["A1"]
    assert admission.counts.remembered == 1
    await passed(admission.admit(EVENT, (A1,), key=key))


async def test_a_sold_seat_that_another_process_gave_back_is_free_within_the_moment(
    admission: SeatAdmission, server: Valkey, prefix: str, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The memory delays such news, and by no more than it lasts."""
    remembering = open_seat_admission(server.url, remember_seconds=0.1)
    await sell(admission, "A1")
    await until(lambda: Inside(server, prefix=prefix).kind("A1") == "h")
    assert await refused(remembering.admit(EVENT, (A1,))) == ["A1"]
    admission.drop_hints(refs("A1"))
    await until_true(lambda: is_free(remembering, "A1"))


async def is_hinted(admission: SeatAdmission, seat: SeatId) -> bool:
    """Whether this process has seen the hint on a seat that another process sold."""
    await refused(admission.admit(EVENT, (seat,)))
    return len(admission._hints) > 0


async def sell(admission: SeatAdmission, *names: str) -> None:
    admission.record_grant(await passed(admission.admit(EVENT, seats(*names))), seconds=600)
