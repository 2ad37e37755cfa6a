"""Stripe as a gateway: PaymentIntents, confirmed in the call that makes them.

Idempotency keys go with the two calls that could charge or repay twice: a create carries our payment's id, a refund its
own. Capture and cancel carry none of ours. An intent is captured once and cancelled once by its own state, while a key
would make Stripe repeat an old no, or an old 500, for a day after it has stopped being true.

A no that comes from how the payment stands (captured already, cancelled already) is answered by how it stands.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import stripe

from earmark.clock import SystemClock
from earmark.domain.payment import PAYING_SECONDS_MAX, Standing
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    RefundReport,
    RefundStanding,
    Report,
)
from earmark.errors import SetupError
from earmark.payments import stripe_words as words
from earmark.payments.stripe_calls import IDEMPOTENCY, Line, No

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
    from earmark.payments.stripe_words import Intent, Refund

HEADER = "Stripe-Signature"
WINDOW_SECONDS = 300
"""How far a callback's time may be from ours, either way."""
CLOCKS_APART = timedelta(minutes=10)
SENT_WITHIN = timedelta(seconds=PAYING_SECONDS_MAX)
"""How long after a payment was recorded its create may be sent: afterwards it is given up, and never sent again."""

FIELDS = {"payment_method": "method", "return_url": "return_url"}
"""What of a create is what a request to pay says, and under which name."""
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
"""The same, where Stripe names no parameter: the method is the only id that a create of ours names."""
OF_THE_SHOP = frozenset({"amount", "currency"})
"""What of a create follows from what the shop sells: no buyer can mend it."""
AMOUNTS_OF_THE_SHOP = frozenset({"amount_too_large", "amount_too_small", "invalid_charge_amount"})


class StripeGateway:
    """One Stripe account. `account` names a connected one, where a platform acts for it."""

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
            raise SetupError(problem="A webhook's signing secret begins with whsec_.")
        self._line = Line(key, account=account, url=url, seconds_max=seconds_max, calls_max=calls_max)
        self._webhook_secret = webhook_secret
        self._account = account
        self._pages_max = pages_max
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"StripeGateway(live={self.live}, account={self._account!r})"

    @property
    def live(self) -> bool:
        """Whether the key moves real money."""
        return self._line.live

    async def authorise(self, order: Order) -> Report:
        """Make the intent and confirm it in one call. One that was declined is cancelled, and so it stays declined."""
        if order.gateway_id is not None:
            return await self.status(order)
        try:
            made, replayed = await self._line.create(_tried(order), key=str(order.payment_id))
        except No as no:
            if not no.declined:
                raise _refusal(no) from None
            if no.intent is None:
                return Report(standing=Standing.DECLINED, code=no.code, message=str(no))
            return await self._closed(no.intent)
        except GatewayRefused as refused:
            # The key was used with other words: by an older release, say, or by a void that found nothing.
            found = await self._find(order) if refused.code == IDEMPOTENCY else None
            if found is None or not _is_for(found, order):
                raise
            return await self._closed(found)
        return await self._closed(await self._line.retrieve(made.id) if replayed else made)

    async def capture(self, order: Order) -> Report:
        """Take all of what was set aside."""
        intent_id = await self._id_of(order)
        if intent_id is None:
            return Report(standing=Standing.ABSENT)
        try:
            return words.report_of(await self._line.capture(intent_id))
        except No as no:
            intent = await self._line.retrieve(intent_id)
            if intent.status != "requires_capture":
                return await self._closed(intent)
            if no.declined:
                # The bank said no, and Stripe still says that it can be taken: that is not for good.
                raise GatewaySilent(str(no)) from None
            raise

    async def void(self, order: Order) -> Report:
        """Cancel the intent. Where there is none, take its key, so that a create still under way comes to nothing."""
        intent_id = await self._id_of(order) or await self._bar(order)
        if intent_id is None:
            return Report(standing=Standing.ABSENT)
        try:
            return words.report_of(await self._line.cancel(intent_id))
        except No:
            intent = await self._line.retrieve(intent_id)
            if intent.status not in {"canceled", "succeeded", "processing"}:
                raise
            return words.report_of(intent)

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Give money back, unless this refund was made already: Stripe forgets idempotency keys after a day."""
        known = await self.refund_status(refund)
        if known is not None:
            return known
        intent_id = await self._id_of(refund.payment)
        if intent_id is None:
            raise GatewayRefused("payment_unknown", "Stripe knows no such payment.")
        try:
            made = await self._line.refund(_returned(refund, intent_id), key=str(refund.refund_id))
        except No as no:
            known = await self.refund_status(refund)
            return known or RefundReport(standing=RefundStanding.REFUSED, code=no.code, message=str(no))
        return words.refund_report_of(made)

    async def status(self, order: Order) -> Report:
        """How the payment stands now. One that was declined and is still open is cancelled first."""
        found = await (self._line.retrieve(order.gateway_id) if order.gateway_id else self._find(order))
        return await self._closed(found) if found else Report(standing=Standing.ABSENT)

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """How a refund stands now: by Stripe's id, or else among the refunds of its payment by ours."""
        if refund.gateway_id is not None:
            return words.refund_report_of(await self._line.retrieve_refund(refund.gateway_id))
        async for one in self._refunds_of(refund.payment):
            if words.refund_id_of(one) == refund.refund_id:
                return words.refund_report_of(one)
        return None

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """As Stripe lists them, the newest first: those that were made on its dashboard have no metadata of ours."""
        return [words.refund_record_of(one) async for one in self._refunds_of(order)]

    async def whose(self, gateway_id: str) -> UUID | None:
        """As its metadata says."""
        return words.payment_id_of(await self._line.retrieve(gateway_id))

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """The SDK checks the signature; the time is checked here, for the SDK lets a time in the future pass."""
        header = next((value for name, value in headers.items() if name.lower() == HEADER.lower()), "")
        trouble = _signature_trouble(header, body, secret=self._webhook_secret)
        if trouble is not None:
            raise CallbackRefused(trouble)
        if abs(self._clock.now().timestamp() - _moment(header)) > WINDOW_SECONDS:
            raise CallbackRefused(f"It was not signed within {WINDOW_SECONDS} seconds of now.")
        return words.callback_of(body, live=self.live, account=self._account)

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Every payment of the account that was made since, the newest first."""
        async for intent in self._pages({"created": {"gte": int(since.timestamp())}}):
            yield words.record_of(intent)

    async def close(self) -> None:
        """Wait for the calls that are under way, and hang up."""
        await self._line.close()

    async def _id_of(self, order: Order) -> str | None:
        if order.gateway_id is not None:
            return order.gateway_id
        found = await self._find(order)
        return found.id if found else None

    async def _find(self, order: Order) -> Intent | None:
        """Look for our id in the metadata of all that was made since. Stripe's search lags behind; its lists do not."""
        first, last = order.created_at - CLOCKS_APART, order.created_at + SENT_WITHIN + CLOCKS_APART
        params: PaymentIntentListParams = {"created": {"gte": int(first.timestamp()), "lte": int(last.timestamp())}}
        async for intent in self._pages(params, pages_max=self._pages_max):
            if intent.metadata.get(words.PAYMENT_ID) == str(order.payment_id):
                return intent
        return None

    async def _refunds_of(self, order: Order) -> AsyncIterator[Refund]:
        intent_id = await self._id_of(order)
        if intent_id is None:
            return
        params: RefundListParams = {"payment_intent": intent_id}
        for _ in range(self._pages_max):
            page, has_more = await self._line.refunds(params)
            for one in page:
                yield one
            if not has_more:
                return
            params = {**params, "starting_after": page[-1].id}
        raise GatewaySilent("There are too many refunds to look through.")

    async def _pages(self, params: PaymentIntentListParams, *, pages_max: int | None = None) -> AsyncIterator[Intent]:
        turned, has_more = 0, True
        while has_more:
            if turned == pages_max:
                # Not to have found it is not to know that it is not there.
                raise GatewaySilent("There are too many payments to look through.")
            page, has_more = await self._line.intents(params)
            for intent in page:
                yield intent
            if has_more:
                params = {**params, "starting_after": page[-1].id}
            turned += 1

    async def _bar(self, order: Order) -> str | None:
        """Use up the key of a create that was never seen to arrive. This intent has nothing to pay with."""
        try:
            barred, _ = await self._line.create(_untried(order), key=str(order.payment_id))
        except GatewayRefused as refused:
            if refused.code != IDEMPOTENCY:
                raise
            # The key was used meanwhile: by that create, or by one that came to nothing.
            return await self._id_of(order)
        return barred.id

    async def _closed(self, intent: Intent) -> Report:
        """How it stands, once nobody can pay any more what is said to be declined or given up."""
        report = words.report_of(intent)
        if not intent.is_open:
            return report
        try:
            await self._line.cancel(intent.id)
        except No:
            # It is not as it was said to be any more.
            return words.report_of(await self._line.retrieve(intent.id))
        except GatewaySilent:
            if report.standing is not Standing.DECLINED:
                raise
        return report


def _refusal(no: No) -> GatewayRefused:
    """A create that Stripe could not read: by the buyer's request, by what the shop sells, or by another fault."""
    field = FIELDS.get(no.param or "") or FIELDS_BY_CODE.get(no.code)
    if field is not None:
        return GatewayInvalid(no.code, str(no), field=field)
    if no.param in OF_THE_SHOP or no.code in AMOUNTS_OF_THE_SHOP:
        return GatewayDenied(no.code, str(no))
    return no


def _untried(order: Order) -> PaymentIntentCreateParams:
    """An intent that nothing is paid with yet."""
    return {
        "amount": words.to_stripe(order.amount, order.currency),
        "currency": order.currency.lower(),
        "capture_method": "automatic" if order.automatic else "manual",
        "metadata": {
            words.PAYMENT_ID: str(order.payment_id),
            words.BOOKING_ID: str(order.booking_id),
            words.EVENT_ID: order.event_id,
        },
    }


def _tried(order: Order) -> PaymentIntentCreateParams:
    """The same, tried at once. Without a place to come back to, methods that send the buyer away are left out."""
    params: PaymentIntentCreateParams = {
        **_untried(order),
        "confirm": True,
        "payment_method": order.method,
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "always" if order.return_url else "never"},
    }
    if order.return_url:
        params["return_url"] = order.return_url
    return params


def _is_for(intent: Intent, order: Order) -> bool:
    """Whether this is the payment that was ordered, and not another one by the same id."""
    wanted = (words.to_stripe(order.amount, order.currency), order.currency.lower())
    return (intent.amount, intent.currency) == wanted


def _returned(refund: RefundOrder, intent_id: str) -> RefundCreateParams:
    return {
        "payment_intent": intent_id,
        "amount": words.to_stripe(refund.amount, refund.payment.currency),
        "metadata": {words.PAYMENT_ID: str(refund.payment.payment_id), words.REFUND_ID: str(refund.refund_id)},
    }


def _signature_trouble(header: str, body: bytes, *, secret: str) -> str | None:
    """What is wrong with a signature, by the SDK's own check; None when it is right."""
    if not header.isascii():
        return "The signature is none."
    try:
        stripe.WebhookSignature.verify_header(body, header, secret)
    except stripe.SignatureVerificationError as error:
        return str(error)
    except UnicodeDecodeError:
        return "The body is no text."
    return None


def _moment(header: str) -> int:
    """When it was signed: the very time that the signature covers."""
    pairs = [part.split("=", 2) for part in header.split(",")]
    return int(next(pair[1] for pair in pairs if pair[0] == "t"))
