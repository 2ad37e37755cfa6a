"""Names for the things that are easily confused when they are all strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NewType
from uuid import UUID

if TYPE_CHECKING:
    from earmark.domain.live_or_test_mode import Mode

EventId = NewType("EventId", str)
SeatId = NewType("SeatId", str)
PoolId = NewType("PoolId", str)
Buyer = NewType("Buyer", str)
BookingId = NewType("BookingId", UUID)
EntryId = NewType("EntryId", UUID)
PaymentId = NewType("PaymentId", UUID)
RefundId = NewType("RefundId", UUID)
KeyId = NewType("KeyId", str)
WebhookId = NewType("WebhookId", UUID)
DeliveryId = NewType("DeliveryId", UUID)
TicketId = NewType("TicketId", UUID)


class OutsidePaymentRef(NamedTuple):
    """A shop's own reference of a payment, in one mode. Sorts in the order in which references are taken."""

    payment_id: str
    mode: Mode


class SeatRef(NamedTuple):
    """One seat of one event. Sorts in the order in which seats are locked."""

    event_id: EventId
    seat_id: SeatId


class PoolRef(NamedTuple):
    """One pool of one event. Sorts in the order in which pools are locked."""

    event_id: EventId
    pool_id: PoolId


class TotalRef(NamedTuple):
    """One buyer's total at one event. Sorts in the order in which totals are locked."""

    event_id: EventId
    buyer: Buyer
