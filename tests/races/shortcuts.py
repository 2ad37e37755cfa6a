"""The tempting shortcuts. Each saves a step, a clause or a statement, reads well, and loses a promise."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import OutsidePaymentRef, PoolRef, SeatRef, TotalRef
from earmark.domain.journal_entry import Entry
from earmark.domain.payment import PaymentState
from earmark.domain.pool import PoolDelta
from earmark.engine.ports.store import Changes, RowsNeeded, TransactionStart
from earmark.store import load_named_sql
from earmark.store.postgres import convert_rows_and_values

from .commands import IDS
from .support import SQL, Breakpoints, ForwardingTransaction, Shortcut, edited

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, PaymentId
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.domain.payment import Payment
    from earmark.domain.seat import SeatSeen

replace = msgspec.structs.replace

# The version that an update compares is one more guard: it is switched off to see what the lock alone is worth.
_UNVERSIONED = edited("update_bookings", "AND b.version < m.version", "")


class _LeavesTheLapsedHeld(ForwardingTransaction):
    async def write(self, changes: Changes) -> None:
        told = [entry for entry in changes.entries if entry.verb != "expire"]
        await self.inner.write(replace(_give_nothing_back(changes), expired=(), entries=told))


class _GivesBackSeatsOnly(ForwardingTransaction):
    async def write(self, changes: Changes) -> None:
        await self.inner.write(_give_nothing_back(changes))


class _JudgesByTheSeatsCopy(ForwardingTransaction):
    """The end of a hold stands on its seats too, and the copy that was read is what decides a takeover."""

    def __init__(self, transaction: Any, breakpoints: Breakpoints) -> None:
        super().__init__(transaction, breakpoints)
        self.copies: dict[BookingId | None, datetime | None] = {}

    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        seen: dict[SeatRef, SeatSeen] = await self.inner.read_seats(refs)
        self.copies = {seat.pointer: seat.owner_expires_at for seat in seen.values()}
        return seen

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        locked = await self.inner.lock_bookings(ids)
        return {
            id_: replace(booking, expires_at=self.copies.get(id_, booking.expires_at))
            for id_, booking in locked.items()
        }


class _FlipsWhateverItFinds(ForwardingTransaction):
    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        locked = await self.inner.lock_bookings(ids)
        return {id_: replace(booking, state=State.HELD) for id_, booking in locked.items()}


class _ReadsBookingsBeforeSeats(ForwardingTransaction):
    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        known = {row["id"] for row in await self.inner.connection.fetch("SELECT id FROM bookings LIMIT 1000")}
        await self.breakpoints.reach("between bookings and seats")
        seen: dict[SeatRef, SeatSeen] = await self.inner.read_seats(refs)
        return {
            ref: seat if seat.pointer in known else replace(seat, owner_state=None, owner_expires_at=None)
            for ref, seat in seen.items()
        }


class _KeepsThePointer(ForwardingTransaction):
    async def write(self, changes: Changes) -> None:
        await self.inner.write(replace(changes, cleared={}))


class _LocksTotalsFirst(ForwardingTransaction):
    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        peek = "SELECT event_id, buyer FROM bookings WHERE id = ANY ($1) LIMIT 100"
        await self.inner.lock_totals({TotalRef(*row) for row in await self.inner.connection.fetch(peek, list(ids))})
        await self.breakpoints.reach("after its first lock")
        locked: dict[BookingId, Booking] = await self.inner.lock_bookings(ids)
        return locked


class _LocksSeatsFirst(ForwardingTransaction):
    async def read_seats(self, refs: Collection[SeatRef]) -> dict[SeatRef, SeatSeen]:
        seen: dict[SeatRef, SeatSeen] = await self.inner.read_seats(refs)
        self.unmoved: frozenset[SeatRef] = await self.inner.lock_seats(seen.values())
        return seen

    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        return self.unmoved & {seat.ref for seat in seen}


class _DecidesAgainInPlace(ForwardingTransaction):
    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        unmoved: frozenset[SeatRef] = await self.inner.lock_seats(seen)
        if moved := {seat.ref for seat in seen} - unmoved:
            fresh: dict[SeatRef, SeatSeen] = await self.inner.read_seats(moved)
            await self.inner.lock_bookings({seat.pointer for seat in fresh.values() if seat.pointer})
            unmoved |= await self.inner.lock_seats(fresh.values())
        return unmoved


class _ClaimsAndReadsKeysAtOnce(ForwardingTransaction):
    async def begin(self, keys: Sequence[IdempotencyKey], look: RowsNeeded | None = None) -> TransactionStart:  # noqa: ARG002 (the port's)
        claims = """
            WITH claimed AS MATERIALIZED (
                SELECT k.caller, k.key, pg_advisory_xact_lock(earmark_claim(k.caller, k.key))
                  FROM unnest($2::text[], $3::text[]) AS k (caller, key))
            SELECT statement_timestamp() + $1::interval AS now, c.caller, c.key,
                   j.request_hash, j.answer_status, j.answer_body
              FROM claimed c LEFT JOIN journal j ON j.caller = c.caller AND j.key = c.key"""
        found = await self.inner.connection.fetch(
            claims, self.inner._offset, *convert_rows_and_values.columns(keys, width=2)
        )
        remembered = dict(
            convert_rows_and_values.idempotency_record(row) for row in found if row["request_hash"] is not None
        )
        return TransactionStart(now=found[0]["now"], remembered=remembered)


class _LocksAsTheyCame(ForwardingTransaction):
    def __init__(self, transaction: Any, breakpoints: Breakpoints, *, arrival: Sequence[BookingId]) -> None:
        super().__init__(transaction, breakpoints)
        self.arrival = arrival

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        locked: dict[BookingId, Booking] = await self.inner.lock_bookings(sorted(ids, key=self.arrival.index))
        return locked


class _TiesPaymentsAsTheyCame(ForwardingTransaction):
    async def tie_outside_payments(self, uses: Mapping[OutsidePaymentRef, BookingId]) -> frozenset[OutsidePaymentRef]:
        tied = [(*ref, booking_id) for ref, booking_id in uses.items()]
        won = await self.inner.fetch("tie_outside_payments", *convert_rows_and_values.columns(tied, width=3))
        return frozenset(OutsidePaymentRef(*row) for row in won)


def _give_nothing_back(changes: Changes) -> Changes:
    """The changes, without what the expired bookings return to totals and pools."""
    totals = Counter(dict(changes.totals))
    pools = dict(changes.pools)
    for booking in changes.expired:
        totals[booking.total_ref] += booking.lines.units
        for ref, back in booking.pool_deltas(held=1).items():
            pools[ref] = pools.get(ref, PoolDelta()) + back
    return replace(changes, totals=totals, pools=pools)


TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD = Shortcut(warp=_LeavesTheLapsedHeld)
BLOCKS_WITHOUT_ENDING_THE_OLD_HOLD = TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
GIVES_BACK_SEATS_ONLY = Shortcut(warp=_GivesBackSeatsOnly)
FLIPS_WHATEVER_IT_FINDS = Shortcut(warp=_FlipsWhateverItFinds)
READS_BOOKINGS_BEFORE_SEATS = Shortcut(warp=_ReadsBookingsBeforeSeats)
KEEPS_THE_POINTER = Shortcut(warp=_KeepsThePointer)
LOCKS_TOTALS_FIRST = Shortcut(warp=_LocksTotalsFirst)
LOCKS_SEATS_FIRST = Shortcut(warp=_LocksSeatsFirst)
DECIDES_AGAIN_IN_PLACE = Shortcut(warp=_DecidesAgainInPlace)
CLAIMS_AND_READS_KEYS_AT_ONCE = Shortcut(warp=_ClaimsAndReadsKeysAtOnce)
LOOKS_KEYS_UP_WITHOUT_CLAIMING = Shortcut(
    sql=edited("claim_keys", "pg_try_advisory_xact_lock(earmark_claim(k.caller, k.key))", "true")
)
IGNORES_THE_BLOCK = Shortcut(sql=edited("lock_seats", "AND s.blocked = r.blocked", ""))

COMPARES_THE_POINTER_ONLY = Shortcut(sql=edited("lock_seats", "AND s.fence = r.fence ", ""))

TRUSTS_THE_LOOK = Shortcut(
    sql=edited(
        "lock_seats",
        "WHERE s.booking_id IS NOT DISTINCT FROM r.pointer AND s.fence = r.fence AND s.blocked = r.blocked",
        "",
    )
)

# The lock statement judges by another table: after a wait, PostgreSQL reads the locked row again, and only that.
JUDGES_OWNERS_IN_THE_LOCK = Shortcut(
    sql={
        "lock_seats": """
            SELECT s.event_id, s.id
              FROM seats s JOIN unnest($1::text[], $2::text[], $3::uuid[], $4::integer[], $5::boolean[])
                   AS r (event_id, id, pointer, fence, blocked) ON s.event_id = r.event_id AND s.id = r.id
              LEFT JOIN bookings b ON b.id = s.booking_id AND b.state IN ('held', 'paying', 'confirmed')
             WHERE b.id IS NULL AND s.blocked = r.blocked
             ORDER BY s.event_id, s.id FOR NO KEY UPDATE OF s"""
    }
)

# The lock waits, and the row is read in the same statement: as it was when the statement began.
LOCKS_AND_READS_AT_ONCE = Shortcut(
    sql={
        **_UNVERSIONED,
        "lock_bookings": """
            WITH locked AS MATERIALIZED (
                SELECT id FROM bookings WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE)
            SELECT b.* FROM bookings b JOIN locked l ON l.id = b.id ORDER BY b.id""",
    }
)

DECIDES_UNLOCKED = Shortcut(sql={**_UNVERSIONED, **edited("lock_bookings", "FOR NO KEY UPDATE", "")})

_COPIES = {
    **edited("read_seats", "b.state, b.expires_at, b.buyer", "b.state, s.expires_at, b.buyer"),
    **edited(
        "point_seats",
        "SET booking_id = p.booking_id",
        "SET booking_id = p.booking_id, expires_at = (SELECT expires_at FROM bookings WHERE id = p.booking_id)",
    ),
}
_COPIES_KEPT = """
    WITH kept AS (
        UPDATE seats s SET expires_at = m.ends FROM unnest($1::uuid[], $5::timestamptz[]) AS m (id, ends)
         WHERE s.booking_id = m.id)
    """
_COPIES_MADE = """
    ALTER TABLE seats ADD COLUMN expires_at timestamptz;
    UPDATE seats s SET expires_at = b.expires_at FROM bookings b WHERE b.id = s.booking_id"""

JUDGES_BY_THE_SEATS_COPY = Shortcut(sql=_COPIES, warp=_JudgesByTheSeatsCopy, prepare=_COPIES_MADE)
JUDGES_BY_A_COPY_KEPT_UP_TO_DATE = Shortcut(
    sql={**_COPIES, "update_bookings": _COPIES_KEPT + SQL["update_bookings"]},
    warp=_JudgesByTheSeatsCopy,
    prepare=_COPIES_MADE,
)

COUNTS_POOLS_UNLOCKED = Shortcut(sql=edited("lock_pools", " FOR NO KEY UPDATE OF p", ""))
COUNTS_TOTALS_UNLOCKED = Shortcut(
    sql={
        **edited("lock_totals", " FOR NO KEY UPDATE OF t", ""),
        "make_totals": re.sub(r"ON CONFLICT.*", "ON CONFLICT DO NOTHING", SQL["make_totals"]),
    }
)

# The last first: it stands for whatever order a plain update may visit them in.
CLEARS_SEATS_AS_THEY_LIE = Shortcut(sql=edited("clear_seats", "ORDER BY s2.event_id, s2.id", "ORDER BY s2.id DESC"))

TIES_PAYMENTS_AS_THEY_CAME = Shortcut(
    sql=edited("tie_outside_payments", " ORDER BY p.payment_id, p.mode\n", ""), warp=_TiesPaymentsAsTheyCame
)


def locks_as_they_came(arrival: Sequence[BookingId]) -> Shortcut:
    """A batch that locks its bookings in the order of its requests."""
    in_order = """
        SELECT b.* FROM unnest($1::uuid[]) WITH ORDINALITY AS r (id, n) JOIN bookings b ON b.id = r.id
         ORDER BY r.n FOR NO KEY UPDATE OF b"""
    return Shortcut(sql={"lock_bookings": in_order}, warp=partial(_LocksAsTheyCame, arrival=arrival))


# Two ways to write the sweeper as one statement: what is due is found below the level that waits for the row.
SWEEPS_WHERE_ID_IN = """
    UPDATE bookings b SET state = 'expired', ended_at = $1, version = b.version + 1
     WHERE b.id IN (SELECT id FROM bookings WHERE state = 'held' AND expires_at <= $1 ORDER BY expires_at LIMIT $2)
    RETURNING b.*"""
SWEEPS_FROM_SUBSELECT = """
    UPDATE bookings b SET state = 'expired', ended_at = $1, version = b.version + 1
      FROM (SELECT id FROM bookings WHERE state = 'held' AND expires_at <= $1 ORDER BY expires_at LIMIT $2) AS due
     WHERE b.id = due.id
    RETURNING b.*"""


async def sweep_in_one_statement(transaction: Any, *, limit: int, statement: str) -> list[Booking]:
    """Expire what is due, then free what the expired bookings had."""
    now: datetime = (await transaction.begin([])).now
    connection = await transaction.connection()
    flipped = [convert_rows_and_values.booking(row) for row in await connection.fetch(statement, now, limit)]
    totals: Counter[TotalRef] = Counter()
    pools: dict[PoolRef, PoolDelta] = {}
    for booking in flipped:
        totals[booking.total_ref] -= booking.lines.units
        for ref, back in booking.pool_deltas(held=-1).items():
            pools[ref] = pools.get(ref, PoolDelta()) + back
    entries = [_expiry_entry(booking, now=now) for booking in flipped]
    await transaction.write(Changes(totals=totals, pools=pools, entries=entries))
    return flipped


class OneStatement(ForwardingTransaction):
    """Lets the one-statement sweeper at its connection."""

    async def connection(self) -> Any:
        """The bare connection."""
        return self.inner.connection


def _expiry_entry(booking: Booking, *, now: datetime) -> Entry:
    return Entry(
        id=IDS.entry_id(),
        event_id=booking.event_id,
        booking_id=booking.id,
        version=booking.version,
        verb="expire",
        before="held",
        after="expired",
        actor="clock",
        at=now,
        facts={},
    )


# The statements of an optimistic write, guard by guard. Each shortcut is a function of its own, beside the built one.
_DRAFTS = (resources.files("earmark.store") / "sql" / "postgres" / "0003_functions_in_postgresql_only.sql").read_text(
    encoding="utf-8"
)
_WRITE = _DRAFTS[_DRAFTS.index("CREATE FUNCTION earmark_write(") :]


def writes(name: str, *edits: tuple[str, str]) -> Shortcut:
    """The call of an optimistic write, with these things changed, which must be there to be changed."""
    text = _WRITE
    for old, new in edits:
        assert old in text, f"earmark_write has changed: it no longer says {old!r}"
        text = text.replace(old, new)
    for function in ("earmark_write(", "earmark_add_totals(", "earmark_add_entries("):
        text = text.replace(function, f"{function[:-1]}_{name}(")
    write = edited("write_optimistically", "earmark_write(", f"earmark_write_{name}(")
    return Shortcut(sql=write, prepare=text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))


def _backwards(array: str, alias: str) -> tuple[str, str]:
    last_first = f"(SELECT * FROM unnest({array}) WITH ORDINALITY AS u ORDER BY ordinality DESC)"
    return f"FROM unnest({array}) {alias}", f"FROM {last_first} {alias}"


_POINTER = "s.booking_id IS NOT DISTINCT FROM t.pointer AND "
_VERSION = _WRITE[_WRITE.index(" AND b.version = m.") : _WRITE.index(";", _WRITE.index(" AND b.version = m."))]

FORGETS_THE_POINTER = writes("pointerless", (_POINTER, ""))
FORGETS_THE_FENCE = writes("fenceless", ("AND s.fence = t.fence ", ""))
FORGETS_THE_PRICE = writes("priceless", ("AND s.price = t.price ", ""))
FORGETS_THE_BLOCK = writes("blockless", (" AND NOT s.blocked", ""))
FORGETS_THE_VERSION = writes("versionless", (_VERSION, ""))
FORGETS_THE_PRICE_OF_UNITS = writes("priceless", (" AND (d.price IS NULL OR p.price = d.price)", ""))
FORGETS_THE_TIME = writes("timeless", (" AND b.expires_at = m.seen_expires_at", ""))
FORGETS_WHOSE_SEAT_IT_CLEARS = writes("clears_any", (_VERSION, ""), (" AND s.booking_id = c.pointer", ""))
FORGETS_THE_CAPACITY = writes(
    "limitless",
    (
        "\n           AND (d.held + d.sold <= 0 OR p.held + p.sold + d.held + d.sold <= p.capacity)",
        "",
    ),
)
FORGETS_THE_LIMIT = writes(
    "unlimited",
    ("OR t.units + excluded.units <= (SELECT per_buyer_max FROM events e WHERE e.id = t.event_id)", "OR true"),
)
FORGETS_WHO_PAID = writes("unpaid", ("IF written <> cardinality(payments)", "IF false"))
FORGETS_THE_KEY = writes(
    "keyless",
    (
        "e.caller, e.key, e.request_hash, e.answer_status, e.answer_body\n      FROM unnest(entries) e",
        "NULL, NULL, NULL, NULL, NULL FROM unnest(entries) e",
    ),
)
FORGETS_TO_COUNT_SEATS = writes("uncounted", ("IF written <> cardinality(seats)", "IF false"))
WAITS_FOR_A_TWIN = writes(
    "patient",
    (
        "AND NOT pg_try_advisory_xact_lock(earmark_claim(e.caller, e.key))",
        "AND pg_advisory_xact_lock(earmark_claim(e.caller, e.key))::text <> ''",
    ),
)
FORGETS_THE_RULES = writes("lawless", ("AND e.version = r.version", ""))
FORGETS_THE_HOUR = writes("timeless", ("at NOT BETWEEN", "false AND at NOT BETWEEN"))


def alone(old: str, new: str = "") -> Shortcut:
    """The statement that writes one hold alone, with one thing changed."""
    return Shortcut(sql=edited("write_hold_alone", old, new))


ALONE_FORGETS = {
    "the pointer": alone("s.booking_id IS NULL AND "),
    "the fence": alone("s.fence = w.fence AND "),
    "the price": alone("s.price = w.price AND "),
    "the block": alone(" AND NOT s.blocked"),
    "the rules": alone(" AND e.version = $4", " AND $4::integer IS NOT NULL"),
    "the hour": alone("AND $1::timestamptz BETWEEN", "AND true OR $1::timestamptz BETWEEN"),
    "the limit": alone("OR t.units + excluded.units <= (SELECT per_buyer_max FROM fit)", "OR true"),
    "to count seats": alone("<> cardinality($13) THEN", "< 0 THEN"),
    "the key": alone(
        "$19, $20, $21, $22, $23, $24 FROM fit",
        "$19, NULL, NULL, NULL::bytea, NULL::integer, NULL::bytea FROM fit"
        " WHERE ($22::bytea, $23::integer, $24::bytea) IS DISTINCT FROM (NULL, 0, NULL)",
    ),
}

LOCKS_BACKWARDS = {
    "moves": writes("last_move_first", _backwards("moves", "m")),
    "totals": writes("last_total_first", _backwards("totals", "d")),
    "pools": writes("last_pool_first", _backwards("pools", "d")),
    "seats": writes("last_seat_first", _backwards("seats", "t")),
}


# Payments: late money re-claims a booking, and the first process that learns a payment's outcome decides it.
class _TakesTheSeatsUnseen(ForwardingTransaction):
    async def lock_seats(self, seen: Collection[SeatSeen]) -> frozenset[SeatRef]:
        return frozenset(seat.ref for seat in seen)


class _LocksItsBookingFirst(ForwardingTransaction):
    def __init__(self, transaction: Any, breakpoints: Breakpoints, *, first: BookingId) -> None:
        super().__init__(transaction, breakpoints)
        self.first = first

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        locked: dict[BookingId, Booking] = await self.inner.lock_bookings({self.first})
        await self.breakpoints.reach("after its first lock")
        locked |= await self.inner.lock_bookings(set(ids) - {self.first})
        return locked


class _LocksPaymentsFirst(ForwardingTransaction):
    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        peek = "SELECT id FROM payments WHERE booking_id = ANY ($1) ORDER BY id FOR NO KEY UPDATE"
        await self.inner.connection.fetch(peek, list(ids))
        await self.breakpoints.reach("after its first lock")
        locked: dict[BookingId, Booking] = await self.inner.lock_bookings(ids)
        return locked


class _FlipsWhicheverOwnerItFinds(ForwardingTransaction):
    """An owner that looked lapsed is ended, whatever has become of it during the wait."""

    async def lock_bookings(self, ids: Collection[BookingId]) -> dict[BookingId, Booking]:
        locked: dict[BookingId, Booking] = await self.inner.lock_bookings(ids)
        return {
            id_: booking if booking.payment_id else replace(booking, state=State.HELD)
            for id_, booking in locked.items()
        }


class _JudgesPaymentsAsTheyBegan(ForwardingTransaction):
    """A payment's state is not read again under its lock: every report is taken as the first one."""

    async def lock_payments(self, ids: Collection[PaymentId]) -> dict[PaymentId, Payment]:
        locked: dict[PaymentId, Payment] = await self.inner.lock_payments(ids)
        return {id_: replace(payment, state=PaymentState.PENDING) for id_, payment in locked.items()}


def _money_edited(name: str, old: str, new: str) -> dict[str, str]:
    text = load_named_sql.sql("postgres", "payments_and_refunds.sql")[name]
    assert old in text, f"{name} has changed: it no longer says {old!r}"
    return {name: text.replace(old, new)}


_RAISES_NO_FENCE = _money_edited("reclaim_seats", ", fence = s.fence + 1", "")
_TOUCHES_NO_SEAT = {
    "reclaim_seats": "SELECT 1 FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (event_id, id, booking_id)"
}

RECLAIMS_WITHOUT_RAISING_THE_FENCE = Shortcut(sql=_RAISES_NO_FENCE)
RECLAIMS_WITHOUT_TOUCHING_THE_SEATS = Shortcut(sql=_TOUCHES_NO_SEAT, warp=_TakesTheSeatsUnseen)
LOCKS_PAYMENTS_FIRST = Shortcut(warp=_LocksPaymentsFirst)
FLIPS_WHICHEVER_OWNER_IT_FINDS = Shortcut(sql=_UNVERSIONED, warp=_FlipsWhicheverOwnerItFinds)
JUDGES_PAYMENTS_AS_THEY_BEGAN = Shortcut(warp=_JudgesPaymentsAsTheyBegan)
DECIDES_MONEY_UNLOCKED = Shortcut(
    sql={
        **_UNVERSIONED,
        **edited("lock_bookings", "FOR NO KEY UPDATE", ""),
        **_money_edited("lock_payments", "FOR NO KEY UPDATE", ""),
        **_money_edited("update_payment", "AND version = $12 - 1", ""),
    }
)


def locks_its_booking_first(booking_id: BookingId) -> Shortcut:
    """A re-claim that locks its own booking, and then the owners that it would end."""
    return Shortcut(warp=partial(_LocksItsBookingFirst, first=booking_id))
