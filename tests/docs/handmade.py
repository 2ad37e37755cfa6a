"""Measures each hand-made part beside the library that could replace it: the figures of docs/explanation/handmade.md.

    .venv/bin/python -m tests.docs.handmade

Both sides run in turn in the same process, many short rounds, and the order changes with every round. What counts is
the processor time of this process, and the ratio is the median of the rounds' ratios: other programs on the machine and
the time that a server takes to answer hardly change it.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import logging
import statistics
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from redis.asyncio import ConnectionPool, Redis
from starlette.routing import Route
from starlette.routing import Router as StarletteRouter

from earmark.api.app import ENDPOINTS
from earmark.api.match_path_to_endpoint import Router
from earmark.api.middleware.read_and_decode_body import BodyTimeout
from earmark.locks.circuit_breaker import Breaker
from earmark.locks.redis.call_batching import CallBatcher
from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall
from earmark.locks.redis.script_connection import ServerConnection
from earmark.observability import logs
from earmark.observability.metrics.counter_and_histogram_classes import LabelledCounter, LabelledHistogram
from earmark.store.postgres.connections import PostgresConnections
from earmark.store.postgres.optimistic_transaction_connections import IdleConnections
from earmark.testservers import start_postgres, start_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Work = Callable[[int], Awaitable[None]]

ROUNDS = 31
TASKS = 50
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUERY = "SELECT $1::int"


class Comparison(NamedTuple):
    """One part: what it is called on the page, what it replaces, and both sides of the measurement."""

    part: str
    library: str
    times: int
    """How many operations one side does in a round."""
    ours: Work
    theirs: Work


class Figure(NamedTuple):
    """Microseconds of processor time for one operation on either side, and the ratio."""

    part: str
    library: str
    ours_us: float
    theirs_us: float
    ratio: float


async def measure(one: Comparison, *, rounds: int = ROUNDS, times: int | None = None) -> Figure:
    """Both sides in turn; the first round only warms up."""
    count = times or one.times
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        sides = [(one.ours, ours), (one.theirs, theirs)]
        for work, took in sides if number % 2 else reversed(sides):
            gc.collect()
            began = time.process_time()
            await work(count)
            if number:
                took.append((time.process_time() - began) / count * 1e6)
    ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    return Figure(one.part, one.library, statistics.median(ours), statistics.median(theirs), ratio)


def router() -> Comparison:
    """Find the endpoint of a request, by the table of the API's own endpoints."""
    requests = [("POST", "/v1/bookings"), ("POST", "/v1/bookings/0190a1b2/confirm"), ("GET", "/v1/bookings/0190a1b2")]

    class Endpoint:
        """An ASGI application that answers nothing."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            pass

    def scopes(count: int) -> list[dict[str, Any]]:
        return [
            {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
            for method, path in (requests[number % len(requests)] for number in range(count))
        ]

    endpoint: Any = Endpoint()
    plain = Router([(call.method, call.path, endpoint) for call in ENDPOINTS], otherwise=endpoint)
    library = StarletteRouter([Route(call.path, endpoint, methods=[call.method]) for call in ENDPOINTS])

    def through(app: Any) -> Work:
        async def work(count: int) -> None:
            for scope in scopes(count):
                await app(scope, None, None)

        return work

    return Comparison("router", "`starlette.routing.Router`", 1500, through(plain), through(library))


def read_timer() -> Comparison:
    """Wait for a body that is already there, with a time limit."""
    patience = BodyTimeout(30.0)

    async def body() -> bytes:
        return b""

    async def ours(count: int) -> None:
        for _ in range(count):
            await patience.wait(body())

    async def theirs(count: int) -> None:
        for _ in range(count):
            async with asyncio.timeout(30.0):
                await body()

    return Comparison("read timer", "`asyncio.timeout`", 3000, ours, theirs)


def counters() -> Comparison:
    """Count a request by two labels."""
    count_, library = (
        LabelledCounter("calls", "Calls.", ("verb", "outcome")),
        Counter("calls", "Calls.", ("verb", "outcome"), registry=CollectorRegistry()),
    )

    async def ours(count: int) -> None:
        for _ in range(count):
            count_.add("hold", "ok")

    async def theirs(count: int) -> None:
        for _ in range(count):
            library.labels("hold", "ok").inc()

    return Comparison("counters", "`prometheus_client.Counter`", 5000, ours, theirs)


def histograms() -> Comparison:
    """Record the duration of a request by one label."""
    spread = LabelledHistogram("seconds", "Seconds.", ("verb",), bounds=BOUNDS)
    library = Histogram("seconds", "Seconds.", ("verb",), buckets=BOUNDS, registry=CollectorRegistry())

    async def ours(count: int) -> None:
        for _ in range(count):
            spread.observe(0.02, "hold")

    async def theirs(count: int) -> None:
        for _ in range(count):
            library.labels("hold").observe(0.02)

    return Comparison("histograms", "`prometheus_client.Histogram`", 5000, ours, theirs)


def log_line() -> Comparison:
    """Write the one line of a request, as JSON without secrets, to a file in memory."""
    log = logs.get()
    said = {"booking": "0190a1b2-0000-7000-8000-000000000001", "outcome": "ok", "status": 200, "took_ms": 1.2}

    async def ours(count: int) -> None:
        for _ in range(count):
            logs.write(logging.INFO, "confirm", **said)

    async def theirs(count: int) -> None:
        for _ in range(count):
            log.info("confirm", **said)

    return Comparison("log fast path", "`structlog` through `logging`", 1000, ours, theirs)


def idle_connections(connections: PostgresConnections, idle: IdleConnections) -> Comparison:
    """Borrow a connection and run one statement on it."""
    loop = asyncio.get_running_loop()

    async def ours(count: int) -> None:
        for number in range(count):
            async with idle.connection(until=loop.time() + 10) as connection:
                await connection.fetch(QUERY, number)

    async def theirs(count: int) -> None:
        for number in range(count):
            async with connections.pool.acquire(timeout=10) as connection:
                await connection.fetch(QUERY, number, timeout=10)

    return Comparison("idle connections", "`asyncpg.Pool`", 300, ours, theirs)


class Echo:
    """A script that returns its arguments, one for each call."""

    source = b"return ARGV"
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()

    def frame(self, calls: Sequence[ScriptCall], *, slot: int | None = None) -> list[Any]:  # noqa: ARG002 (the port has it)
        """One argument for each call."""
        return [self.sha, 0, *(call.words[0] for call in calls)]

    def read(self, calls: Sequence[ScriptCall], answers: Any, *, repeated: bool = False) -> list[Any]:  # noqa: ARG002
        """As they are."""
        return list(answers)

    def note_lost_answer(self) -> None:
        """Nothing depends on it."""


def redis_wire(wire: ServerConnection, client: Redis) -> Comparison:
    """One script call by one caller."""
    call = ScriptCall((), ("word",))

    async def ours(count: int) -> None:
        for _ in range(count):
            await wire.send([call])

    async def theirs(count: int) -> None:
        for _ in range(count):
            await client.evalsha(Echo.sha, 0, "word")

    return Comparison("Redis wire", "`redis.asyncio.Redis`", 300, ours, theirs)


def by_tasks(ask: Callable[[], Awaitable[Any]]) -> Work:
    """The same call by fifty tasks at once."""

    async def work(count: int) -> None:
        async def one() -> None:
            for _ in range(max(1, count // TASKS)):
                await ask()

        await asyncio.gather(*(one() for _ in range(TASKS)))

    return work


def redis_batches(wire: ServerConnection, client: Redis) -> Comparison:
    """Script calls of fifty tasks, sent together or one by one."""
    call, batcher = ScriptCall((), ("word",)), CallBatcher(wire, breaker=Breaker())
    ours, theirs = by_tasks(lambda: batcher.send(call)), by_tasks(lambda: client.evalsha(Echo.sha, 0, "word"))
    return Comparison("Redis batches", "`redis.asyncio.Redis`, a call each", 20 * TASKS, ours, theirs)


class ClientWire:
    """What the wire would be over redis-py's client."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def send(self, calls: Sequence[ScriptCall], *, deadline: float | None = None) -> list[Any]:
        """All calls in one script, within five seconds."""
        async with asyncio.timeout(5.0 if deadline is None else deadline):
            sha, keys, *words = Echo().frame(calls)
            answers: list[Any] = await self._client.evalsha(sha, keys, *words)
            return answers

    async def wait_for_abandoned_calls(self) -> None:
        """Nothing is read out."""

    async def close(self) -> None:
        """The client is closed elsewhere."""


def redis_wire_of_batches(wire: ServerConnection, client: Redis) -> Comparison:
    """Batches over the wire, and the same batches over redis-py's client."""
    call = ScriptCall((), ("word",))
    ours, theirs = CallBatcher(wire, breaker=Breaker()), CallBatcher(ClientWire(client), breaker=Breaker())
    work = by_tasks(lambda: ours.send(call)), by_tasks(lambda: theirs.send(call))
    return Comparison("Redis wire under batches", "batches over `redis.asyncio.Redis`", 20 * TASKS, *work)


@asynccontextmanager
async def comparisons(*, database_url: str, redis_url: str) -> AsyncIterator[list[Comparison]]:
    """All of them, in the order of the page, while their connections are open."""
    logs.configure("info", stream=io.StringIO())
    async with AsyncExitStack() as stack:
        connections = PostgresConnections(database_url, connections_max=2)
        await connections.open()
        stack.push_async_callback(connections.pool.close)
        idle = IdleConnections(connections)
        stack.push_async_callback(idle.close)
        client = await stack.enter_async_context(Redis.from_url(redis_url, protocol=2))
        await client.script_load(Echo.source)
        pool = ConnectionPool.from_url(redis_url, protocol=2)
        wire = ServerConnection(pool, script=Echo(), timeout=5.0)
        stack.push_async_callback(wire.close)
        yield [
            router(),
            read_timer(),
            idle_connections(connections, idle),
            counters(),
            histograms(),
            log_line(),
            redis_wire(wire, client),
            redis_batches(wire, client),
            redis_wire_of_batches(wire, client),
        ]


def row(figure: Figure) -> str:
    """One line of the page's table."""
    return f"| {figure.part} | {figure.library} | {figure.ours_us:.1f} | {figure.theirs_us:.1f} | {figure.ratio:.1f} |"


async def main() -> None:
    """Print the page's table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with start_postgres() as postgres, start_valkey() as valkey:
        postgres.create_database("handmade")
        async with comparisons(database_url=postgres.url("handmade"), redis_url=valkey.url) as found:
            sys.stdout.write("| part | library | ours, µs | library, µs | ratio |\n|---|---|---|---|---|\n")
            for one in found:
                sys.stdout.write(row(await measure(one)) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
