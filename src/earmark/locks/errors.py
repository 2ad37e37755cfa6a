"""The errors of the lock toolkit.

Every one of these says whether the same call may succeed later (`transient`), and carries facts by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.errors import EarmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence


class LockError(EarmarkError):
    """Anything the lock toolkit raises on purpose."""

    code = "lock_error"


@dataclass(kw_only=True, eq=False)
class LockBusy(LockError):
    """Another caller holds the lock."""

    code = "lock_busy"
    transient = True
    keys: Sequence[str]
    """Which of the wanted keys are taken."""
    waited_seconds: float | None = None


@dataclass(kw_only=True, eq=False)
class AlreadyMarked(LockError):
    """Another caller has set this marker."""

    code = "already_marked"
    transient = True
    key: str


@dataclass(kw_only=True, eq=False)
class QueueFull(LockError):
    """As many wait for this lock as may."""

    code = "queue_full"
    transient = True
    key: str
    queue_max: int


@dataclass(kw_only=True, eq=False)
class LockLost(LockError):
    """The lock was lost before the work was done; another process may hold it now."""

    code = "lock_lost"
    keys: Sequence[str]
    because: str
    fence: int | None = None
    """The number of the lock that was lost, where the backend counts one."""


@dataclass(kw_only=True, eq=False)
class LocksUnavailable(LockError):
    """The lock server did not answer, so nothing was locked."""

    code = "locks_unavailable"
    transient = True
    because: str


@dataclass(kw_only=True, eq=False)
class LocksNotCalled(LocksUnavailable):
    """The call waited too long in this process, so the lock server was not called."""


@dataclass(kw_only=True, eq=False)
class KeyRefused(LockError):
    """This is not a name to lock by."""

    code = "key_refused"
    key: str
    problem: str


@dataclass(kw_only=True, eq=False)
class TimeRefused(LockError):
    """This is not a time that a lock can live or wait."""

    code = "time_refused"
    name: str
    seconds: object
    problem: str


@dataclass(kw_only=True, eq=False)
class KeysApart(LockError):
    """On a cluster, keys that are locked together must share one hash tag."""

    code = "keys_apart"
    keys: Sequence[str]


@dataclass(kw_only=True, eq=False)
class FenceUnavailable(LockError):
    """This backend counts no fence of its own; open the locks with fence="database"."""

    code = "fence_unavailable"
    backend: str
