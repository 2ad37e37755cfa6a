"""What Stripe's Payment Element makes in the browser, confirmed by the Stripe gateway on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.payments.gateways.conformance.gateways_under_test import ANSWER_SECONDS_MAX, SandboxHarness, served_sandbox
from tests.payments.gateways.conformance.harness import PRICE, Situation, Totals, order_in

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewayInvalid, GatewaySilent
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox.faults import Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.payments.gateways.conformance.gateways_under_test import Reach

    from earmark.clock import MovableClock
    from earmark.engine.ports.gateway import Order
    from earmark.sandbox.assemble_sandbox import Sandbox


class Checkout(SandboxHarness):
    """A Stripe gateway, and buyers who type cards into its page."""

    def __init__(self, gateway: StripeGateway, clock: MovableClock, do: Reach) -> None:
        super().__init__(gateway, clock, do)
        self.do = do

    def order(self, method: str) -> Order:
        """An order with a token of this card."""
        token = self.do(lambda sandbox: sandbox.confirmation_tokens.issue(method).id)
        return msgspec.structs.replace(
            order_in(self, Situation.FINE), method=token, return_url="https://shop.example/checkout"
        )


@pytest.fixture
async def checkout() -> AsyncIterator[Checkout]:
    with served_sandbox() as (sandbox, do):
        opened: Sandbox = sandbox
        gateway = StripeGateway(
            opened.key,
            webhook_secret=opened.secret,
            url=opened.base_url,
            clock=opened.clock,
            seconds_max=ANSWER_SECONDS_MAX,
        )
        yield Checkout(gateway, opened.clock, do)  # type: ignore[arg-type]
        await gateway.close()


async def test_a_token_of_the_payment_element_is_charged_once(checkout: Checkout) -> None:
    """Authorised, and captured afterwards, as any method."""
    order = checkout.order("pm_card_visa")
    report = await checkout.gateway.authorise(order)
    assert report.state is ReportedState.AUTHORISED
    await checkout.gateway.capture(msgspec.structs.replace(order, gateway_id=report.gateway_id))
    assert await checkout.moved(order.payment_id) == Totals(authorised=PRICE, captured=PRICE)


async def test_a_declined_token_is_a_decline(checkout: Checkout) -> None:
    """With the reason that a buyer may see."""
    report = await checkout.gateway.authorise(checkout.order("pm_card_visa_chargeDeclinedInsufficientFunds"))
    assert (report.state, report.code) == (ReportedState.DECLINED, "insufficient_funds")


async def test_the_action_of_a_token_is_for_stripe_js_in_the_page(checkout: Checkout) -> None:
    """The answer has a client secret and no address; when the buyer has acted, the payment is authorised."""
    order = checkout.order("pm_card_threeDSecure2Required")
    report = await checkout.gateway.authorise(order)
    assert report.state is ReportedState.REQUIRES_ACTION
    assert report.action is not None
    assert set(report.action) == {"client_secret"}
    assert report.gateway_id is not None
    await checkout.act(report.gateway_id, succeed=True)
    known = msgspec.structs.replace(order, gateway_id=report.gateway_id)
    assert (await checkout.gateway.status(known)).state is ReportedState.AUTHORISED


async def test_a_token_whose_reply_was_lost_is_sent_again_and_charged_once(checkout: Checkout) -> None:
    """The payment's id is the key, so that Stripe does not see a used token."""
    order = checkout.order("pm_card_visa")
    checkout.do(lambda sandbox: sandbox.script.add(Fault.REPLY_LOST, "authorise"))
    with pytest.raises(GatewaySilent):
        await checkout.gateway.authorise(order)
    assert (await checkout.gateway.authorise(order)).state is ReportedState.AUTHORISED
    assert await checkout.moved(order.payment_id) == Totals(authorised=PRICE)


async def test_a_token_that_was_used_is_a_wrong_request_and_no_decline(checkout: Checkout) -> None:
    """The field that the client sent is named, and no try of the buyer's is counted."""
    order = checkout.order("pm_card_visa")
    await checkout.gateway.authorise(order)
    another = msgspec.structs.replace(checkout.order("pm_card_visa"), method=order.method)
    with pytest.raises(GatewayInvalid) as refused:
        await checkout.gateway.authorise(another)
    assert refused.value.field == "method"
