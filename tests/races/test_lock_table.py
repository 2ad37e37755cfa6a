"""Every key that a batch claims takes a place in PostgreSQL's lock table, which all sessions share."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import unavailable

from earmark.clock import MovableClock
from earmark.domain.bookable_event import Event
from earmark.domain.id_types import PoolId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.engine.commands_and_results import CreateEvent, Decided
from earmark.engine.engine import Engine
from earmark.errors import StoreUnavailable
from earmark.store import postgres
from earmark.store.postgres import PostgresStore
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.testservers.postgres import URL_VARIABLE

from .commands import EVENT, IDS, SHOP, a_hold
from .optimistic_writes import idempotency

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS = 2500


@pytest.fixture(scope="module")
def small_url() -> Iterator[str]:
    """A database on a server with the smallest lock table there is."""
    if os.environ.get(URL_VARIABLE):
        pytest.skip("NOT TESTED: settings of a server that is not started by the tests are left alone.")
    try:
        server = start_postgres(
            settings={
                "fsync": "off",
                "autovacuum": "off",
                "max_connections": "15",
                "max_locks_per_transaction": "10",
                "max_wal_senders": "0",
                "wal_level": "minimal",
            }
        )
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        asyncio.run(postgres.migrate(server.url()))
        yield server.url()


@pytest.mark.parametrize("draft", [True, False] if os.environ.get("EARMARK_PROOF") else [True])
@pytest.mark.parametrize("capped", [True, False])
async def test_keyed_batches_of_a_thousand_leave_room_in_the_lock_table(
    small_url: str, monkeypatch: pytest.MonkeyPatch, *, draft: bool, capped: bool
) -> None:
    """The store limits how many requests form a batch; without that, PostgreSQL runs out of shared memory."""
    store = await PostgresStore.connect(small_url, clock=MovableClock(), connections_max=6)
    if not capped:
        monkeypatch.setattr(PostgresStore, "requests_at_once_max", lambda _self, **_: None, raising=False)
    engine = Engine(store, ids=IDS, batch_size_max=1000)
    event = Event(id=EVENT, name="Play", currency="EUR", mode=Mode.LIVE, created_at=MovableClock().now())
    pool = Pool(event_id=EVENT, id=PoolId("GA"), capacity=100_000, price=500)
    try:
        if await store.read_event(EVENT) is None:
            await engine.create_event(CreateEvent(actor=SHOP, entry_id=IDS.entry_id(), event=event, pools=(pool,)))
        if not draft:
            monkeypatch.setattr(store, "pgbouncer", True)
        named = f"{draft}-{capped}"
        asks = [a_hold(units=1, buyer=f"{named}-{n}", idempotency=idempotency(f"{named}-{n}")) for n in range(REQUESTS)]
        told: list[Any] = await asyncio.gather(*map(engine.hold, asks), return_exceptions=True)
    finally:
        await engine.close()
    kinds = {type(outcome) for outcome in told}
    assert kinds == {Decided} if capped else StoreUnavailable in kinds
