"""Whose a seat is, and why, in words. Pure: rows in, lines out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from earmark.cli.explain import booking as story
from earmark.cli.explain.booking import Story, moment
from earmark.domain.booking import Booking
from earmark.domain.state_machine import State
from earmark.engine.ports.store import SeatOnMap

if TYPE_CHECKING:
    from collections.abc import Iterator


class SeatStory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a seat, in one place."""

    now: datetime
    seat: SeatOnMap
    owner: Story | None
    """The booking that it points to, which may have ended."""
    had: list[Booking]
    """All bookings that list it, oldest first."""
    fence_known: bool = True
    """Whether the seat's fence is: it tells a seat that no booking ever had from one that was given back alone."""


def lines(told: SeatStory) -> Iterator[str]:
    """As a person would tell it: whose it is and why, who had it before, and the whole story of its booking."""
    seat = told.seat.seat
    yield f"{seat.id} of {seat.event_id} is {_whose(told)}"
    before = [booking for booking in told.had if told.owner is None or booking.id != told.owner.booking.id]
    if before:
        yield ""
        yield "Before that:" if told.owner else "It was had by:"
    for booking in before:
        until = moment(booking.ended_at) if booking.ended_at else "now"
        yield f"  {moment(booking.created_at)} to {until}  {booking.id}, for {booking.buyer}: {booking.state.value}"
    if told.owner:
        yield ""
        yield from story.lines(told.owner)


def _whose(told: SeatStory) -> str:
    booking = told.owner.booking if told.owner else None
    if booking is not None and booking.is_active and not booking.is_due(told.now):
        return _taken(booking)
    if told.seat.seat.blocked:
        return "blocked: the shop has taken it off sale."
    if booking is None:
        if not told.fence_known and not told.had:
            return "free: no booking lists it."
        never = told.seat.fence == 0 and not told.had
        return "free: nobody has had it yet." if never else "free: the booking that had it gave it back."
    if booking.is_due(told.now):
        return f"free: the hold of {booking.buyer} ran out at {moment(booking.expires_at)}, and the next may have it."
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
