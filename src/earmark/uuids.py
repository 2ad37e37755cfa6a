"""New identities: UUIDv7, which sort by the time they were made and so keep indexes tidy."""

from __future__ import annotations

from uuid import UUID

import msgspec
import uuid_utils

from earmark.domain.ids import BookingId, DeliveryId, EntryId, PaymentId, RefundId, WebhookId

_made_of = msgspec.convert


def uuid7() -> UUID:
    """A new one, as Python's own type. By way of its bytes this takes half the time that `uuid_utils.compat` does."""
    return _made_of(uuid_utils.uuid7().bytes, UUID)


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
