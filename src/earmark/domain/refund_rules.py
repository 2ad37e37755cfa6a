"""Refund rules: what a cancelled sale gives back, by the policy of its event.

    refund + fee == share        what was paid for the undone lines, split in two; neither part is negative

The fee is a percentage, rounded up to the minor unit, and a fixed amount for each cancellation, together never more
than the share. Once the window is over the shop keeps all of it. What the engine gives back by itself is under no rule.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from earmark.domain.bookable_event import Event

UNTIL_SECONDS_MAX = 10 * 366 * 24 * 3600
PERCENT_MAX = 100


class Reason(StrEnum):
    """Why so much goes back and not more."""

    WITHIN_WINDOW = "within_window"
    """By the event's rules: all but the fee."""
    WINDOW_OVER = "window_over"
    """By the event's rules: it is too late, and nothing goes back."""
    ASKED = "asked"
    """The request to cancel said how much."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the money of a cancelled sale."""

    refund: int
    """Goes back."""
    fee: int
    """What was paid for the undone lines and is kept."""
    reason: Reason


def by_the_rules(event: Event, *, share: int, now: datetime) -> Ruling:
    """What a cancellation at this moment gives back of the share that was paid for the undone lines."""
    if is_over(event, now=now):
        return Ruling(refund=0, fee=share, reason=Reason.WINDOW_OVER)
    kept = fee(share, percent=event.refund_fee_percent, fixed=event.refund_fee_fixed)
    return Ruling(refund=share - kept, fee=kept, reason=Reason.WITHIN_WINDOW)


def as_asked(amount: int, *, share: int) -> Ruling:
    """What goes back where that was said: the rest of the share is kept, and more than the share may go back."""
    return Ruling(refund=amount, fee=max(0, share - amount), reason=Reason.ASKED)


def is_over(event: Event, *, now: datetime) -> bool:
    """Whether it is too late for money back. The window is half-open: it is over at the moment at which it ends."""
    if event.refund_until_seconds is None or event.starts_at is None:
        return False
    return event.starts_at - now <= timedelta(seconds=event.refund_until_seconds)


def fee(share: int, *, percent: int, fixed: int) -> int:
    """What is kept of a share; a fraction of a minor unit is rounded in the shop's favour."""
    return min(share, -(-share * percent // 100) + fixed)
