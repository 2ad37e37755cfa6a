"""Calls to a script as Python values; and the script of the leases, `leases.lua`, with its answers."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.locks.ports import Claim, Holding
    from earmark.locks.redis.inbox import Post

SOURCE: Final = (files("earmark.locks") / "lua" / "leases.lua").read_bytes()
SHA: Final = hashlib.sha1(SOURCE, usedforsecurity=False).hexdigest()
NAMES_KEPT: Final = 10_000


class Call(NamedTuple):
    """One call: the Redis names it touches and what it says."""

    names: tuple[str, ...]
    words: tuple[str | int, ...]


class Script(Protocol):
    """What a wire needs to know of the script that it carries."""

    source: bytes

    def frame(self, calls: Sequence[Call], *, slot: int | None = None) -> list[Any]:
        """What follows EVALSHA, the script's hash first. `slot` is that of the keys, on a cluster."""
        ...

    def read(self, calls: Sequence[Call], answers: Any, *, repeated: bool = False) -> list[Any]:
        """One answer per call; raises `LocksUnavailable` for what this script would never say.

        Where the calls were `repeated`, for the first answer was lost, an answer that says too little is replaced by a
        `LocksUnavailable`.
        """
        ...

    def lost(self) -> None:
        """An answer was lost, and the calls are made again or given up."""
        ...


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


def is_doubtful(call: Call, answer: Any) -> bool:
    """Whether this answer to a repeated call leaves open what happened: a release may find what it did itself."""
    return call.words[0] == "r" and not answer


def unheard_release() -> LocksUnavailable:
    """It was released by the first call, or lost before; the second call finds nothing either way."""
    return LocksUnavailable(because="the connection broke while it was released, and it is gone now")


class LeaseScript:
    """`leases.lua`, on one server."""

    source = SOURCE

    def __init__(self, names: Names, post: Post) -> None:
        self._names = names
        self._post = post

    def frame(self, calls: Sequence[Call], *, slot: int | None = None) -> list[Any]:
        """With the fence of the server, or of the slot."""
        return frame(SHA, fence=self.fence(slot), channel=self._post.channel, calls=calls)

    def read(self, calls: Sequence[Call], answers: Any, *, repeated: bool = False) -> list[Any]:
        """The last of the answers says to whom of ours a lease was handed."""
        if handed := answers.pop():
            self._post.deliver_all(handed)
        answered: list[Any] = answers
        if repeated:
            return [
                unheard_release() if is_doubtful(call, answer) else answer
                for call, answer in zip(calls, answered, strict=True)
            ]
        return answered

    def lost(self) -> None:
        """The answer that was lost may have said to whom of ours a lease was handed."""
        self._post.rouse()

    def fence(self, slot: int | None) -> str:  # noqa: ARG002
        """What counts the grants."""
        return self._names.fence
