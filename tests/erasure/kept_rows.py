"""All rows of a database, kept to be written to another one: a tenth of the work of the requests that made them."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

if TYPE_CHECKING:
    from pathlib import Path

TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname <> 'earmark_migrations'
   AND pg_relation_size(c.oid) > 0
"""
SEQUENCES = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
FILE_WITHOUT_LOG = b"\x01\x01"
"""How the header of a file of SQLite says that it has no write-ahead log, which a database in memory cannot have."""


class KeptRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of each table of PostgreSQL, as COPY writes them, and where its sequences are; or a file of SQLite."""

    tables: dict[str, bytes] = {}
    sequences: dict[str, int | None] = {}
    image: bytes = b""


async def rows_of(database: Path | str) -> KeptRows:
    """What a file of SQLite has, or the database of a URL."""
    return await _rows_of_url(database) if isinstance(database, str) else _rows_of_file(database)


async def write_rows(kept: KeptRows, database: Path | str) -> None:
    """Into a database that has none, which a store may have open, and without a word from the guards."""
    if isinstance(database, str):
        await _write_to_url(kept, database)
    else:
        _write_to_file(kept, database)


async def _rows_of_url(url: str) -> KeptRows:
    connection: Any = await asyncpg.connect(url)
    try:
        tables = {}
        for row in await connection.fetch(TABLES):
            written = io.BytesIO()
            await connection.copy_from_table(row[0], output=written, format="binary")
            tables[row[0]] = written.getvalue()
        return KeptRows(tables=tables, sequences=dict(await connection.fetch(SEQUENCES)))
    finally:
        await connection.close()


async def _write_to_url(kept: KeptRows, url: str) -> None:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute("SET session_replication_role = replica")
        for table, rows in kept.tables.items():
            await connection.execute(f'DELETE FROM "{table}"')
            await connection.copy_to_table(table, source=io.BytesIO(rows), format="binary")
        for sequence, last in kept.sequences.items():
            if last is not None:
                await connection.execute("SELECT setval($1::text::regclass, $2)", sequence, last)
    finally:
        await connection.close()


def _rows_of_file(file: Path) -> KeptRows:
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(":memory:")) as memory:
        connection.backup(memory)
        image = memory.serialize()
    return KeptRows(image=image[:18] + FILE_WITHOUT_LOG + image[20:])


def _write_to_file(kept: KeptRows, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(":memory:")) as memory:
        memory.deserialize(kept.image)
        memory.backup(connection)
