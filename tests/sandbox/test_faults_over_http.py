"""Faults over real connections: Stripe's client gets no outcome, and only the ledger shows what happened."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import pytest
import stripe
from tests.sandbox.payment_methods import Method

from earmark.sandbox.faults import Fault
from earmark.sandbox.model import LedgerMove
from earmark.sandbox.server import run_in_thread

from .support import PRICE, client_of, create, until

if TYPE_CHECKING:
    from earmark.sandbox.server import RunningSandbox

SHORT_TIMEOUT = 0.5
"""The timeout of a client, for an answer that never arrives."""
ATTEMPTS_MAX = 100
HANGING = {Fault.HANG, Fault.HANG_AFTER}
AFTER = {Fault.ERROR_AFTER, Fault.REPLY_LOST, Fault.HANG_AFTER}
ERRORS: dict[Fault, type[stripe.StripeError]] = {
    Fault.ERROR_BEFORE: stripe.APIError,
    Fault.ERROR_AFTER: stripe.APIError,
    Fault.RATE_LIMIT: stripe.RateLimitError,
    Fault.REPLY_LOST: stripe.APIConnectionError,
    Fault.HANG: stripe.APIConnectionError,
    Fault.HANG_AFTER: stripe.APIConnectionError,
}


def injected(running: RunningSandbox, fault: Fault) -> bool:
    return running.do(lambda sandbox: any(call.fault is fault for call in sandbox.pipeline.calls))


def charged(running: RunningSandbox) -> int:
    return running.do(lambda sandbox: sandbox.bank.total(LedgerMove.AUTHORISED))


def waiting(running: RunningSandbox, *, key: str) -> socket.socket:
    """The connection of a client that has requested a payment and waits without a timeout."""
    fields = {
        "amount": PRICE,
        "currency": "eur",
        "payment_method": Method.VISA,
        "confirm": "true",
        "capture_method": "manual",
        "payment_method_types[]": "card",
    }
    body = urlencode(fields)
    address = urlsplit(running.url)
    assert address.hostname is not None
    assert address.port is not None
    opened = socket.create_connection((address.hostname, address.port))
    head = f"POST /v1/payment_intents HTTP/1.1\r\nHost: sandbox\r\nAuthorization: Bearer {running.sandbox.key}\r\n"
    head += f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    opened.sendall((head + body).encode())
    return opened


def outcomes(running: RunningSandbox) -> list[str]:
    return running.do(lambda sandbox: [call.outcome for call in sandbox.pipeline.calls])


@pytest.mark.parametrize("fault", list(ERRORS))
def test_a_repeated_call_after_a_lost_answer_charges_once(
    running: RunningSandbox, client: stripe.StripeClient, fault: Fault
) -> None:
    """With the same key there is one charge at the end, whatever happened to the first call."""
    running.do(lambda sandbox: sandbox.script.add(fault, "authorise"))
    client_ = client_of(running, seconds=SHORT_TIMEOUT) if fault in HANGING else client
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(ERRORS[fault]):
            create(client_, key="one")
        # On a slow machine the client may time out before its call has arrived.
        if injected(running, fault):
            break
    assert injected(running, fault)
    assert charged(running) == (PRICE if fault in AFTER else 0)
    assert create(client, key="one").status == "requires_capture"
    assert charged(running) == PRICE


def test_a_hanging_call_keeps_its_connection_until_the_client_closes_it(
    running: RunningSandbox, client: stripe.StripeClient
) -> None:
    """It is in progress while its client waits, and other clients are served meanwhile."""
    running.do(lambda sandbox: sandbox.script.add(Fault.HANG, "authorise"))
    with waiting(running, key="one"):
        until(lambda: injected(running, Fault.HANG))
        assert create(client).status == "requires_capture"
        assert outcomes(running) == ["in progress", "answered"]
    until(lambda: outcomes(running) == ["lost", "answered"])
    assert charged(running) == PRICE


def test_a_slow_bank_charges_a_client_that_has_disconnected(running: RunningSandbox) -> None:
    """The call takes effect although its client has closed the connection."""
    running.do(lambda sandbox: sandbox.script.add(Fault.SLOW, "authorise", seconds=0.3))
    with waiting(running, key="one"):
        until(lambda: injected(running, Fault.SLOW))
    until(lambda: outcomes(running) == ["answered"])
    assert charged(running) == PRICE


def test_a_repeat_of_a_call_in_progress_is_409(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Two concurrent calls with one key have one effect."""
    running.do(lambda sandbox: sandbox.script.add(Fault.SLOW, "authorise", seconds=600))
    with waiting(running, key="one"):
        until(lambda: injected(running, Fault.SLOW))
        with waiting(running, key="one") as repeat:
            assert b"409" in repeat.recv(100)
        assert create(client, key="another").status == "requires_capture"
    assert outcomes(running) == ["in progress", "idempotency_key_in_use", "answered"]
    assert charged(running) == PRICE


def test_a_sticky_error_is_repeated_for_its_key(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """The payment is authorised, and only the list shows it."""
    running.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    running.do(lambda sandbox: sandbox.script.add(Fault.ERROR_AFTER, "authorise"))
    for _ in range(3):
        with pytest.raises(stripe.APIError):
            create(client, key="one")
    assert [intent.status for intent in client.v1.payment_intents.list().data] == ["requires_capture"]
    assert charged(running) == PRICE


def test_a_lost_reply_to_a_read_is_an_error_too(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Reads are calls like any other."""
    intent = create(client)
    running.do(lambda sandbox: sandbox.script.add(Fault.REPLY_LOST, "status"))
    with pytest.raises(stripe.APIConnectionError):
        client.v1.payment_intents.retrieve(intent.id)
    assert client.v1.payment_intents.retrieve(intent.id).status == "requires_capture"


def test_a_server_with_a_hanging_call_can_be_stopped() -> None:
    """The waiting client gets an error."""
    with run_in_thread() as running:
        running.do(lambda sandbox: sandbox.script.add(Fault.HANG, "authorise"))
        errors: list[Exception] = []

        def ask() -> None:
            try:
                create(client_of(running))
            except stripe.StripeError as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: injected(running, Fault.HANG))
    asking.join()
    assert len(errors) == 1


def test_two_sandboxes_do_not_share_a_port() -> None:
    """Each has its own bank."""
    with run_in_thread() as one, run_in_thread() as other:
        assert one.url != other.url
        create(client_of(one))
        assert (charged(one), charged(other)) == (PRICE, 0)
