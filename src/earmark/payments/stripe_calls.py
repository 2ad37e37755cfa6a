"""The line to Stripe: single calls by its official SDK, with a deadline each, and its errors in words of the port.

The SDK's own asynchronous way needs an HTTP client that nothing else here uses. Its blocking client comes with it, so
the calls are made in threads of this line's own, a bounded number of them. Nothing is sent twice from here.

The secrets stay here: no error that leaves has the SDK's as its cause, for that one leads to the request's headers.
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

from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent
from earmark.errors import SetupError
from earmark.payments.stripe_words import Intent, Refund, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from stripe.params import (
        PaymentIntentCreateParams,
        PaymentIntentListParams,
        RefundCreateParams,
        RefundListParams,
    )

T = TypeVar("T", Intent, Refund)

PAGE = 100
IDEMPOTENCY = "idempotency_error"
"""The code of a call whose key was used for another one."""
SHOPS_OWN_FAULT = frozenset(
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
description on https://docs.stripe.com/error-codes: no buyer can mend them."""
EXPANDED = ["latest_charge"]
EXPANDED_IN_LISTS = ["data.latest_charge"]
_KEY = re.compile(r"[sr]k_(test|live)_[A-Za-z0-9_]{1,255}")


class No(GatewayRefused):
    """A no that may come from how the payment stands, or from the buyer's bank; then with the payment as it was."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        declined: bool = False,
        intent: Intent | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.declined = declined
        self.param = param
        self.intent = intent


class Line:
    """The calls of one Stripe account. Each raises `No`, another `GatewayRefused`, or `GatewaySilent`."""

    def __init__(self, key: str, *, account: str | None, url: str | None, seconds_max: float, calls_max: int) -> None:
        found = _KEY.fullmatch(key)
        if found is None:
            raise SetupError(problem="A secret key of Stripe's begins with sk_test_, sk_live_, rk_test_ or rk_live_.")
        self.live = found[1] == "live"
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
        return f"Line(live={self.live})"

    async def create(self, params: PaymentIntentCreateParams, *, key: str) -> tuple[Intent, bool]:
        """Make an intent; also whether the answer is one that was given before, and may have aged."""
        whole: PaymentIntentCreateParams = {**params, "expand": EXPANDED}
        answer = await self._call(lambda: self._intents.create(whole, {"idempotency_key": key}))
        headers = answer.last_response.headers if answer.last_response else {}
        return _read(answer.to_dict(), Intent), headers.get("Idempotent-Replayed") == "true"

    async def retrieve(self, intent_id: str) -> Intent:
        """An intent as it stands now."""
        return await self._ask(Intent, lambda: self._intents.retrieve(intent_id, {"expand": EXPANDED}))

    async def capture(self, intent_id: str) -> Intent:
        """Take all that was set aside."""
        return await self._ask(Intent, lambda: self._intents.capture(intent_id, {"expand": EXPANDED}))

    async def cancel(self, intent_id: str) -> Intent:
        """Give an intent up."""
        return await self._ask(Intent, lambda: self._intents.cancel(intent_id, {"expand": EXPANDED}))

    async def intents(self, params: PaymentIntentListParams) -> tuple[list[Intent], bool]:
        """A page of intents, the newest first, and whether there are more."""
        whole: PaymentIntentListParams = {**params, "limit": PAGE, "expand": EXPANDED_IN_LISTS}
        return _rows(await self._call(lambda: self._intents.list(whole)), Intent)

    async def refund(self, params: RefundCreateParams, *, key: str) -> Refund:
        """Make a refund."""
        return await self._ask(Refund, lambda: self._refunds.create(params, {"idempotency_key": key}))

    async def retrieve_refund(self, refund_id: str) -> Refund:
        """A refund as it stands now."""
        return await self._ask(Refund, lambda: self._refunds.retrieve(refund_id))

    async def refunds(self, params: RefundListParams) -> tuple[list[Refund], bool]:
        """A page of refunds, the newest first, and whether there are more."""
        whole: RefundListParams = {**params, "limit": PAGE}
        return _rows(await self._call(lambda: self._refunds.list(whole)), Refund)

    async def close(self) -> None:
        """Wait for the calls that are under way, and hang up."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._session.close()

    async def _ask(self, kind: type[T], call: Callable[[], stripe.StripeObject]) -> T:
        return _read((await self._call(call)).to_dict(), kind)

    async def _call(self, call: Callable[[], stripe.StripeObject]) -> stripe.StripeObject:
        def attempt() -> stripe.StripeObject | Exception:
            try:
                return call()
            except stripe.StripeError as error:
                return self._meaning(error)

        try:
            async with asyncio.timeout(self._seconds_max):
                outcome = await asyncio.get_running_loop().run_in_executor(self._threads, attempt)
        except TimeoutError:
            outcome = GatewaySilent(f"Stripe did not answer within {self._seconds_max:g} seconds.")
        # Raised only here, where no other error is being handled that would go along with it.
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _meaning(self, error: stripe.StripeError) -> Exception:
        """An error of the SDK's in words of the port."""
        message = (error.user_message or type(error).__name__).replace(self._key, "…")
        match error:
            case stripe.CardError():
                code, intent = _declined(error)
                return No(code, message, declined=True, intent=intent)
            case stripe.InvalidRequestError(code=code) if code in SHOPS_OWN_FAULT:
                return GatewayDenied(str(code), message)
            case stripe.InvalidRequestError():
                return No(error.code or "invalid_request", message, param=error.param)
            case stripe.IdempotencyError():
                return GatewayRefused(IDEMPOTENCY, message)
            case stripe.AuthenticationError() | stripe.PermissionError():
                return GatewayDenied("not_permitted", message)
            case _:
                return GatewaySilent(message)


def _session(calls_max: int) -> requests.Session:
    """One for all threads, so that it can be closed: the SDK would keep one in each. It takes no cookies."""
    session = requests.Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=calls_max))
    return session


def _declined(error: stripe.CardError) -> tuple[str, Intent | None]:
    """Why the buyer's bank said no, and the intent that it said no to."""
    body = error.json_body if isinstance(error.json_body, dict) else {}
    told = body.get("error", {})
    try:
        return msgspec.convert(told, Trouble).word, msgspec.convert(told.get("payment_intent"), Intent)
    except msgspec.ValidationError:
        return error.code or "declined", None


def _read(said: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise GatewaySilent(f"Stripe answered something else than was asked for: {error}") from None


def _rows(answer: stripe.StripeObject, kind: type[T]) -> tuple[list[T], bool]:
    page = answer.to_dict()
    rows = [_read(row, kind) for row in page.get("data", [])]
    return rows, bool(page.get("has_more")) and bool(rows)
