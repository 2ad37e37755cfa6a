"""A payment was declined, its hold was changed and ran out, and then the money turns out to be taken after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.payment import PaymentState, ReportedState
from earmark.payments import apply_payment_report

from .commands import TTL_SECONDS, a_change, a_hold, a_release
from .support import granted

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment

    from .bank import Shop

LONG = 10 * TTL_SECONDS


async def declined(shop: Shop, *seats: str, units: int = 0) -> tuple[Booking, Payment]:
    """A hold whose payment was declined: it is kept, and may be changed or paid for again."""
    held = await shop.database.held(*seats, units=units, ttl_seconds=LONG)
    payment = await shop.opened(held)
    shop.bank.decides = ReportedState.DECLINED
    after = await shop.first.drive(payment).outcome()
    assert after.state is PaymentState.FAILED, repr(after)
    assert await shop.database.state(held) == "held"
    return held, payment


async def taken_after_all(shop: Shop, booking: Booking, payment: Payment) -> Payment:
    """The hold runs out and is swept; then the bank calls: the money was captured."""
    shop.database.pass_the_end(booking)
    assert [ended.id for ended in await shop.database.tried_sweep()] == [booking.id]
    shop.bank.accounts[payment.id].state = ReportedState.CAPTURED
    assert await shop.first.deliver_callback(payment).outcome() is True
    return await shop.payment(payment)


async def assert_refunded(shop: Shop, booking: Booking, payment: Payment) -> None:
    """The booking stays expired, and all that was taken goes back, once."""
    await shop.settle_down()
    assert await shop.database.state(booking) == "expired"
    assert (await shop.payment(payment)).state is PaymentState.REFUNDED
    assert [refund.amount for refund in await shop.refunds(payment)] == [payment.amount]
    await shop.assert_books_agree()


DEARER: list[dict[str, Any]] = [{"add": ["A2"]}, {"units": 3}, {"add": ["A2"], "drop": ["A1"], "units": 2}]
CHEAPER: list[dict[str, Any]] = [{"drop": ["A1"]}, {"units": 0}]


@pytest.mark.parametrize("change", [*DEARER, *CHEAPER], ids=str)
async def test_money_for_other_lines_is_refunded(either_shop: Shop, change: dict[str, Any]) -> None:
    """Everything is still free; but what was paid for is not what would be sold, dearer or cheaper."""
    held, payment = await declined(either_shop, "A1", units=1)
    changed = await either_shop.database.done(a_change(held, **change))
    assert changed.total != payment.amount
    after = await taken_after_all(either_shop, held, payment)
    assert after.state is not PaymentState.CAPTURED
    await assert_refunded(either_shop, held, payment)
    granted(await either_shop.database.tried(a_hold("A1", "A2", units=10, buyer="cid")))


@pytest.mark.parametrize("change", [*DEARER, *CHEAPER], ids=str)
async def test_without_the_comparison_a_booking_is_sold_for_another_price(
    either_shop: Shop, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """The control: each payment has the amount that its booking costs, as far as the re-claim can see."""
    held, payment = await declined(either_shop, "A1", units=1)
    changed = await either_shop.database.done(a_change(held, **change))
    reclaim = apply_payment_report._ReportedPayment._reclaim

    async def of_any_amount(reported: Any, after: Any, **how: Any) -> Any:
        as_if: Any = _WithTheTotal(after, reported._booking.total)
        return await reclaim(reported, as_if, **how)

    monkeypatch.setattr(apply_payment_report._ReportedPayment, "_reclaim", of_any_amount)
    await taken_after_all(either_shop, held, payment)
    sold = await either_shop.database.booking(held)
    assert sold.state == "confirmed"
    assert sold.total == changed.total != either_shop.bank.accounts[payment.id].kept
    with pytest.raises(AssertionError):
        await either_shop.assert_books_agree()


class _WithTheTotal:
    """A payment that says it is for what the booking costs."""

    def __init__(self, payment: Payment, total: int) -> None:
        self._payment = payment
        self.amount = total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._payment, name)


async def assert_sold_for_it(shop: Shop, held: Booking, payment: Payment) -> None:
    """The expired booking is re-claimed with the lines that it has, and the bank keeps what they cost."""
    after = await taken_after_all(shop, held, payment)
    assert after.state is PaymentState.CAPTURED
    sold = await shop.database.booking(held)
    assert (sold.state, sold.total, sold.payment_id) == ("confirmed", payment.amount, str(payment.id))
    await shop.settle_down()
    assert await shop.refunds(payment) == []
    await shop.assert_books_agree()


async def test_an_unchanged_hold_is_still_re_claimed(either_shop: Shop) -> None:
    """Late money for what is still free is a sale."""
    await assert_sold_for_it(either_shop, *await declined(either_shop, "A1", units=1))


async def test_a_hold_that_was_changed_back_is_still_re_claimed(either_shop: Shop) -> None:
    """It has the very lines that were paid for."""
    held, payment = await declined(either_shop, "A1", units=1)
    await either_shop.database.done(a_change(held, add=["A2"], units=5))
    await either_shop.database.done(a_change(held, drop=["A2"], units=1))
    await assert_sold_for_it(either_shop, held, payment)


async def test_a_hold_with_another_seat_of_the_same_price_is_re_claimed_as_it_is(either_shop: Shop) -> None:
    """The buyer had chosen another seat meanwhile, and the money is what that costs."""
    held, payment = await declined(either_shop, "A1", units=1)
    await either_shop.database.done(a_change(held, add=["A2"], drop=["A1"]))
    await assert_sold_for_it(either_shop, held, payment)
    assert await either_shop.database.owner("A2") == held.id
    granted(await either_shop.database.tried(a_hold("A1", buyer="cid")))


@pytest.mark.parametrize("place", ["before the end", "after the end"])
async def test_money_for_a_seat_that_another_buyer_has_by_now_is_refunded(either_shop: Shop, place: str) -> None:
    """The new line of the changed hold was taken over: it is not re-claimed, though the total is the same."""
    held, payment = await declined(either_shop, "A1", units=1)
    await either_shop.database.done(a_change(held, add=["A2"], drop=["A1"]))
    if place == "before the end":
        await either_shop.database.done(a_change(held, add=["A1"], drop=["A2"]))
    either_shop.database.pass_the_end(held)
    await either_shop.database.tried_sweep()
    granted(await either_shop.database.tried(a_hold("A1" if place == "before the end" else "A2", buyer="cid")))
    either_shop.bank.accounts[payment.id].state = ReportedState.CAPTURED
    assert await either_shop.first.deliver_callback(payment).outcome() is True
    await assert_refunded(either_shop, held, payment)


@pytest.mark.parametrize("units", [1, 5], ids=["unchanged", "changed"])
async def test_money_that_comes_while_the_hold_lives_is_refunded(either_shop: Shop, units: int) -> None:
    """It was declined, and the hold waits for no payment: it stays held, and what was taken goes back."""
    held, payment = await declined(either_shop, "A1", units=1)
    changed = await either_shop.database.done(a_change(held, units=units))
    either_shop.bank.accounts[payment.id].state = ReportedState.CAPTURED
    assert await either_shop.first.deliver_callback(payment).outcome() is True
    now = await either_shop.database.booking(held)
    assert (now.state, now.lines, now.expires_at) == ("held", changed.lines, changed.expires_at)
    await either_shop.database.done(a_release(held))
    await either_shop.settle_down()
    assert (await either_shop.payment(payment)).state is PaymentState.REFUNDED
    await either_shop.assert_books_agree()


async def test_a_changed_hold_is_paid_for_anew_and_the_first_money_goes_back(either_shop: Shop) -> None:
    """The second payment is for the new total, and sells the booking; the first is refunded when it turns up."""
    held, first = await declined(either_shop, "A1", units=1)
    changed = await either_shop.database.done(a_change(held, add=["A2"], units=3))
    either_shop.bank.decides = ReportedState.AUTHORISED
    second = await either_shop.opened(held)
    assert second.amount == changed.total
    await either_shop.first.drive(second).outcome()
    either_shop.bank.accounts[first.id].state = ReportedState.CAPTURED
    assert await either_shop.first.deliver_callback(first).outcome() is True
    await either_shop.settle_down()
    assert (await either_shop.database.booking(held)).payment_id == str(second.id)
    assert [refund.amount for refund in await either_shop.refunds(first)] == [first.amount]
    assert await either_shop.refunds(second) == []
    await either_shop.assert_books_agree()
