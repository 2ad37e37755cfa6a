"""Steps of an acquisition that tasks and threads share: check the keys before, count and log the outcome after."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from earmark.locks import keys as names
from earmark.locks.errors import LockBusy, LockError, LockLost, LocksUnavailable, QueueFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.locks.backend_protocol import Claim, Grant
    from earmark.locks.stats import Stats

logger = logging.getLogger("earmark.locks")

SLOW_SECONDS = 0.1


def several(keys: str | Sequence[str]) -> Sequence[str]:
    """One key or more, as a sequence."""
    return (keys,) if isinstance(keys, str) else keys


def sorted_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Checked, without duplicates, and sorted, so that all callers lock in the same order."""
    if len(keys) == 1:
        return (names.check(keys[0]),)
    if not keys:
        raise TypeError("name at least one key to lock")
    return tuple(sorted({names.check(key) for key in keys}))


def note_grant(stats: Stats, claim: Claim, seconds: float) -> None:
    """Count a grant, and warn when it took long."""
    stats.acquired(seconds)
    if seconds > SLOW_SECONDS:
        logger.warning("acquiring the lock on %s took %.0f ms", ", ".join(claim.keys), seconds * 1000)
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug("acquired the lock on %s", ", ".join(claim.keys))


def lost_on_its_way(grant: Grant) -> LockLost:
    """The error for a lease that ended before its answer arrived: no work may begin under it."""
    return LockLost(keys=grant.claim.keys, because="it ran out before the answer came", fence=grant.fence)


def note_refusal(stats: Stats, claim: Claim, error: BaseException) -> None:
    """Count a refusal by what it was."""
    match error:
        case LockBusy():
            # A caller that does not wait is refused at once, by design; a wait that timed out matters to an operator.
            stats.refused("timeout" if claim.wait else "busy", keys=len(error.keys))
        case QueueFull():
            stats.refused("queue_full")
        case LocksUnavailable():
            stats.refused("unavailable")
            logger.error("no lock on %s: %s", ", ".join(claim.keys), error.because)
        case LockLost():
            stats.refused("lost")
        case LockError():
            pass
        case _:
            stats.refused("cancelled")
