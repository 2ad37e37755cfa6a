"""Tickets on every store: made once, judged by their booking each time, admitted once, and kept as scanned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.domain.id_types import Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.ticket import UNDO_SECONDS_MAX, Kind, ScanReason, is_secret
from earmark.engine.commands_and_results import Actor
from earmark.engine.tickets import ScanRequest, hash_of, nonce_after_refusal
from earmark.errors import BookingNotConfirmed, BookingUnknown, IdempotencyMismatch, ScanUnknown, UndoRefused
from earmark.store.both_databases.tickets import StoredTicketSteps
from earmark.tickets.new_ticket_secrets import NEW_SECRETS, new_secret
from earmark.uuids import uuid7

from .conftest import Shop

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.tickets import BookingTickets, ScanResult
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore

SHOP = Actor(name="key:k_shop", mode=Mode.LIVE)
DOOR = "key:k_door"


async def issued(shop: Shop, booking: Booking, actor: Actor = SHOP) -> BookingTickets:
    return await shop.store.tickets.of_booking(booking.id, actor=actor, new=NEW_SECRETS)


async def sold(shop: Shop, *seats: str, buyer: str = "alice", **rest: Any) -> tuple[Booking, list[str]]:
    """A sale, and the codes of its tickets."""
    booking = await shop.confirm(await shop.hold(buyer, *seats, **rest))
    return booking, [kept.ticket.secret for kept in (await issued(shop, booking)).tickets]


async def scan(shop: Shop, code: str, nonce: str, *, caller: str = DOOR, **more: Any) -> ScanResult:
    request = {"mode": Mode.LIVE} | more
    return await shop.store.tickets.check(ScanRequest(id=uuid7(), caller=caller, code=code, nonce=nonce, **request))


async def test_each_seat_and_each_unit_has_one_ticket(shop: Shop) -> None:
    """Asked for again, they are the same: a printed ticket stays good."""
    await shop.create()
    booking = await shop.confirm(await shop.hold("alice", "A1", "A2", pools={"GA": 2}))
    first = await issued(shop, booking)
    assert [(kept.ticket.kind, kept.ticket.name, kept.ticket.unit) for kept in first.tickets] == [
        (Kind.SEAT, "A1", 1),
        (Kind.SEAT, "A2", 1),
        (Kind.POOL, "GA", 1),
        (Kind.POOL, "GA", 2),
    ]
    secrets = {first.page.secret, *(kept.ticket.secret for kept in first.tickets)}
    assert len(secrets) == 5
    assert all(map(is_secret, secrets))
    again = await issued(shop, booking)
    assert (again.page, again.tickets) == (first.page, first.tickets)
    assert await shop.store.tickets.open_page(first.page.secret) == again
    assert await shop.store.tickets.open_page(first.tickets[0].ticket.secret) is None, "a code opens no page"
    assert await shop.store.tickets.open_page(new_secret()) is None


async def test_only_the_owner_of_a_sale_gets_its_tickets(shop: Shop) -> None:
    """A hold has none yet, and another buyer's booking, or one of the other mode, is unknown."""
    await shop.create()
    held = await shop.hold("alice", "A1")
    with pytest.raises(BookingNotConfirmed):
        await issued(shop, held)
    await shop.confirm(held)
    for actor in (
        Actor(name="buyer:bob", mode=Mode.LIVE, buyer=Buyer("bob")),
        Actor(name="key:k_test", mode=Mode.TEST),
    ):
        with pytest.raises(BookingUnknown):
            await issued(shop, held, actor)
    own = await issued(shop, held, Actor(name="buyer:alice", mode=Mode.LIVE, buyer=Buyer("alice")))
    assert [kept.ticket.name for kept in own.tickets] == ["A1"]


async def test_a_ticket_admits_once(shop: Shop, clock: MovableClock) -> None:
    """The second scan is told when the first was."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    first = await scan(shop, code, "1")
    assert (first.reason, first.scan.admitted, first.admission) == (None, True, first.scan)
    clock.advance(60)
    second = await scan(shop, code, "2")
    assert (second.reason, second.scan.admitted) == (ScanReason.ALREADY_ADMITTED, False)
    assert second.admission == first.scan


async def test_the_same_nonce_is_the_same_scan(shop: Shop) -> None:
    """A scanner whose answer was lost asks again and lets the visitor in; there is one admission."""
    await shop.create()
    _, (code, other) = await sold(shop, "A1", "A2")
    first = await scan(shop, code, "1")
    again = await scan(shop, code, "1")
    assert (again.reason, again.scan) == (None, first.scan)
    assert (await scan(shop, code, "1", caller="key:k_other")).reason is ScanReason.ALREADY_ADMITTED
    with pytest.raises(IdempotencyMismatch):
        await scan(shop, other, "1")
    assert (await scan(shop, other, "2")).reason is None, "the refused request wrote nothing"


async def test_what_was_cancelled_is_not_admitted(shop: Shop) -> None:
    """Neither a seat and a unit of a sale, nor the whole of it; what remains is."""
    await shop.create()
    booking, (a1, a2, ga1, ga2) = await sold(shop, "A1", "A2", pools={"GA": 2})
    await shop.cancel(booking, "A1", pools={"GA": 1})
    assert [(await scan(shop, code, code)).reason for code in (a1, ga2)] == [ScanReason.SEAT_NOT_IN_BOOKING] * 2
    assert [(await scan(shop, code, code)).reason for code in (a2, ga1)] == [None, None]
    await shop.cancel(booking)
    assert [(await scan(shop, code, f"{code}-2")).reason for code in (a1, a2)] == [ScanReason.CANCELLED] * 2


async def one_of_two_units_is_cancelled_while_the_other_is_inside(shop: Shop, **used: Any) -> tuple[str, str]:
    """The codes of both units; the second let a visitor in before it was cancelled."""
    await shop.create()
    booking, (ga1, ga2) = await sold(shop, pools={"GA": 2})
    if not used:
        assert (await scan(shop, ga2, "1")).reason is None
    await shop.cancel(booking, pools={"GA": 1})
    if used:
        assert (await scan(shop, ga2, "1", **used)).reason is ScanReason.SEAT_NOT_IN_BOOKING
    return ga1, ga2


@pytest.mark.parametrize("used", [{}, {"offline_at": datetime(2030, 1, 1, 18, 0, tzinfo=UTC)}])
async def test_no_more_units_of_a_pool_are_let_in_than_the_booking_has(shop: Shop, used: Any) -> None:
    """Also where the one inside was let in by a door without a network, which reported it after the cancellation."""
    ga1, _ = await one_of_two_units_is_cancelled_while_the_other_is_inside(shop, **used)
    refused = await scan(shop, ga1, "2")
    assert (refused.reason, refused.scan.admitted) == (ScanReason.ALREADY_ADMITTED, False)
    late = await scan(shop, ga1, "3", offline_at=datetime(2030, 1, 1, 18, 5, tzinfo=UTC))
    assert (late.reason, late.scan.admitted) == (ScanReason.ALREADY_ADMITTED, True)


async def test_the_offline_list_refuses_a_unit_whose_place_another_took(shop: Shop) -> None:
    """Else a door without a network would let in both. The control: a pool that is not cancelled is not refused."""
    ga1, ga2 = await one_of_two_units_is_cancelled_while_the_other_is_inside(shop)
    _, (first, second) = await sold(shop, buyer="bob", pools={"GA": 2})
    assert (await scan(shop, first, "2")).reason is None
    found = await shop.store.tickets.list_event(EventId("concert"), after="", limit=10)
    assert {one.ticket.secret: one.why_refused for one in found} == {
        ga1: ScanReason.ALREADY_ADMITTED,
        ga2: ScanReason.SEAT_NOT_IN_BOOKING,
        first: None,
        second: None,
    }


async def test_control_without_the_count_two_visitors_enter_with_one_unit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ticket by itself is valid when it is scanned."""

    async def none(*_: Any) -> int:
        return 0

    monkeypatch.setattr(StoredTicketSteps, "count_others_inside", none)
    ga1, _ = await one_of_two_units_is_cancelled_while_the_other_is_inside(shop)
    assert (await scan(shop, ga1, "2")).reason is None


async def test_a_unit_is_let_in_once_the_cancelled_one_was_undone(shop: Shop) -> None:
    """And all units of a pool that is not cancelled are."""
    ga1, ga2 = await one_of_two_units_is_cancelled_while_the_other_is_inside(shop)
    await shop.store.tickets.undo(caller=DOOR, nonce="1")
    assert (await scan(shop, ga1, "2")).reason is None
    assert (await scan(shop, ga2, "3")).reason is ScanReason.SEAT_NOT_IN_BOOKING
    _, codes = await sold(shop, buyer="bob", pools={"GA": 3})
    assert [(await scan(shop, code, code)).reason for code in codes] == [None] * 3


async def test_a_seat_that_is_sold_again_has_a_ticket_of_its_own(shop: Shop) -> None:
    """The first buyer's ticket stays refused."""
    await shop.create()
    before, (old,) = await sold(shop, "A1")
    await shop.cancel(before)
    _, (new,) = await sold(shop, "A1", buyer="bob")
    assert (await scan(shop, old, "1")).reason is ScanReason.CANCELLED
    assert (await scan(shop, new, "2")).reason is None


async def test_a_door_knows_its_event_and_its_mode(shop: Shop) -> None:
    """A ticket of another event is said to be so; one of the other mode does not exist."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    wrong = await scan(shop, code, "1", event_id=EventId("opera"))
    assert (wrong.reason, wrong.event.name if wrong.event else None) == (ScanReason.WRONG_EVENT, "Concert")
    strange = await scan(shop, code, "2", mode=Mode.TEST)
    assert (strange.reason, strange.ticket, strange.scan.ticket_id) == (ScanReason.UNKNOWN, None, None)
    named = await scan(shop, code, "2b", mode=Mode.TEST, event_id=EventId("concert"))
    kept = await shop.store.tickets.list_scans(EventId("concert"), mode=Mode.LIVE, after="", limit=10)
    assert named.scan.id not in {one.scan.id for one in kept}, "its own shop's audit does not show it"
    assert (await scan(shop, code, "3", event_id=EventId("concert"))).reason is None


async def test_a_refused_scan_is_kept_and_its_code_is_not(shop: Shop) -> None:
    """The audit names the key, the time and the reason; of an unknown code it has the hash."""
    await shop.create()
    booking, (code,) = await sold(shop, "A1")
    for nonce, scanned in (("1", "x" * 32), ("2", code), ("3", code)):
        await scan(shop, scanned, nonce, event_id=EventId("concert"))
    kept = await shop.store.tickets.list_scans(EventId("concert"), mode=Mode.LIVE, after="", limit=10)
    assert [(one.scan.caller, one.scan.nonce, one.scan.reason) for one in kept] == [
        (DOOR, "1", ScanReason.UNKNOWN),
        (DOOR, "2", None),
        (DOOR, "3", ScanReason.ALREADY_ADMITTED),
    ]
    assert kept[0].scan.code_hash == hash_of("x" * 32)
    assert [one.booking_id for one in kept] == [None, booking.id, booking.id]
    assert (
        await shop.store.tickets.list_scans(EventId("concert"), mode=Mode.LIVE, after=str(kept[1].scan.id), limit=10)
    ) == kept[2:]


async def test_an_admission_is_undone_by_the_key_that_made_it(shop: Shop, clock: MovableClock) -> None:
    """Within 15 minutes; the ticket then admits again, and the undone scan does not when it is sent again."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    await scan(shop, code, "1")
    with pytest.raises(ScanUnknown):
        await shop.store.tickets.undo(caller="key:k_other", nonce="1")
    undone = await shop.store.tickets.undo(caller=DOOR, nonce="1")
    assert undone.undone_at is not None
    assert await shop.store.tickets.undo(caller=DOOR, nonce="1") == undone, "once more changes nothing"
    assert (await scan(shop, code, "1")).reason is ScanReason.UNDONE
    assert (await scan(shop, code, "2")).reason is None
    assert (await scan(shop, code, "3")).reason is ScanReason.ALREADY_ADMITTED
    assert await shop.store.find_flaws(limit=9) == []
    with pytest.raises(UndoRefused) as refused:
        await shop.store.tickets.undo(caller=DOOR, nonce="3")
    assert refused.value.why == "not_admitted"
    clock.advance(UNDO_SECONDS_MAX + 1)
    with pytest.raises(UndoRefused) as late:
        await shop.store.tickets.undo(caller=DOOR, nonce="2")
    assert late.value.why == "too_late"


async def test_an_offline_admission_counts_and_a_double_one_is_reported(shop: Shop) -> None:
    """Both times are kept: when the scanner let the visitor in, and when the server learned of it."""
    await shop.create()
    _, (first, second) = await sold(shop, "A1", "A2")
    then = datetime(2030, 1, 1, 18, 0, tzinfo=UTC)
    taken = await scan(shop, first, "1", offline_at=then)
    assert (taken.reason, taken.scan.admitted, taken.scan.offline, taken.scan.scanned_at) == (None, True, True, then)
    assert taken.scan.received_at != then
    assert (await scan(shop, first, "2")).reason is ScanReason.ALREADY_ADMITTED
    online = await scan(shop, second, "3")
    double = await scan(shop, second, "4", offline_at=then, caller="key:k_side_door")
    assert (double.reason, double.scan.admitted) == (ScanReason.ALREADY_ADMITTED, True)
    assert double.admission == online.scan
    repeated = await scan(shop, second, "4", offline_at=then, caller="key:k_side_door")
    assert (repeated.scan, repeated.reason) == (double.scan, double.reason)


async def refused_and_then_let_in_offline(shop: Shop) -> ScanResult:
    """The answer of the online check was lost, and the door's old list says that the ticket is valid."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    assert (await scan(shop, code, "1", caller="key:k_side_door")).reason is None
    assert (await scan(shop, code, "2")).reason is ScanReason.ALREADY_ADMITTED
    then = datetime(2030, 1, 1, 18, 0, tzinfo=UTC)
    reported = await scan(shop, code, "2", offline_at=then)
    assert await scan(shop, code, "2", offline_at=then) == reported, "sent again it is the same scan"
    with pytest.raises(IdempotencyMismatch):
        await scan(shop, "x" * 32, "2", offline_at=then)
    return reported


async def test_whom_a_door_let_in_after_a_refusal_that_it_did_not_get_is_recorded(shop: Shop) -> None:
    """As a conflict, beside the refusal: both have the same nonce for the door."""
    reported = await refused_and_then_let_in_offline(shop)
    assert (reported.reason, reported.scan.admitted) == (ScanReason.ALREADY_ADMITTED, True)
    assert reported.admission is not None
    kept = await shop.store.tickets.list_scans(EventId("concert"), mode=Mode.LIVE, after="", limit=10)
    assert [(one.scan.nonce, one.scan.admitted, one.scan.offline) for one in kept] == [
        ("1", True, False),
        ("2", False, False),
        (nonce_after_refusal("2"), True, True),
    ]


async def test_a_refusal_that_is_written_while_the_same_scan_comes_from_offline_hides_it_no_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late check is committed after the offline scan has looked for its nonce, and before it is written."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    await scan(shop, code, "1", caller="key:k_side_door")
    await scan(shop, code, "2")
    find, looked = StoredTicketSteps.find_scan, []

    async def find_nothing_first(steps: Any, caller: str, nonce: str) -> Any:
        looked.append(nonce)
        return None if len(looked) == 1 else await find(steps, caller, nonce)

    monkeypatch.setattr(StoredTicketSteps, "find_scan", find_nothing_first)
    reported = await scan(shop, code, "2", offline_at=datetime(2030, 1, 1, 18, 0, tzinfo=UTC))
    assert (reported.reason, reported.scan.admitted) == (ScanReason.ALREADY_ADMITTED, True)
    assert (reported.scan.nonce, looked[:3]) == (nonce_after_refusal("2"), ["2"] * 3)


async def test_control_by_its_own_nonce_the_visitor_stays_recorded_as_not_let_in(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit says so for good, and the visitor is inside."""
    monkeypatch.setattr("earmark.engine.tickets.nonce_after_refusal", lambda nonce: nonce)
    reported = await refused_and_then_let_in_offline(shop)
    assert (reported.scan.admitted, reported.scan.offline) == (False, False)


async def test_a_ticket_that_was_free_again_is_used_by_whom_the_door_let_in(shop: Shop) -> None:
    """The admission that it was refused for was undone meanwhile: this one counts, and no second visitor follows."""
    await shop.create()
    _, (code,) = await sold(shop, "A1")
    await scan(shop, code, "1", caller="key:k_side_door")
    await scan(shop, code, "2")
    await shop.store.tickets.undo(caller="key:k_side_door", nonce="1")
    taken = await scan(shop, code, "2", offline_at=datetime(2030, 1, 1, 18, 0, tzinfo=UTC))
    assert (taken.reason, taken.admission) == (None, taken.scan)
    assert (await scan(shop, code, "3")).reason is ScanReason.ALREADY_ADMITTED


async def test_the_offline_list_says_which_tickets_are_valid(shop: Shop) -> None:
    """Page by page, with what has admitted."""
    await shop.create()
    booking, (a1, a2) = await sold(shop, "A1", "A2")
    gone, _ = await sold(shop, "A3", buyer="bob")
    await shop.cancel(gone)
    await scan(shop, a2, "1")
    found = await shop.store.tickets.list_event(EventId("concert"), after="", limit=2)
    assert [(one.ticket.secret, one.why_refused, one.admitted_at is not None) for one in found] == [
        (a1, None, False),
        (a2, None, True),
    ]
    rest = await shop.store.tickets.list_event(EventId("concert"), after=str(found[-1].ticket.id), limit=2)
    assert [(one.ticket.name, one.why_refused) for one in rest] == [("A3", ScanReason.CANCELLED)]
    await shop.cancel(booking, "A1")
    (first,) = await shop.store.tickets.list_event(EventId("concert"), after="", limit=1)
    assert first.why_refused is ScanReason.SEAT_NOT_IN_BOOKING


REFUSED = {
    "UPDATE tickets SET name = 'A9'": "ticket_stays",
    "DELETE FROM tickets": "ticket_stays",
    "UPDATE ticket_pages SET secret = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'": "ticket_page_stays",
    "DELETE FROM ticket_pages": "ticket_page_stays",
    "UPDATE ticket_scans SET caller = 'another'": "scan_stays",
    "UPDATE ticket_scans SET admitted = false, reason = 'unknown'": "scan_stays",
    "DELETE FROM ticket_scans": "scan_stays",
}
"""Hand-written SQL, and the rule that refuses it."""


async def admitted(shop: Shop) -> Booking:
    """A sale with one admission, whose row is the only scan."""
    await shop.create()
    booking, (code,) = await sold(shop, "A1")
    assert (await scan(shop, code, "1")).reason is None
    return booking


@pytest.mark.parametrize("statement", REFUSED)
async def test_the_schema_of_sqlite_keeps_tickets_and_scans(
    sqlite_store: SqliteStore, ids: Any, statement: str
) -> None:
    """What was issued and scanned is neither changed nor removed."""
    await admitted(Shop(sqlite_store, ids=ids))
    with pytest.raises(Exception, match=REFUSED[statement]):
        await sqlite_store.access.writer.run(_running(statement), within=5)


@pytest.mark.parametrize("statement", [*REFUSED, "TRUNCATE tickets CASCADE"])
async def test_the_schema_of_postgresql_keeps_tickets_and_scans(
    postgres_store: PostgresStore, ids: Any, statement: str
) -> None:
    """What was issued and scanned is neither changed nor removed."""
    await admitted(Shop(postgres_store, ids=ids))
    async with postgres_store.pool.acquire() as connection:
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await connection.execute(statement)
    assert refused.value.constraint_name == REFUSED.get(statement, "nothing_is_truncated")


INSERT = """
INSERT INTO ticket_scans
    (id, caller, nonce, mode, code_hash, ticket_id, event_id, admitted, reason, offline, scanned_at, received_at)
SELECT $1, 'hand', 'hand', 'live', $2, id, event_id, true, NULL, true, now(), now() FROM tickets"""


async def test_no_hand_written_admission_is_of_a_cancelled_sale_or_the_second(
    postgres_store: PostgresStore, ids: Any
) -> None:
    """The control is beside it: after the undo the same row of a confirmed booking is taken."""
    shop = Shop(postgres_store, ids=ids)
    booking = await admitted(shop)
    async with postgres_store.pool.acquire() as connection:
        with pytest.raises(asyncpg.UniqueViolationError) as twice:
            await connection.execute(INSERT, uuid7(), bytes(32))
        assert twice.value.constraint_name == "ticket_admits_once"
        await shop.store.tickets.undo(caller=DOOR, nonce="1")
        await connection.execute(INSERT, uuid7(), bytes(32))
        await connection.execute("UPDATE ticket_scans SET undone_at = now() WHERE undone_at IS NULL")
        await shop.cancel(booking)
        with pytest.raises(asyncpg.CheckViolationError) as late:
            await connection.execute(INSERT.replace("'hand', 'live'", "'later', 'live'"), uuid7(), bytes(32))
        assert late.value.constraint_name == "admission_is_of_a_sale"


async def test_verify_finds_a_second_admission(sqlite_store: SqliteStore, ids: Any) -> None:
    """Where the guards were taken away, as a hand may: the audit names the ticket."""
    shop = Shop(sqlite_store, ids=ids)
    await admitted(shop)
    again = "SELECT 'x' || id, caller, 'again', mode, code_hash, ticket_id, event_id, admitted, reason, offline"
    for statement in (
        "DROP INDEX ticket_admits_once",
        "DROP TRIGGER scan_is_not_replaced",
        f"INSERT INTO ticket_scans {again}, scanned_at, received_at, undone_at FROM ticket_scans",
    ):
        await sqlite_store.access.writer.run(_running(statement), within=5)
    (flaw,) = await sqlite_store.find_flaws(limit=9)
    assert (flaw.promise, "has 2 admissions" in flaw.row) == ("P1", True)


def _running(statement: str) -> Any:
    async def work(transaction: Any) -> None:
        transaction.connection.execute(statement)
        transaction.wrote = True

    return work


def test_an_undo_has_fifteen_minutes() -> None:
    """As the documentation says."""
    assert timedelta(seconds=UNDO_SECONDS_MAX) == timedelta(minutes=15)
