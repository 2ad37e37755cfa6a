"""Servers are replaced one by one under load, over a migration and back; only the restarts themselves are noticed."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.acceptance.support import eventually, readiness

from earmark.wiring import open_and_maintain_databases

from .rolling import NUMBER, Upgrade, newer_code, older_code

if TYPE_CHECKING:
    from pathlib import Path

PROOF = bool(os.environ.get("EARMARK_PROOF"))
BUYERS = 24 if PROOF else 4
ENOUGH = 500 if PROOF else 5
"""Flows of hold and confirm, at each server in each phase."""
STEPS = [
    (0, "new", "restart 0: new + old"),
    *([(1, "new", "restart 1: new + new")] if PROOF else []),
    (0, "old", "restart 0: old again"),
    *([(1, "old", "restart 1: old + old")] if PROOF else []),
]
"""A normal run replaces one of the two servers, and leaves the other on the old code."""
CONTRACT = f"INSERT INTO earmark_migrations VALUES ({NUMBER + 1}, 'contract', 'x', now(), {NUMBER})"


async def test_servers_replaced_over_an_expand_and_back_fail_only_requests_cut_by_a_restart(
    unguarded_postgres_url: str, tmp_path: Path
) -> None:
    """Old servers stay ready over an expand, new ones join them, and the old code can come back.

    Then, as the control, a contract that does not allow the old code takes it out.
    """
    url, old, new = unguarded_postgres_url, older_code(), newer_code(tmp_path / "newer")
    await open_and_maintain_databases.migrate(url)
    upgrade = Upgrade(database=url, folder=tmp_path)
    try:
        await upgrade.start(old)
        async with upgrade.load(buyers=BUYERS):
            await upgrade.phase("old + old, before", enough=ENOUGH)
            applied = await upgrade.phase("migrate (new code)", upgrade.migrate(new), enough=ENOUGH)
            assert applied == f"applied {NUMBER:04}_tomorrow\n"
            for number, code, name in STEPS:
                await upgrade.phase(name, upgrade.restart(number, new if code == "new" else old), enough=ENOUGH)
        sys.stdout.write(f"\n{upgrade.table()}\n")
        assert upgrade.failed == []
        assert upgrade.unready == []
        assert sum(phase.answers["cut"] for phase in upgrade.phases) <= len(STEPS) * BUYERS
        assert not PROOF or await upgrade.migrate(old) == "The schema is current.\n"
        await check_database(url, upgrade)
    finally:
        for service in upgrade.services:
            service.stop()


@pytest.mark.skipif(not PROOF, reason="a control of a long proof")
async def test_a_migration_that_lies_about_older_code_is_caught(unguarded_postgres_url: str, tmp_path: Path) -> None:
    """The control: what is called an expand and takes a column away fails requests, and they are counted."""
    lie = "-- expand\nALTER TABLE pools RENAME COLUMN held TO held_now;\n"
    await open_and_maintain_databases.migrate(unguarded_postgres_url)
    upgrade = Upgrade(database=unguarded_postgres_url, folder=tmp_path)
    try:
        await upgrade.start(older_code())
        async with upgrade.load(buyers=BUYERS):
            await upgrade.phase("old + old, before", enough=ENOUGH)
            work = upgrade.migrate(newer_code(tmp_path / "newer", migration=lie))
            await upgrade.phase("migrate (new code)", work, enough=ENOUGH)
        assert upgrade.failed
    finally:
        for service in upgrade.services:
            service.stop()


async def check_database(url: str, upgrade: Upgrade) -> None:
    """What was acknowledged is there and no promise is broken; then the contract."""
    store = await open_and_maintain_databases.open_store(url)
    assert await store.find_flaws(limit=10) == []
    await store.close()
    connection = await asyncpg.connect(url)
    try:
        sold = await connection.fetch("SELECT id::text FROM bookings WHERE state = 'confirmed'")
        assert upgrade.confirmed <= {row["id"] for row in sold}
        await connection.execute(CONTRACT)
    finally:
        await connection.close()
    for service in upgrade.services:

        async def answer(port: int = service.port) -> int | None:
            return await asyncio.to_thread(readiness, port)

        assert await eventually(answer, lambda status: status != 200) == 503
