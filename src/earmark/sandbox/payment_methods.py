"""The test payment methods: one table from the name of a method to how the bank treats it.

The names are Stripe's documented test payment methods (https://docs.stripe.com/testing), so that a test of a shop runs
unchanged against the sandbox and against Stripe's test mode, and a few of the sandbox's own for cases without a test
card of Stripe's. The table in docs/reference/sandbox.md is written by `rows`, and a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.model import CAPTURE_REFUSED, DECLINED, INSUFFICIENT_FUNDS, IntentStatus, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "pm_card_"


class RefundBehaviour(StrEnum):
    """How the bank treats the refunds of a payment."""

    MADE = "made"
    REFUSED = "refused"
    """Refused in the call."""
    WAIT = "wait"
    """Pending until `Bank.decide` is called."""
    MADE_LATER = "made later"
    """Pending, and made after `REFUND_SECONDS`."""
    FAIL_LATER = "fail later"
    """Made, and failed after `REFUND_SECONDS`."""


class ScriptedDispute(msgspec.Struct, frozen=True, kw_only=True):
    """A dispute that follows a capture with this method."""

    reason: str = "fraudulent"
    inquiry: bool = False
    """The buyer's bank only inquires: the money stays with the shop and can be refunded."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """How the bank treats one method."""

    does: str
    """What happens, for the reference page."""
    brand: str = "visa"
    last4: str | None = None
    """The last digits of its number, where Stripe's page gives one and a checkout page offers the card."""
    country: str = "US"
    funding: str = "credit"
    decline: Problem | None = None
    """Why the confirmation is declined."""
    wait: IntentStatus | None = None
    """The status in which the intent waits before it is authorised."""
    decided_later: bool = False
    """Whether what is processing is authorised after `DECISION_SECONDS`, and not only when a test decides it."""
    after: Problem | None = None
    """Why it is declined although the buyer has authenticated."""
    capture: Problem | None = None
    """Why the capture is refused."""
    refunds: RefundBehaviour = RefundBehaviour.MADE
    disputes: tuple[ScriptedDispute, ...] = ()
    """The disputes that follow the capture."""
    warned: bool = False
    """Whether the buyer's bank warns of fraud after the capture."""
    risk: str = "normal"
    own: bool = False
    """Whether only the sandbox has this method, and not Stripe."""

    @property
    def final_decline(self) -> Problem | None:
        """Why a payment with it is declined at the end, if it is."""
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

DECISION_SECONDS = 10
"""After how many seconds a payment that is decided later is decided."""

PAID = "is paid"
BRANDS = {
    "visa": Card(does=PAID, last4="4242"),
    "visa_debit": Card(does=PAID, funding="debit"),
    "mastercard": Card(does=PAID, last4="4444", brand="mastercard"),
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
    "visa_chargeDeclined": Card(does=NO, last4="0002", decline=DECLINED),
    "visa_chargeDeclinedInsufficientFunds": Card(does=NO, last4="9995", decline=INSUFFICIENT_FUNDS),
    "visa_chargeDeclinedLostCard": Card(does=NO, last4="9987", decline=LOST),
    "visa_chargeDeclinedStolenCard": Card(does=NO, last4="9979", decline=STOLEN),
    "visa_chargeDeclinedVelocityLimitExceeded": Card(does=NO, decline=VELOCITY),
    "chargeDeclinedExpiredCard": Card(does=NO, last4="0069", decline=EXPIRED),
    "chargeDeclinedIncorrectCvc": Card(does=NO, last4="0127", decline=INCORRECT_CVC),
    "chargeDeclinedProcessingError": Card(does=NO, last4="0119", decline=PROCESSING_ERROR),
    "chargeCustomerFail": Card(does=NO, decline=DECLINED),
    # Spellings of older pages of Stripe's, which are still in use.
    "chargeDeclined": Card(does=NO, decline=DECLINED),
    "chargeDeclinedInsufficientFunds": Card(does=NO, decline=INSUFFICIENT_FUNDS),
    "chargeDeclinedLostCard": Card(does=NO, decline=LOST),
    "chargeDeclinedStolenCard": Card(does=NO, decline=STOLEN),
    "chargeDeclinedFraudulent": Card(does=NO, decline=BLOCKED),
}
RISKS = {
    "radarBlock": Card(does="is blocked", last4="0019", decline=BLOCKED, risk="highest"),
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
AUTHENTICATES_THEN_PAID = "asks the buyer to authenticate, then is paid"
AUTHENTICATES_THEN_DECLINED = "asks the buyer to authenticate, then is declined"
ACTION = IntentStatus.REQUIRES_ACTION
AUTHENTICATIONS = {
    "authenticationRequired": Card(does=AUTHENTICATES_THEN_PAID, last4="3184", wait=ACTION, country="DE"),
    "authenticationRequiredOnSetup": Card(does=AUTHENTICATES_THEN_PAID, wait=ACTION, country="FR"),
    "authenticationRequiredSetupForOffSession": Card(does=AUTHENTICATES_THEN_PAID, wait=ACTION, country="IT"),
    "authenticationRequiredChargeDeclinedInsufficientFunds": Card(
        does=AUTHENTICATES_THEN_DECLINED, wait=ACTION, after=INSUFFICIENT_FUNDS, country="GB"
    ),
    "threeDSecure2Required": Card(does=AUTHENTICATES_THEN_PAID, last4="3220", wait=ACTION, country="IE"),
    "threeDSecureRequired": Card(does=AUTHENTICATES_THEN_PAID, wait=ACTION),
    "threeDSecureRequiredChargeDeclined": Card(
        does=AUTHENTICATES_THEN_DECLINED, last4="1629", wait=ACTION, after=DECLINED
    ),
    "threeDSecureRequiredProcessingError": Card(
        does="is declined: authentication is not available", last4="1280", decline=DECLINED
    ),
    "threeDSecureOptional": Card(does="is paid without authentication", last4="3055"),
    "threeDSecureOptionalProcessingError": Card(does="is paid without authentication"),
    "amex_threeDSecureNotSupported": Card(does="is paid without authentication", brand="amex"),
}
FRAUDULENT = ScriptedDispute()
TWO_PARTS = (FRAUDULENT, ScriptedDispute(reason="product_not_received"))
AFTERWARDS = {
    "pendingRefund": Card(
        does="is paid; a refund is pending, and made later", last4="7726", refunds=RefundBehaviour.MADE_LATER
    ),
    "refundFail": Card(
        does="is paid; a refund is made, and fails later", last4="5126", refunds=RefundBehaviour.FAIL_LATER
    ),
    "createDispute": Card(does="is paid, and disputed: `fraudulent`", last4="0259", disputes=(FRAUDULENT,)),
    "createDisputeProductNotReceived": Card(
        does="is paid, and disputed: `product_not_received`", disputes=(ScriptedDispute(reason="product_not_received"),)
    ),
    "createDisputeInquiry": Card(
        does="is paid, and the buyer's bank asks why: the money stays", disputes=(ScriptedDispute(inquiry=True),)
    ),
    "createMultipleDisputes": Card(does="is paid, and disputed in two parts", disputes=TWO_PARTS),
    "createCe3EligibleDispute": Card(does="is paid, and disputed: `fraudulent`", disputes=(FRAUDULENT,)),
    "createComplianceDispute": Card(
        does="is paid, and disputed: `noncompliant`", disputes=(ScriptedDispute(reason="noncompliant"),)
    ),
    "createIssuerFraudRecord": Card(does="is paid, and the buyer's bank warns of fraud", warned=True),
}
OURS = {
    "declined": Card(does=NO, decline=DECLINED, own=True),
    "insufficient_funds": Card(does=NO, decline=INSUFFICIENT_FUNDS, own=True),
    "processing": Card(does="waits until a test decides it", wait=IntentStatus.PROCESSING, own=True),
    "processing_then_paid": Card(
        does="is being processed for ten seconds, then is paid",
        wait=IntentStatus.PROCESSING,
        decided_later=True,
        own=True,
    ),
    "capture_fail": Card(does="is authorised, and its capture is refused", capture=CAPTURE_REFUSED, own=True),
    "refund_fail": Card(does="is paid; a refund is refused at once", refunds=RefundBehaviour.REFUSED, own=True),
    "refund_pending": Card(
        does="is paid; a refund waits until a test decides it", refunds=RefundBehaviour.WAIT, own=True
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


class OfferedCard(msgspec.Struct, frozen=True, kw_only=True):
    """A test card that a checkout page offers a buyer."""

    method: str
    brand: str
    last4: str | None
    """None of the cards that only the sandbox has: they have no number."""
    does: str


_OFFERED = {
    "visa": "pays at once",
    "mastercard": "pays at once",
    "threeDSecure2Required": "asks you to authenticate, then pays",
    "authenticationRequired": "always asks you to authenticate, then pays",
    "threeDSecureOptional": "could ask you to authenticate and does not; pays",
    "visa_chargeDeclined": "is declined, without a reason",
    "visa_chargeDeclinedInsufficientFunds": "is declined: too little money",
    "visa_chargeDeclinedLostCard": "is declined: reported lost",
    "visa_chargeDeclinedStolenCard": "is declined: reported stolen",
    "chargeDeclinedExpiredCard": "is declined: expired",
    "chargeDeclinedIncorrectCvc": "is declined: wrong security code",
    "chargeDeclinedProcessingError": "is declined: the bank could not process it",
    "radarBlock": "is blocked as suspected fraud",
    "threeDSecureRequiredChargeDeclined": "asks you to authenticate, then is declined",
    "threeDSecureRequiredProcessingError": "needs authentication, which is not available; is declined",
    "processing_then_paid": "is processed for ten seconds, then pays",
    "processing": "stays in processing: the seats are kept until time is up",
    "capture_fail": "is accepted, then its money cannot be collected: the booking is cancelled",
    "pendingRefund": "pays; a refund takes a minute",
    "refundFail": "pays; a refund is made, and fails a minute later",
    "createDispute": "pays; then the buyer disputes it",
}
OFFERED = tuple(
    OfferedCard(
        method=f"{PREFIX}{name}", brand=METHODS[PREFIX + name].brand, last4=METHODS[PREFIX + name].last4, does=does
    )
    for name, does in _OFFERED.items()
)
"""The cards that a checkout page offers, in this order; `does` is said to the buyer."""


def rows() -> Iterator[str]:
    """The lines of the table in Markdown: methods of one group that are treated alike share a line."""
    yield "| group | method | what happens | `code` | `decline_code` |"
    yield "|---|---|---|---|---|"
    for group, cards in GROUPS.items():
        alike: dict[tuple[str, str, str], list[str]] = {}
        for name, card in cards.items():
            decline = card.final_decline
            code = f"`{decline.code}`" if decline else ""
            decline_code = f"`{decline.decline_code}`" if decline and decline.decline_code else ""
            alike.setdefault((card.does, code, decline_code), []).append(f"`{PREFIX}{name}`")
        for (does, code, decline_code), names in alike.items():
            yield f"| {group} | {', '.join(names)} | {does} | {code} | {decline_code} |"


def offered_rows() -> Iterator[str]:
    """The lines of the table of the cards that a checkout page offers, in Markdown."""
    yield "| method | card | what the buyer reads |"
    yield "|---|---|---|"
    for card in OFFERED:
        number = f"{card.brand} …{card.last4}" if card.last4 else "no number"
        yield f"| `{card.method}` | {number} | {card.does} |"


if __name__ == "__main__":
    print(*rows(), "", *offered_rows(), sep="\n")  # noqa: T201 (what the reference shows)
