"""New identities: UUIDv7, which sort by the time they were made and so keep indexes tidy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uuid_utils.compat import uuid7

from earmark.domain.ids import BookingId, DeliveryId, EntryId, PaymentId, RefundId, WebhookId

if TYPE_CHECKING:
    from uuid import UUID


class Uuid7Ids:
    """Time-ordered and, for whoever does not know them, unguessable."""

    def booking_id(self) -> BookingId:
        """For a new booking."""
        return BookingId(uuid7())

    def entry_id(self) -> EntryId:
        """For a new journal entry."""
        return EntryId(uuid7())

    def payment_id(self) -> PaymentId:
        """For a new payment."""
        return PaymentId(uuid7())

    def refund_id(self) -> RefundId:
        """For a new refund."""
        return RefundId(uuid7())


def new_webhook_id() -> WebhookId:
    """For a new webhook."""
    return WebhookId(uuid7())


def new_delivery_id() -> DeliveryId:
    """For a delivery that no entry tells of."""
    return DeliveryId(uuid7())


def new_uuid() -> UUID:
    """For whatever else needs one."""
    return uuid7()
