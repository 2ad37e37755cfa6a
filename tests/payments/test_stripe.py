"""What only the Stripe adapter has: a wire that breaks, keys that stick, intents to close, lists to look through."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid5

import msgspec
import pytest
from tests.listening import listening

from earmark.clock import MovableClock
from earmark.domain.payment import PAYING_SECONDS_MAX, Standing
from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent, RefundStanding
from earmark.payments import stripe as stripe_gateway
from earmark.payments.stripe import StripeGateway
from earmark.sandbox.faults import Fault
from earmark.sandbox.model import Refused, Status

from .conformance.support import PRICE, Situation, Totals, authorised, captured, order_in, refund_of, unlearnt
from .conformance.worlds import ANSWER_SECONDS_MAX, SandboxWorld, stripe_shaped, totals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.engine.ports.gateway import Order, RefundReport, Report
    from earmark.sandbox.desk import Call
    from earmark.sandbox.house import Sandbox
    from earmark.sandbox.model import Intent

    from .conformance.worlds import Reach

IMPATIENCE_SECONDS = 0.5
ATTEMPTS_MAX = 50
BOUND_SECONDS = 60.0


class Shop(SandboxWorld):
    """Stripe's SDK before a sandbox that can be told to misbehave."""

    def __init__(self, sandbox: Sandbox, do: Reach) -> None:
        self.sandbox = sandbox
        self.do = do
        self.opened: list[StripeGateway] = []
        self.stripe = self.open()
        assert isinstance(sandbox.clock, MovableClock)
        super().__init__(self.stripe, sandbox.clock, do)

    def open(self, *, seconds_max: float = ANSWER_SECONDS_MAX, pages_max: int = 100) -> StripeGateway:
        """Another gateway to the same account."""
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

    def breaks(self, fault: Fault, name: str) -> None:
        """The next such call goes wrong."""
        self.do(lambda sandbox: sandbox.script.add(fault, name))

    def calls(self, name: str) -> list[Call]:
        """The calls of this name that have arrived."""
        return self.do(lambda sandbox: [call for call in sandbox.desk.calls if call.name == name])

    def intents(self, order: Order) -> list[Intent]:
        """What the bank has of a payment."""
        return self.do(lambda sandbox: sandbox.bank.find(str(order.payment_id)))


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """A shop of the test's own."""
    with stripe_shaped() as (sandbox, do):
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
    "authorise": (authorise, Standing.AUTHORISED, Totals(authorised=PRICE)),
    "capture": (capture, Standing.CAPTURED, Totals(authorised=PRICE, captured=PRICE)),
    "void": (void, Standing.VOIDED, Totals(authorised=PRICE, voided=PRICE)),
    "refund": (refund, RefundStanding.DONE, Totals(authorised=PRICE, captured=PRICE, refunded=PRICE)),
}
"""How to call it, what it says in the end, and what has happened by then."""


async def ready_for(shop: Shop, name: str) -> Order:
    if name == "authorise":
        return order_in(shop)
    return await (captured(shop) if name == "refund" else authorised(shop))


async def silent_once(shop: Shop, gateway: StripeGateway, name: str, order: Order, fault: Fault) -> None:
    """Call until the fault was met; a stalled machine may be given up on before that."""
    call = CALLS[name][0]
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(GatewaySilent):
            await call(gateway, order)
        if any(one.fault is fault for one in shop.calls(name)):
            return
    pytest.fail("The fault was never met.")


async def once_answered(call: Callable[[], Awaitable[Report | RefundReport]]) -> Report | RefundReport:
    """Ask until there is an answer: the twin that hung may be seen as in progress for a while."""
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        try:
            return await call()
        except GatewaySilent:
            assert time.monotonic() < deadline, "there was never an answer"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.REPLY_LOST, Fault.RATE_LIMIT])
async def test_what_gives_no_answer_is_silence_and_has_one_effect(shop: Shop, fault: Fault, name: str) -> None:
    """A 500, a 429 or a broken wire says nothing of the money. It is sent once; asked again, it is the same call."""
    order = await ready_for(shop, name)
    shop.breaks(fault, name)
    await silent_once(shop, shop.stripe, name, order, fault)
    assert len(shop.calls(name)) == 1
    call, end, moved = CALLS[name]
    assert (await call(shop.stripe, order)).standing is end
    assert await shop.moved(order.payment_id) == moved


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_AFTER])
async def test_a_gateway_that_hangs_is_given_up_on(shop: Shop, fault: Fault, name: str) -> None:
    """Every call has a deadline, and what was asked may have happened all the same."""
    order = await ready_for(shop, name)
    shop.breaks(fault, name)
    await silent_once(shop, shop.open(seconds_max=IMPATIENCE_SECONDS), name, order, fault)
    call, end, moved = CALLS[name]
    report = await once_answered(lambda: call(shop.stripe, order))
    assert report.standing is end
    assert await shop.moved(order.payment_id) == moved


async def test_an_answer_that_never_ends_is_given_up_on(shop: Shop) -> None:
    """A deadline is for the whole call: one byte now and then does not prolong it."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with listening(drip) as port:
        url = f"http://127.0.0.1:{port}"
        key, secret = shop.sandbox.key, shop.sandbox.secret
        gateway = StripeGateway(key, webhook_secret=secret, url=url, seconds_max=IMPATIENCE_SECONDS)
        with pytest.raises(GatewaySilent):
            await gateway.status(order_in(shop, gateway_id="pi_1"))
    await gateway.close()


async def test_nobody_at_home_is_silence(shop: Shop) -> None:
    """A connection that cannot be made is no answer either."""
    gateway = StripeGateway(shop.sandbox.key, webhook_secret=shop.sandbox.secret, url="http://127.0.0.1:9")
    for call in (gateway.authorise, gateway.capture, gateway.void, gateway.status):
        with pytest.raises(GatewaySilent):
            await call(order_in(shop, gateway_id="pi_1"))
    await gateway.close()


@pytest.mark.parametrize(
    "fault, found", [(Fault.ERROR_AFTER, Standing.AUTHORISED), (Fault.ERROR_BEFORE, Standing.ABSENT)]
)
async def test_a_500_that_sticks_to_its_key_is_seen_through_by_the_status(
    shop: Shop, fault: Fault, found: Standing
) -> None:
    """Some errors are repeated for a day. The status tells the truth, and a void ends it."""
    shop.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    shop.breaks(fault, "authorise")
    order = order_in(shop)
    for _ in range(3):
        with pytest.raises(GatewaySilent):
            await shop.stripe.authorise(order)
    assert (await shop.stripe.status(order)).standing is found
    assert (await shop.stripe.void(order)).standing in {Standing.VOIDED, Standing.ABSENT}
    moved = await shop.moved(order.payment_id)
    assert (moved.authorised, moved.captured) == (moved.voided, 0)


async def test_a_500_does_not_stick_to_a_capture(shop: Shop) -> None:
    """A capture carries no key of ours: a confirmed booking does not wait a day for its money."""
    shop.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    order = await authorised(shop)
    shop.breaks(Fault.ERROR_BEFORE, "capture")
    with pytest.raises(GatewaySilent):
        await shop.stripe.capture(order)
    assert (await shop.stripe.capture(order)).standing is Standing.CAPTURED


async def test_our_ids_go_along(shop: Shop) -> None:
    """The create carries our payment's id as its key, and all of ours in its metadata; a refund its own."""
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
    """At its most talkative, every logger together."""
    caplog.set_level(logging.DEBUG)
    order = await captured(shop)
    await shop.stripe.refund(refund_of(order))
    assert str(order.payment_id) in caplog.text
    assert shop.sandbox.key not in caplog.text
    assert shop.sandbox.secret not in caplog.text


async def test_a_wrong_call_is_refused(shop: Shop) -> None:
    """What Stripe will never do is no silence: nothing was done."""
    order = order_in(shop, method="pm_unheard_of")
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(order)
    assert refused.value.code == "resource_missing"
    assert shop.intents(order) == []


async def test_a_key_that_is_not_known_is_refused(shop: Shop) -> None:
    """Whoever took the key away did not charge anybody."""
    url, secret = shop.sandbox.base_url, shop.sandbox.secret
    stranger = StripeGateway("sk_test_somebody_else", webhook_secret=secret, url=url)
    with pytest.raises(GatewayDenied) as refused:
        await stranger.authorise(order_in(shop))
    assert refused.value.code == "not_permitted"
    await stranger.close()


async def test_a_declined_payment_is_closed(shop: Shop) -> None:
    """The buyer has its client secret: left open, it could be paid after all."""
    order = await authorised(shop, Situation.DECLINED)
    [intent] = shop.intents(order)
    assert intent.status is Status.CANCELED
    with pytest.raises(Refused):
        shop.do(lambda sandbox: sandbox.bank.confirm(intent.id, method=shop.method(Situation.FINE)))


async def test_a_decline_is_told_even_if_it_cannot_be_closed(shop: Shop) -> None:
    """The no is certain, and the closing is tried again by whoever asks next."""
    shop.breaks(Fault.ERROR_BEFORE, "void")
    order = order_in(shop, Situation.NO_FUNDS)
    report = await shop.stripe.authorise(order)
    assert (report.standing, report.code) == (Standing.DECLINED, "insufficient_funds")
    assert [intent.status for intent in shop.intents(order)] == [Status.REQUIRES_PAYMENT_METHOD]
    status = await shop.stripe.status(order)
    assert (status.standing, status.code) == (Standing.DECLINED, "insufficient_funds")
    assert [intent.status for intent in shop.intents(order)] == [Status.CANCELED]


async def test_an_action_that_failed_is_closed_by_whoever_asks(shop: Shop) -> None:
    """After a failed proof the intent is open for another card: for us it is over."""
    order = await authorised(shop, Situation.ACTION)
    assert order.gateway_id
    await shop.act(order.gateway_id, succeed=False)
    assert (await shop.stripe.status(order)).standing is Standing.DECLINED
    assert [intent.status for intent in shop.intents(order)] == [Status.CANCELED]


async def test_money_that_comes_after_the_no_is_told(shop: Shop) -> None:
    """Whatever was said before, the status says what is."""
    shop.breaks(Fault.LATE_SUCCESS, "authorise")
    order = await authorised(shop)
    assert (await shop.stripe.status(order)).standing is Standing.DECLINED
    shop.do(lambda sandbox: sandbox.bank.land())
    assert (await shop.stripe.status(order)).standing is Standing.AUTHORISED
    assert (await shop.stripe.void(order)).standing is Standing.VOIDED


async def test_a_void_of_what_never_arrived_keeps_it_from_arriving(shop: Shop) -> None:
    """The create may still be on its way: its key is taken, and so it comes to nothing."""
    order = order_in(shop, automatic=True)
    assert (await shop.stripe.void(order)).standing is Standing.VOIDED
    assert (await shop.stripe.authorise(order)).standing is Standing.VOIDED
    assert [call.outcome for call in shop.calls("authorise")] == ["answered", "idempotency_error"]
    assert await shop.moved(order.payment_id) == Totals()


async def test_without_that_it_would_arrive(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a void that only looks lets the late create take the money of a booking that is lost."""

    async def leave_the_key(_: Order) -> None:
        return None

    monkeypatch.setattr(shop.stripe, "_bar", leave_the_key)
    order = order_in(shop, automatic=True)
    assert (await shop.stripe.void(order)).standing is Standing.ABSENT
    await shop.stripe.authorise(order)
    assert (await shop.moved(order.payment_id)).captured == PRICE


async def test_an_order_in_other_words_is_the_same_payment(shop: Shop) -> None:
    """A release in between may word the call anew: Stripe refuses its key, and the payment is there all the same."""
    order = await authorised(shop)
    reworded = msgspec.structs.replace(unlearnt(order), return_url="https://shop.example/elsewhere")
    report = await shop.stripe.authorise(reworded)
    assert (report.standing, report.gateway_id) == (Standing.AUTHORISED, order.gateway_id)
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(msgspec.structs.replace(reworded, currency="USD"))
    assert refused.value.code == "idempotency_error"
    assert await shop.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_payment_is_found_behind_many_others(shop: Shop) -> None:
    """A busy account has more than one page."""
    order = await authorised(shop)
    crowd(shop, 150)
    report = await shop.stripe.status(unlearnt(order))
    assert (report.standing, report.gateway_id) == (Standing.AUTHORISED, order.gateway_id)


async def test_what_was_not_looked_for_to_the_end_is_not_absent(shop: Shop) -> None:
    """A lookup is bounded; where it stops early it does not know."""
    crowd(shop, 150)
    with pytest.raises(GatewaySilent):
        await shop.open(pages_max=1).status(order_in(shop))
    assert (await shop.stripe.status(order_in(shop))).standing is Standing.ABSENT


@pytest.mark.parametrize("seconds", [0, PAYING_SECONDS_MAX])
async def test_a_payment_is_looked_for_only_where_it_can_be(shop: Shop, seconds: int) -> None:
    """Creates are sent within the hour: what others paid in the rest of the day is not turned over."""
    order = order_in(shop)
    shop.clock.advance(seconds)
    known = await shop.stripe.authorise(order)
    shop.clock.advance(2 * PAYING_SECONDS_MAX)
    crowd(shop, 150)
    report = await shop.open(pages_max=1).status(order)
    assert (report.standing, report.gateway_id) == (Standing.AUTHORISED, known.gateway_id)


async def test_control_a_whole_day_is_more_than_is_looked_through(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest come first, so a busy day is between us and what is looked for."""
    monkeypatch.setattr(stripe_gateway, "SENT_WITHIN", timedelta(hours=24))
    order = await authorised(shop)
    shop.clock.advance(2 * PAYING_SECONDS_MAX)
    crowd(shop, 150)
    with pytest.raises(GatewaySilent):
        await shop.open(pages_max=1).status(unlearnt(order))


async def test_books_turn_every_page(shop: Shop) -> None:
    """And name also what is none of ours."""
    since = shop.clock.now()
    crowd(shop, 250)
    order = await captured(shop)
    records = [record async for record in shop.stripe.books(since=since)]
    assert len({record.gateway_id for record in records}) == len(records) == 251
    assert [record.captured for record in records if record.payment_id == order.payment_id] == [PRICE]
    assert sum(record.payment_id is None for record in records) == 250


@pytest.mark.parametrize(
    "currency, ours, theirs", [("EUR", 500, 500), ("JPY", 500, 500), ("ISK", 500, 50_000), ("MGA", 500, 5)]
)
async def test_amounts_are_told_in_the_units_of_stripe(shop: Shop, currency: str, ours: int, theirs: int) -> None:
    """A factor of a hundred is a lot of money."""
    order = await authorised(shop, amount=ours, currency=currency)
    report = await shop.stripe.capture(order)
    assert report.captured == ours
    assert shop.do(lambda sandbox: totals(sandbox, order.payment_id)).captured == theirs
    await shop.stripe.refund(refund_of(order, ours))
    assert (await shop.stripe.status(order)).refunded == ours


async def test_what_stripe_cannot_charge_is_refused(shop: Shop) -> None:
    """It has no fractions of this currency, and nothing is rounded."""
    with pytest.raises(GatewayRefused) as refused:
        await shop.stripe.authorise(order_in(shop, amount=501, currency="MGA"))
    assert refused.value.code == "amount_not_payable"
    assert shop.calls("authorise") == []


def crowd(shop: Shop, count: int) -> None:
    """Other payments of the same account."""

    def make(sandbox: Sandbox) -> None:
        for _ in range(count):
            sandbox.bank.authorise(amount=1, currency="EUR", method=shop.method(Situation.FINE))

    shop.do(make)
