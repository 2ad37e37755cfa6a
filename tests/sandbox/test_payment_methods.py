"""Every test payment method, used by Stripe's official client over HTTP. With -s the test prints its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import stripe

from earmark.sandbox import payment_methods
from earmark.sandbox.bank import REFUND_SECONDS
from earmark.sandbox.model import IntentStatus
from earmark.sandbox.payment_methods import DECISION_SECONDS, METHODS, OFFERED

from .support import authorised, client_of, create, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock
    from earmark.sandbox.bank import Bank
    from earmark.sandbox.server import RunningSandbox

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sandbox.md"
PAID = "authorised, captured, refund succeeded"
ASKS = f"requires_action, {PAID}"


def test_the_names_of_methods_are_in_one_module() -> None:
    """A second list would become outdated."""
    package = Path(payment_methods.__file__).parent
    naming = {file.name for file in package.glob("*.py") if payment_methods.PREFIX in file.read_text()}
    assert naming == {"payment_methods.py"}


def no(code: str, decline_code: str | None = None) -> str:
    return f"declined {code} {decline_code}"


EXPECTED = {
    "visa_chargeDeclined": no("card_declined", "generic_decline"),
    "visa_chargeDeclinedInsufficientFunds": no("card_declined", "insufficient_funds"),
    "visa_chargeDeclinedLostCard": no("card_declined", "lost_card"),
    "visa_chargeDeclinedStolenCard": no("card_declined", "stolen_card"),
    "visa_chargeDeclinedVelocityLimitExceeded": no("card_declined", "card_velocity_exceeded"),
    "chargeDeclinedExpiredCard": no("expired_card"),
    "chargeDeclinedIncorrectCvc": no("incorrect_cvc"),
    "chargeDeclinedProcessingError": no("processing_error"),
    "chargeCustomerFail": no("card_declined", "generic_decline"),
    "chargeDeclined": no("card_declined", "generic_decline"),
    "chargeDeclinedInsufficientFunds": no("card_declined", "insufficient_funds"),
    "chargeDeclinedLostCard": no("card_declined", "lost_card"),
    "chargeDeclinedStolenCard": no("card_declined", "stolen_card"),
    "chargeDeclinedFraudulent": no("card_declined", "fraudulent"),
    "radarBlock": no("card_declined", "fraudulent"),
    "riskLevelHighest": no("card_declined", "fraudulent"),
    "authenticationRequired": ASKS,
    "authenticationRequiredOnSetup": ASKS,
    "authenticationRequiredSetupForOffSession": ASKS,
    "threeDSecure2Required": ASKS,
    "threeDSecureRequired": ASKS,
    "authenticationRequiredChargeDeclinedInsufficientFunds": (
        f"requires_action, {no('card_declined', 'insufficient_funds')}"
    ),
    "threeDSecureRequiredChargeDeclined": f"requires_action, {no('card_declined', 'generic_decline')}",
    "threeDSecureRequiredProcessingError": no("card_declined", "generic_decline"),
    "pendingRefund": "authorised, captured, refund pending, refund succeeded",
    "refundFail": "authorised, captured, refund succeeded, refund failed",
    "createDispute": "authorised, captured, disputed fraudulent needs_response, refund charge_disputed",
    "createDisputeProductNotReceived": (
        "authorised, captured, disputed product_not_received needs_response, refund charge_disputed"
    ),
    "createDisputeInquiry": "authorised, captured, disputed fraudulent warning_needs_response, refund succeeded",
    "createMultipleDisputes": (
        "authorised, captured, disputed product_not_received needs_response, "
        "disputed fraudulent needs_response, refund charge_disputed"
    ),
    "createCe3EligibleDispute": "authorised, captured, disputed fraudulent needs_response, refund charge_disputed",
    "createComplianceDispute": "authorised, captured, disputed noncompliant needs_response, refund charge_disputed",
    "createIssuerFraudRecord": "authorised, captured, warned, refund succeeded",
    "declined": no("card_declined", "generic_decline"),
    "insufficient_funds": no("card_declined", "insufficient_funds"),
    "processing": f"processing, {PAID}",
    "processing_then_paid": f"processing, {PAID}",
    "capture_fail": f"authorised, capture {no('card_declined', 'do_not_honor')}",
    "refund_fail": "authorised, captured, refund failed",
    "refund_pending": "authorised, captured, refund pending",
    "dispute": "authorised, captured, disputed fraudulent needs_response, refund charge_disputed",
}
"""What the client sees, by name without the prefix; methods not listed here are paid and can be refunded."""
DOCUMENTED = [
    "visa",
    "visa_debit",
    "mastercard",
    "mastercard_debit",
    "mastercard_prepaid",
    "amex",
    "discover",
    "diners",
    "jcb",
    "unionpay",
    "us",
    "de",
    "gb",
    "fr",
    "jp",
    "visa_chargeDeclined",
    "visa_chargeDeclinedInsufficientFunds",
    "visa_chargeDeclinedLostCard",
    "visa_chargeDeclinedStolenCard",
    "chargeDeclinedExpiredCard",
    "chargeDeclinedIncorrectCvc",
    "chargeDeclinedProcessingError",
    "chargeCustomerFail",
    "visa_chargeDeclinedVelocityLimitExceeded",
    "radarBlock",
    "riskLevelHighest",
    "riskLevelElevated",
    "cvcCheckFail",
    "avsZipFail",
    "cvcCheckFailElevatedRisk",
    "avsZipFailElevatedRisk",
    "avsLine1Fail",
    "avsFail",
    "avsUnchecked",
    "threeDSecure2Required",
    "authenticationRequired",
    "authenticationRequiredOnSetup",
    "authenticationRequiredSetupForOffSession",
    "threeDSecureRequired",
    "authenticationRequiredChargeDeclinedInsufficientFunds",
    "threeDSecureRequiredChargeDeclined",
    "threeDSecureRequiredProcessingError",
    "threeDSecureOptional",
    "threeDSecureOptionalProcessingError",
    "amex_threeDSecureNotSupported",
    "pendingRefund",
    "refundFail",
    "createDispute",
    "createDisputeProductNotReceived",
    "createDisputeInquiry",
    "createIssuerFraudRecord",
    "createMultipleDisputes",
    "createCe3EligibleDispute",
    "createComplianceDispute",
    "bypassPending",
    "bypassPendingInternational",
]
"""The names on Stripe's own page, without the prefix."""


class PaymentRun:
    """Pays with one method, from the create to the refund, and records what the client sees."""

    def __init__(self, client: stripe.StripeClient, running: RunningSandbox) -> None:
        self._client = client
        self._running = running

    def pay_with(self, method: str) -> str:
        """What the client sees, in order."""
        try:
            intent = create(self._client, method)
        except stripe.CardError as declined:
            return no(declined.code or "", _error(declined).get("decline_code"))
        seen = []
        if intent.status in {"requires_action", "processing"}:
            seen.append(intent.status)
            intent = self._decided(intent)
        if error := intent.last_payment_error:
            return ", ".join([*seen, no(error["code"], getattr(error, "decline_code", None))])
        assert intent.status == "requires_capture"
        seen.append("authorised")
        try:
            intent = self._client.v1.payment_intents.capture(intent.id)
        except stripe.CardError as declined:
            return ", ".join([*seen, f"capture {no(declined.code or '', _error(declined)['decline_code'])}"])
        assert intent.status == "succeeded"
        return ", ".join([*seen, "captured", *self._disputes(intent), *self._refunds(intent)])

    def _decided(self, intent: Any) -> Any:
        """The buyer completes the action, or the bank decides."""
        if intent.status == "requires_action":
            assert intent.next_action["redirect_to_url"]["url"].startswith(self._running.url)
            self._running.do(lambda sandbox: sandbox.bank.act(intent.id, succeed=True))
        else:
            self._running.do(lambda sandbox: sandbox.bank.decide(intent.id, succeed=True))
        return self._client.v1.payment_intents.retrieve(intent.id)

    def _disputes(self, intent: Any) -> list[str]:
        found = self._client.v1.disputes.list({"payment_intent": intent.id}).data
        events = self._client.v1.events.list({"type": "radar.early_fraud_warning.created", "limit": 1}).data
        warned = [event for event in events if event.data.object["payment_intent"] == intent.id]
        return [f"disputed {one.reason} {one.status}" for one in found] + ["warned"] * len(warned)

    def _refunds(self, intent: Any) -> list[str]:
        try:
            refund = self._client.v1.refunds.create({"payment_intent": intent.id})
        except stripe.InvalidRequestError as refused:
            return [f"refund {refused.code}"]
        self._running.do(lambda sandbox: _advance(sandbox.clock))
        later = self._client.v1.refunds.retrieve(refund.id)
        moved = [f"refund {later.status}"] if later.status != refund.status else []
        return [f"refund {refund.status}", *moved]


def _error(declined: stripe.CardError) -> Any:
    body: Any = declined.json_body
    return body["error"]


def _advance(clock: Any) -> None:
    movable: MovableClock = clock
    movable.advance(REFUND_SECONDS)


def test_every_method_does_what_its_name_says_to_the_official_client(running: RunningSandbox) -> None:
    """Authorised, declined with its code, authenticated, disputed, refunded in the call, later or not."""
    run = PaymentRun(client_of(running), running)
    seen = {method: run.pay_with(method) for method in METHODS}
    width = max(map(len, seen))
    print("", *(f"{method:<{width}}  {said}" for method, said in seen.items()), sep="\n")  # noqa: T201
    assert seen == {method: EXPECTED.get(method.removeprefix(payment_methods.PREFIX), PAID) for method in METHODS}


def test_a_refund_that_fails_later_has_an_event_without_a_request(running: RunningSandbox) -> None:
    """The server checks its clock by itself, so the callback does not wait for the next call."""
    client = client_of(running)
    intent = create(client, "pm_card_refundFail", capture_method="automatic")
    client.v1.refunds.create({"payment_intent": intent.id})
    running.do(lambda sandbox: _advance(sandbox.clock))
    until(lambda: running.do(lambda sandbox: "refund.failed" in {one.kind for one in sandbox.bank._records.events}))


def test_the_names_of_stripes_own_page_are_known() -> None:
    """Every expectation is of an existing method."""
    assert {f"{payment_methods.PREFIX}{name}" for name in (*DOCUMENTED, *EXPECTED)} <= METHODS.keys()


@pytest.mark.parametrize("method", ["pm_card_nonesuch", "pm_card_", "tok_visa", "4242424242424242", "pm_card_VISA"])
def test_stripes_client_gets_an_error_for_an_unknown_method(client: stripe.StripeClient, method: str) -> None:
    """A misspelled name is the shop's error: no payment is made."""
    calls: list[Callable[[], object]] = [lambda: create(client, method)]
    waiting = client.v1.payment_intents.create({"amount": 100, "currency": "eur", "capture_method": "manual"})
    calls.append(lambda: client.v1.payment_intents.confirm(waiting.id, {"payment_method": method}))
    for call in calls:
        with pytest.raises(stripe.InvalidRequestError, match="No such PaymentMethod") as refused:
            call()
        assert (refused.value.code, refused.value.param) == ("resource_missing", "payment_method")
    assert [intent.id for intent in client.v1.payment_intents.list().data] == [waiting.id]


def test_a_charge_shows_its_card_and_its_risk(client: stripe.StripeClient) -> None:
    """Brand, country and funding of the card, and the risk level."""
    british = create(client, "pm_card_gb_mastercard").latest_charge
    card = british["payment_method_details"]["card"]
    assert (card["brand"], card["country"], card["funding"]) == ("mastercard", "GB", "credit")
    assert british["outcome"]["risk_level"] == "normal"
    assert create(client, "pm_card_riskLevelElevated").latest_charge["outcome"]["risk_level"] == "elevated"
    with pytest.raises(stripe.CardError) as blocked:
        create(client, "pm_card_radarBlock")
    charge = client.v1.charges.retrieve(_error(blocked.value)["charge"])
    assert charge.outcome is not None
    assert (charge.outcome["type"], charge.outcome["risk_level"]) == ("blocked", "highest")


NUMBERS = {
    "visa": "4242",
    "mastercard": "4444",
    "visa_chargeDeclined": "0002",
    "visa_chargeDeclinedInsufficientFunds": "9995",
    "visa_chargeDeclinedLostCard": "9987",
    "visa_chargeDeclinedStolenCard": "9979",
    "chargeDeclinedExpiredCard": "0069",
    "chargeDeclinedIncorrectCvc": "0127",
    "chargeDeclinedProcessingError": "0119",
    "radarBlock": "0019",
    "threeDSecure2Required": "3220",
    "authenticationRequired": "3184",
    "threeDSecureRequiredChargeDeclined": "1629",
    "threeDSecureRequiredProcessingError": "1280",
    "threeDSecureOptional": "3055",
    "pendingRefund": "7726",
    "refundFail": "5126",
    "createDispute": "0259",
}
"""The last digits on Stripe's own page, by name without the prefix."""


def test_an_offered_card_has_the_number_of_stripes_page() -> None:
    """A buyer who knows Stripe's test numbers recognises the card; only the sandbox's own cards have none."""
    shown = {card.method.removeprefix(payment_methods.PREFIX): card.last4 for card in OFFERED}
    assert {name: last4 for name, last4 in shown.items() if last4} == NUMBERS
    assert all(METHODS[card.method].own for card in OFFERED if card.last4 is None)


def test_a_charge_over_http_shows_the_last_digits(client: stripe.StripeClient) -> None:
    """Where Stripe's API has them."""
    charge = create(client, "pm_card_mastercard").latest_charge
    assert charge["payment_method_details"]["card"]["last4"] == "4444"


def test_a_payment_that_is_decided_later_is_paid_by_the_clock(bank: Bank, clock: MovableClock) -> None:
    """Without a test that decides it, so that a demo shows the whole way; not a moment too early."""
    intent = authorised(bank, "pm_card_processing_then_paid")
    clock.advance(DECISION_SECONDS - 1)
    assert bank.intent(intent.id).status is IntentStatus.PROCESSING
    clock.advance(1)
    assert bank.intent(intent.id).status is IntentStatus.REQUIRES_CAPTURE


def test_a_payment_that_a_test_has_decided_is_not_decided_again(bank: Bank, clock: MovableClock) -> None:
    """The clock changes only what still waits."""
    intent = authorised(bank, "pm_card_processing_then_paid")
    bank.decide(intent.id, succeed=False)
    clock.advance(DECISION_SECONDS)
    assert bank.intent(intent.id).status is IntentStatus.REQUIRES_PAYMENT_METHOD


def test_the_reference_shows_both_tables() -> None:
    """Line by line; `python -m earmark.sandbox.payment_methods` prints them."""
    shown = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert shown == [*payment_methods.rows(), *payment_methods.offered_rows()]
