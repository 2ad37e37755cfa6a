"""The checks that the bank makes before it changes anything. Each raises the refusal with its code and message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.money import AMOUNT_MAX, is_currency
from earmark.sandbox.model import BankIntent, BankRefusal, IntentStatus, Problem, RefusalKind, invalid
from earmark.sandbox.payment_methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA_MAX = 50


def check_amount(amount: int) -> None:
    """Refuse an amount outside the allowed range of minor units."""
    if not 1 <= amount <= AMOUNT_MAX:
        raise invalid(f"An amount is a whole number from 1 to {AMOUNT_MAX}.", param="amount")


def check_currency(currency: str) -> None:
    """Refuse a currency that is not in ISO 4217."""
    if not is_currency(currency):
        raise invalid(f"Invalid currency: {currency}", param="currency")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse more than `METADATA_MAX` pairs of metadata."""
    if len(metadata) > METADATA_MAX:
        raise invalid(f"Metadata has at most {METADATA_MAX} pairs.", param="metadata")


def check_method(method: str | None) -> None:
    """Refuse a missing or unknown payment method."""
    if method is None:
        raise invalid("A payment method is needed to confirm.", code="parameter_missing", param="payment_method")
    if method not in METHODS:
        raise invalid(f"No such PaymentMethod: '{method}'", code="resource_missing", param="payment_method")


def check_refund(intent: BankIntent, amount: int | None) -> None:
    """Refuse a refund of more than what is left of the captured amount, or of a disputed charge."""

    def refusal(code: str, message: str) -> BankRefusal:
        return BankRefusal(RefusalKind.INVALID, Problem(code=code, message=message), intent=intent, kept=True)

    if intent.status is not IntentStatus.SUCCEEDED:
        raise refusal(
            "charge_not_refundable", f"The payment {intent.id} is {intent.status}: there is nothing to refund."
        )
    if intent.disputed:
        raise refusal("charge_disputed", "The charge is disputed and cannot be refunded.")
    if intent.left == 0:
        raise refusal("charge_already_refunded", "The charge has been refunded already.")
    if amount is not None and amount > intent.left:
        raise refusal("amount_too_large", f"The refund of {amount} is more than the {intent.left} that is left.")


def unexpected(intent: BankIntent, verb: str) -> BankRefusal:
    """The refusal of a change that the status of the intent does not allow."""
    message = f"This PaymentIntent's status is {intent.status}, so it could not be {verb}."
    problem = Problem(code="payment_intent_unexpected_state", message=message)
    return BankRefusal(RefusalKind.INVALID, problem, intent=intent, kept=True)
