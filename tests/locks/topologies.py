"""Real servers in every shape that a lock can live on: one alone, Sentinel, a Cluster, and nodes that share nothing.

The servers of one shape start side by side. Each shape is ready when the servers themselves say so, and any node of
it can be killed and started again: `node.kill()` is kill -9, `node.start()` brings the process back, empty.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from earmark.testservers import Valkey, start_valkey
from earmark.testservers.valkey import URL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

SERVICE = "earmark"
SLOTS = 16_384
# Five times what a failover takes here, and more: it is a bound that is not reached when all is well.
READY_SECONDS_MAX = 60.0

_POLL_SECONDS = 0.02
_CALL_SECONDS_MAX = 5.0
_QUICK_SYNC = ("--repl-diskless-sync-delay", "0")
# Half a second of silence is a death here. Shorter, and a busy machine loses primaries that live.
_SENTINEL_SETTINGS = ("down-after-milliseconds", "500", "failover-timeout", "5000")
# How often sentinels speak to each other (every 2 s) and look at the servers (every 10 s), in milliseconds.
_SENTINEL_PERIODS = ("PUBLISH-PERIOD", "200", "INFO-PERIOD", "200", "ASK-PERIOD", "200")
_CLUSTER_ARGUMENTS = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
    *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
    *_QUICK_SYNC,
)

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


class Topology:
    """Servers that belong together, and the address by which locks are opened on them."""

    def __init__(self, nodes: Iterable[Valkey], *, url: str) -> None:
        self.nodes = tuple(nodes)
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every server and remove its directory."""
        _close_all(self.nodes)

    def primaries(self) -> tuple[Valkey, ...]:
        """The servers that grant locks at this moment."""
        return self.nodes

    def restore(self) -> None:
        """Start whatever was killed, and wait until all is as it was in the beginning, but for who leads whom."""
        side_by_side(_start_if_dead, self.nodes)


class Sentinels(Topology):
    """One primary, one replica, and three sentinels that watch them."""

    def __init__(self, data: tuple[Valkey, Valkey], sentinels: tuple[Valkey, ...]) -> None:
        addresses = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        super().__init__((*data, *sentinels), url=f"sentinel://{addresses}/{SERVICE}?db=0")
        self.data = data
        self.sentinels = sentinels

    def primaries(self) -> tuple[Valkey, ...]:
        """The one that the first sentinel names."""
        port = self._primary_port(self.sentinels[0])
        return tuple(node for node in self.data if node.port == port)

    def replicas(self) -> tuple[Valkey, ...]:
        """The data node that is not the primary."""
        return tuple(node for node in self.data if node not in self.primaries())

    def kill_primary(self) -> Valkey:
        """Kill -9 the primary, and return it. `wait_for_successor` waits for the next one."""
        (primary,) = self.primaries()
        primary.kill()
        return primary

    def wait_for_successor(self, killed: Valkey) -> Valkey:
        """The replica, once every sentinel names it and it takes writes."""
        (successor,) = (node for node in self.data if node is not killed)
        wait_until(
            lambda: (
                all(self._primary_port(sentinel) == successor.port for sentinel in self.sentinels)
                and replication(successor)["role"] == "master"
            )
        )
        return successor

    def restore(self) -> None:
        """Restart a server that died as the primary as a replica: it is empty, and must not become the primary."""
        super().restore()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Every sentinel knows the others and the replica, and the replica has all that the primary has."""
        wait_until(lambda: all(self._is_complete(sentinel) for sentinel in self.sentinels) and self._is_in_step())

    def _is_complete(self, sentinel: Valkey) -> bool:
        seen = _pairs(ask(sentinel, "SENTINEL", "MASTER", SERVICE))
        replicas = [_pairs(replica) for replica in ask(sentinel, "SENTINEL", "REPLICAS", SERVICE)]
        return (
            seen["num-other-sentinels"] == str(len(self.sentinels) - 1)
            and seen["flags"] == "master"
            and [replica["flags"] for replica in replicas] == ["slave"]
        )

    def _is_in_step(self) -> bool:
        seen = [replication(node) for node in self.data]
        roles = sorted(each["role"] for each in seen)
        return roles == ["master", "slave"] and all(each.get("master_link_status", "up") == "up" for each in seen)

    @staticmethod
    def _primary_port(sentinel: Valkey) -> int:
        return int(ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])


class Cluster(Topology):
    """Three primaries that share out the slots, and a replica of each."""

    def __init__(self, nodes: tuple[Valkey, ...]) -> None:
        super().__init__(nodes, url="cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))

    def primaries(self) -> tuple[Valkey, ...]:
        """The servers that own slots, as the first living one sees it."""
        ports = set(self._owners(self._living()[0]).values())
        return tuple(node for node in self.nodes if node.port in ports)

    def owner(self, key: str) -> Valkey:
        """The server that grants this key."""
        node = self._living()[0]
        slot = ask(node, "CLUSTER", "KEYSLOT", key)
        port = next(port for (first, last), port in self._owners(node).items() if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def wait_for_successor(self, killed: Valkey) -> None:
        """Until every living server says that the slots of the killed one are another's."""
        wait_until(lambda: all(self._is_whole(node) and not self._owns(node, killed) for node in self._living()))

    def restore(self) -> None:
        """Restart a server that died as a primary as a replica of its successor."""
        super().restore()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Every server sees every slot owned by one of three, and the replicas have all that these have."""
        wait_until(lambda: all(self._is_whole(node) and self._is_in_step(node) for node in self.nodes))

    def _living(self) -> list[Valkey]:
        return [node for node in self.nodes if is_alive(node)]

    def _owns(self, seen_from: Valkey, node: Valkey) -> bool:
        return node.port in self._owners(seen_from).values()

    def _is_whole(self, node: Valkey) -> bool:
        owners = self._owners(node)
        return sum(last - first + 1 for first, last in owners) == SLOTS and len(set(owners.values())) == 3

    @staticmethod
    def _is_in_step(node: Valkey) -> bool:
        seen = replication(node)
        healthy = "cluster_state:ok" in ask(node, "CLUSTER", "INFO")
        return healthy and (seen["connected_slaves"] == "1" or seen.get("master_link_status") == "up")

    @staticmethod
    def _owners(node: Valkey) -> dict[tuple[int, int], int]:
        """Which port owns which slots."""
        owners = {}
        for line in ask(node, "CLUSTER", "NODES").splitlines():
            _, address, flags, _, _, _, _, _, *slots = line.split()
            if "master" not in flags.split(","):
                continue
            for slot in slots:
                first, _, last = slot.partition("-")
                owners[int(first), int(last or first)] = int(address.partition("@")[0].rpartition(":")[2])
        return owners


def start_one() -> Topology:
    """One server alone: a private one, or the one that the environment names."""
    server = start_valkey()
    return Topology((server,), url=server.url)


def start_private() -> Topology:
    """One server alone that a test may kill and empty, whatever the environment names."""
    (server,) = _start_all([()])
    return Topology((server,), url=server.url)


def start_redlock(count: int = 5) -> Topology:
    """Servers that know nothing of each other."""
    nodes = _start_all([()] * count)
    return Topology(nodes, url=",".join(node.url for node in nodes))


def start_sentinels() -> Sentinels:
    """A primary with a replica under three sentinels, ready to lose one."""
    primary, replica, *sentinels = _start_all([_QUICK_SYNC] * 2 + [("--sentinel",)] * 3)
    topology = Sentinels((primary, replica), tuple(sentinels))
    try:
        ask(replica, "REPLICAOF", "127.0.0.1", str(primary.port))
        # First the replica, then the sentinels: they ask for replicas when they arrive and then every ten seconds.
        wait_until(lambda: replication(replica)["master_link_status"] == "up")
        for sentinel in sentinels:
            ask(sentinel, "SENTINEL", "DEBUG", *_SENTINEL_PERIODS)
            ask(sentinel, "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", str(primary.port), "2")
            ask(sentinel, "SENTINEL", "SET", SERVICE, *_SENTINEL_SETTINGS)
        topology.wait_until_ready()
    except BaseException:
        topology.close()
        raise
    return topology


def start_cluster() -> Cluster:
    """Six servers: three primaries and a replica of each."""
    nodes = _start_all([_CLUSTER_ARGUMENTS] * 6)
    topology = Cluster(nodes)
    try:
        _join(nodes)
        topology.wait_until_ready()
    except BaseException:
        topology.close()
        raise
    return topology


def _join(nodes: tuple[Valkey, ...]) -> None:
    """Share out the slots, make all nodes known to each other, and make the second half replicas of the first."""
    primaries, replicas = nodes[:3], nodes[3:]
    share = -(-SLOTS // len(primaries))
    for number, node in enumerate(nodes):
        ask(node, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
    for number, node in enumerate(primaries):
        first, last = number * share, min((number + 1) * share, SLOTS) - 1
        ask(node, "CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
    for node in nodes:
        for other in nodes:
            if other is not node:
                ask(node, "CLUSTER", "MEET", "127.0.0.1", str(other.port))
    for primary, replica in zip(primaries, replicas, strict=True):
        name = ask(primary, "CLUSTER", "MYID")
        wait_until(partial(_accepts, replica, "CLUSTER", "REPLICATE", name))


def ask(node: Valkey, *command: str) -> Any:
    """One command to one server, on a connection of its own. The answer is as the server gave it."""
    client = redis.Redis(
        port=node.port, protocol=2, decode_responses=True, socket_timeout=_CALL_SECONDS_MAX, retry=Retry(NoBackoff(), 0)
    )
    client.response_callbacks.clear()
    with closing(client):
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


def replication(node: Valkey) -> dict[str, str]:
    """What a server says of its primary or its replicas."""
    lines = ask(node, "INFO", "replication").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def is_alive(node: Valkey) -> bool:
    """Whether the server answers a PING."""
    try:
        ask(node, "PING")
    except redis.RedisError:
        return False
    return True


def wait_until(fact: Callable[[], bool], *, seconds: float = READY_SECONDS_MAX) -> None:
    """Wait for a fact. A server that does not answer yet, or answers with a refusal, is no fact yet."""
    deadline = time.monotonic() + seconds
    problem: object = "it is not so"
    while True:
        try:
            if fact():
                return
        except (redis.RedisError, KeyError, IndexError, ValueError) as error:
            problem = error
        assert time.monotonic() < deadline, f"the fact never came: {problem}"
        time.sleep(_POLL_SECONDS)


def side_by_side(act: Callable[[_Item], _Answer], items: Iterable[_Item]) -> list[_Answer]:
    """In one thread each. The first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=16) as threads:
        return list(threads.map(act, items))


def _start_all(arguments: list[tuple[str, ...]]) -> tuple[Valkey, ...]:
    """All of them or none: what did start is closed when one of them does not."""
    address = os.environ.pop(URL_VARIABLE, None)
    try:
        with ThreadPoolExecutor(max_workers=len(arguments)) as threads:
            waiting = [threads.submit(start_valkey, arguments=each) for each in arguments]
        failures = [error for each in waiting if (error := each.exception()) is not None]
        if failures:
            _close_all([each.result() for each in waiting if each.exception() is None])
            raise failures[0]
        return tuple(each.result() for each in waiting)
    finally:
        if address is not None:
            os.environ[URL_VARIABLE] = address


def _close_all(nodes: Iterable[Valkey]) -> None:
    side_by_side(Valkey.close, nodes)


def _start_if_dead(node: Valkey) -> None:
    if not is_alive(node):
        node.start()


def _accepts(node: Valkey, *command: str) -> bool:
    ask(node, *command)
    return True


def _pairs(answer: list[str]) -> dict[str, str]:
    """What a sentinel says of something, by name."""
    return dict(zip(answer[::2], answer[1::2], strict=True))
