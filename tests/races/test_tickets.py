"""Two scanners at once, and a cancellation at the same moment, on PostgreSQL: with each guard, and without it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conformance.conftest import Shop

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.ticket import ScanReason
from earmark.engine.commands_and_results import Actor
from earmark.engine.tickets import ScanRequest
from earmark.errors import RowBusy
from earmark.store.both_databases import tickets as stored
from earmark.store.both_databases.tickets import StoredTicketSteps
from earmark.store.postgres import PostgresStore, convert_rows_and_values
from earmark.tickets.new_ticket_secrets import NEW_SECRETS
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId
    from earmark.engine.tickets import ScanResult
    from earmark.uuids import Uuid7Ids

SHOP = Actor(name="key:k_shop", mode=Mode.LIVE)
EMPTY = """
SET session_replication_role = replica;
DELETE FROM ticket_scans; DELETE FROM tickets; DELETE FROM ticket_pages; DELETE FROM journal;
DELETE FROM outside_payments; DELETE FROM buyer_totals; DELETE FROM pools; DELETE FROM seats;
DELETE FROM bookings; DELETE FROM events"""
ADMISSIONS = "SELECT count(*) FROM ticket_scans WHERE admitted AND reason IS NULL AND undone_at IS NULL"


@pytest.fixture
async def bare_store(bare_races_url: str, clock: MovableClock) -> AsyncIterator[PostgresStore]:
    """A database without the guards of the schema."""
    connection = await asyncpg.connect(bare_races_url)
    await connection.execute(EMPTY)
    await connection.close()
    store = await PostgresStore.connect(bare_races_url, clock=clock)
    yield store
    await store.close()


async def sold(store: PostgresStore, ids: Uuid7Ids) -> tuple[Shop, Booking, str]:
    """A sale of one seat, and the code of its ticket."""
    shop = Shop(store, ids=ids)
    await shop.create()
    booking = await shop.confirm(await shop.hold("alice", "A1"))
    found = await store.tickets.of_booking(booking.id, actor=SHOP, new=NEW_SECRETS)
    return shop, booking, found.tickets[0].ticket.secret


async def scan(store: PostgresStore, code: str, nonce: str, *, caller: str = "key:k_door") -> ScanResult:
    return await store.tickets.check(ScanRequest(id=uuid7(), caller=caller, mode=Mode.LIVE, code=code, nonce=nonce))


async def admissions(store: PostgresStore) -> int:
    async with store.pool.acquire() as connection:
        found: int = await connection.fetchval(ADMISSIONS)
        return found


async def without_lock(steps: Any, booking_id: BookingId) -> Booking | None:
    """The tempting way: the booking as it is, read without waiting for the transaction that has it."""
    found = await steps._transaction.connection.fetch(
        "SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until,"
        " confirmed_at, ended_at, payment_id, payment_method, version FROM bookings WHERE id = $1",
        booking_id,
    )
    return convert_rows_and_values.booking(found[0]) if found else None


def both_look_before_either_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two scanners has found no admission when the other writes its own."""
    looked = asyncio.Barrier(2)
    find = StoredTicketSteps.find_admission

    async def find_and_wait(steps: Any, ticket_id: Any) -> Any:
        found = await find(steps, ticket_id)
        if found is None:
            await looked.wait()
        return found

    monkeypatch.setattr(StoredTicketSteps, "lock_booking", without_lock)
    monkeypatch.setattr(StoredTicketSteps, "find_admission", find_and_wait)


async def test_of_many_scanners_at_once_one_admits(postgres_store: PostgresStore, ids: Uuid7Ids) -> None:
    """The others are told that it did."""
    _, _, code = await sold(postgres_store, ids)
    results = await asyncio.gather(*(scan(postgres_store, code, str(n)) for n in range(8)))
    reasons = sorted(str(result.reason) for result in results)
    assert reasons == [*["None"], *["already_admitted"] * 7]
    assert await admissions(postgres_store) == 1


async def test_control_without_lock_and_guard_both_scanners_admit(
    bare_store: PostgresStore, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two visitors with one ticket."""
    _, _, code = await sold(bare_store, ids)
    both_look_before_either_writes(monkeypatch)
    results = await asyncio.gather(*(scan(bare_store, code, str(n)) for n in range(2)))
    assert [result.reason for result in results] == [None, None]
    assert await admissions(bare_store) == 2
    (flaw,) = await bare_store.find_flaws(limit=9)
    assert (flaw.rule, "has 2 admissions" in flaw.row) == (
        "a ticket has at most one admission that is not undone",
        True,
    )


async def test_the_guard_alone_admits_once(
    postgres_store: PostgresStore, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second write finds the admission of the first in the index, and becomes a refusal."""
    _, _, code = await sold(postgres_store, ids)
    both_look_before_either_writes(monkeypatch)
    results = await asyncio.gather(*(scan(postgres_store, code, str(n)) for n in range(2)))
    assert sorted(str(result.reason) for result in results) == ["None", "already_admitted"]
    assert await admissions(postgres_store) == 1


async def test_the_lock_alone_admits_once(bare_store: PostgresStore, ids: Uuid7Ids) -> None:
    """The second scanner waits for the booking, and then finds the admission."""
    _, _, code = await sold(bare_store, ids)
    results = await asyncio.gather(*(scan(bare_store, code, str(n)) for n in range(2)))
    assert sorted(str(result.reason) for result in results) == ["None", "already_admitted"]
    assert await admissions(bare_store) == 1


async def test_the_same_scan_sent_twice_at_once_is_one_admission(postgres_store: PostgresStore, ids: Uuid7Ids) -> None:
    """Both get the same success."""
    _, _, code = await sold(postgres_store, ids)
    results = await asyncio.gather(*(scan(postgres_store, code, "1") for _ in range(4)))
    assert [result.reason for result in results] == [None] * 4
    assert len({result.scan.id for result in results}) == 1
    assert await admissions(postgres_store) == 1


async def cancelled_before_it_is_written(
    shop: Shop, booking: Booking, monkeypatch: pytest.MonkeyPatch
) -> list[BaseException | None]:
    """While a scan has judged the ticket and not yet recorded it, the sale is cancelled; what came of that."""
    outcome: list[BaseException | None] = []
    insert = stored.StoredTicketSteps.insert_scan

    async def cancel_then_insert(steps: Any, scan: Any) -> bool:
        if not outcome:
            try:
                await shop.cancel(booking)
                outcome.append(None)
            except RowBusy as busy:
                outcome.append(busy)
        return await insert(steps, scan)

    monkeypatch.setattr(stored.StoredTicketSteps, "insert_scan", cancel_then_insert)
    return outcome


async def test_control_without_the_lock_a_cancelled_ticket_is_admitted(
    bare_store: PostgresStore, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shop was told that the sale is cancelled, and afterwards the visitor is let in."""
    shop, booking, code = await sold(bare_store, ids)
    monkeypatch.setattr(StoredTicketSteps, "lock_booking", without_lock)
    outcome = await cancelled_before_it_is_written(shop, booking, monkeypatch)
    assert (await scan(bare_store, code, "1")).reason is None
    assert outcome == [None], "the cancellation was done before"
    assert await admissions(bare_store) == 1


async def test_a_cancellation_waits_for_the_scan_that_has_the_booking(
    bare_store: PostgresStore, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As built: it is not done while a scan judges, and a scan after it is refused."""
    shop, booking, code = await sold(bare_store, ids)
    with monkeypatch.context() as patch:
        outcome = await cancelled_before_it_is_written(shop, booking, patch)
        assert (await scan(bare_store, code, "1")).reason is None
    assert isinstance(outcome[0], RowBusy), "the cancellation was refused for now"
    await shop.cancel(booking)
    assert (await scan(bare_store, code, "2")).reason is ScanReason.CANCELLED


async def test_tickets_asked_for_twice_at_once_are_made_once(postgres_store: PostgresStore, ids: Uuid7Ids) -> None:
    """Both requests get the same codes."""
    shop = Shop(postgres_store, ids=ids)
    await shop.create()
    booking = await shop.confirm(await shop.hold("alice", "A1", "A2", pools={"GA": 3}))
    found = await asyncio.gather(
        *(postgres_store.tickets.of_booking(booking.id, actor=SHOP, new=NEW_SECRETS) for _ in range(6))
    )
    assert {one.page for one in found} == {found[0].page}
    assert all(one.tickets == found[0].tickets for one in found)
    assert len(found[0].tickets) == 5
