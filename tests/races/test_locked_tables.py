"""A table that another session has locked, as VACUUM FULL and ALTER TABLE do: a plain read ends with an outage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.domain.id_types import BookingId, EventId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.errors import Outage, RowBusy
from earmark.store.postgres import PostgresStore
from earmark.store.postgres.session_settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.clock import MovableClock
    from earmark.uuids import Uuid7Ids

READS: dict[str, Callable[[PostgresStore, BookingId], Awaitable[Any]]] = {
    "count": lambda store, _: store.outbox.count([EventId("play")]),
    "known_keys": lambda store, _: store.known_keys([IdempotencyKey(caller="shop", key="one")]),
    "read_history": lambda store, booking_id: store.read_history(booking_id),
}


@pytest.fixture
async def store(
    postgres_url: str, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    """It waits for a lock for a tenth of a second, and not for 5 s."""
    monkeypatch.setitem(SETTINGS, "lock_timeout", "100ms")
    store = await PostgresStore.connect(postgres_url, clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def locked_journal(postgres_url: str) -> AsyncIterator[None]:
    """Another session has the journal, until the test ends."""
    operator = await asyncpg.connect(postgres_url)
    await operator.execute("BEGIN; LOCK TABLE journal IN ACCESS EXCLUSIVE MODE")
    yield
    await operator.close()


@pytest.mark.usefixtures("locked_journal")
@pytest.mark.parametrize("read", READS)
async def test_a_plain_read_of_a_locked_table_is_an_outage(store: PostgresStore, ids: Uuid7Ids, read: str) -> None:
    """Its callers know what to do about an outage: the API answers 503, and a loop tries again."""
    with pytest.raises(RowBusy, match="lock timeout") as raised:
        await READS[read](store, ids.booking_id())
    assert isinstance(raised.value, Outage)
    assert isinstance(raised.value.__cause__, asyncpg.LockNotAvailableError)


@pytest.mark.usefixtures("locked_journal")
async def test_control_the_driver_raises_an_error_of_its_own(postgres_url: str) -> None:
    """It is none of the errors by which the store knows a silent or stopped server: the API would answer 500."""
    connection = await asyncpg.connect(postgres_url, server_settings={"lock_timeout": "100ms"})
    with pytest.raises(asyncpg.LockNotAvailableError) as raised:
        await connection.fetch("SELECT 1 FROM journal")
    assert not isinstance(raised.value, Outage)
    await connection.close()
