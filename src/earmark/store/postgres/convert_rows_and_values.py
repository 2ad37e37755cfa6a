"""Rows to values and values to columns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.bookable_event import Event, OnDecline
from earmark.domain.booking import Booking, Lines
from earmark.domain.booking_state_machine import State
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat, SeatSeen
from earmark.engine.ports.store import SeatOnMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from earmark.domain.id_types import BookingId, SeatRef

Row = Any  # asyncpg gives records, which know their columns by name
_lines = msgspec.json.Decoder(Lines)
_encoder = msgspec.json.Encoder()
EVENT_COLUMNS = 11
_STATES = {state.value: state for state in State}
_MODES = {mode.value: mode for mode in Mode}


def to_json(value: object) -> str:
    """For a jsonb column."""
    return _encoder.encode(value).decode()


def columns(rows: Iterable[Sequence[object]], *, width: int) -> list[list[Any]]:
    """Rows turned into one array per column, as `unnest` wants them."""
    turned: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    return turned or [[] for _ in range(width)]


def event(row: Row) -> Event:
    """A row of `events`, its columns in the order of `earmark_event`, which ends before the rules of paying."""
    rules = row[EVENT_COLUMNS:] or (OnDecline.KEEP, None, 0, 0, None)
    return Event(
        id=row[0],
        name=row[1],
        currency=row[2],
        mode=_MODES[row[3]],
        created_at=row[4],
        starts_at=row[5],
        sale_opens_at=row[6],
        sale_closes_at=row[7],
        hold_ttl_seconds=row[8],
        per_buyer_max=row[9],
        version=row[10],
        on_decline=OnDecline(rules[0]),
        refund_until_seconds=rules[1],
        refund_fee_percent=rules[2],
        refund_fee_fixed=rules[3],
        buyer_cancel_until_seconds=rules[4],
    )


def event_rules(e: Event) -> tuple[object, ...]:
    """For `insert_event` and `update_event`: the terms of sale and payment."""
    paying = (e.on_decline.value, e.refund_until_seconds, e.refund_fee_percent, e.refund_fee_fixed)
    return (e.hold_ttl_seconds, e.per_buyer_max, *paying, e.buyer_cancel_until_seconds)


def booking(row: Row) -> Booking:
    """A row of `bookings`, its columns in the order of the table: this is decoded more often than anything else."""
    return Booking(
        id=row[0],
        event_id=row[1],
        buyer=row[2],
        mode=_MODES[row[3]],
        state=_STATES[row[4]],
        lines=_lines.decode(row[5]),
        total=row[6],
        currency=row[7],
        created_at=row[8],
        expires_at=row[9],
        paying_until=row[10],
        confirmed_at=row[11],
        ended_at=row[12],
        payment_id=row[13],
        payment_method=row[14],
        version=row[15],
    )


def pool(row: Row) -> Pool:
    """A row of `pools`."""
    return Pool(**dict(row))


def seat_seen(row: Row, ref: SeatRef) -> SeatSeen:
    """A seat with its owner, as the claim's snapshot shows it: its number in the request, then its columns."""
    _, price, blocked, pointer, fence, state, expires_at, buyer, row_name, number, section, category = row
    return SeatSeen(
        ref=ref,
        price=price,
        blocked=blocked,
        pointer=pointer,
        fence=fence,
        owner_state=_STATES[state] if state else None,
        owner_expires_at=expires_at,
        owner_buyer=buyer,
        row=row_name,
        number=number,
        section=section,
        category=category,
    )


def seat_on_map(row: Row) -> SeatOnMap:
    """A seat with its owner, as the map shows it."""
    return SeatOnMap(
        seat=Seat(
            event_id=row["event_id"],
            id=row["id"],
            price=row["price"],
            row=row["row_name"],
            number=row["number"],
            section=row["section"],
            category=row["category"],
            x=row["x"],
            y=row["y"],
            blocked=row["blocked"],
        ),
        fence=row["fence"],
        owner_id=row["booking_id"],
        owner_state=State(row["state"]) if row["state"] else None,
        owner_expires_at=row["expires_at"],
        owner_buyer=row["buyer"],
    )


def entry(row: Row) -> Entry:
    """A row of `journal`."""
    return Entry(
        id=row["id"],
        event_id=row["event_id"],
        booking_id=row["booking_id"],
        version=row["version"],
        verb=row["verb"],
        before=row["before"],
        after=row["after"],
        actor=row["actor"],
        reason=row["reason"],
        at=row["at"],
        facts=msgspec.json.decode(row["facts"]),
    )


def idempotency_record(row: Row) -> tuple[IdempotencyKey, IdempotencyRecord]:
    """An idempotency record and its key."""
    remembered = IdempotencyRecord(
        request_hash=row["request_hash"], status=row["answer_status"], body=row["answer_body"]
    )
    return IdempotencyKey(row["caller"], row["key"]), remembered


def moved_columns(bookings: Sequence[Booking]) -> list[list[Any]]:
    """Arrays for `update_bookings`, one per column."""
    rows = (
        (
            b.id,
            b.state.value,
            to_json(b.lines),
            b.total,
            b.expires_at,
            b.paying_until,
            b.confirmed_at,
            b.ended_at,
            b.payment_id,
            b.payment_method,
            b.version,
        )
        for b in bookings
    )
    return columns(rows, width=11)


def opened_columns(bookings: Sequence[Booking]) -> list[list[Any]]:
    """Arrays for `insert_bookings`, one per column."""
    rows = (
        (
            b.id,
            b.event_id,
            b.buyer,
            b.mode,
            b.state.value,
            to_json(b.lines),
            b.total,
            b.currency,
            b.created_at,
            b.expires_at,
        )
        for b in bookings
    )
    return columns(rows, width=10)


def entry_columns(entries: Sequence[Entry]) -> list[list[Any]]:
    """Arrays for `insert_entries`, one per column."""
    rows = (
        (
            e.id,
            e.event_id,
            e.booking_id,
            e.version,
            e.verb,
            e.before,
            e.after,
            e.actor,
            e.reason,
            e.at,
            to_json(e.facts),
            *(e.key or (None, None)),
            *((e.memory.request_hash, e.memory.status, e.memory.body) if e.memory else (None, None, None)),
        )
        for e in entries
    )
    return columns(rows, width=16)


def move(after: Booking, *, seen: Booking) -> tuple[object, ...]:
    """An `earmark_move`; the lines only where they changed."""
    same = after.lines is seen.lines
    return (
        after.id,
        after.version,
        after.state.value,
        None if same else to_json(after.lines),
        None if same else after.total,
        after.expires_at,
        after.paying_until,
        after.confirmed_at,
        after.ended_at,
        after.payment_id,
        after.payment_method,
        seen.version,
        seen.expires_at,
    )


def opening(b: Booking) -> tuple[object, ...]:
    """A new booking as an `earmark_opening`."""
    return (b.id, b.event_id, b.buyer, b.mode, to_json(b.lines), b.total, b.currency, b.expires_at)


def taking(seen: SeatSeen, owner: BookingId) -> tuple[object, ...]:
    """An `earmark_taking`: the seat as it was seen, and whose it shall be."""
    return (*seen.ref, seen.pointer, seen.fence, seen.price, owner)


def guarded_entry(e: Entry) -> tuple[object, ...]:
    """An `earmark_entry`; its moment is that of the call."""
    head = (e.id, e.event_id, e.booking_id, e.version, e.verb, e.before, e.after, e.actor, e.reason, to_json(e.facts))
    if e.key is None or e.memory is None:
        return (*head, None, None, None, None, None)
    return (*head, *e.key, e.memory.request_hash, e.memory.status, e.memory.body)


def alone_entry(e: Entry) -> tuple[object, ...]:
    """For `write_hold_alone`, which knows the rest of it."""
    entry = guarded_entry(e)
    return (entry[0], *entry[7:])


def seat_columns(seats: Sequence[Seat]) -> list[list[Any]]:
    """Arrays for `insert_seats`, one per column."""
    rows = (
        (s.id, s.price, s.blocked, position, s.row, s.number, s.section, s.category, s.x, s.y)
        for position, s in enumerate(seats)
    )
    return columns(rows, width=10)


def delta_columns(deltas: Mapping[Any, Any]) -> list[list[Any]]:
    """For `add_pools`: the refs, and what is added to each."""
    rows = ((*ref, delta.held, delta.sold) for ref, delta in sorted(deltas.items()))
    return columns(rows, width=4)


@functools.lru_cache(maxsize=64)
def lock_timeout(seconds: float) -> str:
    """As PostgreSQL writes it; zero would mean for ever."""
    return f"{max(1, round(seconds * 1000))}ms"
