"""Leases on a Redis Cluster.

A script can touch one hash slot only, so calls travel grouped by slot, each group with the fence counter of its slot.
A hand-over is published on the node that holds the keys, and only that node can count who heard it: each node that
somebody waits at is listened to.
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
from earmark.locks.globs import compiled
from earmark.locks.redis.inbox import Inbox, Post
from earmark.locks.redis.script import Call, LeaseScript, Names, Script
from earmark.locks.redis.servers import SCAN_COUNT, connection_options, outages, read_holding

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from earmark.locks.ports import Holding

REDIRECTIONS_MAX = 3


_tags: dict[int, str] = {}
_numbers = itertools.count()


def tag_in(slot: int) -> str:
    """A short hash tag that lies in this slot. Found by trying, and remembered."""
    while slot not in _tags:
        tag = str(next(_numbers))
        _tags.setdefault(key_slot(tag.encode()), tag)
    return _tags[slot]


def slot_of(name: str) -> int:
    """The slot of a Redis key."""
    return key_slot(name.encode())


class SlotLeaseScript(LeaseScript):
    """`leases.lua`, with a fence for each slot."""

    def fence(self, slot: int | None) -> str:
        """What counts the grants of a slot."""
        assert slot is not None
        return f"{self._names.fence}:{{{tag_in(slot)}}}"


class ClusterWire:
    """Sends each call to the node that has its keys."""

    def __init__(self, cluster: RedisCluster, *, script: Script, timeout: float) -> None:
        self._cluster = cluster
        self._script = script
        self._timeout = timeout
        self._met = False
        self._meeting = asyncio.Lock()
        self._left_behind: set[asyncio.Task[list[Any]]] = set()

    async def meet(self) -> None:
        """Find out who has which slot, if that is not known. One asks for all: redis-py stumbles over several."""
        async with self._meeting:
            with outages():
                await self._cluster.initialize()
        self._met = True

    async def send(self, calls: Sequence[Call], *, deadline: float | None = None) -> list[Any]:
        """One script for each slot, all at once. A node that is silent costs nobody else the answer."""
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
            told = [group] * len(places) if isinstance(group, BaseException) else group
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer
        return answers

    async def ping(self) -> None:
        """Return if every primary answers."""
        await self.meet()
        with outages():
            await self._cluster.ping(target_nodes=RedisCluster.PRIMARIES)

    async def settle(self) -> None:
        """Wait for the answers that nobody waits for."""
        if self._left_behind:
            await asyncio.wait(self._left_behind)

    async def close(self) -> None:
        """Disconnect."""
        await self.settle()
        await self._cluster.aclose()

    async def _send(self, slot: int, calls: Sequence[Call]) -> list[Any]:
        arguments = self._script.frame(calls, slot=slot)
        if not self._met:
            await self.meet()
        try:
            with outages():
                try:
                    answers = await self._cluster.execute_command("EVALSHA", *arguments)
                except NoScriptError:
                    arguments[0] = self._script.source
                    answers = await self._cluster.execute_command("EVAL", *arguments)
        except BaseException:
            self._script.lost()
            raise
        return self._script.read(calls, answers)

    async def _in_time(self, work: Coroutine[Any, Any, list[Any]], deadline: float | None) -> list[Any]:
        """Redirections and reconnections have deadlines of their own; together they have this one.

        Whoever asks may go; the call goes on, for what was sent may be carried out.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        timer = loop.call_at(loop.time() + self._timeout if deadline is None else deadline, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._left_behind.add(task)
                task.add_done_callback(self._left_behind.discard)
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
        self.names = Names(prefix)
        self._timeout = timeout
        self._options = {name: value for name, value in options.items() if name != "ssl"}
        self._ssl = bool(options.get("ssl"))
        self._cluster = open_cluster(nodes, timeout=timeout, options=options)
        self.post = Post(prefix=prefix)
        script = SlotLeaseScript(self.names, self.post)
        self.wire = ClusterWire(self._cluster, script=script, timeout=timeout)
        self._inboxes: dict[tuple[str, int], Inbox] = {}
        self._ready = asyncio.Lock()

    def check_together(self, keys: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Keys of one slot can be locked in one step, others cannot."""
        if len({slot_of(name) for name in names}) > 1:
            raise KeysApart(keys=keys)

    def listening(self, names: tuple[str, ...]) -> bool:
        """Whether the node of these keys is listened to."""
        inbox = self._inboxes.get(self._home(names[0]))
        return inbox is not None and inbox.open

    async def listen(self, names: tuple[str, ...]) -> None:
        """Subscribe at the node that has these keys now."""
        with outages():
            await self._cluster.initialize()
        home = self._home(names[0])
        if home not in self._inboxes:
            host, port = home
            kind = SSLConnection if self._ssl else Connection
            told = {**connection_options(self._timeout), **self._options}
            pool = ConnectionPool(connection_class=kind, host=host, port=port, **told)
            self._inboxes[home] = Inbox(pool, self.post, timeout=self._timeout)
        if not self._inboxes[home].open:
            await self._inboxes[home].listen()

    def ears(self, names: tuple[str, ...]) -> object:
        """The subscription to the node that has these keys."""
        inbox = self._inboxes.get(self._home(names[0]))
        return inbox.reader if inbox else None

    async def stop_listening(self, names: tuple[str, ...], ears: object) -> None:
        """Hang up at the node that has these keys, unless somebody has done so already."""
        inbox = self._inboxes.get(self._home(names[0]))
        if inbox is not None and inbox.reader is ears:
            await inbox.close()

    async def holdings(self, *, match: str, limit: int) -> list[Holding]:
        """Walk over the leases of all nodes."""
        wanted = compiled(match)
        with outages():
            leases = self._cluster.scan_iter(match=f"{self.names.lease_start}*", count=SCAN_COUNT)
            keys = {key async for lease in leases if wanted.fullmatch(key := self.names.key_of(lease.decode()))}
        found = [await self.find(key) for key in sorted(keys)[:limit]]
        return [holding for holding in found if holding]

    async def find(self, key: str) -> Holding | None:
        """Look at one lease, at the node that has it."""

        async def ask(*words: Any) -> Any:
            # Any node's clock will do to say how old a lease is.
            where = {"target_nodes": self._cluster.get_random_node()} if words == ("TIME",) else {}
            return await self._cluster.execute_command(*words, **where)

        with outages():
            await self._cluster.initialize()
            return await read_holding(ask, self.names, key)

    async def ping(self) -> None:
        """Ask for the nodes, which is a sign of life."""
        with outages():
            await self._cluster.initialize()
            await self._cluster.ping(target_nodes=RedisCluster.PRIMARIES)

    async def close(self) -> None:
        """Disconnect."""
        for inbox in self._inboxes.values():
            await inbox.close()
        await self.wire.close()

    def _home(self, name: str) -> tuple[str, int]:
        """The node that has this key, as far as is known."""
        try:
            node = self._cluster.nodes_manager.get_node_from_slot(slot_of(name))
        except (RedisError, KeyError, IndexError):
            return ("", 0)
        return (str(node.host), int(node.port))
