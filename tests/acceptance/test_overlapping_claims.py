"""Two hundred buyers request overlapping sets of fifty seats, on two servers, and release some of them again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .support import Caller, Json, answered, eventually, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.testservers import Postgres

BUYERS = 200
ROUNDS = 4
SHORT_SECONDS = 1
# What a booking is in the end, when everything that was acknowledged is true.
END_OF = {
    "short": "expired",
    "keep": "held",
    "confirm": "confirmed",
    "release": "released",
    "extend and release": "released",
    "confirm and cancel": "cancelled",
}
# What is done with held seats, in turn. Most are released, so that they stay contended to the end.
PLANS = ("keep", "confirm", *4 * ("extend and release", "confirm and cancel", "release"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipSpan:
    """A stretch of time in which a booking certainly had its seats, as its buyer saw it."""

    booking: str
    seats: frozenset[str]
    since: float
    until: float


@dataclass(slots=True, kw_only=True)
class Record:
    """What all buyers saw."""

    asked: dict[str, frozenset[str]] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    tenures: list[OwnershipSpan] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    plans: Iterator[str] = field(default_factory=lambda: itertools.cycle(PLANS))


@dataclass(slots=True, kw_only=True)
class Buyer:
    """A buyer that requests seats, gets some, and decides what to do with them; each step at any of the servers."""

    name: str
    event: str
    names: list[str]
    callers: list[Caller]
    chance: random.Random
    record: Record

    async def play(self) -> None:
        """A few claims, one after the other."""
        for _ in range(ROUNDS):
            await self.claim()

    async def claim(self) -> None:
        """Request one to four seats and, when they are held, follow a plan."""
        short = self.chance.random() < 0.3
        seats = self.chance.sample(self.names, self.chance.randint(1, 4))
        ttl_seconds = SHORT_SECONDS if short else 600
        sent = time.monotonic()
        response = await self.caller().hold(self.event, buyer=self.name, seats=seats, ttl_seconds=ttl_seconds)
        had = time.monotonic()
        if response.status_code == 409:
            taken = refused(response, 409, "seats_taken")["seats"]
            assert taken
            assert set(taken) <= set(seats)
            self.record.answers["refused"] += 1
            return
        booking = answered(response, 201)["id"]
        self.record.asked[booking] = frozenset(seats)
        plan = "short" if short else next(self.record.plans)
        # Until it requested the release, or until the shortest life of the hold, it was certainly the owner.
        until = sent + SHORT_SECONDS if short else await self.follow(plan, booking)
        if had < until:
            self.record.tenures.append(OwnershipSpan(booking=booking, seats=frozenset(seats), since=had, until=until))
        self.record.acknowledged[booking] = END_OF[plan]
        self.record.answers[plan] += 1

    async def follow(self, plan: str, booking: str) -> float:
        """Carry the plan out and return when the release began; every step succeeds, as no other buyer may touch it."""
        if plan.startswith("extend"):
            answered(await self.caller().extend(booking, seconds=60), 200)
        if plan.startswith("confirm"):
            answered(await self.caller().confirm(booking), 200)
        let_go_at = time.monotonic()
        if plan.endswith("release"):
            answered(await self.caller().release(booking), 200)
        if plan.endswith("cancel"):
            answered(await self.caller().cancel(booking), 200)
        return let_go_at if plan.endswith(("release", "cancel")) else float("inf")

    def caller(self) -> Caller:
        """Any server will do."""
        return self.chance.choice(self.callers)


def deadlocks(postgres: Postgres) -> int:
    """How many this server has had to resolve, in all its databases."""
    return int(postgres.psql("SELECT sum(deadlocks) FROM pg_stat_database"))


def no_two_owners_at_once(tenures: list[OwnershipSpan]) -> None:
    """Two stretches of certain ownership of one seat never overlap."""
    by_seat: dict[str, list[OwnershipSpan]] = {}
    for tenure in tenures:
        for seat in tenure.seats:
            by_seat.setdefault(seat, []).append(tenure)
    for seat, found in by_seat.items():
        ordered = sorted(found, key=lambda tenure: tenure.since)
        latest = ordered[0]
        for tenure in ordered[1:]:
            assert tenure.since >= latest.until, f"{seat} belonged to {latest} and to {tenure}"
            latest = max(latest, tenure, key=lambda one: one.until)


def the_map_is_what_the_bookings_say(states: dict[str, str], bookings: list[Json], record: Record) -> None:
    """Every active booking has exactly the seats that it asked for; no seat is in two; the rest is free."""
    expected = dict.fromkeys(states, "available")
    owners = Counter[str]()
    for booking in bookings:
        seats = {seat["id"] for seat in booking["seats"]}
        assert seats == record.asked[booking["id"]], f"{booking['id']} has a part of what it requested"
        if booking["state"] in ("held", "confirmed"):
            owners.update(seats)
            expected |= dict.fromkeys(seats, "held" if booking["state"] == "held" else "booked")
    assert max(owners.values()) == 1, owners
    assert states == expected


async def test_overlapping_claims_never_share_a_seat(postgres: Postgres, two_callers: list[Caller]) -> None:
    """Holds, releases, sales, cancels, extensions and lapses mixed: all or nothing, one owner, no deadlock reported."""
    event = await two_callers[0].theatre(rows=5, seats_per_row=10)
    names = sorted(await two_callers[0].states(event))
    before = deadlocks(postgres)
    record = Record()
    buyers = [
        Buyer(
            name=f"buyer-{n}",
            event=event,
            names=names,
            callers=two_callers,
            chance=random.Random(n),  # noqa: S311 (a seed makes the buyers repeatable)
            record=record,
        )
        for n in range(BUYERS)
    ]
    await asyncio.gather(*(buyer.play() for buyer in buyers))
    print(f"answers: {dict(record.answers)}; deadlocks resolved inside: {deadlocks(postgres) - before}")  # noqa: T201

    no_two_owners_at_once(record.tenures)
    await eventually(
        lambda: two_callers[0].bookings(event_id=event, state="held"),
        lambda held: all(record.acknowledged[booking["id"]] == "held" for booking in held),
    )
    found = await two_callers[0].bookings(event_id=event)
    assert {booking["id"]: booking["state"] for booking in found} == record.acknowledged
    for caller in two_callers:
        the_map_is_what_the_bookings_say(await caller.states(event), found, record)
    # A run without a collision, or without one of the actions, would prove nothing.
    assert all(record.answers[kind] for kind in ("refused", "short", *PLANS)), record.answers
    assert {booking["state"] for booking in found} == {"held", "confirmed", "released", "cancelled", "expired"}
