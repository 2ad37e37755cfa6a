"""The three ways Earmark fails, in one file.

A `Refusal` is the rules saying no: what was asked for was not done, and `transient` tells whether
the same request may succeed later. An `Outage` is a dependency that stayed silent, or more work
than can be done in time: nothing was decided, or the outcome is not known yet. A bug of ours is an
`assert`.

Errors carry facts; `earmark.api` turns them into sentences for buyers and engineers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


UNTOLD = frozenset({"transient", "lapses", "owners", "rows"})
"""Facts for the program that handles an error; messages leave them out."""


class EarmarkError(Exception):
    """Anything Earmark raises on purpose."""

    code: str = "error"
    transient: bool = False

    def __str__(self) -> str:
        said = (type(self).__doc__ or self.code).partition("\n")[0]
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts().items())
        return f"{said} ({facts})" if facts else said

    def facts(self) -> dict[str, Any]:
        """What is known about this failure, by name; absent facts are left out."""
        names = [name for name in getattr(self, "__dataclass_fields__", {}) if name not in UNTOLD]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Refusal(EarmarkError):
    """The rules say no: what was asked for was not done.

    A lapsed hold that the request met has expired all the same.
    """


class Outage(EarmarkError):
    """A dependency did not answer in time."""

    code = "unavailable"
    transient = True


@dataclass(kw_only=True, eq=False)
class EventUnknown(Refusal):
    """There is no such event."""

    code = "event_unknown"
    event_id: str


@dataclass(kw_only=True, eq=False)
class EventExists(Refusal):
    """An event with this id exists already."""

    code = "event_exists"
    event_id: str


@dataclass(kw_only=True, eq=False)
class SeatUnknown(Refusal):
    """The event has no such seats."""

    code = "seat_unknown"
    seats: Sequence[str]


@dataclass(kw_only=True, eq=False)
class PoolUnknown(Refusal):
    """The event has no such pools."""

    code = "pool_unknown"
    pools: Sequence[str]


@dataclass(kw_only=True, eq=False)
class BookingUnknown(Refusal):
    """There is no such booking, or it is another buyer's."""

    code = "booking_unknown"
    booking_id: str


@dataclass(kw_only=True, eq=False)
class ContactUnknown(Refusal):
    """This booking has no contact."""

    code = "contact_unknown"
    booking_id: str


@dataclass(kw_only=True, eq=False)
class WebhookUnknown(Refusal):
    """There is no such webhook, or it is of the other kind, test or live."""

    code = "webhook_unknown"
    webhook_id: str


@dataclass(kw_only=True, eq=False)
class DeliveryUnknown(Refusal):
    """This webhook has no such delivery in its log."""

    code = "delivery_unknown"
    delivery_id: str


@dataclass(kw_only=True, eq=False)
class ScanUnknown(Refusal):
    """This key has sent no scan under this nonce."""

    code = "scan_unknown"
    nonce: str


@dataclass(kw_only=True, eq=False)
class UndoRefused(Refusal):
    """This scan admitted no visitor, or is older than 15 minutes: it cannot be undone."""

    code = "undo_refused"
    why: str


@dataclass(kw_only=True, eq=False)
class WebhookDisabled(Refusal):
    """This webhook is disabled: nothing is sent to it."""

    code = "webhook_disabled"
    why: str


@dataclass(kw_only=True, eq=False)
class SeatsTaken(Refusal):
    """Seats in the claim are not free, so nothing was held."""

    code = "seats_taken"
    seats: Sequence[str]
    why: str | None = None
    yours: Mapping[str, str] | None = None
    transient: bool = False
    lapses: Mapping[str, float] | None = None
    """In how many seconds the hold on each seat ends, as far as the store saw it taken."""
    owners: Mapping[str, Any] | None = field(default=None, repr=False)
    """Whose each seat is, as far as the store saw it: for admission, and never sent to a caller."""


@dataclass(kw_only=True, eq=False)
class NoneAvailable(Refusal):
    """There are not so many free seats of that kind, or not side by side."""

    code = "none_available"
    asked: int
    available: int
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class PoolExhausted(Refusal):
    """The pool has fewer units left than were asked for."""

    code = "pool_exhausted"
    pool: str
    asked: int
    available: int
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class PriceChanged(Refusal):
    """The pool's price is another than the one that the booking's units are held for: one line has one price."""

    code = "price_changed"
    pool: str
    held_for: int
    price: int


@dataclass(kw_only=True, eq=False)
class TotalChanged(Refusal):
    """The hold costs another amount than the request names: it was changed since the buyer saw it."""

    code = "total_changed"
    total: int
    asked: int


@dataclass(kw_only=True, eq=False)
class CapacityInUse(Refusal):
    """The new capacity is below what is held and sold already."""

    code = "capacity_in_use"
    pool: str
    capacity: int
    in_use: int
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class LimitExceeded(Refusal):
    """The buyer would have more of this event than one buyer may."""

    code = "limit_exceeded"
    limit: int
    have: int
    asked: int
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class SaleClosed(Refusal):
    """The event is not on sale now."""

    code = "sale_closed"
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class ExtensionRefused(Refusal):
    """The hold has reached its longest life."""

    code = "extension_refused"
    expires_at: datetime


@dataclass(kw_only=True, eq=False)
class BookingExpired(Refusal):
    """The hold ran out before this request was decided."""

    code = "booking_expired"
    expires_at: datetime


@dataclass(kw_only=True, eq=False)
class BookingResolved(Refusal):
    """The booking is resolved, and this verb cannot change how."""

    code = "booking_resolved"
    state: str


@dataclass(kw_only=True, eq=False)
class BookingNotConfirmed(Refusal):
    """Only a confirmed booking can be cancelled or refunded, and has tickets."""

    code = "booking_not_confirmed"
    state: str


@dataclass(kw_only=True, eq=False)
class PaymentInProgress(Refusal):
    """A payment for this booking is under way."""

    code = "payment_in_progress"
    transient: bool = True


@dataclass(kw_only=True, eq=False)
class PaymentUsed(Refusal):
    """This payment has confirmed another booking."""

    code = "payment_used"
    payment_id: str


@dataclass(kw_only=True, eq=False)
class PaymentDeclined(Refusal):
    """The gateway said no to this payment."""

    code = "payment_declined"
    state: str
    expires_in: float | None = None
    why: str | None = None


@dataclass(kw_only=True, eq=False)
class TooManyDeclines(Refusal):
    """This hold, or this buyer or address within an hour, was declined as often as is allowed; no gateway was asked."""

    code = "too_many_declines"
    per: str
    """`hold`, `buyer` or `address`."""
    limit: int
    retry_in: float | None = None
    """In how many seconds the buyer may try again; None where the hold may not be paid any more."""
    transient: bool = False


@dataclass(kw_only=True, eq=False)
class RefundRefused(Refusal):
    """Less than that is left to refund."""

    code = "refund_refused"
    available: int
    asked: int


@dataclass(kw_only=True, eq=False)
class CancelRefused(Refusal):
    """The event's rules do not let the buyer cancel this booking, or not any more."""

    code = "cancel_refused"
    why: str
    """`not_offered`, `no_start`, `paid_elsewhere`, `checked_in` or `too_late`."""
    until: datetime | None = None
    """When buyers may cancel no longer, where the event says so."""


@dataclass(kw_only=True, eq=False)
class IdempotencyInProgress(Refusal):
    """The first request with this key is still being decided."""

    code = "idempotency_in_progress"
    transient: bool = True


@dataclass(kw_only=True, eq=False)
class IdempotencyMismatch(Refusal):
    """This key was used for a different request."""

    code = "idempotency_mismatch"


@dataclass(kw_only=True, eq=False)
class InvalidRequest(Refusal):
    """The request does not make sense as it stands."""

    code = "invalid_request"
    errors: Sequence[Mapping[str, str]]

    @classmethod
    def at(cls, path: str, message: str) -> InvalidRequest:
        """One error, at one field of the request."""
        return cls(errors=({"path": path, "message": message},))


@dataclass(kw_only=True, eq=False)
class Unauthorized(Refusal):
    """The request shows no valid key or token."""

    code = "unauthorized"


@dataclass(kw_only=True, eq=False)
class Forbidden(Refusal):
    """This key or token may not do that."""

    code = "forbidden"
    needs: str | None = None


@dataclass(kw_only=True, eq=False)
class NotFound(Refusal):
    """There is nothing at this address."""

    code = "not_found"


@dataclass(kw_only=True, eq=False)
class Overloaded(Outage):
    """More requests wait than can be answered in time, or a row stayed locked; nothing was done."""

    code = "overloaded"


@dataclass(kw_only=True, eq=False)
class OutcomeUnknown(Outage):
    """The store did not say whether the change was kept."""

    code = "outcome_unknown"


@dataclass(kw_only=True, eq=False)
class GatewayUnavailable(Outage):
    """The gateway refuses this shop, for a reason that only the shop can mend; no money was asked for."""

    code = "gateway_unavailable"
    gateway: str


@dataclass(kw_only=True, eq=False)
class StoreUnavailable(Outage):
    """The database cannot be reached."""

    code = "unavailable"
    because: str


@dataclass(kw_only=True, eq=False)
class NotWritable(StoreUnavailable):
    """The database can be read, and keeps nothing that is written."""

    why: str


@dataclass(kw_only=True, eq=False)
class RowBusy(Overloaded):
    """A row that this request needs stayed locked for too long; nothing was changed."""

    because: str
    rows: Mapping[tuple[str, object], tuple[str, object]] = field(default_factory=dict)
    """Rows that requests may name, each with the locked row behind it, as far as that could be found out."""


@dataclass(kw_only=True, eq=False)
class Unreachable(Outage):
    """The service gave no answer in time; what was asked of it with a key may be asked again with that key."""

    url: str
    because: str
    key: str | None = None


@dataclass(kw_only=True, eq=False)
class SetupError(EarmarkError):
    """Earmark cannot start as it is set up."""

    code = "setup"
    problem: str

    def __str__(self) -> str:
        return self.problem
