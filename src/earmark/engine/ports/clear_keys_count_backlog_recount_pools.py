"""What the janitor and `earmark doctor` need from a store: clear old keys, count the backlog, recount pools.

No verb needs it. The journal is outbox and audit in one: its entries are never deleted, and "sent" is a number. What
may go is what an idempotency key remembers, once its time is over, which request opened a payment, and who tried to pay
lately.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.engine.ports.heartbeats import KeepsHeartbeats

if TYPE_CHECKING:
    from earmark.domain.live_or_test_mode import Mode

BACKLOG_COUNTED_MAX = 1000


class Forgetting(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of forgetting did."""

    cleared: int = 0
    """How many idempotency records were cleared."""
    more: bool = False
    """Whether the round was full, so that something may be left."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What workers should have done by now. Counted over at most `BACKLOG_COUNTED_MAX` each."""

    now: datetime
    due: int
    """Holds whose time is over and that no worker has ended."""
    due_since: datetime | None
    unsent: int
    """Journal entries without a number."""
    unsent_since: datetime | None


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of one kind: those that live, and those whose time is over and that no worker has ended."""

    now: datetime
    held: int
    next_at: datetime | None
    """When the first of those that live will end."""
    due: int
    due_since: datetime | None


class Upkeep(Protocol):
    """How a store is kept in order. Every step is short and bounded; several may do the same at once."""

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """Clear what the keys of entries of this age remember, walking on from where the last round stopped.

        It looks at `limit` entries at most, oldest first by id, and one walks at a time: another passes by. With
        `from_start` the walk begins anew, for entries whose ids were made by a clock that was far behind.
        """
        ...

    async def forget_payment_keys(self, *, seconds: float, limit: int) -> int:
        """Remove which requests opened payments of this age, where those are decided; how many were removed."""
        ...

    async def forget_payers(self, *, seconds: float, limit: int) -> int:
        """Remove who has not tried to pay for so long; how many were removed."""
        ...

    async def backlog(self) -> Backlog:
        """What is due and was not done yet."""
        ...

    async def holds(self, *, mode: Mode, limit: int) -> Holds:
        """Counted over at most `limit` holds, those that end first."""
        ...

    async def recount(self, *, limit: int) -> int:
        """Set counts that drifted to what the bookings say, each under its own lock; how many were set.

        A count that the rules refuse is left as it is: then it is not the count that is wrong.
        """
        ...


class KeptUp(KeepsHeartbeats, Protocol):
    """A store that can be kept in order."""

    @property
    def upkeep(self) -> Upkeep:
        """The store's upkeep, for the janitor and `earmark doctor`."""
        ...
