"""Explains in sentences which booking has a seat, and why. Pure: no I/O."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from earmark.cli.explain import booking as booking_text
from earmark.cli.explain.booking import BookingExplanation, moment
from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.engine.ports.store import SeatOnMap

if TYPE_CHECKING:
    from collections.abc import Iterator


class SeatExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A seat, the booking that it points to, and all bookings that list it."""

    now: datetime
    seat: SeatOnMap
    owner: BookingExplanation | None
    """The booking that it points to, which may have ended."""
    had: list[Booking]
    """All bookings that list it, oldest first."""
    fence_known: bool = True
    """Whether the fence is known. It is 0 only for a seat that no booking ever had."""


def lines(explained: SeatExplanation) -> Iterator[str]:
    """The seat's state and why, the bookings that had it before, and the explanation of its booking."""
    seat = explained.seat.seat
    yield f"{seat.id} of {seat.event_id} is {_whose(explained)}"
    before = [
        booking for booking in explained.had if explained.owner is None or booking.id != explained.owner.booking.id
    ]
    if before:
        yield ""
        yield "Bookings before that:" if explained.owner else "Bookings that had it:"
    for booking in before:
        until = moment(booking.ended_at) if booking.ended_at else "now"
        yield f"  {moment(booking.created_at)} to {until}  {booking.id}, for {booking.buyer}: {booking.state.value}"
    if explained.owner:
        yield ""
        yield from booking_text.lines(explained.owner)


def _whose(explained: SeatExplanation) -> str:
    booking = explained.owner.booking if explained.owner else None
    if booking is not None and booking.is_active and not booking.is_due(explained.now):
        return _taken(booking)
    if explained.seat.seat.blocked:
        return "blocked: the shop has taken it off sale."
    if booking is None:
        if not explained.fence_known and not explained.had:
            return "free: no booking lists it."
        never = explained.seat.fence == 0 and not explained.had
        return "free: no booking has had it yet." if never else "free: the booking that had it gave it back."
    if booking.is_due(explained.now):
        return f"free: the hold of {booking.buyer} ran out at {moment(booking.expires_at)}, and it can be held again."
    return f"free: the booking of {booking.buyer} was {booking.state.value} at {moment(booking.ended_at)}."


def _taken(booking: Booking) -> str:
    match booking.state:
        case State.CONFIRMED:
            return f"sold to {booking.buyer}, since {moment(booking.confirmed_at)}."
        case State.PAYING:
            until = moment(booking.paying_until)
            since = moment(booking.created_at)
            return f"held by {booking.buyer}, who is paying: since {since}, until {until} at the latest."
        case _:
            return f"held by {booking.buyer}, since {moment(booking.created_at)} until {moment(booking.expires_at)}."
