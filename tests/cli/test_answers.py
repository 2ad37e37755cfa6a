"""What the commands answer: exit codes, and sentences without a trace of Python in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from earmark.cli import main, print_results_and_advice
from earmark.errors import BookingExpired, LimitExceeded, SeatsTaken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def earmark(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process, on a database with one event: exit code, stdout, stderr."""
    for name in ("DATABASE_URL", "EARMARK_URL", "EARMARK_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARMARK_DATABASE_URL", f"sqlite:///{tmp_path}/shop.sqlite3")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    assert run("migrate")[0] == 0
    assert run("event", "create", "play", "--name", "A play", "--currency", "EUR", "--seat", "A1=500", "--test")[0] == 0
    return run


def held(earmark: Callable[..., tuple[int, str, str]]) -> str:
    """The id of a hold on the one seat."""
    code, out, _ = earmark("hold", "play", "A1", "--buyer", "ann", "--test", "--json")
    assert code == 0
    return str(json.loads(out)["id"])


def test_a_payment_that_the_buyer_must_act_on_is_no_success(earmark: Callable[..., tuple[int, str, str]]) -> None:
    """A script that goes on after `earmark pay` would issue a ticket that is not paid for."""
    code, out, _ = earmark("pay", held(earmark), "--method", "pm_card_authenticationRequired", "--test")
    assert code == 3
    assert "The buyer must act" in out


def test_a_payment_that_is_a_sale_is_a_success(earmark: Callable[..., tuple[int, str, str]]) -> None:
    """The control."""
    code, out, _ = earmark("pay", held(earmark), "--method", "pm_card_visa", "--test")
    assert code == 0
    assert "is confirmed" in out


@pytest.mark.parametrize(
    "command",
    [
        ("show", "00000000-0000-0000-0000-000000000000", "--test"),
        ("explain", "00000000-0000-0000-0000-000000000000"),
        ("explain", "play/Z9"),
        ("explain", "opera/A1"),
        ("hold", "play", "Z9", "--buyer", "ann", "--test"),
        ("hold", "opera", "A1", "--buyer", "ann", "--test"),
    ],
)
def test_a_refusal_is_a_sentence(earmark: Callable[..., tuple[int, str, str]], command: tuple[str, ...]) -> None:
    """Its facts are written for a reader, not as Python does."""
    code, out, err = earmark(*command)
    assert (code, out) == (1, "")
    assert not set(err) & set("=[]{}")


def test_facts_of_a_refusal_are_written_plainly() -> None:
    """Lists, numbers, moments, and the booking of each seat."""
    taken = print_results_and_advice.advise(SeatsTaken(seats=["A1", "A2"], yours={"A1": "b1"}))
    assert "(seats: A1, A2; yours: A1 is b1)" in taken
    assert "(limit: 4; have: 3; asked: 2)" in print_results_and_advice.advise(LimitExceeded(limit=4, have=3, asked=2))
    ended = BookingExpired(expires_at=datetime(2026, 5, 1, 19, 30, tzinfo=UTC))
    assert "(expires at: 2026-05-01 19:30:00 UTC)" in print_results_and_advice.advise(ended)


@pytest.mark.parametrize("option", [True, False])
def test_doctor_names_what_named_the_database(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, *, option: bool
) -> None:
    """An operator looks for a wrong address where doctor says that it is."""
    wrong = "postgresql://user@127.0.0.1:9/none"
    monkeypatch.delenv("EARMARK_DATABASE_URL")
    if not option:
        monkeypatch.setenv("DATABASE_URL", wrong)
    _, out, _ = earmark("doctor", *(["--database", wrong] if option else []))
    assert f"{'--database' if option else 'DATABASE_URL'} is {wrong}" in out
    assert "EARMARK_DATABASE_URL" not in out
