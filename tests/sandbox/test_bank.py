from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.payments.methods import Method

from earmark.sandbox.bank import Bank
from earmark.sandbox.model import Intent, Kind, Move, Refund, RefundStatus, Refused, Status

from .support import DAY, PRICE, authorised, captured

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value


def totals(bank: Bank) -> dict[str, int]:
    return {move.value: total for move in Move if (total := bank.total(move))}


def test_money_is_set_aside_and_then_taken(bank: Bank) -> None:
    """The plain way, and what the ledger says of it."""
    intent = authorised(bank)
    assert intent.status is Status.REQUIRES_CAPTURE
    assert totals(bank) == {"authorised": PRICE}
    taken = bank.capture(intent.id)
    assert (taken.status, taken.captured) == (Status.SUCCEEDED, PRICE)
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}
    assert {line.payment_id for line in bank.ledger} == {"ours"}


def test_with_automatic_capture_the_money_is_taken_at_once(bank: Bank) -> None:
    """One call, two lines."""
    assert authorised(bank, automatic=True).status is Status.SUCCEEDED
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}


def test_what_was_said_stays_said(bank: Bank) -> None:
    """An answer is a value of its own: what happens later is not in it."""
    intent = authorised(bank)
    bank.capture(intent.id)
    assert intent.status is Status.REQUIRES_CAPTURE
    assert bank.intent(intent.id).status is Status.SUCCEEDED


def test_money_is_taken_only_once(bank: Bank) -> None:
    """A second capture is refused, and says how the payment stands."""
    refused = refusal(lambda: bank.capture(captured(bank).id))
    assert refused.problem.code == "payment_intent_unexpected_state"
    assert refused.intent is not None
    assert refused.intent.status is Status.SUCCEEDED
    assert bank.total(Move.CAPTURED) == PRICE


def test_a_part_may_be_taken_and_the_rest_is_let_go(bank: Bank) -> None:
    """What was set aside is taken or let go, to the last cent."""
    assert bank.capture(authorised(bank).id, amount=1000).captured == 1000
    assert totals(bank) == {"authorised": PRICE, "captured": 1000, "voided": PRICE - 1000}


@pytest.mark.parametrize("amount", [0, -1, PRICE + 1])
def test_no_more_is_taken_than_was_set_aside(bank: Bank, amount: int) -> None:
    """Nor nothing, nor less."""
    intent = authorised(bank)
    assert refusal(lambda: bank.capture(intent.id, amount=amount)).kind is Kind.INVALID
    assert totals(bank) == {"authorised": PRICE}


def test_what_was_set_aside_can_be_given_up_before_the_capture(bank: Bank) -> None:
    """And then never taken."""
    intent = authorised(bank)
    assert bank.void(intent.id).status is Status.CANCELED
    assert refusal(lambda: bank.capture(intent.id)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}


def test_what_was_taken_cannot_be_voided(bank: Bank) -> None:
    """It has to be refunded."""
    intent = captured(bank)
    assert refusal(lambda: bank.void(intent.id)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE}


def test_what_was_set_aside_runs_out_after_seven_days(bank: Bank, clock: MovableClock) -> None:
    """By the bank's clock, and not a day sooner."""
    intent = authorised(bank)
    clock.advance(6 * DAY)
    assert bank.intent(intent.id).status is Status.REQUIRES_CAPTURE
    clock.advance(DAY)
    assert bank.intent(intent.id).status is Status.CANCELED
    assert bank.intent(intent.id).cancellation_reason == "automatic"
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}
    assert refusal(lambda: bank.capture(intent.id)).kind is Kind.INVALID


def test_the_ledger_knows_what_ran_out_before_anybody_asks_for_the_payment(bank: Bank, clock: MovableClock) -> None:
    """Time works whoever looks."""
    authorised(bank)
    clock.advance(8 * DAY)
    assert [line.move for line in bank.ledger] == [Move.AUTHORISED, Move.VOIDED]


def test_what_was_taken_does_not_run_out(bank: Bank, clock: MovableClock) -> None:
    """The control of the two above."""
    intent = captured(bank)
    clock.advance(30 * DAY)
    assert bank.intent(intent.id).status is Status.SUCCEEDED


def test_a_refund_never_exceeds_the_charge(bank: Bank) -> None:
    """In parts up to the whole, and not a cent more."""
    intent = captured(bank)
    bank.refund(intent.id, amount=3000)
    assert refusal(lambda: bank.refund(intent.id, amount=1501)).problem.code == "amount_too_large"
    bank.refund(intent.id, amount=1500)
    assert refusal(lambda: bank.refund(intent.id, amount=1)).problem.code == "charge_already_refunded"
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_already_refunded"
    assert bank.total(Move.REFUNDED) == PRICE
    assert bank.intent(intent.id).refunded == PRICE


def test_a_refund_without_an_amount_is_all_that_is_left(bank: Bank) -> None:
    """As the official API has it."""
    intent = captured(bank)
    bank.refund(intent.id, amount=1000)
    assert bank.refund(intent.id).amount == PRICE - 1000


def test_only_what_was_taken_can_be_refunded(bank: Bank) -> None:
    """Not what is set aside, not what was given up, and not a refund."""
    intent = authorised(bank)
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_not_refundable"
    bank.void(intent.id)
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_not_refundable"
    refund = bank.refund(captured(bank).id, amount=1)
    assert refusal(lambda: bank.refund(refund.id)).missing
    assert bank.total(Move.REFUNDED) == 1


@pytest.mark.parametrize("amount", [0, -1, 10**12 + 1])
def test_an_amount_is_at_least_one(bank: Bank, amount: int) -> None:
    """Of a payment and of a refund."""
    assert refusal(lambda: authorised(bank, amount=amount)).param == "amount"
    intent = captured(bank)
    assert refusal(lambda: bank.refund(intent.id, amount=amount)).param == "amount"


@pytest.mark.parametrize("currency", ["", "eur", "EURO", "ZZZ"])
def test_a_currency_is_one_that_is_in_use(bank: Bank, currency: str) -> None:
    """By its code."""
    assert refusal(lambda: authorised(bank, currency=currency)).param == "currency"
    assert not bank.ledger


def test_an_unknown_method_is_a_bad_request(bank: Bank) -> None:
    """It is no decline: nothing was begun, and there is no payment."""
    assert refusal(lambda: authorised(bank, "pm_card_gold")).kind is Kind.INVALID
    assert refusal(lambda: bank.authorise(amount=1, currency="EUR", method=None)).kind is Kind.INVALID
    assert not bank.intents()


@pytest.mark.parametrize(
    "method, word", [(Method.DECLINED, "generic_decline"), (Method.INSUFFICIENT_FUNDS, "insufficient_funds")]
)
def test_a_card_that_is_declined_says_why(bank: Bank, method: Method, word: str) -> None:
    """The payment exists and has no money."""
    refused = refusal(lambda: authorised(bank, method))
    assert (refused.kind, refused.problem.decline_code) == (Kind.CARD, word)
    assert refused.intent is not None
    assert bank.intent(refused.intent.id).status is Status.REQUIRES_PAYMENT_METHOD
    assert not bank.ledger


def test_a_declined_payment_can_be_tried_again_with_another_method(bank: Bank) -> None:
    """And has to name one."""
    refused = refusal(lambda: authorised(bank, Method.DECLINED))
    assert refused.intent is not None
    id_ = refused.intent.id
    assert refusal(lambda: bank.confirm(id_)).param == "payment_method"
    assert bank.confirm(id_, method=Method.VISA).status is Status.REQUIRES_CAPTURE
    assert refusal(lambda: bank.confirm(id_, method=Method.VISA)).problem.code == "payment_intent_unexpected_state"
    assert totals(bank) == {"authorised": PRICE}


def test_an_intent_can_be_made_first_and_confirmed_later(bank: Bank) -> None:
    """Nothing is set aside before."""
    intent = authorised(bank, confirm=False)
    assert intent.status is Status.REQUIRES_CONFIRMATION
    assert not bank.ledger
    assert bank.confirm(intent.id).status is Status.REQUIRES_CAPTURE


@pytest.mark.parametrize("succeed", [True, False])
def test_a_buyer_who_has_to_act_decides_how_it_goes_on(bank: Bank, *, succeed: bool) -> None:
    """Nothing is set aside until then, and a second visit changes nothing."""
    intent = authorised(bank, Method.AUTHENTICATION_REQUIRED)
    assert intent.status is Status.REQUIRES_ACTION
    assert not bank.ledger
    end = Status.REQUIRES_CAPTURE if succeed else Status.REQUIRES_PAYMENT_METHOD
    assert bank.act(intent.id, succeed=succeed).status is end
    assert refusal(lambda: bank.act(intent.id, succeed=True)).kind is Kind.INVALID
    assert totals(bank) == ({"authorised": PRICE} if succeed else {})


@pytest.mark.parametrize("succeed", [True, False])
def test_a_bank_that_takes_its_time_decides_how_it_goes_on(bank: Bank, *, succeed: bool) -> None:
    """Until then nothing can be taken or given up."""
    intent = authorised(bank, Method.PROCESSING)
    assert intent.status is Status.PROCESSING
    assert refusal(lambda: bank.void(intent.id)).kind is Kind.INVALID
    assert refusal(lambda: bank.capture(intent.id)).kind is Kind.INVALID
    decided = bank.decide(intent.id, succeed=succeed)
    assert decided.status is (Status.REQUIRES_CAPTURE if succeed else Status.REQUIRES_PAYMENT_METHOD)
    assert refusal(lambda: bank.decide(intent.id, succeed=True)).kind is Kind.INVALID


def test_a_capture_may_be_refused_for_good(bank: Bank) -> None:
    """What was set aside is let go, and nothing is taken, however often it is asked for."""
    intent = authorised(bank, Method.CAPTURE_FAIL)
    assert refusal(lambda: bank.capture(intent.id)).kind is Kind.CARD
    assert refusal(lambda: bank.capture(intent.id)).kind is Kind.INVALID
    assert totals(bank) == {"authorised": PRICE, "voided": PRICE}


def test_a_refund_may_fail_for_good(bank: Bank) -> None:
    """The money stays where it was, and can be asked for again."""
    intent = captured(bank, Method.REFUND_FAIL)
    refund = bank.refund(intent.id)
    assert refund.status is RefundStatus.FAILED
    assert refund.failure
    assert bank.intent(intent.id).left == PRICE
    assert bank.total(Move.REFUNDED) == 0


@pytest.mark.parametrize("succeed", [True, False])
def test_a_refund_that_takes_its_time_counts_against_what_is_left(bank: Bank, *, succeed: bool) -> None:
    """Or two of them could together be more than the charge."""
    intent = captured(bank, Method.REFUND_PENDING)
    refund = bank.refund(intent.id, amount=4000)
    assert refund.status is RefundStatus.PENDING
    assert refusal(lambda: bank.refund(intent.id, amount=501)).problem.code == "amount_too_large"
    assert bank.total(Move.REFUNDED) == 0
    decided = bank.decide(refund.id, succeed=succeed)
    assert isinstance(decided, Refund)
    assert decided.status is (RefundStatus.SUCCEEDED if succeed else RefundStatus.FAILED)
    assert refusal(lambda: bank.decide(refund.id, succeed=True)).kind is Kind.INVALID
    assert bank.total(Move.REFUNDED) == (4000 if succeed else 0)
    assert bank.intent(intent.id).left == (500 if succeed else PRICE)


def test_a_refund_that_had_arrived_can_come_back(bank: Bank) -> None:
    """Weeks later, once, and the ledger has both lines; what never arrived does not come back."""
    intent = captured(bank)
    refund = bank.refund(intent.id, amount=1000)
    returned = bank.return_refund(refund.id)
    assert (returned.status, bool(returned.failure)) == (RefundStatus.FAILED, True)
    assert (bank.total(Move.REFUNDED), bank.total(Move.RETURNED), bank.intent(intent.id).refunded) == (1000, 1000, 0)
    assert bank.events[-1].kind == "refund.failed"
    assert refusal(lambda: bank.return_refund(refund.id)).kind is Kind.INVALID


def test_a_disputed_charge_is_not_refunded(bank: Bank) -> None:
    """The buyer's bank has the money already."""
    intent = captured(bank, Method.DISPUTE)
    assert [dispute.intent_id for dispute in bank.disputes] == [intent.id]
    assert refusal(lambda: bank.refund(intent.id)).problem.code == "charge_disputed"
    assert totals(bank) == {"authorised": PRICE, "captured": PRICE, "disputed": PRICE}


def test_everything_that_happens_is_told_in_order(bank: Bank) -> None:
    """Each event has its subject as it was then."""
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
    seen = [event.about.status for event in bank.events if isinstance(event.about, Intent)]
    assert seen[:3] == [Status.REQUIRES_CONFIRMATION, Status.REQUIRES_CAPTURE, Status.SUCCEEDED]
    assert len({event.id for event in bank.events}) == len(bank.events)


def test_a_payment_is_found_by_our_id(bank: Bank) -> None:
    """The newest first; others are not in the way."""
    first, other = authorised(bank), authorised(bank, metadata={"payment_id": "another"})
    second = authorised(bank)
    assert [intent.id for intent in bank.find("ours")] == [second.id, first.id]
    assert [intent.id for intent in bank.intents()] == [second.id, other.id, first.id]
    assert bank.find("nobody") == []


def test_what_does_not_exist_is_missing(bank: Bank) -> None:
    """Whatever is asked of it."""
    assert refusal(lambda: bank.intent("pi_none")).missing
    assert refusal(lambda: bank.capture("pi_none")).missing
    assert refusal(lambda: bank.refund_by_id("re_none")).missing
    assert refusal(lambda: bank.intent_of_charge("ch_none")).missing


def test_metadata_has_a_bound(bank: Bank) -> None:
    """Of a payment and of a refund."""
    much = {str(number): "x" for number in range(51)}
    assert refusal(lambda: authorised(bank, metadata=much)).param == "metadata"
    assert refusal(lambda: bank.refund(captured(bank).id, metadata=much)).param == "metadata"


def test_a_run_can_be_repeated(clock: MovableClock) -> None:
    """The same seed gives the same ids, and another one others."""
    first, again, other = Bank(clock, seed=7), Bank(clock, seed=7), Bank(clock, seed=8)
    ids = [
        [captured(bank).id, bank.refund(bank.intents()[0].id).id, bank.events[-1].id] for bank in (first, again, other)
    ]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
