"""Response bodies: plain frozen values, the same from the library, from the client and as JSON over HTTP.

Times are aware and in UTC, money is in minor units of its currency, ids are text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from earmark.domain.bookable_event import OnDecline
from earmark.domain.booking_state_machine import State
from earmark.domain.journal_before_and_after_values import FieldChange
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import Money
from earmark.domain.payment import Capture, PaymentState, RefundState
from earmark.domain.refund_rules import Reason
from earmark.domain.seat import SeatState

Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339, with a time zone")]


class Event(Struct, frozen=True, kw_only=True):
    """An event and its sale rules."""

    id: str
    name: str
    currency: str
    mode: Mode
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
    buyer_cancel_until_seconds: int | None
    version: int


class SeatLine(Struct, frozen=True, kw_only=True):
    """One seat in a booking, with the names that the event's plan gives it.

    They are missing from answers that an older release gave and that are given again, and null in bookings it made.
    """

    id: str
    price: int
    row: str | None = None
    number: int | None = None
    section: str | None = None
    category: str | None = None


class PoolLine(Struct, frozen=True, kw_only=True):
    """Units of one pool in a booking."""

    id: str
    units: int
    price: int


class Booking(Struct, frozen=True, kw_only=True):
    """A booking, as it was at the moment of the response."""

    id: str
    event_id: str
    buyer: str
    state: State
    expires_at: Moment
    expires_in: float | None
    seats: tuple[SeatLine, ...]
    pools: tuple[PoolLine, ...]
    total: Money
    created_at: Moment
    confirmed_at: Moment | None
    ended_at: Moment | None
    payment_id: str | None
    payment_method: str | None
    version: int
    cancellable_until: Moment | UnsetType | None = UNSET
    """Until when the buyer may cancel; null where that is not allowed. Only in what the buyer reads."""


class Contact(Struct, frozen=True, kw_only=True):
    """Whom mails about a booking go to."""

    booking_id: str
    name: str
    email: str
    language: str
    mailed: bool | UnsetType = UNSET
    """Whether this server sends mails about the booking. Not in what the library returns, which sends none itself."""


class Payment(Struct, frozen=True, kw_only=True):
    """A payment, as it was at the moment of the response."""

    id: str
    booking_id: str
    gateway: str
    method: str
    state: PaymentState
    amount: Money
    captured: int
    refunding: int
    refunded: int
    code: str | None
    message: str | None
    action: dict[str, str] | None
    created_at: Moment
    refunded_elsewhere: int = 0
    """What was refunded at the gateway's own page, without Earmark."""
    gateway_id: str | None = None
    """The gateway's id of the payment, once it has answered."""
    processed_at: Moment | None = None
    """When the gateway's last decision was recorded; null while it has not decided."""


class Refund(Struct, frozen=True, kw_only=True):
    """Money on its way back, or that went back."""

    id: str
    amount: int
    state: RefundState
    reason: str | None
    code: str | None
    created_at: Moment
    gateway_id: str | None
    processed_at: Moment | None


class ListedPayment(Payment, frozen=True, kw_only=True):
    """A payment with what goes back of it, oldest first."""

    refunds: tuple[Refund, ...] = ()


class Paid(Booking, frozen=True, kw_only=True):
    """A booking and the payment that was opened for it, if anything was to be paid."""

    payment: Payment | None


class TestCard(Struct, frozen=True, kw_only=True):
    """A test card of the sandbox: what to send as `method`, and what happens then, in plain words for a buyer."""

    method: str
    brand: str
    last4: str | None
    does: str


class PayableGateway(Struct, frozen=True, kw_only=True):
    """A gateway that an event can be paid with, and what a page needs to take the payment. Never a secret."""

    gateway: str
    mode: Mode
    capture: Capture
    publishable_key: str | None
    """For Stripe.js; null at other gateways, and where none is set."""
    cards: tuple[TestCard, ...]


class PaymentMethods(Struct, frozen=True, kw_only=True):
    """How an event can be paid. The first gateway is that of a request to pay which names none."""

    event_id: str
    currency: str
    gateways: tuple[PayableGateway, ...]


class Ruling(Struct, frozen=True, kw_only=True):
    """What became of the money of what was undone: given back and kept, in minor units, and by which rule."""

    refund: int
    fee: int
    reason: Reason


class Undone(Booking, frozen=True, kw_only=True):
    """A booking of which a sale was undone; `money` is null where none was taken here, or nothing was left to undo."""

    money: Ruling | None


class Seat(Struct, frozen=True, kw_only=True):
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


class Pool(Struct, frozen=True, kw_only=True):
    """A pool on the map."""

    id: str
    capacity: int
    available: int
    held: int
    sold: int
    price: int


class Map(Struct, frozen=True, kw_only=True):
    """The seats and pools of an event; `version` changes when anything on it does."""

    version: str
    seats: tuple[Seat, ...]
    pools: tuple[Pool, ...]


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a seat is, or is not, available."""

    id: str
    state: SeatState
    why: str
    expires_in: float | None
    booking_id: str | None


class Entry(Struct, frozen=True, kw_only=True):
    """One thing that happened to a booking."""

    version: int
    verb: str
    before: str | None
    after: str | None
    actor: str
    reason: str | None
    at: Moment
    facts: dict[str, Any]
    changes: dict[str, FieldChange] | None = None
    """Every field that changed, by name; null of entries that an older release wrote, which kept no old values."""


class History(Struct, frozen=True, kw_only=True):
    """All that happened to a booking, oldest first."""

    entries: tuple[Entry, ...]


class Payments(Struct, frozen=True, kw_only=True):
    """All payments of a booking, oldest first, each with its refunds."""

    payments: tuple[ListedPayment, ...]


class EventsPage(Struct, frozen=True, kw_only=True):
    """A page of events, by id."""

    events: tuple[Event, ...]
    next_cursor: str | None


class BookingsPage(Struct, frozen=True, kw_only=True):
    """A page of bookings, oldest first."""

    bookings: tuple[Booking, ...]
    next_cursor: str | None


class Delta(Struct, frozen=True, kw_only=True):
    """The seats and pools of a map that may have changed, each as it is now."""

    seats: tuple[Seat, ...] = ()
    pools: tuple[Pool, ...] = ()


class Recalled(Struct, frozen=True, kw_only=True):
    """The result of the request with an idempotency key; `status` and `answer` are its response, if it is done."""

    key: str
    state: Literal["done", "in_progress", "unknown"]
    status: int | None = None
    booking_id: str | None = None
    answer: Any = None


class Token(Struct, frozen=True, kw_only=True):
    """A token that authenticates one buyer, for a limited time."""

    token: str
    buyer: str
    expires_at: Moment


class GuestAnswer(Struct, kw_only=True, omit_defaults=True):
    """An anonymous buyer. The token is in the cookie, where scripts cannot read it; for a listed site it is here."""

    buyer: str
    expires_at: Moment
    token: str | None = None


class HealthAnswer(Struct, kw_only=True):
    """Whether the server is alive, or ready."""

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


class CallbackAnswer(Struct, kw_only=True):
    """The gateway's callback was received."""

    received: bool
