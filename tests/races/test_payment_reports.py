"""Two processes learn the outcome of one payment, at once or one long after the other: it is decided once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import State
from earmark.domain.payment import LEASE_SECONDS, Payment, PaymentState, ReportedState
from earmark.payments.build_gateway_orders import order_of
from earmark.payments.record_requested_refund import record_refund

from . import shortcuts
from .bank import PAYING_IS_OVER, Shop, a_refund
from .commands import a_cancel, a_hold
from .support import AS_BUILT, Shortcut, granted, in_time, until

if TYPE_CHECKING:
    from earmark.domain.booking import Booking


async def callback_and_giving_up_collide(shop: Shop, shortcut: Shortcut, place: str) -> tuple[Any, Any]:
    """The bank calls about a payment at the moment at which it took too long to decide."""
    payment = await shop.opened(await shop.database.held("A1"))
    shop.bank.decides = ReportedState.PROCESSING
    await shop.first.drive(payment).outcome()
    shop.database.clock.advance(PAYING_IS_OVER)
    giving_up = (await shop.payment_process("after lock_bookings")).give_up(await shop.payment_with_refunds(payment))
    await giving_up.reached("after lock_bookings")
    calling = (await shop.payment_process(place, shortcut=shortcut)).deliver_callback(payment)
    await calling.reached(place)
    calling.go()
    await calling.waits_for_a_lock()
    return await giving_up.outcome(), await calling.outcome()


async def test_a_callback_that_locks_its_payment_first_deadlocks(bare_shop: Shop) -> None:
    """It has the payment and wants the booking; the process that gives the payment up has the booking."""
    outcomes = await callback_and_giving_up_collide(bare_shop, shortcuts.LOCKS_PAYMENTS_FIRST, "after its first lock")
    assert [type(outcome) for outcome in outcomes].count(asyncpg.DeadlockDetectedError) == 1, outcomes
    assert await bare_shop.database.deadlocks() == 1


async def test_a_callback_waits_for_the_booking_and_then_has_both(either_shop: Shop) -> None:
    """The payment is given up, and the callback is about one that is to be voided."""
    given_up, called = await callback_and_giving_up_collide(either_shop, AS_BUILT, "after begin")
    assert given_up.state is PaymentState.VOIDING
    assert called is True
    await either_shop.settle_down()
    await either_shop.assert_books_agree()
    assert await either_shop.database.deadlocks() == 0


async def a_decline_is_reported_again_after_the_next_payment(
    shop: Shop, shortcut: Shortcut = AS_BUILT
) -> tuple[Booking, Payment]:
    """Two processes learn that the first card is declined. One writes it while the second card is being tried."""
    held = await shop.database.held("A1")
    first = await shop.opened(held)
    shop.bank.decides = ReportedState.DECLINED
    answering = shop.bank.barrier("after authorise")
    late = (await shop.payment_process(shortcut=shortcut)).drive(first)
    await in_time(answering.reached.wait())
    about = await shop.payment_with_refunds(first)
    report = await shop.bank.status(order_of(about.payment))
    await in_time(shop.first.driver._apply_report(report, about))
    assert await shop.database.state(held) == "held"
    second = await shop.opened(held)
    shop.bank.open_all()
    await late.outcome()
    return held, second


def wants_whatever_is_paid(booking: Booking, _: Payment) -> bool:
    """The booking waits for money, so this must be about the money that it waits for."""
    return booking.state in {State.PAYING, State.CONFIRMED}


async def test_a_decline_that_is_not_bound_to_its_payment_ends_another(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buyer whose second card is being charged loses the booking to the first card's decline."""
    monkeypatch.setattr(booking_rules, "wants", wants_whatever_is_paid)
    held, _ = await a_decline_is_reported_again_after_the_next_payment(shop, shortcuts.JUDGES_PAYMENTS_AS_THEY_BEGAN)
    assert await shop.database.state(held) == "held"


@pytest.mark.parametrize("guard", ["the payment's state", "the booking's payment"])
async def test_either_of_two_guards_keeps_a_repeated_decline_from_the_next_payment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """A payment that has failed does not fail again, and only the booking's open payment can change it."""
    shortcut = AS_BUILT
    if guard == "the payment's state":
        monkeypatch.setattr(booking_rules, "wants", wants_whatever_is_paid)
    else:
        shortcut = shortcuts.JUDGES_PAYMENTS_AS_THEY_BEGAN
    held, second = await a_decline_is_reported_again_after_the_next_payment(shop, shortcut)
    assert (await shop.database.booking(held)).payment_id == str(second.id)
    assert await shop.database.state(held) == "paying"


async def test_a_repeated_decline_leaves_the_next_payment_alone(either_shop: Shop) -> None:
    """The booking is sold for the second card."""
    held, second = await a_decline_is_reported_again_after_the_next_payment(either_shop)
    assert await either_shop.database.state(held) == "paying"
    either_shop.bank.decides = ReportedState.AUTHORISED
    await either_shop.settle_down()
    assert (await either_shop.database.booking(held)).payment_id == str(second.id)
    assert await either_shop.database.state(held) == "confirmed"
    await either_shop.assert_books_agree()


async def two_processes_learn_of_late_money(shop: Shop, shortcut: Shortcut, *, gone: bool) -> tuple[Booking, Payment]:
    """Two reconcilers query the bank about one payment, and both learn that the money was taken."""
    booking, payment = await shop.taken_late("A1")
    if gone:
        await shop.database.held("A1", buyer="bob")
    first = (await shop.payment_process("before write", shortcut=shortcut)).drive(payment)
    await first.reached("before write")
    stop = "before write" if shortcut is not AS_BUILT else "after begin"
    second = (await shop.payment_process(stop, shortcut=shortcut)).drive(payment)
    await second.reached(stop)
    if shortcut is AS_BUILT:
        second.go()
        await second.waits_for_a_lock()
    for heard in (await first.outcome(), await second.outcome()):
        assert isinstance(heard, Payment), repr(heard)
    return booking, payment


async def test_deciding_a_payment_unlocked_refunds_it_twice(bare_shop: Shop) -> None:
    """Each has recorded a refund of all of it: only the bank's own books keep the second from being made."""
    _, payment = await two_processes_learn_of_late_money(bare_shop, shortcuts.DECIDES_MONEY_UNLOCKED, gone=True)
    assert [refund.amount for refund in await bare_shop.refunds(payment)] == [1000, 1000]


async def test_money_that_two_processes_learn_of_is_refunded_once(either_shop: Shop) -> None:
    """The second waits for the booking, and then finds nothing new."""
    booking, payment = await two_processes_learn_of_late_money(either_shop, AS_BUILT, gone=True)
    await either_shop.settle_down()
    assert await either_shop.database.state(booking) == "expired"
    assert [refund.amount for refund in await either_shop.refunds(payment)] == [1000]
    await either_shop.assert_books_agree()


async def test_money_that_two_processes_learn_of_re_claims_its_booking_once(either_shop: Shop) -> None:
    """The second finds it sold for this very payment."""
    booking, payment = await two_processes_learn_of_late_money(either_shop, AS_BUILT, gone=False)
    assert (await either_shop.database.verbs(booking)).count("confirm") == 1
    assert await either_shop.refunds(payment) == []
    await either_shop.settle_down()
    await either_shop.assert_books_agree()


async def test_two_reconcilers_are_never_given_the_same_payment(shop: Shop) -> None:
    """One takes it; to the other it is not due until the first has had its time."""
    _, payment = await shop.taken_late("A1")
    shop.database.clock.advance(600)
    asking = shop.bank.barrier("before void")
    one, other = await shop.payment_process(), await shop.payment_process()
    reconciling = one.server._begin(one.driver.reconcile(limit=10))
    await in_time(asking.reached.wait())
    assert await other.driver.reconcile(limit=10) == 0
    shop.database.clock.advance(LEASE_SECONDS + 1)
    again = other.server._begin(other.driver.reconcile(limit=10))

    async def is_leased() -> bool:
        return (await other.server.store.seconds_to_next_payment() or 0) > 0

    # Only then may the first go on: else it could end the payment before the second looks.
    await until(is_leased)
    shop.bank.open_all()
    assert await again.outcome() == 1
    assert await reconciling.outcome() == 1
    assert (await shop.payment(payment)).state is PaymentState.CAPTURED
    await shop.assert_books_agree()


async def a_cancel_collides_with_a_capture(shop: Shop, place: str) -> tuple[Booking, Payment]:
    """The sale is cancelled while the bank captures the money, before it does or before it has answered."""
    held = await shop.database.held("A1")
    payment = await shop.opened(held)
    barrier = shop.bank.barrier(place)
    capturing = (await shop.payment_process()).drive(payment)
    await in_time(barrier.reached.wait())
    assert granted(await shop.database.tried(a_cancel(held))).state is State.CANCELLED
    granted(await shop.database.tried(a_hold("A1")))
    shop.bank.open_all()
    await capturing.outcome()
    return held, payment


@pytest.mark.parametrize("place", ["before capture", "after capture"])
async def test_a_sale_that_is_cancelled_during_its_capture_keeps_no_money(either_shop: Shop, place: str) -> None:
    """The void finds the money captured, or the capture finds it voided: either way all of it is refunded."""
    held, payment = await a_cancel_collides_with_a_capture(either_shop, place)
    await either_shop.settle_down()
    assert await either_shop.database.state(held) == "cancelled"
    assert (await either_shop.payment(payment)).state is PaymentState.REFUNDED
    await either_shop.assert_books_agree()


async def test_a_void_that_overtakes_a_capture_leaves_nothing_taken(either_shop: Shop) -> None:
    """The capture finds the payment voided, and its answer says so."""
    held = await either_shop.database.held("A1")
    payment = await either_shop.opened(held)
    barrier = either_shop.bank.barrier("before capture")
    capturing = (await either_shop.payment_process()).drive(payment)
    await in_time(barrier.reached.wait())
    granted(await either_shop.database.tried(a_cancel(held)))
    voided = await (await either_shop.payment_process()).drive(payment).outcome()
    assert voided.state is PaymentState.VOIDED
    either_shop.bank.open_all()
    await capturing.outcome()
    await either_shop.settle_down()
    assert (await either_shop.payment(payment)).captured == 0
    await either_shop.assert_books_agree()


async def test_a_refund_and_a_cancel_owe_no_more_than_was_taken(either_shop: Shop) -> None:
    """The cancel waits for the refund, and refunds the remainder."""
    sold, payment = await either_shop.sold("A1", "A2")
    server = await either_shop.database.server("before write")
    giving_back = server._begin(record_refund(server.engine, a_refund(sold, 500)))
    await giving_back.reached("before write")
    undoing = (await either_shop.database.server()).submit(a_cancel(sold))
    await undoing.waits_for_a_lock()
    await giving_back.outcome()
    granted(await undoing.outcome())
    assert [refund.amount for refund in await either_shop.refunds(payment)] == [500, 1500]
    await either_shop.settle_down()
    await either_shop.assert_books_agree()


async def test_one_refund_that_two_processes_send_is_made_once(either_shop: Shop) -> None:
    """The second is answered that it was made, and finds that recorded."""
    sold, payment = await either_shop.sold("A1")
    granted(await either_shop.database.tried(a_cancel(sold)))
    barrier = either_shop.bank.barrier("after refund")
    first = (await either_shop.payment_process()).drive(payment)
    await in_time(barrier.reached.wait())
    second = (await either_shop.payment_process()).drive(payment)
    await either_shop.until_called("refund", payment, times=2)
    either_shop.bank.open_all()
    await first.outcome()
    await second.outcome()
    [refund] = await either_shop.refunds(payment)
    assert either_shop.bank.effects[f"refund {refund.id}"] == 1
    assert (await either_shop.payment(payment)).refunded == 1000
    await either_shop.settle_down()
    await either_shop.assert_books_agree()


async def two_processes_charge_one_payment(shop: Shop) -> tuple[Booking, Payment]:
    """Two processes stand before the bank with the same order."""
    held = await shop.database.held("A1")
    payment = await shop.opened(held)
    barrier = shop.bank.barrier("before authorise")
    first = (await shop.payment_process()).drive(payment)
    await in_time(barrier.reached.wait())
    second = (await shop.payment_process()).drive(payment)
    await shop.until_called("authorise", payment, times=2)
    shop.bank.open_all()
    for driven in (await first.outcome(), await second.outcome()):
        assert isinstance(driven, Payment), repr(driven)
    return held, payment


async def test_a_bank_that_takes_each_order_for_a_new_one_charges_twice(shop: Shop) -> None:
    """What the count of effects is worth: nothing here keeps two processes from sending the same call."""
    shop.bank.forgets = True
    _, payment = await two_processes_charge_one_payment(shop)
    assert shop.bank.effects[f"authorise {payment.id}"] == 2


async def test_two_calls_for_one_payment_charge_once(either_shop: Shop) -> None:
    """The order carries the payment's id, and is the same order."""
    held, payment = await two_processes_charge_one_payment(either_shop)
    assert either_shop.bank.effects[f"authorise {payment.id}"] == 1
    await either_shop.settle_down()
    assert await either_shop.database.state(held) == "confirmed"
    await either_shop.assert_books_agree()


@pytest.mark.parametrize("wrong", [ReportedState.CAPTURED, ReportedState.AUTHORISED])
async def test_money_that_no_process_knows_of_is_seen_in_the_books(shop: Shop, wrong: ReportedState) -> None:
    """What the comparison of books is worth: it reports money that was captured, or is still set aside."""
    payment = await shop.opened(await shop.database.held("A1"))
    shop.bank.decides = ReportedState.DECLINED
    await shop.first.drive(payment).outcome()
    await shop.assert_books_agree()
    shop.bank.accounts[payment.id].state = wrong
    with pytest.raises(AssertionError):
        await shop.assert_books_agree()
