"""The simulated bank: authorise, capture, void, refund, disputes, events and the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.sandbox.payment_methods import Method

from earmark.sandbox.bank import Bank
from earmark.sandbox.model import (
    BankIntent,
    BankRefund,
    BankRefusal,
    IntentStatus,
    LedgerMove,
    RefundStatus,
    RefusalKind,
)

from .support import DAY, PRICE, authorised, captured

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock


def refusal(call: Callable[[], object]) -> BankRefusal:
    with pytest.raises(BankRefusal) as refused:
        call()
    return refused.value


def totals(bank: Bank) -> dict[str, int]:
    return {move.value: total for move in LedgerMove if (total := bank.total(move))}


def test_a_payment_is_authorised_and_captured(bank: Bank) -> None:
    """Authorise and capture, with their ledger lines."""
    intent = authorised(bank)
    assert intent.status is IntentStatus.REQUIRES_CAPTURE
    assert totals(bank) == {"authorised": PRICE}
    taken = bank.capture(intent.id)
    assert (taken.status, taken.captured) == (IntentStatus.SUCCEEDED, PRICE)
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}
    assert {line.payment_id for line in bank.ledger} == {"ours"}


def test_automatic_capture_takes_the_money_in_the_same_call(bank: Bank) -> None:
    """One call adds two ledger lines."""
    assert authorised(bank, automatic=True).status is IntentStatus.SUCCEEDED
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}


def test_a_returned_value_does_not_change_later(bank: Bank) -> None:
    """Values are frozen copies: a later capture does not alter them."""
    intent = authorised(bank)
    bank.capture(intent.id)
    assert intent.status is IntentStatus.REQUIRES_CAPTURE
    assert bank.intent(intent.id).status is IntentStatus.SUCCEEDED


def test_a_payment_is_captured_only_once(bank: Bank) -> None:
    """A second capture is refused, and the refusal has the intent."""
    refused = refusal(lambda: bank.capture(captured(bank).id))
    assert refused.problem.code == "payment_intent_unexpected_state"
    assert refused.intent is not None
    assert refused.intent.status is IntentStatus.SUCCEEDED
    assert bank.total(LedgerMove.CAPTURED) == PRICE


def test_a_partial_capture_voids_the_rest(bank: Bank) -> None:
    """Captured and voided amounts add up to the authorised one."""
    assert bank.capture(authorised(bank).id, amount=1000).captured == 1000
    assert totals(bank) == {"authorised": PRICE, "captured": 1000, "voided": PRICE - 1000}


@pytest.mark.parametrize("amount", [0, -1, PRICE + 1])
def test_a_capture_amount_is_within_the_authorised_amount(bank: Bank, amount: int) -> None:
    """Zero and negative amounts are refused too."""
    intent = authorised(bank)
    assert refusal(lambda: bank.capture(intent.id, amount=amount)).kind is RefusalKind.INVALID
    assert totals(bank) == {"authorised": PRICE}


def test_an_authorised_payment_can_be_voided(bank: Bank) -> None:
    """A voided payment cannot be captured."""
    intent = authorised(bank)
    assert bank.void(intent.id).status is IntentStatus.CANCELED
    assert refusal(lambda: bank.capture(intent.id)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}


def test_a_captured_payment_cannot_be_voided(bank: Bank) -> None:
    """A captured payment must be refunded instead."""
    intent = captured(bank)
    assert refusal(lambda: bank.void(intent.id)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}


def test_an_authorisation_expires_after_seven_days(bank: Bank, clock: MovableClock) -> None:
    """By the bank's clock; after six days it still stands."""
    intent = authorised(bank)
    clock.advance(6 * DAY)
    assert bank.intent(intent.id).status is IntentStatus.REQUIRES_CAPTURE
    clock.advance(DAY)
    assert bank.intent(intent.id).status is IntentStatus.CANCELED
    assert bank.intent(intent.id).cancellation_reason == "automatic"
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}
    assert refusal(lambda: bank.capture(intent.id)).kind is RefusalKind.INVALID


def test_the_ledger_shows_an_expired_authorisation_without_a_read_of_the_payment(
    bank: Bank, clock: MovableClock
) -> None:
    """Reading the ledger applies what is due by the clock."""
    authorised(bank)
    clock.advance(8 * DAY)
    assert [line.move for line in bank.ledger] == [LedgerMove.AUTHORISED, LedgerMove.VOIDED]


def test_a_captured_payment_does_not_expire(bank: Bank, clock: MovableClock) -> None:
    """The control of the two tests above."""
    intent = captured(bank)
    clock.advance(30 * DAY)
    assert bank.intent(intent.id).status is IntentStatus.SUCCEEDED


def test_a_refund_never_exceeds_the_charge(bank: Bank) -> None:
    """Partial refunds add up to at most the captured amount."""
    intent = captured(bank)
    bank.refund(intent.id, amount=3000)
    assert refusal(lambda: bank.refund(intent.id, amount=1501)).problem.code == "amount_too_large"
    bank.refund(intent.id, amount=1500)
    assert refusal(lambda: bank.refund(intent.id, amount=1)).problem.code == "charge_already_refunded"
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_already_refunded"
    assert bank.total(LedgerMove.REFUNDED) == PRICE
    assert bank.intent(intent.id).refunded == PRICE


def test_a_refund_without_an_amount_is_of_all_that_is_left(bank: Bank) -> None:
    """As in Stripe's API."""
    intent = captured(bank)
    bank.refund(intent.id, amount=1000)
    assert bank.refund(intent.id).amount == PRICE - 1000


def test_only_a_captured_payment_can_be_refunded(bank: Bank) -> None:
    """An authorised or voided payment and a refund cannot."""
    intent = authorised(bank)
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_not_refundable"
    bank.void(intent.id)
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_not_refundable"
    refund = bank.refund(captured(bank).id, amount=1)
    assert refusal(lambda: bank.refund(refund.id)).missing
    assert bank.total(LedgerMove.REFUNDED) == 1


@pytest.mark.parametrize("amount", [0, -1, 10**12 + 1])
def test_an_amount_is_at_least_one(bank: Bank, amount: int) -> None:
    """For payments and refunds."""
    assert refusal(lambda: authorised(bank, amount=amount)).param == "amount"
    intent = captured(bank)
    assert refusal(lambda: bank.refund(intent.id, amount=amount)).param == "amount"


@pytest.mark.parametrize("currency", ["", "eur", "EURO", "ZZZ"])
def test_a_currency_is_a_code_of_iso_4217(bank: Bank, currency: str) -> None:
    """In capital letters."""
    assert refusal(lambda: authorised(bank, currency=currency)).param == "currency"
    assert not bank.ledger


def test_an_unknown_method_is_a_bad_request(bank: Bank) -> None:
    """It is not a decline, and no intent is made."""
    assert refusal(lambda: authorised(bank, "pm_card_gold")).kind is RefusalKind.INVALID
    assert refusal(lambda: bank.authorise(amount=1, currency="EUR", method=None)).kind is RefusalKind.INVALID
    assert not bank.intents()


@pytest.mark.parametrize(
    "method, word", [(Method.DECLINED, "generic_decline"), (Method.INSUFFICIENT_FUNDS, "insufficient_funds")]
)
def test_a_declined_card_has_a_decline_code(bank: Bank, method: Method, word: str) -> None:
    """The intent exists, and nothing is authorised."""
    refused = refusal(lambda: authorised(bank, method))
    assert (refused.kind, refused.problem.decline_code) == (RefusalKind.CARD, word)
    assert refused.intent is not None
    assert bank.intent(refused.intent.id).status is IntentStatus.REQUIRES_PAYMENT_METHOD
    assert not bank.ledger


def test_a_declined_intent_can_be_confirmed_with_another_method(bank: Bank) -> None:
    """The second confirmation must name a method."""
    refused = refusal(lambda: authorised(bank, Method.DECLINED))
    assert refused.intent is not None
    id_ = refused.intent.id
    assert refusal(lambda: bank.confirm(id_)).param == "payment_method"
    assert bank.confirm(id_, method=Method.VISA).status is IntentStatus.REQUIRES_CAPTURE
    assert refusal(lambda: bank.confirm(id_, method=Method.VISA)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE}


def test_an_intent_can_be_created_first_and_confirmed_later(bank: Bank) -> None:
    """Nothing is authorised before the confirmation."""
    intent = authorised(bank, confirm=False)
    assert intent.status is IntentStatus.REQUIRES_CONFIRMATION
    assert not bank.ledger
    assert bank.confirm(intent.id).status is IntentStatus.REQUIRES_CAPTURE


@pytest.mark.parametrize("succeed", [True, False])
def test_the_buyers_action_decides_the_payment(bank: Bank, *, succeed: bool) -> None:
    """Nothing is authorised before the action, and a second action is refused."""
    intent = authorised(bank, Method.AUTHENTICATION_REQUIRED)
    assert intent.status is IntentStatus.REQUIRES_ACTION
    assert not bank.ledger
    end = IntentStatus.REQUIRES_CAPTURE if succeed else IntentStatus.REQUIRES_PAYMENT_METHOD
    assert bank.act(intent.id, succeed=succeed).status is end
    assert refusal(lambda: bank.act(intent.id, succeed=True)).kind is RefusalKind.INVALID
    assert totals(bank) == ({"authorised": PRICE} if succeed else {})


@pytest.mark.parametrize("succeed", [True, False])
def test_the_buyers_bank_decides_a_processing_payment(bank: Bank, *, succeed: bool) -> None:
    """Before the decision it can be neither captured nor voided."""
    intent = authorised(bank, Method.PROCESSING)
    assert intent.status is IntentStatus.PROCESSING
    assert refusal(lambda: bank.void(intent.id)).kind is RefusalKind.INVALID
    assert refusal(lambda: bank.capture(intent.id)).kind is RefusalKind.INVALID
    decided = bank.decide(intent.id, succeed=succeed)
    assert decided.status is (IntentStatus.REQUIRES_CAPTURE if succeed else IntentStatus.REQUIRES_PAYMENT_METHOD)
    assert refusal(lambda: bank.decide(intent.id, succeed=True)).kind is RefusalKind.INVALID


def test_a_refused_capture_voids_the_authorisation(bank: Bank) -> None:
    """Nothing is captured, however often the capture is requested."""
    intent = authorised(bank, Method.CAPTURE_FAIL)
    assert refusal(lambda: bank.capture(intent.id)).kind is RefusalKind.CARD
    assert refusal(lambda: bank.capture(intent.id)).kind is RefusalKind.INVALID
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}


def test_a_failed_refund_leaves_the_amount_refundable(bank: Bank) -> None:
    """The shop keeps the money, and another refund can be made."""
    intent = captured(bank, Method.REFUND_FAIL)
    refund = bank.refund(intent.id)
    assert refund.status is RefundStatus.FAILED
    assert refund.failure
    assert bank.intent(intent.id).left == PRICE
    assert bank.total(LedgerMove.REFUNDED) == 0


@pytest.mark.parametrize("succeed", [True, False])
def test_a_pending_refund_counts_against_what_is_left(bank: Bank, *, succeed: bool) -> None:
    """Otherwise two pending refunds could exceed the charge."""
    intent = captured(bank, Method.REFUND_PENDING)
    refund = bank.refund(intent.id, amount=4000)
    assert refund.status is RefundStatus.PENDING
    assert refusal(lambda: bank.refund(intent.id, amount=501)).problem.code == "amount_too_large"
    assert bank.total(LedgerMove.REFUNDED) == 0
    decided = bank.decide(refund.id, succeed=succeed)
    assert isinstance(decided, BankRefund)
    assert decided.status is (RefundStatus.SUCCEEDED if succeed else RefundStatus.FAILED)
    assert refusal(lambda: bank.decide(refund.id, succeed=True)).kind is RefusalKind.INVALID
    assert bank.total(LedgerMove.REFUNDED) == (4000 if succeed else 0)
    assert bank.intent(intent.id).left == (500 if succeed else PRICE)


def test_a_refund_that_succeeded_can_be_returned(bank: Bank) -> None:
    """Once; the ledger has both lines. A failed refund cannot be returned."""
    intent = captured(bank)
    refund = bank.refund(intent.id, amount=1000)
    returned = bank.return_refund(refund.id)
    assert (returned.status, bool(returned.failure)) == (RefundStatus.FAILED, True)
    assert (bank.total(LedgerMove.REFUNDED), bank.total(LedgerMove.RETURNED), bank.intent(intent.id).refunded) == (
        1000,
        1000,
        0,
    )
    assert bank.events[-1].kind == "refund.failed"
    assert refusal(lambda: bank.return_refund(refund.id)).kind is RefusalKind.INVALID


def test_a_disputed_charge_is_not_refunded(bank: Bank) -> None:
    """The buyer's bank has already taken the money back."""
    intent = captured(bank, Method.DISPUTE)
    assert [dispute.intent_id for dispute in bank.disputes] == [intent.id]
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_disputed"
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE, "disputed": PRICE}


def test_every_change_has_an_event_in_order(bank: Bank) -> None:
    """Each event has a copy of its object at that time."""
    intent = captured(bank)
    bank.refund(intent.id)
    assert [event.kind for event in bank.events] == [
        "payment_intent.created",
        "payment_intent.amount_capturable_updated",
        "payment_intent.succeeded",
        "refund.created",
        "charge.refunded",
        "refund.updated",
    ]
    seen = [event.about.status for event in bank.events if isinstance(event.about, BankIntent)]
    assert seen[:3] == [IntentStatus.REQUIRES_CONFIRMATION, IntentStatus.REQUIRES_CAPTURE, IntentStatus.SUCCEEDED]
    assert len({event.id for event in bank.events}) == len(bank.events)


def test_a_payment_is_found_by_our_id(bank: Bank) -> None:
    """The newest first, without other payments."""
    first, other = authorised(bank), authorised(bank, metadata={"payment_id": "another"})
    second = authorised(bank)
    assert [intent.id for intent in bank.find("ours")] == [second.id, first.id]
    assert [intent.id for intent in bank.intents()] == [second.id, other.id, first.id]
    assert bank.find("unknown") == []


def test_an_unknown_id_is_missing(bank: Bank) -> None:
    """For intents, refunds and charges."""
    assert refusal(lambda: bank.intent("pi_none")).missing
    assert refusal(lambda: bank.capture("pi_none")).missing
    assert refusal(lambda: bank.refund_by_id("re_none")).missing
    assert refusal(lambda: bank.intent_of_charge("ch_none")).missing


def test_metadata_is_bounded(bank: Bank) -> None:
    """For payments and refunds."""
    much = {str(number): "x" for number in range(51)}
    assert refusal(lambda: authorised(bank, metadata=much)).param == "metadata"
    assert refusal(lambda: bank.refund(captured(bank).id, metadata=much)).param == "metadata"


def test_a_run_can_be_repeated(clock: MovableClock) -> None:
    """The same seed gives the same ids, another seed other ids."""
    first, again, other = Bank(clock, seed=7), Bank(clock, seed=7), Bank(clock, seed=8)
    ids = [
        [captured(bank).id, bank.refund(bank.intents()[0].id).id, bank.events[-1].id] for bank in (first, again, other)
    ]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
