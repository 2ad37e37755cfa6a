"""Attacks on the promise that captured money has a booking, or is refunded by itself, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.payment import Payment, PaymentState, ReportedState
from earmark.engine.commands_and_results import Decided
from earmark.engine.ports.gateway import GatewayRefused, GatewaySilent
from earmark.errors import IdempotencyMismatch, RefundRefused
from earmark.payments.build_gateway_orders import order_of
from earmark.payments.open_and_conclude_payment import open_payment
from earmark.payments.record_requested_refund import record_refund

from .bank import Shop, a_callback, a_pay, a_refund
from .commands import a_cancel, a_confirm, a_hold, a_limit, a_release
from .support import granted, in_time, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId

    from .support import RaceDatabase


@pytest.fixture
async def shop(database: RaceDatabase) -> AsyncIterator[Shop]:
    """A shop with a bank."""
    shop = await Shop.open(database)
    yield shop
    await shop.close()


async def test_a_report_from_before_the_capture_that_arrives_after_it_changes_nothing(shop: Shop) -> None:
    """One process was answered that the money is set aside; before it writes that, another has captured it."""
    held = await shop.database.held("A1")
    payment = await shop.opened(held)
    answering = shop.bank.barrier("after authorise")
    late = (await shop.payment_process()).drive(payment)
    await in_time(answering.reached.wait())
    report = await shop.bank.status(order_of(payment))
    await shop.first.driver._apply_report(report, await shop.payment_with_refunds(payment))
    taken = await (await shop.payment_process()).drive(payment).outcome()
    assert taken.state is PaymentState.CAPTURED
    shop.bank.open_all()
    heard = await late.outcome()
    assert isinstance(heard, Payment), repr(heard)
    assert (heard.state, heard.captured) == (PaymentState.CAPTURED, 1000)
    await shop.assert_books_agree()


@pytest.mark.parametrize("back", [0, 300])
async def test_a_sale_that_was_cancelled_for_less_than_its_price_refunds_no_more(shop: Shop, back: int) -> None:
    """The shop keeps a fee; then the bank calls about the payment, and says what is known: it was captured."""
    sold, payment = await shop.sold("A1")
    shop.bank.refuses["refund"] = GatewaySilent("no answer")
    await shop.database.done(msgspec.structs.replace(a_cancel(sold), refund=back))
    about = await shop.payment_with_refunds(payment)
    await shop.first.driver._apply_report(await shop.bank.status(order_of(payment)), about)
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert shop.bank.accounts[payment.id].kept == 1000 - back


async def test_money_that_is_being_refunded_buys_nothing(shop: Shop) -> None:
    """Two processes learn of late money. For the first the seat was taken; for the second it is free again."""
    booking, payment = await shop.taken_late("A1")
    rival = await shop.database.held("A1", buyer="bob")
    shop.bank.refuses["refund"] = GatewaySilent("no answer")
    report = await shop.bank.status(order_of(payment))
    await shop.first.driver._apply_report(report, await shop.payment_with_refunds(payment))
    assert len(await shop.refunds(payment)) == 1
    await shop.database.done(a_release(rival))
    await shop.first.driver._apply_report(report, await shop.payment_with_refunds(payment))
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.database.state(booking) == "expired"
    await shop.assert_books_agree()


@pytest.mark.parametrize("hours", [0, 30])
async def test_a_callback_whose_status_call_fails_is_looked_at_again(shop: Shop, hours: int) -> None:
    """The buyer paid after a decline; the bank called once, and was silent when queried. It will not call again."""
    payment = await shop.opened(await shop.database.held("A1"))
    shop.bank.decides = ReportedState.DECLINED
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.FAILED
    if hours:
        await shop.settle_down()
        shop.database.clock.advance(hours * 3600)
    shop.bank.accounts[payment.id].state = ReportedState.CAPTURED
    shop.bank.refuses["status"] = GatewaySilent("no answer")
    assert await shop.first.deliver_callback(payment).outcome() is True
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.first.deliver_callback(payment).outcome() is True
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_callback_during_a_drive_is_looked_at_after_it(shop: Shop) -> None:
    """The driver called before the buyer paid after all: its answer is older than the bank's callback."""
    payment = await shop.opened(await shop.database.held("A1"))
    shop.bank.decides = ReportedState.DECLINED
    answering = shop.bank.barrier("after authorise")
    driving = shop.first.drive(payment)
    await in_time(answering.reached.wait())
    shop.bank.accounts[payment.id].state = ReportedState.CAPTURED
    calling = asyncio.ensure_future(shop.first.driver.receive_callback("bank", a_callback(payment, id="evt-1")))
    await until(lambda: shop.database.observer.fetchval("SELECT count(*) FROM callbacks"))
    shop.bank.open_all()
    await driving.outcome()
    assert await in_time(calling) is True
    await shop.settle_down()
    await shop.assert_books_agree()


@pytest.mark.parametrize("capture", ["by hand", "automatic"])
async def test_a_refusal_to_repeat_a_call_says_nothing_of_the_first(shop: Shop, capture: str) -> None:
    """The first create went through and was not answered; then the key was revoked, and the repeat is refused."""
    held = await shop.database.held("A1")
    payment = await shop.opened(held, automatic=capture == "automatic")
    shop.bank.fails["authorise"] = GatewaySilent("no answer")
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.UNKNOWN
    shop.bank.fails.clear()
    shop.bank.refuses |= dict.fromkeys(("authorise", "status"), GatewayRefused("not_permitted"))
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.UNKNOWN
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.database.state(held) == "confirmed"
    await shop.assert_books_agree()


async def test_a_refusal_after_a_crash_says_nothing_of_what_was_sent_before_it(shop: Shop) -> None:
    """The row says that no call was made, as the calling process was killed; the repeat is not equal to the byte."""
    payment = await shop.opened(await shop.database.held("A1"), automatic=True)
    await shop.bank.authorise(order_of(payment))
    shop.bank.refuses["authorise"] = GatewayRefused("idempotency_error")
    await shop.first.drive(payment).outcome()
    shop.bank.refuses.clear()
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_an_order_that_was_never_taken_is_still_declined(shop: Shop) -> None:
    """The other side: a first create that is refused has charged no buyer, and the buyer may try another card."""
    held = await shop.database.held("A1")
    payment = await shop.opened(held)
    shop.bank.refuses["authorise"] = GatewayRefused("resource_missing")
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.FAILED
    assert await shop.database.state(held) == "held"
    assert shop.bank.accounts == {}


async def test_cancels_of_one_booking_in_one_batch_refund_what_each_cancels(shop: Shop) -> None:
    """Two requests of one batch cancel two seats of a sale."""
    sold, payment = await shop.sold("A1", "A2", "A3")
    outcomes = await shop.first.server.submit_batch(a_cancel(sold, "A1"), a_cancel(sold, "A2")).outcome()
    assert [type(outcome) for outcome in outcomes] == [Decided, Decided]
    assert [refund.amount for refund in await shop.refunds(payment)] == [1000, 1000]
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_sale_that_names_the_payment_of_another_refunds_nothing_of_it(shop: Shop) -> None:
    """A shop confirms a second booking with the id of our payment for the first, and cancels the second."""
    _, payment = await shop.sold("A1")
    other = await shop.database.held("A2", buyer="bob")
    await shop.database.tried(a_confirm(other, payment_id=str(payment.id)))
    await shop.database.tried(a_cancel(other))
    with pytest.raises(RefundRefused):
        await record_refund(shop.first.server.engine, a_refund(other, 1))
    assert await shop.refunds(payment) == []
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_one_key_does_not_open_the_payment_of_another_booking(shop: Shop) -> None:
    """A payment's id comes from its key: a key that was used for one booking says nothing about a second."""
    first, second = await shop.database.held("A1"), await shop.database.held("A2", buyer="bob")
    payment = await shop.opened(first)
    with pytest.raises(IdempotencyMismatch):
        await open_payment(shop.first.server.engine, a_pay(second, payment_id=payment.id))
    assert await shop.database.state(second) == "held"


async def test_late_money_is_not_refunded_for_lapsed_holds_in_two_places(shop: Shop) -> None:
    """The buyer's own lapsed hold fills the limit, and another buyer's the pool: both are free to a new request."""
    booking, payment = await shop.taken_late("A1", units=6)
    granted(await (await shop.database.server()).submit(a_limit(7)).outcome())
    own = await shop.database.held("A2", buyer="ann")
    other = await shop.database.held(buyer="bob", units=7)
    shop.database.pass_the_end(own)
    shop.database.pass_the_end(other)
    await shop.first.drive(payment).outcome()
    assert await shop.database.state(booking) == "confirmed"
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_refund_that_is_refused_does_not_stop_the_others(shop: Shop) -> None:
    """A sale is cancelled after a small refund of it was refused: the remainder is owed all the same."""
    sold, payment = await shop.sold("A1", "A2")
    await record_refund(shop.first.server.engine, a_refund(sold, 100))
    shop.bank.refund_trouble = "charge_disputed"
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.NEEDS_ATTENTION
    shop.bank.refund_trouble = None
    await shop.database.done(a_cancel(sold))
    assert (await shop.payment(payment)).refunding == 2000
    assert granted(await shop.database.tried(a_hold("A1"))).state == "held"


async def test_a_payment_is_read_with_what_belongs_to_it_at_one_moment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payment that owes a refund, beside refunds that were made since it was read, is a payment that never was."""
    sold, payment = await shop.sold("A1")
    await shop.database.done(a_cancel(sold))
    late = await shop.payment_process()
    read_booking = late.server.store.read_booking

    async def read_after_the_refund(booking_id: BookingId) -> tuple[datetime, Booking | None]:
        await shop.first.drive(payment).outcome()
        return await read_booking(booking_id)

    monkeypatch.setattr(late.server.store, "read_booking", read_after_the_refund)
    driven = await late.drive(payment).outcome()
    assert driven is None or isinstance(driven, Payment), repr(driven)
    await shop.settle_down()
    await shop.assert_books_agree()
