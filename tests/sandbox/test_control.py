"""The sandbox's own calls, and the page where a buyer acts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import stripe
from tests.payments.methods import Method

from earmark.clock import MovableClock, SystemClock
from earmark.errors import SetupError
from earmark.sandbox.house import Sandbox
from earmark.sandbox.server import RunningSandbox, check_callback_url, run_in_thread
from earmark.sandbox.signature import HEADER, verify

from .support import DAY, PRICE, client_of, create, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def ask(running: RunningSandbox, method: str, path: str, body: Any = None) -> httpx2.Response:
    return httpx2.request(method, f"{running.url}/sandbox/{path}", json=body, timeout=60)


def test_a_fault_can_be_scripted_seen_and_taken_back(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """One rule at a time."""
    rule = {"fault": "error_before", "name": "authorise"}
    assert ask(running, "POST", "faults", rule).status_code == 200
    assert [one["fault"] for one in ask(running, "GET", "faults").json()["rules"]] == ["error_before"]
    with pytest.raises(stripe.APIError):
        create(client)
    ask(running, "POST", "faults", rule)
    assert ask(running, "DELETE", "faults").json() == {"rules": [], "sticky_errors": False}
    assert create(client).status == "requires_capture"
    calls = ask(running, "GET", "calls").json()["calls"]
    assert [(call["fault"], call["outcome"]) for call in calls] == [("error_before", "api_error"), (None, "answered")]


def test_errors_can_be_made_sticky(running: RunningSandbox) -> None:
    """And not."""
    assert ask(running, "POST", "sticky", {"on": True}).json()["sticky_errors"] is True
    assert ask(running, "POST", "sticky", {"on": False}).json()["sticky_errors"] is False


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
def test_what_makes_no_sense_is_refused(running: RunningSandbox, path: str, body: Any) -> None:
    """With the reason, in the shape of every error."""
    answer = ask(running, "POST", path, body)
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"]


def test_the_ledger_can_be_read(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Line by line."""
    intent = create(client, capture_method="automatic")
    lines = ask(running, "GET", "ledger").json()["lines"]
    assert [(line["move"], line["amount"], line["payment_id"]) for line in lines] == [
        ("authorised", PRICE, "ours"),
        ("captured", PRICE, "ours"),
    ]
    assert {line["intent_id"] for line in lines} == {intent.id}


def test_the_clock_can_be_pushed(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Then what was set aside has run out."""
    intent = create(client)
    ask(running, "POST", "clock", {"seconds": 8 * DAY})
    assert client.v1.payment_intents.retrieve(intent.id).status == "canceled"


def test_a_clock_that_is_real_cannot_be_pushed() -> None:
    """It says so."""
    with run_in_thread(Sandbox(SystemClock())) as running:
        assert ask(running, "POST", "clock", {"seconds": 1}).status_code == 400


def test_others_make_up_their_minds(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """The buyer, the buyer's bank, and money that comes late."""
    acting, deciding = create(client, Method.AUTHENTICATION_REQUIRED), create(client, Method.PROCESSING)
    assert ask(running, "POST", "act", {"id": acting.id}).json()["status"] == "requires_capture"
    decided = ask(running, "POST", "decide", {"id": deciding.id, "succeed": False}).json()
    assert decided["status"] == "requires_payment_method"
    ask(running, "POST", "faults", {"fault": "late_success", "name": "authorise"})
    with pytest.raises(stripe.CardError):
        create(client)
    landed = ask(running, "POST", "land").json()["landed"]
    assert [intent["status"] for intent in landed] == ["requires_capture"]
    intent = create(client, Method.REFUND_PENDING, capture_method="automatic")
    refund = client.v1.refunds.create({"payment_intent": intent.id})
    assert ask(running, "POST", "decide", {"id": refund.id}).json()["status"] == "succeeded"
    assert ask(running, "POST", "return", {"id": refund.id}).json()["status"] == "failed"


@pytest.mark.parametrize("answer, status", [("authorise", "requires_capture"), ("refuse", "requires_payment_method")])
def test_a_buyer_presses_a_button_and_goes_back_to_the_shop(
    client: stripe.StripeClient, answer: str, status: str
) -> None:
    """By the address that the payment told."""
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


def test_nobody_acts_for_a_buyer_without_the_secret(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Nor with another button, nor on a payment that asks for nothing."""
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


class Door:
    """A shop's door, which writes down what comes in."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                door.taken.append((dict(self.headers), body))
                self.send_response(door.answers.pop(0) if door.answers else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/callback"


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    serving = threading.Thread(target=opened.server.serve_forever)
    serving.start()
    yield opened
    opened.server.shutdown()
    serving.join()
    opened.server.server_close()


def states(running: RunningSandbox) -> list[str]:
    return [letter["state"] for letter in ask(running, "GET", "callbacks").json()["callbacks"]]


def test_callbacks_are_posted_with_their_signature(door: Door) -> None:
    """By themselves, soon after."""
    sandbox = Sandbox(MovableClock())
    with run_in_thread(sandbox, callback_url=door.url) as running:
        create(client_of(running))
        until(lambda: states(running) == ["sent", "sent"])
    assert len(door.taken) == 2
    for headers, body in door.taken:
        assert headers[HEADER]
        verify(headers, body, secret=sandbox.secret, now=sandbox.clock.now())
        event = stripe.Webhook.construct_event(body, headers[HEADER], sandbox.secret)
        assert event.type.startswith("payment_intent.")


def test_a_callback_that_is_answered_with_an_error_is_posted_again(door: Door) -> None:
    """A bounded number of times."""
    sandbox = Sandbox(MovableClock())
    sandbox.courier.retry_seconds, sandbox.courier.tries_max = 0.01, 3
    door.answers = [500, 500, 200, 503, 503, 503]
    with run_in_thread(sandbox, callback_url=door.url) as running:
        create(client_of(running), confirm=False)
        until(lambda: states(running) == ["sent"])
        create(client_of(running), confirm=False)
        until(lambda: states(running) == ["sent", "lost"])
        assert running.do(lambda sandbox: [letter.tries for letter in sandbox.courier.letters]) == [3, 3]
    assert len(door.taken) == 6


def test_callbacks_can_be_lost_and_sent_by_hand(door: Door) -> None:
    """Nothing goes out by itself then."""
    sandbox = Sandbox(MovableClock())
    sandbox.courier.by_hand = True
    with run_in_thread(sandbox, callback_url=door.url) as running:
        create(client_of(running))
        assert states(running) == ["queued", "queued"]
        first = ask(running, "GET", "callbacks").json()["callbacks"][0]["event_id"]
        assert ask(running, "POST", "callbacks/lose", {"event_id": first}).json() == {"lost": 1}
        assert ask(running, "POST", "callbacks/deliver").json() == {"taken": 1}
        assert states(running) == ["lost", "sent"]
        ask(running, "POST", "callbacks/redeliver", {"event_id": first})
        assert ask(running, "POST", "callbacks/deliver").json() == {"taken": 1}
        assert states(running) == ["lost", "sent", "sent"]


def test_a_shop_that_is_not_there_does_no_harm() -> None:
    """The sandbox serves on."""
    with run_in_thread(callback_url="http://127.0.0.1:9/callback") as running:
        create(client_of(running))
        until(lambda: running.do(lambda sandbox: sandbox.courier.letters[0].problem is not None))
        assert create(client_of(running)).status == "requires_capture"


@pytest.mark.parametrize("url", ["", "shop.example", "file:///etc/passwd", "http://"])
def test_an_address_that_cannot_be_called_is_refused(url: str) -> None:
    """At the start, and not at the first callback."""
    check_callback_url(None)
    check_callback_url("https://shop.example/callback")
    with pytest.raises(SetupError):
        check_callback_url(url)


def test_the_staff_of_the_shop_can_give_money_back(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """As on a dashboard: all that is left or a part, and the refund carries nothing of Earmark's."""
    intent = create(client, capture_method="automatic")
    made = ask(running, "POST", "refund", {"id": intent.id, "amount": 1000}).json()
    assert (made["amount"], made["metadata"], made["status"]) == (1000, {}, "succeeded")
    assert ask(running, "POST", "refund", {"id": intent.id}).json()["amount"] == PRICE - 1000
    assert ask(running, "POST", "refund", {"id": intent.id}).json()["error"]["code"] == "charge_already_refunded"
