"""`earmark sandbox`, as a program."""

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
from earmark.testservers.ports import free_port

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
    said = ""
    for line in program.stdout:
        said += line
        if last in line:
            return said
    pytest.fail(f"It ended before it said {last!r}: {said}")


def test_it_says_how_to_use_it_and_serves_until_it_is_told_to_stop(program: subprocess.Popen[str], port: int) -> None:
    """The printed address and key are enough for the official client."""
    said = lines_until(program, "Ctrl-C")
    facts = dict(re.findall(r"^  (\w+) +(\S+)", said, re.MULTILINE))
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
    """Granian would share it, and half of the calls would go astray."""
    lines_until(program, "Ctrl-C")
    with pytest.raises(SetupError, match=str(port)):
        sandbox(port=port)


def test_an_address_for_callbacks_must_be_one() -> None:
    """Before anything is opened."""
    with pytest.raises(SetupError, match="no address"):
        sandbox(callback_url="shop")


def test_its_help_names_the_ways_to_pay(capsys: pytest.CaptureFixture[str]) -> None:
    """What a newcomer looks for first."""
    app = App(name="sandbox", help_format="markdown", result_action="return_value")
    app.default(sandbox)
    app(["--help"])
    said = capsys.readouterr().out
    for word in ("pm_card_visa", "pm_card_authenticationRequired", "--callback-url", "/sandbox/faults", "8090"):
        assert word in said
