"""The words of the API: what requests may say and what answers look like, as types that are also the OpenAPI schemas.

Unknown fields are refused. Ids take letters, digits and a little punctuation: no control characters, and none of the
braces by which key-value stores group their keys.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from earmark.domain.event import OnDecline
from earmark.domain.ids import Buyer, PoolId, SeatId
from earmark.domain.machine import State
from earmark.domain.money import AMOUNT_MAX, Money
from earmark.domain.policy import TTL_SECONDS_MAX, TTL_SECONDS_MIN
from earmark.domain.refunds import PERCENT_MAX, UNTIL_SECONDS_MAX
from earmark.domain.seat import SeatState, shown_state

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.journal import Entry
    from earmark.domain.pool import Pool
    from earmark.engine.ports import SeatOnMap

EVENT_SEATS_MAX = 100_000
EVENT_POOLS_MAX = 1_000
CLAIM_ITEMS_MAX = 100
UNITS_MAX = 1_000

_ID = r"^\w[\w .:#+@()-]*$(?!\n)"
_TEXT = r"^[^\x00-\x1f\x7f]*$(?!\n)"
_WHO = r"^[^\x00-\x1f\x7f{}]+$(?!\n)"

Id = Annotated[str, Meta(pattern=_ID, min_length=1, max_length=64, description="letters, digits and . : # + @ ( ) -")]
EventIdText = Annotated[str, Meta(pattern=r"^\w[\w.:-]*$(?!\n)", min_length=1, max_length=64)]
Name = Annotated[str, Meta(pattern=_TEXT, min_length=1, max_length=200)]
Who = Annotated[str, Meta(pattern=_WHO, min_length=1, max_length=128, description="the buyer, as the shop knows them")]
Label = Annotated[str, Meta(pattern=_TEXT, min_length=1, max_length=64, description="as people call it")]
Reference = Annotated[str, Meta(pattern=_WHO, min_length=1, max_length=255)]
Price = Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="minor units of the event's currency")]
Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339, with a time zone")]
Ttl = Annotated[int, Meta(ge=TTL_SECONDS_MIN, le=TTL_SECONDS_MAX)]
Units = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
Capacity = Annotated[int, Meta(ge=0, le=10_000_000)]
PerBuyer = Annotated[int, Meta(ge=1, le=100_000)]
RefundUntil = Annotated[int, Meta(ge=0, le=UNTIL_SECONDS_MAX, description="before starts_at")]
Percent = Annotated[int, Meta(ge=0, le=PERCENT_MAX)]


class SeatBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """One seat of a new event."""

    id: Id
    price: Price
    row: Label | None = None
    number: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    section: Label | None = None
    category: Label | None = None
    x: Annotated[float, Meta(ge=-1e6, le=1e6)] | None = None
    y: Annotated[float, Meta(ge=-1e6, le=1e6)] | None = None
    blocked: bool = False


class LayoutBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A plain house: rows A, B, C… of seats 1, 2, 3…, all at one price."""

    rows: Annotated[int, Meta(ge=1, le=702)]
    seats_per_row: Annotated[int, Meta(ge=1, le=1_000)]
    price: Price


class PoolBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """One pool of a new event."""

    id: Id
    capacity: Capacity
    price: Price


class EventBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new event: seats or a layout, pools, or both."""

    name: Name
    currency: Annotated[str, Meta(description="ISO 4217, such as EUR")]
    id: EventIdText | None = None
    starts_at: Moment | None = None
    sale_opens_at: Moment | None = None
    sale_closes_at: Moment | None = None
    hold_ttl_seconds: Ttl | None = None
    per_buyer_max: PerBuyer | None = None
    on_decline: OnDecline = OnDecline.KEEP
    refund_until_seconds: RefundUntil | None = None
    refund_fee_percent: Percent = 0
    refund_fee_fixed: Price = 0
    seats: Annotated[list[SeatBody], Meta(max_length=EVENT_SEATS_MAX)] = []
    layout: LayoutBody | None = None
    pools: Annotated[list[PoolBody], Meta(max_length=EVENT_POOLS_MAX)] = []


class SeatPatchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change about one seat."""

    id: Id
    blocked: bool | None = None
    price: Price | None = None


class PoolPatchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change about one pool."""

    id: Id
    capacity: Capacity | None = None
    price: Price | None = None


class EventPatchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change about an event. Null clears an optional field; a field that is not named stays."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    starts_at: Moment | msgspec.UnsetType | None = msgspec.UNSET
    sale_opens_at: Moment | msgspec.UnsetType | None = msgspec.UNSET
    sale_closes_at: Moment | msgspec.UnsetType | None = msgspec.UNSET
    hold_ttl_seconds: Ttl | msgspec.UnsetType | None = msgspec.UNSET
    per_buyer_max: PerBuyer | msgspec.UnsetType | None = msgspec.UNSET
    on_decline: OnDecline | msgspec.UnsetType = msgspec.UNSET
    refund_until_seconds: RefundUntil | msgspec.UnsetType | None = msgspec.UNSET
    refund_fee_percent: Percent | msgspec.UnsetType = msgspec.UNSET
    refund_fee_fixed: Price | msgspec.UnsetType = msgspec.UNSET
    seats: Annotated[list[SeatPatchBody], Meta(max_length=EVENT_SEATS_MAX)] = []
    pools: Annotated[list[PoolPatchBody], Meta(max_length=EVENT_POOLS_MAX)] = []


class ExtendBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How much longer."""

    seconds: Annotated[int, Meta(ge=1, le=TTL_SECONDS_MAX)]


class ConfirmBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The payment that was taken elsewhere."""

    payment_id: Reference
    payment_method: Reference | None = None


class ReleaseBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Nothing to say."""


class CancelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to undo (all of it, unless lines are named) and what becomes of the money."""

    refund: Annotated[str | int | None, Meta(description="full, none, or minor units; else by the event's rules")] = (
        None
    )
    seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    pools: dict[Id, Units] = {}
    reason: Name | None = None


class EventAnswer(Struct, kw_only=True):
    """An event."""

    id: str
    name: str
    currency: str
    live: bool
    created_at: Moment
    starts_at: Moment | None
    sale_opens_at: Moment | None
    sale_closes_at: Moment | None
    hold_ttl_seconds: int | None
    per_buyer_max: int | None
    on_decline: OnDecline
    refund_until_seconds: int | None
    refund_fee_percent: int
    refund_fee_fixed: int
    version: int


class SeatLineAnswer(Struct, kw_only=True):
    """One seat in a booking."""

    id: SeatId
    price: int


class PoolLineAnswer(Struct, kw_only=True):
    """Units of one pool in a booking."""

    id: PoolId
    units: int
    price: int


class BookingAnswer(Struct, kw_only=True):
    """A booking, as it stood at the moment of the answer."""

    id: str
    event_id: str
    buyer: Buyer
    state: State
    expires_at: Moment
    expires_in: float | None
    seats: list[SeatLineAnswer]
    pools: list[PoolLineAnswer]
    total: Money
    created_at: Moment
    confirmed_at: Moment | None
    ended_at: Moment | None
    payment_id: str | None
    payment_method: str | None
    version: int


class SeatAnswer(Struct, kw_only=True):
    """A seat on the map."""

    id: str
    state: SeatState
    price: int
    row: str | None
    number: int | None
    section: str | None
    category: str | None
    x: float | None
    y: float | None
    mine: bool


class PoolAnswer(Struct, kw_only=True):
    """A pool on the map."""

    id: str
    capacity: int
    available: int
    held: int
    sold: int
    price: int


class MapAnswer(Struct, kw_only=True):
    """The seats and pools of an event; `version` changes when anything on it does."""

    version: str
    seats: list[SeatAnswer]
    pools: list[PoolAnswer]


class ExplainAnswer(Struct, kw_only=True):
    """Why a seat is, or is not, available."""

    id: str
    state: SeatState
    why: str
    expires_in: float | None
    booking_id: str | None


class EntryAnswer(Struct, kw_only=True):
    """One thing that happened to a booking."""

    version: int
    verb: str
    before: str | None
    after: str | None
    actor: str
    reason: str | None
    at: Moment
    facts: dict[str, Any]


class HistoryAnswer(Struct, kw_only=True):
    """All that happened to a booking, oldest first."""

    entries: list[EntryAnswer]


class EventsPage(Struct, kw_only=True):
    """A page of events, by id."""

    events: list[EventAnswer]
    next_cursor: str | None


class BookingsPage(Struct, kw_only=True):
    """A page of bookings, oldest first."""

    bookings: list[BookingAnswer]
    next_cursor: str | None


class GuestAnswer(Struct, kw_only=True):
    """An anonymous buyer; the token that speaks for them is in the cookie, where scripts cannot read it."""

    buyer: str
    expires_at: Moment


class HealthAnswer(Struct, kw_only=True):
    """Alive, or ready."""

    status: str
    version: str


class ProblemAnswer(Struct, kw_only=True):
    """RFC 9457, with a stable `code`, and whether the same request may succeed later. Facts follow by name."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    transient: bool


def event_answer(event: Event) -> EventAnswer:
    """An event in the API's words."""
    return EventAnswer(**msgspec.structs.asdict(event))


def booking_answer(booking: Booking, now: datetime) -> BookingAnswer:
    """A booking in the API's words. A hold whose time is over reads as expired, swept or not."""
    state = State.EXPIRED if booking.is_due(now) else booking.state
    left = (booking.expires_at - now).total_seconds()
    return BookingAnswer(
        id=str(booking.id),
        event_id=booking.event_id,
        buyer=booking.buyer,
        state=state,
        expires_at=booking.expires_at,
        expires_in=round(left, 3) if state is State.HELD else None,
        seats=[SeatLineAnswer(id=line.id, price=line.price) for line in booking.lines.seats],
        pools=[PoolLineAnswer(id=line.id, units=line.units, price=line.price) for line in booking.lines.pools],
        total=Money(amount=booking.total, currency=booking.currency),
        created_at=booking.created_at,
        confirmed_at=booking.confirmed_at,
        ended_at=booking.ended_at,
        payment_id=booking.payment_id,
        payment_method=booking.payment_method,
        version=booking.version,
    )


def seat_answer(on_map: SeatOnMap, *, now: datetime, buyer: Buyer | None) -> SeatAnswer:
    """A seat in the API's words."""
    seat, ends_at = on_map.seat, on_map.owner_expires_at
    state = shown_state(
        blocked=seat.blocked, owner_state=on_map.owner_state, due=ends_at is not None and now >= ends_at
    )
    owned = state in {SeatState.HELD, SeatState.BOOKED}
    return SeatAnswer(
        id=seat.id,
        state=state,
        price=seat.price,
        row=seat.row,
        number=seat.number,
        section=seat.section,
        category=seat.category,
        x=seat.x,
        y=seat.y,
        mine=owned and buyer is not None and on_map.owner_buyer == buyer,
    )


def pool_answer(pool: Pool) -> PoolAnswer:
    """A pool in the API's words."""
    return PoolAnswer(
        id=pool.id, capacity=pool.capacity, available=pool.free, held=pool.held, sold=pool.sold, price=pool.price
    )


def entry_answer(entry: Entry) -> EntryAnswer:
    """A journal entry in the API's words."""
    return EntryAnswer(
        version=entry.version,
        verb=entry.verb,
        before=entry.before,
        after=entry.after,
        actor=entry.actor,
        reason=entry.reason,
        at=entry.at,
        facts=entry.facts,
    )
