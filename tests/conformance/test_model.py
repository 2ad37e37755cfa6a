"""A tiny model of a ticket shop, and every store beside it: the same script has the same outcomes.

The model knows nothing of the program: it has a list of bookings and a clock in seconds, and decides by looking at
all of them. Times are multiples of twenty seconds, so that the real time which a script takes decides nothing.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earmark.domain.id_types import Buyer, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, PoolPatch, SeatPatch
from earmark.errors import Refusal
from earmark.store.sqlite.memory import MemoryStore

from .conftest import Shop, seats_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.booking_state_machine import State
    from earmark.engine.ports.store import Ids, Store
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore

PROOF = bool(os.environ.get("EARMARK_PROOF"))
BUYERS, SEATS, POOLS = ("ada", "bob", "eve"), ("A1", "A2", "A3", "A4"), ("GA", "VIP")
LIMIT, CAPACITY, LIFE_MAX = 5, 4, 1800
_numbers = itertools.count(1)

pytestmark = pytest.mark.timeout(1200 if PROOF else 120)

# The model


@dataclass
class Claim:
    """A booking as the model has it."""

    buyer: str
    seats: set[str]
    pools: dict[str, int]
    made: int
    ends: int
    story: list[str] = field(default_factory=lambda: ["held"])
    payment: str | None = None

    @property
    def state(self) -> str:
        """The state at this moment."""
        return self.story[-1]

    @property
    def is_active(self) -> bool:
        """Whether it keeps its seats."""
        return self.state in {"held", "confirmed"}

    @property
    def units(self) -> int:
        """How many seats and units."""
        return len(self.seats) + sum(self.pools.values())


class Model:
    """The shop of the model: every method returns the state that a booking then has, or the code of the refusal."""

    def __init__(self) -> None:
        self.now = 0
        self.claims: list[Claim] = []
        self.blocked: set[str] = set()
        self.capacity = dict.fromkeys(POOLS, CAPACITY)
        self.payments: set[str] = set()

    def advance(self, seconds: int) -> None:
        """Time passes, and what is due is over."""
        self.now += seconds
        for claim in self.claims:
            if claim.state == "held" and claim.ends <= self.now:
                claim.story.append("expired")

    def count(self, pool: str, state: str) -> int:
        """The units of a pool in bookings of one state."""
        return sum(claim.pools.get(pool, 0) for claim in self.claims if claim.state == state)

    def free(self, pool: str) -> int:
        """What is left of a pool."""
        return self.capacity[pool] - self.count(pool, "held") - self.count(pool, "confirmed")

    def seat(self, seat: str) -> str:
        """What the map shows."""
        owners = [claim.state for claim in self.claims if claim.is_active and seat in claim.seats]
        assert len(owners) <= 1, "the model itself sold a seat twice"
        if owners:
            return "booked" if owners == ["confirmed"] else "held"
        return "blocked" if seat in self.blocked else "available"

    def hold(self, buyer: str, seats: set[str], pools: dict[str, int], ttl: int) -> str:
        """Seats first, then units, then the limit."""
        if any(self.seat(seat) != "available" for seat in seats):
            return "seats_taken"
        if any(units > self.free(pool) for pool, units in pools.items()):
            return "pool_exhausted"
        new = Claim(buyer, set(seats), dict(pools), self.now, self.now + ttl)
        if new.units + sum(claim.units for claim in self.claims if claim.is_active and claim.buyer == buyer) > LIMIT:
            return "limit_exceeded"
        self.claims.append(new)
        return "held"

    def ask(self, verb: str, claim: Claim, asker: str | None, *details: Any) -> str:
        """A verb on a booking, by the shop or by a buyer."""
        if asker not in {None, claim.buyer}:
            return "booking_unknown"
        if claim.state == "expired":
            return "booking_expired"
        if verb == "cancel" and asker is not None:
            return self.cancel_by_buyer(claim, *details)
        answer: str = getattr(self, verb)(claim, *details)
        return answer

    def extend(self, claim: Claim, seconds: int) -> str:
        """Up to the longest life."""
        if claim.state != "held":
            return "booking_resolved"
        ends = min(claim.ends + seconds, claim.made + LIFE_MAX)
        if ends <= claim.ends:
            return "extension_refused"
        claim.ends = ends
        claim.story.append("held")
        return "held"

    def confirm(self, claim: Claim, payment: str) -> str:
        """One payment, one booking."""
        if claim.state == "confirmed" and claim.payment == payment:
            return "confirmed"
        if claim.state != "held":
            return "booking_resolved"
        if payment in self.payments:
            return "payment_used"
        self.payments.add(payment)
        claim.payment = payment
        claim.story.append("confirmed")
        return "confirmed"

    def release(self, claim: Claim) -> str:
        """Once, or again."""
        if claim.state == "released":
            return "released"
        if claim.state != "held":
            return "booking_resolved"
        claim.story.append("released")
        return "released"

    def cancel(self, claim: Claim, seats: set[str], pools: dict[str, int]) -> str:
        """Whole, or these lines."""
        if claim.state == "held":
            return "booking_not_confirmed"
        if claim.state == "cancelled" and not seats and not pools:
            return "cancelled"
        if claim.state != "confirmed":
            return "booking_resolved"
        if not seats <= claim.seats or any(units > claim.pools.get(pool, 0) for pool, units in pools.items()):
            return "invalid_request"
        left = {pool: units - pools.get(pool, 0) for pool, units in claim.pools.items()}
        left = {pool: units for pool, units in left.items() if units}
        if not (seats or pools) or (seats == claim.seats and not left):
            claim.story.append("cancelled")
            return "cancelled"
        claim.seats, claim.pools = claim.seats - seats, left
        claim.story.append("confirmed")
        return "confirmed"

    def cancel_by_buyer(self, claim: Claim, seats: set[str], pools: dict[str, int]) -> str:
        """As for the shop, but what would be undone is refused: this event lets no buyer cancel."""
        answer = self.cancel(copy.deepcopy(claim), seats, pools)
        undoes = claim.state == "confirmed" and answer in {"cancelled", "confirmed"}
        return "cancel_refused" if undoes else answer

    def block(self, seat: str, *, blocked: bool) -> str:
        """Unless it has an active owner."""
        if blocked and self.seat(seat) in {"held", "booked"}:
            return "seats_taken"
        (self.blocked.add if blocked else self.blocked.discard)(seat)
        return "changed"

    def resize(self, pool: str, capacity: int) -> str:
        """Not below what is in use."""
        if capacity < self.capacity[pool] - self.free(pool):
            return "capacity_in_use"
        self.capacity[pool] = capacity
        return "changed"


# Scripts

seats = st.sets(st.sampled_from(SEATS), max_size=3)
units = st.dictionaries(st.sampled_from(POOLS), st.integers(1, 3), max_size=2)
which = st.integers(0, 7)
askers = st.sampled_from([None] * 9 + list(BUYERS))
details = {
    "extend": st.tuples(st.sampled_from([20, 40, 600, 3600])),
    "confirm": st.tuples(st.sampled_from([f"visa-{n}" for n in range(1, 7)])),
    "release": st.just(()),
    "cancel": st.one_of(st.just((set(), {})), st.tuples(seats, units)),
}
asks = st.sampled_from(["extend", "confirm", "confirm", "confirm", "release", "cancel", "cancel"]).flatmap(
    lambda verb: st.tuples(st.just(verb), st.lists(st.tuples(which, askers, details[verb]), min_size=1, max_size=3))
)
holds = st.tuples(st.just("hold"), st.sampled_from(BUYERS), seats, units, st.sampled_from([20, 100, 400, 1780])).filter(
    lambda step: bool(step[2] or step[3])
)
others = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([20, 80, 300])),
    st.tuples(st.just("block"), st.sampled_from(SEATS), st.booleans()),
    st.tuples(st.just("resize"), st.sampled_from(POOLS), st.integers(0, 6)),
    st.tuples(st.just("sweep"), st.integers(1, 3)),
)
scripts = st.tuples(
    st.lists(holds, min_size=2, max_size=4), st.lists(st.one_of(holds, asks, asks, others), min_size=12, max_size=36)
).map(lambda parts: [*parts[0], *parts[1]])


def examples(count: int, *, few: int) -> settings:
    """A few scripts, always the same ones; a proof draws twenty times the count, and new ones."""
    return settings(
        max_examples=count * 20 if PROOF else few,
        derandomize=not PROOF,
        deadline=None,
        database=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )


# The stores beside it


class Run:
    """One script, in the model and in a store."""

    def __init__(self, store: Store, *, ids: Ids, clock: MovableClock) -> None:
        self.model = Model()
        self.shop = Shop(store, ids=ids, connection_slots=1)
        self.clock = clock
        self.event = f"event-{next(_numbers)}"
        self.bookings: list[Booking] = []

    async def play(self, script: list[Any]) -> None:
        """Step by step, and after each the same outcome and the same map."""
        await self.shop.create(self.event, seats=SEATS, pools=dict.fromkeys(POOLS, CAPACITY), per_buyer_max=LIMIT)
        for number, (verb, *rest) in enumerate(script):
            expected, got = await getattr(self, f"_{verb}", self._ask)(*([verb] if verb in details else []), *rest)
            assert got == expected, f"step {number}, {verb} {rest}"
            await self._compare_maps(f"step {number}, {verb} {rest}")
        await self._compare_bookings()
        assert await self.shop.store.find_flaws(limit=5) == []

    async def _advance(self, seconds: int) -> tuple[str, str]:
        self.model.advance(seconds)
        self.clock.advance(seconds)
        return "", ""

    async def _sweep(self, limit: int) -> tuple[str, str]:
        """Invisible, but for how the journal words it."""
        await self.shop.engine.expire(limit=limit)
        return "", ""

    async def _hold(self, buyer: str, seats: set[str], pools: dict[str, int], ttl: int) -> tuple[str, str]:
        expected = self.model.hold(buyer, seats, pools, ttl)
        ask = self.shop.hold(buyer, *sorted(seats), pools=pools, ttl=ttl, event_id=self.event)
        got = await _outcome(ask, then=self.bookings.append)
        return expected, got

    async def _ask(self, verb: str, asked: list[tuple[int, str | None, tuple[Any, ...]]]) -> tuple[Any, Any]:
        """Up to three asks of one verb at once: one batch, decided in the order in which they came.

        Confirms alone may overtake each other: a payment that is named twice waits for the next batch.
        """
        if not self.bookings:
            return [], []
        numbered = [(which % len(self.bookings), asker, how) for which, asker, how in asked]
        got = await asyncio.gather(
            *(_outcome(self._send(verb, self.bookings[number], how, asker)) for number, asker, how in numbered)
        )
        first, *overtaken = itertools.permutations(range(len(numbered)))
        asked_in_order = self._expect(verb, numbered, first)
        others = (self._expect(verb, numbered, order) for order in (overtaken if verb == "confirm" else ()))
        tried = itertools.chain([asked_in_order], others)
        expected, self.model = next((one for one in tried if one[0] == list(got)), asked_in_order)
        return expected, list(got)

    def _expect(
        self, verb: str, asked: list[tuple[int, str | None, tuple[Any, ...]]], order: tuple[int, ...]
    ) -> tuple[list[str], Model]:
        """What these asks come to, one after the other in this order, and the model after them."""
        model = copy.deepcopy(self.model)
        answers = {at: model.ask(verb, model.claims[asked[at][0]], asked[at][1], *asked[at][2]) for at in order}
        return [answers[at] for at in range(len(asked))], model

    def _send(self, verb: str, booking: Booking, how: tuple[Any, ...], asker: str | None) -> Awaitable[Booking]:
        actor = Actor(name=asker or "shop", mode=Mode.LIVE, buyer=Buyer(asker) if asker else None)
        match verb, how:
            case "extend", (seconds,):
                return self.shop.extend(booking, seconds, actor=actor)
            case "confirm", (payment,):
                return self.shop.confirm(booking, f"{self.event}-{payment}", actor=actor)
            case "cancel", (seats, pools):
                return self.shop.cancel(booking, *sorted(seats), pools=pools, actor=actor)
            case _:
                return self.shop.release(booking, actor=actor)

    async def _block(self, seat: str, blocked: bool) -> tuple[str, str]:  # noqa: FBT001 (a step's words, in order)
        patch = SeatPatch(id=SeatId(seat), blocked=blocked)
        return self.model.block(seat, blocked=blocked), await _outcome(self.shop.change(self.event, seats=[patch]))

    async def _resize(self, pool: str, capacity: int) -> tuple[str, str]:
        patch = PoolPatch(id=PoolId(pool), capacity=capacity)
        return self.model.resize(pool, capacity), await _outcome(self.shop.change(self.event, pools=[patch]))

    async def _compare_maps(self, where: str) -> None:
        seen = await self.shop.store.read_map(EventId(self.event))
        assert seats_on(seen) == {seat: self.model.seat(seat) for seat in SEATS}, where
        assert sorted((pool.id, pool.free, pool.held, pool.sold) for pool in seen.pools) == [
            (pool, self.model.free(pool), self.model.count(pool, "held"), self.model.count(pool, "confirmed"))
            for pool in sorted(POOLS)
        ], where

    async def _compare_bookings(self) -> None:
        """Each booking has the state that the model has, and its journal the same verbs."""
        for claim, held in zip(self.model.claims, self.bookings, strict=True):
            now, booking = await self.shop.store.read_booking(held.id)
            assert booking is not None
            told = [entry.after for entry in await self.shop.history(booking)]
            assert told + (["expired"] if booking.is_due(now) else []) == claim.story
            assert {line.id for line in booking.lines.seats} == claim.seats
            assert {line.id: line.units for line in booking.lines.pools} == claim.pools
            assert (booking.expires_at - booking.created_at).total_seconds() == claim.ends - claim.made
            paid = f"{self.event}-{claim.payment}" if claim.payment else None
            assert (booking.payment_id, booking.version) == (paid, len(told))


async def _outcome(asked: Awaitable[Any], then: Callable[[Booking], None] | None = None) -> str:
    try:
        answer = await asked
    except Refusal as refusal:
        return refusal.code
    if then:
        then(answer)
    state: State | None = getattr(answer, "state", None)
    return state.value if state else "changed"


@given(script=scripts)
@examples(80, few=40)
async def test_memory_does_what_the_model_does(clock: MovableClock, ids: Ids, script: list[Any]) -> None:
    """Whatever is asked in whatever order, the memory store and the model agree."""
    await Run(MemoryStore(clock=clock), ids=ids, clock=clock).play(script)


@given(script=scripts)
@examples(25, few=12)
async def test_sqlite_does_what_the_model_does(
    sqlite_store: SqliteStore, clock: MovableClock, ids: Ids, script: list[Any]
) -> None:
    """Whatever is asked in whatever order, SQLite and the model agree."""
    await Run(sqlite_store, ids=ids, clock=clock).play(script)


@given(script=scripts)
@examples(10, few=5)
async def test_postgres_does_what_the_model_does(
    postgres_store: PostgresStore, clock: MovableClock, ids: Ids, script: list[Any]
) -> None:
    """Whatever is asked in whatever order, PostgreSQL and the model agree."""
    await Run(postgres_store, ids=ids, clock=clock).play(script)
