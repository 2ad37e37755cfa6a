"""What to pay with: one table from the name of a test method to how the bank treats it.

The names are Stripe's documented test payment methods (https://docs.stripe.com/testing), so that a test of a shop runs
unchanged against the sandbox and against Stripe's test side, and a few of the sandbox's own for what Stripe has no
card for. The table in docs/reference/sandbox.md is written by `rows`, and a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.model import CAPTURE_REFUSED, DECLINED, INSUFFICIENT_FUNDS, Problem, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "pm_card_"


class Refunds(StrEnum):
    """What becomes of the refunds of a payment."""

    MADE = "made"
    REFUSED = "refused"
    """At once."""
    WAIT = "wait"
    """Until the bank is told to decide."""
    MADE_LATER = "made later"
    """Pending, and made after a while."""
    FAIL_LATER = "fail later"
    """Made, and failed after a while."""


class Objection(msgspec.Struct, frozen=True, kw_only=True):
    """How a buyer asks their bank for the money back."""

    reason: str = "fraudulent"
    inquiry: bool = False
    """Only a question so far: the money stays, and can be refunded."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """How the bank treats one method."""

    does: str
    """In a reader's words."""
    brand: str = "visa"
    country: str = "US"
    funding: str = "credit"
    decline: Problem | None = None
    """Why it is declined at once."""
    wait: Status | None = None
    """What it waits in before there is money."""
    after: Problem | None = None
    """Why it is declined after the buyer has authenticated."""
    capture: Problem | None = None
    """Why the capture of what was set aside is refused."""
    refunds: Refunds = Refunds.MADE
    disputes: tuple[Objection, ...] = ()
    """What follows at once when the money was taken."""
    warned: bool = False
    """Whether the buyer's bank warns of fraud when the money was taken."""
    risk: str = "normal"
    own: bool = False
    """Whether it is a name of the sandbox's own, which Stripe does not know."""

    @property
    def no(self) -> Problem | None:
        """The decline that it ends in, sooner or later."""
        return self.decline or self.after or self.capture


def _declined(decline_code: str, message: str) -> Problem:
    return Problem(code="card_declined", decline_code=decline_code, message=message)


LOST = _declined("lost_card", "The card is reported lost.")
STOLEN = _declined("stolen_card", "The card is reported stolen.")
VELOCITY = _declined("card_velocity_exceeded", "The card was used too often, or for too much.")
BLOCKED = _declined("fraudulent", "The payment was blocked: it looks like fraud.")
EXPIRED = Problem(code="expired_card", message="The card has expired.")
INCORRECT_CVC = Problem(code="incorrect_cvc", message="The card's security code is incorrect.")
PROCESSING_ERROR = Problem(code="processing_error", message="The card could not be processed. Try again later.")

PAID = "is paid"
BRANDS = {
    "visa": Card(does=PAID),
    "visa_debit": Card(does=PAID, funding="debit"),
    "mastercard": Card(does=PAID, brand="mastercard"),
    "mastercard_debit": Card(does=PAID, brand="mastercard", funding="debit"),
    "mastercard_prepaid": Card(does=PAID, brand="mastercard", funding="prepaid"),
    "amex": Card(does=PAID, brand="amex"),
    "discover": Card(does=PAID, brand="discover"),
    "diners": Card(does=PAID, brand="diners"),
    "jcb": Card(does=PAID, brand="jcb", country="JP"),
    "unionpay": Card(does=PAID, brand="unionpay", country="CN"),
    "debit_visaFsaProductCode": Card(does=PAID, funding="debit"),
    "debit_visaHsaProductCode": Card(does=PAID, funding="debit"),
    "mastercard_debit_mastercardFsaProductCode": Card(does=PAID, brand="mastercard", funding="debit"),
    "bypassPending": Card(does=PAID),
    "bypassPendingInternational": Card(does=PAID, country="IE"),
}
COUNTRIES = {
    code: Card(does=PAID, country=code.upper())
    for code in (
        *("us", "ar", "br", "ca", "cl", "co", "cr", "ec", "mx", "pa", "py", "pe", "uy"),
        *("ae", "at", "be", "bg", "by", "hr", "cy", "cz", "dk", "ee", "fi", "fr", "de", "gi", "gr", "hu", "ie", "it"),
        *("lv", "li", "lt", "lu", "mt", "nl", "no", "pl", "pt", "ro", "si", "sk", "es", "se", "ch", "gb"),
        *("au", "cn", "hk", "in", "jp", "my", "nz", "sg", "tw"),
    )
} | {
    "ae_mastercard": Card(does=PAID, country="AE", brand="mastercard"),
    "gb_debit": Card(does=PAID, country="GB", funding="debit"),
    "gb_mastercard": Card(does=PAID, country="GB", brand="mastercard"),
    "th_credit": Card(does=PAID, country="TH"),
    "th_debit": Card(does=PAID, country="TH", funding="debit"),
}
NO = "is declined"
DECLINES = {
    "visa_chargeDeclined": Card(does=NO, decline=DECLINED),
    "visa_chargeDeclinedInsufficientFunds": Card(does=NO, decline=INSUFFICIENT_FUNDS),
    "visa_chargeDeclinedLostCard": Card(does=NO, decline=LOST),
    "visa_chargeDeclinedStolenCard": Card(does=NO, decline=STOLEN),
    "visa_chargeDeclinedVelocityLimitExceeded": Card(does=NO, decline=VELOCITY),
    "chargeDeclinedExpiredCard": Card(does=NO, decline=EXPIRED),
    "chargeDeclinedIncorrectCvc": Card(does=NO, decline=INCORRECT_CVC),
    "chargeDeclinedProcessingError": Card(does=NO, decline=PROCESSING_ERROR),
    "chargeCustomerFail": Card(does=NO, decline=DECLINED),
    # Spellings of older pages of Stripe's, which are still met.
    "chargeDeclined": Card(does=NO, decline=DECLINED),
    "chargeDeclinedInsufficientFunds": Card(does=NO, decline=INSUFFICIENT_FUNDS),
    "chargeDeclinedLostCard": Card(does=NO, decline=LOST),
    "chargeDeclinedStolenCard": Card(does=NO, decline=STOLEN),
    "chargeDeclinedFraudulent": Card(does=NO, decline=BLOCKED),
}
RISKS = {
    "radarBlock": Card(does="is blocked", decline=BLOCKED, risk="highest"),
    "riskLevelHighest": Card(does="is blocked, as Stripe's default rules do", decline=BLOCKED, risk="highest"),
    "riskLevelElevated": Card(does=PAID, risk="elevated"),
    "cvcCheckFail": Card(does=PAID),
    "cvcCheckFailElevatedRisk": Card(does=PAID, risk="elevated"),
    "avsZipFail": Card(does=PAID),
    "avsZipFailElevatedRisk": Card(does=PAID, risk="elevated"),
    "avsLine1Fail": Card(does=PAID),
    "avsFail": Card(does=PAID),
    "avsUnchecked": Card(does=PAID),
}
ASKS = "asks the buyer to authenticate, then is paid"
ASKS_THEN_NO = "asks the buyer to authenticate, then is declined"
ACTION = Status.REQUIRES_ACTION
AUTHENTICATIONS = {
    "authenticationRequired": Card(does=ASKS, wait=ACTION, country="DE"),
    "authenticationRequiredOnSetup": Card(does=ASKS, wait=ACTION, country="FR"),
    "authenticationRequiredSetupForOffSession": Card(does=ASKS, wait=ACTION, country="IT"),
    "authenticationRequiredChargeDeclinedInsufficientFunds": Card(
        does=ASKS_THEN_NO, wait=ACTION, after=INSUFFICIENT_FUNDS, country="GB"
    ),
    "threeDSecure2Required": Card(does=ASKS, wait=ACTION, country="IE"),
    "threeDSecureRequired": Card(does=ASKS, wait=ACTION),
    "threeDSecureRequiredChargeDeclined": Card(does=ASKS_THEN_NO, wait=ACTION, after=DECLINED),
    "threeDSecureRequiredProcessingError": Card(does="is declined: the buyer cannot be asked", decline=DECLINED),
    "threeDSecureOptional": Card(does="is paid without asking"),
    "threeDSecureOptionalProcessingError": Card(does="is paid without asking"),
    "amex_threeDSecureNotSupported": Card(does="is paid without asking", brand="amex"),
}
FRAUDULENT = Objection()
TWO_PARTS = (FRAUDULENT, Objection(reason="product_not_received"))
AFTERWARDS = {
    "pendingRefund": Card(does="is paid; a refund is pending, and made later", refunds=Refunds.MADE_LATER),
    "refundFail": Card(does="is paid; a refund is made, and fails later", refunds=Refunds.FAIL_LATER),
    "createDispute": Card(does="is paid, and disputed: `fraudulent`", disputes=(FRAUDULENT,)),
    "createDisputeProductNotReceived": Card(
        does="is paid, and disputed: `product_not_received`", disputes=(Objection(reason="product_not_received"),)
    ),
    "createDisputeInquiry": Card(
        does="is paid, and the buyer's bank asks why: the money stays", disputes=(Objection(inquiry=True),)
    ),
    "createMultipleDisputes": Card(does="is paid, and disputed in two parts", disputes=TWO_PARTS),
    "createCe3EligibleDispute": Card(does="is paid, and disputed: `fraudulent`", disputes=(FRAUDULENT,)),
    "createComplianceDispute": Card(
        does="is paid, and disputed: `noncompliant`", disputes=(Objection(reason="noncompliant"),)
    ),
    "createIssuerFraudRecord": Card(does="is paid, and the buyer's bank warns of fraud", warned=True),
}
OURS = {
    "declined": Card(does=NO, decline=DECLINED, own=True),
    "insufficient_funds": Card(does=NO, decline=INSUFFICIENT_FUNDS, own=True),
    "processing": Card(does="waits until the bank is told to decide", wait=Status.PROCESSING, own=True),
    "capture_fail": Card(does="is authorised, and its capture is refused", capture=CAPTURE_REFUSED, own=True),
    "refund_fail": Card(does="is paid; a refund is refused at once", refunds=Refunds.REFUSED, own=True),
    "refund_pending": Card(
        does="is paid; a refund waits until the bank is told to decide", refunds=Refunds.WAIT, own=True
    ),
    "dispute": Card(does="is paid, and disputed: `fraudulent`", disputes=(FRAUDULENT,), own=True),
}
GROUPS = {
    "Brands": BRANDS,
    "Countries": COUNTRIES,
    "Declines": DECLINES,
    "Risk": RISKS,
    "3-D Secure": AUTHENTICATIONS,
    "Refunds and disputes": AFTERWARDS,
    "The sandbox's own": OURS,
}
METHODS: dict[str, Card] = {f"{PREFIX}{name}": card for group in GROUPS.values() for name, card in group.items()}


def rows() -> Iterator[str]:
    """The table as Markdown, line by line: methods of a group that are treated alike share a line."""
    yield "| group | method | what happens | `code` | `decline_code` |"
    yield "|---|---|---|---|---|"
    for group, cards in GROUPS.items():
        alike: dict[tuple[str, str, str], list[str]] = {}
        for name, card in cards.items():
            said = card.no
            code = f"`{said.code}`" if said else ""
            decline_code = f"`{said.decline_code}`" if said and said.decline_code else ""
            alike.setdefault((card.does, code, decline_code), []).append(f"`{PREFIX}{name}`")
        for (does, code, decline_code), names in alike.items():
            yield f"| {group} | {', '.join(names)} | {does} | {code} | {decline_code} |"


if __name__ == "__main__":
    print(*rows(), sep="\n")  # noqa: T201 (what the reference shows)
