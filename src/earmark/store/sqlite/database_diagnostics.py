"""The state of a SQLite file. It has no clock and no settings of its own: every connection brings them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from earmark.errors import SetupError
from earmark.store.both_databases.database_diagnostics import DatabaseFacts
from earmark.store.sqlite.driver_errors import is_busy, unavailable
from earmark.store.sqlite.migrate import read_applied
from earmark.store.sqlite.open_connection import connect, file_of

if TYPE_CHECKING:
    from pathlib import Path


async def examine(path: str | Path) -> DatabaseFacts:
    """In a thread, on a connection of its own."""
    return await asyncio.to_thread(_examine, file_of(path))


def _examine(file: Path) -> DatabaseFacts:
    if not file.exists():
        raise SetupError(problem=f"There is no database at {file}. Run: earmark migrate --database …")
    began = time.monotonic()
    try:
        with closing(connect(file, mode="ro")) as connection:
            applied = read_applied(connection)
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    except sqlite3.DatabaseError as failure:
        if is_busy(failure):
            raise unavailable(failure) from failure
        raise SetupError(problem=f"SQLite cannot use {file}: {failure}") from failure
    return DatabaseFacts(
        product="SQLite",
        version=sqlite3.sqlite_version,
        dialect="sqlite",
        applied=applied,
        seconds=time.monotonic() - began,
        skew_seconds=0.0,
        lax=() if mode == "wal" else (f"journal_mode = {mode}",),
    )
