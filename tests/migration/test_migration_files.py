"""Which code may run once a migration was applied: what its file says, and what is made of that."""

from __future__ import annotations

import hashlib
import re

import pytest

from earmark.errors import SetupError
from earmark.store.both_databases.pending_migrations import ANY_CODE, Applied, migrations, newer, parse, pending

from .test_migrations import as_applied

DIALECTS = ["postgres", "sqlite"]
TAKES_AWAY = re.compile(
    r"\b(DROP\s+(?!TRIGGER\b)\w+|RENAME\s+\w+|SET\s+NOT\s+NULL|ALTER\s+(COLUMN\s+\w+\s+)?TYPE|DELETE\s+FROM)\b",
    re.IGNORECASE,
)
REPLACED = re.compile(r"DROP CONSTRAINT (\w+),\s+ADD CONSTRAINT \1 CHECK")
"""A rule that another of its name replaces in the same statement."""
MADE_AGAIN = re.compile(
    r"ALTER TABLE (?P<table>\w+) RENAME TO (?P<before>\w+);\s+(?P<made>CREATE TABLE (?P=table) .*?"
    r"INSERT INTO (?P=table) (?P<columns>\([\w, ]+\))\s+SELECT .*? FROM (?P=before);)\s+DROP TABLE (?P=before);",
    re.DOTALL,
)
"""SQLite cannot change a rule of a table: the table is made again, with all of its rows."""


def without_replacements(sql: str) -> str:
    """The SQL without the two ways to replace a rule by one that allows more. A reviewer reads whether it does."""
    bare = re.sub(r"--.*", "", sql)
    return MADE_AGAIN.sub(lambda found: found["made"], REPLACED.sub("ADD CONSTRAINT", bare))


@pytest.mark.parametrize(
    "text, oldest_code", [("-- expand\nSELECT 1;\n", ANY_CODE), ("-- contract 0014\n-- Why.\nSELECT 1;\n", 14)]
)
def test_the_first_line_says_which_code_may_run(text: str, oldest_code: int) -> None:
    """And is no part of the checksum."""
    step = parse(16, "tomorrow", text)
    assert step.oldest_code == oldest_code
    assert step.checksum == hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()


@pytest.mark.parametrize("text", ["SELECT 1;", "-- Expand\n", "-- contract\n", "-- contract 0017\n", "\n-- expand\n"])
def test_a_file_that_does_not_say_so_is_no_migration(text: str) -> None:
    """Neither one that is silent, nor one that asks for code newer than itself."""
    with pytest.raises(SetupError, match="0016_tomorrow"):
        parse(16, "tomorrow", text)


def test_both_dialects_allow_the_same_code() -> None:
    """A number means the same in both."""
    said = [[(str(step), step.oldest_code) for step in migrations(dialect)] for dialect in DIALECTS]
    assert said[0] == said[1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_expand_takes_nothing_away(dialect: str) -> None:
    """Code from before may use what was there; only a trigger or a rule may be replaced, by one that allows more."""
    found = {
        str(step): {match[0] for match in TAKES_AWAY.finditer(without_replacements(step.sql))}
        for step in migrations(dialect)
        if step.oldest_code == ANY_CODE
    }
    assert {step: taken for step, taken in found.items() if taken} == {}


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE bookings DROP COLUMN note",
        "DROP TABLE beats",
        "ALTER TABLE a RENAME COLUMN b TO c",
        "ALTER TABLE a ALTER COLUMN b SET NOT NULL",
        "ALTER TABLE a ALTER COLUMN b TYPE bigint",
        "ALTER TABLE a DROP CONSTRAINT b, ADD CONSTRAINT c CHECK (d > 0)",
        "ALTER TABLE a RENAME TO b; CREATE TABLE a (c integer); DROP TABLE b;",
        "ALTER TABLE a RENAME TO b; CREATE TABLE a (c integer); INSERT INTO a (c) SELECT c FROM b; DROP TABLE d;",
    ],
)
def test_what_takes_something_away_is_seen(sql: str) -> None:
    """The control of the rule above: also a rule that is not replaced, and a table that is not filled again."""
    assert TAKES_AWAY.search(without_replacements(sql))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_step_is_not_applied_below_a_newer_one(dialect: str) -> None:
    """It was never tried in that order."""
    *known, last = migrations(dialect)
    tomorrow = {9999: Applied(name="tomorrow", checksum="x", oldest_code=ANY_CODE)}
    assert newer(dialect, as_applied([*known, last]) | tomorrow) == ["9999_tomorrow"]
    with pytest.raises(SetupError, match=f"has migration 9999_tomorrow, but not {last}"):
        pending(dialect, as_applied(known) | tomorrow)
