"""Locks that say what they can promise: owned by a token, fenced by a number, queued in order of arrival.

Worth using without the booking engine, and independent of it.
"""

from earmark.locks.backend_protocol import Backend, Claim, DirectBackend, Grant, Group, Holding
from earmark.locks.errors import (
    AlreadyMarked,
    FenceUnavailable,
    KeyRefused,
    KeysApart,
    LockBusy,
    LockError,
    LockLost,
    LocksUnavailable,
    QueueFull,
    TimeRefused,
)
from earmark.locks.lock import Attempt, Held, Lock
from earmark.locks.lock_manager import Locks
from earmark.locks.sync_locks import SyncHeld, SyncLocks
from earmark.locks.work_in_progress_marker import Marker

__all__ = [
    "AlreadyMarked",
    "Attempt",
    "Backend",
    "Claim",
    "DirectBackend",
    "FenceUnavailable",
    "Grant",
    "Group",
    "Held",
    "Holding",
    "KeyRefused",
    "KeysApart",
    "Lock",
    "LockBusy",
    "LockError",
    "LockLost",
    "Locks",
    "LocksUnavailable",
    "Marker",
    "QueueFull",
    "SyncHeld",
    "SyncLocks",
    "TimeRefused",
]
