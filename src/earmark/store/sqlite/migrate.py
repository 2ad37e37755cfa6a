"""Bringing a SQLite file up to date, one process at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from earmark.errors import SetupError
from earmark.store.migrations import pending
from earmark.store.sqlite.connection import connect, file_of, is_busy, unavailable, use_wal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from earmark.store.migrations import Migration

_LEDGER = """
CREATE TABLE IF NOT EXISTS earmark_migrations (
    number     integer NOT NULL PRIMARY KEY,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_at text    NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""


async def migrate(
    url_or_path: str | Path, *, dry_run: bool = False, without: Collection[str] = ()
) -> Sequence[Migration]:
    """Apply what is pending, all of it or nothing; with `dry_run`, only say what that would be."""
    return await asyncio.to_thread(_migrate, file_of(url_or_path), dry_run=dry_run, without=without)


def _migrate(file: Path, *, dry_run: bool, without: Collection[str]) -> Sequence[Migration]:
    if dry_run and not file.exists():
        return pending("sqlite", {}, without=without)
    try:
        with closing(connect(file, mode="rw" if dry_run else "rwc")) as connection:
            if dry_run:
                return pending("sqlite", read_applied(connection), without=without)
            use_wal(connection)
            return _apply(connection, without=without)
    except sqlite3.DatabaseError as failure:
        if is_busy(failure):
            raise unavailable(failure) from failure
        raise SetupError(problem=f"SQLite cannot migrate {file}: {failure}") from failure


def _apply(connection: sqlite3.Connection, *, without: Collection[str]) -> Sequence[Migration]:
    """One transaction that locks out every other writer; closing the connection undoes what did not commit."""
    connection.execute("BEGIN IMMEDIATE")
    steps = pending("sqlite", read_applied(connection), without=without)
    connection.execute(_LEDGER)
    for step in steps:
        for statement in _statements(step.sql):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO earmark_migrations (number, name, checksum) VALUES (?, ?, ?)",
            (step.number, step.name, step.checksum),
        )
    connection.execute("COMMIT")
    return steps


def _statements(script: str) -> Iterator[str]:
    """One by one, for `executescript` would commit what came before it."""
    gathered = ""
    for line in script.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""


def read_applied(connection: sqlite3.Connection) -> dict[int, str]:
    """The checksums of what was applied, by number; empty on a new database."""
    ledger = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'earmark_migrations'"
    if connection.execute(ledger).fetchone() is None:
        return {}
    found = connection.execute("SELECT number, checksum FROM earmark_migrations LIMIT 10000")
    return {row["number"]: row["checksum"] for row in found}
