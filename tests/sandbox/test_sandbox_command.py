"""The command `earmark sandbox`, run as a program."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import stripe
from cyclopts import App

from earmark.cli.commands.sandbox import sandbox
from earmark.errors import SetupError
from earmark.testservers.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import sys
from cyclopts import App
from earmark.cli.commands.sandbox import sandbox
app = App()
app.default(sandbox)
app(sys.argv[1:])
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def program(port: int) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", PROGRAM, "--port", str(port), "--seed", "7"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def lines_until(program: subprocess.Popen[str], last: str) -> str:
    assert program.stdout is not None
    output = ""
    for line in program.stdout:
        output += line
        if last in line:
            return output
    pytest.fail(f"The program ended before it printed {last!r}: {output}")


def test_it_prints_its_address_and_key_and_serves_until_sigterm(program: subprocess.Popen[str], port: int) -> None:
    """The printed address and key are enough for Stripe's official client."""
    output = lines_until(program, "Ctrl-C")
    facts = dict(re.findall(r"^  (\w+) +(\S+)", output, re.MULTILINE))
    assert facts["url"] == f"http://127.0.0.1:{port}"
    assert facts["secret"].startswith("whsec_")
    assert facts["seed"] == "7"
    client = stripe.StripeClient(facts["key"], base_addresses={"api": facts["url"]}, max_network_retries=0)
    intent = client.v1.payment_intents.create({"amount": 100, "currency": "eur"})
    assert intent.status == "requires_payment_method"
    program.send_signal(signal.SIGTERM)
    assert "Stopped." in lines_until(program, "Stopped.")
    assert program.wait(60) == 0


def test_a_port_that_is_taken_is_refused(program: subprocess.Popen[str], port: int) -> None:
    """Granian would share the port, and half of the calls would reach the other process."""
    lines_until(program, "Ctrl-C")
    with pytest.raises(SetupError, match=str(port)):
        sandbox(port=port)


def test_a_wrong_callback_url_is_refused() -> None:
    """Before the server starts."""
    with pytest.raises(SetupError, match="not a callback URL"):
        sandbox(callback_url="shop")


def test_its_help_names_payment_methods_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The help shows what a new user needs first."""
    app = App(name="sandbox", help_format="markdown", result_action="return_value")
    app.default(sandbox)
    app(["--help"])
    output = capsys.readouterr().out
    for word in ("pm_card_visa", "pm_card_authenticationRequired", "--callback-url", "/sandbox/faults", "8090"):
        assert word in output
