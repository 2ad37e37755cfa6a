"""Converts requests to the engine's commands: makes the checks that span several fields, and the new ids."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import State
from earmark.domain.choose_best_seats import Wish
from earmark.domain.contact import LANGUAGE_DEFAULT, Contact, check_email
from earmark.domain.detect_card_numbers import check_payment_method
from earmark.domain.id_types import BookingId, EventId, PoolId, SeatId
from earmark.domain.money import AMOUNT_MAX, is_currency
from earmark.domain.payment import payment_id_for
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import (
    Cancel,
    Change,
    ChangeEvent,
    Confirm,
    CreateEvent,
    Full,
    Hold,
    Pay,
    PoolPatch,
    RefundPayment,
    SeatPatch,
)
from earmark.errors import BookingUnknown, InvalidRequest
from earmark.schemas import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from earmark.domain.id_types import Buyer, EntryId
    from earmark.engine.commands_and_results import Actor, KeyedRequest
    from earmark.engine.ports.store import Ids
    from earmark.payments.choose_gateway_and_pay import PaymentTerms

YEARS = range(1970, 9999)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ID_SHOWN_MAX = 64

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Common(TypedDict):
    """The fields that all commands have."""

    actor: Actor
    entry_id: EntryId
    idempotency: KeyedRequest | None


def hold(body: requests.HoldBody, *, buyer: Buyer, booking_id: BookingId, **common: Unpack[Common]) -> Hold:
    """Seats and units, each named once; of the best seats only how many are named, see `wish`."""
    best = body.best_available
    if not body.seats and not body.pools and best is None:
        raise InvalidRequest.at("seats", "a hold names seats, pools, or both")
    if body.seats and best is not None:
        raise InvalidRequest.at("best_available", "name the seats or say how many, not both")
    if len(body.seats) + len(body.pools) + (best.count if best else 0) > requests.CLAIM_ITEMS_MAX:
        raise InvalidRequest.at("seats", f"a hold names at most {requests.CLAIM_ITEMS_MAX} seats and pools")
    if doubles := sorted({seat for seat in body.seats if body.seats.count(seat) > 1}):
        raise InvalidRequest.at("seats", f"names {', '.join(doubles)} twice")
    return Hold(
        **common,
        booking_id=booking_id,
        event_id=EventId(body.event_id),
        buyer=buyer,
        seats=tuple(SeatId(seat) for seat in body.seats),
        pools={PoolId(pool): units for pool, units in body.pools.items()},
        ttl_seconds=body.ttl_seconds,
    )


def wish(body: requests.BestBody) -> Wish:
    """How many seats, and of what kind, as the engine's value."""
    return Wish(**msgspec.structs.asdict(body))


def change(body: requests.ChangeBody, *, booking_id: BookingId, **common: Unpack[Common]) -> Change:
    """Seats to add and to drop, each named once, and how many units of some pools."""
    if not body.add_seats and not body.drop_seats and not body.pools:
        raise InvalidRequest.at("add_seats", "a change names seats to add, seats to drop, or pools")
    if len(body.add_seats) + len(body.drop_seats) + len(body.pools) > requests.CLAIM_ITEMS_MAX:
        raise InvalidRequest.at("add_seats", f"a change names at most {requests.CLAIM_ITEMS_MAX} seats and pools")
    named = [*body.add_seats, *body.drop_seats]
    if doubles := sorted({seat for seat in named if named.count(seat) > 1}):
        raise InvalidRequest.at("drop_seats", f"names {', '.join(doubles)} twice")
    return Change(
        **common,
        booking_id=booking_id,
        add_seats=tuple(SeatId(seat) for seat in body.add_seats),
        drop_seats=tuple(SeatId(seat) for seat in body.drop_seats),
        pools={PoolId(pool): units for pool, units in body.pools.items()},
    )


def cancel(body: requests.CancelBody, *, booking_id: BookingId, **common: Unpack[Common]) -> Cancel:
    """What to undo, and what becomes of its money."""
    if len(set(body.seats)) != len(body.seats):
        raise InvalidRequest.at("seats", "names a seat twice")
    return Cancel(
        **common,
        booking_id=booking_id,
        seats=frozenset(SeatId(seat) for seat in body.seats),
        pools={PoolId(pool): units for pool, units in body.pools.items()},
        reason=body.reason,
        refund=_refund(body.refund),
    )


def confirm(body: requests.ConfirmBody, *, booking_id: BookingId, **common: Unpack[Common]) -> Confirm:
    """A sale whose money the shop took elsewhere; a card number as payment method is refused."""
    check_payment_method(body.payment_method)
    return Confirm(**common, booking_id=booking_id, payment_id=body.payment_id, payment_method=body.payment_method)


def contact(body: requests.ContactBody, *, booking_id: BookingId) -> Contact:
    """A contact, with its address checked and kept as it was typed."""
    if not body.name.strip():
        raise InvalidRequest.at("name", "must have more than spaces")
    check_email(body.email)
    return Contact(booking_id=booking_id, name=body.name, email=body.email, language=body.language or LANGUAGE_DEFAULT)


def pay(
    body: requests.PayBody,
    *,
    booking_id: BookingId,
    terms: PaymentTerms,
    address: str | None = None,
    **common: Unpack[Common],
) -> Pay:
    """A payment; its id is derived from its idempotency key and its booking, so the key is required."""
    idempotency = common["idempotency"]
    assert idempotency is not None, "a payment has a key"
    return Pay(
        **common,
        booking_id=booking_id,
        payment_id=payment_id_for(idempotency.key, booking_id),
        **terms,
        method=body.method,
        return_url=body.return_url,
        amount=body.amount,
        address=address,
    )


def refund(body: requests.RefundBody, *, booking_id: BookingId, ids: Ids, **common: Unpack[Common]) -> RefundPayment:
    """A refund with a new id."""
    return RefundPayment(
        **common, booking_id=booking_id, refund_id=ids.refund_id(), amount=body.amount, reason=body.reason
    )


def create_event(body: requests.EventBody, *, now: datetime, ids: Ids, **common: Unpack[Common]) -> CreateEvent:
    """An event with all seats and pools that it sells."""
    if not is_currency(body.currency):
        raise InvalidRequest.at("currency", "is not an ISO 4217 currency")
    event_id = EventId(body.id or f"evt_{ids.booking_id().hex}")
    seats, pools = _seats(event_id, body), _pools(event_id, body)
    if not seats and not pools:
        raise InvalidRequest.at("seats", "an event sells seats (or a layout of them), pools, or both")
    if body.sale_opens_at and body.sale_closes_at and body.sale_closes_at <= body.sale_opens_at:
        raise InvalidRequest.at("sale_closes_at", "must be after sale_opens_at")
    event = Event(
        id=event_id,
        name=body.name,
        currency=body.currency,
        mode=common["actor"].mode,
        created_at=now,
        starts_at=_utc("starts_at", body.starts_at),
        sale_opens_at=_utc("sale_opens_at", body.sale_opens_at),
        sale_closes_at=_utc("sale_closes_at", body.sale_closes_at),
        hold_ttl_seconds=body.hold_ttl_seconds,
        per_buyer_max=body.per_buyer_max,
        on_decline=body.on_decline,
        refund_until_seconds=body.refund_until_seconds,
        refund_fee_percent=body.refund_fee_percent,
        refund_fee_fixed=body.refund_fee_fixed,
        buyer_cancel_until_seconds=body.buyer_cancel_until_seconds,
    )
    return CreateEvent(**common, event=event, seats=seats, pools=pools)


def change_event(body: requests.EventPatchBody, *, event_id: EventId, **common: Unpack[Common]) -> ChangeEvent:
    """A change of an event: only the named fields."""
    _refuse_doubles("seats", [seat.id for seat in body.seats])
    _refuse_doubles("pools", [pool.id for pool in body.pools])
    named = msgspec.structs.asdict(body)
    own = {name: value for name, value in named.items() if name not in {"seats", "pools"}}
    return ChangeEvent(
        **common,
        event_id=event_id,
        fields={name: _utc(name, value) for name, value in own.items() if value is not msgspec.UNSET},
        seats=tuple(SeatPatch(id=SeatId(seat.id), blocked=seat.blocked, price=seat.price) for seat in body.seats),
        pools=tuple(PoolPatch(id=PoolId(pool.id), capacity=pool.capacity, price=pool.price) for pool in body.pools),
    )


def check_key(text: str) -> str:
    """Raise `InvalidRequest` for an idempotency key that a header or a store cannot hold."""
    if not _KEY.fullmatch(text):
        raise InvalidRequest.at("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
    return text


def state_of(text: str | None) -> State | None:
    """The state to list by, if one is named."""
    try:
        return State(text) if text is not None else None
    except ValueError:
        raise InvalidRequest.at("state", f"is one of {', '.join(State)}") from None


def booking_id_of(text: str) -> BookingId:
    """A booking's id; any other text names no booking."""
    try:
        return BookingId(UUID(text))
    except ValueError:
        raise BookingUnknown(booking_id=text[:ID_SHOWN_MAX]) from None


def _refund(wanted: str | int | None) -> int | Full | None:
    """How much to refund of money that Earmark took; None for the event's rules."""
    if wanted is None:
        return None
    if wanted == "full":
        return Full.FULL
    if wanted == "none":
        return 0
    if isinstance(wanted, str) or not 0 <= wanted <= AMOUNT_MAX:
        raise InvalidRequest.at("refund", "must be full, none, or an amount in minor units")
    return wanted


def _utc(path: str, value: Any) -> Any:
    """A moment in UTC, in years that every store can keep; other values as they are."""
    if not isinstance(value, datetime):
        return value
    if not YEARS.start <= value.year < YEARS.stop:
        raise InvalidRequest.at(path, f"must be from {YEARS.start} to {YEARS.stop - 1}")
    return value.astimezone(UTC)


def _seats(event_id: EventId, body: requests.EventBody) -> tuple[Seat, ...]:
    if body.layout and body.seats:
        raise InvalidRequest.at("layout", "give seats or a layout, not both")
    if body.layout and body.layout.rows * body.layout.seats_per_row > requests.EVENT_SEATS_MAX:
        raise InvalidRequest.at("layout", f"an event has at most {requests.EVENT_SEATS_MAX} seats")
    if body.layout:
        return tuple(_lay_out(event_id, body.layout))
    _refuse_doubles("seats", [seat.id for seat in body.seats])
    return tuple(Seat(event_id=event_id, **msgspec.structs.asdict(seat)) for seat in body.seats)


def _lay_out(event_id: EventId, layout: requests.Layout) -> Iterable[Seat]:
    for row in range(layout.rows):
        name = _row_name(row)
        for number in range(1, layout.seats_per_row + 1):
            seat_id = SeatId(f"{name}{number}")
            yield Seat(event_id=event_id, id=seat_id, price=layout.price, row=name, number=number)


def _row_name(row: int) -> str:
    """A to Z, then AA, AB and so on."""
    return LETTERS[row] if row < len(LETTERS) else LETTERS[row // len(LETTERS) - 1] + LETTERS[row % len(LETTERS)]


def _pools(event_id: EventId, body: requests.EventBody) -> tuple[Pool, ...]:
    _refuse_doubles("pools", [pool.id for pool in body.pools])
    return tuple(
        Pool(event_id=event_id, id=PoolId(pool.id), capacity=pool.capacity, price=pool.price) for pool in body.pools
    )


def _refuse_doubles(path: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest.at(path, f"names {name} twice")
        seen.add(name)
