"""The Stripe gateway on canned answers: every status of an intent, every kind of error, and many events."""

from __future__ import annotations

import traceback
from io import BytesIO
from logging import DEBUG
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
import requests
import stripe
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from tests.payments.gateways.conformance.gateways_under_test import in_process
from tests.payments.gateways.conformance.harness import order_in, refund_of

from earmark.clock import MovableClock
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    ReportedRefundState,
)
from earmark.errors import SetupError
from earmark.payments.gateways.stripe import translation
from earmark.payments.gateways.stripe.gateway import AMOUNTS_OF_THE_SHOP, FIELDS_BY_CODE, StripeGateway
from earmark.payments.gateways.stripe.sdk_calls import SHOP_SETUP_CODES
from earmark.sandbox import sign_and_verify_callbacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.engine.ports.gateway import Callback, Order

KEY = "sk_test_canaryCANARYcanary"
SECRET = "whsec_canaryCANARYcanary"
CANARY = "canaryCANARYcanary"


class Canned(BaseAdapter):
    """Gives canned answers in order, the last one repeatedly, and records the requests."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.requests: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Answer without a network."""
        self.requests.append(request)
        response = requests.Response()
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response.status_code, response.raw = status, BytesIO(body)
        response.headers = CaseInsensitiveDict({"Content-Type": "application/json", "Request-Id": "req_1"})
        response.request, response.url = request, request.url or ""
        return response

    def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
async def gateway() -> AsyncIterator[StripeGateway]:
    """A gateway whose URL does not exist."""
    opened = StripeGateway(KEY, webhook_secret=SECRET, url="http://stripe.invalid", clock=MovableClock())
    yield opened
    await opened.close()


@pytest.fixture
async def order() -> Order:
    """A payment whose id at Stripe is known."""
    async with in_process() as harness:
        return order_in(harness, gateway_id="pi_1")


def answer(gateway: StripeGateway, status: int, content: object, *then: tuple[int, object]) -> Canned:
    """Set Stripe's next answers."""
    answers = [(status, content), *then]
    canned = Canned(*((code, it if isinstance(it, bytes) else msgspec.json.encode(it)) for code, it in answers))
    gateway._calls._session.mount("http://stripe.invalid", canned)
    return canned


def problem(kind: str, code: str | None = None, message: str = "No.") -> dict[str, Any]:
    return {"error": {"type": kind, "code": code, "message": message}}


SILENCES = {
    "a 500": (500, problem("api_error")),
    "a 503": (503, problem("api_error")),
    "a proxy's own page": (502, b"<html>bad gateway</html>"),
    "a page where an answer was due": (200, b"<html>welcome</html>"),
    "an answer cut short": (200, b'{"id": "pi_1", "stat'),
    "another thing": (200, {"id": "pi_1", "object": "payment_intent"}),
    "a call with the same key in progress": (409, problem("invalid_request_error", "idempotency_key_in_use")),
    "a lock": (429, problem("invalid_request_error", "lock_timeout")),
    "too many calls": (429, problem("invalid_request_error", "rate_limit")),
    "an error without a kind": (400, b"{}"),
}
REFUSALS = {
    "a key used otherwise": (400, problem("idempotency_error"), "idempotency_error"),
    "a key that is unknown": (401, problem("invalid_request_error"), "not_permitted"),
    "a key that may not": (403, problem("invalid_request_error"), "not_permitted"),
    "a wrong parameter": (400, problem("invalid_request_error", "parameter_invalid_empty"), "parameter_invalid_empty"),
    "a wrong call": (400, problem("invalid_request_error"), "invalid_request"),
    "nothing there": (404, problem("invalid_request_error", "resource_missing"), "resource_missing"),
}


def every_call(gateway: StripeGateway, order: Order) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every call of the gateway, by name."""
    new = msgspec.structs.replace(order, gateway_id=None)
    back = refund_of(order)
    return {
        "authorise": lambda: gateway.authorise(new),
        "capture": lambda: gateway.capture(order),
        "void": lambda: gateway.void(order),
        "status": lambda: gateway.status(order),
        "refund": lambda: gateway.refund(back),
        "refund_status": lambda: gateway.refund_status(msgspec.structs.replace(back, gateway_id="re_1")),
    }


@pytest.mark.parametrize("silence", SILENCES)
async def test_an_unusable_answer_leaves_the_outcome_unknown(
    gateway: StripeGateway, order: Order, silence: str
) -> None:
    """Every call raises `GatewaySilent`."""
    status, content = SILENCES[silence]
    for name, call in every_call(gateway, order).items():
        # For these two calls, "another thing" is a valid refund that is not decided yet.
        if silence == "another thing" and name in {"refund", "refund_status"}:
            continue
        answer(gateway, status, content)
        with pytest.raises(GatewaySilent):
            await call()


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refused_call_has_stripes_code(gateway: StripeGateway, order: Order, refusal: str) -> None:
    """The error has a code, and no call is sent twice."""
    status, content, code = REFUSALS[refusal]
    for name, call in every_call(gateway, order).items():
        canned = answer(gateway, status, content)
        with pytest.raises(GatewayRefused) as refused:
            await call()
        assert refused.value.code == code, name
        assert len({(one.method, one.path_url) for one in canned.requests}) == len(canned.requests)


FAULTS_OF_THE_SHOP = {
    "a key that was revoked": (401, problem("invalid_request_error", "api_key_expired")),
    "a key that may not": (403, problem("invalid_request_error")),
    "an account without SEPA": (400, problem("invalid_request_error", "sepa_unsupported_account")),
    "an integration that is too old": (400, problem("invalid_request_error", "parameter_unknown")),
    "an amount below the least": (400, problem("invalid_request_error", "amount_too_small")),
    "an account that takes no live charges": (400, problem("invalid_request_error", "testmode_charges_only")),
}


@pytest.mark.parametrize("fault", FAULTS_OF_THE_SHOP)
async def test_a_fault_of_the_shop_is_denied(gateway: StripeGateway, order: Order, fault: str) -> None:
    """Only the shop can correct it, unlike a token that Stripe does not know, which is refused and not denied."""
    new = msgspec.structs.replace(order, gateway_id=None)
    answer(gateway, *FAULTS_OF_THE_SHOP[fault])
    with pytest.raises(GatewayDenied):
        await gateway.authorise(new)
    answer(gateway, 404, problem("invalid_request_error", "resource_missing"))
    with pytest.raises(GatewayRefused) as refused:
        await gateway.authorise(new)
    assert not isinstance(refused.value, GatewayDenied)


WRONG_REQUESTS = {
    "resource_missing": "method",
    "token_already_used": "method",
    "payment_method_unexpected_state": "method",
    "payment_method_unactivated": "method",
    "url_invalid": "return_url",
}


@pytest.mark.parametrize("code", WRONG_REQUESTS)
async def test_an_error_in_the_request_to_pay_names_its_field(gateway: StripeGateway, order: Order, code: str) -> None:
    """The field follows from Stripe's code, or from the parameter that Stripe names."""
    new = msgspec.structs.replace(order, gateway_id=None)
    answer(gateway, 400, problem("invalid_request_error", code))
    with pytest.raises(GatewayInvalid) as refused:
        await gateway.authorise(new)
    assert (refused.value.field, refused.value.code) == (WRONG_REQUESTS[code], code)
    content = {"error": {"type": "invalid_request_error", "message": "No.", "param": "payment_method"}}
    answer(gateway, 400, content)
    with pytest.raises(GatewayInvalid) as refused:
        await gateway.authorise(new)
    assert refused.value.field == "method"


def test_the_codes_of_the_shops_faults_exist_at_stripe() -> None:
    """The official SDK lists them: a misspelled code would never occur."""
    listed = Path(stripe.__file__).parent.joinpath("_payment_intent.py").read_text(encoding="utf-8")
    ours = SHOP_SETUP_CODES | FIELDS_BY_CODE.keys() | AMOUNTS_OF_THE_SHOP
    assert [code for code in sorted(ours) if f'"{code}"' not in listed] == []


async def test_a_decline_without_a_payment_is_a_decline(gateway: StripeGateway, order: Order) -> None:
    """Stripe declines some cards before it makes an intent."""
    answer(gateway, 402, problem("card_error", "incorrect_cvc", "The code is wrong."))
    report = await gateway.authorise(msgspec.structs.replace(order, gateway_id=None))
    assert (report.state, report.code, report.message) == (
        ReportedState.DECLINED,
        "incorrect_cvc",
        "The code is wrong.",
    )


async def test_a_capture_that_may_still_succeed_is_not_declined(gateway: StripeGateway, order: Order) -> None:
    """The intent's status decides, so a temporary error of the bank does not cancel a confirmed booking."""
    no = (402, problem("card_error", "processing_error", "Try again."))
    content = {"id": "pi_1", "amount": 4500, "currency": "eur"}
    answer(gateway, *no, (200, {**content, "status": "requires_capture"}))
    with pytest.raises(GatewaySilent):
        await gateway.capture(order)
    answer(gateway, *no, (200, {**content, "status": "canceled", "last_payment_error": {"code": "expired_card"}}))
    report = await gateway.capture(order)
    assert (report.state, report.code) == (ReportedState.DECLINED, "expired_card")


async def test_a_refund_that_exists_by_now_is_done(gateway: StripeGateway, order: Order) -> None:
    """'Already refunded' is done if this refund exists, and refused otherwise."""
    back = refund_of(order)
    made = {"id": "re_1", "status": "succeeded", "metadata": {"refund_id": str(back.refund_id)}}
    no = (400, problem("invalid_request_error", "charge_already_refunded"))
    answer(gateway, 200, {"data": [], "has_more": False}, no, (200, {"data": [made], "has_more": False}))
    assert (await gateway.refund(back)).state is ReportedRefundState.DONE
    answer(gateway, 200, {"data": [], "has_more": False}, no, (200, {"data": [], "has_more": False}))
    report = await gateway.refund(back)
    assert (report.state, report.code) == (ReportedRefundState.REFUSED, "charge_already_refunded")


INTENT = translation.StripeIntent(id="pi_1", status="", amount=4500, currency="eur")
FAILED = translation.StripePaymentError(code="card_declined", decline_code="insufficient_funds", message="Too little.")
STATUSES = [
    ("requires_payment_method", None, ReportedState.VOIDED),
    ("requires_payment_method", FAILED, ReportedState.DECLINED),
    ("requires_confirmation", None, ReportedState.VOIDED),
    ("requires_action", None, ReportedState.REQUIRES_ACTION),
    ("processing", None, ReportedState.PROCESSING),
    ("requires_capture", None, ReportedState.AUTHORISED),
    ("canceled", None, ReportedState.VOIDED),
    ("canceled", FAILED, ReportedState.DECLINED),
    ("succeeded", None, ReportedState.CAPTURED),
    ("something_new", None, ReportedState.PROCESSING),
]


@pytest.mark.parametrize("status, trouble, state", STATUSES)
def test_every_status_has_a_state(
    status: str, trouble: translation.StripePaymentError | None, state: ReportedState
) -> None:
    """A failed attempt adds its code."""
    report = translation.report_of(msgspec.structs.replace(INTENT, status=status, last_payment_error=trouble))
    assert (report.state, report.gateway_id) == (state, "pi_1")
    assert report.code == ("insufficient_funds" if trouble else None)


def test_a_cancelled_payment_is_declined_by_its_failed_charge() -> None:
    """Stripe may clear the error of a changed intent; its charge keeps it."""
    charge = translation.StripeCharge(status="failed", failure_code="expired_card", failure_message="Too old.")
    report = translation.report_of(msgspec.structs.replace(INTENT, status="canceled", latest_charge=charge))
    assert (report.state, report.code, report.message) == (ReportedState.DECLINED, "expired_card", "Too old.")


def test_a_cancelled_authorisation_is_not_counted_as_refunded() -> None:
    """Stripe counts the charge of a cancelled intent as refunded, although no money was captured."""
    let_go = msgspec.structs.replace(
        INTENT, status="canceled", latest_charge=translation.StripeCharge(amount_refunded=4500)
    )
    taken = msgspec.structs.replace(let_go, status="succeeded", amount_received=4500)
    assert [(it.captured, it.refunded) for it in map(translation.record_of, (let_go, taken))] == [(0, 0), (4500, 4500)]


@pytest.mark.parametrize("decline", ["fraudulent", "lost_card", "merchant_blacklist", "stolen_card", "generic_decline"])
def test_hidden_decline_codes_are_not_shown(decline: str) -> None:
    """A thief must not learn that the card is reported stolen."""
    assert (
        translation.StripePaymentError(code="card_declined", decline_code=decline).most_specific_code == "card_declined"
    )
    assert (
        translation.StripePaymentError(code="card_declined", decline_code="expired_card").most_specific_code
        == "expired_card"
    )


@pytest.mark.parametrize(
    "status, state",
    [
        ("succeeded", ReportedRefundState.DONE),
        ("pending", ReportedRefundState.PROCESSING),
        ("requires_action", ReportedRefundState.PROCESSING),
        (None, ReportedRefundState.PROCESSING),
        ("failed", ReportedRefundState.REFUSED),
        ("canceled", ReportedRefundState.REFUSED),
    ],
)
def test_every_status_of_a_refund_has_a_state(status: str | None, state: ReportedRefundState) -> None:
    """A refused refund has a code."""
    report = translation.refund_report_of(translation.StripeRefund(id="re_1", status=status))
    assert report.state is state
    assert bool(report.code) is (state is ReportedRefundState.REFUSED)


def event(**changes: Any) -> dict[str, Any]:
    about = {"object": "payment_intent", "id": "pi_1", "amount": 4500, "currency": "eur", "metadata": {}}
    whole = {"id": "evt_1", "object": "event", "type": "payment_intent.succeeded", "livemode": False}
    return {**whole, "data": {"object": about}, **changes}


def receive(gateway: StripeGateway, content: object) -> Callback:
    body = msgspec.json.encode(content)
    now = gateway._clock.now()
    return gateway.read_callback(
        {"stripe-signature": sign_and_verify_callbacks.sign(body, secret=SECRET, now=now)}, body
    )


async def test_a_callback_of_the_other_mode_is_refused(gateway: StripeGateway) -> None:
    """A test key refuses live events, and a live key test events."""
    assert receive(gateway, event()).mode is Mode.TEST
    with pytest.raises(CallbackRefused):
        receive(gateway, event(livemode=True))
    real = StripeGateway("rk_live_1", webhook_secret=SECRET)
    assert receive(real, event(livemode=True)).mode is Mode.LIVE
    with pytest.raises(CallbackRefused):
        receive(real, event())
    await real.close()


async def test_a_callback_of_another_account_is_refused(gateway: StripeGateway) -> None:
    """A platform receives the events of all its accounts; each gateway accepts those of its own."""
    with pytest.raises(CallbackRefused):
        receive(gateway, event(account="acct_other"))
    merchant = StripeGateway(KEY, webhook_secret=SECRET, account="acct_ours")
    assert receive(merchant, event(account="acct_ours")).id == "evt_1"
    for wrong in (event(account="acct_other"), event()):
        with pytest.raises(CallbackRefused):
            receive(merchant, wrong)
    await merchant.close()


ODD = [
    {"object": "dispute", "payment_intent": "pi_1", "amount": 100, "currency": "eur", "metadata": None},
    {"object": "customer", "id": "cus_1", "metadata": {"payment_id": "not ours"}},
    {"object": "charge", "payment_intent": {"id": "pi_1"}, "amount": "many", "currency": 7, "metadata": {}},
    {"object": "balance", "metadata": {"payment_id": 5}},
    {},
    None,
    [],
]


@pytest.mark.parametrize("about", ODD)
async def test_an_unknown_event_is_accepted_and_names_no_payment(gateway: StripeGateway, about: Any) -> None:
    """Stripe disables an endpoint that answers with errors, so unknown events are accepted and ignored."""
    callback = receive(gateway, event(type="something.new", data={"object": about}))
    assert (callback.kind, callback.payment_id, callback.amount, callback.currency) == (
        "something.new",
        None,
        None,
        None,
    )


async def test_a_charge_names_its_payment(gateway: StripeGateway) -> None:
    """A charge has a copy of the intent's metadata."""
    ours = uuid4()
    about = {"object": "charge", "id": "ch_1", "payment_intent": "pi_1", "amount": 500_000, "currency": "isk"}
    callback = receive(gateway, event(data={"object": {**about, "metadata": {"payment_id": str(ours)}}}))
    assert (callback.payment_id, callback.gateway_id) == (ours, "pi_1")
    assert (callback.amount, callback.currency) == (5000, "ISK")


@pytest.mark.parametrize(
    "key", ["", "pk_test_canary", "sk_canary", "sk_test_canary\n", " sk_test_canary", "sk_test_cana ry"]
)
def test_a_malformed_secret_key_is_refused_and_not_shown(key: str) -> None:
    """The HTTP client would show a key with a line break in its first error."""
    with pytest.raises(SetupError, match="sk_test_") as refused:
        StripeGateway(key, webhook_secret=SECRET)
    assert "cana" not in str(refused.value)


def test_a_malformed_webhook_secret_is_refused_and_not_shown() -> None:
    """Operators confuse the webhook secret with the API key."""
    with pytest.raises(SetupError, match="whsec_") as refused:
        StripeGateway(KEY, webhook_secret=KEY)
    assert CANARY not in str(refused.value)


LEAKS = {
    "an answer that repeats the key": (401, problem("invalid_request_error", None, f"Invalid API Key: {KEY}")),
    "a 500 that repeats the key": (500, problem("api_error", None, f"Sorry, {KEY}")),
    "a page that repeats the key": (502, f"<html>{KEY}</html>".encode()),
    "a decline": (402, problem("card_error", "card_declined", f"No, {KEY}")),
}


@pytest.mark.parametrize("leak", LEAKS)
async def test_no_error_and_no_log_has_the_key(
    gateway: StripeGateway, order: Order, caplog: pytest.LogCaptureFixture, leak: str
) -> None:
    """Not in the message, not in the causes, and not in the local variables of the traceback."""
    caplog.set_level(DEBUG)
    status, content = LEAKS[leak]
    for call in every_call(gateway, order).values():
        answer(gateway, status, content)
        assert CANARY not in await shown(call)
    # The SDK logs Stripe's answers, and the real Stripe never repeats a whole key.
    messages = [record.getMessage() for record in caplog.records if record.name != "stripe"]
    assert CANARY not in "".join(messages)
    assert CANARY not in repr(gateway) + repr(vars(gateway)["_calls"])


async def shown(call: Callable[[], Awaitable[object]]) -> str:
    """Everything that a verbose logger could print of an outcome."""
    try:
        return repr(await call())
    except (GatewayRefused, GatewaySilent) as error:
        whole = traceback.TracebackException.from_exception(error, capture_locals=True)
        within = [frame for frame in whole.stack if "sdk_calls" in frame.filename]
        return repr((error, str(error), error.__cause__, error.__context__, [frame.locals for frame in within]))


async def test_a_broken_connection_does_not_reveal_the_key(order: Order, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's error refers to the request and its headers, so it must be neither cause nor context."""
    caplog.set_level(DEBUG)
    gateway = StripeGateway(KEY, webhook_secret=SECRET, url="http://127.0.0.1:9")
    with pytest.raises(GatewaySilent) as silent:
        await gateway.status(order)
    assert silent.value.__cause__ is None
    assert silent.value.__context__ is None
    assert CANARY not in str(silent.value) + caplog.text
    await gateway.close()


async def test_control_every_call_carries_the_key(gateway: StripeGateway, order: Order) -> None:
    """The two tests above have a key to find."""
    canned = answer(gateway, 500, problem("api_error"))
    with pytest.raises(GatewaySilent):
        await gateway.status(order)
    assert [request.headers["Authorization"] for request in canned.requests] == [f"Bearer {KEY}"]
