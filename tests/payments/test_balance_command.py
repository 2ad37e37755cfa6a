"""`earmark accounts`: open, credit, show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def earmark(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line on a new database: exit code, stdout, stderr."""
    monkeypatch.setenv("EARMARK_DATABASE_URL", f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    run("migrate")
    return run


def test_an_account_is_opened_credited_and_shown(earmark: Run) -> None:
    """A gift card, from the shop's side."""
    assert earmark("accounts", "open", "card-1", "--currency", "EUR")[0] == 0
    for _ in range(2):
        code, out, _ = earmark("accounts", "credit", "card-1", "4500", "--entry", "sale-7", "--reason", "a gift")
        assert (code, "balance 45.00 EUR, set aside 0.00 EUR, free 45.00 EUR" in out) == (0, True)
    code, out, _ = earmark("accounts", "show", "card-1")
    assert code == 0
    assert "card-1 (live): balance 45.00 EUR" in out
    assert out.count("credited") == 1
    assert "sale-7  a gift" in out
    assert "opened" not in earmark("accounts", "show", "card-1", "--limit", "1")[1]


def test_what_is_refused_is_one_line(earmark: Run) -> None:
    """On stderr, with exit code 1; an account that is not there is said so."""
    earmark("accounts", "open", "card-1", "--currency", "EUR", "--test")
    earmark("accounts", "credit", "card-1", "1", "--entry", "sale-7")
    for arguments in (
        ("open", "card-1", "--currency", "EUR"),
        ("open", "card-2", "--currency", "EURO"),
        ("credit", "card-2", "1"),
        ("credit", "card-1", "2", "--entry", "sale-7"),
    ):
        code, _, err = earmark("accounts", *arguments)
        assert (code, len(err.strip().splitlines())) == (1, 1)
        assert "Not done" in err
    assert earmark("accounts", "show", "card-2")[:2] == (1, "There is no account card-2.\n")
