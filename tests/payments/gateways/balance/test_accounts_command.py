"""The command `earmark accounts`: open, credit, find and show."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from earmark.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def earmark(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line on a new database: exit code, stdout, stderr."""
    monkeypatch.setenv("EARMARK_ACCOUNT_SECRET", "b1946ac92492d2347c6235b4d2611184")
    monkeypatch.setenv("EARMARK_DATABASE_URL", f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    run("migrate")
    return run


def opened(out: str) -> tuple[str, str]:
    """The id and the code in the output of `accounts open`."""
    account_id, _, rest = out.partition(" ")
    return account_id, rest.partition("Its code is ")[2].partition(":")[0]


def test_an_account_is_opened_credited_and_shown(earmark: Run) -> None:
    """An operator opens a gift card, and its code is shown once."""
    code, out, _ = earmark("accounts", "open", "--currency", "EUR")
    assert code == 0
    account, secret = opened(out)
    assert UUID(account).version == 7
    assert len(secret) == 24
    output = ""
    for _ in range(2):
        code, out, _ = earmark("accounts", "credit", account, "4500", "--entry", "sale-7", "--reason", "a gift")
        assert (code, "balance 45.00 EUR, set aside 0.00 EUR, free 45.00 EUR" in out) == (0, True)
        output += out
    code, out, _ = earmark("accounts", "show", account)
    assert code == 0
    assert f"{account} (live): balance 45.00 EUR" in out
    assert out.count("credited") == 1
    assert "sale-7  a gift" in out
    assert secret not in output + out
    assert "opened" not in earmark("accounts", "show", account, "--limit", "1")[1]


def test_a_code_is_read_from_a_file(earmark: Run, tmp_path: Path) -> None:
    """The code opens one account, is never shown, and finds that account again."""
    card = tmp_path / "card"
    card.write_text("GIFT-CARD-OF-ALICE-9F2K\n")
    code, out, _ = earmark("accounts", "open", "--currency", "EUR", "--code-file", str(card))
    account, _ = opened(out)
    assert (code, "GIFT-CARD" in out) == (0, False)
    for again in (("open", "--currency", "EUR"), ("find",)):
        code, out, _ = earmark("accounts", *again, "--code-file", str(card))
        assert (code, opened(out)[0]) == (0, account)
    wrong = earmark("accounts", "open", "--currency", "USD", "--code-file", str(card))[2]
    assert "already opens a live account in EUR; use another code" in wrong
    card.write_text("TOO-SHORT\n")
    wrong = earmark("accounts", "open", "--currency", "EUR", "--code-file", str(card))[2]
    assert "must have 16 to 100 printable characters and no space" in wrong
    card.write_text("GIFT-CARD-OF-ALICE-9F2X\n")
    assert earmark("accounts", "find", "--code-file", str(card))[:2] == (1, "This code opens no account.\n")


def test_a_code_is_read_from_stdin(earmark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script can pipe the code in."""
    monkeypatch.setattr("sys.stdin", io.StringIO("GIFT-CARD-OF-ALICE-9F2K\n"))
    account, _ = opened(earmark("accounts", "open", "--currency", "EUR", "--code-file", "-")[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("GIFT-CARD-OF-ALICE-9F2K"))
    assert opened(earmark("accounts", "find")[1])[0] == account


def test_a_refusal_is_one_line_on_stderr(earmark: Run, tmp_path: Path) -> None:
    """The exit code is 1, and no code is shown; a missing account is named."""
    card, short = tmp_path / "card", tmp_path / "short"
    card.write_text("GIFT-CARD-OF-ALICE-9F2K")
    short.write_text("GIFT-9F2K")
    account, _ = opened(earmark("accounts", "open", "--currency", "EUR", "--test", "--code-file", str(card))[1])
    earmark("accounts", "credit", account, "1", "--entry", "sale-7")
    for arguments in (
        ("open", "--currency", "EUR", "--code-file", str(card)),
        ("open", "--currency", "EUR", "--code-file", str(short)),
        ("open", "--currency", "EURO"),
        ("credit", "card-2", "1"),
        ("credit", account, "2", "--entry", "sale-7"),
    ):
        code, _, err = earmark("accounts", *arguments)
        assert (code, len(err.strip().splitlines())) == (1, 1)
        assert "Not done" in err
        assert "GIFT" not in err
    assert earmark("accounts", "show", "card-2")[:2] == (1, "There is no account card-2.\n")
    assert "cannot be read" in earmark("accounts", "find", "--code-file", str(tmp_path / "nothing"))[2]


def test_accounts_need_their_secret(earmark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening and finding by code need the secret; a credit by id does not."""
    account, _ = opened(earmark("accounts", "open", "--currency", "EUR")[1])
    monkeypatch.delenv("EARMARK_ACCOUNT_SECRET")
    for arguments in (("open", "--currency", "EUR"), ("find",)):
        code, _, err = earmark("accounts", *arguments)
        assert (code, "Accounts need EARMARK_ACCOUNT_SECRET" in err) == (1, True)
        assert "Set it to the secret that your servers use. Only if there is none yet, make one" in err
    assert earmark("accounts", "credit", account, "1")[0] == 0
