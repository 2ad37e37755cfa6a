"""The catalog of a database as text: tables, columns, constraints, indexes, triggers, functions and grants.

Two ways to the same schema are equal when these texts are. Comments and white space are left out of them.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_OF_POSTGRES = {
    "table": """
        SELECT c.relname,
               concat_ws(' ', c.relkind, c.reloptions::text,
                         coalesce(c.relacl, acldefault(replace(c.relkind::text, 'S', 's')::"char", c.relowner))::text)
          FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'S')""",
    "column": """
        SELECT c.relname || '.' || a.attname,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                         'COLLATE ' || nullif(o.collname, 'default'), 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
                         nullif(a.attidentity, ''))
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          LEFT JOIN pg_collation o ON o.oid = a.attcollation
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'c')
           AND a.attnum > 0 AND NOT a.attisdropped""",
    "order of columns": """
        SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum)
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'c')
           AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1""",
    "constraint": """
        SELECT coalesce(n.relname, t.typname) || '.' || c.conname,
               pg_get_constraintdef(c.oid) || CASE WHEN c.convalidated THEN '' ELSE ' (not validated)' END
          FROM pg_constraint c LEFT JOIN pg_class n ON n.oid = c.conrelid LEFT JOIN pg_type t ON t.oid = c.contypid
         WHERE c.connamespace = current_schema()::regnamespace AND c.contype <> 'n'""",
    "index": """
        SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
         WHERE c.relnamespace = current_schema()::regnamespace""",
    "trigger": """
        SELECT c.relname || '.' || t.tgname, t.tgenabled::text || ' ' || pg_get_triggerdef(t.oid)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal""",
    "function": """
        SELECT p.oid::regprocedure::text,
               concat_ws(' ', pg_get_functiondef(p.oid), coalesce(p.proacl, acldefault('f', p.proowner))::text)
          FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace""",
    "type": """
        SELECT t.typname, concat_ws(' ', t.typtype, coalesce(t.typacl, acldefault('T', t.typowner))::text)
          FROM pg_type t WHERE t.typnamespace = current_schema()::regnamespace AND t.typelem = 0""",
    "row": "SELECT 'marks.' || name, place::text FROM marks",
}


async def of_postgres(url: str) -> dict[str, str]:
    """Every object of the database's schema, by kind and name."""
    connection: Any = await asyncpg.connect(url)
    try:
        return {
            f"{kind} {name}": _plain(definition or "")
            for kind, query in _OF_POSTGRES.items()
            for name, definition in await connection.fetch(query)
        }
    finally:
        await connection.close()


def of_sqlite(file: Path) -> dict[str, str]:
    """Every object of the file, by kind and name."""
    with closing(sqlite3.connect(file)) as connection:
        return dict(_objects(connection))


def _objects(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    for kind, name, text in connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall():
        if kind != "table":
            yield f"{kind} {name}", _plain(text)
            continue
        plain = _plain(text)
        yield f"table {name}", plain.rpartition(")")[2]
        yield from ((f"check {name}: {check}", "") for check in _checks(plain))
        columns = connection.execute('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (name,))
        described = [(column, _plain(f"{rest}").lower()) for column, *rest in columns]
        yield f"order of columns {name}", " ".join(column for column, _ in described)
        yield from ((f"column {name}.{column}", rest) for column, rest in described)
        for pragma in ("foreign_key_list", "index_list"):
            # The first field is a running number.
            rows = connection.execute(f"SELECT * FROM pragma_{pragma}(?)", (name,))
            yield f"{pragma} {name}", _sorted(str(row[1:]) for row in rows)
    yield "row marks", _sorted(map(str, connection.execute("SELECT name, place FROM marks")))


def _sorted(rows: Iterable[str]) -> str:
    return "; ".join(sorted(rows))


def _checks(text: str) -> Iterator[str]:
    """Each CHECK of a table, with its constraint's name if it has one."""
    for found in re.finditer(r"(?:CONSTRAINT \w+ )?CHECK \(", text):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[found.start() : end]


def _plain(definition: str) -> str:
    """Without comments, and with single spaces."""
    return " ".join(re.sub(r"--[^\n]*", "", definition).split())


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """What only one of them has, or has otherwise, by name."""
    return sorted(
        f"{name}: {one.get(name, '(absent)')!r} / {other.get(name, '(absent)')!r}"
        for name in one.keys() | other.keys()
        if one.get(name) != other.get(name)
    )
