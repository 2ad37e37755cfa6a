"""A row is of the mode `test` or `live`: the schema refuses every other, in each table that has a mode."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import asyncpg
import pytest

from earmark.wiring import open_and_maintain_databases

from . import catalog
from .test_newer_schema import execute

if TYPE_CHECKING:
    from pathlib import Path

INSERT = "INSERT INTO events (id, name, currency, mode, created_at) VALUES ('e', 'e', 'EUR', '{mode}', {now})"
TABLES = {
    "account_payments",
    "accounts",
    "api_keys",
    "bookings",
    "events",
    "outside_payments",
    "payers",
    "payments",
    "ticket_scans",
    "webhooks",
}


@pytest.fixture(params=["postgres", "sqlite"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without the guards: the rule about modes stands with the tables."""
    place = f"sqlite:////{str(tmp_path).lstrip('/')}/modes.sqlite3"
    if request.param == "postgres":
        place = request.getfixturevalue("unguarded_postgres_url")
    await open_and_maintain_databases.migrate(place, without=("guards",))
    return place


async def test_another_mode_is_refused(url: str) -> None:
    """The control is beside it: the same row with a known mode is taken."""
    now = "1" if url.startswith("sqlite") else "now()"
    for mode in ("prod", "", "Test"):
        with pytest.raises((asyncpg.CheckViolationError, sqlite3.IntegrityError), match="event_mode_known"):
            await execute(url, INSERT.format(mode=mode, now=now))
    await execute(url, INSERT.format(mode="test", now=now))


async def test_every_table_with_a_mode_has_the_rule(url: str) -> None:
    """A column without it would take any word."""
    if url.startswith("sqlite"):
        found = catalog.of_sqlite(open_and_maintain_databases.sqlite_path(url))
        ruled = {name.split()[1].rstrip(":") for name in found if name.startswith("check ") and "_mode_known" in name}
    else:
        found = await catalog.of_postgres(url)
        ruled = {name.split()[1].split(".")[0] for name in found if name.endswith("_mode_known")}
    columns = {name.split()[1].split(".")[0] for name in found if name.startswith("column ") and name.endswith(".mode")}
    assert ruled == TABLES
    # The types of PostgreSQL's functions have modes, and take what was checked or will be.
    assert {table for table in columns if not table.startswith("earmark_")} == TABLES
