"""What a lock backend is: the port that Redis, Redlock, PostgreSQL and the process itself stand behind.

A backend keeps *leases*: a set of keys that one token owns until a moment. It never raises for an answer
that the rules foresee (`release` and `extend` of a lease that is gone say so), and raises `LocksUnavailable`
when it cannot tell. What a caller sees (context managers, renewal, metrics) is built on top, once.

To add a backend (etcd, ZooKeeper), write this class, declare its groups and run the conformance suite on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec


class Group(StrEnum):
    """What a backend can do beyond the core that all of them do."""

    FIFO = "fifo"
    """Waiters are served in order of arrival and woken by the release."""
    FENCE = "fence"
    """A grant carries a number that grows with every grant of that key."""
    MANY = "many keys"
    """Several keys at once, all or nothing."""


class Claim(msgspec.Struct, frozen=True):
    """What a caller wants: these keys, for so long, under this token."""

    keys: tuple[str, ...]
    """Sorted and without duplicates."""
    token: str
    """Made new for every acquisition, never used twice: it is what tells owners apart."""
    ttl: float
    """Seconds."""
    wait: float = 0.0
    """Seconds to wait in line at most; 0 refuses at once."""
    holder: str = ""
    """For people: who asks. Nothing is decided by it."""


class Grant(msgspec.Struct):
    """What a backend gave."""

    claim: Claim
    backend: Any
    """The `Backend` or `DirectBackend` that gave it, and so can extend it and take it back."""
    fence: int | None
    until: float
    """By this process's monotonic clock, never later than the backend's own judgement."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What an inspector sees of one key."""

    key: str
    holder: str
    token: str
    fence: int | None
    age_seconds: float
    ttl_seconds: float
    waiters: Sequence[str] = ()
    """Who waits, first in line first."""


class Backend(Protocol):
    """Keeps leases. Used from one event loop; the loop that calls it first owns it."""

    @property
    def name(self) -> str:
        """What it is, in one word."""
        ...

    @property
    def groups(self) -> frozenset[Group]:
        """What it can do beyond the core."""
        ...

    async def acquire(self, claim: Claim) -> Grant:
        """All of the keys or none.

        Raises `LockBusy` with the taken keys (after `claim.wait` seconds at most), `QueueFull` when too many wait
        already, `KeysApart` where the keys cannot be had together, `LocksUnavailable` when nobody answers in time.
        Cancelled, or raising, it leaves nothing behind: no lease and no place in a queue.
        A repeat with the same token is granted again what it has.
        """
        ...

    async def release(self, grant: Grant) -> bool:
        """Give every key back that still belongs to this token. False when any was lost before."""
        ...

    async def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Let the lease live `ttl` seconds from now, never shorter than it would; sets `grant.until`. False: lost."""
        ...

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """Who holds what, by glob pattern on the key, in order of key."""
        ...

    async def find(self, key: str) -> Holding | None:
        """Who holds this key."""
        ...

    async def evict(self, key: str) -> bool:
        """Take a key from whoever has it, and let the next in line have it. An operator's last resort."""
        ...

    async def ping(self) -> None:
        """Return if it answers, raise `LocksUnavailable` if not."""
        ...

    async def close(self) -> None:
        """Let go of connections. Leases stay until they are released or run out."""
        ...


class DirectBackend(Protocol):
    """The part of a backend that a plain thread can call without an event loop. It never waits in line."""

    @property
    def name(self) -> str:
        """What it is, in one word."""
        ...

    def acquire(self, claim: Claim) -> Grant:
        """As `Backend.acquire`, but refuses at once whatever `claim.wait` says."""
        ...

    def release(self, grant: Grant) -> bool:
        """As `Backend.release`."""
        ...

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """As `Backend.extend`."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
