"""Bringing a PostgreSQL database up to date, one process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from earmark.errors import SetupError, StoreUnavailable
from earmark.store.migrations import pending

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.store.migrations import Migration

LOCK = 0x4541524D41524B  # "EARMARK", the advisory lock that migrating processes share

_LEDGER = """
CREATE TABLE IF NOT EXISTS earmark_migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


async def migrate(url: str, *, dry_run: bool = False, without: Collection[str] = ()) -> Sequence[Migration]:
    """Apply what is pending, all of it or nothing; with `dry_run`, only say what that would be."""
    try:
        dsn, _ = split_url(url)
        connection = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0)
    except OSError as silence:
        raise StoreUnavailable(because=str(silence)) from silence
    except (asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"PostgreSQL refused the connection: {refused}") from refused
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            steps = pending("postgres", await read_applied(connection), without=without)
            if not dry_run:
                await _apply(connection, steps)
            return steps
    finally:
        await connection.close()


def split_url(url: str) -> tuple[str, bool]:
    """The URL as the driver takes it, and whether `?pgbouncer=true` stood in it."""
    parts = urlsplit(url)
    asked = parse_qsl(parts.query)
    pgbouncer = any(name == "pgbouncer" and value == "true" for name, value in asked)
    rest = urlencode([(name, value) for name, value in asked if name != "pgbouncer"], safe="/")
    return urlunsplit(parts._replace(query=rest)), pgbouncer


async def _apply(connection: Any, steps: Sequence[Migration]) -> None:
    await connection.execute(_LEDGER)
    for step in steps:
        await connection.execute(step.sql)
        await connection.execute(
            "INSERT INTO earmark_migrations (number, name, checksum) VALUES ($1, $2, $3)",
            step.number,
            step.name,
            step.checksum,
        )


async def read_applied(connection: Any) -> dict[int, str]:
    """The checksums of what was applied, by number; empty on a new database."""
    if await connection.fetchval("SELECT to_regclass('earmark_migrations')") is None:
        return {}
    found = await connection.fetch("SELECT number, checksum FROM earmark_migrations LIMIT 10000")
    return {row["number"]: row["checksum"] for row in found}
