"""What Stripe may answer, by hand: each status of an intent, each kind of error, and events of every sort."""

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

from earmark.clock import MovableClock
from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    RefundStanding,
)
from earmark.errors import SetupError
from earmark.payments import stripe_words as words
from earmark.payments.stripe import AMOUNTS_OF_THE_SHOP, FIELDS_BY_CODE, StripeGateway
from earmark.payments.stripe_calls import SHOPS_OWN_FAULT
from earmark.sandbox import signature

from .conformance.support import order_in, refund_of
from .conformance.worlds import in_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.engine.ports.gateway import Callback, Order

KEY = "sk_test_canaryCANARYcanary"
SECRET = "whsec_canaryCANARYcanary"
CANARY = "canaryCANARYcanary"


class Canned(BaseAdapter):
    """Answers in this order, with the last again and again, and remembers what was asked."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Nothing leaves the process."""
        self.asked.append(request)
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
    """One that would call a place that does not exist."""
    opened = StripeGateway(KEY, webhook_secret=SECRET, url="http://stripe.invalid", clock=MovableClock())
    yield opened
    await opened.close()


@pytest.fixture
async def order() -> Order:
    """A payment whose id at Stripe is known."""
    async with in_process() as world:
        return order_in(world, gateway_id="pi_1")


def answer(gateway: StripeGateway, status: int, said: object, *then: tuple[int, object]) -> Canned:
    """From now on Stripe says this, and then that."""
    answers = [(status, said), *then]
    canned = Canned(*((code, it if isinstance(it, bytes) else msgspec.json.encode(it)) for code, it in answers))
    gateway._line._session.mount("http://stripe.invalid", canned)
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
    "a twin in progress": (409, problem("invalid_request_error", "idempotency_key_in_use")),
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
    """All that may be asked, by name."""
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
async def test_what_says_nothing_is_silence(gateway: StripeGateway, order: Order, silence: str) -> None:
    """The outcome is not known, whatever was asked."""
    status, said = SILENCES[silence]
    for name, call in every_call(gateway, order).items():
        # What was asked for refunds is a list here, and "another thing" is a fine refund whose end is not known.
        if silence == "another thing" and name in {"refund", "refund_status"}:
            continue
        answer(gateway, status, said)
        with pytest.raises(GatewaySilent):
            await call()


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_what_stripe_will_not_do_is_refused(gateway: StripeGateway, order: Order, refusal: str) -> None:
    """It says why in a word, and nothing is sent again."""
    status, said, code = REFUSALS[refusal]
    for name, call in every_call(gateway, order).items():
        canned = answer(gateway, status, said)
        with pytest.raises(GatewayRefused) as refused:
            await call()
        assert refused.value.code == code, name
        assert len({(one.method, one.path_url) for one in canned.asked}) == len(canned.asked)


FAULTS_OF_THE_SHOP = {
    "a key that was revoked": (401, problem("invalid_request_error", "api_key_expired")),
    "a key that may not": (403, problem("invalid_request_error")),
    "an account without SEPA": (400, problem("invalid_request_error", "sepa_unsupported_account")),
    "an integration that is too old": (400, problem("invalid_request_error", "parameter_unknown")),
    "an amount below the least": (400, problem("invalid_request_error", "amount_too_small")),
    "an account that takes no live charges": (400, problem("invalid_request_error", "testmode_charges_only")),
}


@pytest.mark.parametrize("fault", FAULTS_OF_THE_SHOP)
async def test_what_only_the_shop_can_mend_is_denied(gateway: StripeGateway, order: Order, fault: str) -> None:
    """Another word than for what a buyer can mend: a token that Stripe does not know is refused and not denied."""
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
async def test_what_the_request_to_pay_got_wrong_names_its_field(
    gateway: StripeGateway, order: Order, code: str
) -> None:
    """By Stripe's code, or by the parameter that it names."""
    new = msgspec.structs.replace(order, gateway_id=None)
    answer(gateway, 400, problem("invalid_request_error", code))
    with pytest.raises(GatewayInvalid) as refused:
        await gateway.authorise(new)
    assert (refused.value.field, refused.value.code) == (WRONG_REQUESTS[code], code)
    said = {"error": {"type": "invalid_request_error", "message": "No.", "param": "payment_method"}}
    answer(gateway, 400, said)
    with pytest.raises(GatewayInvalid) as refused:
        await gateway.authorise(new)
    assert refused.value.field == "method"


def test_the_codes_of_the_shops_own_faults_are_codes_of_stripes() -> None:
    """As the official SDK lists them: a code that Stripe does not have would never be met."""
    listed = Path(stripe.__file__).parent.joinpath("_payment_intent.py").read_text(encoding="utf-8")
    ours = SHOPS_OWN_FAULT | FIELDS_BY_CODE.keys() | AMOUNTS_OF_THE_SHOP
    assert [code for code in sorted(ours) if f'"{code}"' not in listed] == []


async def test_a_decline_without_a_payment_is_a_decline(gateway: StripeGateway, order: Order) -> None:
    """Some cards are refused before there is an intent."""
    answer(gateway, 402, problem("card_error", "incorrect_cvc", "The code is wrong."))
    report = await gateway.authorise(msgspec.structs.replace(order, gateway_id=None))
    assert (report.standing, report.code, report.message) == (Standing.DECLINED, "incorrect_cvc", "The code is wrong.")


async def test_a_capture_that_may_still_succeed_is_not_declined(gateway: StripeGateway, order: Order) -> None:
    """A confirmed booking is not undone by a bank that stumbled: how the intent stands decides."""
    no = (402, problem("card_error", "processing_error", "Try again."))
    said = {"id": "pi_1", "amount": 4500, "currency": "eur"}
    answer(gateway, *no, (200, {**said, "status": "requires_capture"}))
    with pytest.raises(GatewaySilent):
        await gateway.capture(order)
    answer(gateway, *no, (200, {**said, "status": "canceled", "last_payment_error": {"code": "expired_card"}}))
    report = await gateway.capture(order)
    assert (report.standing, report.code) == (Standing.DECLINED, "expired_card")


async def test_a_refund_that_is_there_by_now_is_done(gateway: StripeGateway, order: Order) -> None:
    """Refused as already refunded: by this very refund, or else it will not happen."""
    back = refund_of(order)
    made = {"id": "re_1", "status": "succeeded", "metadata": {"refund_id": str(back.refund_id)}}
    no = (400, problem("invalid_request_error", "charge_already_refunded"))
    answer(gateway, 200, {"data": [], "has_more": False}, no, (200, {"data": [made], "has_more": False}))
    assert (await gateway.refund(back)).standing is RefundStanding.DONE
    answer(gateway, 200, {"data": [], "has_more": False}, no, (200, {"data": [], "has_more": False}))
    report = await gateway.refund(back)
    assert (report.standing, report.code) == (RefundStanding.REFUSED, "charge_already_refunded")


INTENT = words.Intent(id="pi_1", status="", amount=4500, currency="eur")
FAILED = words.Trouble(code="card_declined", decline_code="insufficient_funds", message="Too little.")
STATUSES = [
    ("requires_payment_method", None, Standing.VOIDED),
    ("requires_payment_method", FAILED, Standing.DECLINED),
    ("requires_confirmation", None, Standing.VOIDED),
    ("requires_action", None, Standing.REQUIRES_ACTION),
    ("processing", None, Standing.PROCESSING),
    ("requires_capture", None, Standing.AUTHORISED),
    ("canceled", None, Standing.VOIDED),
    ("canceled", FAILED, Standing.DECLINED),
    ("succeeded", None, Standing.CAPTURED),
    ("something_new", None, Standing.PROCESSING),
]


@pytest.mark.parametrize("status, trouble, standing", STATUSES)
def test_every_status_has_a_standing(status: str, trouble: words.Trouble | None, standing: Standing) -> None:
    """And a word for why, where there is one."""
    report = words.report_of(msgspec.structs.replace(INTENT, status=status, last_payment_error=trouble))
    assert (report.standing, report.gateway_id) == (standing, "pi_1")
    assert report.code == ("insufficient_funds" if trouble else None)


def test_a_cancelled_payment_is_declined_by_its_failed_charge() -> None:
    """Stripe may clear the error of an intent that is changed; its charge keeps it."""
    charge = words.Charge(status="failed", failure_code="expired_card", failure_message="Too old.")
    report = words.report_of(msgspec.structs.replace(INTENT, status="canceled", latest_charge=charge))
    assert (report.standing, report.code, report.message) == (Standing.DECLINED, "expired_card", "Too old.")


def test_what_was_let_go_is_not_refunded() -> None:
    """Stripe says that an uncaptured charge was refunded when it is cancelled; no money went either way."""
    let_go = msgspec.structs.replace(INTENT, status="canceled", latest_charge=words.Charge(amount_refunded=4500))
    taken = msgspec.structs.replace(let_go, status="succeeded", amount_received=4500)
    assert [(it.captured, it.refunded) for it in map(words.record_of, (let_go, taken))] == [(0, 0), (4500, 4500)]


@pytest.mark.parametrize("decline", ["fraudulent", "lost_card", "merchant_blacklist", "stolen_card", "generic_decline"])
def test_what_the_buyer_must_not_hear_is_not_said(decline: str) -> None:
    """A thief is told no more than anybody."""
    assert words.Trouble(code="card_declined", decline_code=decline).word == "card_declined"
    assert words.Trouble(code="card_declined", decline_code="expired_card").word == "expired_card"


@pytest.mark.parametrize(
    "status, standing",
    [
        ("succeeded", RefundStanding.DONE),
        ("pending", RefundStanding.PROCESSING),
        ("requires_action", RefundStanding.PROCESSING),
        (None, RefundStanding.PROCESSING),
        ("failed", RefundStanding.REFUSED),
        ("canceled", RefundStanding.REFUSED),
    ],
)
def test_every_status_of_a_refund_has_a_standing(status: str | None, standing: RefundStanding) -> None:
    """One that did not come about says why."""
    report = words.refund_report_of(words.Refund(id="re_1", status=status))
    assert report.standing is standing
    assert bool(report.code) is (standing is RefundStanding.REFUSED)


def event(**changes: Any) -> dict[str, Any]:
    about = {"object": "payment_intent", "id": "pi_1", "amount": 4500, "currency": "eur", "metadata": {}}
    whole = {"id": "evt_1", "object": "event", "type": "payment_intent.succeeded", "livemode": False}
    return {**whole, "data": {"object": about}, **changes}


def hear(gateway: StripeGateway, said: object) -> Callback:
    body = msgspec.json.encode(said)
    now = gateway._clock.now()
    return gateway.read_callback({"stripe-signature": signature.sign(body, secret=SECRET, now=now)}, body)


async def test_test_money_and_real_money_are_not_mixed(gateway: StripeGateway) -> None:
    """A callback of the other kind is none of ours, with either key."""
    assert hear(gateway, event()).live is False
    with pytest.raises(CallbackRefused):
        hear(gateway, event(livemode=True))
    real = StripeGateway("rk_live_1", webhook_secret=SECRET)
    assert hear(real, event(livemode=True)).live is True
    with pytest.raises(CallbackRefused):
        hear(real, event())
    await real.close()


async def test_the_money_of_another_account_is_not_ours(gateway: StripeGateway) -> None:
    """A platform hears of all its merchants; each gateway of its own."""
    with pytest.raises(CallbackRefused):
        hear(gateway, event(account="acct_other"))
    merchant = StripeGateway(KEY, webhook_secret=SECRET, account="acct_ours")
    assert hear(merchant, event(account="acct_ours")).id == "evt_1"
    for wrong in (event(account="acct_other"), event()):
        with pytest.raises(CallbackRefused):
            hear(merchant, wrong)
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
async def test_an_event_of_an_unknown_kind_is_taken_and_is_about_no_payment(gateway: StripeGateway, about: Any) -> None:
    """Stripe gives up on those who answer with errors; what is none of ours is heard and let go."""
    callback = hear(gateway, event(type="something.new", data={"object": about}))
    assert (callback.kind, callback.payment_id, callback.amount, callback.currency) == (
        "something.new",
        None,
        None,
        None,
    )


async def test_a_charge_names_its_payment(gateway: StripeGateway) -> None:
    """Its metadata is a copy of the intent's."""
    ours = uuid4()
    about = {"object": "charge", "id": "ch_1", "payment_intent": "pi_1", "amount": 500_000, "currency": "isk"}
    callback = hear(gateway, event(data={"object": {**about, "metadata": {"payment_id": str(ours)}}}))
    assert (callback.payment_id, callback.gateway_id) == (ours, "pi_1")
    assert (callback.amount, callback.currency) == (5000, "ISK")


@pytest.mark.parametrize(
    "key", ["", "pk_test_canary", "sk_canary", "sk_test_canary\n", " sk_test_canary", "sk_test_cana ry"]
)
def test_what_is_no_secret_key_is_refused_unseen(key: str) -> None:
    """A stray line break would be shown, with the key, by the first error of the HTTP client."""
    with pytest.raises(SetupError, match="sk_test_") as refused:
        StripeGateway(key, webhook_secret=SECRET)
    assert "cana" not in str(refused.value)


def test_what_is_no_webhook_secret_is_refused_unseen() -> None:
    """The two are easily taken for each other."""
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
    """Not in its words, not in its causes, and not in what a debugger would print beside its lines."""
    caplog.set_level(DEBUG)
    status, said = LEAKS[leak]
    for call in every_call(gateway, order).values():
        answer(gateway, status, said)
        assert CANARY not in await shown(call)
    # The SDK writes down what Stripe answers; the real one never writes a key out.
    told = [record.getMessage() for record in caplog.records if record.name != "stripe"]
    assert CANARY not in "".join(told)
    assert CANARY not in repr(gateway) + repr(vars(gateway)["_line"])


async def shown(call: Callable[[], Awaitable[object]]) -> str:
    """All that a logger with an eye for detail could print of an outcome."""
    try:
        return repr(await call())
    except (GatewayRefused, GatewaySilent) as error:
        whole = traceback.TracebackException.from_exception(error, capture_locals=True)
        within = [frame for frame in whole.stack if "stripe_calls" in frame.filename]
        return repr((error, str(error), error.__cause__, error.__context__, [frame.locals for frame in within]))


async def test_a_wire_that_breaks_does_not_tell_the_key(order: Order, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's own error leads to the request, and that to its headers: it does not come along."""
    caplog.set_level(DEBUG)
    gateway = StripeGateway(KEY, webhook_secret=SECRET, url="http://127.0.0.1:9")
    with pytest.raises(GatewaySilent) as silent:
        await gateway.status(order)
    assert silent.value.__cause__ is None
    assert silent.value.__context__ is None
    assert CANARY not in str(silent.value) + caplog.text
    await gateway.close()


async def test_the_key_goes_with_every_call(gateway: StripeGateway, order: Order) -> None:
    """The control of the two above: it was there to be told."""
    canned = answer(gateway, 500, problem("api_error"))
    with pytest.raises(GatewaySilent):
        await gateway.status(order)
    assert [request.headers["Authorization"] for request in canned.asked] == [f"Bearer {KEY}"]
