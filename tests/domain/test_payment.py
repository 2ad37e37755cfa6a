"""The rules of payments: reports in any order and any number lead to one end."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain import payment as rules
from earmark.domain.id_types import BookingId, EventId, PaymentId, RefundId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import (
    EDGES,
    STATE_AFTER_REPORT,
    TAKEN,
    UNDECIDED,
    Payment,
    PaymentState,
    Refund,
    ReportedState,
    SettledAs,
)
from earmark.errors import RefundRefused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = 4500


def opened(**known: object) -> Payment:
    fields: dict[str, object] = {
        "id": PaymentId(UUID(int=1)),
        "booking_id": BookingId(UUID(int=2)),
        "event_id": EventId("concert"),
        "mode": Mode.LIVE,
        "gateway": "sandbox",
        "method": "card",
        "amount": PRICE,
        "currency": "EUR",
        "automatic": False,
        "created_at": NOW,
    }
    return Payment(**fields | known)  # type: ignore[arg-type]


def refund(amount: int) -> Refund:
    payment = opened()
    back = RefundId(UUID(int=3))
    return Refund(id=back, payment_id=payment.id, booking_id=payment.booking_id, amount=amount, created_at=NOW)


def after_reports(payment: Payment, *said: ReportedState, wanted: bool = True) -> Payment:
    for reported in said:
        captured = PRICE if reported is ReportedState.CAPTURED else 0
        payment = rules.after_report(payment, reported, wanted=wanted, captured=captured)
    return payment


def test_captured_is_a_fact_from_every_state() -> None:
    """Whatever the state was before: the money is there."""
    for state in set(PaymentState) - TAKEN:
        assert after_reports(opened(state=state), ReportedState.CAPTURED).state is PaymentState.CAPTURED, state
        assert (
            after_reports(opened(state=state), ReportedState.CAPTURED, wanted=False).state is PaymentState.CAPTURED
        ), state


@given(said=st.lists(st.sampled_from(ReportedState), max_size=6))
def test_no_report_undoes_captured_money(said: list[ReportedState]) -> None:
    """Reports of an earlier state may come late, and change nothing."""
    taken = after_reports(opened(), ReportedState.CAPTURED)
    assert after_reports(taken, *said) == taken


@given(
    said=st.lists(
        st.sampled_from([ReportedState.PROCESSING, ReportedState.REQUIRES_ACTION, ReportedState.AUTHORISED]), max_size=5
    ),
    order=st.randoms(use_true_random=False),
)
def test_a_sale_ends_alike_in_any_order_of_reports(said: list[ReportedState], order: object) -> None:
    """Early, late and repeated reports of a payment that went well."""
    words = [*said, ReportedState.AUTHORISED, ReportedState.CAPTURED]
    order.shuffle(words)  # type: ignore[attr-defined]
    assert after_reports(opened(), *words).state is PaymentState.CAPTURED


@pytest.mark.parametrize("captured", [0, 1, PRICE - 1, PRICE + 1])
def test_another_amount_than_was_requested_needs_attention(captured: int) -> None:
    """A gateway that takes too much, or too little, is not argued with."""
    payment = rules.after_report(opened(), ReportedState.CAPTURED, wanted=True, captured=captured)
    assert (payment.state, payment.code) == (PaymentState.NEEDS_ATTENTION, "captured_another_amount")
    assert payment.captured == min(captured, PRICE)


def test_an_unwanted_payment_is_given_up_and_never_captured() -> None:
    """An authorisation for a booking that is lost, however late it comes."""
    for state in (*UNDECIDED, PaymentState.FAILED, PaymentState.VOIDED, PaymentState.AUTHORISED, PaymentState.VOIDING):
        assert (
            after_reports(opened(state=state), ReportedState.AUTHORISED, wanted=False).state is PaymentState.VOIDING
        ), state


def test_silence_is_unknown_and_never_failed() -> None:
    """A timeout says nothing of the money."""
    assert rules.unanswered(opened()).state is PaymentState.UNKNOWN
    for state in set(PaymentState) - {PaymentState.PENDING}:
        assert rules.unanswered(opened(state=state)).state is state


def test_every_change_of_state_is_an_edge() -> None:
    """What the rules do, the schema allows: no function leads to another state."""
    found = {
        (state, after.state)
        for state, reported, wanted in itertools.product(STATE_AFTER_REPORT, ReportedState, (True, False))
        if (after := after_reports(opened(state=state), reported, wanted=wanted)).state is not state
    }
    found |= {(state, rules.given_up(opened(state=state)).state) for state in UNDECIDED | {PaymentState.AUTHORISED}}
    found |= {(PaymentState.PENDING, PaymentState.UNKNOWN)}
    flagged = opened(state=PaymentState.NEEDS_ATTENTION, captured=PRICE)
    found |= {(PaymentState.NEEDS_ATTENTION, rules.settled(flagged, [], how=SettledAs.KEPT, note="x").state)}
    found |= {(state, rules.flagged(opened(state=state), code="x").state) for state in TAKEN}
    found |= {
        (state, rules.after_report(opened(state=state), ReportedState.CAPTURED, wanted=True, captured=1).state)
        for state in STATE_AFTER_REPORT.keys() - {PaymentState.NEEDS_ATTENTION}
    }
    found |= {(PaymentState.CAPTURED, rules.repaid(_owing(amount), refund(amount)).state) for amount in (1, PRICE)} | {
        (PaymentState.PARTIALLY_REFUNDED, PaymentState.REFUNDED)
    }
    assert found == EDGES


def _owing(amount: int) -> Payment:
    return rules.owing(opened(state=PaymentState.CAPTURED, captured=PRICE), amount)


@pytest.mark.parametrize("amount", [0, -1, PRICE + 1])
def test_a_refund_is_at_least_a_cent_and_at_most_what_is_left(amount: int) -> None:
    """Neither nothing, nor less than nothing, nor more than was taken."""
    with pytest.raises(RefundRefused) as refused:
        rules.owing(opened(state=PaymentState.CAPTURED, captured=PRICE), amount)
    assert refused.value.available == PRICE


@given(parts=st.lists(st.integers(min_value=1, max_value=PRICE), max_size=8))
def test_refunds_in_parts_never_exceed_the_charge(parts: list[int]) -> None:
    """However they are cut, they stop at what was taken."""
    payment = opened(state=PaymentState.CAPTURED, captured=PRICE)
    for part in parts:
        try:
            payment = rules.owing(payment, part)
        except RefundRefused:
            assert payment.refunding + part > PRICE
    assert payment.refunding == PRICE - payment.left <= PRICE


def test_an_unanswered_payment_is_queried_less_and_less_often_and_for_ever() -> None:
    """Quickly at first; after a new report, quickly again."""
    payment, waits = opened(state=PaymentState.UNKNOWN), []
    for _ in range(12):
        payment = rules.scheduled(payment, now=NOW, tried=True)
        assert payment.due_at is not None
        waits.append((payment.due_at - NOW).total_seconds())
    assert waits == sorted(waits)
    assert waits[-1] == rules.WAIT_SECONDS_MAX
    fresh = rules.scheduled(payment, now=NOW, tried=False)
    assert fresh.due_at == NOW + timedelta(seconds=rules.WAIT_SECONDS_MIN)


@pytest.mark.parametrize("state", sorted(PaymentState))
def test_what_is_over_is_not_looked_at_again(state: PaymentState) -> None:
    """And what is not over always is."""
    over = {PaymentState.CAPTURED, PaymentState.PARTIALLY_REFUNDED, PaymentState.REFUNDED}
    over |= {PaymentState.VOIDED, PaymentState.FAILED, PaymentState.SETTLED}
    due = rules.scheduled(opened(state=state), now=NOW + timedelta(days=2), tried=False).due_at
    assert (due is None) == (state in over)
    owes = opened(state=PaymentState.CAPTURED, captured=PRICE, refunding=1)
    assert rules.scheduled(owes, now=NOW, tried=False).due_at is not None
    stuck = opened(state=PaymentState.NEEDS_ATTENTION, captured=PRICE, refunding=1)
    assert rules.scheduled(stuck, now=NOW, tried=False).due_at is None


@pytest.mark.parametrize("state", [PaymentState.FAILED, PaymentState.VOIDED])
def test_a_failed_payment_is_queried_a_few_times_more(state: PaymentState) -> None:
    """Within a day or so: a gateway may have declined and captured the money all the same, and its callback be lost."""
    now, looks = NOW, []
    while (due := rules.scheduled(opened(state=state), now=now, tried=False).due_at) is not None:
        looks.append((due - NOW).total_seconds())
        now = due
    assert looks == list(rules.LOOK_BACK_SECONDS)


def test_paying_is_pinned_for_a_quarter_of_an_hour_at_a_time_and_an_hour_in_all() -> None:
    """While the gateway says that it is deciding."""
    pinned = [rules.paying_until(began=NOW, now=NOW + timedelta(seconds=after)) for after in (0, 600, 3000, 9000)]
    assert [(until - NOW).total_seconds() for until in pinned] == [900, 1500, 3600, 3600]


def test_a_shops_own_reference_is_no_payment_of_ours() -> None:
    """Ours are UUIDs."""
    assert rules.payment_id_of("till-1") is None
    assert rules.payment_id_of(str(UUID(int=1))) == UUID(int=1)
