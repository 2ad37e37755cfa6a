"""An event: what is sold into, and the rules it is sold by."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from earmark.domain.default_limits_for_all_events import TTL_SECONDS_MAX, TTL_SECONDS_MIN, Policy
from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import InvalidRequest, SaleClosed


class OnDecline(StrEnum):
    """What becomes of a hold whose payment was declined."""

    KEEP = "keep"
    """It lives on until it runs out, so that the buyer may try again."""
    RELEASE = "release"
    """It ends with the payment."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A concert, a cinema show, a flight on a date, a product drop."""

    id: EventId
    name: str
    currency: str
    mode: Mode
    created_at: datetime
    starts_at: datetime | None = None
    sale_opens_at: datetime | None = None
    sale_closes_at: datetime | None = None
    hold_ttl_seconds: int | None = None
    per_buyer_max: int | None = None
    on_decline: OnDecline = OnDecline.KEEP
    refund_until_seconds: int | None = None
    """How long before the start a cancellation still gives money back; always, if it is not said."""
    refund_fee_percent: int = 0
    refund_fee_fixed: int = 0
    """What is kept of each cancellation, in minor units; see `refunds`."""
    buyer_cancel_until_seconds: int | None = None
    """How long before the start a buyer may still cancel without the shop; never, if it is not said."""
    version: int = 1

    def is_over(self, *, now: datetime) -> bool:
        """Whether it has begun: late money sells no seat after that."""
        return self.starts_at is not None and now >= self.starts_at


def check_on_sale(event: Event, *, now: datetime) -> None:
    """Refuse a hold outside the sale window, which is half-open: from its opening, until its close."""
    too_early = event.sale_opens_at is not None and now < event.sale_opens_at
    too_late = event.sale_closes_at is not None and now >= event.sale_closes_at
    if too_early or too_late:
        raise SaleClosed(opens_at=event.sale_opens_at, closes_at=event.sale_closes_at, transient=too_early)


def ttl_seconds(policy: Policy, *, asked: int | None, of_event: int | None) -> int:
    """How long a new hold lives: as asked, else as the event says, else the default; within the longest life."""
    chosen = next((ttl for ttl in (asked, of_event) if ttl is not None), policy.ttl_seconds_default)
    if not TTL_SECONDS_MIN <= chosen <= TTL_SECONDS_MAX:
        raise InvalidRequest.at("ttl_seconds", f"must be from {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds")
    return min(chosen, policy.life_seconds_max)


def per_buyer_max(policy: Policy, *, of_event: int | None) -> int | None:
    """How many seats and units one buyer may have: as the event says, else as the policy does."""
    return policy.per_buyer_max if of_event is None else of_event
