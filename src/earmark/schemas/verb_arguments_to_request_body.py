"""Builds the fields of a request from the arguments of a verb, for the library and for the client.

An argument that is not given is not sent, so that the server's defaults apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

import msgspec

from earmark.domain.detect_card_numbers import check_method, check_payment_method

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Unpack

    from earmark.domain.bookable_event import OnDecline
    from earmark.schemas.requests import Layout, NewPool, NewSeat, PoolChange, SeatChange

Fields = dict[str, Any]

_encode = msgspec.json.Encoder(order="deterministic").encode


class EventTerms(TypedDict, total=False):
    """The rules that a new event is sold by."""

    starts_at: datetime
    sale_opens_at: datetime
    sale_closes_at: datetime
    hold_ttl_seconds: int
    per_buyer_max: int
    on_decline: OnDecline | Literal["keep", "release"]
    refund_until_seconds: int
    refund_fee_percent: int
    refund_fee_fixed: int
    buyer_cancel_until_seconds: int


class EventTermsPatch(TypedDict, total=False):
    """What to change about an event. None clears an optional field; one that is not named stays."""

    name: str
    starts_at: datetime | None
    sale_opens_at: datetime | None
    sale_closes_at: datetime | None
    hold_ttl_seconds: int | None
    per_buyer_max: int | None
    on_decline: OnDecline | Literal["keep", "release"]
    refund_until_seconds: int | None
    refund_fee_percent: int
    refund_fee_fixed: int
    buyer_cancel_until_seconds: int | None


class HoldFields(TypedDict, total=False):
    """The fields of a hold beside its event, for the library and the clients. `requests.HoldBody` checks them."""

    buyer: Required[str]
    seats: Sequence[str]
    best_available: Mapping[str, Any] | None
    pools: Mapping[str, int] | None
    ttl_seconds: int | None


def encode(fields: Fields) -> bytes:
    """As JSON, in one order: the same request is the same bytes, and so fits its idempotency key."""
    return _encode(fields)


def create_event(
    event_id: str,
    *,
    name: str,
    currency: str,
    seats: Mapping[str, int] | Sequence[NewSeat] | None,
    pools: Mapping[str, tuple[int, int]] | Sequence[NewPool] | None,
    layout: Layout | None,
    **terms: Unpack[EventTerms],
) -> Fields:
    """The fields of a new event."""
    own = {"id": event_id, "name": name, "currency": currency, **terms}
    return own | said(seats=_new_seats(seats), pools=_new_pools(pools), layout=layout)


def change_event(
    *, seats: Sequence[SeatChange], pools: Sequence[PoolChange], **terms: Unpack[EventTermsPatch]
) -> Fields:
    """A change of an event, in which None has a meaning of its own."""
    return {**terms, **said(seats=[_told(seat) for seat in seats], pools=[_told(pool) for pool in pools])}


def hold(event_id: str, fields: HoldFields) -> Fields:
    """Which seats and units of an event to hold."""
    return {"event_id": event_id, **said(**fields)}


def change(*, add: Sequence[str], drop: Sequence[str], pools: Mapping[str, int] | None) -> Fields:
    """Which seats to add and to drop, and how many units of some pools the hold shall have."""
    return said(add_seats=add, drop_seats=drop, pools=pools)


def pay(
    *, method: str | None, gateway: str | None, capture: str | None, return_url: str | None, amount: int | None
) -> Fields:
    """How to pay. A card number is not sent to a gateway for cards; without `gateway` the server checks that."""
    if gateway is not None:
        check_method(method, gateway=gateway)
    return said(method=method, gateway=gateway, capture=capture, return_url=return_url, amount=amount)


def confirm(*, payment_id: str, payment_method: str | None) -> Fields:
    """What was paid elsewhere. A card number is not sent."""
    check_payment_method(payment_method)
    return said(payment_id=payment_id, payment_method=payment_method)


def cancel(
    *,
    refund: Literal["full", "none"] | int | None,
    seats: Sequence[str],
    pools: Mapping[str, int] | None,
    reason: str | None,
) -> Fields:
    """Which lines to undo (all without any), and what becomes of the money."""
    return said(refund=refund, seats=seats, pools=pools, reason=reason)


def said(**fields: Any) -> Fields:
    """The fields that have a value, as JSON has them: None and empty collections are left out."""
    return {name: _plain(value) for name, value in fields.items() if value is not None and value not in ([], {}, ())}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _new_seats(seats: Mapping[str, int] | Sequence[NewSeat] | None) -> list[Any]:
    if not isinstance(seats, Mapping):
        return list(seats or ())
    return [{"id": seat, "price": price} for seat, price in seats.items()]


def _new_pools(pools: Mapping[str, tuple[int, int]] | Sequence[NewPool] | None) -> list[Any]:
    if not isinstance(pools, Mapping):
        return list(pools or ())
    return [{"id": pool, "capacity": capacity, "price": price} for pool, (capacity, price) in pools.items()]


def _told(changed: SeatChange | PoolChange) -> Fields:
    return {name: value for name, value in msgspec.structs.asdict(changed).items() if value is not None}
