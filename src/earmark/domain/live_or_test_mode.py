"""The mode of a key, an event, a booking and a payment: a test, or live with real money."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """A key sees only rows of its own mode, and test events are paid only at gateways that move no money."""

    TEST = "test"
    LIVE = "live"
