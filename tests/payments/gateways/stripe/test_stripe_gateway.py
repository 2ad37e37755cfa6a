"""The Stripe gateway on broken connections, sticky errors, open intents and long lists."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid5

import msgspec
import pytest
from tests.payments.gateways.conformance.gateways_under_test import (
    ANSWER_SECONDS_MAX,
    SandboxHarness,
    served_sandbox,
    totals,
)
from tests.payments.gateways.conformance.harness import (
    PRICE,
    Situation,
    Totals,
    authorised,
    captured,
    order_in,
    refund_of,
    without_gateway_id,
)
from tests.socket_server import listening

from earmark.clock import MovableClock
from earmark.domain.payment import PAYING_SECONDS_MAX, ReportedState
from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent, ReportedRefundState
from earmark.payments.gateways.stripe import gateway as stripe_gateway
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox.faults import Fault
from earmark.sandbox.model import BankRefusal, IntentStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.payments.gateways.conformance.gateways_under_test import Reach

    from earmark.engine.ports.gateway import Order, RefundReport, Report
    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.call_pipeline import RecordedCall
    from earmark.sandbox.model import BankIntent

SHORT_TIMEOUT_SECONDS = 0.5
ATTEMPTS_MAX = 50
BOUND_SECONDS = 60.0


class Shop(SandboxHarness):
    """A Stripe gateway whose Stripe is a sandbox, and control over the sandbox's faults."""

    def __init__(self, sandbox: Sandbox, do: Reach) -> None:
        self.sandbox = sandbox
        self.do = do
        self.opened: list[StripeGateway] = []
        self.stripe = self.open()
        assert isinstance(sandbox.clock, MovableClock)
        super().__init__(self.stripe, sandbox.clock, do)

    def open(self, *, seconds_max: float = ANSWER_SECONDS_MAX, pages_max: int = 100) -> StripeGateway:
        """Another gateway of the same account."""
        gateway = StripeGateway(
            self.sandbox.key,
            webhook_secret=self.sandbox.secret,
            url=self.sandbox.base_url,
            clock=self.sandbox.clock,
            seconds_max=seconds_max,
            pages_max=pages_max,
        )
        self.opened.append(gateway)
        return gateway

    def fail_next(self, fault: Fault, name: str) -> None:
        """Make the next call of this name fail."""
        self.do(lambda sandbox: sandbox.script.add(fault, name))

    def calls(self, name: str) -> list[RecordedCall]:
        """The calls of this name that the sandbox received."""
        return self.do(lambda sandbox: [call for call in sandbox.pipeline.calls if call.name == name])

    def intents(self, order: Order) -> list[BankIntent]:
        """The bank's intents of a payment."""
        return self.do(lambda sandbox: sandbox.bank.find(str(order.payment_id)))


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """A shop with its own sandbox."""
    with served_sandbox() as (sandbox, do):
        opened = Shop(sandbox, do)
        yield opened
        for gateway in opened.opened:
            await gateway.close()


async def authorise(gateway: StripeGateway, order: Order) -> Report:
    return await gateway.authorise(order)


async def capture(gateway: StripeGateway, order: Order) -> Report:
    return await gateway.capture(order)


async def void(gateway: StripeGateway, order: Order) -> Report:
    return await gateway.void(order)


async def refund(gateway: StripeGateway, order: Order) -> RefundReport:
    same = uuid5(order.payment_id, "refund")
    return await gateway.refund(msgspec.structs.replace(refund_of(order), refund_id=same))


CALLS: dict[str, tuple[Callable[[StripeGateway, Order], Awaitable[Report | RefundReport]], object, Totals]] = {
    "authorise": (authorise, ReportedState.AUTHORISED, Totals(authorised=PRICE)),
    "capture": (capture, ReportedState.CAPTURED, Totals(authorised=PRICE, captured=PRICE)),
    "void": (void, ReportedState.VOIDED, Totals(authorised=PRICE, voided=PRICE)),
    "refund": (refund, ReportedRefundState.DONE, Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)),
}
"""How to make each call, the state that it reports at the end, and the totals by then."""


async def ready_for(shop: Shop, name: str) -> Order:
    if name == "authorise":
        return order_in(shop)
    return await (captured(shop) if name == "refund" else authorised(shop))


async def silent_once(shop: Shop, gateway: StripeGateway, name: str, order: Order, fault: Fault) -> None:
    """Call until the sandbox has injected the fault; on a slow machine a call may time out before."""
    call = CALLS[name][0]
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(GatewaySilent):
            await call(gateway, order)
        if any(one.fault is fault for one in shop.calls(name)):
            return
    pytest.fail("The fault was never injected.")


async def once_answered(call: Callable[[], Awaitable[Report | RefundReport]]) -> Report | RefundReport:
    """Call until there is an answer: the call that hung may count as in progress for a while."""
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        try:
            return await call()
        except GatewaySilent:
            assert time.monotonic() < deadline, "there was never an answer"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.REPLY_LOST, Fault.RATE_LIMIT])
async def test_a_call_without_an_answer_is_silent_and_has_one_effect(shop: Shop, fault: Fault, name: str) -> None:
    """After a 500, a 429 or a broken connection the outcome is unknown. A repeat has no second effect."""
    order = await ready_for(shop, name)
    shop.fail_next(fault, name)
    await silent_once(shop, shop.stripe, name, order, fault)
    assert len(shop.calls(name)) == 1
    call, end, moved = CALLS[name]
    assert (await call(shop.stripe, order)).state is end
    assert await shop.moved(order.payment_id) == moved


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_AFTER])
async def test_a_hanging_gateway_times_out(shop: Shop, fault: Fault, name: str) -> None:
    """Every call has a deadline; the call may have had its effect all the same."""
    order = await ready_for(shop, name)
    shop.fail_next(fault, name)
    await silent_once(shop, shop.open(seconds_max=SHORT_TIMEOUT_SECONDS), name, order, fault)
    call, end, moved = CALLS[name]
    report = await once_answered(lambda: call(shop.stripe, order))
    assert report.state is end
    assert await shop.moved(order.payment_id) == moved


async def test_an_endless_answer_times_out(shop: Shop) -> None:
    """The deadline is for the whole call: single bytes do not extend it."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with listening(drip) as port:
        url = f"http://127.0.0.1:{port}"
        key, secret = shop.sandbox.key, shop.sandbox.secret
        gateway = StripeGateway(key, webhook_secret=secret, url=url, seconds_max=SHORT_TIMEOUT_SECONDS)
        with pytest.raises(GatewaySilent):
            await gateway.status(order_in(shop, gateway_id="pi_1"))
    await gateway.close()


async def test_a_refused_connection_is_silent(shop: Shop) -> None:
    """Without a connection the outcome is unknown."""
    gateway = StripeGateway(shop.sandbox.key, webhook_secret=shop.sandbox.secret, url="http://127.0.0.1:9")
    for call in (gateway.authorise, gateway.capture, gateway.void, gateway.status):
        with pytest.raises(GatewaySilent):
            await call(order_in(shop, gateway_id="pi_1"))
    await gateway.close()


@pytest.mark.parametrize(
    "fault, found", [(Fault.ERROR_AFTER, ReportedState.AUTHORISED), (Fault.ERROR_BEFORE, ReportedState.ABSENT)]
)
async def test_the_status_is_right_when_a_500_sticks_to_its_key(shop: Shop, fault: Fault, found: ReportedState) -> None:
    """Stripe repeats some errors for a day. The status reports the real state, and a void ends the payment."""
    shop.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    shop.fail_next(fault, "authorise")
    order = order_in(shop)
    for _ in range(3):
        with pytest.raises(GatewaySilent):
            await shop.stripe.authorise(order)
    assert (await shop.stripe.status(order)).state is found
    assert (await shop.stripe.void(order)).state in {ReportedState.VOIDED, ReportedState.ABSENT}
    moved = await shop.moved(order.payment_id)
    assert (moved.authorised, moved.captured) == (moved.voided, 0)


async def test_a_500_does_not_stick_to_a_capture(shop: Shop) -> None:
    """A capture has no idempotency key, so a confirmed booking does not wait a day for its money."""
    shop.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    order = await authorised(shop)
    shop.fail_next(Fault.ERROR_BEFORE, "capture")
    with pytest.raises(GatewaySilent):
        await shop.stripe.capture(order)
    assert (await shop.stripe.capture(order)).state is ReportedState.CAPTURED


async def test_calls_carry_our_ids(shop: Shop) -> None:
    """A create has our payment id as its key and our ids as metadata; a refund has its refund id as its key."""
    order = await captured(shop)
    back = refund_of(order)
    await shop.stripe.refund(back)
    [made] = shop.calls("authorise")
    [returned] = shop.calls("refund")
    assert (made.key, returned.key) == (str(order.payment_id), str(back.refund_id))
    [intent] = shop.intents(order)
    ours = {"payment_id": order.payment_id, "booking_id": order.booking_id, "event_id": order.event_id}
    assert intent.metadata == {name: str(value) for name, value in ours.items()}


async def test_the_log_has_the_payment_and_not_the_secrets(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """All loggers at level DEBUG."""
    caplog.set_level(logging.DEBUG)
    order = await captured(shop)
    await shop.stripe.refund(refund_of(order))
    assert str(order.payment_id) in caplog.text
    assert shop.sandbox.key not in caplog.text
    assert shop.sandbox.secret not in caplog.text


async def test_a_wrong_call_is_refused(shop: Shop) -> None:
    """A wrong call is refused and has no effect; its outcome is known."""
    order = order_in(shop, method="pm_unheard_of")
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(order)
    assert refused.value.code == "resource_missing"
    assert shop.intents(order) == []


async def test_an_unknown_api_key_is_refused(shop: Shop) -> None:
    """The error says that the call is not permitted."""
    url, secret = shop.sandbox.base_url, shop.sandbox.secret
    other = StripeGateway("sk_test_of_another_shop", webhook_secret=secret, url=url)
    with pytest.raises(GatewayDenied) as refused:
        await other.authorise(order_in(shop))
    assert refused.value.code == "not_permitted"
    await other.close()


async def test_a_declined_intent_is_cancelled(shop: Shop) -> None:
    """The buyer has its client secret and could pay an open intent later."""
    order = await authorised(shop, Situation.DECLINED)
    [intent] = shop.intents(order)
    assert intent.status is IntentStatus.CANCELED
    with pytest.raises(BankRefusal):
        shop.do(lambda sandbox: sandbox.bank.confirm(intent.id, method=shop.method(Situation.FINE)))


async def test_a_decline_is_reported_even_if_the_cancel_fails(shop: Shop) -> None:
    """The decline is certain; the next status call cancels the intent."""
    shop.fail_next(Fault.ERROR_BEFORE, "void")
    order = order_in(shop, Situation.NO_FUNDS)
    report = await shop.stripe.authorise(order)
    assert (report.state, report.code) == (ReportedState.DECLINED, "insufficient_funds")
    assert [intent.status for intent in shop.intents(order)] == [IntentStatus.REQUIRES_PAYMENT_METHOD]
    status = await shop.stripe.status(order)
    assert (status.state, status.code) == (ReportedState.DECLINED, "insufficient_funds")
    assert [intent.status for intent in shop.intents(order)] == [IntentStatus.CANCELED]


async def test_an_intent_whose_action_failed_is_cancelled_by_the_status(shop: Shop) -> None:
    """After a failed authentication Stripe accepts another card; for Earmark the payment is declined."""
    order = await authorised(shop, Situation.ACTION)
    assert order.gateway_id
    await shop.act(order.gateway_id, succeed=False)
    assert (await shop.stripe.status(order)).state is ReportedState.DECLINED
    assert [intent.status for intent in shop.intents(order)] == [IntentStatus.CANCELED]


async def test_money_that_arrives_after_a_decline_is_reported(shop: Shop) -> None:
    """The status reports the current state, whatever was reported before."""
    shop.fail_next(Fault.LATE_SUCCESS, "authorise")
    order = await authorised(shop)
    assert (await shop.stripe.status(order)).state is ReportedState.DECLINED
    shop.do(lambda sandbox: sandbox.bank.land())
    assert (await shop.stripe.status(order)).state is ReportedState.AUTHORISED
    assert (await shop.stripe.void(order)).state is ReportedState.VOIDED


async def test_a_void_before_the_create_arrives_prevents_it(shop: Shop) -> None:
    """The create may still be under way: the void uses its key up, so the create has no effect."""
    order = order_in(shop, automatic=True)
    assert (await shop.stripe.void(order)).state is ReportedState.VOIDED
    assert (await shop.stripe.authorise(order)).state is ReportedState.VOIDED
    assert [call.outcome for call in shop.calls("authorise")] == ["answered", "idempotency_error"]
    assert await shop.moved(order.payment_id) == Totals()


async def test_control_without_the_used_key_the_create_takes_the_money(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A void that only looks lets the late create charge for a booking that has expired."""

    async def keep_the_key(_: Order) -> None:
        return None

    monkeypatch.setattr(shop.stripe, "_use_up_key", keep_the_key)
    order = order_in(shop, automatic=True)
    assert (await shop.stripe.void(order)).state is ReportedState.ABSENT
    await shop.stripe.authorise(order)
    assert (await shop.moved(order.payment_id)).captured == PRICE


async def test_an_order_with_other_parameters_is_the_same_payment(shop: Shop) -> None:
    """Another release may send other parameters: Stripe refuses the key, and the gateway finds the payment."""
    order = await authorised(shop)
    reworded = msgspec.structs.replace(without_gateway_id(order), return_url="https://shop.example/elsewhere")
    report = await shop.stripe.authorise(reworded)
    assert (report.state, report.gateway_id) == (ReportedState.AUTHORISED, order.gateway_id)
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(msgspec.structs.replace(reworded, currency="USD"))
    assert refused.value.code == "idempotency_error"
    assert await shop.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_payment_is_found_behind_many_others(shop: Shop) -> None:
    """The intents of a busy account fill more than one page."""
    order = await authorised(shop)
    add_payments(shop, 150)
    report = await shop.stripe.status(without_gateway_id(order))
    assert (report.state, report.gateway_id) == (ReportedState.AUTHORISED, order.gateway_id)


async def test_a_search_that_stops_early_does_not_report_absent(shop: Shop) -> None:
    """A search is bounded; when it stops early, the outcome is unknown."""
    add_payments(shop, 150)
    with pytest.raises(GatewaySilent):
        await shop.open(pages_max=1).status(order_in(shop))
    assert (await shop.stripe.status(order_in(shop))).state is ReportedState.ABSENT


@pytest.mark.parametrize("seconds", [0, PAYING_SECONDS_MAX])
async def test_a_payment_is_searched_only_within_the_hour_of_its_create(shop: Shop, seconds: int) -> None:
    """A create is sent within an hour, so payments of the rest of the day are not searched."""
    order = order_in(shop)
    shop.clock.advance(seconds)
    known = await shop.stripe.authorise(order)
    shop.clock.advance(2 * PAYING_SECONDS_MAX)
    add_payments(shop, 150)
    report = await shop.open(pages_max=1).status(order)
    assert (report.state, report.gateway_id) == (ReportedState.AUTHORISED, known.gateway_id)


async def test_control_the_payments_of_a_whole_day_exceed_the_search(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stripe lists the newest first, so all payments of a busy day come before the one searched."""
    monkeypatch.setattr(stripe_gateway, "SENT_WITHIN", timedelta(hours=24))
    order = await authorised(shop)
    shop.clock.advance(2 * PAYING_SECONDS_MAX)
    add_payments(shop, 150)
    with pytest.raises(GatewaySilent):
        await shop.open(pages_max=1).status(without_gateway_id(order))


async def test_all_pages_of_payments_are_listed(shop: Shop) -> None:
    """Payments that Earmark did not make are listed too."""
    since = shop.clock.now()
    add_payments(shop, 250)
    order = await captured(shop)
    records = [record async for record in shop.stripe.books(since=since)]
    assert len({record.gateway_id for record in records}) == len(records) == 251
    assert [record.captured for record in records if record.payment_id == order.payment_id] == [PRICE]
    assert sum(record.payment_id is None for record in records) == 250


@pytest.mark.parametrize(
    "currency, ours, theirs", [("EUR", 500, 500), ("JPY", 500, 500), ("ISK", 500, 50_000), ("MGA", 500, 5)]
)
async def test_amounts_are_sent_in_stripes_units(shop: Shop, currency: str, ours: int, theirs: int) -> None:
    """Stripe's minor unit of some currencies differs from ISO 4217 by a factor of a hundred."""
    order = await authorised(shop, amount=ours, currency=currency)
    report = await shop.stripe.capture(order)
    assert report.captured == ours
    assert shop.do(lambda sandbox: totals(sandbox, order.payment_id)).captured == theirs
    await shop.stripe.refund(refund_of(order, ours))
    assert (await shop.stripe.status(order)).refunded == ours


async def test_an_amount_that_stripe_cannot_charge_is_refused(shop: Shop) -> None:
    """Stripe has no fractions of this currency, and nothing is rounded."""
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(order_in(shop, amount=501, currency="MGA"))
    assert refused.value.code == "amount_not_payable"
    assert shop.calls("authorise") == []


def add_payments(shop: Shop, count: int) -> None:
    """Make other payments of the same account."""

    def make(sandbox: Sandbox) -> None:
        for _ in range(count):
            sandbox.bank.authorise(amount=1, currency="EUR", method=shop.method(Situation.FINE))

    shop.do(make)
