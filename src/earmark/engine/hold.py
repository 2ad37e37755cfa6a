"""hold: seats and pool units for a few minutes, all or nothing.

The steps, in the one order of locks (see `ports`):

    keys → read events, seats and owners in one snapshot → refuse what is taken
         → lock the lapsed owners, and judge them anew on the locked rows
         → lock totals, pools, and the seats if they are still as they were seen
         → decide in arrival order → write: lapsed holds end first, then seats change hands

Whatever moved between the look and the lock is decided again in a new transaction, never in place: a booking
that is locked after a seat is a deadlock waiting for its second half.
"""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.event import check_on_sale
from earmark.domain.ids import PoolRef, SeatRef, TotalRef
from earmark.domain.machine import State
from earmark.domain.policy import ttl_seconds
from earmark.domain.pool import PoolDelta
from earmark.domain.seat import SeatSeen, Verdict, verdict
from earmark.engine.asks import Again
from earmark.engine.desk import Desk
from earmark.errors import (
    EventUnknown,
    LimitExceeded,
    PoolExhausted,
    PoolUnknown,
    Refusal,
    SeatsTaken,
    SeatUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId, EventId
    from earmark.domain.policy import Policy
    from earmark.domain.pool import Pool
    from earmark.engine.asks import Hold, Outcome
    from earmark.engine.ports import Ids, Transaction

MOVED_ROUNDS_MAX = 3
RELIEF_ROUNDS_MAX = 6


async def hold(transaction: Transaction, batch: Sequence[Hold], *, policy: Policy, ids: Ids) -> list[Outcome]:
    """Earlier answer? → look → lock → decide → write."""
    desk = await Desk.open(transaction, batch, ids=ids)
    events = await transaction.read_events({ask.event_id for ask in desk.waiting})
    seen = await transaction.read_seats({ref for ask in desk.waiting for ref in _seats(ask)})
    _screen(desk, events=events, seen=seen, policy=policy)
    if not desk.waiting:
        return await desk.close()

    wanted = [seen[ref] for ask in desk.waiting for ref in _seats(ask)]
    lapsed = {seat.pointer for seat in wanted if seat.pointer and verdict(seat, now=desk.now) is Verdict.LAPSED}
    owners = await transaction.lock_bookings(lapsed)
    alive = {owner.id for owner in owners.values() if owner.is_live and not owner.is_due(desk.now)}
    for owner in owners.values():
        if owner.is_due(desk.now):
            desk.ledger.expire(owner, reason="taken over")

    totals = await transaction.lock_totals({*desk.ledger.totals, *map(_total, desk.waiting)})
    pools = await transaction.lock_pools({*desk.ledger.pools, *(ref for ask in desk.waiting for ref in _pools(ask))})
    unmoved = await transaction.lock_seats({seat.ref: seat for seat in wanted if seat.pointer not in alive}.values())

    counter = _Counter(desk, events=events, seen=seen, alive=alive, unmoved=unmoved, totals=totals, pools=pools)
    for ask in desk.waiting:
        counter.decide(ask, policy=policy)
    return await desk.close()


def _screen(
    desk: Desk[Hold], *, events: Mapping[EventId, Event], seen: Mapping[SeatRef, SeatSeen], policy: Policy
) -> None:
    """Refuse without a lock what the snapshot shows to be hopeless."""
    for ask in desk.waiting:
        try:
            event = events.get(ask.event_id)
            if event is None or event.live != ask.actor.live:
                raise EventUnknown(event_id=ask.event_id)
            check_on_sale(event, now=desk.now)
            ttl_seconds(policy, asked=ask.ttl_seconds, of_event=event.hold_ttl_seconds)
            if unknown := [ref.seat_id for ref in _seats(ask) if ref not in seen]:
                raise SeatUnknown(seats=unknown)
            judged = {ref: verdict(seen[ref], now=desk.now) for ref in _seats(ask)}
            if blocked := [ref.seat_id for ref, said in judged.items() if said is Verdict.BLOCKED]:
                raise SeatsTaken(seats=blocked, why="blocked")
            if taken := [seen[ref] for ref, said in judged.items() if said is Verdict.TAKEN]:
                raise _taken(ask, taken)
        except Refusal as refusal:
            desk.refuse(ask, refusal)


class _Counter:
    """Where a batch's holds are granted one after the other, over rows that are locked by now."""

    def __init__(
        self,
        desk: Desk[Hold],
        *,
        events: Mapping[EventId, Event],
        seen: Mapping[SeatRef, SeatSeen],
        alive: set[BookingId],
        unmoved: frozenset[SeatRef],
        totals: Mapping[TotalRef, int],
        pools: Mapping[PoolRef, Pool],
    ) -> None:
        self._desk = desk
        self._ledger = desk.ledger
        self._events = events
        self._seen = seen
        self._alive = alive
        self._unmoved = unmoved
        self._totals = totals
        self._pools = pools

    def decide(self, ask: Hold, *, policy: Policy) -> None:
        """Grant, refuse, or look again."""
        try:
            if again := self._judge(ask):
                self._desk.again(ask, again)
                return
        except Refusal as refusal:
            self._desk.refuse(ask, refusal)
            return
        booking = self._ledger.open(self._booking(ask, policy=policy), ask=ask)
        self._desk.answer(ask, booking)

    def _judge(self, ask: Hold) -> Again | None:
        if unknown := [ref.pool_id for ref in _pools(ask) if ref not in self._pools]:
            raise PoolUnknown(pools=unknown)
        kept = [self._seen[ref] for ref in _seats(ask) if self._seen[ref].pointer in self._alive]
        given = {ref: owner for ref in _seats(ask) if (owner := self._ledger.owner(ref))}
        if kept or given:
            raise _taken(ask, kept, given=given)
        if moved := [ref.seat_id for ref in _seats(ask) if ref not in self._unmoved]:
            return Again(refusal=SeatsTaken(seats=moved, transient=True), rounds_max=MOVED_ROUNDS_MAX)
        for ref, units in _pools(ask).items():
            free = self._pools[ref].free - sum(msgspec.structs.astuple(self._ledger.pools.get(ref, PoolDelta())))
            if units > free:
                short = PoolExhausted(pool=ref.pool_id, asked=units, available=max(free, 0))
                return Again(refusal=short, rounds_max=RELIEF_ROUNDS_MAX, relief=ref)
        total = _total(ask)
        have = self._totals[total] + self._ledger.totals.get(total, 0)
        limit = self._events[ask.event_id].per_buyer_max
        if limit is not None and have + ask.units > limit:
            over = LimitExceeded(limit=limit, have=have, asked=ask.units)
            return Again(refusal=over, rounds_max=RELIEF_ROUNDS_MAX, relief=total)
        return None

    def _booking(self, ask: Hold, *, policy: Policy) -> Booking:
        event = self._events[ask.event_id]
        lines = Lines(
            seats=tuple(SeatLine(id=ref.seat_id, price=self._seen[ref].price) for ref in sorted(_seats(ask))),
            pools=tuple(
                PoolLine(id=ref.pool_id, units=units, price=self._pools[ref].price)
                for ref, units in sorted(_pools(ask).items())
            ),
        )
        ttl = ttl_seconds(policy, asked=ask.ttl_seconds, of_event=event.hold_ttl_seconds)
        return Booking(
            id=ask.booking_id,
            event_id=ask.event_id,
            buyer=ask.buyer,
            live=event.live,
            state=State.HELD,
            lines=lines,
            total=lines.total,
            currency=event.currency,
            created_at=self._desk.now,
            expires_at=self._desk.now + timedelta(seconds=ttl),
        )


def _taken(
    ask: Hold, seats: Sequence[SeatSeen], *, given: Mapping[SeatRef, Booking] = MappingProxyType({})
) -> SeatsTaken:
    """Which seats, and which of them are the asker's own already."""
    yours: dict[str, str] = {seat.ref.seat_id: str(seat.pointer) for seat in seats if seat.owner_buyer == ask.buyer}
    yours |= {ref.seat_id: str(owner.id) for ref, owner in given.items() if owner.buyer == ask.buyer}
    names = {seat.ref.seat_id for seat in seats} | {ref.seat_id for ref in given}
    return SeatsTaken(seats=sorted(names), yours=yours or None)


def _seats(ask: Hold) -> list[SeatRef]:
    return [SeatRef(ask.event_id, seat_id) for seat_id in ask.seats]


def _pools(ask: Hold) -> dict[PoolRef, int]:
    return {PoolRef(ask.event_id, pool_id): units for pool_id, units in ask.pools.items()}


def _total(ask: Hold) -> TotalRef:
    return TotalRef(ask.event_id, ask.buyer)
