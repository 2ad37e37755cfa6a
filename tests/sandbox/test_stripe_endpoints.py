"""The Stripe endpoints, called by Stripe's official client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import stripe
from tests.sandbox.payment_methods import Method

from earmark.sandbox.model import LedgerMove

from .support import PRICE, client_of, create

if TYPE_CHECKING:
    from earmark.sandbox.server import RunningSandbox


def error(call: Any) -> Any:
    with pytest.raises(stripe.StripeError) as raised:
        call()
    return raised.value


def raw(running: RunningSandbox, method: str, path: str, **more: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {running.sandbox.key}"} | more.pop("headers", {})
    return httpx2.request(method, running.url + path, headers=headers, timeout=60, **more)


def test_a_payment_is_authorised_captured_and_refunded(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Each answer has the right amounts."""
    intent = create(client)
    assert (intent.status, intent.amount_capturable, intent.amount_received) == ("requires_capture", PRICE, 0)
    assert (intent.currency, intent.livemode, intent.metadata["payment_id"]) == ("eur", False, "ours")
    assert intent.latest_charge.amount_captured == 0
    taken = client.v1.payment_intents.capture(intent.id)
    assert (taken.status, taken.amount_capturable, taken.amount_received) == ("succeeded", 0, PRICE)
    assert taken.latest_charge == intent.latest_charge.id
    refund = client.v1.refunds.create({"payment_intent": intent.id, "amount": 1000, "metadata": {"refund_id": "r"}})
    assert (refund.status, refund.amount, refund.payment_intent) == ("succeeded", 1000, intent.id)
    kept: Any = client.v1.refunds.retrieve(refund.id).metadata
    assert kept["refund_id"] == "r"
    again: Any = client.v1.payment_intents.retrieve(intent.id, {"expand": ["latest_charge"]})
    assert (again.latest_charge.amount_refunded, again.latest_charge.refunded) == (1000, False)
    client.v1.refunds.create({"charge": again.latest_charge.id})
    charge = client.v1.charges.retrieve(again.latest_charge.id)
    assert (charge.amount_refunded, charge.refunded, charge.payment_intent) == (PRICE, True, intent.id)
    assert running.do(lambda sandbox: sandbox.bank.total(LedgerMove.REFUNDED)) == PRICE


def test_capture_is_automatic_by_default(client: stripe.StripeClient) -> None:
    """As in Stripe's API."""
    intent = create(client, capture_method="automatic")
    assert (intent.status, intent.amount_received) == ("succeeded", PRICE)


def test_a_payment_can_be_cancelled(client: stripe.StripeClient) -> None:
    """With a cancellation reason."""
    intent = client.v1.payment_intents.cancel(create(client).id, {"cancellation_reason": "abandoned"})
    assert (intent.status, intent.cancellation_reason, intent.amount_capturable) == ("canceled", "abandoned", 0)
    assert intent.canceled_at


def test_an_intent_can_be_created_first_and_confirmed_later(client: stripe.StripeClient) -> None:
    """It has no charge before the confirmation."""
    intent = create(client, confirm=False)
    assert (intent.status, intent.latest_charge) == ("requires_confirmation", None)
    assert client.v1.payment_intents.confirm(intent.id).status == "requires_capture"


def test_a_decline_is_a_card_error_that_carries_the_payment(client: stripe.StripeClient) -> None:
    """402, with the code, the message and the intent."""
    declined = error(lambda: create(client, Method.INSUFFICIENT_FUNDS))
    assert isinstance(declined, stripe.CardError)
    assert (declined.http_status, declined.code) == (402, "card_declined")
    assert declined.error is not None
    assert declined.error.decline_code == "insufficient_funds"
    assert declined.error.payment_intent is not None
    intent = client.v1.payment_intents.retrieve(declined.error.payment_intent.id)
    assert intent.status == "requires_payment_method"
    assert intent.last_payment_error is not None
    assert intent.last_payment_error.decline_code == "insufficient_funds"
    assert str(declined.request_id).startswith("req_")


@pytest.mark.parametrize(
    "changes, param",
    [
        ({"amount": 0}, "amount"),
        ({"amount": "1e3"}, "amount"),
        ({"amount": "\uff14\uff15"}, "amount"),
        ({"amount": 10**30}, "amount"),
        ({"amount": ""}, "amount"),
        ({"currency": "zzz"}, "currency"),
        ({"payment_method": "pm_card_gold"}, "payment_method"),
        ({"payment_method": ""}, "payment_method"),
        ({"capture_method": "soon"}, "capture_method"),
        ({"confirm": "yes"}, "confirm"),
        ({"return_url": "javascript:alert(1)"}, "return_url"),
        ({"automatic_payment_methods": {"enabled": True}}, "return_url"),
    ],
)
def test_a_wrong_parameter_is_named(client: stripe.StripeClient, changes: dict[str, Any], param: str) -> None:
    """400, with the name of the parameter."""
    refused = error(lambda: create(client, **changes))
    assert isinstance(refused, stripe.InvalidRequestError)
    assert (refused.http_status, refused.param) == (400, param)


def test_an_unknown_id_or_path_is_404(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """In the form of every other error."""
    for call in (
        lambda: client.v1.payment_intents.retrieve("pi_none"),
        lambda: client.v1.payment_intents.capture("pi_none"),
        lambda: client.v1.refunds.create({"payment_intent": "pi_none"}),
        lambda: client.v1.refunds.retrieve("re_none"),
        lambda: client.v1.events.retrieve("evt_none"),
        client.v1.customers.list,
    ):
        refused = error(call)
        assert isinstance(refused, stripe.InvalidRequestError)
        assert refused.http_status == 404
    assert raw(running, "PUT", "/v1/refunds").json()["error"]["type"] == "invalid_request_error"


def test_a_call_that_the_status_does_not_allow_carries_the_payment(client: stripe.StripeClient) -> None:
    """400, with the intent and its status."""
    intent = create(client)
    client.v1.payment_intents.cancel(intent.id)
    refused = error(lambda: client.v1.payment_intents.capture(intent.id))
    assert (refused.http_status, refused.code) == (400, "payment_intent_unexpected_state")
    assert refused.error.payment_intent.status == "canceled"


@pytest.mark.parametrize("key", ["sk_test_wrong", "sk_test_sandbox2"])
def test_a_wrong_api_key_is_401_and_is_not_shown(running: RunningSandbox, key: str) -> None:
    """The call has no effect."""
    refused = error(lambda: create(client_of(running, key=key)))
    assert isinstance(refused, stripe.AuthenticationError)
    assert key not in str(refused)
    assert httpx2.get(running.url + "/v1/payment_intents").status_code == 401
    assert running.do(lambda sandbox: sandbox.bank.intents()) == []


def test_a_repeated_idempotency_key_gets_the_first_answer(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """The same status and body, marked as replayed; also after the payment has changed, and for a decline."""
    first = create(client, key="one")
    client.v1.payment_intents.capture(first.id)
    again = create(client, key="one")
    assert again.to_dict() == first.to_dict()
    assert again.last_response.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.last_response.headers
    declined = [error(lambda: create(client, Method.DECLINED, key="two")) for _ in range(2)]
    assert declined[0].error.payment_intent.id == declined[1].error.payment_intent.id
    assert [one.headers.get("Idempotent-Replayed") for one in declined] == [None, "true"]
    assert running.do(lambda sandbox: len(sandbox.bank.intents())) == 2


def test_the_same_key_with_other_parameters_is_refused(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Other fields, or another path."""
    intent = create(client, key="one")
    refused = error(lambda: create(client, key="one", amount=1))
    assert isinstance(refused, stripe.IdempotencyError)
    assert refused.http_status == 400
    elsewhere = error(lambda: client.v1.payment_intents.capture(intent.id, {}, {"idempotency_key": "one"}))
    assert isinstance(elsewhere, stripe.IdempotencyError)
    assert running.do(lambda sandbox: sandbox.bank.total(LedgerMove.CAPTURED)) == 0


def test_a_refusal_because_of_the_status_is_stored(client: stripe.StripeClient) -> None:
    """A capture that was refused once is refused for its key from then on, as in Stripe's API."""
    intent = create(client, Method.PROCESSING)
    options: Any = {"idempotency_key": "capture"}
    refused = [error(lambda: client.v1.payment_intents.capture(intent.id, {}, options)) for _ in range(2)]
    assert [one.headers.get("Idempotent-Replayed") for one in refused] == [None, "true"]


def test_a_key_that_is_too_long_is_refused(client: stripe.StripeClient) -> None:
    """A key has at most 255 characters."""
    assert create(client, key="k" * 255).status == "requires_capture"
    assert error(lambda: create(client, key="k" * 256)).http_status == 400


def test_lists_are_paged_newest_first(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Each entry once, also when filtered by time."""
    before = int(time.time())
    ids = [create(client).id for _ in range(5)]
    page = client.v1.payment_intents.list({"limit": 2})
    assert ([intent.id for intent in page.data], page.has_more) == ([ids[4], ids[3]], True)
    rest = client.v1.payment_intents.list({"limit": 3, "starting_after": ids[3]})
    assert ([intent.id for intent in rest.data], rest.has_more) == ([ids[2], ids[1], ids[0]], False)
    everything = client.v1.payment_intents.list({"limit": 2, "created": {"gte": before}}).auto_paging_iter()
    assert [intent.id for intent in everything] == ids[::-1]
    running.do(lambda sandbox: sandbox.clock.advance(3600))  # type: ignore[attr-defined]
    late = create(client)
    found: Any = client.v1.payment_intents.list({"created": {"gte": late.created}, "expand": ["data.latest_charge"]})
    assert [intent.latest_charge.amount for intent in found.data] == [PRICE]
    assert len(client.v1.payment_intents.list({"created": {"lt": late.created}}).data) == 5


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 101}, {"starting_after": "pi_none"}])
def test_wrong_paging_parameters_are_refused(client: stripe.StripeClient, params: Any) -> None:
    """With a 400."""
    assert error(lambda: client.v1.payment_intents.list(params)).http_status == 400


def test_a_payment_is_found_by_its_metadata(client: stripe.StripeClient) -> None:
    """The only search that the sandbox supports."""
    create(client, metadata={"payment_id": "theirs"})
    wanted = create(client)
    found = client.v1.payment_intents.search({"query": "metadata['payment_id']:'ours'"})
    assert [intent.id for intent in found.data] == [wanted.id]
    assert error(lambda: client.v1.payment_intents.search({"query": "amount>1"})).http_status == 400


def test_refunds_events_and_disputes_are_listed(client: stripe.StripeClient) -> None:
    """By payment, or by type."""
    plain, disputed = create(client, capture_method="automatic"), create(client, Method.DISPUTE)
    client.v1.payment_intents.capture(disputed.id)
    refund = client.v1.refunds.create({"payment_intent": plain.id})
    assert [one.id for one in client.v1.refunds.list({"payment_intent": plain.id}).data] == [refund.id]
    assert client.v1.refunds.list({"payment_intent": disputed.id}).data == []
    assert [one.payment_intent for one in client.v1.disputes.list().data] == [disputed.id]
    events = client.v1.events.list({"type": "payment_intent.succeeded"}).data
    assert [event.data.object["id"] for event in events] == [disputed.id, plain.id]
    assert client.v1.events.retrieve(events[0].id).type == "payment_intent.succeeded"


def test_a_failed_refund_has_a_reason(client: stripe.StripeClient) -> None:
    """Its status is `failed`."""
    intent = create(client, Method.REFUND_FAIL, capture_method="automatic")
    refund = client.v1.refunds.create({"payment_intent": intent.id})
    assert refund.status == "failed"
    assert refund.failure_reason
    assert error(lambda: client.v1.refunds.create({"payment_intent": intent.id, "amount": 4501})).http_status == 400


def test_a_body_is_bounded(running: RunningSandbox) -> None:
    """In bytes and in the number of fields."""
    for body in ("x" * 70_000, "&".join(f"a{number}=1" for number in range(600)), "%ff=\xff"):
        answer = raw(running, "POST", "/v1/payment_intents", content=body.encode("latin-1"))
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_every_answer_has_its_own_request_id(running: RunningSandbox) -> None:
    """In the header Request-Id."""
    numbers = {raw(running, "GET", "/v1/payment_intents").headers["Request-Id"] for _ in range(3)}
    assert len(numbers) == 3
