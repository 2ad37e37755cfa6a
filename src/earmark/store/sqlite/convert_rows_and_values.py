"""Rows to values and values to columns.

Moments are stored as whole microseconds since 1970, which compare as numbers; ids as text, which sorts as they do.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.bookable_event import Event, OnDecline
from earmark.domain.booking import Booking, Lines
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, EntryId, SeatRef
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat, SeatSeen
from earmark.engine.ports.store import SeatOnMap

if TYPE_CHECKING:
    import sqlite3

    from earmark.domain.id_types import EventId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOMENTS = ("_at", "_since", "_until")
_lines = msgspec.json.Decoder(Lines)
_encoder = msgspec.json.Encoder()


def to_json(value: object) -> str:
    """For a column or a parameter of JSON."""
    return _encoder.encode(value).decode()


def to_moment(at: datetime) -> int:
    """Whole microseconds since 1970, exactly."""
    return (at - _EPOCH) // _MICROSECOND


def to_moment_or_none(at: datetime | None) -> int | None:
    """The same, or None where the moment is missing."""
    return None if at is None else to_moment(at)


def moment(microseconds: int) -> datetime:
    """The moment that a column holds, in aware UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def moment_or_none(microseconds: int | None) -> datetime | None:
    """The same, or None where the moment is missing."""
    return None if microseconds is None else moment(microseconds)


def to_column(value: Any) -> Any:
    """A value as SQLite keeps it: it has no UUIDs, moments or lists."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return to_moment(value)
    return to_json(value) if isinstance(value, list) else value


def to_python(row: sqlite3.Row) -> dict[str, Any]:
    """The columns by name, with moments and lists as Python has them. What a moment is, its name says."""
    return {name: _to_python(name, row[name]) for name in row.keys()}  # noqa: SIM118 (a row iterates over its values)


def _to_python(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name.endswith(_MOMENTS) or name == "at":
        return moment(value)
    return msgspec.json.decode(value) if name == "types" else value


def event(row: sqlite3.Row) -> Event:
    """A row of `events`."""
    return Event(
        id=row["id"],
        name=row["name"],
        currency=row["currency"],
        mode=Mode(row["mode"]),
        created_at=moment(row["created_at"]),
        starts_at=moment_or_none(row["starts_at"]),
        sale_opens_at=moment_or_none(row["sale_opens_at"]),
        sale_closes_at=moment_or_none(row["sale_closes_at"]),
        hold_ttl_seconds=row["hold_ttl_seconds"],
        per_buyer_max=row["per_buyer_max"],
        on_decline=OnDecline(row["on_decline"]),
        refund_until_seconds=row["refund_until_seconds"],
        refund_fee_percent=row["refund_fee_percent"],
        refund_fee_fixed=row["refund_fee_fixed"],
        buyer_cancel_until_seconds=row["buyer_cancel_until_seconds"],
        version=row["version"],
    )


def booking(row: sqlite3.Row) -> Booking:
    """A row of `bookings`."""
    return Booking(
        id=BookingId(UUID(row["id"])),
        event_id=row["event_id"],
        buyer=row["buyer"],
        mode=Mode(row["mode"]),
        state=State(row["state"]),
        lines=_lines.decode(row["lines"]),
        total=row["total"],
        currency=row["currency"],
        created_at=moment(row["created_at"]),
        expires_at=moment(row["expires_at"]),
        paying_until=moment_or_none(row["paying_until"]),
        confirmed_at=moment_or_none(row["confirmed_at"]),
        ended_at=moment_or_none(row["ended_at"]),
        payment_id=row["payment_id"],
        payment_method=row["payment_method"],
        version=row["version"],
    )


def pool(row: sqlite3.Row) -> Pool:
    """A row of `pools`."""
    event_id, pool_id, capacity, held, sold, price = row
    return Pool(event_id=event_id, id=pool_id, capacity=capacity, held=held, sold=sold, price=price)


def booking_id_or_none(text: str | None) -> BookingId | None:
    """What a seat points to."""
    return None if text is None else BookingId(UUID(text))


def seat_seen(row: sqlite3.Row) -> SeatSeen:
    """A seat with its owner, as the claim's snapshot shows it."""
    event_id, seat_id, price, blocked, pointer, fence, state, expires_at, buyer, *names = row
    row_name, number, section, category = names
    return SeatSeen(
        ref=SeatRef(event_id, seat_id),
        price=price,
        blocked=bool(blocked),
        pointer=booking_id_or_none(pointer),
        fence=fence,
        owner_state=State(state) if state else None,
        owner_expires_at=moment_or_none(expires_at),
        owner_buyer=buyer,
        row=row_name,
        number=number,
        section=section,
        category=category,
    )


def seat_on_map(row: sqlite3.Row) -> SeatOnMap:
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
            blocked=bool(row["blocked"]),
        ),
        fence=row["fence"],
        owner_id=booking_id_or_none(row["booking_id"]),
        owner_state=State(row["state"]) if row["state"] else None,
        owner_expires_at=moment_or_none(row["expires_at"]),
        owner_buyer=row["buyer"],
    )


def entry(row: sqlite3.Row) -> Entry:
    """A row of `journal`."""
    return Entry(
        id=EntryId(UUID(row["id"])),
        event_id=row["event_id"],
        booking_id=booking_id_or_none(row["booking_id"]),
        version=row["version"],
        verb=row["verb"],
        before=row["before"],
        after=row["after"],
        actor=row["actor"],
        reason=row["reason"],
        at=moment(row["at"]),
        facts=msgspec.json.decode(row["facts"]),
    )


def idempotency_record(row: sqlite3.Row) -> tuple[IdempotencyKey, IdempotencyRecord]:
    """An idempotency record and its key."""
    caller, key, request_hash, status, body = row
    return IdempotencyKey(caller, key), IdempotencyRecord(request_hash=request_hash, status=status, body=body)


def event_columns(e: Event) -> tuple[Any, ...]:
    """The parameters of `insert_event`, in their order."""
    window = (to_moment_or_none(e.starts_at), to_moment_or_none(e.sale_opens_at), to_moment_or_none(e.sale_closes_at))
    head = (e.id, e.name, e.currency, e.mode, to_moment(e.created_at))
    return (*head, *window, *_rules(e))


def changed_event_columns(e: Event) -> tuple[Any, ...]:
    """The parameters of `update_event`, in their order."""
    window = (to_moment_or_none(e.starts_at), to_moment_or_none(e.sale_opens_at), to_moment_or_none(e.sale_closes_at))
    return (e.id, e.name, *window, *_rules(e), e.version)


def _rules(e: Event) -> tuple[Any, ...]:
    paying = (e.on_decline.value, e.refund_until_seconds, e.refund_fee_percent, e.refund_fee_fixed)
    return (e.hold_ttl_seconds, e.per_buyer_max, *paying, e.buyer_cancel_until_seconds)


def moved_columns(b: Booking) -> tuple[Any, ...]:
    """The parameters of `update_bookings`, in their order."""
    return (
        str(b.id),
        b.state.value,
        to_json(b.lines),
        b.total,
        to_moment(b.expires_at),
        to_moment_or_none(b.paying_until),
        to_moment_or_none(b.confirmed_at),
        to_moment_or_none(b.ended_at),
        b.payment_id,
        b.payment_method,
        b.version,
    )


def opened_columns(b: Booking) -> tuple[Any, ...]:
    """The parameters of `insert_bookings`, in their order."""
    return (
        str(b.id),
        b.event_id,
        b.buyer,
        b.mode,
        b.state.value,
        to_json(b.lines),
        b.total,
        b.currency,
        to_moment(b.created_at),
        to_moment(b.expires_at),
    )


def entry_columns(e: Entry) -> tuple[Any, ...]:
    """The parameters of `insert_entries`, in their order."""
    return (
        str(e.id),
        e.event_id,
        None if e.booking_id is None else str(e.booking_id),
        e.version,
        e.verb,
        e.before,
        e.after,
        e.actor,
        e.reason,
        to_moment(e.at),
        to_json(e.facts),
        *(e.key or (None, None)),
        *((e.memory.request_hash, e.memory.status, e.memory.body) if e.memory else (None, None, None)),
    )


def seat_columns(s: Seat, *, event_id: EventId, position: int) -> tuple[Any, ...]:
    """The parameters of `insert_seats`, in their order."""
    return (event_id, s.id, s.price, s.blocked, position, s.row, s.number, s.section, s.category, s.x, s.y)
