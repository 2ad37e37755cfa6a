"""How often payments may be declined: so many times for one hold, and within an hour for a buyer and for an address.

A payment that is open counts as if it were declined: ten holds that pay at once have no more tries than one after the
other. What a buyer tried lately is recorded with the payment that it opens, and never more of it than the limit.

A payment that failed before a bank judged it is no decline: the shop's own fault, a wrong request, a bank that is too
busy. A hold may have a few of those at once, and then one after ever longer pauses, so that a client that asks again
and again leaves few rows behind, and pays when the fault is over.

Many honest buyers may share an address, and have payments open at once: there, open ones count for a third.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.domain.id_types import Buyer, PaymentId
from earmark.domain.payment import UNDECIDED, Payment, PaymentState, is_undecided_by_bank
from earmark.errors import TooManyDeclines

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.default_limits_for_all_events import Policy
    from earmark.domain.live_or_test_mode import Mode

WINDOW_SECONDS = 3600
_AT = "\x1faddress:"
"""No buyer's name has such a character."""
UNJUDGED_AT_ONCE = 5
"""So many payments of a hold may fail without a bank's decision before there are pauses between them."""
PAUSE_SECONDS_MAX = 60
OPEN_RETRY_SECONDS = 5.0
"""When to try again where payments that are open, and not declined, make up the limit: most are decided by then."""
OPEN_AT_ADDRESS = 3
"""So many times its limit of declines an address may have declined and open payments together."""


class PayerRef(NamedTuple):
    """A buyer of live events, or of test events; or all buyers at an address, under a name that no buyer can guess."""

    mode: Mode
    buyer: Buyer


class Payer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The payments that a buyer, or all at an address, opened lately and that may count, by when they were opened."""

    ref: PayerRef
    tries: Mapping[PaymentId, datetime] = {}

    @property
    def tried_at(self) -> datetime:
        """When the last of them was opened."""
        return max(self.tries.values())


def payer_of(booking: Booking) -> PayerRef:
    """Whose tries a payment for this booking counts among: the buyer's, also when the shop sends the request."""
    return PayerRef(booking.mode, booking.buyer)


def payers_of(policy: Policy, booking: Booking, *, address: str | None) -> list[PayerRef]:
    """Whose tries are counted, in the order in which they are locked."""
    counted = []
    if policy.declines_per_buyer_max is not None:
        counted.append(payer_of(booking))
    if address is not None and policy.declines_per_address_max is not None:
        counted.append(PayerRef(booking.mode, Buyer(f"{_AT}{address}")))
    return sorted(counted)


def check_hold(policy: Policy, booking: Booking, payments: Mapping[PaymentId, Payment], *, now: datetime) -> None:
    """Refuse a hold that was declined too often, or tried too quickly. `payments` has all that were opened for it."""
    limit = policy.declines_per_hold_max
    own = [payment for payment in payments.values() if payment.booking_id == booking.id]
    if limit is not None and sum(map(_is_declined, own)) >= limit:
        raise TooManyDeclines(per="hold", limit=limit)
    unjudged = [payment.created_at for payment in own if is_undecided_by_bank(payment)]
    if len(unjudged) >= UNJUDGED_AT_ONCE:
        pause = timedelta(seconds=min(PAUSE_SECONDS_MAX, len(unjudged) - UNJUDGED_AT_ONCE + 1))
        if (retry_in := (max(unjudged) + pause - now).total_seconds()) > 0:
            raise TooManyDeclines(
                per="hold", limit=UNJUDGED_AT_ONCE, retry_in=_milliseconds_up(retry_in), transient=True
            )


def with_try(
    policy: Policy, payer: Payer, payments: Mapping[PaymentId, Payment], *, payment_id: PaymentId, now: datetime
) -> Payer:
    """The payer with one try more, or a refusal. `payments` has those that are known to have been tried."""
    at_address = payer.ref.buyer.startswith(_AT)
    limit = policy.declines_per_address_max if at_address else policy.declines_per_buyer_max
    assert limit is not None, "without a limit nothing is counted"
    window = timedelta(seconds=WINDOW_SECONDS)
    counted = {
        tried: at
        for tried, at in payer.tries.items()
        if now - at < window and tried in payments and _counts(payments[tried])
    }
    declined = [at for tried, at in counted.items() if _is_declined(payments[tried])]
    per = "address" if at_address else "buyer"
    if len(declined) >= limit:
        retry_in = (sorted(declined)[len(declined) - limit] + window - now).total_seconds()
        raise TooManyDeclines(per=per, limit=limit, retry_in=_milliseconds_up(retry_in), transient=True)
    if len(counted) >= (OPEN_AT_ADDRESS * limit if at_address else limit):
        raise TooManyDeclines(per=per, limit=limit, retry_in=OPEN_RETRY_SECONDS, transient=True)
    return Payer(ref=payer.ref, tries=counted | {payment_id: now})


def _milliseconds_up(seconds: float) -> float:
    """Never sooner: a caller who keeps to it is not refused again."""
    return math.ceil(seconds * 1000) / 1000


def _counts(payment: Payment) -> bool:
    return payment.state in UNDECIDED or _is_declined(payment)


def _is_declined(payment: Payment) -> bool:
    return payment.state is PaymentState.FAILED and not is_undecided_by_bank(payment)
