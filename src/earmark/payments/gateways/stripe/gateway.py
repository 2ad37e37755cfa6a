"""The Stripe gateway: PaymentIntents that are confirmed in the call that creates them.

The two calls that could charge or refund twice have an idempotency key: a create has our payment's id, a refund its
own. Capture and cancel have none. Stripe captures and cancels an intent once, by its status, while a key would make
Stripe repeat an old refusal, or an old 500, for a day after the status has changed.

When Stripe refuses a call because of the payment's status, such as captured or cancelled, that status is reported.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import stripe

from earmark.clock import SystemClock
from earmark.domain.payment import PAYING_SECONDS_MAX, ReportedState
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    RefundReport,
    Report,
    ReportedRefundState,
)
from earmark.errors import SetupError
from earmark.payments.gateways.stripe import translation
from earmark.payments.gateways.stripe.sdk_calls import IDEMPOTENCY, StripeCalls, StripeRefusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from stripe.params import (
        PaymentIntentCreateParams,
        PaymentIntentListParams,
        RefundCreateParams,
        RefundListParams,
    )

    from earmark.engine.ports.gateway import Callback, Order, Record, RefundOrder, RefundRecord
    from earmark.engine.ports.store import Clock
    from earmark.payments.gateways.stripe.translation import StripeIntent, StripeRefund

HEADER = "Stripe-Signature"
WINDOW_SECONDS = 300
"""How far the time of a callback's signature may be from ours, in either direction."""
CLOCKS_APART = timedelta(minutes=10)
SENT_WITHIN = timedelta(seconds=PAYING_SECONDS_MAX)
"""How long after a payment was recorded its create may be sent; later the payment is voided instead."""

FROM_PAYMENT_ELEMENT = "ctoken_"
"""How the id of a ConfirmationToken begins: the Payment Element makes one in the browser, of what a buyer typed."""
FIELDS = {"confirmation_token": "method", "payment_method": "method", "return_url": "return_url"}
"""The parameters of a create that come from the request to pay, and the names of their fields there."""
FIELDS_BY_CODE = {
    "payment_intent_incompatible_payment_method": "method",
    "payment_method_invalid_parameter": "method",
    "payment_method_unactivated": "method",
    "payment_method_unexpected_state": "method",
    "resource_missing": "method",
    "token_already_used": "method",
    "token_in_use": "method",
    "url_invalid": "return_url",
}
"""The same by Stripe's code, where Stripe names no parameter: the method is the only id in a create of ours."""
OF_THE_SHOP = frozenset({"amount", "currency"})
"""The parameters of a create that come from what the shop sells: no buyer can correct them."""
AMOUNTS_OF_THE_SHOP = frozenset({"amount_too_large", "amount_too_small", "invalid_charge_amount"})


class StripeGateway:
    """The gateway of one Stripe account. `account` names a connected account, where a platform acts for it."""

    name = "stripe"

    def __init__(
        self,
        key: str,
        *,
        webhook_secret: str,
        account: str | None = None,
        url: str | None = None,
        seconds_max: float = 20.0,
        calls_max: int = 16,
        pages_max: int = 100,
        clock: Clock | None = None,
    ) -> None:
        if not webhook_secret.startswith("whsec_"):
            raise SetupError(problem="The signing secret of a Stripe webhook must begin with whsec_.")
        self._calls = StripeCalls(key, account=account, url=url, seconds_max=seconds_max, calls_max=calls_max)
        self.mode = self._calls.mode
        self._webhook_secret = webhook_secret
        self._account = account
        self._pages_max = pages_max
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"StripeGateway(mode={self.mode}, account={self._account!r})"

    async def authorise(self, order: Order) -> Report:
        """Create and confirm the intent in one call. A declined intent is cancelled, so that it stays declined."""
        if order.gateway_id is not None:
            return await self.status(order)
        try:
            made, replayed = await self._calls.create(_create_params(order), key=str(order.payment_id))
        except StripeRefusal as refusal:
            if not refusal.declined:
                raise _error_for(refusal) from None
            if refusal.intent is None:
                return Report(state=ReportedState.DECLINED, code=refusal.code, message=str(refusal))
            return await self._closed(refusal.intent)
        except GatewayRefused as refused:
            # The key was used with other parameters: by an older release, or by a void that found no intent.
            found = await self._find(order) if refused.code == IDEMPOTENCY else None
            if found is None or not _is_for(found, order):
                raise
            return await self._closed(found)
        return await self._closed(await self._calls.retrieve(made.id) if replayed else made)

    async def capture(self, order: Order) -> Report:
        """Capture the whole authorised amount."""
        intent_id = await self._id_of(order)
        if intent_id is None:
            return Report(state=ReportedState.ABSENT)
        try:
            return translation.report_of(await self._calls.capture(intent_id))
        except StripeRefusal as refusal:
            intent = await self._calls.retrieve(intent_id)
            if intent.status != "requires_capture":
                return await self._closed(intent)
            if refusal.declined:
                # The bank declined, but the intent can still be captured, so the decline is not final.
                raise GatewaySilent(str(refusal)) from None
            raise

    async def void(self, order: Order) -> Report:
        """Cancel the intent. If there is none, use its key up, so that a create still under way has no effect."""
        intent_id = await self._id_of(order) or await self._use_up_key(order)
        if intent_id is None:
            return Report(state=ReportedState.ABSENT)
        try:
            return translation.report_of(await self._calls.cancel(intent_id))
        except StripeRefusal:
            intent = await self._calls.retrieve(intent_id)
            if intent.status not in {"canceled", "succeeded", "processing"}:
                raise
            return translation.report_of(intent)

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Refund, unless this refund was made before: Stripe deletes idempotency keys after a day."""
        known = await self.refund_status(refund)
        if known is not None:
            return known
        intent_id = await self._id_of(refund.payment)
        if intent_id is None:
            raise GatewayRefused("payment_unknown", "Stripe has no such payment.")
        try:
            made = await self._calls.refund(_refund_params(refund, intent_id), key=str(refund.refund_id))
        except StripeRefusal as refusal:
            known = await self.refund_status(refund)
            return known or RefundReport(state=ReportedRefundState.REFUSED, code=refusal.code, message=str(refusal))
        return translation.refund_report_of(made)

    async def status(self, order: Order) -> Report:
        """The current state of a payment. A declined intent that is still open is cancelled first."""
        found = await (self._calls.retrieve(order.gateway_id) if order.gateway_id else self._find(order))
        return await self._closed(found) if found else Report(state=ReportedState.ABSENT)

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """The current state of a refund, by Stripe's id, or by ours among the refunds of its payment."""
        if refund.gateway_id is not None:
            return translation.refund_report_of(await self._calls.retrieve_refund(refund.gateway_id))
        async for one in self._refunds_of(refund.payment):
            if translation.refund_id_of(one) == refund.refund_id:
                return translation.refund_report_of(one)
        return None

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """The refunds of a payment, the newest first. Those made on Stripe's dashboard have no metadata of ours."""
        return [translation.refund_record_of(one) async for one in self._refunds_of(order)]

    async def whose(self, gateway_id: str) -> UUID | None:
        """Our payment id, from the metadata of the intent."""
        return translation.payment_id_of(await self._calls.retrieve(gateway_id))

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Read a callback. The SDK checks the signature, this method its time: the SDK accepts a time in the future."""
        header = next((value for name, value in headers.items() if name.lower() == HEADER.lower()), "")
        problem = _signature_problem(header, body, secret=self._webhook_secret)
        if problem is not None:
            raise CallbackRefused(problem)
        if abs(self._clock.now().timestamp() - _signed_at(header)) > WINDOW_SECONDS:
            raise CallbackRefused(f"The callback was not signed within {WINDOW_SECONDS} seconds of now.")
        return translation.callback_of(body, mode=self.mode, account=self._account)

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Every payment of the account that was made since then, the newest first."""
        async for intent in self._pages({"created": {"gte": int(since.timestamp())}}):
            yield translation.record_of(intent)

    async def close(self) -> None:
        """Wait for running calls, and close the connections."""
        await self._calls.close()

    async def _id_of(self, order: Order) -> str | None:
        if order.gateway_id is not None:
            return order.gateway_id
        found = await self._find(order)
        return found.id if found else None

    async def _find(self, order: Order) -> StripeIntent | None:
        """Look for our id in the metadata of the intents of that time. Stripe's lists are current; its search lags."""
        first, last = order.created_at - CLOCKS_APART, order.created_at + SENT_WITHIN + CLOCKS_APART
        params: PaymentIntentListParams = {"created": {"gte": int(first.timestamp()), "lte": int(last.timestamp())}}
        async for intent in self._pages(params, pages_max=self._pages_max):
            if intent.metadata.get(translation.PAYMENT_ID) == str(order.payment_id):
                return intent
        return None

    async def _refunds_of(self, order: Order) -> AsyncIterator[StripeRefund]:
        intent_id = await self._id_of(order)
        if intent_id is None:
            return
        params: RefundListParams = {"payment_intent": intent_id}
        for _ in range(self._pages_max):
            page, has_more = await self._calls.refunds(params)
            for one in page:
                yield one
            if not has_more:
                return
            params = {**params, "starting_after": page[-1].id}
        raise GatewaySilent("The payment has too many refunds to search.")

    async def _pages(
        self, params: PaymentIntentListParams, *, pages_max: int | None = None
    ) -> AsyncIterator[StripeIntent]:
        pages_read, has_more = 0, True
        while has_more:
            if pages_read == pages_max:
                # The search stopped early, so the payment may exist.
                raise GatewaySilent("The account has too many payments to search.")
            page, has_more = await self._calls.intents(params)
            for intent in page:
                yield intent
            if has_more:
                params = {**params, "starting_after": page[-1].id}
            pages_read += 1

    async def _use_up_key(self, order: Order) -> str | None:
        """Use up the key of a create that may still arrive, with an intent that has no payment method."""
        try:
            made, _ = await self._calls.create(_params_without_method(order), key=str(order.payment_id))
        except GatewayRefused as refused:
            if refused.code != IDEMPOTENCY:
                raise
            # The key was used meanwhile, by that create or by one that failed.
            return await self._id_of(order)
        return made.id

    async def _closed(self, intent: StripeIntent) -> Report:
        """The report on an intent. A declined or unused one is cancelled first, so that it cannot be paid later."""
        report = translation.report_of(intent)
        if not intent.is_open:
            return report
        try:
            await self._calls.cancel(intent.id)
        except StripeRefusal:
            # The status has changed meanwhile.
            return translation.report_of(await self._calls.retrieve(intent.id))
        except GatewaySilent:
            if report.state is not ReportedState.DECLINED:
                raise
        return report


def _error_for(refusal: StripeRefusal) -> GatewayRefused:
    """The error for a wrong create: wrong by the buyer's request, by what the shop sells, or otherwise."""
    field = FIELDS.get(refusal.param or "") or FIELDS_BY_CODE.get(refusal.code)
    if field is not None:
        return GatewayInvalid(refusal.code, str(refusal), field=field)
    if refusal.param in OF_THE_SHOP or refusal.code in AMOUNTS_OF_THE_SHOP:
        return GatewayDenied(refusal.code, str(refusal))
    return refusal


def _params_without_method(order: Order) -> PaymentIntentCreateParams:
    """The parameters of an intent without a payment method."""
    return {
        "amount": translation.to_stripe(order.amount, order.currency),
        "currency": order.currency.lower(),
        "capture_method": "automatic" if order.automatic else "manual",
        "metadata": {
            translation.PAYMENT_ID: str(order.payment_id),
            translation.BOOKING_ID: str(order.booking_id),
            translation.EVENT_ID: order.event_id,
        },
    }


def _create_params(order: Order) -> PaymentIntentCreateParams:
    """The same, with its method, confirmed at once. Without a return URL, no method that redirects the buyer.

    A ConfirmationToken says itself that Stripe.js in the page handles the buyer's action.
    """
    params: PaymentIntentCreateParams = {
        **_params_without_method(order),
        "confirm": True,
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "always" if order.return_url else "never"},
    }
    if order.method.startswith(FROM_PAYMENT_ELEMENT):
        params["confirmation_token"] = order.method
    else:
        params["payment_method"] = order.method
    if order.return_url:
        params["return_url"] = order.return_url
    return params


def _is_for(intent: StripeIntent, order: Order) -> bool:
    """Whether an intent has the amount and currency of the order."""
    wanted = (translation.to_stripe(order.amount, order.currency), order.currency.lower())
    return (intent.amount, intent.currency) == wanted


def _refund_params(refund: RefundOrder, intent_id: str) -> RefundCreateParams:
    return {
        "payment_intent": intent_id,
        "amount": translation.to_stripe(refund.amount, refund.payment.currency),
        "metadata": {
            translation.PAYMENT_ID: str(refund.payment.payment_id),
            translation.REFUND_ID: str(refund.refund_id),
        },
    }


def _signature_problem(header: str, body: bytes, *, secret: str) -> str | None:
    """What is wrong with a signature, by the SDK's check; None when it is right."""
    if not header.isascii():
        return "The signature header is not ASCII text."
    try:
        stripe.WebhookSignature.verify_header(body, header, secret)
    except stripe.SignatureVerificationError as error:
        return str(error)
    except UnicodeDecodeError:
        return "The body is not UTF-8 text."
    return None


def _signed_at(header: str) -> int:
    """The time that the signature covers."""
    pairs = [part.split("=", 2) for part in header.split(",")]
    return int(next(pair[1] for pair in pairs if pair[0] == "t"))
