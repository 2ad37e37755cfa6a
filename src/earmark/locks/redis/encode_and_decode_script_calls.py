"""Calls to a Lua script as Python values, and the answers of `leases_and_waiting_queues.lua`."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.locks.backend_protocol import Claim, Holding
    from earmark.locks.redis.handover_subscription import HandoverWaiters

SOURCE: Final = (files("earmark.locks") / "lua" / "leases_and_waiting_queues.lua").read_bytes()
SHA: Final = hashlib.sha1(SOURCE, usedforsecurity=False).hexdigest()
NAMES_KEPT: Final = 10_000


class ScriptCall(NamedTuple):
    """One call: the Redis keys it touches and its arguments."""

    names: tuple[str, ...]
    words: tuple[str | int, ...]


class LuaScript(Protocol):
    """What a `ScriptConnection` needs to know of the script that it sends."""

    source: bytes

    def frame(self, calls: Sequence[ScriptCall], *, slot: int | None = None) -> list[Any]:
        """What follows EVALSHA, the script's hash first. `slot` is that of the keys, on a cluster."""
        ...

    def read(self, calls: Sequence[ScriptCall], answers: Any, *, repeated: bool = False) -> list[Any]:
        """One answer per call; raises `LocksUnavailable` for what this script never answers.

        Where the calls were `repeated` because the first answer was lost, an answer that leaves open what happened is
        replaced by a `LocksUnavailable`.
        """
        ...

    def note_lost_answer(self) -> None:
        """Called when an answer was lost, and the calls are sent again or given up."""
        ...


class RedisKeys:
    """The names of leases and queues in Redis: each with a hash tag, so that a lease and its queue share a slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.fence = f"{prefix}:fence"
        self.lease_start = f"{prefix}:lock:"
        # Needed at least twice, when a lock is taken and when it is given back.
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
        # A key with a tag of its own keeps it: that is how callers put several keys into one slot of a cluster.
        tagged = key if "{" in key else f"{{{key}}}"
        return f"{self.lease_start}{tagged}", f"{self.prefix}:queue:{tagged}"


def owner_of(claim: Claim) -> str:
    """The owner as a lease contains it: the token decides, the holder's name is for operators."""
    return f"{claim.token}@{claim.holder}"


def owner_seen(holding: Holding) -> str:
    """The same, for a lease that was read from Redis."""
    return f"{holding.token}@{holding.holder}"


def milliseconds(seconds: float) -> int:
    """At least one, for Redis takes no expiry of zero."""
    return max(1, int(seconds * 1000))


def frame(sha_or_source: str | bytes, *, fence: str, channel: str, calls: Sequence[ScriptCall]) -> list[Any]:
    """What follows EVAL or EVALSHA."""
    names: list[str] = [fence]
    words: list[str | int] = [channel]
    for call in calls:
        names += call.names
        words += call.words
    return [sha_or_source, len(names), *names, *words]


def is_doubtful(call: ScriptCall, answer: Any) -> bool:
    """Whether this answer to a repeated call leaves open what happened: the first release may have succeeded."""
    return call.words[0] == "r" and not answer


def unheard_release() -> LocksUnavailable:
    """The error for a repeated release that found no lease: the first one may have released it, or it was lost."""
    return LocksUnavailable(because="the connection broke while it was released, and it is gone now")


class LeaseScript:
    """`leases_and_waiting_queues.lua`, on one server."""

    source = SOURCE

    def __init__(self, names: RedisKeys, handovers: HandoverWaiters) -> None:
        self._names = names
        self._handovers = handovers

    def frame(self, calls: Sequence[ScriptCall], *, slot: int | None = None) -> list[Any]:
        """With the fence of the server, or of the slot."""
        return frame(SHA, fence=self.fence(slot), channel=self._handovers.channel, calls=calls)

    def read(self, calls: Sequence[ScriptCall], answers: Any, *, repeated: bool = False) -> list[Any]:
        """The answers; the last element names the waiters of this process that a lease was handed to."""
        if handed := answers.pop():
            self._handovers.deliver_all(handed)
        answered: list[Any] = answers
        if repeated:
            return [
                unheard_release() if is_doubtful(call, answer) else answer
                for call, answer in zip(calls, answered, strict=True)
            ]
        return answered

    def note_lost_answer(self) -> None:
        """Let all waiters call again: the lost answer may have named one that a lease was handed to."""
        self._handovers.wake_all()

    def fence(self, slot: int | None) -> str:  # noqa: ARG002
        """The key that counts the grants."""
        return self._names.fence
