"""Leases on a Redis Cluster.

A script can touch one hash slot only, so calls are grouped by slot, each group with the fence counter of its slot.
A hand-over is published on the node that holds the keys, and only that node can count the subscribers that received it:
this process subscribes at each node that has keys it waits for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import NoScriptError, RedisError

from earmark.locks.errors import KeysApart, LocksUnavailable
from earmark.locks.glob_to_regex import compiled
from earmark.locks.redis.connection_pools import connection_options, outages
from earmark.locks.redis.encode_and_decode_script_calls import LeaseScript, LuaScript, RedisKeys, ScriptCall
from earmark.locks.redis.handover_subscription import HandoverSubscription, HandoverWaiters
from earmark.locks.redis.single_or_sentinel_server import SCAN_COUNT, read_holding

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from earmark.locks.backend_protocol import Holding

REDIRECTIONS_MAX = 3


_tags: dict[int, str] = {}
_numbers = itertools.count()


def tag_in(slot: int) -> str:
    """A short hash tag that lies in this slot. Found by trial, and remembered."""
    while slot not in _tags:
        tag = str(next(_numbers))
        _tags.setdefault(key_slot(tag.encode()), tag)
    return _tags[slot]


def slot_of(name: str) -> int:
    """The slot of a Redis key."""
    return key_slot(name.encode())


class SlotLeaseScript(LeaseScript):
    """`leases_and_waiting_queues.lua`, with a fence for each slot."""

    def fence(self, slot: int | None) -> str:
        """The key that counts the grants of a slot."""
        assert slot is not None
        return f"{self._names.fence}:{{{tag_in(slot)}}}"


class ClusterConnection:
    """Sends each call to the node that has its keys."""

    def __init__(self, cluster: RedisCluster, *, script: LuaScript, timeout: float) -> None:
        self._cluster = cluster
        self._script = script
        self._timeout = timeout
        self._discovered = False
        self._discovering = asyncio.Lock()
        self._abandoned: set[asyncio.Task[list[Any]]] = set()

    async def discover_nodes(self) -> None:
        """Find out which node has which slot. One call at a time: redis-py fails when several do it at once."""
        async with self._discovering:
            with outages():
                await self._cluster.initialize()
        self._discovered = True

    async def send(self, calls: Sequence[ScriptCall], *, deadline: float | None = None) -> list[Any]:
        """One script for each slot, all at once. A silent node does not delay the answers of the others."""
        by_slot: defaultdict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            by_slot[slot_of(call.names[0])].append(place)
        if len(by_slot) == 1:
            [slot] = by_slot
            only: list[Any] = await self._in_time(self._send(slot, calls), deadline)
            return only
        groups = list(by_slot.items())
        sent = [self._in_time(self._send(slot, [calls[i] for i in places]), deadline) for slot, places in groups]
        answers: list[Any] = [None] * len(calls)
        for (_, places), group in zip(groups, await asyncio.gather(*sent, return_exceptions=True), strict=True):
            by_place = [group] * len(places) if isinstance(group, BaseException) else group
            for place, answer in zip(places, by_place, strict=True):
                answers[place] = answer
        return answers

    async def ping(self) -> None:
        """Return if every primary answers."""
        await self.discover_nodes()
        with outages():
            await self._cluster.ping(target_nodes=RedisCluster.PRIMARIES)

    async def wait_for_abandoned_calls(self) -> None:
        """Wait for the answers to calls whose callers were cancelled."""
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    async def close(self) -> None:
        """Wait for abandoned calls, then disconnect from all nodes."""
        await self.wait_for_abandoned_calls()
        await self._cluster.aclose()

    async def _send(self, slot: int, calls: Sequence[ScriptCall]) -> list[Any]:
        arguments = self._script.frame(calls, slot=slot)
        if not self._discovered:
            await self.discover_nodes()
        try:
            with outages():
                try:
                    answers = await self._cluster.execute_command("EVALSHA", *arguments)
                except NoScriptError:
                    arguments[0] = self._script.source
                    answers = await self._cluster.execute_command("EVAL", *arguments)
        except BaseException:
            self._script.note_lost_answer()
            raise
        return self._script.read(calls, answers)

    async def _in_time(self, work: Coroutine[Any, Any, list[Any]], deadline: float | None) -> list[Any]:
        """Redirections and reconnections have deadlines of their own; together they have this one.

        If the caller is cancelled, the call goes on: what was sent may be carried out.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        timer = loop.call_at(loop.time() + self._timeout if deadline is None else deadline, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned.discard)
                raise
            if (caller := asyncio.current_task()) and caller.cancelling():
                raise
            raise LocksUnavailable(because=f"no answer in {self._timeout:g} s") from None


def open_cluster(nodes: Sequence[tuple[str, int]], *, timeout: float, options: dict[str, Any]) -> RedisCluster:
    """A client of the cluster that these nodes belong to. It connects when it is first used."""
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in nodes],
        protocol=2,
        socket_timeout=timeout,
        socket_connect_timeout=timeout / 2,
        retry=Retry(NoBackoff(), REDIRECTIONS_MAX),
        **options,
    )


class ClusterServers:
    """The nodes of a cluster."""

    def __init__(
        self, nodes: Sequence[tuple[str, int]], *, prefix: str, timeout: float, options: dict[str, Any]
    ) -> None:
        self.name = "cluster"
        self.names = RedisKeys(prefix)
        self._timeout = timeout
        self._options = {name: value for name, value in options.items() if name != "ssl"}
        self._ssl = bool(options.get("ssl"))
        self._cluster = open_cluster(nodes, timeout=timeout, options=options)
        self.handovers = HandoverWaiters(prefix=prefix)
        script = SlotLeaseScript(self.names, self.handovers)
        self.connection = ClusterConnection(self._cluster, script=script, timeout=timeout)
        self._subscriptions: dict[tuple[str, int], HandoverSubscription] = {}
        self._ready = asyncio.Lock()

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Keys of one slot can be locked in one step, others cannot."""
        if len({slot_of(name) for name in names}) > 1:
            raise KeysApart(keys=keys)

    def is_subscribed(self, names: tuple[str, ...]) -> bool:
        """Whether there is a subscription to the node of these keys."""
        subscription = self._subscriptions.get(self._home(names[0]))
        return subscription is not None and subscription.is_open

    async def subscribe(self, names: tuple[str, ...]) -> None:
        """Subscribe at the node that has these keys now."""
        with outages():
            await self._cluster.initialize()
        home = self._home(names[0])
        if home not in self._subscriptions:
            host, port = home
            kind = SSLConnection if self._ssl else Connection
            settings = {**connection_options(self._timeout), **self._options}
            pool = ConnectionPool(connection_class=kind, host=host, port=port, **settings)
            self._subscriptions[home] = HandoverSubscription(pool, self.handovers, timeout=self._timeout)
        if not self._subscriptions[home].is_open:
            await self._subscriptions[home].subscribe()

    def subscription_reader(self, names: tuple[str, ...]) -> object:
        """Identifies the subscription to the node that has these keys."""
        subscription = self._subscriptions.get(self._home(names[0]))
        return subscription.reader if subscription else None

    async def unsubscribe(self, names: tuple[str, ...], reader: object) -> None:
        """End the subscription that `reader` identifies, if the node of these keys still has it."""
        subscription = self._subscriptions.get(self._home(names[0]))
        if subscription is not None and subscription.reader is reader:
            await subscription.close()

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Scan the leases of all nodes, then read those that match."""
        wanted = compiled(match)
        with outages():
            leases = self._cluster.scan_iter(match=f"{self.names.lease_start}*", count=SCAN_COUNT)
            keys = {key async for lease in leases if wanted.fullmatch(key := self.names.key_of(lease.decode()))}
        found = [await self.find(key) for key in sorted(keys)[:limit]]
        return [holding for holding in found if holding]

    async def find(self, key: str) -> Holding | None:
        """Read one lease from the node that has it."""

        async def ask(*words: Any) -> Any:
            # The clock of any node is good enough to say how old a lease is.
            where = {"target_nodes": self._cluster.get_random_node()} if words == ("TIME",) else {}
            return await self._cluster.execute_command(*words, **where)

        with outages():
            await self._cluster.initialize()
            return await read_holding(ask, self.names, key)

    async def ping(self) -> None:
        """Return if every primary answers PING."""
        with outages():
            await self._cluster.initialize()
            await self._cluster.ping(target_nodes=RedisCluster.PRIMARIES)

    async def close(self) -> None:
        """End the subscriptions and disconnect from all nodes."""
        for subscription in self._subscriptions.values():
            await subscription.close()
        await self.connection.close()

    def _home(self, name: str) -> tuple[str, int]:
        """The node that has this key, as far as is known."""
        try:
            node = self._cluster.nodes_manager.get_node_from_slot(slot_of(name))
        except (RedisError, KeyError, IndexError):
            return ("", 0)
        return (str(node.host), int(node.port))
