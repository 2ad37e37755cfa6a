"""Earmark: set it aside, pay for it, keep it. Never sold twice."""

from importlib import import_module
from typing import TYPE_CHECKING

from earmark.version import __version__

if TYPE_CHECKING:
    from earmark.domain.bookable_event import OnDecline
    from earmark.domain.booking_state_machine import State
    from earmark.domain.journal_before_and_after_values import FieldChange
    from earmark.domain.live_or_test_mode import Mode
    from earmark.domain.money import Money
    from earmark.domain.payment import PaymentState
    from earmark.domain.seat import SeatState
    from earmark.errors import EarmarkError, Outage, Refusal
    from earmark.library import Earmark
    from earmark.schemas.requests import Layout, NewPool, NewSeat, PoolChange, SeatChange
    from earmark.schemas.responses import (
        Booking,
        Delta,
        Entry,
        Event,
        Explanation,
        ListedPayment,
        Map,
        Paid,
        Payment,
        Pool,
        PoolLine,
        Recalled,
        Refund,
        Ruling,
        Seat,
        SeatLine,
        Token,
        Undone,
    )

__all__ = [
    "Booking",
    "Contact",
    "Delta",
    "Earmark",
    "EarmarkError",
    "Entry",
    "Event",
    "Explanation",
    "FieldChange",
    "Layout",
    "ListedPayment",
    "Map",
    "Mode",
    "Money",
    "NewPool",
    "NewSeat",
    "OnDecline",
    "Outage",
    "Paid",
    "Payment",
    "PaymentState",
    "Pool",
    "PoolChange",
    "PoolLine",
    "Recalled",
    "Refund",
    "RefundState",
    "Refusal",
    "Ruling",
    "Seat",
    "SeatChange",
    "SeatLine",
    "SeatState",
    "State",
    "Token",
    "Undone",
    "__version__",
]

_HOMES = {
    "FieldChange": "domain.journal_before_and_after_values",
    "Earmark": "library",
    "EarmarkError": "errors",
    "Layout": "schemas.requests",
    "Mode": "domain.live_or_test_mode",
    "Money": "domain.money",
    "NewPool": "schemas.requests",
    "NewSeat": "schemas.requests",
    "OnDecline": "domain.bookable_event",
    "Outage": "errors",
    "PaymentState": "domain.payment",
    "PoolChange": "schemas.requests",
    "RefundState": "domain.payment",
    "Refusal": "errors",
    "SeatChange": "schemas.requests",
    "SeatState": "domain.seat",
    "State": "domain.booking_state_machine",
}


def __getattr__(name: str) -> object:
    """Each name is fetched when it is first asked for: the client and the test plugin should not load the engine."""
    if name not in __all__:
        raise AttributeError(f"module 'earmark' has no attribute {name!r}")
    found = getattr(import_module(f"earmark.{_HOMES.get(name, 'schemas.responses')}"), name)
    globals()[name] = found
    return found
