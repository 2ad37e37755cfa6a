"""What the PostgreSQL store knows of itself, for whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.engine.ports.observer import StoreFigures

if TYPE_CHECKING:
    from earmark.store.postgres.idle import Idle


class Drafted(msgspec.Struct):
    """What became of drafts so far."""

    drafts: int = 0
    again: int = 0
    """Run once more, still without a lock."""
    locked: int = 0
    """Run again under locks."""


def figures(pool: Any, idle: Idle, drafted: Drafted) -> StoreFigures:
    """As of now. Connections that wait for the next draft are idle, though the pool has lent them."""
    return StoreFigures(
        connections=pool.get_size(),
        idle=pool.get_idle_size() + len(idle.waiting),
        connections_max=pool.get_max_size(),
        drafts=drafted.drafts,
        drafts_again=drafted.again,
        drafts_locked=drafted.locked,
    )
