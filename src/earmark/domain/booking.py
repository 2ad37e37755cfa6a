"""A booking: one buyer's claim on seats and pool units of one event, from first hold to last refund.

Every function here takes a booking and the facts and returns the booking as it then is, or raises the
refusal that the rules give. None of them changes anything.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain import booking_state_machine
from earmark.domain.booking_state_machine import ACTIVE_STATES, State, Verb
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, PoolRef, SeatId, SeatRef, TotalRef
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import PoolDelta
from earmark.errors import BookingExpired, BookingResolved, ExtensionRefused, InvalidRequest, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from earmark.domain.bookable_event import Event
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.payment import Payment

GAIN_SECONDS_MIN = 1
LINES_MAX = 100
"""How many seats and pools one booking may have."""
VERSIONS_OF_A_HOLD_MAX = 300
"""A hold of so many versions is changed no more: each adds an entry to its journal, which is read as a whole."""


class SeatLine(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One seat in a booking, at the price it was held for, with the names that the event's plan gives it.

    A seat's names never change, so a booking keeps them: reading one needs no plan. Bookings of older releases, and
    seats that have only an id, are kept without.
    """

    id: SeatId
    price: int
    section: str | None = None
    row: str | None = None
    number: int | None = None
    category: str | None = None


class PoolLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Units of one pool in a booking, at the price each was held for."""

    id: PoolId
    units: int
    price: int


class Lines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a booking claims. Sorted by id, so that equal claims look equal."""

    seats: tuple[SeatLine, ...] = ()
    pools: tuple[PoolLine, ...] = ()

    @property
    def units(self) -> int:
        """How much this counts towards the buyer's limit."""
        return len(self.seats) + (sum(line.units for line in self.pools) if self.pools else 0)

    @property
    def total(self) -> int:
        """What it costs, in minor units."""
        return sum(line.price for line in self.seats) + sum(line.price * line.units for line in self.pools)


class Booking(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row that decides: a seat or a unit is taken because an active booking says so."""

    id: BookingId
    event_id: EventId
    buyer: Buyer
    mode: Mode
    state: State
    lines: Lines
    total: int
    currency: str
    created_at: datetime
    expires_at: datetime
    paying_until: datetime | None = None
    confirmed_at: datetime | None = None
    ended_at: datetime | None = None
    payment_id: str | None = None
    payment_method: str | None = None
    version: int = 1

    @property
    def is_active(self) -> bool:
        """Held, paying or confirmed. A held one may still be past its time: ask `is_due`."""
        return self.state in ACTIVE_STATES

    def is_due(self, now: datetime) -> bool:
        """Held, and its time is over. A hold lives while `now < expires_at`."""
        return self.state is State.HELD and now >= self.expires_at

    @property
    def seat_refs(self) -> tuple[SeatRef, ...]:
        """The seats it claims."""
        return tuple([SeatRef(self.event_id, line.id) for line in self.lines.seats])

    @property
    def total_ref(self) -> TotalRef:
        """The buyer's total that it counts towards."""
        return TotalRef(self.event_id, self.buyer)

    def pool_deltas(self, *, held: int = 0, sold: int = 0) -> dict[PoolRef, PoolDelta]:
        """Its units of each pool, times the given signs."""
        return {
            PoolRef(self.event_id, line.id): PoolDelta(held=held * line.units, sold=sold * line.units)
            for line in self.lines.pools
        }


def new_hold(
    event: Event, lines: Lines, *, booking_id: BookingId, buyer: Buyer, seconds: int, now: datetime
) -> Booking:
    """A hold on these lines, for so long."""
    return Booking(
        id=booking_id,
        event_id=event.id,
        buyer=buyer,
        mode=event.mode,
        state=State.HELD,
        lines=lines,
        total=lines.total,
        currency=event.currency,
        created_at=now,
        expires_at=now + timedelta(seconds=seconds),
    )


def change(booking: Booking, *, lines: Lines, now: datetime) -> Booking:
    """A hold with other lines. Its beginning and its end stay; the same lines again are the same booking."""
    _check(booking, Verb.CHANGE, now=now)
    if lines == booking.lines:
        return booking
    if not lines.units:
        raise InvalidRequest.at("drop_seats", "would leave nothing: release the booking instead")
    if booking.version >= VERSIONS_OF_A_HOLD_MAX:
        raise InvalidRequest.at("add_seats", "this hold was changed too often: pay for it, or release it and hold anew")
    if len(lines.seats) + len(lines.pools) > LINES_MAX:
        raise InvalidRequest.at("add_seats", f"a booking has at most {LINES_MAX} seats and pools")
    return msgspec.structs.replace(_moved(booking, Verb.CHANGE, State.HELD), lines=lines, total=lines.total)


def extend(booking: Booking, *, seconds: int, policy: Policy, now: datetime) -> Booking:
    """More time, up to the longest life; a gain under a second is refused."""
    _check(booking, Verb.EXTEND, now=now)
    if seconds < GAIN_SECONDS_MIN:
        raise InvalidRequest.at("seconds", "must be at least 1")
    until = extended_until(policy, created_at=booking.created_at, expires_at=booking.expires_at, seconds=seconds)
    if until - booking.expires_at < timedelta(seconds=GAIN_SECONDS_MIN):
        raise ExtensionRefused(expires_at=booking.expires_at)
    return msgspec.structs.replace(booking, expires_at=until, version=booking.version + 1)


def extended_until(policy: Policy, *, created_at: datetime, expires_at: datetime, seconds: int) -> datetime:
    """When the hold would end if extended: later, never sooner, and never past its longest life."""
    cap = created_at + timedelta(seconds=policy.life_seconds_max)
    return max(expires_at, min(expires_at + timedelta(seconds=seconds), cap))


def confirm(booking: Booking, *, payment_id: str, payment_method: str | None, now: datetime) -> Booking:
    """The money was taken elsewhere: the hold becomes a sale. The same confirm again is the same answer."""
    if booking.state is State.CONFIRMED:
        if booking.payment_id == payment_id:
            return booking
        raise BookingResolved(state=booking.state.value)
    _check(booking, Verb.CONFIRM, now=now)
    moved = _moved(booking, Verb.CONFIRM, State.CONFIRMED)
    return msgspec.structs.replace(moved, confirmed_at=now, payment_id=payment_id, payment_method=payment_method)


def release(booking: Booking, *, now: datetime) -> Booking:
    """The buyer lets go. Letting go of what was let go is the same answer."""
    if booking.state is State.RELEASED:
        return booking
    _check(booking, Verb.RELEASE, now=now)
    return msgspec.structs.replace(_moved(booking, Verb.RELEASE, State.RELEASED), ended_at=now)


def expire(booking: Booking, *, now: datetime) -> Booking:
    """The clock lets go. Only ever called on a due hold."""
    assert booking.is_due(now), f"{booking.id} is {booking.state} until {booking.expires_at}, and it is {now}"
    return msgspec.structs.replace(_moved(booking, Verb.EXPIRE, State.EXPIRED), ended_at=now)


def begin_paying(booking: Booking, *, payment_id: str, method: str, until: datetime, now: datetime) -> Booking:
    """A payment is under way: it pins the hold, whatever the clock says."""
    _check(booking, Verb.PAY, now=now)
    moved = _moved(booking, Verb.PAY, State.PAYING)
    return msgspec.structs.replace(moved, payment_id=payment_id, payment_method=method, paying_until=until)


def pay_nothing(booking: Booking, *, now: datetime) -> Booking:
    """Nothing is to be paid, so paying is confirming."""
    assert booking.total == 0, f"{booking.id} costs {booking.total}"
    _check(booking, Verb.PAY, now=now)
    return msgspec.structs.replace(_moved(booking, Verb.PAY, State.CONFIRMED), confirmed_at=now)


def confirm_paid(booking: Booking, *, payment_id: str, method: str, now: datetime) -> Booking:
    """The money is there: a booking that waited for it, or that ran out and is still free, is sold."""
    moved = _moved(booking, Verb.CONFIRM, State.CONFIRMED)
    paid = {"payment_id": payment_id, "payment_method": method, "confirmed_at": now}
    return msgspec.structs.replace(moved, **paid, paying_until=None, ended_at=None)


def decline(booking: Booking, *, keep: bool, now: datetime) -> Booking:
    """The money did not come: the hold lives on if it may and has time left."""
    if not keep:
        return msgspec.structs.replace(_moved(booking, Verb.DECLINE, State.FAILED), paying_until=None, ended_at=now)
    if now >= booking.expires_at:
        return msgspec.structs.replace(_moved(booking, Verb.DECLINE, State.EXPIRED), paying_until=None, ended_at=now)
    held = _moved(booking, Verb.DECLINE, State.HELD)
    return msgspec.structs.replace(held, paying_until=None, payment_id=None, payment_method=None)


def expire_unpaid(booking: Booking, *, now: datetime) -> Booking:
    """A booking whose payment was given up, by time or by an operator."""
    return msgspec.structs.replace(_moved(booking, Verb.EXPIRE, State.EXPIRED), paying_until=None, ended_at=now)


def wants(booking: Booking, payment: Payment) -> bool:
    """Whether the booking waits for this very payment, or is sold for it."""
    return booking.state in {State.PAYING, State.CONFIRMED} and booking.payment_id == str(payment.id)


def noted(booking: Booking, *, paying_until: datetime | None = None) -> Booking:
    """The same booking, one version on: something about its money was recorded."""
    until = paying_until if paying_until is not None else booking.paying_until
    return msgspec.structs.replace(booking, version=booking.version + 1, paying_until=until)


def cancel(booking: Booking, *, now: datetime) -> Booking:
    """A sale undone, whole. Cancelling what was cancelled is the same answer."""
    if booking.state is State.CANCELLED:
        return booking
    _check(booking, Verb.CANCEL, now=now)
    return msgspec.structs.replace(_moved(booking, Verb.CANCEL, State.CANCELLED), ended_at=now)


def cancel_lines(
    booking: Booking, *, seats: Collection[SeatId], pools: Mapping[PoolId, int], now: datetime
) -> tuple[Booking, Lines]:
    """A sale undone in part: the booking with what stays sold, and the lines that go back."""
    _check(booking, Verb.CANCEL, now=now)
    gone = _gone(booking, seats=seats, pools=pools)
    taken_back = {line.id: line.units for line in gone.pools}
    stays = Lines(
        seats=tuple(line for line in booking.lines.seats if line.id not in seats),
        pools=tuple(
            PoolLine(id=line.id, units=left, price=line.price)
            for line in booking.lines.pools
            if (left := line.units - taken_back.get(line.id, 0)) > 0
        ),
    )
    if not stays.units:
        return cancel(booking, now=now), gone
    kept = _moved(booking, Verb.CANCEL, State.CONFIRMED)
    return msgspec.structs.replace(kept, lines=stays, total=stays.total), gone


def _gone(booking: Booking, *, seats: Collection[SeatId], pools: Mapping[PoolId, int]) -> Lines:
    has = {line.id for line in booking.lines.seats}
    if missing := sorted(set(seats) - has):
        raise InvalidRequest.at("seats", f"not in this booking: {', '.join(missing)}")
    sold = {line.id: line for line in booking.lines.pools}
    for pool_id, units in sorted(pools.items()):
        if pool_id not in sold or not 1 <= units <= sold[pool_id].units:
            raise InvalidRequest.at(f"pools.{pool_id}", "must be from 1 to the units in this booking")
    return Lines(
        seats=tuple(line for line in booking.lines.seats if line.id in seats),
        pools=tuple(
            PoolLine(id=pool_id, units=units, price=sold[pool_id].price) for pool_id, units in sorted(pools.items())
        ),
    )


def _check(booking: Booking, verb: Verb, *, now: datetime) -> None:
    """Refuse unless the verb may move this booking now."""
    if refused := refusal(booking, verb, now=now):
        raise refused


def refusal(booking: Booking, verb: Verb, *, now: datetime) -> Refusal | None:
    """The refusal that this verb meets on this booking now, if any; a due hold counts as expired."""
    if booking.state is State.EXPIRED or booking.is_due(now):
        return BookingExpired(expires_at=booking.expires_at)
    if booking_state_machine.may(booking.state, verb):
        return None
    return booking_state_machine.refusal(booking.state, verb)


def _moved(booking: Booking, verb: Verb, to: State) -> Booking:
    assert to in booking_state_machine.MOVES[booking.state, verb], f"{verb} does not lead from {booking.state} to {to}"
    return msgspec.structs.replace(booking, state=to, version=booking.version + 1)
