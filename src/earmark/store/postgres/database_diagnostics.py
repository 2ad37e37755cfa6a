"""The state of a PostgreSQL database, read on a plain connection, without the settings that the store sets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.errors import SetupError, StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.both_databases.database_diagnostics import DatabaseFacts, Replication, Standby, skew
from earmark.store.postgres import connect_to_writable_host
from earmark.store.postgres.migrate import read_applied, split_url

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

SECONDS_MAX = 10.0
SILENT = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    # None of the servers in the URL is what `target_session_attrs` asks for, as in the middle of a failover.
    asyncpg.TargetServerAttributeNotMatched,
)
DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}


async def examine(url: str, *, clock: Clock) -> DatabaseFacts:
    """All of it over one connection, which is closed afterwards."""
    dsn, told = split_url(url)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            connection = await _connect(dsn)
            try:
                return await _read(connection, clock=clock, told=told)
            finally:
                await connection.close(timeout=1)
    except SILENT as silence:
        raise StoreUnavailable(because=str(silence) or type(silence).__name__) from silence
    except (asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"PostgreSQL refused: {refused}") from refused


async def _connect(dsn: str) -> Any:
    """To the server that the store would use; where none takes writes, to one that can say what it is."""
    known = connect_to_writable_host.hosts_of(dsn)
    try:
        return await connect_to_writable_host.connect(dsn, known, statement_cache_size=0)
    except asyncpg.TargetServerAttributeNotMatched:
        if connect_to_writable_host.names_target(dsn):
            raise
        return await connect_to_writable_host.connect(
            dsn, known, statement_cache_size=0, target_session_attrs=connect_to_writable_host.ANY
        )


async def _read(connection: asyncpg.Connection, *, clock: Clock, told: bool) -> DatabaseFacts:
    before = clock.now()
    theirs = await connection.fetchval("SELECT clock_timestamp()")
    seconds, ahead = skew(clock, before=before, theirs=theirs)
    lax = []
    for name, durable in DURABLE.items():
        if (value := await connection.fetchval(f"SHOW {name}")) not in durable:
            lax.append(f"{name} = {value}")
    # A pooler gives each client a process id of its own for cancelling, which is not the backend's.
    pooled = connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()")
    return DatabaseFacts(
        product="PostgreSQL",
        version=str(await connection.fetchval("SHOW server_version")),
        dialect="postgres",
        applied=await read_applied(connection),
        seconds=seconds,
        skew_seconds=ahead,
        isolation=str(await connection.fetchval("SHOW default_transaction_isolation")),
        lax=tuple(lax),
        replication=await _read_replication(connection),
        pooled=pooled,
        told=told,
    )


async def _read_replication(connection: asyncpg.Connection) -> Replication:
    sql = load_named_sql.sql("postgres", "read_replication_state.sql")
    settings = await connection.fetchrow(sql["read_replication"])
    standbys = await connection.fetch(sql["read_standbys"])
    waiting = await connection.fetchrow(sql["read_waiting_commits"])
    return Replication(
        in_recovery=settings["in_recovery"],
        synchronous_commit=settings["synchronous_commit"],
        synchronous_standby_names=settings["synchronous_standby_names"],
        standbys=tuple(Standby(**row) for row in standbys),
        waiting_commits=waiting["commits"],
        waiting_seconds=waiting["seconds"],
    )
