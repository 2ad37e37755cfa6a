"""The booking strategies that are used in practice, one file each, and Earmark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.booking.strategies import (
    advisory,
    cte,
    earmark_engine,
    for_update,
    for_update_in_two_statements,
    for_update_nowait,
    naive,
    optimistic,
    redis_lock,
    redlock,
    single_phase,
)

if TYPE_CHECKING:
    from earmark.bench.booking.strategy_protocol import StrategyInfo

_ALL = (
    naive.ABOUT,
    for_update.ABOUT,
    for_update_nowait.ABOUT,
    for_update_in_two_statements.ABOUT,
    optimistic.ABOUT,
    redis_lock.ABOUT,
    redlock.ABOUT,
    cte.ABOUT,
    advisory.ABOUT,
    single_phase.ABOUT,
    earmark_engine.ABOUT,
    earmark_engine.ABOUT_WITH_REDIS,
)

STRATEGIES: dict[str, StrategyInfo] = {about.name: about for about in _ALL}
"""By name, in the order in which they are shown."""

WITH_REDIS = frozenset({redis_lock.ABOUT.name, redlock.ABOUT.name, earmark_engine.ABOUT_WITH_REDIS.name})
"""The strategies that need a Redis."""
LEASES = frozenset({redis_lock.ABOUT.name, redlock.ABOUT.name})
"""The strategies whose lock ends by the clock while its holder may still be writing."""
