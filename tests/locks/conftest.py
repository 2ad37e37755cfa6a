"""Every place where locks live, as real servers that start once and only when a test asks for them."""

from __future__ import annotations

import itertools
import os
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
from tests import skip_summary
from tests.pgbouncer import pgbouncer_program

from earmark.locks.backend_protocol import Group
from earmark.testservers import ServerUnavailable

from .topologies import start_cluster, start_one, start_redlock, start_sentinels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.pgbouncer import PgBouncer

    from earmark.locks import Locks
    from earmark.testservers import Postgres

    from .topologies import Cluster, Sentinels, Topology

GROUPS = {
    "memory": {Group.FIFO, Group.FENCE, Group.MANY},
    "redis": {Group.FIFO, Group.FENCE, Group.MANY},
    "sentinel": {Group.FIFO, Group.FENCE, Group.MANY},
    "cluster": {Group.FIFO, Group.FENCE, Group.MANY},
    "redlock": {Group.MANY},
    "postgres": {Group.FENCE, Group.MANY},
    "pgbouncer": {Group.FENCE, Group.MANY},
}
"""What each place must be able to do beyond the core. A backend that stops declaring a group fails a test."""
BOUNCER_ABSENT = pgbouncer_program() is None
PLACES = tuple(name for name in GROUPS if name != "pgbouncer" or not BOUNCER_ABSENT)
TWINS = {"sentinel": "redis", "cluster": "redis", "pgbouncer": "postgres"}
"""The same backend behind another way to it. What has to wait for time to pass is asked of a twin in a proof only."""
PROOF = bool(os.environ.get("EARMARK_PROOF"))
TIMED = tuple(name for name in PLACES if name not in TWINS or PROOF)
MANY_SERVERS = ("sentinel", "cluster")
"""Twins of five and six servers, which take seconds to start. Outside a proof `WITH_MANY_SERVERS` alone ask them."""
WITH_MANY_SERVERS = ("test_core", "test_fifo")
OF_MANY_SERVERS: Literal["session", "module"] = "session" if PROOF else "module"
"""How long they run: two files ask them, after which they would only use up the core; in a proof nearly all do."""
SHARED = tuple(name for name in PLACES if name != "memory")
"""Where two programs can meet: locks in memory are one program's own."""
ANSWER_SECONDS_MAX = 5.0
"""Far above what any server needs, so that a busy machine fails no test that is about something else."""

_numbers = itertools.count(1)


class Place(msgspec.Struct, frozen=True):
    """Where locks are kept, and a prefix that no other test uses."""

    name: str
    url: str
    prefix: str

    def open(self, **knobs: Any) -> Locks:
        """Locks on this place. Opened twice, they are rivals for the same keys, as two processes would be."""
        from earmark.locks import Locks

        return Locks.from_url(self.url, **{"prefix": self.prefix, "timeout": ANSWER_SECONDS_MAX, **knobs})


def unavailable(reason: ServerUnavailable) -> Any:
    """A server that cannot be started skips its tests with one loud line, or fails them where it is demanded."""
    skip_summary.missing("LOCKS ARE NOT TESTED ON A REAL SERVER", reason)


def _serve(start: Callable[[], Any]) -> Iterator[Any]:
    try:
        topology = start()
    except ServerUnavailable as reason:
        unavailable(reason)
    with topology:
        yield topology


@pytest.fixture(scope="session")
def one_redis() -> Iterator[Topology]:
    """One Redis server without replicas."""
    yield from _serve(start_one)


@pytest.fixture(scope=OF_MANY_SERVERS)
def sentinels() -> Iterator[Sentinels]:
    """A primary, its replica and three sentinels. No test kills any of these: one that does starts its own."""
    yield from _serve(start_sentinels)


@pytest.fixture(scope=OF_MANY_SERVERS)
def cluster() -> Iterator[Cluster]:
    """Six nodes. No test kills any of these: one that does starts its own."""
    yield from _serve(start_cluster)


@pytest.fixture(scope="session")
def redlock_nodes() -> Iterator[Topology]:
    """Five nodes that share nothing. No test kills any of these: one that does starts its own."""
    yield from _serve(start_redlock)


@pytest.fixture(scope="session")
def locks_database(postgres_server: Postgres) -> Iterator[str]:
    """A database for leases alone: the lock toolkit needs nothing of the booking engine in it."""
    name = f"earmark_locks_{os.getpid()}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer_url(locks_database: str, pgbouncer: PgBouncer) -> str:
    """The same database through PgBouncer."""
    return pgbouncer.to(locks_database)


def url_of(name: str, request: pytest.FixtureRequest) -> str:
    """The address of a place, whose servers start now if they have not."""
    fixtures = {"redis": "one_redis", "sentinel": "sentinels", "cluster": "cluster", "redlock": "redlock_nodes"}
    if name in fixtures:
        url: str = request.getfixturevalue(fixtures[name]).url
        return url
    if name == "memory":
        return "memory://"
    address: str = request.getfixturevalue({"postgres": "locks_database", "pgbouncer": "pgbouncer_url"}[name])
    return address


def make_place(name: str, request: pytest.FixtureRequest) -> Place:
    return Place(name, url_of(name, request), f"test{os.getpid()}x{next(_numbers)}")


GROUP_OF = {"place": None, "fifo_place": Group.FIFO, "fence_place": Group.FENCE, "many_place": Group.MANY}
"""Fixtures that are each place in turn, and the group that a place must declare for it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on every place, unless it names its own."""
    named = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    sampled = PROOF or metafunc.module.__name__.rpartition(".")[2] in WITH_MANY_SERVERS
    for fixture, group in GROUP_OF.items():
        if fixture in metafunc.fixturenames and fixture not in named:
            places = [name for name in declaring(group) if sampled or name not in MANY_SERVERS]
            metafunc.parametrize(fixture, places, indirect=True)


def declaring(group: Group | None) -> list[str]:
    """The places that can do this."""
    return [name for name in PLACES if group is None or group in GROUPS[name]]


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """Each of the places in turn."""
    return make_place(request.param, request)


@pytest.fixture
def redis_place(request: pytest.FixtureRequest) -> Place:
    """One server alone, for what is asked of the server itself."""
    return make_place("redis", request)


@pytest.fixture
async def open_locks() -> AsyncIterator[Callable[..., Locks]]:
    """Opens locks on a place and closes them after the test."""
    async with AsyncExitStack() as stack:

        def opened(place: Place, **knobs: Any) -> Locks:
            locks = place.open(**knobs)
            stack.push_async_callback(locks.close)
            return locks

        yield opened


@pytest.fixture
def open_plain() -> Iterator[Callable[..., Locks]]:
    """The same for tests without an event loop."""
    with ExitStack() as stack:

        def opened(place: Place, **knobs: Any) -> Locks:
            locks = place.open(**knobs)
            stack.callback(locks.sync.close)
            return locks

        yield opened


@pytest.fixture
def locks(place: Place, open_locks: Callable[..., Locks]) -> Locks:
    """Locks on each of the places in turn, for tasks."""
    return open_locks(place)


@pytest.fixture
def plain_locks(place: Place, open_plain: Callable[..., Locks]) -> Locks:
    """Locks on each of the places in turn, for threads."""
    return open_plain(place)


@pytest.fixture
def fifo_place(request: pytest.FixtureRequest) -> Place:
    """Each of the backends with a queue."""
    return make_place(request.param, request)


@pytest.fixture
def fence_place(request: pytest.FixtureRequest) -> Place:
    """Each of the places that count a fence."""
    return make_place(request.param, request)


@pytest.fixture
def many_place(request: pytest.FixtureRequest) -> Place:
    """Each of the places that give several keys at once."""
    return make_place(request.param, request)
