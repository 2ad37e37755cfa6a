"""The limits that hold for every event, until a setting says otherwise: of holds, buyers, declines and keys."""

from __future__ import annotations

import msgspec

TTL_SECONDS_MIN = 1
TTL_SECONDS_MAX = 3600


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that hold for every event, until a setting says otherwise."""

    ttl_seconds_default: int = 600
    life_seconds_max: int = 1800
    per_buyer_max: int | None = None
    """Of an event that says nothing itself; None is no limit."""
    declines_per_hold_max: int | None = 3
    """How often payments for one hold may be declined; None is no limit."""
    declines_per_buyer_max: int | None = 5
    """The same for one buyer within an hour, over all holds. Payments that are open count, too."""
    declines_per_address_max: int | None = 20
    """The same for the buyers at one address together, where a request says from which it came."""
    key_seconds: float = 86_400
    """How long an idempotency key that opened a payment stands for that request alone."""
