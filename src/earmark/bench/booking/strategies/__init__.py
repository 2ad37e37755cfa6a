"""The strategies people really use, one file each, and Earmark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies import (
    advisory,
    cte,
    for_update,
    for_update_nowait,
    lean_for_update,
    naive,
    optimistic,
    ours,
    redis_lock,
    redlock,
    single_phase,
)

if TYPE_CHECKING:
    from earmark.bench.booking.ports import About

_ALL = (
    naive.ABOUT,
    for_update.ABOUT,
    for_update_nowait.ABOUT,
    lean_for_update.ABOUT,
    optimistic.ABOUT,
    redis_lock.ABOUT,
    redlock.ABOUT,
    cte.ABOUT,
    advisory.ABOUT,
    single_phase.ABOUT,
    ours.ABOUT,
    ours.ABOUT_WITH_REDIS,
)

STRATEGIES: dict[str, About] = {about.name: about for about in _ALL}
"""By name, in the order in which they are shown to people."""

WITH_REDIS = frozenset({redis_lock.ABOUT.name, redlock.ABOUT.name, ours.ABOUT_WITH_REDIS.name})
"""Those that need a Redis."""
LEASES = frozenset({redis_lock.ABOUT.name, redlock.ABOUT.name})
"""Those whose lock ends by the clock while its holder may still be at work."""
