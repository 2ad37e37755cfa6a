"""Whether a buyer may cancel a sale without the shop, and until when, by the rules of its event.

    until = starts_at - buyer_cancel_until_seconds        a buyer may cancel while now < until

What goes back then follows from the event's refund rules, which are about money and have a window of their own.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from earmark.domain.booking_state_machine import State
from earmark.errors import CancelRefused

if TYPE_CHECKING:
    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking


class WhyNot(StrEnum):
    """Why a buyer may not cancel a sale."""

    NOT_OFFERED = "not_offered"
    """The event lets no buyer cancel: it has no `buyer_cancel_until_seconds`."""
    NO_START = "no_start"
    """The event has no `starts_at` that a limit could be counted from."""
    PAID_ELSEWHERE = "paid_elsewhere"
    """The shop took the money itself, so the shop gives it back."""
    CHECKED_IN = "checked_in"
    """A ticket of the booking was let in at the door."""
    TOO_LATE = "too_late"
    """The limit has passed, or the event has begun."""


def buyer_may_cancel(booking: Booking, event: Event, *, paid_here: bool, checked_in: bool, now: datetime) -> None:
    """Refuse the cancel of a sale by its buyer unless the event's rules allow it at this moment."""
    why = why_not(booking, event, paid_here=paid_here, checked_in=checked_in, now=now)
    if why is not None:
        raise CancelRefused(why=why.value, until=limit(event))


def cancellable_until(
    booking: Booking, event: Event, *, paid_here: bool, checked_in: bool, now: datetime
) -> datetime | None:
    """Until when the buyer may still cancel; None where the booking is no sale, or the buyer may not."""
    if booking.state is not State.CONFIRMED:
        return None
    if why_not(booking, event, paid_here=paid_here, checked_in=checked_in, now=now) is not None:
        return None
    return limit(event)


def why_not(booking: Booking, event: Event, *, paid_here: bool, checked_in: bool, now: datetime) -> WhyNot | None:
    """The first rule that keeps the buyer from cancelling; None where none does.

    `paid_here` says whether the booking's payment is one that Earmark made. A sale without a payment cost nothing.
    """
    if event.buyer_cancel_until_seconds is None:
        return WhyNot.NOT_OFFERED
    until = limit(event)
    if until is None:
        return WhyNot.NO_START
    if booking.payment_id is not None and not paid_here:
        return WhyNot.PAID_ELSEWHERE
    if checked_in:
        return WhyNot.CHECKED_IN
    return WhyNot.TOO_LATE if now >= until else None


def limit(event: Event) -> datetime | None:
    """When buyers may cancel no longer; None where the event names no such moment."""
    if event.buyer_cancel_until_seconds is None or event.starts_at is None:
        return None
    return event.starts_at - timedelta(seconds=event.buyer_cancel_until_seconds)
