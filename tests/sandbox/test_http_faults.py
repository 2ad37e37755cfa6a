"""Misbehaviour over real sockets: the official client learns nothing, and the ledger tells what happened."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import pytest
import stripe
from tests.payments.methods import Method

from earmark.sandbox.faults import Fault
from earmark.sandbox.model import Move
from earmark.sandbox.server import run_in_thread

from .support import PRICE, client_of, create, until

if TYPE_CHECKING:
    from earmark.sandbox.server import RunningSandbox

IMPATIENT = 0.5
"""How long a client waits for what never comes."""
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


def met(running: RunningSandbox, fault: Fault) -> bool:
    return running.do(lambda sandbox: any(call.fault is fault for call in sandbox.desk.calls))


def charged(running: RunningSandbox) -> int:
    return running.do(lambda sandbox: sandbox.bank.total(Move.AUTHORISED))


def waiting(running: RunningSandbox, *, key: str) -> socket.socket:
    """A client that has asked for a payment, and waits for ever."""
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
    return running.do(lambda sandbox: [call.outcome for call in sandbox.desk.calls])


@pytest.mark.parametrize("fault", list(ERRORS))
def test_no_answer_may_hide_a_charge_and_the_same_call_again_makes_no_second(
    running: RunningSandbox, client: stripe.StripeClient, fault: Fault
) -> None:
    """With the same key there is one charge in the end, whatever happened to the first call."""
    running.do(lambda sandbox: sandbox.script.add(fault, "authorise"))
    impatient = client_of(running, seconds=IMPATIENT) if fault in HANGING else client
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(ERRORS[fault]):
            create(impatient, key="one")
        # On a machine that stalls a client may give up before its call has arrived.
        if met(running, fault):
            break
    assert met(running, fault)
    assert charged(running) == (PRICE if fault in AFTER else 0)
    assert create(client, key="one").status == "requires_capture"
    assert charged(running) == PRICE


def test_a_call_that_hangs_holds_its_socket_until_the_client_lets_go(
    running: RunningSandbox, client: stripe.StripeClient
) -> None:
    """It is in progress for as long as somebody waits, and others are served meanwhile."""
    running.do(lambda sandbox: sandbox.script.add(Fault.HANG, "authorise"))
    with waiting(running, key="one"):
        until(lambda: met(running, Fault.HANG))
        assert create(client).status == "requires_capture"
        assert outcomes(running) == ["in progress", "answered"]
    until(lambda: outcomes(running) == ["lost", "answered"])
    assert charged(running) == PRICE


def test_a_slow_bank_charges_a_client_that_has_given_up(running: RunningSandbox) -> None:
    """Nobody waits any more, and it happens all the same."""
    running.do(lambda sandbox: sandbox.script.add(Fault.SLOW, "authorise", seconds=0.3))
    with waiting(running, key="one"):
        until(lambda: met(running, Fault.SLOW))
    until(lambda: outcomes(running) == ["answered"])
    assert charged(running) == PRICE


def test_a_twin_of_a_call_in_progress_is_409(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Two of the same at once have one effect."""
    running.do(lambda sandbox: sandbox.script.add(Fault.SLOW, "authorise", seconds=600))
    with waiting(running, key="one"):
        until(lambda: met(running, Fault.SLOW))
        with waiting(running, key="one") as twin:
            assert b"409" in twin.recv(100)
        assert create(client, key="another").status == "requires_capture"
    assert outcomes(running) == ["in progress", "idempotency_key_in_use", "answered"]
    assert charged(running) == PRICE


def test_a_sticky_error_is_repeated_for_its_key(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """The charge is there, and only to look tells."""
    running.do(lambda sandbox: setattr(sandbox.script, "sticky_errors", True))
    running.do(lambda sandbox: sandbox.script.add(Fault.ERROR_AFTER, "authorise"))
    for _ in range(3):
        with pytest.raises(stripe.APIError):
            create(client, key="one")
    assert [intent.status for intent in client.v1.payment_intents.list().data] == ["requires_capture"]
    assert charged(running) == PRICE


def test_a_reply_that_is_lost_to_a_reader_is_an_error_too(running: RunningSandbox, client: stripe.StripeClient) -> None:
    """Reads are calls like any other."""
    intent = create(client)
    running.do(lambda sandbox: sandbox.script.add(Fault.REPLY_LOST, "status"))
    with pytest.raises(stripe.APIConnectionError):
        client.v1.payment_intents.retrieve(intent.id)
    assert client.v1.payment_intents.retrieve(intent.id).status == "requires_capture"


def test_a_server_with_a_call_that_hangs_can_be_stopped() -> None:
    """Whoever waits is cut off."""
    with run_in_thread() as running:
        running.do(lambda sandbox: sandbox.script.add(Fault.HANG, "authorise"))
        cut: list[Exception] = []

        def ask() -> None:
            try:
                create(client_of(running))
            except stripe.StripeError as error:
                cut.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: met(running, Fault.HANG))
    asking.join()
    assert len(cut) == 1


def test_two_sandboxes_do_not_share_a_port() -> None:
    """Each has its own books."""
    with run_in_thread() as one, run_in_thread() as other:
        assert one.url != other.url
        create(client_of(one))
        assert (charged(one), charged(other)) == (PRICE, 0)
