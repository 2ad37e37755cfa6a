"""What only the memory store has: no threads, no suspension, and a database that ends with it."""

from __future__ import annotations

import gc
import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from earmark.errors import StoreUnavailable
from earmark.store.sqlite.memory import MemoryStore
from earmark.wiring import open_and_maintain_databases

from .steps_support import SHOW, WITHIN, Shop

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from earmark.clock import MovableClock
    from earmark.uuids import Uuid7Ids


@pytest.fixture
async def shop(clock: MovableClock, ids: Uuid7Ids) -> Shop:
    shop = Shop(MemoryStore(clock=clock), clock=clock, ids=ids)
    await shop.open()
    return shop


def never_suspends(call: Awaitable[object]) -> None:
    """Run the call without an event loop: it must end before it waits for anything."""
    with pytest.raises(StopIteration):
        next(call.__await__())


async def test_a_call_starts_no_thread_and_never_suspends(shop: Shop) -> None:
    """The order of a run depends on its seed alone."""
    before = threading.active_count()
    never_suspends(shop.store.transact(lambda tx: tx.begin([]), within=WITHIN))
    never_suspends(shop.store.read_event(SHOW))
    never_suspends(shop.store.has_entry(shop.ids.entry_id()))
    never_suspends(shop.store.find_flaws(limit=10))
    assert threading.active_count() == before


async def test_the_schema_is_current_and_its_guards_refuse(shop: Shop) -> None:
    """It is SQLite with all its guards: a write that no verb would do is refused."""
    await shop.store.check()
    booking = await shop.hold("A1")
    assert isinstance(shop.store, MemoryStore)
    connection = shop.store.access.writer.connection()
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE bookings SET state = 'cancelled' WHERE id = ?", (str(booking.id),))


async def test_two_memory_stores_share_nothing(clock: MovableClock, ids: Uuid7Ids) -> None:
    """Each is a copy of one empty database."""
    one, two = (Shop(MemoryStore(clock=clock), clock=clock, ids=ids) for _ in range(2))
    await one.open()
    assert await one.store.read_event(SHOW) is not None
    assert await two.store.read_event(SHOW) is None


async def test_a_closed_memory_store_says_so(shop: Shop) -> None:
    """Closing twice is closing once, and no empty database takes the place of the closed one."""
    await shop.store.close()
    await shop.store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await shop.store.transact(lambda tx: tx.begin([]), within=WITHIN)
    with pytest.raises(StoreUnavailable, match="closed"):
        await shop.store.read_event(SHOW)


def test_a_store_that_was_not_closed_is_closed_when_it_is_collected(clock: MovableClock) -> None:
    """Python 3.13 warns of connections that are left open."""
    store = MemoryStore(clock=clock)
    connection, gone = store.access.writer.connection(), weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize("url", ["memory:", "memory://"])
async def test_a_url_names_the_memory_store(url: str) -> None:
    """With slashes or without."""
    store = await open_and_maintain_databases.open_store(url)
    assert isinstance(store, MemoryStore)
    await store.close()
