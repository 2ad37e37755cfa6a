"""What only SQLite has: one writer's thread, a file, other processes, and the question whether a commit was kept."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.engine.ports.store import Changes
from earmark.errors import OutcomeUnknown, SetupError, StoreUnavailable
from earmark.store.both_databases.pending_migrations import Migration, migrations
from earmark.store.sqlite import SqliteStore, migrate
from earmark.store.sqlite import single_writer as writer_module

from .steps_support import SHOW, WITHIN, Shop, seat_ref

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Transaction
    from earmark.uuids import Uuid7Ids


@pytest.fixture
async def shop(sqlite_store: SqliteStore, clock: MovableClock, ids: Uuid7Ids) -> Shop:
    shop = Shop(sqlite_store, clock=clock, ids=ids)
    await shop.open()
    return shop


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


class Gate:
    """Work that stands in the writer's thread until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def stand(self) -> None:
        """Called by the work, in its thread."""
        self.reached.set()
        assert self.open.wait(WITHIN)

    async def is_reached(self) -> None:
        """Called by the test: the work stands at the gate."""
        assert await asyncio.to_thread(self.reached.wait, WITHIN)


# -- time, and leaving early --------------------------------------------------------------------------------------


async def test_a_verb_that_awaits_anything_else_is_our_bug(shop: Shop) -> None:
    """The writer's thread has no loop to wait on; nothing of such a verb is kept, and the next one is served."""
    booking = shop.booking("A1")

    async def work(tx: Transaction) -> None:
        await tx.lock_totals([booking.total_ref])
        await tx.write(shop.taking(booking))
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="outside its transaction"):
        await shop.step(work)
    assert (await shop.store.read_booking(booking.id))[1] is None
    await shop.hold("A1")


async def test_work_that_waited_too_long_for_its_turn_is_never_begun(shop: Shop, gate: Gate) -> None:
    """Nothing was kept, for certain: it did not even start."""
    begun = []

    async def stand(_: Transaction) -> None:
        gate.stand()

    async def work(_: Transaction) -> None:
        begun.append(True)

    first = asyncio.create_task(shop.step(stand))
    await gate.is_reached()
    with pytest.raises(StoreUnavailable):
        await shop.store.transact(work, within=0.05)
    gate.open.set()
    await first
    await shop.hold("A1")
    assert begun == []


async def test_work_that_runs_too_long_is_undone(shop: Shop, gate: Gate) -> None:
    """The caller left before the commit began, so there is none."""
    changes = shop.taking(shop.booking("A1"))

    async def work(tx: Transaction) -> None:
        await tx.write(changes)
        gate.stand()

    with pytest.raises(StoreUnavailable, match="nothing was kept"):
        await shop.store.transact(work, within=0.05)
    gate.open.set()
    assert not await shop.store.has_entry(changes.entries[0].id)
    await shop.hold("A1")


async def test_a_cancelled_caller_leaves_nothing_behind(shop: Shop, gate: Gate) -> None:
    """The transaction in the thread is undone, and the next one is served."""
    changes = shop.taking(shop.booking("A1"))

    async def work(tx: Transaction) -> None:
        await tx.write(changes)
        gate.stand()

    caller = asyncio.create_task(shop.store.transact(work, within=WITHIN))
    await gate.is_reached()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.open.set()
    assert not await shop.store.has_entry(changes.entries[0].id)
    await shop.hold("A1")


async def test_a_commit_that_answers_too_late_is_looked_up(
    shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is unknown to the caller; asking the journal waits for the commit, and then knows."""
    commit = writer_module.Writer._commit

    def slow(self: writer_module.Writer, connection: sqlite3.Connection) -> None:
        gate.stand()
        commit(self, connection)

    monkeypatch.setattr(writer_module.Writer, "_commit", slow)
    changes = shop.taking(shop.booking("A1"))

    async def work(tx: Transaction) -> None:
        await tx.lock_totals(changes.totals.keys())
        await tx.write(changes)

    with pytest.raises(OutcomeUnknown):
        await shop.store.transact(work, within=0.05)
    asked = asyncio.create_task(shop.store.has_entry(changes.entries[0].id))
    await asyncio.sleep(0)
    assert not asked.done()
    gate.open.set()
    assert await asked


async def test_reads_do_not_wait_for_the_writer(shop: Shop, gate: Gate) -> None:
    """They see the last commit while a transaction is under way."""
    booking = shop.booking("A1")

    async def work(tx: Transaction) -> None:
        await tx.lock_totals([booking.total_ref])
        await tx.write(shop.taking(booking))
        gate.stand()

    writing = asyncio.create_task(shop.step(work))
    await gate.is_reached()
    assert (await shop.store.read_booking(booking.id))[1] is None
    assert (await shop.store.read_map(SHOW, seat_id=seat_ref("A1").seat_id)).seats[0].owner_id is None
    gate.open.set()
    await writing
    assert (await shop.store.read_booking(booking.id))[1] == booking


# -- the file and other processes ---------------------------------------------------------------------------------


async def test_another_process_that_writes_is_waited_for(shop: Shop, sqlite_store: SqliteStore) -> None:
    """Until the time is over; afterwards it goes on as before."""
    other = sqlite3.connect(sqlite_store.access.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await shop.store.transact(lambda tx: tx.begin([]), within=0.2)
    waiting = asyncio.create_task(shop.hold("A1"))
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    await waiting
    other.close()


async def test_two_stores_over_one_file_see_each_others_commits(
    shop: Shop, sqlite_store: SqliteStore, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """As two processes would."""
    second = await SqliteStore.open(sqlite_store.access.file, clock=clock)
    try:
        booking = await Shop(second, clock=clock, ids=ids).hold("A1")
        assert (await shop.step(lambda tx: tx.read_seats([seat_ref("A1")])))[seat_ref("A1")].pointer == booking.id
        assert (await shop.store.read_booking(booking.id))[1] == booking
    finally:
        await second.close()


async def test_a_full_disk_keeps_nothing(shop: Shop, sqlite_store: SqliteStore) -> None:
    """The transaction is undone, the caller gets an error, and once there is room writes succeed again."""
    connection = sqlite_store.access.writer.connection()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = shop.entry("hold", shop.booking("A1"))
    entries = [msgspec.structs.replace(big, id=shop.ids.entry_id(), booking_id=None, facts={"x": "x" * 100_000})]

    async def work(tx: Transaction) -> None:
        await tx.write(Changes(entries=entries))

    with pytest.raises(StoreUnavailable, match="full"):
        await shop.step(work)
    assert not await shop.store.has_entry(entries[0].id)
    connection.execute("PRAGMA max_page_count = 1000000")
    await shop.step(work)
    assert await shop.store.has_entry(entries[0].id)


async def test_a_commit_is_on_the_disk_before_it_is_acknowledged(sqlite_store: SqliteStore) -> None:
    """Write-ahead log, FULL sync, foreign keys: what durability stands on."""
    connection = sqlite_store.access.writer.connection()
    told = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "foreign_keys")
    ]
    assert told == ["wal", 2, 1]


async def test_readers_cannot_write(sqlite_store: SqliteStore) -> None:
    """A read that tried to write would be refused."""
    with pytest.raises(StoreUnavailable, match="readonly"):
        await sqlite_store.access.read(lambda connection: connection.execute("DELETE FROM events"), within=WITHIN)


async def test_a_closed_store_says_so(sqlite_store: SqliteStore) -> None:
    """Closing twice is closing once."""
    await sqlite_store.close()
    await sqlite_store.close()
    with pytest.raises(StoreUnavailable):
        await sqlite_store.transact(lambda tx: tx.begin([]), within=1)
    with pytest.raises(StoreUnavailable):
        await sqlite_store.read_event(SHOW)


async def test_closing_lets_the_running_transaction_end(shop: Shop, sqlite_store: SqliteStore, gate: Gate) -> None:
    """What has begun is finished; what waits gets an error that nothing was kept."""

    async def stand(_: Transaction) -> str:
        gate.stand()
        return "done"

    running = asyncio.create_task(shop.step(stand))
    await gate.is_reached()
    waiting = asyncio.create_task(shop.hold("A1"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(sqlite_store.close())
    with pytest.raises(StoreUnavailable):
        await waiting
    gate.open.set()
    await closing
    assert await running == "done"
    assert not sqlite_store.access.file.with_name(sqlite_store.access.file.name + "-wal").exists()


# -- opening and migrating ----------------------------------------------------------------------------------------


async def test_a_file_that_is_not_there_is_not_made_by_opening_it(tmp_path: Path, clock: MovableClock) -> None:
    """The message says what to run."""
    with pytest.raises(SetupError, match="earmark migrate"):
        await SqliteStore.open(tmp_path / "none.db", clock=clock)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("place", ["", ":memory:", "sqlite://", "sqlite:///"])
async def test_a_place_that_is_no_file_is_refused(place: str, clock: MovableClock) -> None:
    """Memory is not shared between connections."""
    with pytest.raises(SetupError):
        await SqliteStore.open(place, clock=clock)
    with pytest.raises(SetupError):
        await migrate(place)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, clock: MovableClock) -> None:
    """And left as it is."""
    file = tmp_path / "text.db"
    file.write_text("This is not a database, however long one looks at it. " * 20)
    with pytest.raises(SetupError, match="not a database"):
        await SqliteStore.open(file, clock=clock)
    with pytest.raises(SetupError, match="not a database"):
        await migrate(file)


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(SetupError, match=r"3\.35"):
        await migrate(tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


async def test_a_url_names_a_file(tmp_path: Path, clock: MovableClock) -> None:
    """Three slashes and a path; with a fourth, from the root."""
    await migrate(f"sqlite:///{tmp_path}/shop #1.db")
    store = await SqliteStore.open(f"sqlite:///{tmp_path}/shop #1.db", clock=clock)
    await store.check()
    await store.close()
    assert (tmp_path / "shop #1.db").exists()


async def test_migrating_twice_is_migrating_once(tmp_path: Path) -> None:
    """A dry run only says what would be done, and makes no file."""
    file = tmp_path / "new.db"
    everything = list(migrations("sqlite"))
    assert list(await migrate(file, dry_run=True)) == everything
    assert not file.exists()
    assert list(await migrate(file)) == everything
    assert list(await migrate(file, dry_run=True)) == []
    assert list(await migrate(file)) == []


async def test_a_schema_that_is_not_current_is_refused(tmp_path: Path, clock: MovableClock) -> None:
    """An empty file, and one from a newer Earmark. Without the guards it works: that is for tests and benchmarks."""
    file = tmp_path / "empty.db"
    sqlite3.connect(file).close()
    file.touch()
    store = await SqliteStore.open(file, clock=clock)
    with pytest.raises(SetupError, match="earmark migrate"):
        await store.check()
    await migrate(file, without={"guards"})
    await store.check()
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO earmark_migrations (number, name, checksum) VALUES (9999, 'later', '')")
    connection.close()
    with pytest.raises(SetupError, match="newer"):
        await store.check()
    await store.close()


async def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing: the tables before the broken step are not there either."""
    text = "CREATE TABLE fine (a);\nCREATE TABLE (;\n"
    broken = Migration(number=9999, name="broken", sql=text, checksum="x", oldest_code=1)
    monkeypatch.setitem(migrate.__globals__, "pending", lambda *_, **__: [*migrations("sqlite"), broken])
    with pytest.raises(SetupError, match="syntax error"):
        await migrate(tmp_path / "new.db")
    connection = sqlite3.connect(tmp_path / "new.db")
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()
