"""The sandbox's payment methods that tests use most."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """Each is a key of `earmark.sandbox.payment_methods.METHODS`."""

    VISA = "pm_card_visa"
    DECLINED = "pm_card_declined"
    INSUFFICIENT_FUNDS = "pm_card_insufficient_funds"
    AUTHENTICATION_REQUIRED = "pm_card_authenticationRequired"
    """Waits until the buyer acts."""
    PROCESSING = "pm_card_processing"
    """Waits until the bank decides."""
    REFUND_FAIL = "pm_card_refund_fail"
    REFUND_PENDING = "pm_card_refund_pending"
    """Its refunds wait until the bank decides."""
    CAPTURE_FAIL = "pm_card_capture_fail"
    """Authorised, and its capture is refused."""
    DISPUTE = "pm_card_dispute"
    """Captured, and disputed at the same time."""
