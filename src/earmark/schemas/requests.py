"""Request bodies as types that validate them, for the API and for the library.

Unknown fields are refused. Ids take letters, digits and a little punctuation: no control characters, and none of the
braces by which key-value stores group their keys.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from earmark.domain.bookable_event import OnDecline
from earmark.domain.booking import LINES_MAX
from earmark.domain.contact import EMAIL_LENGTH_MAX
from earmark.domain.default_limits_for_all_events import TTL_SECONDS_MAX, TTL_SECONDS_MIN
from earmark.domain.money import AMOUNT_MAX
from earmark.domain.payment import Capture
from earmark.domain.refund_rules import PERCENT_MAX, UNTIL_SECONDS_MAX
from earmark.errors import InvalidRequest
from earmark.schemas.responses import Moment

T = TypeVar("T")

EVENT_SEATS_MAX = 100_000
EVENT_POOLS_MAX = 1_000
CLAIM_ITEMS_MAX = LINES_MAX
UNITS_MAX = 1_000

_ID = r"^\w[\w .:#+@()-]*$(?!\n)"
_TEXT = r"^[^\x00-\x1f\x7f]*$(?!\n)"
_PERSON = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+$(?!\n)"
"""No control characters of any kind, no line ends, nothing that turns the direction of the text behind it."""
_LANGUAGE = r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$(?!\n)"
_WHO = r"^[^\x00-\x1f\x7f{}]+$(?!\n)"

Id = Annotated[str, Meta(pattern=_ID, min_length=1, max_length=64, description="letters, digits and . : # + @ ( ) -")]
EventIdText = Annotated[str, Meta(pattern=r"^\w[\w.:-]*$(?!\n)", min_length=1, max_length=64)]
Name = Annotated[str, Meta(pattern=_TEXT, min_length=1, max_length=200)]
Who = Annotated[str, Meta(pattern=_WHO, min_length=1, max_length=128, description="the buyer, as the shop knows them")]
PersonName = Annotated[str, Meta(pattern=_PERSON, min_length=1, max_length=200, description="in any script")]
Language = Annotated[str, Meta(pattern=_LANGUAGE, max_length=35, description="a language tag, such as de or en-GB")]
Label = Annotated[str, Meta(pattern=_TEXT, min_length=1, max_length=64, description="a name to display")]
Reference = Annotated[str, Meta(pattern=_WHO, min_length=1, max_length=255)]
Price = Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="minor units of the event's currency")]
Ttl = Annotated[int, Meta(ge=TTL_SECONDS_MIN, le=TTL_SECONDS_MAX)]
Units = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
UnitsOrNone = Annotated[int, Meta(ge=0, le=UNITS_MAX, description="0 gives all units of the pool back")]
Capacity = Annotated[int, Meta(ge=0, le=10_000_000)]
PerBuyer = Annotated[int, Meta(ge=1, le=100_000)]
RefundUntil = Annotated[int, Meta(ge=0, le=UNTIL_SECONDS_MAX, description="before starts_at")]
BuyerCancelUntil = Annotated[int, Meta(ge=0, le=UNTIL_SECONDS_MAX, description="before starts_at")]
Percent = Annotated[int, Meta(ge=0, le=PERCENT_MAX)]

ReturnUrl = Annotated[
    str, Meta(max_length=2000, pattern="^https?://", extra_json_schema={"format": "uri"}, description="https or http")
]


class NewSeat(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class Layout(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A plain seating plan: rows A, B, C… of seats 1, 2, 3…, all at one price."""

    rows: Annotated[int, Meta(ge=1, le=702)]
    seats_per_row: Annotated[int, Meta(ge=1, le=1_000)]
    price: Price


class NewPool(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pool of a new event."""

    id: Id
    capacity: Capacity
    price: Price


class EventBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    buyer_cancel_until_seconds: BuyerCancelUntil | None = None
    seats: Annotated[list[NewSeat], Meta(max_length=EVENT_SEATS_MAX)] = []
    layout: Layout | None = None
    pools: Annotated[list[NewPool], Meta(max_length=EVENT_POOLS_MAX)] = []


class SeatChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change about one seat."""

    id: Id
    blocked: bool | None = None
    price: Price | None = None


class PoolChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change about one pool."""

    id: Id
    capacity: Capacity | None = None
    price: Price | None = None


class EventPatchBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    buyer_cancel_until_seconds: BuyerCancelUntil | msgspec.UnsetType | None = msgspec.UNSET
    seats: Annotated[list[SeatChange], Meta(max_length=EVENT_SEATS_MAX)] = []
    pools: Annotated[list[PoolChange], Meta(max_length=EVENT_POOLS_MAX)] = []


class BestBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many seats, and of what kind; the best of them are chosen."""

    count: Annotated[int, Meta(ge=1, le=CLAIM_ITEMS_MAX)]
    section: Label | None = None
    category: Label | None = None
    price_max: Price | None = None
    together: Annotated[bool, Meta(description="side by side in one row, or none at all")] = False


class HoldBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seats and pool units of one event, all or nothing: the seats by name, or only how many."""

    event_id: EventIdText
    buyer: Who | None = None
    seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    best_available: BestBody | None = None
    pools: dict[Id, Units] = {}
    ttl_seconds: Ttl | None = None


class ChangeBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change about a hold. What is not named stays; a seat that is there already, or gone already, is no error.

    `pools` says how many units the hold shall have of each pool that is named.
    """

    add_seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    drop_seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    pools: dict[Id, UnitsOrNone] = {}


class ExtendBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many seconds longer to hold."""

    seconds: Annotated[int, Meta(ge=1, le=TTL_SECONDS_MAX)]


class ConfirmBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payment that was taken elsewhere."""

    payment_id: Reference
    payment_method: Reference | None = None


class ReleaseBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An empty object: a release has no fields."""


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to undo (all of it, unless lines are named) and what becomes of the money."""

    refund: Annotated[str | int | None, Meta(description="full, none, or minor units; else by the event's rules")] = (
        None
    )
    seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    pools: dict[Id, Units] = {}
    reason: Name | None = None


class PayBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to pay: a token of the gateway's own, never a card number. Not needed where there is nothing to pay.

    `gateway` and `capture` are for keys of the shop. A buyer's request leaves them out. `amount` is what the buyer was
    shown: a hold that costs something else by now is not paid for.
    """

    method: Reference | None = None
    gateway: Reference | None = None
    capture: Capture | None = None
    return_url: ReturnUrl | None = None
    amount: Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="what the buyer was shown, in minor units")] | None = (
        None
    )


class ContactBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whom mails about a booking go to. The address is checked further: see `domain/contact.py`."""

    name: PersonName
    email: Annotated[str, Meta(min_length=3, max_length=EMAIL_LENGTH_MAX, description="an e-mail address")]
    language: Language | None = None


class RefundBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much goes back, in minor units."""

    amount: Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
    reason: Reference | None = None


def read(kind: type[T], fields: dict[str, Any]) -> T:
    """The fields as a request of this type. Raises `InvalidRequest` with the path of the field that is wrong."""
    try:
        return msgspec.convert(msgspec.to_builtins(fields, builtin_types=(datetime,)), kind)
    except msgspec.ValidationError as wrong:
        raise InvalidRequest.at(*place(str(wrong))) from wrong


_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"Object (?:(?P<missing>missing required)|contains unknown) field `(?P<name>[^`]*)`")


def place(text: str) -> tuple[str, str]:
    """The path and the message in a validation error of msgspec."""
    found = _AT.match(text)
    assert found is not None
    path = (found["path"] or "").removeprefix("$").removeprefix(".")
    message = found["message"]
    if field := _FIELD.match(message):
        path = f"{path}.{field['name']}".removeprefix(".")
        message = "is required" if field["missing"] else "is not a field of this request"
    elif " matching regex " in message:
        message = "has characters that are not allowed here"
    return path, message[:1].lower() + message[1:]
