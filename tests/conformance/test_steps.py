"""Each step of a transaction, and each plain read, does the same on every store.

The steps are what the verbs are built from (`earmark.engine.ports.store`). Here they are taken one at a time, with
plain data, over memory, SQLite and PostgreSQL alike.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.booking import Lines
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId, OutsidePaymentRef, PoolId, PoolRef, SeatId, SeatRef
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.ports.store import Changes, PoolUpdate, SeatUpdate

from .steps_support import ANN, BOB, CEM, GA, SHOW, WITHIN, Shop, count, paid, seat_ref, total_ref

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store, Transaction
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

KEY = IdempotencyKey("caller", "key-1")
MEMORY = IdempotencyRecord(request_hash=b"\x00\xff" * 16, status=201, body=b'{"id": "\xc3\xa9"}\r\n\x00')


@pytest.fixture
def shop(store: Store, clock: MovableClock, ids: Uuid7Ids) -> Shop:
    return Shop(store, clock=clock, ids=ids)


class Oops(Exception):
    """What a test raises inside its work."""


# -- events and what they sell ------------------------------------------------------------------------------------


async def test_an_event_comes_back_as_it_was_made(shop: Shop) -> None:
    """Every field survives, moments to the microsecond and in aware UTC."""
    at = datetime(2031, 5, 4, 3, 2, 1, 123_457, tzinfo=UTC)
    event = shop.event(
        name="Schöne Müllerin",
        mode=Mode.TEST,
        created_at=at,
        starts_at=at + timedelta(days=1),
        sale_opens_at=at + timedelta(microseconds=1),
        sale_closes_at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        hold_ttl_seconds=120,
        per_buyer_max=None,
    )
    await shop.open(event)
    found = await shop.store.read_event(SHOW)
    assert found == event
    assert found is not None
    assert found.created_at.utcoffset() == timedelta(0)
    assert await shop.step(lambda tx: tx.read_events([SHOW, EventId("none")])) == {SHOW: event}
    assert await shop.step(lambda tx: tx.lock_event(SHOW)) == event
    assert await shop.step(lambda tx: tx.lock_event(EventId("none"))) is None
    assert await shop.store.read_event(EventId("none")) is None


async def test_seats_and_pools_come_back_in_the_order_they_were_laid_out(shop: Shop) -> None:
    """The map keeps the operator's order, and every detail of a seat."""
    event = shop.event()
    seats = [
        Seat(
            event_id=SHOW, id=SeatId("B2"), price=3, row="B", number=2, section="stalls", category="best", x=1.5, y=-2
        ),
        Seat(event_id=SHOW, id=SeatId("A10"), price=0, blocked=True),
        Seat(event_id=SHOW, id=SeatId("A9"), price=10**12),
    ]
    pools = [
        Pool(event_id=SHOW, id=PoolId("Z"), capacity=7, price=1),
        Pool(event_id=SHOW, id=PoolId("GA"), capacity=0, price=2),
    ]
    assert await shop.step(lambda tx: tx.insert_event(event, seats=seats, pools=pools))
    shown = await shop.store.read_map(SHOW)
    assert [on_map.seat for on_map in shown.seats] == seats
    assert list(shown.pools) == pools
    one = await shop.store.read_map(SHOW, seat_id=SeatId("A9"))
    assert [on_map.seat.id for on_map in one.seats] == ["A9"]
    nothing = await shop.store.read_map(EventId("none"))
    assert (list(nothing.seats), list(nothing.pools)) == ([], [])


async def test_a_taken_event_id_is_refused_and_adds_nothing(shop: Shop) -> None:
    """The second event of one name leaves the first as it was."""
    event = await shop.open()
    another = shop.event(name="Another")
    extra = [Seat(event_id=SHOW, id=SeatId("Z9"), price=1)]
    assert not await shop.step(lambda tx: tx.insert_event(another, seats=extra, pools=[]))
    assert await shop.store.read_event(SHOW) == event
    assert not (await shop.store.read_map(SHOW, seat_id=SeatId("Z9"))).seats


async def test_an_operator_changes_event_seats_and_pools(shop: Shop) -> None:
    """What is not named stays as it is."""
    event = await shop.open()
    changed = msgspec.structs.replace(event, name="Later", starts_at=shop.clock.now(), per_buyer_max=9, version=2)
    await shop.write(
        Changes(
            event=changed,
            seat_changes=[SeatUpdate(ref=seat_ref("A1"), blocked=True), SeatUpdate(ref=seat_ref("A2"), price=7)],
            pool_changes=[PoolUpdate(ref=GA, capacity=8)],
        )
    )
    shown = {on_map.seat.id: on_map.seat for on_map in (await shop.store.read_map(SHOW)).seats}
    assert await shop.store.read_event(SHOW) == changed
    assert (shown[SeatId("A1")].blocked, shown[SeatId("A1")].price) == (True, 1001)
    assert (shown[SeatId("A2")].blocked, shown[SeatId("A2")].price) == (False, 7)
    pools = await shop.step(lambda tx: tx.lock_pools([GA]))
    assert pools == {GA: Pool(event_id=SHOW, id=GA.pool_id, capacity=8, price=500)}


# -- bookings -----------------------------------------------------------------------------------------------------


async def test_a_booking_comes_back_as_it_was_written(shop: Shop) -> None:
    """Every field survives, in a new booking and in a moved one."""
    await shop.open()
    booking = await shop.hold("A1", "A2", units=2)
    assert (await shop.store.read_booking(booking.id))[1] == booking
    at = shop.clock.now()
    paying = await shop.move(booking, State.PAYING, paying_until=at, payment_id="pay-1", payment_method="card")
    confirmed = await shop.move(paying, State.CONFIRMED, paying_until=None, confirmed_at=at)
    cancelled = await shop.move(confirmed, State.CANCELLED, ended_at=at + timedelta(microseconds=1))
    now, found = await shop.store.read_booking(booking.id)
    assert found == cancelled
    assert at <= now
    assert await shop.step(lambda tx: tx.lock_bookings([shop.ids.booking_id(), booking.id])) == {booking.id: cancelled}
    assert (await shop.store.read_booking(shop.ids.booking_id()))[1] is None


async def test_an_empty_question_has_an_empty_answer(shop: Shop) -> None:
    """No step minds being asked about nothing."""

    async def ask(tx: Transaction) -> list[object]:
        return [
            await tx.read_events([]),
            await tx.read_seats([]),
            await tx.lock_bookings([]),
            await tx.tie_outside_payments({}),
            await tx.lock_totals([]),
            await tx.lock_pools([]),
            await tx.lock_seats([]),
        ]

    assert [len(answer) for answer in await shop.step(ask)] == [0] * 7  # type: ignore[arg-type]
    await shop.write(Changes())


async def test_a_seat_is_seen_with_its_owner(shop: Shop) -> None:
    """One look tells whose a seat is, until when and in which state; unknown seats are left out."""
    await shop.open()
    await shop.open(shop.event(EventId("other")))
    booking = await shop.hold("A1", buyer=BOB)
    other = SeatRef(EventId("other"), SeatId("A1"))
    seen = await shop.step(lambda tx: tx.read_seats([seat_ref("A2"), seat_ref("A1"), seat_ref("Z9"), other]))
    assert set(seen) == {seat_ref("A1"), seat_ref("A2"), other}
    owned = seen[seat_ref("A1")]
    assert (owned.pointer, owned.owner_state, owned.owner_buyer) == (booking.id, State.HELD, BOB)
    assert (owned.owner_expires_at, owned.price, owned.blocked, owned.fence) == (booking.expires_at, 1001, False, 0)
    free = seen[seat_ref("A2")]
    assert (free.pointer, free.owner_state, free.owner_expires_at, free.owner_buyer) == (None, None, None, None)
    on_map = (await shop.store.read_map(SHOW, seat_id=SeatId("A1"))).seats[0]
    assert (on_map.owner_id, on_map.owner_state, on_map.owner_buyer) == (booking.id, State.HELD, BOB)
    assert on_map.owner_expires_at == booking.expires_at


async def test_seats_that_moved_since_they_were_seen_do_not_come_back(shop: Shop) -> None:
    """Compare and lock: a new pointer or a new block means look again."""
    await shop.open()
    refs = [seat_ref("A1"), seat_ref("A2"), seat_ref("A3")]
    seen = await shop.step(lambda tx: tx.read_seats(refs))
    assert await shop.step(lambda tx: tx.lock_seats(seen.values())) == set(refs)
    await shop.hold("A1")
    await shop.write(Changes(seat_changes=[SeatUpdate(ref=seat_ref("A2"), blocked=True)]))
    assert await shop.step(lambda tx: tx.lock_seats(seen.values())) == {seat_ref("A3")}
    fresh = await shop.step(lambda tx: tx.read_seats(refs))
    assert await shop.step(lambda tx: tx.lock_seats(fresh.values())) == set(refs)


async def test_a_seat_that_late_money_took_back_has_moved(shop: Shop) -> None:
    """An expired booking that is confirmed raises the fence: the pointer alone would look the same."""
    await shop.open()
    booking = await shop.move(await shop.hold("A1"), State.EXPIRED)
    seen = await shop.step(lambda tx: tx.read_seats([seat_ref("A1")]))
    await shop.move(booking, State.CONFIRMED)
    now = await shop.step(lambda tx: tx.read_seats([seat_ref("A1")]))
    assert now[seat_ref("A1")].pointer == seen[seat_ref("A1")].pointer == booking.id
    assert now[seat_ref("A1")].fence == seen[seat_ref("A1")].fence + 1
    assert await shop.step(lambda tx: tx.lock_seats(seen.values())) == frozenset()


async def test_a_lapsed_seat_changes_hands_in_one_write(shop: Shop) -> None:
    """The old hold ends before the seat moves, or the schema would refuse the takeover."""
    await shop.open()
    old = await shop.hold("A1", units=1, seconds=30)
    shop.clock.advance(31)
    new = shop.booking("A1", units=1, buyer=BOB)
    ended = msgspec.structs.replace(old, state=State.EXPIRED, version=2, ended_at=shop.clock.now())
    taking = shop.taking(new)
    await shop.write(
        msgspec.structs.replace(
            taking,
            expired=[ended],
            totals={**taking.totals, total_ref(ANN): -2},
            pools={},
            entries=[shop.entry("expire", ended, before=State.HELD), *taking.entries],
        )
    )
    seen = await shop.step(lambda tx: tx.read_seats([seat_ref("A1")]))
    assert seen[seat_ref("A1")].pointer == new.id
    assert (await shop.store.read_booking(old.id))[1] == ended
    assert await shop.store.find_flaws(limit=10) == []


async def test_a_cleared_seat_points_to_no_booking(shop: Shop) -> None:
    """A booking that stays sold gives back some of its seats: lines first, then the pointer."""
    await shop.open()
    sold = await shop.move(await shop.hold("A1", "A2"), State.CONFIRMED)
    kept = Lines(seats=tuple(line for line in sold.lines.seats if line.id == "A1"))
    after = msgspec.structs.replace(sold, lines=kept, total=kept.total, version=sold.version + 1)
    changes = shop.moving(sold, after)
    await shop.write(msgspec.structs.replace(changes, cleared={seat_ref("A2"): sold.id}))
    seen = await shop.step(lambda tx: tx.read_seats([seat_ref("A1"), seat_ref("A2")]))
    assert {ref.seat_id: seat.pointer for ref, seat in seen.items()} == {"A1": sold.id, "A2": None}
    assert (await shop.store.read_booking(sold.id))[1] == after
    assert await shop.store.find_flaws(limit=10) == []


# -- totals, pools and payments -----------------------------------------------------------------------------------


async def test_totals_begin_at_zero_and_follow_what_is_added(shop: Shop) -> None:
    """Taken, given back, and known per buyer and event."""
    await shop.open()
    refs = [total_ref(ANN), total_ref(BOB)]
    assert await shop.step(lambda tx: tx.lock_totals(refs)) == {total_ref(ANN): 0, total_ref(BOB): 0}
    booking = await shop.hold("A1", units=2)
    await shop.hold("A2")
    assert await shop.step(lambda tx: tx.lock_totals(refs)) == {total_ref(ANN): 4, total_ref(BOB): 0}
    await shop.move(booking, State.RELEASED)
    assert await shop.step(lambda tx: tx.lock_totals(refs)) == {total_ref(ANN): 1, total_ref(BOB): 0}


async def test_a_total_that_was_made_for_nothing_is_not_kept(shop: Shop) -> None:
    """Of two buyers who were looked up, only the one with a booking leaves a row."""
    await shop.open()
    booking = shop.booking("A1")

    async def work(tx: Transaction) -> None:
        await tx.lock_totals([total_ref(ANN), total_ref(BOB), total_ref(CEM)])
        changes = shop.taking(booking)
        await tx.write(msgspec.structs.replace(changes, totals={**changes.totals, total_ref(CEM): 0}))

    await shop.step(work)
    assert await shop.step(lambda tx: tx.lock_totals([total_ref(ANN)])) == {total_ref(ANN): 1}
    assert await count(shop.store, "buyer_totals") == 1


async def test_pools_take_what_is_added(shop: Shop) -> None:
    """Held and sold each move by their own part; unknown pools are left out."""
    await shop.open()
    unknown = PoolRef(SHOW, PoolId("none"))
    booking = await shop.hold(units=3)
    pools = await shop.step(lambda tx: tx.lock_pools([unknown, GA]))
    assert {ref: (pool.held, pool.sold, pool.free) for ref, pool in pools.items()} == {GA: (3, 0, 2)}
    await shop.move(booking, State.CONFIRMED)
    pools = await shop.step(lambda tx: tx.lock_pools([GA]))
    assert (pools[GA].held, pools[GA].sold, pools[GA].free) == (0, 3, 2)


async def test_an_outside_payment_is_tied_once(shop: Shop) -> None:
    """The second request does not get it, from any caller."""
    await shop.open()
    first, second = await shop.hold("A1"), await shop.hold("A2")

    async def tie(tx: Transaction) -> frozenset[OutsidePaymentRef]:
        won = await tx.tie_outside_payments({paid("pay-2"): first.id, paid("pay-1"): first.id})
        assert await tx.tie_outside_payments({paid("pay-1"): second.id}) == frozenset()
        await tx.write(Changes())
        return won

    assert await shop.step(tie) == {paid("pay-1"), paid("pay-2")}
    uses = {paid("pay-1"): first.id, paid("pay-2"): second.id, paid("pay-3"): second.id}
    again = await shop.step(lambda tx: tx.tie_outside_payments(uses))
    assert again == {paid("pay-3")}


# -- keys, the journal, and what is not kept ----------------------------------------------------------------------


async def test_a_key_remembers_its_answer_byte_for_byte(shop: Shop) -> None:
    """Scoped to the caller; a key that was never used remembers nothing."""
    await shop.open()
    await shop.write(shop.taking(shop.booking("A1"), key=KEY, memory=MEMORY))
    others = [IdempotencyKey("caller", "key-2"), IdempotencyKey("another", "key-1")]

    async def look(tx: Transaction) -> object:
        opening = await tx.begin([*others, KEY, KEY])
        return opening.remembered, opening.busy

    assert await shop.store.transact(look, within=WITHIN) == ({KEY: MEMORY}, frozenset())


async def test_a_transaction_has_the_stores_moment(shop: Shop) -> None:
    """Aware UTC, and moved by the tests' handle on time."""
    before = shop.clock.now()
    shop.clock.advance(3600)

    async def moment(tx: Transaction) -> datetime:
        return (await tx.begin([])).now

    now = await shop.store.transact(moment, within=WITHIN)
    assert now.utcoffset() == timedelta(0)
    assert timedelta(minutes=59) < now - before < timedelta(minutes=61)


async def test_a_key_that_is_being_decided_is_busy(
    postgres_store: PostgresStore, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """Only where transactions run side by side: the twin is told to come again, and does not wait."""
    shop = Shop(postgres_store, clock=clock, ids=ids)
    claimed, done = asyncio.Event(), asyncio.Event()

    async def first(tx: Transaction) -> None:
        assert (await tx.begin([KEY])).busy == frozenset()
        claimed.set()
        await done.wait()

    async def twin(tx: Transaction) -> frozenset[IdempotencyKey]:
        return (await tx.begin([KEY, IdempotencyKey("caller", "free")])).busy

    running = asyncio.create_task(postgres_store.transact(first, within=WITHIN))
    await asyncio.wait_for(claimed.wait(), WITHIN)
    assert await shop.store.transact(twin, within=WITHIN) == {KEY}
    done.set()
    await running
    assert await shop.store.transact(twin, within=WITHIN) == frozenset()


async def test_an_entry_is_found_by_its_id(shop: Shop) -> None:
    """How a lost commit is looked up."""
    await shop.open()
    changes = shop.taking(shop.booking("A1"))
    assert not await shop.store.has_entry(changes.entries[0].id)
    await shop.write(changes)
    assert await shop.store.has_entry(changes.entries[0].id)


async def test_the_history_of_a_booking_is_told_in_order(shop: Shop) -> None:
    """Every entry, by version, with its facts; other bookings' entries are not in it."""
    await shop.open()
    booking = await shop.hold("A1")
    await shop.hold("A2")
    await shop.move(booking, State.CONFIRMED, State.CANCELLED)
    told = await shop.store.read_history(booking.id)
    assert [(entry.version, entry.before, entry.after) for entry in told] == [
        (1, None, "held"),
        (2, "held", "confirmed"),
        (3, "confirmed", "cancelled"),
    ]
    assert told[0].facts == {"buyer": "ann", "seats": ["A1"]}
    assert {entry.booking_id for entry in told} == {booking.id}
    assert all(entry.at.utcoffset() == timedelta(0) for entry in told)
    assert await shop.store.read_history(shop.ids.booking_id()) == []


async def test_work_that_raises_leaves_nothing(shop: Shop) -> None:
    """Everything was written, then it went wrong: nothing is kept, and the error comes out as it is."""
    await shop.open()
    booking = shop.booking("A1", units=2)
    changes = shop.taking(booking, key=KEY, memory=MEMORY)

    async def work(tx: Transaction) -> None:
        await tx.begin([KEY])
        await tx.tie_outside_payments({})
        await tx.lock_totals([booking.total_ref])
        await tx.write(changes)
        raise Oops

    with pytest.raises(Oops):
        await shop.store.transact(work, within=WITHIN)
    assert (await shop.store.read_booking(booking.id))[1] is None
    assert not await shop.store.has_entry(changes.entries[0].id)
    assert await shop.step(lambda tx: tx.lock_totals([total_ref(ANN)])) == {total_ref(ANN): 0}
    assert (await shop.step(lambda tx: tx.lock_pools([GA])))[GA].held == 0
    assert (await shop.step(lambda tx: tx.read_seats([seat_ref("A1")])))[seat_ref("A1")].pointer is None
    await shop.write(changes)


async def test_work_that_writes_nothing_leaves_no_row_at_all(shop: Shop) -> None:
    """A refusal leaves no trace: no total, no payment, no entry."""
    await shop.open()
    booking = await shop.hold("A1")
    tables = ("buyer_totals", "outside_payments", "journal", "bookings")
    before = [await count(shop.store, table) for table in tables]

    async def work(tx: Transaction) -> str:
        await tx.lock_totals([total_ref(BOB)])
        await tx.tie_outside_payments({paid("pay-1"): booking.id})
        return "refused"

    assert await shop.step(work) == "refused"
    assert [await count(shop.store, table) for table in tables] == before
    assert await shop.step(lambda tx: tx.tie_outside_payments({paid("pay-1"): booking.id})) == {paid("pay-1")}


async def test_a_store_in_order_has_no_flaws(shop: Shop) -> None:
    """The story of a few bookings, told by the steps, breaks no promise."""
    await shop.open()
    await shop.move(await shop.hold("A1", units=1), State.PAYING, State.CONFIRMED, State.CANCELLED)
    await shop.move(await shop.hold("A1", units=1), State.EXPIRED, State.CONFIRMED)
    await shop.move(await shop.hold("A2", buyer=BOB), State.PAYING, State.FAILED)
    await shop.move(await shop.hold("A2", units=1, buyer=BOB), State.PAYING, State.HELD, State.RELEASED)
    await shop.hold("A2", units=1, buyer=CEM)
    assert await shop.store.find_flaws(limit=10) == []
    await shop.store.check()
