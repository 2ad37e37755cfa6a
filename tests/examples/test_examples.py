"""The worked examples do what they print, on SQLite and on PostgreSQL, and the tables agree with them afterwards."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import pytest
from tests import forked_programs
from tests.docs.pages import ROOT, Block, blocks, codes, prose, read
from tests.docs.run_page import BIN, Failed, compare, environment, run_commands

from earmark.domain.id_types import EntryId, EventId
from earmark.domain.journal_entry import Entry
from earmark.schemas.requests import EventIdText

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from earmark.testservers import Postgres

    Ask = Callable[[str], list[tuple[str, ...]]]

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
PAGE = "examples/README.md"
SECONDS_MAX = 60
FLIGHTS = ("flight:XY101:date:2031-03-01", "flight:XY101:date:2031-03-02", "flight:XY102:date:2031-03-01")
CLEAN = "clean: every seat has at most one active owner"

SOLD = """
SELECT s.event_id, s.id, b.buyer FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE b.state = 'confirmed' ORDER BY s.event_id, s.id
"""
POOLS = "SELECT event_id, id, capacity, held, sold FROM pools ORDER BY event_id, id"
STATES = "SELECT state, count(*) FROM bookings GROUP BY state ORDER BY state"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, as a reader who runs an example would name it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def ask(url: str, request: pytest.FixtureRequest) -> Ask:
    """The tables themselves, by plain SQL and past all of Earmark."""

    def asked(sql: str) -> list[tuple[str, ...]]:
        if url.startswith("sqlite"):
            connection = sqlite3.connect(url.removeprefix("sqlite:///"))
            rows = [tuple(map(str, row)) for row in connection.execute(sql)]
            connection.close()
            return rows
        server: Postgres = request.getfixturevalue("postgres_server")
        answer = server.psql(sql, database=urlsplit(url).path.removeprefix("/"))
        return [tuple(line.split("|")) for line in answer.splitlines()]

    return asked


def run(program: Path, url: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program as a user would."""
    settings = {} if url is None else {"DATABASE_URL": url}
    return forked_programs.run([program], environment=environment(**settings), folder=ROOT, seconds_max=SECONDS_MAX)


def page_block(program: str) -> Block:
    """The block of the page that runs a program, with what the page says that it prints."""
    (found,) = [block for block in blocks(read(PAGE)) if block.text.strip() == f"python examples/{program}"]
    return found


def output_of(program: str, url: str) -> str:
    """What a program printed, which is what its page says."""
    done = run(EXAMPLES / program, url)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert compare(page_block(program), done.stdout) == 1
    return done.stdout


def sells_nothing_twice(program: str, url: str, ask: Ask) -> None:
    """A second run on one database is refused by name and changes nothing; the database is whole."""
    before = ask(SOLD), ask(POOLS), ask(STATES)
    again = run(EXAMPLES / program, url)
    assert again.returncode == 1
    assert "earmark.errors.EventExists" in again.stderr
    assert (ask(SOLD), ask(POOLS), ask(STATES)) == before
    assert verified(url).startswith(CLEAN)


def verified(url: str) -> str:
    """What `earmark verify` says about a database."""
    command = [str(BIN / "earmark"), "verify", "--database", url]
    return forked_programs.run(command, environment=environment(), folder=ROOT, seconds_max=SECONDS_MAX).stdout


def test_a_warehouse_loses_no_update(url: str, ask: Ask) -> None:
    """100 - 10 - 5 is 85, the last unit goes to one order, and unpaid units become free.

    The control stands in the program: the same two orders by reading, subtracting and writing back lose one of them.
    """
    said = output_of("inventory.py", url)
    assert re.search(r"^by hand: +100 - 10 - 5 = (90|95)$", said, re.MULTILINE)
    assert re.search(r"^with Earmark: +100 - 10 - 5 = 85 ", said, re.MULTILINE)

    pools = {pool: tuple(map(int, counts)) for _, pool, *counts in ask(POOLS)}
    assert pools == {
        "lamp": (1, 0, 1),
        "mug": (100, 0, 10 + 5 + 28 * 3),
        "poster": (40, 0, 20),
        "shirt": (40, 0, 20 + 5),
    }
    assert ask(STATES) == [("confirmed", str(2 + 40 + 1 + 28 + 1)), ("expired", "1")]
    sells_nothing_twice("inventory.py", url, ask)


def test_a_cinema_sells_a_seat_once_per_show(url: str, ask: Ask) -> None:
    """The same seat in two shows has two owners and in one show one, and a family sits together or not at all."""
    said = output_of("cinema.py", url)
    sold = {(show, seat): buyer for show, seat, buyer in ask(SOLD)}
    assert sold.pop(("cinema:show:matinee", "C5")) == "alice"
    evening = {seat: buyer for (_, seat), buyer in sold.items()}
    assert evening.pop("C5") == "bob"
    assert evening.pop("A2") == "bob"
    assert evening.pop("D5").startswith("buyer-")

    (late,) = re.findall(r"^(family-\d) wants", said, re.MULTILINE)
    first = {"family-1": "family-2", "family-2": "family-1"}[late]
    row = {"family-1": ("E1", "E2", "E3", "E4"), "family-2": ("E4", "E5", "E6", "E7")}[first]
    assert evening == dict.fromkeys(row, first) | dict.fromkeys(("F1", "F2", "F3", "F4"), late)
    assert said.count("#") == len(evening) + 4, "what the program draws is what the tables say"
    assert ask(STATES) == [("confirmed", "6"), ("expired", "1")]
    sells_nothing_twice("cinema.py", url, ask)


def test_an_airline_sells_a_seat_once_per_number_and_date(url: str, ask: Ask) -> None:
    """A flight number and a date make a flight; a group has all its seats and bags or none of them."""
    output_of("flight.py", url)
    morning, next_day, back = FLIGHTS
    sold = {(flight, seat): buyer for flight, seat, buyer in ask(SOLD)}
    assert [sold.pop((flight, "12A")) for flight in (morning, next_day, back)] == ["alice"] * 3
    assert sold.pop((morning, "1A")).startswith("buyer-")
    assert [sold.pop((morning, seat)) for seat in ("17A", "17B")] == ["bob"] * 2
    assert [sold.pop((next_day, seat)) for seat in ("14A", "14B", "14C")] == ["group-3", "group-3", "alice"]
    assert [sold.pop((back, f"20{letter}")) for letter in "ABCDEF"] == ["bob"] * 6

    (group,) = set(sold.values())
    seats = {
        "group-1": {"14A", "14B", "14C", "14D", "14E", "14F"},
        "group-2": {"14F", "15A", "15B", "15C", "15D", "15E"},
    }
    assert sold.keys() == {(morning, seat) for seat in seats[group]}
    bags = {flight: (int(held), int(units)) for flight, _, _, held, units in ask(POOLS)}
    assert bags == {morning: (0, 4 + 6), next_day: (0, 1 + 1), back: (0, 10)}
    assert ask(STATES) == [("confirmed", "9"), ("expired", "1")]
    sells_nothing_twice("flight.py", url, ask)


def test_letters_are_written_once(url: str, ask: Ask) -> None:
    """Buyers who bought, whose hold expired and who released a seat get a letter, in the order in which it happened."""
    said = output_of("letters.py", url)
    assert [line.partition(": ")[2] for line in said.splitlines()] == [
        "Your seats are yours -> alice@mail.example",
        "Your hold has run out -> bob@mail.example",
        "Your booking was changed -> alice@mail.example",
        "True",
    ]
    assert ask(STATES) == [("confirmed", "1"), ("expired", "1")]
    sells_nothing_twice("letters.py", url, ask)


def _letters() -> Any:
    spec = importlib.util.spec_from_file_location("letters", EXAMPLES / "letters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "verb, after, money, subject",
    [
        ("hold", "held", None, None),
        (
            "payment",
            "confirmed",
            {"from": "captured", "to": "refunded", "refunded": 1},
            "Your money is on its way back",
        ),
        ("payment", "confirmed", {"from": "captured", "to": "needs_attention"}, "A payment needs you"),
        ("cancel", "cancelled", {"owed": 1}, "Your booking was cancelled"),
    ],
)
def test_refunds_and_payment_problems_have_letters(
    verb: str, after: str, money: dict[str, Any] | None, subject: str | None
) -> None:
    """What is refunded, and what needs the shop's attention."""
    entry = Entry(
        id=EntryId(UUID(int=1)),
        event_id=EventId("play"),
        verb=verb,
        at=datetime(2030, 1, 1, tzinfo=UTC),
        actor="test",
        facts={"payment": money} if money else {},
        after=after,
    )
    assert _letters().subject_of(entry) == subject


CHANGED = {
    "two lamps": (
        "inventory.py",
        '"lamp": (1, 9900)',
        '"lamp": (2, 9900)',
        "50 orders for the last lamp: 2 confirmed, 48 pool_exhausted; 0 left",
    ),
    "fewer mugs": (
        "inventory.py",
        '"mug": (100, 1200)',
        '"mug": (14, 1200)',
        "with Earmark:  100 - 10 - 5 = 4 (1 confirmed, 1 pool_exhausted)",
    ),
    "alice pays in time": (
        "inventory.py",
        "clock.advance(300)",
        "clock.advance(200)",
        "five minutes later: bob gets pool_exhausted, and alice, who pays now, confirmed",
    ),
    "one show for both": (
        "cinema.py",
        'buy(website, MATINEE, "C5"',
        'buy(website, EVENING, "C5"',
        "C5 in two shows: 1 confirmed, 1 seats_taken",
    ),
    "alice's seats are still hers": (
        "cinema.py",
        "clock.advance(300)",
        "clock.advance(200)",
        "five minutes later: bob gets seats_taken, and alice, who pays now, confirmed",
    ),
    "families apart": (
        "cinema.py",
        '"E7", "E6", "E5", "E4"',
        '"E8", "E7", "E6", "E5"',
        "  E # # # # # # # #",
    ),
    "one flight for all": (
        "flight.py",
        "for flight in (MORNING, NEXT_DAY, RETURN))",
        "for flight in (MORNING, MORNING, RETURN))",
        "12A on three flights: 2 confirmed, 1 seats_taken",
    ),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_is_printed_follows_from_what_is_done(change: tuple[str, str, str, str], tmp_path: Path) -> None:
    """The control: with other stock, another show or less time the same program prints another output."""
    program, said, instead, line = change
    text = (EXAMPLES / program).read_text()
    assert text.count(said) == 1
    copy = tmp_path / program
    copy.write_text(text.replace(said, instead))
    done = run(copy)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout.splitlines()
    with pytest.raises(Failed, match="but the page says"):
        compare(page_block(program), done.stdout)


def test_the_page_of_the_examples(tmp_path: Path) -> None:
    """A reader who follows the page, on the database that each program makes for itself, sees what it shows.

    And the throwaway databases were thrown away.
    """
    (tmp_path / "examples").symlink_to(EXAMPLES)
    throwaway = tmp_path / "throwaway"
    throwaway.mkdir()
    assert run_commands(read(PAGE), folder=tmp_path, instead={}, TMPDIR=str(throwaway)) == len(PROGRAMS) + 1
    assert list(throwaway.iterdir()) == []


def test_the_page_points_at_what_is_there() -> None:
    """Every program is on the page, links lead somewhere, and the ids it advises are used, and taken over HTTP too."""
    text = read(PAGE)
    links = re.findall(r"\]\(([^)]+)\)", prose(text))
    assert {program.name for program in PROGRAMS} <= set(links)
    assert [link for link in links if not (EXAMPLES / link).exists()] == []

    advised = {code for code in codes(prose(text)) if re.match(r"(inventory|cinema|flight):", code)}
    assert len(advised) == 3
    programs = "".join(program.read_text() for program in PROGRAMS)
    for event_id in advised:
        assert f'"{event_id}"' in programs
        assert msgspec.convert(event_id, EventIdText) == event_id
