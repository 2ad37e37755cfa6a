"""The migration that adds the scope `check` keeps every key, and every other rule about keys."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.store.both_databases.pending_migrations import Migration, migrations
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from pathlib import Path

KEY = """
INSERT INTO api_keys (id, name, mode, scopes, hash, created_at)
VALUES ('{id}', 'till', 'test', '{scopes}', {hash}, {at})"""
OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'api_keys' ORDER BY type, name"


def steps(dialect: str) -> tuple[list[Migration], Migration]:
    """Those before tickets, and the one that adds them."""
    (added,) = (step for step in migrations(dialect) if step.name == "tickets")
    return [step for step in migrations(dialect) if step.number < added.number], added


def key(key_id: str, scopes: str, *, dialect: str) -> str:
    digits = f"{ord(key_id[-1]):02x}" * 32
    if dialect == "postgres":
        return KEY.format(id=key_id, scopes=scopes, hash=f"decode('{digits}', 'hex')", at="now()")
    return KEY.format(id=key_id, scopes=scopes, hash=f"x'{digits}'", at="1")


def test_sqlite_keeps_the_keys_and_their_rules(tmp_path: Path) -> None:
    """The table is made again: only the rule about scopes differs afterwards."""
    before, added = steps("sqlite")
    with closing(sqlite3.connect(tmp_path / "keys.sqlite3", isolation_level=None)) as file:
        for step in before:
            file.executescript(step.sql)
        file.execute(key("k1", "manage sell", dialect="sqlite"))
        rows, objects = file.execute("SELECT * FROM api_keys").fetchall(), file.execute(OBJECTS).fetchall()
        with pytest.raises(sqlite3.IntegrityError, match="scopes_are_known"):
            file.execute(key("k2", "check", dialect="sqlite"))
        file.executescript(added.sql)
        assert file.execute("SELECT * FROM api_keys").fetchall() == rows
        after = file.execute(OBJECTS).fetchall()
        changed = {name for old, (_, name, sql) in zip(objects, after, strict=True) if old[2] != sql}
        assert changed == {"api_keys"}
        file.execute(key("k2", "check sell", dialect="sqlite"))
        with pytest.raises(sqlite3.IntegrityError, match="scopes_are_known"):
            file.execute(key("k3", "chef", dialect="sqlite"))
        with pytest.raises(sqlite3.IntegrityError, match="key_is_never_deleted"):
            file.execute("DELETE FROM api_keys")


async def test_postgresql_keeps_the_keys_and_their_rules(unguarded_postgres_url: str) -> None:
    """The rule is replaced in one statement."""
    await open_and_maintain_databases.migrate(unguarded_postgres_url)
    connection = await asyncpg.connect(unguarded_postgres_url)
    await connection.execute(key("k1", "check", dialect="postgres"))
    await connection.execute(key("k2", "check manage ops sell", dialect="postgres"))
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await connection.execute(key("k3", "chef", dialect="postgres"))
    assert refused.value.constraint_name == "scopes_are_known"
    await connection.close()
