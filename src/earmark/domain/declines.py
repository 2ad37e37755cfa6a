"""How often a buyer may be declined: so many times for one hold, and so many times an hour over all holds.

A payment that is open counts as if it were declined: ten holds that pay at once have no more tries than one after the
other. What a buyer tried lately is recorded with the payment that it opens, and never more of it than the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.domain.ids import Buyer, PaymentId
from earmark.domain.payment import UNDECIDED, Payment, PaymentState, is_unserved
from earmark.errors import TooManyDeclines

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.policy import Policy

WINDOW_SECONDS = 3600


class PayerRef(NamedTuple):
    """A buyer of live events, or of test events."""

    live: bool
    buyer: Buyer


class Payer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The payments that a buyer opened lately and that may count, by when they were opened."""

    ref: PayerRef
    tries: Mapping[PaymentId, datetime] = {}


def payer_of(booking: Booking) -> PayerRef:
    """Whose tries a payment for this booking counts among: the buyer's, also when the shop sends the request."""
    return PayerRef(booking.live, booking.buyer)


def check_hold(policy: Policy, booking: Booking, payments: Mapping[PaymentId, Payment]) -> None:
    """Refuse a hold that was declined too often. `payments` has all that were opened for it."""
    limit = policy.declines_per_hold_max
    own = (payment for payment in payments.values() if payment.booking_id == booking.id)
    if limit is not None and sum(map(_is_declined, own)) >= limit:
        raise TooManyDeclines(per="hold", limit=limit)


def with_try(
    policy: Policy, payer: Payer, payments: Mapping[PaymentId, Payment], *, payment_id: PaymentId, now: datetime
) -> Payer:
    """The buyer with one try more, or a refusal. `payments` has those that the buyer is known to have tried."""
    limit = policy.declines_per_buyer_max
    assert limit is not None, "without a limit nothing is counted"
    window = timedelta(seconds=WINDOW_SECONDS)
    counted = {
        tried: at
        for tried, at in payer.tries.items()
        if now - at < window and tried in payments and _counts(payments[tried])
    }
    if len(counted) >= limit:
        retry_in = (sorted(counted.values())[len(counted) - limit] + window - now).total_seconds()
        raise TooManyDeclines(per="buyer", limit=limit, retry_in=round(retry_in, 3), transient=True)
    return Payer(ref=payer.ref, tries=counted | {payment_id: now})


def _counts(payment: Payment) -> bool:
    return payment.state in UNDECIDED or _is_declined(payment)


def _is_declined(payment: Payment) -> bool:
    return payment.state is PaymentState.FAILED and not is_unserved(payment)
