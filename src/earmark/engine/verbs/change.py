"""change: a hold gets other seats and units in one transaction. What stays is kept, what is new must be free.

    keys → read bookings, events, seats and owners without a lock → refuse what is taken
         → lock the bookings together with the lapsed owners of the seats that are to be added
         → lock totals, pools, then all seats that change hands in one step, if they are still as they were seen
         → decide in arrival order → write: lapsed holds end, lines change, then seats

The beginning and the end of the hold stay. What it keeps has the price it was held for, and a refused change changes
nothing. A seat that moved between the read and the lock is decided again in a new transaction, as for a hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.domain import booking as booking_rules
from earmark.domain.bookable_event import check_on_sale, per_buyer_max
from earmark.domain.booking import Lines, PoolLine
from earmark.domain.booking_state_machine import Verb
from earmark.domain.id_types import PoolRef, SeatId, SeatRef
from earmark.domain.pool import PoolDelta
from earmark.domain.seat import SeatAvailability, availability
from earmark.engine.batch_transaction import REPEAT_ROUNDS_MAX, find, open_on_bookings
from earmark.engine.commands_and_results import TryAgain
from earmark.engine.verbs.hold import MAKE_ROOM_ROUNDS_MAX, MOVED_ROUNDS_MAX, seat_line, seats_taken
from earmark.errors import (
    BookingUnknown,
    LimitExceeded,
    PoolExhausted,
    PoolUnknown,
    PriceChanged,
    Refusal,
    SeatsTaken,
    SeatUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.id_types import BookingId, EventId, TotalRef
    from earmark.domain.pool import Pool
    from earmark.domain.seat import SeatSeen
    from earmark.engine.batch_transaction import BatchDecisions
    from earmark.engine.commands_and_results import Change, Outcome
    from earmark.engine.limits_and_ids_for_verbs import VerbContext
    from earmark.engine.ports.store import Transaction


async def change(transaction: Transaction, batch: Sequence[Change], context: VerbContext) -> list[Outcome]:
    """Recorded response? → read → lock → decide → write."""
    decisions = await open_on_bookings(transaction, batch, ids=context.ids)
    read = await _Read.rows(decisions)
    for command in decisions.waiting:
        try:
            read.screen(command, now=decisions.now)
        except Refusal as refusal:
            decisions.refuse(command, refusal)
    read.leave_rivals_to_the_next_batch(decisions)
    if not decisions.waiting:
        return await decisions.close()
    alive, moves = await _lock_bookings(decisions, read)
    totals = await transaction.lock_totals({*decisions.writes.totals, *(move.before.total_ref for move in moves)})
    pools = await transaction.lock_pools({*decisions.writes.pools, *(ref for move in moves for ref in move.pools)})
    changing = [read.seats[ref] for move in moves for ref in (*move.added, *move.dropped)]
    unmoved = await transaction.lock_seats([seat for seat in changing if seat.pointer not in alive])
    deciding = _Deciding(
        decisions, read, policy=context.policy, alive=alive, unmoved=unmoved, totals=totals, pools=pools
    )
    for move in moves:
        deciding.decide(move)
    return await decisions.close()


@dataclass(slots=True, frozen=True)
class _Read:
    """What was read without a lock: bookings for the event, the buyer and the mode, which never change; and seats."""

    bookings: Mapping[BookingId, Booking]
    events: Mapping[EventId, Event]
    seats: Mapping[SeatRef, SeatSeen]

    @classmethod
    async def rows(cls, decisions: BatchDecisions[Change]) -> _Read:
        transaction, waiting = decisions.transaction, decisions.waiting
        bookings = await transaction.read_bookings({command.booking_id for command in waiting}) if waiting else {}
        for command in waiting:
            if booking := bookings.get(command.booking_id):
                command.learn_event(booking.event_id)
        events = await transaction.read_events({booking.event_id for booking in bookings.values()})
        wanted = {
            SeatRef(booking.event_id, seat)
            for command in waiting
            if (booking := bookings.get(command.booking_id))
            for seat in (*command.add_seats, *command.drop_seats)
        }
        return cls(bookings, events, await transaction.read_seats(wanted))

    def screen(self, command: Change, *, now: datetime) -> None:
        """Refuse without a lock what these rows show to be hopeless."""
        booking = self.bookings.get(command.booking_id)
        if booking is None or not command.actor.may_see(booking):
            raise BookingUnknown(booking_id=str(command.booking_id))
        add = [SeatRef(booking.event_id, seat) for seat in command.add_seats]
        if unknown := [ref.seat_id for ref in add if ref not in self.seats]:
            raise SeatUnknown(seats=unknown)
        others = [self.seats[ref] for ref in add if self.seats[ref].pointer != booking.id]
        if blocked := [seat.ref.seat_id for seat in others if seat.blocked]:
            raise SeatsTaken(seats=blocked, why="blocked")
        if taken := [seat for seat in others if availability(seat, now=now) is SeatAvailability.TAKEN]:
            raise seats_taken(booking.buyer, taken, now=now)

    def _own(self, booking: Booking, seats: Sequence[str]) -> set[SeatRef]:
        """Those of these seats that point to the booking: naming the seats of others holds nothing up."""
        refs = {SeatRef(booking.event_id, SeatId(seat)) for seat in seats}
        return {ref for ref in refs if ref in self.seats and self.seats[ref].pointer == booking.id}

    def leave_rivals_to_the_next_batch(self, decisions: BatchDecisions[Change]) -> None:
        """Of those that name one booking or one seat the first is decided; the others afterwards, on what it leaves."""
        named: set[object] = set()
        for command in decisions.waiting:
            booking = self.bookings[command.booking_id]
            seats = {SeatRef(booking.event_id, seat) for seat in command.add_seats}
            seats |= self._own(booking, command.drop_seats)
            if not named.isdisjoint({booking.id, *seats}):
                busy = SeatsTaken(seats=sorted(ref.seat_id for ref in seats), transient=True)
                decisions.again(command, TryAgain(refusal=busy, rounds_max=REPEAT_ROUNDS_MAX))
            named |= {booking.id, *seats}


@dataclass(slots=True, frozen=True)
class _Move:
    """One command on its locked booking: what is really new, and what really goes."""

    command: Change
    before: Booking
    added: tuple[SeatRef, ...]
    dropped: tuple[SeatRef, ...]
    pools: Mapping[PoolRef, int]
    """The units that it shall have, of the pools where that is another number than it has."""


async def _lock_bookings(decisions: BatchDecisions[Change], read: _Read) -> tuple[set[BookingId], list[_Move]]:
    """Lock the bookings and the lapsed owners in one step; end what is due; the owners that live after all.

    In two steps, two changes of which each adds a lapsed seat of the other's booking would wait for each other.
    """
    waiting, now = decisions.waiting, decisions.now
    own = {command.booking_id for command in waiting}
    add = {
        read.seats[SeatRef(read.bookings[command.booking_id].event_id, seat)]
        for command in waiting
        for seat in command.add_seats
        if read.seats[SeatRef(read.bookings[command.booking_id].event_id, seat)].pointer != command.booking_id
    }
    lapsed = {seat.pointer for seat in add if seat.pointer and availability(seat, now=now) is SeatAvailability.LAPSED}
    locked = await decisions.transaction.lock_bookings(own | lapsed)
    owners = [locked[booking_id] for booking_id in lapsed if booking_id in locked]
    for owner in owners:
        if owner.is_due(now):
            decisions.writes.expire(owner, reason="taken over")
    moves = []
    for command in waiting:
        try:
            moves.append(_move(command, find(decisions, command, locked, verb=Verb.CHANGE), now=now))
        except Refusal as refusal:
            decisions.refuse(command, refusal)
    return {owner.id for owner in owners if owner.is_active and not owner.is_due(now)}, moves


def _move(command: Change, before: Booking, *, now: datetime) -> _Move:
    if refused := booking_rules.refusal(before, Verb.CHANGE, now=now):
        raise refused
    event_id, has = before.event_id, {line.id for line in before.lines.seats}
    units = {line.id: line.units for line in before.lines.pools}
    return _Move(
        command,
        before,
        added=tuple(SeatRef(event_id, seat) for seat in command.add_seats if seat not in has),
        dropped=tuple(SeatRef(event_id, seat) for seat in command.drop_seats if seat in has),
        pools={PoolRef(event_id, pool): n for pool, n in command.pools.items() if n != units.get(pool, 0)},
    )


class _Deciding:
    """Makes or refuses the changes of a batch, in arrival order, on rows that are locked by now."""

    def __init__(
        self,
        decisions: BatchDecisions[Change],
        read: _Read,
        *,
        policy: Policy,
        alive: set[BookingId],
        unmoved: frozenset[SeatRef],
        totals: Mapping[TotalRef, int],
        pools: Mapping[PoolRef, Pool],
    ) -> None:
        self._decisions = decisions
        self._read = read
        self._policy = policy
        self._alive = alive
        self._unmoved = unmoved
        self._totals = totals
        self._pools = pools

    def decide(self, move: _Move) -> None:
        """Make the change, refuse it, or leave it to the next batch."""
        command, before, decisions = move.command, move.before, self._decisions
        try:
            if again := self._moved_seats(move):
                decisions.again(command, again)
                return
            after = booking_rules.change(before, lines=self._lines(move), now=decisions.now)
            if again := self._check_room(move, after):
                decisions.again(command, again)
                return
        except Refusal as refusal:
            decisions.refuse(command, refusal)
            return
        record = decisions.record_response(command, after)
        if after is before:
            decisions.writes.record_repeat(Verb.CHANGE, after, command=command, record=record)
        else:
            decisions.writes.move(Verb.CHANGE, before, after, command=command, record=record)
        decisions.complete(command, after, record=record, wrote=after is not before or record is not None)

    def _moved_seats(self, move: _Move) -> TryAgain | None:
        """Refuse seats of an active owner; decide again where a seat is not as it was read."""
        added = [self._read.seats[ref] for ref in move.added]
        if kept := [seat for seat in added if seat.pointer in self._alive]:
            raise seats_taken(move.before.buyer, kept, now=self._decisions.now)
        if moved := [ref.seat_id for ref in (*move.added, *move.dropped) if ref not in self._unmoved]:
            return TryAgain(refusal=SeatsTaken(seats=moved, transient=True), rounds_max=MOVED_ROUNDS_MAX)
        return None

    def _lines(self, move: _Move) -> Lines:
        """What the booking has after the change, each line at its price."""
        had, gone = move.before.lines, {ref.seat_id for ref in move.dropped}
        if unknown := [ref.pool_id for ref in move.pools if ref not in self._pools]:
            raise PoolUnknown(pools=unknown)
        seats = [line for line in had.seats if line.id not in gone]
        seats += [seat_line(self._read.seats[ref]) for ref in move.added]
        named = {ref.pool_id for ref in move.pools}
        pools = [line for line in had.pools if line.id not in named]
        held_for = {line.id: line for line in had.pools}
        for ref, units in move.pools.items():
            if units:
                pools.append(_pool_line(self._pools[ref], units, held=held_for.get(ref.pool_id)))
        return Lines(
            seats=tuple(sorted(seats, key=lambda line: line.id)), pools=tuple(sorted(pools, key=lambda line: line.id))
        )

    def _check_room(self, move: _Move, after: Booking) -> TryAgain | None:
        """Refuse what the event, a pool or the buyer's limit has no room for; giving back is always allowed."""
        before, writes = move.before, self._decisions.writes
        event = self._read.events[before.event_id]
        had = {line.id: line.units for line in before.lines.pools}
        more = {ref: gain for ref, units in move.pools.items() if (gain := units - had.get(ref.pool_id, 0)) > 0}
        if move.added or more:
            check_on_sale(event, now=self._decisions.now)
        for ref, gain in more.items():
            pool, delta = self._pools[ref], writes.pools.get(ref, PoolDelta())
            free = pool.free - delta.held - delta.sold
            if gain > free:
                short = PoolExhausted(pool=ref.pool_id, asked=gain, available=max(free, 0))
                return _room_wanted(short, full=ref, short=gain - free, may_lapse=pool.held > 0)
        limit = per_buyer_max(self._policy, of_event=event.per_buyer_max)
        gained = after.lines.units - before.lines.units
        have = self._totals[before.total_ref] + writes.totals.get(before.total_ref, 0)
        if limit is None or gained <= 0 or have + gained <= limit:
            return None
        over = LimitExceeded(limit=limit, have=have, asked=gained)
        return _room_wanted(
            over, full=before.total_ref, short=have + gained - limit, may_lapse=have > before.lines.units
        )


def _pool_line(pool: Pool, units: int, *, held: PoolLine | None) -> PoolLine:
    """At the price it is held for; more units of a pool that has another price by now are refused."""
    if held is not None and units > held.units and pool.price != held.price:
        raise PriceChanged(pool=pool.id, held_for=held.price, price=pool.price)
    return PoolLine(id=pool.id, units=units, price=held.price if held else pool.price)


def _room_wanted(
    refusal: PoolExhausted | LimitExceeded, *, full: PoolRef | TotalRef, short: int, may_lapse: bool
) -> TryAgain:
    """Refuse at once where nothing else is held that could lapse; else let lapsed holds be ended first."""
    if not may_lapse:
        raise refusal
    return TryAgain(refusal=refusal, rounds_max=MAKE_ROOM_ROUNDS_MAX, full=full, short=short)
