"""Which texts name a buyer: one rule, in Python for SQLite and in SQL for PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as some

from earmark.store.erasure import KEPT_FIELDS, PREFIX, Unnamer, new_pseudonym

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ALIAS = f"{PREFIX}{'0' * 32}"
BLANK = ""
TEXTS = [
    ("ann", "ann", None, ALIAS),
    ("ann", "buyer:ann", None, f"buyer:{ALIAS}"),
    ("ann", "test:buyer:ann", None, f"test:buyer:{ALIAS}"),
    ("ann", "for ann, paid in cash", "reason", BLANK),
    ("ann", "planned by annie", "reason", "planned by annie"),
    ("ann", "till-ann-7", "payment_id", f"till-{ALIAS}-7"),
    ("ann", "till-ann-7", "reason", BLANK),
    ("ann", "ann2", "key", "ann2"),
    ("18", "2026-11-18T10:00:00Z", "told", "2026-11-18T10:00:00Z"),
    ("4242", "01234567-4242-7000-8000-000000000000", "told", "01234567-4242-7000-8000-000000000000"),
    ("01234567-4242-7000-8000-000000000000", "01234567-4242-7000-8000-000000000000", "told", ALIAS),
    ("a.c", "for abc", "reason", "for abc"),
    ("a.c", "for a.c", "reason", BLANK),
    ("\\1 $& [x", "by \\1 $& [x.", "reason", BLANK),
    ("Zoë", "Zoë kam", "reason", BLANK),
    ("%", "100% sure", "reason", "100% sure"),
    ("ann", "", "reason", ""),
]
DOCUMENTS: list[tuple[Any, Any]] = [
    ({"buyer": "ann", "id": "ann", "seats": ["ann"]}, {"buyer": ALIAS, "id": "ann", "seats": ["ann"]}),
    ({"before": {"buyer": "ann"}, "list": ["ann", 1]}, {"before": {"buyer": ALIAS}, "list": [ALIAS, 1]}),
    ({"anything": {"deep": [{"er": "ann"}]}}, {"anything": {"deep": [{"er": ALIAS}]}}),
    (
        {"starts_at": "ann", "paying_until": "ann", "at": "ann"},
        {"starts_at": "ann", "paying_until": "ann", "at": ALIAS},
    ),
    ({"z": 1.5, "a": None, "m": True, "note": "of ann"}, {"z": 1.5, "a": None, "m": True, "note": ""}),
    ([], []),
    ({}, {}),
    ("ann", ALIAS),
]


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Any]:
    """The same rule in SQL."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("buyer, said, field, told", TEXTS)
async def test_a_text_without_the_name(database: Any, buyer: str, said: str, field: str | None, told: str) -> None:
    """Whole, with a prefix, inside an id, inside a sentence; and what only looks like it."""
    assert Unnamer(buyer, ALIAS).text(said, field) == told
    assert await database.fetchval("SELECT earmark_unname($1, $2, $3, $4)", said, field, buyer, ALIAS) == told


@pytest.mark.parametrize("document, told", DOCUMENTS)
async def test_a_document_without_the_name(database: Any, document: Any, told: Any) -> None:
    """In every field, known or not, but for those that name something else; in the same order."""
    said = json.dumps(document, separators=(",", ":"))
    own = Unnamer("ann", ALIAS).bytes(said.encode())
    assert own == json.dumps(told, separators=(",", ":")).encode()
    asked = "SELECT earmark_unname_bytes($1, 'ann', $2, $3)"
    assert await database.fetchval(asked, said.encode(), ALIAS, list(KEPT_FIELDS)) == own


async def test_bytes_that_are_no_document_are_a_text(database: Any) -> None:
    """An answer of an older Earmark, or of a test."""
    for said, told in ((b"ann", ALIAS.encode()), (b"it is ann's", b""), (b"{broken", b"{broken")):
        assert Unnamer("ann", ALIAS).bytes(said) == told
        asked = "SELECT earmark_unname_bytes($1, 'ann', $2, $3)"
        assert await database.fetchval(asked, said, ALIAS, list(KEPT_FIELDS)) == told


def test_where_nothing_is_renamed_not_a_byte_changes() -> None:
    """Spaces between the fields stay."""
    assert Unnamer("ann", ALIAS).bytes(b'{ "buyer" : "bob" }') == b'{ "buyer" : "bob" }'


@given(name=some.text(min_size=1, max_size=8), around=some.text(max_size=8), after=some.text(max_size=8))
def test_no_text_keeps_the_name_where_it_stands_alone(name: str, around: str, after: str) -> None:
    """Whatever the name is."""
    said = f"{around} {name} {after}"
    told = Unnamer(name, "-").text(said, "reason")
    assert told == "" or f" {name} " not in f" {told} " or told == said.replace(name, "-")


def test_a_pseudonym_is_made_by_chance() -> None:
    """128 bits of it: two of the same name have nothing in common."""
    made = {new_pseudonym() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(name) for name in made} == {len(PREFIX) + 32}
