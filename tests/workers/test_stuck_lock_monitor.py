"""The lock monitor: a lock held for too long shows on a server's metrics page, whichever process holds it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.acceptance.support import serve

from earmark.config import Settings
from earmark.errors import StoreUnavailable
from earmark.locks import Locks
from earmark.wiring.workers import lock_monitors_for
from earmark.workers.stuck_lock_monitor import LockMonitor

if TYPE_CHECKING:
    from pathlib import Path

FACT_SECONDS_MAX = 30.0


async def test_a_lock_of_another_program_is_counted_while_it_is_held_too_long(redis_url: str) -> None:
    """It is in Redis for all to see; young locks are not counted."""
    async with Locks.from_url(redis_url, prefix="one") as theirs, Locks.from_url(redis_url, prefix="one") as ours:
        held = await theirs.acquire("invoice:42", ttl=60)
        assert await LockMonitor(ours, stuck_seconds=3600, interval_seconds=7).act() == 7
        assert ours.stats.snapshot().stuck == 0
        monitor = LockMonitor(ours, stuck_seconds=1e-6)
        await monitor.act()
        assert ours.stats.snapshot().stuck == 1
        await held.release()
        await monitor.act()
        assert ours.stats.snapshot().stuck == 0


async def test_a_silent_lock_server_is_an_outage_and_no_all_clear() -> None:
    """The worker reports it and looks again later."""
    async with Locks.from_url("redis://127.0.0.1:1") as gone:
        gone.stats.stuck(1)
        with pytest.raises(StoreUnavailable):
            await LockMonitor(gone).act()
        assert gone.stats.snapshot().stuck == 1


async def test_no_monitor_runs_where_there_are_no_locks_or_it_is_off() -> None:
    """Without a Redis there are no locks, and 0 seconds is never."""
    async with Locks.from_url("memory://") as locks:
        assert len(lock_monitors_for(Settings(), locks)) == 1
        assert lock_monitors_for(Settings(lock_check_seconds=0), locks) == []
        assert lock_monitors_for(Settings(), None) == []


@pytest.mark.parametrize("check, seen", [("0.05", 1.0), ("0", 0.0)], ids=["on", "off"])
async def test_a_server_without_workers_shows_it(
    redis_url: str, tmp_path: Path, sqlite_template: Path, check: str, seen: float
) -> None:
    """As in the shipped containers, where the server only serves; the control is the same server with the look off."""
    path = tmp_path / "earmark.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    service = serve(
        "--no-embedded-workers",
        "--redis",
        redis_url,
        database=f"sqlite:///{path}",
        directory=tmp_path,
        EARMARK_LOCK_CHECK_SECONDS=check,
        EARMARK_LOCK_STUCK_SECONDS="0.01",
    )
    try:
        async with Locks.from_url(redis_url) as program, httpx2.AsyncClient(base_url=service.url) as prometheus:
            held = await program.acquire("invoice:42", ttl=600)
            page = await _page(prometheus, until=seen)
            assert f"earmark_lock_stuck {seen}" in page
            await held.release()
    finally:
        service.stop()
    assert ("the lock on invoice:42 is held by" in service.log()) is bool(seen)


async def _page(prometheus: httpx2.AsyncClient, *, until: float) -> str:
    """Once it shows; to see nothing, several pages are read."""
    async with asyncio.timeout(FACT_SECONDS_MAX):
        for number in range(10_000):
            page = (await prometheus.get("/metrics")).text
            found = re.search(r"^earmark_lock_stuck (\S+)$", page, re.MULTILINE)
            assert found
            if float(found[1]) == until and (until or number >= 20):
                return page
            await asyncio.sleep(0.02)
    raise AssertionError(page)
