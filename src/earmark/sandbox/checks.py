"""What the bank refuses before it does anything, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.money import AMOUNT_MAX, is_currency
from earmark.sandbox.methods import METHODS
from earmark.sandbox.model import Intent, Kind, Problem, Refused, Status, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA_MAX = 50


def check_amount(amount: int) -> None:
    """An amount is a whole number of minor units."""
    if not 1 <= amount <= AMOUNT_MAX:
        raise invalid(f"An amount is a whole number from 1 to {AMOUNT_MAX}.", param="amount")


def check_currency(currency: str) -> None:
    """A currency is one of ISO 4217."""
    if not is_currency(currency):
        raise invalid(f"Invalid currency: {currency}", param="currency")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """There is room for so many pairs."""
    if len(metadata) > METADATA_MAX:
        raise invalid(f"At most {METADATA_MAX} pairs of metadata are kept.", param="metadata")


def check_method(method: str | None) -> None:
    """There must be one to pay with, and the bank must know it."""
    if method is None:
        raise invalid("A payment method is needed to confirm.", code="parameter_missing", param="payment_method")
    if method not in METHODS:
        raise invalid(f"No such PaymentMethod: '{method}'", code="resource_missing", param="payment_method")


def check_refund(intent: Intent, amount: int | None) -> None:
    """Only what was captured can go back, only once, and only while nobody disputes it."""

    def no(code: str, message: str) -> Refused:
        return Refused(Kind.INVALID, Problem(code=code, message=message), intent=intent, kept=True)

    if intent.status is not Status.SUCCEEDED:
        raise no("charge_not_refundable", f"The payment {intent.id} is {intent.status}: there is nothing to refund.")
    if intent.disputed:
        raise no("charge_disputed", "The charge is disputed and cannot be refunded.")
    if intent.left == 0:
        raise no("charge_already_refunded", "The charge has been refunded already.")
    if amount is not None and amount > intent.left:
        raise no("amount_too_large", f"The refund of {amount} is more than the {intent.left} that is left.")


def unexpected(intent: Intent, verb: str) -> Refused:
    """An intent that stands where this cannot be done to it, any more or yet."""
    message = f"This PaymentIntent's status is {intent.status}, so it could not be {verb}."
    problem = Problem(code="payment_intent_unexpected_state", message=message)
    return Refused(Kind.INVALID, problem, intent=intent, kept=True)
