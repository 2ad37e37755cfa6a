"""Attacks on the promise that money which was taken has a booking, or goes back by itself, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.payment import Payment, PaymentState, Standing
from earmark.engine.commands import Decided
from earmark.engine.ports.gateway import GatewayRefused, GatewaySilent
from earmark.errors import IdempotencyMismatch, RefundRefused
from earmark.payments.gateway_orders import order_of
from earmark.payments.pay import open_payment
from earmark.payments.refund import record_refund

from .bank import MoneyHouse, a_callback, a_pay, a_refund
from .commands import a_cancel, a_confirm, a_hold, a_limit, a_release
from .support import granted, in_time, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.ids import BookingId

    from .support import House


@pytest.fixture
async def shop(services: House) -> AsyncIterator[MoneyHouse]:
    """A house with a bank."""
    shop = await MoneyHouse.open(services)
    yield shop
    await shop.close()


async def test_what_was_said_before_the_capture_and_is_heard_after_it_changes_nothing(shop: MoneyHouse) -> None:
    """One was told that the money is set aside; before that is written down, another has taken it."""
    held = await shop.services.held("A1")
    payment = await shop.opened(held)
    answering = shop.bank.door("after authorise")
    late = (await shop.cashier()).drive(payment)
    await in_time(answering.reached.wait())
    report = await shop.bank.status(order_of(payment))
    await shop.first.driver._hear(report, await shop.dossier(payment))
    taken = await (await shop.cashier()).drive(payment).outcome()
    assert taken.state is PaymentState.CAPTURED
    shop.bank.open_all()
    heard = await late.outcome()
    assert isinstance(heard, Payment), repr(heard)
    assert (heard.state, heard.captured) == (PaymentState.CAPTURED, 1000)
    await shop.assert_books_agree()


@pytest.mark.parametrize("back", [0, 300])
async def test_a_sale_that_was_cancelled_for_less_than_its_price_gives_back_no_more(
    shop: MoneyHouse, back: int
) -> None:
    """The shop keeps a fee; then the bank calls about the payment, and says what is known: it was captured."""
    sold, payment = await shop.sold("A1")
    shop.bank.refuses["refund"] = GatewaySilent("no answer")
    await shop.services.done(msgspec.structs.replace(a_cancel(sold), refund=back))
    about = await shop.dossier(payment)
    await shop.first.driver._hear(await shop.bank.status(order_of(payment)), about)
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert shop.bank.accounts[payment.id].kept == 1000 - back


async def test_money_that_is_on_its_way_back_buys_nothing(shop: MoneyHouse) -> None:
    """Two heard of late money. For the first the seat was gone; for the second it is free, and the refund is owed."""
    booking, payment = await shop.taken_late("A1")
    rival = await shop.services.held("A1", buyer="bob")
    shop.bank.refuses["refund"] = GatewaySilent("no answer")
    report = await shop.bank.status(order_of(payment))
    await shop.first.driver._hear(report, await shop.dossier(payment))
    assert len(await shop.refunds(payment)) == 1
    await shop.services.done(a_release(rival))
    await shop.first.driver._hear(report, await shop.dossier(payment))
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.services.state(booking) == "expired"
    await shop.assert_books_agree()


@pytest.mark.parametrize("hours", [0, 30])
async def test_a_callback_whose_status_is_not_answered_is_looked_at_again(shop: MoneyHouse, hours: int) -> None:
    """The buyer paid after a no; the bank called once, and was silent when it was asked. It will not call again."""
    payment = await shop.opened(await shop.services.held("A1"))
    shop.bank.decides = Standing.DECLINED
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.FAILED
    if hours:
        await shop.settle_down()
        shop.services.clock.advance(hours * 3600)
    shop.bank.accounts[payment.id].standing = Standing.CAPTURED
    shop.bank.refuses["status"] = GatewaySilent("no answer")
    assert await shop.first.hear(payment).outcome() is True
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.first.hear(payment).outcome() is True
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_callback_during_a_drive_is_looked_at_after_it(shop: MoneyHouse) -> None:
    """The drive asked before the buyer paid after all: what it will hear is older than what the bank calls about."""
    payment = await shop.opened(await shop.services.held("A1"))
    shop.bank.decides = Standing.DECLINED
    answering = shop.bank.door("after authorise")
    driving = shop.first.drive(payment)
    await in_time(answering.reached.wait())
    shop.bank.accounts[payment.id].standing = Standing.CAPTURED
    calling = asyncio.ensure_future(shop.first.driver.hear("bank", a_callback(payment, id="evt-1")))
    await until(lambda: shop.services.observer.fetchval("SELECT count(*) FROM callbacks"))
    shop.bank.open_all()
    await driving.outcome()
    assert await in_time(calling) is True
    await shop.settle_down()
    await shop.assert_books_agree()


@pytest.mark.parametrize("capture", ["by hand", "automatic"])
async def test_a_refusal_to_repeat_a_call_says_nothing_of_the_first(shop: MoneyHouse, capture: str) -> None:
    """The first create went through and was not answered; then the key was revoked, and the repeat is refused."""
    held = await shop.services.held("A1")
    payment = await shop.opened(held, automatic=capture == "automatic")
    shop.bank.fails["authorise"] = GatewaySilent("no answer")
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.UNKNOWN
    shop.bank.fails.clear()
    shop.bank.refuses |= dict.fromkeys(("authorise", "status"), GatewayRefused("not_permitted"))
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.UNKNOWN
    shop.bank.refuses.clear()
    await shop.settle_down()
    assert await shop.services.state(held) == "confirmed"
    await shop.assert_books_agree()


async def test_a_refusal_after_a_crash_says_nothing_of_what_was_sent_before_it(shop: MoneyHouse) -> None:
    """The row says that nobody was asked yet, for whoever asked has died; the repeat is not the same to the byte."""
    payment = await shop.opened(await shop.services.held("A1"), automatic=True)
    await shop.bank.authorise(order_of(payment))
    shop.bank.refuses["authorise"] = GatewayRefused("idempotency_error")
    await shop.first.drive(payment).outcome()
    shop.bank.refuses.clear()
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_an_order_that_was_never_taken_is_still_declined(shop: MoneyHouse) -> None:
    """The other side: a first create that is refused has charged nobody, and the buyer may try another card."""
    held = await shop.services.held("A1")
    payment = await shop.opened(held)
    shop.bank.refuses["authorise"] = GatewayRefused("resource_missing")
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.FAILED
    assert await shop.services.state(held) == "held"
    assert shop.bank.accounts == {}


async def test_cancels_of_one_booking_in_one_batch_give_back_what_each_undoes(shop: MoneyHouse) -> None:
    """Two seats of a sale are undone by two requests that travel together."""
    sold, payment = await shop.sold("A1", "A2", "A3")
    outcomes = await shop.first.payments.ask_together(a_cancel(sold, "A1"), a_cancel(sold, "A2")).outcome()
    assert [type(outcome) for outcome in outcomes] == [Decided, Decided]
    assert [refund.amount for refund in await shop.refunds(payment)] == [1000, 1000]
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_sale_that_names_the_payment_of_another_gives_back_nothing_of_it(shop: MoneyHouse) -> None:
    """A shop confirms a second booking with the id of our payment for the first, and cancels the second."""
    _, payment = await shop.sold("A1")
    other = await shop.services.held("A2", buyer="bob")
    await shop.services.tried(a_confirm(other, payment_id=str(payment.id)))
    await shop.services.tried(a_cancel(other))
    with pytest.raises(RefundRefused):
        await record_refund(shop.first.payments.engine, a_refund(other, 1))
    assert await shop.refunds(payment) == []
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_one_key_does_not_open_the_payment_of_another_booking(shop: MoneyHouse) -> None:
    """A payment's id comes from its key: a key that was used for one booking says nothing about a second."""
    first, second = await shop.services.held("A1"), await shop.services.held("A2", buyer="bob")
    payment = await shop.opened(first)
    with pytest.raises(IdempotencyMismatch):
        await open_payment(shop.first.payments.engine, a_pay(second, payment_id=payment.id))
    assert await shop.services.state(second) == "held"


async def test_late_money_is_not_sent_back_for_lapsed_holds_in_two_places(shop: MoneyHouse) -> None:
    """The buyer's own lapsed hold fills the limit, and somebody else's the pool: both are free to whoever asks."""
    booking, payment = await shop.taken_late("A1", units=6)
    granted(await (await shop.services.payments()).ask(a_limit(7)).outcome())
    own = await shop.services.held("A2", buyer="ann")
    other = await shop.services.held(buyer="bob", units=7)
    shop.services.pass_the_end(own)
    shop.services.pass_the_end(other)
    await shop.first.drive(payment).outcome()
    assert await shop.services.state(booking) == "confirmed"
    await shop.settle_down()
    await shop.assert_books_agree()


async def test_a_refund_that_is_refused_does_not_stop_the_others(shop: MoneyHouse) -> None:
    """A sale is cancelled after a small refund of it was refused: the rest is owed all the same."""
    sold, payment = await shop.sold("A1", "A2")
    await record_refund(shop.first.payments.engine, a_refund(sold, 100))
    shop.bank.refund_trouble = "charge_disputed"
    assert (await shop.first.drive(payment).outcome()).state is PaymentState.NEEDS_ATTENTION
    shop.bank.refund_trouble = None
    await shop.services.done(a_cancel(sold))
    assert (await shop.payment(payment)).refunding == 2000
    assert granted(await shop.services.tried(a_hold("A1"))).state == "held"


async def test_a_payment_is_read_with_what_belongs_to_it_at_one_moment(
    shop: MoneyHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payment that owes a refund, beside refunds that were made since it was read, is a payment that never was."""
    sold, payment = await shop.sold("A1")
    await shop.services.done(a_cancel(sold))
    late = await shop.cashier()
    read_booking = late.payments.store.read_booking

    async def read_after_the_refund(booking_id: BookingId) -> tuple[datetime, Booking | None]:
        await shop.first.drive(payment).outcome()
        return await read_booking(booking_id)

    monkeypatch.setattr(late.payments.store, "read_booking", read_after_the_refund)
    driven = await late.drive(payment).outcome()
    assert driven is None or isinstance(driven, Payment), repr(driven)
    await shop.settle_down()
    await shop.assert_books_agree()
