"""The calls of `leases.lua` as Python values, and its answers."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.locks.ports import Claim, Holding

SOURCE: Final = (files("earmark.locks") / "lua" / "leases.lua").read_bytes()
SHA: Final = hashlib.sha1(SOURCE, usedforsecurity=False).hexdigest()
NAMES_KEPT: Final = 10_000


class Call(NamedTuple):
    """One call: the Redis names it touches and what it says."""

    names: tuple[str, ...]
    words: tuple[str | int, ...]


class Names:
    """What keys are called in Redis: each with a hash tag, so that a lease and its queue share a slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.fence = f"{prefix}:fence"
        self.lease_start = f"{prefix}:lock:"
        # Asked for twice at least, when a lock is taken and when it is given back.
        self.of = lru_cache(maxsize=NAMES_KEPT)(self._of)

    def key_of(self, lease: str) -> str:
        """The key whose lease this is."""
        tagged = lease.removeprefix(self.lease_start)
        return tagged[1:-1] if tagged.startswith("{") and tagged.endswith("}") else tagged

    def _of(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The leases of these keys, then their queues."""
        leases, queues = zip(*map(self.pair, keys), strict=True)
        return leases + queues

    def pair(self, key: str) -> tuple[str, str]:
        """The lease and the queue of a key."""
        # A key that brings its own tag keeps it: that is how callers put keys side by side on a cluster.
        tagged = key if "{" in key else f"{{{key}}}"
        return f"{self.lease_start}{tagged}", f"{self.prefix}:queue:{tagged}"


def owner_of(claim: Claim) -> str:
    """Who has a lease: the token decides, the rest is for people."""
    return f"{claim.token}@{claim.holder}"


def owner_seen(holding: Holding) -> str:
    """The same, of a lease that an inspector saw."""
    return f"{holding.token}@{holding.holder}"


def milliseconds(seconds: float) -> int:
    """At least one, for Redis takes no expiry of zero."""
    return max(1, int(seconds * 1000))


def frame(sha_or_source: str | bytes, *, fence: str, channel: str, calls: Sequence[Call]) -> list[Any]:
    """What follows EVAL or EVALSHA."""
    names: list[str] = [fence]
    words: list[str | int] = [channel]
    for call in calls:
        names += call.names
        words += call.words
    return [sha_or_source, len(names), *names, *words]
