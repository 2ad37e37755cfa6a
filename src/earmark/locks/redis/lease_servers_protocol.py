"""What each topology of Redis servers offers to the lock backend: one server, a Sentinel's primary or a Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from earmark.locks.backend_protocol import Holding
    from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys
    from earmark.locks.redis.handover_subscription import HandoverWaiters
    from earmark.locks.redis.script_connection import ScriptConnection


class LeaseServers(Protocol):
    """What `RedisLeases` needs to know of a topology."""

    name: str
    names: RedisKeys
    handovers: HandoverWaiters

    @property
    def connection(self) -> ScriptConnection:
        """What sends calls to them."""
        ...

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Raise `KeysApart` for keys that one script cannot touch."""
        ...

    def is_subscribed(self, names: tuple[str, ...]) -> bool:
        """Whether a hand-over of these leases would be received now."""
        ...

    async def subscribe(self, names: tuple[str, ...]) -> None:
        """Return once a hand-over of these leases would be received."""
        ...

    def subscription_reader(self, names: tuple[str, ...]) -> object:
        """Identifies the present subscription for these leases; a new one has another."""
        ...

    async def unsubscribe(self, names: tuple[str, ...], reader: object) -> None:
        """End the subscription that `reader` identifies, if it still exists; the next waiter makes a new one."""
        ...

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """The leases whose key matches the pattern."""
        ...

    async def find(self, key: str) -> Holding | None:
        """The lease of this key, if there is one."""
        ...

    async def ping(self) -> None:
        """Return if the servers answer."""
        ...

    async def close(self) -> None:
        """End subscriptions and close all connections."""
        ...
