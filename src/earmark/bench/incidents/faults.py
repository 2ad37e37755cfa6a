"""The incidents. Each begins when its context is entered; its cause has ended when the context is left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from earmark.bench.incidents.start_and_sample_tested_server import freeze, thaw
from earmark.bench.named_sql import named_sql
from earmark.testservers.postgres_standby import promote, restart_as_standby

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from earmark.bench.incidents.start_and_sample_tested_server import SystemUnderTest
    from earmark.testservers import Postgres


class Incident(NamedTuple):
    """One kind of incident, and its default load."""

    said: str
    happens: Callable[[SystemUnderTest], AbstractAsyncContextManager[None]]
    seconds: float = 20.0
    clients: int = 24
    hot: bool = False
    """Whether it blocks one event only."""
    with_standby: bool = False


@asynccontextmanager
async def lock_row(system: SystemUnderTest) -> AsyncIterator[None]:
    """Another session locks the row of the first event's pool and stays idle."""
    connection = await system.connect(system.primary)
    try:
        async with connection.transaction():
            await connection.fetch(named_sql(__package__, "list_buyers_and_lock_pool")["lock_pool"], system.events[0])
            yield
    finally:
        await connection.close(timeout=10)


@asynccontextmanager
async def pause_server(system: SystemUnderTest) -> AsyncIterator[None]:
    """The server's process is stopped, as by a host that swaps or a debugger; connections stay open."""
    freeze(system.process.pid)
    try:
        yield
    finally:
        thaw(system.process.pid)


@asynccontextmanager
async def stop_database(system: SystemUnderTest) -> AsyncIterator[None]:
    """PostgreSQL is stopped in an orderly way, and started again."""
    await asyncio.to_thread(system.primary.stop)
    yield
    await asyncio.to_thread(system.primary.start)


@asynccontextmanager
async def pause_database(system: SystemUnderTest) -> AsyncIterator[None]:
    """Every process of PostgreSQL is stopped: it takes connections and requests, and answers none."""
    freeze(system.primary.pid)
    try:
        yield
    finally:
        thaw(system.primary.pid)


@asynccontextmanager
async def restart_read_only(system: SystemUnderTest) -> AsyncIterator[None]:
    """PostgreSQL restarts as a standby without a primary, and is promoted in the end."""
    await asyncio.to_thread(restart_as_standby, system.primary)
    yield
    await asyncio.to_thread(promote, system.primary)


@asynccontextmanager
async def turn_read_only(system: SystemUnderTest) -> AsyncIterator[None]:
    """The primary refuses writes while its connections stay open; in the end its standby is promoted."""
    assert system.standby is not None
    for statement in ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"):
        await asyncio.to_thread(system.primary.psql, statement)
    yield
    await asyncio.to_thread(promote, system.standby)


@asynccontextmanager
async def freeze_primary(system: SystemUnderTest) -> AsyncIterator[None]:
    """Every process of the primary is stopped for good; in the end its standby is promoted."""
    assert system.standby is not None
    freeze(system.primary.pid)
    yield
    await asyncio.to_thread(promote, system.standby)


INCIDENTS = {
    "locked-row": Incident(
        "another session locks the pool's row of one event in five",
        lock_row,
        seconds=30.0,
        clients=200,
        hot=True,
    ),
    "paused-server": Incident("the server is stopped with SIGSTOP, and goes on", pause_server),
    "stopped-database": Incident("PostgreSQL is stopped, and started again", stop_database),
    "paused-database": Incident("all of PostgreSQL is stopped with SIGSTOP, and goes on", pause_database),
    "restarted-read-only": Incident("PostgreSQL is restarted as a standby, and promoted", restart_read_only),
    "read-only": Incident(
        "the primary turns read-only, and its synchronous standby is promoted", turn_read_only, with_standby=True
    ),
    "frozen-primary": Incident(
        "all of the primary is stopped with SIGSTOP, and its synchronous standby is promoted",
        freeze_primary,
        with_standby=True,
    ),
}


def survivor(system: SystemUnderTest) -> Postgres:
    """The database that holds the bookings in the end: the promoted standby, if there was one."""
    return system.standby or system.primary
