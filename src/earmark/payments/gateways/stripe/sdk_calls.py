"""Single calls of Stripe's official SDK, each with a deadline, and its errors translated to those of the port.

The SDK's asynchronous client needs an HTTP library that nothing else here uses, so its blocking client runs in a
bounded number of threads. No call is retried here.

The secrets do not leave this module: no error raised here has an error of the SDK's as its cause, because that one
leads to the request's headers.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, TypeVar

import msgspec
import requests
import stripe
from requests.adapters import HTTPAdapter

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent
from earmark.errors import SetupError
from earmark.payments.gateways.stripe.translation import StripeIntent, StripePaymentError, StripeRefund

if TYPE_CHECKING:
    from collections.abc import Callable

    from stripe.params import (
        PaymentIntentCreateParams,
        PaymentIntentListParams,
        RefundCreateParams,
        RefundListParams,
    )

T = TypeVar("T", StripeIntent, StripeRefund)

PAGE = 100
IDEMPOTENCY = "idempotency_error"
"""The code of a call whose key was used with other parameters."""
SHOP_SETUP_CODES = frozenset(
    {
        "account_invalid",
        "alipay_upgrade_required",
        "api_key_expired",
        "livemode_mismatch",
        "parameter_unknown",
        "parameters_exclusive",
        "platform_api_key_expired",
        "secret_key_required",
        "sepa_unsupported_account",
        "testmode_charges_only",
        "tls_version_unsupported",
    }
)
"""Codes of Stripe's that say that the account, the key or the integration is not set up for this call, each by its
description on https://docs.stripe.com/error-codes: no buyer can correct them."""
EXPANDED = ["latest_charge"]
EXPANDED_IN_LISTS = ["data.latest_charge"]
_KEY = re.compile(r"[sr]k_(test|live)_[A-Za-z0-9_]{1,255}")


class StripeRefusal(GatewayRefused):
    """Stripe refuses a call, often because of the payment's status. `declined`: the buyer's bank refused it."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        declined: bool = False,
        intent: StripeIntent | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.declined = declined
        self.param = param
        self.intent = intent


class StripeCalls:
    """The calls of one Stripe account. Each raises `StripeRefusal`, another `GatewayRefused`, or `GatewaySilent`."""

    def __init__(self, key: str, *, account: str | None, url: str | None, seconds_max: float, calls_max: int) -> None:
        found = _KEY.fullmatch(key)
        if found is None:
            raise SetupError(problem="A secret key of Stripe must begin with sk_test_, sk_live_, rk_test_ or rk_live_.")
        self.mode = Mode(found[1])
        self._key = key
        self._seconds_max = seconds_max
        self._threads = ThreadPoolExecutor(max_workers=calls_max, thread_name_prefix="earmark-stripe")
        self._session = _session(calls_max)
        client = stripe.StripeClient(
            key,
            stripe_account=account,
            base_addresses={"api": url.rstrip("/")} if url else {},
            http_client=stripe.RequestsClient(timeout=seconds_max, session=self._session),
            max_network_retries=0,
        )
        self._intents = client.v1.payment_intents
        self._refunds = client.v1.refunds

    def __repr__(self) -> str:
        return f"StripeCalls(mode={self.mode})"

    async def create(self, params: PaymentIntentCreateParams, *, key: str) -> tuple[StripeIntent, bool]:
        """Create an intent. Also returns whether the answer is a repeated one, which may be out of date."""
        all_params: PaymentIntentCreateParams = {**params, "expand": EXPANDED}
        answer = await self._call(lambda: self._intents.create(all_params, {"idempotency_key": key}))
        headers = answer.last_response.headers if answer.last_response else {}
        return _read(answer.to_dict(), StripeIntent), headers.get("Idempotent-Replayed") == "true"

    async def retrieve(self, intent_id: str) -> StripeIntent:
        """The current state of an intent."""
        return await self._call_for(StripeIntent, lambda: self._intents.retrieve(intent_id, {"expand": EXPANDED}))

    async def capture(self, intent_id: str) -> StripeIntent:
        """Capture the whole authorised amount."""
        return await self._call_for(StripeIntent, lambda: self._intents.capture(intent_id, {"expand": EXPANDED}))

    async def cancel(self, intent_id: str) -> StripeIntent:
        """Cancel an intent that was not captured."""
        return await self._call_for(StripeIntent, lambda: self._intents.cancel(intent_id, {"expand": EXPANDED}))

    async def intents(self, params: PaymentIntentListParams) -> tuple[list[StripeIntent], bool]:
        """One page of intents, the newest first, and whether there are more."""
        all_params: PaymentIntentListParams = {**params, "limit": PAGE, "expand": EXPANDED_IN_LISTS}
        return _rows(await self._call(lambda: self._intents.list(all_params)), StripeIntent)

    async def refund(self, params: RefundCreateParams, *, key: str) -> StripeRefund:
        """Create a refund under this idempotency key."""
        return await self._call_for(StripeRefund, lambda: self._refunds.create(params, {"idempotency_key": key}))

    async def retrieve_refund(self, refund_id: str) -> StripeRefund:
        """The current state of a refund."""
        return await self._call_for(StripeRefund, lambda: self._refunds.retrieve(refund_id))

    async def refunds(self, params: RefundListParams) -> tuple[list[StripeRefund], bool]:
        """One page of refunds, the newest first, and whether there are more."""
        all_params: RefundListParams = {**params, "limit": PAGE}
        return _rows(await self._call(lambda: self._refunds.list(all_params)), StripeRefund)

    async def close(self) -> None:
        """Wait for running calls, and close the connections."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._session.close()

    async def _call_for(self, kind: type[T], call: Callable[[], stripe.StripeObject]) -> T:
        return _read((await self._call(call)).to_dict(), kind)

    async def _call(self, call: Callable[[], stripe.StripeObject]) -> stripe.StripeObject:
        def attempt() -> stripe.StripeObject | Exception:
            try:
                return call()
            except stripe.StripeError as error:
                return self._translated(error)

        try:
            async with asyncio.timeout(self._seconds_max):
                outcome = await asyncio.get_running_loop().run_in_executor(self._threads, attempt)
        except TimeoutError:
            outcome = GatewaySilent(f"Stripe did not answer within {self._seconds_max:g} seconds.")
        # Raised only here, where no other error is being handled that would become its context.
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _translated(self, error: stripe.StripeError) -> Exception:
        """Translate an error of the SDK to one of the port, without the key."""
        message = (error.user_message or type(error).__name__).replace(self._key, "…")
        match error:
            case stripe.CardError():
                code, intent = _declined(error)
                return StripeRefusal(code, message, declined=True, intent=intent)
            case stripe.InvalidRequestError(code=code) if code in SHOP_SETUP_CODES:
                return GatewayDenied(str(code), message)
            case stripe.InvalidRequestError():
                return StripeRefusal(error.code or "invalid_request", message, param=error.param)
            case stripe.IdempotencyError():
                return GatewayRefused(IDEMPOTENCY, message)
            case stripe.AuthenticationError() | stripe.PermissionError():
                return GatewayDenied("not_permitted", message)
            case _:
                return GatewaySilent(message)


def _session(calls_max: int) -> requests.Session:
    """One HTTP session for all threads, so that it can be closed: the SDK would keep one per thread. No cookies."""
    session = requests.Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=calls_max))
    return session


def _declined(error: stripe.CardError) -> tuple[str, StripeIntent | None]:
    """Why the buyer's bank declined, and the intent that it declined."""
    body = error.json_body if isinstance(error.json_body, dict) else {}
    reason = body.get("error", {})
    try:
        code = msgspec.convert(reason, StripePaymentError).most_specific_code
        return code, msgspec.convert(reason.get("payment_intent"), StripeIntent)
    except msgspec.ValidationError:
        return error.code or "declined", None


def _read(answer: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise GatewaySilent(f"Stripe's answer has an unexpected form: {error}") from None


def _rows(answer: stripe.StripeObject, kind: type[T]) -> tuple[list[T], bool]:
    page = answer.to_dict()
    rows = [_read(row, kind) for row in page.get("data", [])]
    return rows, bool(page.get("has_more")) and bool(rows)
