"""The verbs as commands: the same options at a service and at a database, and one line for a refusal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from earmark.cli import main

from .support import Service, free_port, unique

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["--url", "--database"])
def run(
    request: pytest.FixtureRequest,
    on_sqlite: tuple[Service, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[int, str, str]]:
    """A command, at the service or behind its back at its database; exit code, stdout, stderr."""
    (service,) = on_sqlite
    monkeypatch.setenv("EARMARK_KEY", service.key)
    where = ["--url", service.url] if request.param == "--url" else ["--database", service.database, "--test"]

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *where])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_every_verb_on_the_command_line(run: Callable[..., tuple[int, str, str]]) -> None:
    """From a new event to a refund, in sentences for a human reader."""
    play = unique("play")
    made = run("event", "create", play, "--name", "A play", "--currency", "EUR", "--pool", "GA=10:1200")[1]
    assert made == f"{play}: A play\n  test, in EUR\n"
    assert f"{play}: A play\n" in run("event", "list")[1]

    held = run("hold", play, "--buyer", "alice", "--pool", "GA=3")[1]
    booking = held.split()[0]
    assert held.startswith(f"{booking} is held, for alice at {play}\n  3 x GA (12.00 EUR each)\n  total  36.00 EUR\n")
    assert re.search(r"  until  .* UTC, \d+ seconds from now\n$", held)
    assert "is held" in run("extend", booking, "--seconds", "60")[1]
    assert "  payment  36.00 EUR at sandbox: captured\n" in run("pay", booking, "--method", "pm_card_visa")[1]
    assert "is confirmed" in run("show", booking)[1]
    assert "  money  12.00 EUR goes back, 0.00 EUR is kept\n" in run("cancel", booking, "--pool", "GA=1")[1]
    assert "is confirmed" in run("refund", booking, "--amount", "100")[1]
    assert "  GA: 8 of 10 left, 12.00 EUR each\n" in run("event", "show", play)[1]


def test_seats_are_named_and_shown(run: Callable[..., tuple[int, str, str]]) -> None:
    """An event with a layout: some seats sold, some released."""
    play, payment = unique("play"), unique("till")
    plain = ("--rows", "2", "--seats-per-row", "4", "--price", "4500", "--per-buyer-max", "3")
    run("event", "create", play, "--name", "A play", "--currency", "EUR", *plain)
    sold = run("hold", play, "A1", "A2", "--buyer", "alice")[1].split()[0]
    assert "is confirmed" in run("confirm", sold, "--payment-id", payment, "--payment-method", "cash")[1]
    held = json.loads(run("hold", play, "B4", "--buyer", "bob", "--json")[1])
    names = {"row": "B", "number": 4, "section": None, "category": None}
    assert held["seats"] == [{"id": "B4", "price": 4500} | names]
    house = run("event", "show", play)[1]
    assert "  seats: 5 of 8 free" in house
    assert "    ##··  A1 to A4\n    ···h  B1 to B4\n" in house
    assert "is released" in run("release", held["id"])[1]
    assert "is confirmed" in run("cancel", sold, "A1", "--refund", "none", "--reason", "one stays home")[1]


def test_a_key_makes_a_command_safe_to_repeat(run: Callable[..., tuple[int, str, str]]) -> None:
    """A script that was killed runs again from its first line."""
    play, key = unique("play"), unique("key")
    for _ in range(2):
        again = run("event", "create", play, "--name", "A", "--currency", "EUR", "--seat", "A1=100",
                    "--idempotency-key", f"{key}-1")  # fmt: skip
        held = run("hold", play, "A1", "--buyer", "alice", "--idempotency-key", f"{key}-2")
        assert (again[0], held[0]) == (0, 0)


def test_a_refusal_is_one_line_that_says_what_to_do(run: Callable[..., tuple[int, str, str]]) -> None:
    """On stderr, with exit code 1, and nothing on stdout."""
    play = unique("play")
    run("event", "create", play, "--name", "A play", "--currency", "EUR", "--seat", "A1=100")
    run("hold", play, "A1", "--buyer", "alice")
    for command, says in (
        (("hold", play, "A1", "--buyer", "bob"), "`earmark event show` says which are free"),
        (("show", "nonsense"), "Check its id"),
        (("event", "show", "nowhere"), "`earmark event list`"),
        (("hold", play, "--buyer", "bob"), "seats, pools, or both"),
        (("hold", play, "--buyer", "bob", "--pool", "GA"), "NAME=NUMBER"),
        (("event", "create", "x", "--name", "X", "--currency", "EUR", "--pool", "GA=5"), "NAME=CAPACITY:PRICE"),
        (("cancel", "b", "--refund", "half"), "'half' is not a whole number"),
    ):
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert says in err


def test_an_unreachable_service_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the address; and a service and a database at once are refused."""
    monkeypatch.setattr("earmark.client.retry_schedule.PAUSE_SECONDS", 0.0)
    url = f"http://127.0.0.1:{free_port()}"
    for arguments, says in (
        (["show", "b", "--url", url], f"{url} gave no answer"),
        (["show", "b", "--url", url, "--database", "memory:"], "not both"),
        (["show", "b", "--url", "shop.example"], "http:// or https://"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        err = capsys.readouterr().err
        assert ended.value.code == 1
        assert says in err
        assert err.count("\n") == 1
