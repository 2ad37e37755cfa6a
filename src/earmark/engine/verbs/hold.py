"""hold: seats and pool units for a few minutes, all or nothing.

The steps, in the one order of locks (see `ports`):

    keys → read events, seats and owners in one snapshot → refuse what is taken
         → lock the lapsed owners, and decide about them anew by the locked rows
         → lock totals, pools, and the seats if they are still as they were seen
         → decide in arrival order → write: lapsed holds end first, then seats change hands

Whatever moved between the read and the lock is decided again in a new transaction, never in place: locking a
booking after a seat would break the order of locks, and two such transactions could deadlock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from earmark.domain.bookable_event import check_on_sale, per_buyer_max, ttl_seconds
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine, new_hold
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId
from earmark.domain.pool import PoolDelta
from earmark.domain.seat import SeatAvailability, SeatSeen, availability
from earmark.engine.batch_transaction import BatchDecisions
from earmark.engine.commands_and_results import TryAgain
from earmark.engine.ports.store import RowsNeeded
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
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.id_types import Buyer, PoolRef, SeatRef, TotalRef
    from earmark.domain.pool import Pool
    from earmark.engine.commands_and_results import Hold, Outcome
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Transaction

MOVED_ROUNDS_MAX = 3
MAKE_ROOM_ROUNDS_MAX = 20
"""How often lapsed holds are ended for one request: each time others may have been quicker to take what they freed."""


async def hold(transaction: Transaction, batch: Sequence[Hold], context: VerbContext) -> list[Outcome]:
    """Recorded response? → read → lock → decide → write."""
    policy = context.policy
    events_wanted = {command.event_id for command in batch}
    seats_wanted = {ref for command in batch for ref in command.seat_refs}
    needed = RowsNeeded(
        requests=len(batch), events=events_wanted, seats=seats_wanted, per_buyer_max=policy.per_buyer_max
    )
    decisions = await BatchDecisions.open(transaction, batch, ids=context.ids, needed=needed)
    waiting = decisions.waiting
    events = await transaction.read_events({command.event_id for command in waiting})
    seen = await transaction.read_seats({ref for command in waiting for ref in command.seat_refs})
    now, terms = decisions.now, dict[BookingId, _HoldTerms]()
    for command in waiting:
        try:
            event = events.get(command.event_id)
            terms[command.booking_id] = _screen(command, event=event, seen=seen, policy=policy, now=now)
        except Refusal as refusal:
            decisions.refuse(command, refusal)
    waiting = decisions.waiting
    if not waiting:
        return await decisions.close()

    wanted = {ref: seen[ref] for command in waiting for ref in command.seat_refs}
    alive = await _end_lapsed(decisions, wanted.values())
    totals = await transaction.lock_totals({*decisions.writes.totals, *(command.total_ref for command in waiting)})
    pools_wanted = {
        *decisions.writes.pools,
        *(ref for command in waiting if command.pools for ref in command.pool_refs),
    }
    pools = await transaction.lock_pools(pools_wanted) if pools_wanted else {}
    unmoved = await transaction.lock_seats([seat for seat in wanted.values() if seat.pointer not in alive])

    granting = _Granting(decisions=decisions, seen=seen, alive=alive, unmoved=unmoved, totals=totals, pools=pools)
    for command in waiting:
        granting.decide(command, terms[command.booking_id])
    return await decisions.close()


class _HoldTerms(NamedTuple):
    """On which terms a hold would be granted."""

    event: Event
    seconds: int
    per_buyer_max: int | None


def _screen(
    command: Hold, *, event: Event | None, seen: Mapping[SeatRef, SeatSeen], policy: Policy, now: datetime
) -> _HoldTerms:
    """Refuse without a lock what the snapshot shows to be hopeless; else the terms of the hold."""
    if event is None or event.mode != command.actor.mode:
        raise EventUnknown(event_id=command.event_id)
    check_on_sale(event, now=now)
    seconds = ttl_seconds(policy, asked=command.ttl_seconds, of_event=event.hold_ttl_seconds)
    limit = per_buyer_max(policy, of_event=event.per_buyer_max)
    if unknown := [ref.seat_id for ref in command.seat_refs if ref not in seen]:
        raise SeatUnknown(seats=unknown)
    said = [availability(seen[ref], now=now) for ref in command.seat_refs]
    if SeatAvailability.BLOCKED in said:
        blocked = [
            ref.seat_id for ref, one in zip(command.seat_refs, said, strict=True) if one is SeatAvailability.BLOCKED
        ]
        raise SeatsTaken(seats=blocked, why="blocked")
    if SeatAvailability.TAKEN in said:
        taken = [seen[ref] for ref, one in zip(command.seat_refs, said, strict=True) if one is SeatAvailability.TAKEN]
        raise seats_taken(command.buyer, taken, now=now)
    return _HoldTerms(event, seconds, limit)


async def _end_lapsed(decisions: BatchDecisions[Hold], wanted: Collection[SeatSeen]) -> set[BookingId]:
    """End the holds on these seats whose time is over, as the locked rows show; the owners that live after all."""
    lapsed = {
        seat.pointer
        for seat in wanted
        if seat.pointer and availability(seat, now=decisions.now) is SeatAvailability.LAPSED
    }
    owners = await decisions.transaction.lock_bookings(lapsed) if lapsed else {}
    for owner in owners.values():
        if owner.is_due(decisions.now):
            decisions.writes.expire(owner, reason="taken over")
    return {owner.id for owner in owners.values() if owner.is_active and not owner.is_due(decisions.now)}


@dataclass(slots=True, kw_only=True)
class _Granting:
    """Grants or refuses the holds of a batch, in arrival order, on rows that are locked by now."""

    decisions: BatchDecisions[Hold]
    seen: Mapping[SeatRef, SeatSeen]
    alive: set[BookingId]
    unmoved: frozenset[SeatRef]
    totals: Mapping[TotalRef, int]
    pools: Mapping[PoolRef, Pool]

    def decide(self, command: Hold, terms: _HoldTerms) -> None:
        """Grant the hold, refuse it, or leave it to the next batch."""
        try:
            if again := self._judge(command, limit=terms.per_buyer_max):
                self.decisions.again(command, again)
                return
        except Refusal as refusal:
            self.decisions.refuse(command, refusal)
            return
        booking = self._booking(command, terms)
        record = self.decisions.record_response(command, booking)
        self.decisions.writes.open(booking, command=command, record=record)
        self.decisions.complete(command, booking, record=record)

    def _judge(self, command: Hold, *, limit: int | None) -> TryAgain | None:
        """Refuse at once where nothing is held that could lapse; else let lapsed holds be ended first."""
        self._check_seats(command)
        if moved := [ref.seat_id for ref in command.seat_refs if ref not in self.unmoved]:
            return TryAgain(refusal=SeatsTaken(seats=moved, transient=True), rounds_max=MOVED_ROUNDS_MAX)
        for ref, units in command.pool_refs.items() if command.pools else ():
            free = self._free(ref)
            if units > free:
                short = PoolExhausted(pool=ref.pool_id, asked=units, available=max(free, 0))
                if not self.pools[ref].held:
                    raise short
                return TryAgain(refusal=short, rounds_max=MAKE_ROOM_ROUNDS_MAX, full=ref, short=units - free)
        if limit is None:
            return None
        total = command.total_ref
        have = self.totals[total] + self.decisions.writes.totals.get(total, 0)
        if have + command.units > limit:
            over = LimitExceeded(limit=limit, have=have, asked=command.units)
            if not self.totals[total]:
                raise over
            short_by = have + command.units - limit
            return TryAgain(refusal=over, rounds_max=MAKE_ROOM_ROUNDS_MAX, full=total, short=short_by)
        return None

    def _check_seats(self, command: Hold) -> None:
        """Refuse seats of a live owner, and seats given to an earlier request of this batch."""
        if command.pools and (unknown := [ref.pool_id for ref in command.pool_refs if ref not in self.pools]):
            raise PoolUnknown(pools=unknown)
        refs = command.seat_refs
        given = {ref: owner for ref in refs if (owner := self.decisions.writes.owner(ref))}
        kept = [self.seen[ref] for ref in refs if self.seen[ref].pointer in self.alive] if self.alive else []
        if kept or given:
            raise seats_taken(command.buyer, kept, given=given, now=self.decisions.now)

    def _free(self, ref: PoolRef) -> int:
        """What this transaction has left of a pool."""
        delta = self.decisions.writes.pools.get(ref, PoolDelta())
        return self.pools[ref].free - delta.held - delta.sold

    def _booking(self, command: Hold, terms: _HoldTerms) -> Booking:
        seen = self.seen
        lines = Lines(
            seats=tuple([seat_line(seen[ref]) for ref in command.seat_refs]),
            pools=tuple(
                PoolLine(id=ref.pool_id, units=units, price=self.pools[ref].price)
                for ref, units in command.pool_refs.items()
            )
            if command.pools
            else (),
        )
        return new_hold(
            terms.event,
            lines,
            booking_id=command.booking_id,
            buyer=command.buyer,
            seconds=terms.seconds,
            now=self.decisions.now,
        )


def seat_line(seat: SeatSeen) -> SeatLine:
    """With its names, which were read with the seat."""
    return SeatLine(
        id=seat.ref.seat_id,
        price=seat.price,
        section=seat.section,
        row=seat.row,
        number=seat.number,
        category=seat.category,
    )


def seats_taken(
    buyer: Buyer, seats: Sequence[SeatSeen], *, now: datetime, given: Mapping[SeatRef, Booking] = MappingProxyType({})
) -> SeatsTaken:
    """Which seats, whose they are, which of them are this buyer's own already, and when a hold on them ends."""
    owners: dict[str, Buyer | None] = {}
    lapses: dict[str, float] = {}
    yours: dict[str, str] = {}
    for seat in seats:
        name = seat.ref.seat_id
        owners[name] = seat.owner_buyer
        ends = seat.owner_expires_at if seat.owner_state is State.HELD else None
        lapses[name] = (ends - now).total_seconds() if ends else math.inf
        if seat.owner_buyer == buyer:
            yours[name] = str(seat.pointer)
    for ref, owner in given.items():
        name = ref.seat_id
        owners[name] = owner.buyer
        lapses[name] = (owner.expires_at - now).total_seconds()
        if owner.buyer == buyer:
            yours[name] = str(owner.id)
    return SeatsTaken(seats=sorted(owners), yours=yours or None, lapses=lapses, owners=owners)
