"""The sandbox's own endpoints, the 3-D Secure page, and callbacks over HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import stripe
from tests.sandbox.payment_methods import Method

from earmark.clock import MovableClock, SystemClock
from earmark.errors import SetupError
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.server import RunningSandbox, check_callback_url, run_in_thread
from earmark.sandbox.sign_and_verify_callbacks import HEADER, verify

from .support import DAY, PRICE, client_of, create, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def request(running: RunningSandbox, method: str, path: str, body: Any = None) -> httpx2.Response:
    return httpx2.request(method, f"{running.url}/sandbox/{path}", json=body, timeout=60)


def test_a_fault_can_be_added_listed_and_deleted(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """A rule is used by the next call of its name; DELETE removes all rules."""
    rule = {"fault": "error_before", "name": "authorise"}
    assert request(running, "POST", "faults", rule).status_code == 200
    assert [one["fault"] for one in request(running, "GET", "faults").json()["rules"]] == ["error_before"]
    with pytest.raises(stripe.APIError):
        create(client)
    request(running, "POST", "faults", rule)
    assert request(running, "DELETE", "faults").json() == {"rules": [], "sticky_errors": False}
    assert create(client).status == "requires_capture"
    calls = request(running, "GET", "calls").json()["calls"]
    assert [(call["fault"], call["outcome"]) for call in calls] == [("error_before", "api_error"), (None, "answered")]


def test_errors_can_be_made_sticky(running: RunningSandbox) -> None:
    """The setting can be turned on and off."""
    assert request(running, "POST", "sticky", {"on": True}).json()["sticky_errors"] is True
    assert request(running, "POST", "sticky", {"on": False}).json()["sticky_errors"] is False


@pytest.mark.parametrize(
    "path, body",
    [
        ("faults", {"fault": "explode"}),
        ("faults", {"fault": "hang", "name": "captrue"}),
        ("faults", 1),
        ("clock", {"seconds": "soon"}),
        ("act", {"id": "pi_none"}),
        ("decide", {}),
        ("return", {"id": "re_none"}),
        ("refund", {"id": "pi_none"}),
        ("callbacks/lose", {}),
        ("callbacks/redeliver", {"event_id": "evt_none"}),
        ("callbacks/deliver", None),
    ],
)
def test_a_wrong_request_is_refused(running: RunningSandbox, path: str, body: Any) -> None:
    """With a message, in the form of Stripe's errors."""
    answer = request(running, "POST", path, body)
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"]


def test_the_ledger_is_listed(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Each line has its move, amount and payment id."""
    intent = create(client, capture_method="automatic")
    lines = request(running, "GET", "ledger").json()["lines"]
    assert [(line["move"], line["amount"], line["payment_id"]) for line in lines] == [
        ("authorised", PRICE, "ours"),
        ("captured", PRICE, "ours"),
    ]
    assert {line["intent_id"] for line in lines} == {intent.id}


def test_the_clock_can_be_advanced(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """After eight days an authorisation has expired."""
    intent = create(client)
    request(running, "POST", "clock", {"seconds": 8 * DAY})
    assert client.v1.payment_intents.retrieve(intent.id).status == "canceled"


def test_the_system_clock_cannot_be_advanced() -> None:
    """The request is refused."""
    with run_in_thread(Sandbox(SystemClock())) as running:
        assert request(running, "POST", "clock", {"seconds": 1}).status_code == 400


def test_a_test_acts_as_buyer_and_as_the_buyers_bank(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """The buyer authenticates, the bank decides and returns a refund, and late money arrives."""
    acting, deciding = create(client, Method.AUTHENTICATION_REQUIRED), create(client, Method.PROCESSING)
    assert request(running, "POST", "act", {"id": acting.id}).json()["status"] == "requires_capture"
    decided = request(running, "POST", "decide", {"id": deciding.id, "succeed": False}).json()
    assert decided["status"] == "requires_payment_method"
    request(running, "POST", "faults", {"fault": "late_success", "name": "authorise"})
    with pytest.raises(stripe.CardError):
        create(client)
    landed = request(running, "POST", "land").json()["landed"]
    assert [intent["status"] for intent in landed] == ["requires_capture"]
    intent = create(client, Method.REFUND_PENDING, capture_method="automatic")
    refund = client.v1.refunds.create({"payment_intent": intent.id})
    assert request(running, "POST", "decide", {"id": refund.id}).json()["status"] == "succeeded"
    assert request(running, "POST", "return", {"id": refund.id}).json()["status"] == "failed"


@pytest.mark.parametrize("answer, status", [("authorise", "requires_capture"), ("refuse", "requires_payment_method")])
def test_the_three_d_secure_page_redirects_the_buyer_to_the_shop(
    client: stripe.StripeClient, answer: str, status: str
) -> None:
    """The page is at the URL in the intent's next_action."""
    intent = create(
        client,
        Method.AUTHENTICATION_REQUIRED,
        return_url="https://shop.example/back?booking=1",
        automatic_payment_methods={"enabled": True},
    )
    assert intent.next_action.type == "redirect_to_url"
    url = intent.next_action.redirect_to_url.url
    page = httpx2.get(url)
    assert page.status_code == 200
    assert "Authenticate" in page.text
    pressed = httpx2.post(url, data={"answer": answer})
    assert pressed.status_code == 303
    assert pressed.headers["location"].startswith(f"https://shop.example/back?booking=1&payment_intent={intent.id}&")
    assert client.v1.payment_intents.retrieve(intent.id).status == status
    assert httpx2.get(url).status_code == 404


def test_the_three_d_secure_page_needs_the_client_secret(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Without the secret, or with an unknown button, the payment does not change."""
    intent = create(client, Method.AUTHENTICATION_REQUIRED)
    url = f"{running.url}/sandbox/action/{intent.id}"
    assert httpx2.get(url).status_code == 404
    for target in (url, f"{url}?client_secret=x"):
        assert httpx2.post(target, data={"answer": "authorise"}).status_code == 404
    url = f"{url}?client_secret={intent.client_secret}"
    assert httpx2.post(url, data={"answer": "maybe"}).status_code == 404
    assert client.v1.payment_intents.retrieve(intent.id).status == "requires_action"
    pressed = httpx2.post(url, data={"answer": "authorise"})
    assert "succeeded" in pressed.text


class ShopServer:
    """A shop's HTTP server, which records the callbacks that it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                shop.received.append((dict(self.headers), body))
                self.send_response(shop.answers.pop(0) if shop.answers else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Do not log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/callback"


@pytest.fixture
def shop() -> Iterator[ShopServer]:
    opened = ShopServer()
    serving = threading.Thread(target=opened.server.serve_forever)
    serving.start()
    yield opened
    opened.server.shutdown()
    serving.join()
    opened.server.server_close()


def states(running: RunningSandbox) -> list[str]:
    return [delivery["state"] for delivery in request(running, "GET", "callbacks").json()["callbacks"]]


def test_callbacks_are_posted_with_a_signature(shop: ShopServer) -> None:
    """The server sends them without a request."""
    sandbox = Sandbox(MovableClock())
    with run_in_thread(sandbox, callback_url=shop.url) as running:
        create(client_of(running))
        until(lambda: states(running) == ["sent", "sent"])
    assert len(shop.received) == 2
    for headers, body in shop.received:
        assert headers[HEADER]
        verify(headers, body, secret=sandbox.secret, now=sandbox.clock.now())
        event = stripe.Webhook.construct_event(body, headers[HEADER], sandbox.secret)
        assert event.type.startswith("payment_intent.")


def test_a_callback_answered_with_an_error_is_posted_again(shop: ShopServer) -> None:
    """The number of attempts is bounded."""
    sandbox = Sandbox(MovableClock())
    sandbox.callbacks.retry_seconds, sandbox.callbacks.tries_max = 0.01, 3
    shop.answers = [500, 500, 200, 503, 503, 503]
    with run_in_thread(sandbox, callback_url=shop.url) as running:
        create(client_of(running), confirm=False)
        until(lambda: states(running) == ["sent"])
        create(client_of(running), confirm=False)
        until(lambda: states(running) == ["sent", "lost"])
        assert running.do(lambda sandbox: [delivery.tries for delivery in sandbox.callbacks.deliveries]) == [3, 3]
    assert len(shop.received) == 6


def test_a_test_can_lose_and_send_callbacks(shop: ShopServer) -> None:
    """In manual mode the server sends none by itself."""
    sandbox = Sandbox(MovableClock())
    sandbox.callbacks.manual = True
    with run_in_thread(sandbox, callback_url=shop.url) as running:
        create(client_of(running))
        assert states(running) == ["queued", "queued"]
        first = request(running, "GET", "callbacks").json()["callbacks"][0]["event_id"]
        assert request(running, "POST", "callbacks/lose", {"event_id": first}).json() == {"lost": 1}
        assert request(running, "POST", "callbacks/deliver").json() == {"taken": 1}
        assert states(running) == ["lost", "sent"]
        request(running, "POST", "callbacks/redeliver", {"event_id": first})
        assert request(running, "POST", "callbacks/deliver").json() == {"taken": 1}
        assert states(running) == ["lost", "sent", "sent"]


def test_the_sandbox_serves_on_when_the_shop_is_down() -> None:
    """The delivery records the problem."""
    with run_in_thread(callback_url="http://127.0.0.1:9/callback") as running:
        create(client_of(running))
        until(lambda: running.do(lambda sandbox: sandbox.callbacks.deliveries[0].problem is not None))
        assert create(client_of(running)).status == "requires_capture"


@pytest.mark.parametrize("url", ["", "shop.example", "file:///etc/passwd", "http://"])
def test_a_wrong_callback_url_is_refused(url: str) -> None:
    """At the start, and not at the first callback."""
    check_callback_url(None)
    check_callback_url("https://shop.example/callback")
    with pytest.raises(SetupError):
        check_callback_url(url)


def test_a_dashboard_refund_has_no_id_of_earmark(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """A dashboard refund is of a part or of all that is left."""
    intent = create(client, capture_method="automatic")
    made = request(running, "POST", "refund", {"id": intent.id, "amount": 1000}).json()
    assert (made["amount"], made["metadata"], made["status"]) == (1000, {}, "succeeded")
    assert request(running, "POST", "refund", {"id": intent.id}).json()["amount"] == PRICE - 1000
    assert request(running, "POST", "refund", {"id": intent.id}).json()["error"]["code"] == "charge_already_refunded"
