"""Earmark: set it aside, pay for it, keep it. Never sold twice."""

from earmark.domain.event import OnDecline
from earmark.domain.machine import State
from earmark.domain.money import Money
from earmark.domain.payment import PaymentState
from earmark.domain.seat import SeatState
from earmark.errors import EarmarkError, Outage, Refusal
from earmark.library import Earmark
from earmark.version import __version__
from earmark.words.bodies import Layout, NewPool, NewSeat, PoolChange, SeatChange
from earmark.words.values import (
    Booking,
    Entry,
    Event,
    Explanation,
    Map,
    Paid,
    Payment,
    Pool,
    PoolLine,
    Ruling,
    Seat,
    SeatLine,
    Undone,
)

__all__ = [
    "Booking",
    "Earmark",
    "EarmarkError",
    "Entry",
    "Event",
    "Explanation",
    "Layout",
    "Map",
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
    "Refusal",
    "Ruling",
    "Seat",
    "SeatChange",
    "SeatLine",
    "SeatState",
    "State",
    "Undone",
    "__version__",
]
