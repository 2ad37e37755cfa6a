"""What a strategy is: one way of selling seats and units, which the bench can race and measure.

Every strategy works on Earmark's own tables and leaves the same rows behind for the same flow: the booking, the seats'
pointers, the counts, the payment, and one journal entry per verb with its audit fields and its idempotency record.
They differ only in how they keep two buyers apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from uuid import UUID


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """The seats and units that one buyer wants, at a test event."""

    event_id: str
    buyer: str
    seats: tuple[str, ...] = ()
    pools: Mapping[str, int] = {}
    key: str
    """The idempotency key: the same want with the same key again is answered with the same booking."""
    ttl_seconds: int = 600


class Strategy(Protocol):
    """One way of selling, opened on one database."""

    async def hold(self, want: Want) -> UUID | None:
        """The booking, or None: refused, because something of it is taken or exhausted."""
        ...

    async def confirm(self, booking_id: UUID, *, payment_id: str, key: str) -> bool:
        """Whether the paid hold is a sale now."""
        ...

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        ...


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a strategy, and the disturbances that a race injects."""

    database: str
    redis: tuple[str, ...] = ()
    connections: int = 20
    pause_seconds: float = 0.0
    """Injected between the look and the write, while the strategy holds its lock."""
    lock_ttl_seconds: float = 5.0
    """How long a lock in Redis lives."""


class StrategyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a strategy."""

    name: str
    title: str
    safe: bool
    """What its users believe: a claim, which a race checks."""
    why: str
    """When it is right, and what it costs."""
    pauses: bool = True
    """Whether it has a moment between its look and its write, into which a race can put a pause."""
    open: Callable[[StrategySettings], Awaitable[Strategy]]
