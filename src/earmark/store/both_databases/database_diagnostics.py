"""The state of a database, for `earmark doctor`: read on a connection of its own, whatever else fails."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.store.both_databases.pending_migrations import Applied

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock


class Standby(msgspec.Struct, frozen=True, kw_only=True):
    """A server that follows a primary."""

    name: str | None
    """What `synchronous_standby_names` calls it; None where our role may not see it."""
    sync_state: str | None
    lag_bytes: int | None
    """What the primary has written and the standby has not on its disk."""


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """How a database's commits reach other machines."""

    in_recovery: bool
    """Whether this is a standby itself."""
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: tuple[Standby, ...]
    waiting_commits: int
    """How many commits wait for a standby at this moment."""
    waiting_seconds: float
    """How long the oldest of them has waited."""


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Version, schema, clock and settings of a database."""

    product: str
    version: str
    dialect: str
    applied: Mapping[int, Applied]
    """The migrations that it has had, by number."""
    seconds: float
    """How long it took to answer."""
    skew_seconds: float
    """By how much its clock is ahead of this machine's, at least."""
    isolation: str | None = None
    """Of a transaction that names none."""
    lax: tuple[str, ...] = ()
    """Settings by which a crash may lose what was acknowledged."""
    replication: Replication | None = None
    """None for a database that has no standbys."""
    pooled: bool = False
    """Whether a pooler stands between."""
    told: bool = False
    """Whether the URL says so."""


def skew(clock: Clock, *, before: datetime, theirs: datetime) -> tuple[float, float]:
    """How long a query took, and by how much the database's clock is ahead, less what the travel time may explain."""
    after = clock.now()
    way = (after - before) / 2
    ahead = theirs - (before + way)
    # The answer may have been made at any moment of the way.
    apart = ahead - min(max(ahead, -way), way) if way > timedelta(0) else ahead
    return (after - before).total_seconds(), apart.total_seconds()
