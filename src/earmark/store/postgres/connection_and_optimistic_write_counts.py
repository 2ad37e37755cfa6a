"""Gauges of the PostgreSQL store: connections and optimistic writes, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.engine.ports.observer import StoreFigures

if TYPE_CHECKING:
    from earmark.store.postgres.optimistic_transaction_connections import IdleConnections


class OptimisticWriteCounts(msgspec.Struct):
    """How optimistic writes ended so far."""

    begun: int = 0
    again: int = 0
    """Run once more, still without locks."""
    locked: int = 0
    """Run again under locks."""


def figures(pool: Any, idle: IdleConnections, counts: OptimisticWriteCounts) -> StoreFigures:
    """As of now. Connections that wait for the next optimistic write are idle, though the pool has lent them."""
    return StoreFigures(
        connections=pool.get_size(),
        idle=pool.get_idle_size() + len(idle.waiting),
        connections_max=pool.get_max_size(),
        optimistic_writes=counts.begun,
        optimistic_writes_again=counts.again,
        optimistic_writes_locked=counts.locked,
    )
