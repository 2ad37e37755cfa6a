"""A buyer's own seat is `yours` with Redis in front of the store too, and another buyer's never is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.locks.topologies import ask
from tests.races.commands import EVENT, a_confirm, a_hold, a_payment, a_play

from earmark.admission import encode_and_decode_script_calls, open_admission
from earmark.admission.seat_admission import SeatAdmission
from earmark.config import Settings
from earmark.domain.id_types import Buyer, SeatId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Decided, KeyedRequest
from earmark.errors import IdempotencyMismatch, SeatsTaken
from earmark.payments.open_and_conclude_payment import open_payment
from earmark.wiring import runtime

from .support import PATIENCE, Inside, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.engine import Engine
    from earmark.testservers import Valkey

SECRET = "a secret that all servers share"
A1 = SeatId("A1")


def patiently(url: str, **_: Any) -> SeatAdmission:
    """Redis has all the time it needs on a slow machine; every request calls it, for nothing is remembered."""
    return open_admission(url, timeout=PATIENCE, remember_seconds=0, secret=SECRET)


@pytest.fixture
def inside(own_server: Valkey) -> Inside:
    """What Redis has of the play."""
    return Inside(own_server, prefix="earmark", event=EVENT)


@pytest.fixture
async def engines(
    own_server: Valkey, postgres_url: str, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Engine]]:
    """Two servers on one PostgreSQL and one Redis, with a play on sale."""
    monkeypatch.setattr(runtime, "open_admission", patiently)
    opened = [
        await runtime.open_engine(Settings(database_url=postgres_url, redis_url=own_server.url), clock=clock)
        for _ in range(2)
    ]
    await opened[0].create_event(a_play())
    yield opened
    for engine in opened:
        await engine.close()


def granted(answer: Any) -> Booking:
    assert isinstance(answer, Decided)
    booking: Booking = answer.value
    return booking


async def refusal(engine: Engine, *seats: str, buyer: str, idempotency: KeyedRequest | None = None) -> SeatsTaken:
    with pytest.raises(SeatsTaken) as refused:
        await engine.hold(a_hold(*seats, buyer=buyer, idempotency=idempotency))
    return refused.value


async def held(engine: Engine, inside: Inside, *seats: str, buyer: str = "ann") -> Booking:
    """A hold whose hint is in Redis."""
    booking = granted(await engine.hold(a_hold(*seats, buyer=buyer)))
    await until(lambda: set(inside.kinds(*seats)) == {"h"})
    return booking


def admission_of(engine: Engine) -> SeatAdmission:
    admission: Any = engine.admission
    return admission  # type: ignore[no-any-return]


@pytest.mark.parametrize("state", ["held", "paying", "confirmed"])
async def test_a_buyers_own_seat_is_yours_at_every_server(engines: list[Engine], inside: Inside, state: str) -> None:
    """Whatever state the booking is in; the rest of the claim, which is another buyer's, is refused with it."""
    booking = await held(engines[0], inside, "A1")
    if state == "paying":
        await open_payment(engines[0], a_payment(booking))
    if state == "confirmed":
        await engines[0].confirm(a_confirm(booking))
    await held(engines[1], inside, "A2", buyer="bob")
    for engine in engines:
        taken = await refusal(engine, "A1", "A2", buyer="ann")
        assert taken.yours == {"A1": str(booking.id)}
        assert taken.seats == ["A1", "A2"]
        assert not taken.transient, "the store said so"


async def test_another_buyer_is_refused_quickly_and_learns_nothing(engines: list[Engine], inside: Inside) -> None:
    """Redis refuses without the store, and says no more than that the seat is taken."""
    await held(engines[0], inside, "A1")
    for engine in engines:
        before = admission_of(engine).counts.refused
        taken = await refusal(engine, "A1", buyer="bob")
        assert (taken.yours, taken.transient, taken.facts()) == (None, True, {"seats": ["A1"]})
        assert admission_of(engine).counts.refused == before + 1


async def test_a_hint_that_a_strangers_refusal_made_is_the_owners(engines: list[Engine], inside: Inside) -> None:
    """The store said whose seat it is, so the hint that follows says the same."""
    booking = await held(engines[0], inside, "A1")
    ask(inside.server, "FLUSHALL")
    assert (await refusal(engines[1], "A1", buyer="bob")).yours is None
    await until(lambda: inside.kind("A1") == "h")
    assert (await refusal(engines[1], "A1", buyer="ann")).yours == {"A1": str(booking.id)}
    refused_before = admission_of(engines[0]).counts.refused
    assert (await refusal(engines[0], "A1", buyer="bob")).yours is None
    assert admission_of(engines[0]).counts.refused == refused_before + 1


async def test_a_buyer_with_two_requests_at_once_gets_yours(engines: list[Engine]) -> None:
    """A double click: the second request meets the first one's mark, and waits for the store like it."""
    asked = [engine.hold(a_hold("A1", buyer="ann")) for engine in (*engines, *engines)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    [booking] = [granted(answer) for answer in answers if isinstance(answer, Decided)]
    refusals = [answer for answer in answers if isinstance(answer, SeatsTaken)]
    assert len(refusals) == 3
    assert [taken.yours for taken in refusals] == [{"A1": str(booking.id)}] * 3


async def test_a_remembered_hint_does_not_hide_the_buyers_own_seat(engines: list[Engine], inside: Inside) -> None:
    """What the process remembers of a hint is compared as what Redis says."""
    booking = await held(engines[0], inside, "A1")
    admission = admission_of(engines[0])
    token = int(ask(inside.server, "GET", inside.name("A1"))[1:])
    admission._hints._seconds_max = PATIENCE
    admission._hints.learn(EVENT, A1, owner=token, seconds=PATIENCE)
    ask(inside.server, "FLUSHALL")
    assert (await refusal(engines[0], "A1", buyer="bob")).transient, "remembered"
    assert admission.counts.remembered == 1
    assert (await refusal(engines[0], "A1", buyer="ann")).yours == {"A1": str(booking.id)}


def namesake(admission: SeatAdmission, buyer: str) -> str:
    """Another buyer whose hash is the same."""
    wanted = admission._buyer_hash(EVENT, Buyer(buyer))
    names = (f"stranger-{number}" for number in range(1_000_000))
    return next(name for name in names if admission._buyer_hash(EVENT, Buyer(name)) == wanted)


async def test_a_buyer_with_the_same_hash_costs_a_read_of_the_store_and_learns_nothing(
    engines: list[Engine], inside: Inside
) -> None:
    """The hash only says whether to ask; the store compares the names."""
    await held(engines[0], inside, "A1")
    stranger = namesake(admission_of(engines[0]), "ann")
    before = admission_of(engines[1]).counts.matched
    taken = await refusal(engines[1], "A1", buyer=stranger)
    assert (taken.yours, taken.transient) == (None, False)
    assert admission_of(engines[1]).counts.matched == before + 1
    assert taken.facts() == {"seats": ["A1"]}, "whose it is stays with the store"
    assert "ann" not in repr(taken)


async def test_control_without_the_hash_a_buyer_gets_taken(
    engines: list[Engine], inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is the hash that carries the rule."""
    monkeypatch.setattr(SeatAdmission, "_buyer_hash", lambda *_: 0)
    await held(engines[0], inside, "A1")
    taken = await refusal(engines[1], "A1", buyer="ann")
    assert (taken.yours, taken.transient) == (None, True)


async def test_the_same_key_with_another_buyer_is_a_mismatch_and_not_a_taken_seat(
    engines: list[Engine], inside: Inside
) -> None:
    """A request is known by its key alone: the buyer's bits do not make it another."""

    def idempotency(request_hash: bytes) -> KeyedRequest:
        return KeyedRequest(key=IdempotencyKey("shop", "key-1"), request_hash=request_hash, write=render)

    await engines[0].hold(a_hold("A1", buyer="ann", idempotency=idempotency(b"ann's")))
    await until(lambda: inside.kind("A1") == "h")
    for engine in engines:
        with pytest.raises(IdempotencyMismatch):
            await engine.hold(a_hold("A1", buyer="bob", idempotency=idempotency(b"bob's")))


def render(booking: Booking, _: datetime) -> tuple[int, bytes]:
    return 201, str(booking.id).encode()


async def test_whose_seat_it_is_cannot_be_computed_without_the_secret(own_server: Valkey) -> None:
    """A client that finds out the hash of a seat cannot try names against it, nor follow a buyer to another event."""
    admissions = [
        open_admission(own_server.url, secret=secret) for secret in ("one secret", "one secret", "another secret", None)
    ]
    names = [Buyer(f"buyer-{number}") for number in range(200)]
    first, same, other, without = [[admission._buyer_hash(EVENT, name) for name in names] for admission in admissions]
    elsewhere = [admissions[0]._buyer_hash("another event", name) for name in names]  # type: ignore[arg-type]
    assert first == same
    for differs in (other, without, elsewhere):
        # By chance one of 4,095 is the same.
        assert sum(one == two for one, two in zip(first, differs, strict=True)) < 10
    assert min(first) >= 1, "0 is no buyer"
    assert max(first) < 1 << encode_and_decode_script_calls.BUYER_BITS
    assert admissions[0]._buyer_hash(EVENT, Buyer("lone surrogate \udc80")) >= 1
    for admission in admissions:
        await admission.close()
