"""`earmark erase-buyer`: what it shows, when it prompts, and how it ends."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import structlog
from tests.sqlite_files import make_migrated

from earmark.cli import main
from earmark.library import Earmark
from earmark.store.sqlite.erase_buyer import REWRITTEN

from .conftest import ANN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def earmark(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The command line in this process: exit code, stdout, stderr."""
    for name in ("EARMARK_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(("erase-buyer", *arguments))
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    yield run
    structlog.reset_defaults()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A shop with one sale of a show that is over, and a hold of one that is not."""
    place = f"sqlite:///{tmp_path}/shop.sqlite3"

    async def fill() -> None:
        await make_migrated(tmp_path / "shop.sqlite3")
        now = datetime.now(UTC)
        async with Earmark.open(place) as shop:
            for event_id, days in (("over", -1), ("soon", 1)):
                starts_at = now + timedelta(days=days)
                await shop.create_event(
                    event_id, name="A show", currency="EUR", starts_at=starts_at, pools={"GA": (99, 500)}
                )
            sold = await shop.hold("over", buyer=ANN, pools={"GA": 2}, key="1")
            await shop.confirm(sold.id, payment_id="till")
            await shop.hold("soon", buyer="bob", pools={"GA": 1})

    asyncio.run(fill())
    return place


def answering(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """A terminal, and what its operator types."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda: said)


def test_it_shows_what_it_changes_and_changes_it(earmark: Run, url: str) -> None:
    """A row for each kind; then there is nothing any more."""
    code, out, _ = earmark(ANN, "--database", url, "--yes")
    assert code == 0
    *rows, erased, note = out.splitlines()
    assert rows == [
        "Rows that name this buyer:",
        "       1  bookings",
        "       1  journal entries",
        "       1  stored answers",
        "       1  totals",
    ]
    assert erased.startswith("Erased.")
    assert "was not written anew" in note
    assert "erased-" not in out, "beside the name in a terminal's log, the pseudonym would be none"
    code, out, _ = earmark(ANN, "--database", url, "--yes")
    assert (code, out) == (0, "There is nothing of this buyer in this database.\n")


def test_a_dry_run_shows_and_changes_nothing(earmark: Run, url: str) -> None:
    """However often it runs."""
    first = earmark(ANN, "--database", url, "--dry-run")
    assert first[0] == 0
    assert "bookings" in first[1]
    assert earmark(ANN, "--database", url, "--dry-run") == first


def test_without_a_terminal_it_needs_a_yes(earmark: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that forgot the option changes nothing."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, out, _ = earmark(ANN, "--database", url)
    assert code == 1
    assert "Add --yes" in out
    assert "bookings" in earmark(ANN, "--database", url, "--dry-run")[1]


@pytest.mark.parametrize("said, code", [("y", 0), ("YES", 0), ("", 1), ("n", 1), (ANN, 1)])
def test_on_a_terminal_it_prompts(
    earmark: Run, url: str, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    """Anything but a yes is a no."""
    answering(monkeypatch, said)
    ended, out, _ = earmark(ANN, "--database", url)
    assert ended == code
    assert ("Erased." in out) is (code == 0)


def test_a_booking_that_is_not_over_is_named(earmark: Run, url: str) -> None:
    """With its mode, its event and the reason; exit code 1."""
    code, out, _ = earmark("bob", "--database", url, "--yes")
    assert code == 1
    assert out.splitlines()[0] == "Nothing was changed: bookings of this buyer are not over."
    assert "(live, soon): it is held" in out
    assert "(live, soon): its event starts at" in out


def test_the_error_says_how_to_end_the_sale_of_an_event_without_a_start(earmark: Run, url: str) -> None:
    """The request, its body and the scope of the key that may make it."""

    async def sell() -> None:
        async with Earmark.open(url) as shop:
            await shop.create_event("drop", name="A drop", currency="EUR", pools={"GA": (9, 500)})
            await shop.release((await shop.hold("drop", buyer="bob", pools={"GA": 1})).id)

    asyncio.run(sell())
    told = earmark("bob", "--database", url, "--yes")[1].splitlines()[-1]
    assert "`manage`" in told
    assert 'PATCH /v1/events/{id} with {"sale_closes_at": "' in told


def test_a_file_is_written_anew_with_the_option(earmark: Run, url: str) -> None:
    """With the erasure, or later, when sales can wait: then it needs no yes."""
    code, out, _ = earmark(ANN, "--database", url, "--yes", "--rewrite")
    assert (code, out.splitlines()[-1]) == (0, REWRITTEN)
    code, out, _ = earmark(ANN, "--database", url, "--rewrite")
    assert (code, out.splitlines()) == (0, ["There is nothing of this buyer in this database.", REWRITTEN])
    code, out, _ = earmark(ANN, "--database", url, "--rewrite", "--dry-run")
    assert (code, out.splitlines()) == (0, ["There is nothing of this buyer in this database."])


@pytest.mark.parametrize("name", ["", "  ", "ann\udcff"])
def test_a_buyer_has_a_name(earmark: Run, url: str, name: str) -> None:
    """Bad usage is exit code 2."""
    assert earmark(name, "--database", url)[0] == 2


def test_a_store_in_memory_has_nothing_to_erase(earmark: Run) -> None:
    """It ends with its process."""
    code, _, err = earmark(ANN, "--database", "memory:")
    assert code == 1
    assert "sqlite:///" in err
