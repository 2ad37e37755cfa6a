"""The rows that every strategy writes: a booking, its journal entry, and the answer stored with its idempotency key.

All strategies use these functions, so that their rows are equal. `cte` builds them in SQL, and a test compares the two.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, SeatId
from earmark.domain.journal_before_and_after_values import WAS, was
from earmark.domain.live_or_test_mode import Mode
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.bench.booking.strategy_protocol import Want

CALLER = "bench"
"""The owner of the idempotency keys, and the actor in the journal."""
CLOCK = "clock"
TAKEN_OVER = "taken over"

_encode = msgspec.json.Encoder().encode
_lines = msgspec.json.Decoder(Lines)


class EventRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of an event that decide a hold, and the time of the decision."""

    now: datetime
    mode: Mode
    currency: str
    per_buyer_max: int | None
    on_sale: bool


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a caller, which is stored with the key."""

    id: UUID
    event_id: str
    buyer: str
    state: str
    lines: Lines
    total: int
    currency: str
    created_at: datetime
    expires_at: datetime
    confirmed_at: datetime | None
    payment_id: str | None
    version: int


def held(
    want: Want, *, booking_id: UUID, sale: EventRules, seats: Mapping[str, int], pools: Mapping[str, int] | None = None
) -> Booking:
    """The new hold, at the prices that were looked up."""
    lines = Lines(
        seats=tuple(SeatLine(id=SeatId(seat), price=seats[seat]) for seat in sorted(want.seats)),
        pools=tuple(
            PoolLine(id=PoolId(pool), units=units, price=(pools or {})[pool])
            for pool, units in sorted(want.pools.items())
        ),
    )
    return Booking(
        id=BookingId(booking_id),
        event_id=EventId(want.event_id),
        buyer=Buyer(want.buyer),
        mode=sale.mode,
        state=State.HELD,
        lines=lines,
        total=lines.total,
        currency=sale.currency,
        created_at=sale.now,
        expires_at=sale.now + timedelta(seconds=want.ttl_seconds),
    )


def booking(row: Any) -> Booking:
    """The booking in a row of `bookings`."""
    fields = {name: row[name] for name in Booking.__struct_fields__}
    return Booking(**(fields | {"state": State(row["state"]), "lines": _lines.decode(row["lines"])}))


def units(want: Want) -> int:
    """What the hold adds to the buyer's total."""
    return len(want.seats) + sum(want.pools.values())


def hash_of(*request: object) -> bytes:
    """The hash of the request that a key was used for."""
    return hashlib.sha256(_encode(request)).digest()


def answer(booking: Booking, *, status: HTTPStatus) -> tuple[int, bytes]:
    """The status and the body that a repeated request gets again."""
    b = booking
    body = StoredAnswer(
        id=b.id,
        event_id=b.event_id,
        buyer=b.buyer,
        state=b.state.value,
        lines=b.lines,
        total=b.total,
        currency=b.currency,
        created_at=b.created_at,
        expires_at=b.expires_at,
        confirmed_at=b.confirmed_at,
        payment_id=b.payment_id,
        version=b.version,
    )
    return int(status), _encode(body)


def opened_row(booking: Booking) -> tuple[object, ...]:
    """The arguments of `insert_booking`."""
    b = booking
    lines = _encode(b.lines).decode()
    return (b.id, b.event_id, b.buyer, b.mode, b.state.value, lines, b.total, b.currency, b.created_at, b.expires_at)


def hold_entry(booking: Booking, *, key: str, request_hash: bytes) -> tuple[object, ...]:
    """The journal's row of a hold."""
    b = booking
    facts = {
        "buyer": b.buyer,
        "lines": b.lines,
        "total": b.total,
        "currency": b.currency,
        "expires_at": b.expires_at,
    }
    memory = (CALLER, key, request_hash, *answer(b, status=HTTPStatus.CREATED))
    return _entry(b, Verb.HOLD, before=None, at=b.created_at, facts=facts, memory=memory)


def confirm_entry(before: Booking, after: Booking, *, key: str, request_hash: bytes) -> tuple[object, ...]:
    """The journal's row of a confirm."""
    assert after.confirmed_at is not None
    facts = {WAS: was(before, after), "confirmed_at": after.confirmed_at, "payment_id": after.payment_id}
    memory = (CALLER, key, request_hash, *answer(after, status=HTTPStatus.OK))
    return _entry(after, Verb.CONFIRM, before=before.state, at=after.confirmed_at, facts=facts, memory=memory)


def expire_entry(before: Booking, after: Booking) -> tuple[object, ...]:
    """The journal's row of a hold that the clock has ended."""
    assert after.ended_at is not None
    facts = {WAS: was(before, after), "ended_at": after.ended_at}
    row = _entry(after, Verb.EXPIRE, before=before.state, at=after.ended_at, facts=facts, memory=(None,) * 5)
    return (*row[:7], CLOCK, TAKEN_OVER, *row[9:])


def _entry(
    after: Booking,
    verb: Verb,
    *,
    before: State | None,
    at: datetime,
    facts: Mapping[str, object],
    memory: tuple[object, ...],
) -> tuple[object, ...]:
    states = (before.value if before else None, after.state.value)
    encoded = _encode(facts).decode()
    return (uuid7(), after.event_id, after.id, after.version, verb.value, *states, CALLER, None, at, encoded, *memory)
