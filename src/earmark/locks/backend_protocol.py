"""The port of a lock backend, which Redis, Redlock, PostgreSQL and the table in memory implement.

A backend keeps *leases*: a set of keys that one token owns until a moment. It never raises for an outcome
that the rules foresee (`release` and `extend` of a lost lease return False), and raises `LocksUnavailable`
when it does not know. What a caller uses (context managers, renewal, metrics) is built on top, once.

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
    """Waiters get the lock in order of arrival and are woken by the release."""
    FENCE = "fence"
    """A grant carries a number that grows with every grant of that key."""
    MANY = "many keys"
    """Several keys at once, all or nothing."""


class Claim(msgspec.Struct, frozen=True):
    """What a caller wants: these keys, for so long, under this token."""

    keys: tuple[str, ...]
    """Sorted and without duplicates."""
    token: str
    """Made new for every acquisition, never used twice: it identifies the owner."""
    ttl: float
    """Seconds."""
    wait: float = 0.0
    """Seconds to wait at most; 0 refuses at once."""
    holder: str = ""
    """The caller's name, for operators. Nothing is decided by it."""


class Grant(msgspec.Struct):
    """What a backend granted."""

    claim: Claim
    backend: Any
    """The `Backend` or `DirectBackend` that granted it, and so can extend and release it."""
    fence: int | None
    until: float
    """Its end by this process's monotonic clock, never later than by the backend's own."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One key that is held, as `holdings` and `find` report it."""

    key: str
    holder: str
    token: str
    fence: int | None
    age_seconds: float
    ttl_seconds: float
    waiters: Sequence[str] = ()
    """The names of the waiters, in the order of the queue."""


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
        already, `KeysApart` where the keys cannot be locked together, `LocksUnavailable` without an answer in time.
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
        """The keys that are held, by glob pattern on the key, in order of key."""
        ...

    async def find(self, key: str) -> Holding | None:
        """The holder of this key, or None."""
        ...

    async def evict(self, key: str) -> bool:
        """Take a key from its holder, and grant it to the first waiter. An operator's last resort."""
        ...

    async def ping(self) -> None:
        """Return if it answers, raise `LocksUnavailable` if not."""
        ...

    async def close(self) -> None:
        """Close the connections. Leases stay until they are released or run out."""
        ...


class DirectBackend(Protocol):
    """The part of a backend that a plain thread can call without an event loop. It never waits for a lock."""

    @property
    def name(self) -> str:
        """What it is, in one word."""
        ...

    def acquire(self, claim: Claim) -> Grant:
        """As `Backend.acquire`, but refuses at once whatever `claim.wait` says."""
        ...

    def release(self, grant: Grant) -> bool:
        """As `Backend.release`, but not awaited."""
        ...

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """As `Backend.extend`, but not awaited."""
        ...

    def close(self) -> None:
        """Close the connections. Leases stay until they are released or run out."""
        ...
