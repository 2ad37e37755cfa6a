"""Which texts name a buyer: one rule, in Python for SQLite and in SQL for PostgreSQL."""

from __future__ import annotations

import json
import os
import re
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as some

from earmark.store.both_databases.replace_buyer_name_in_texts import KEPT_FIELDS, PREFIX, Unnamer, new_pseudonym

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.testservers import Postgres

PROOF = bool(os.environ.get("EARMARK_PROOF"))
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
    # As addresses spell it.
    ("ann@x.org", "https://shop.example/back?buyer=ann%40x.org", "return_url", BLANK),
    ("ann@x.org", "https://shop.example/back?buyer=%61nn%40x%2eorg&a=1", "return_url", BLANK),
    ("ann@x.org", "https://shop.example/?next=%2Fthanks%2Fann%2540x.org%2F", "return_url", BLANK),
    ("ann@x.org", "pay-ann%40x.org-7", "key", f"pay-{ALIAS}-7"),
    ("ann@x.org", "joann%40x.org", "return_url", "joann%40x.org"),
    ("ann", "https://shop.example/?next=%2Fthanks%2Fann%2F", "return_url", BLANK),
    (
        "ann",
        "https://shop.example/?next=planned%20by%20annie",
        "return_url",
        "https://shop.example/?next=planned%20by%20annie",
    ),
    ("Zoë Lee", "https://shop.example/?b=Zo%C3%AB+Lee", "return_url", BLANK),
    ("Zoë Lee", "https://shop.example/?b=Zo%c3%ab%20Lee", "return_url", BLANK),
    ("Zoë Lee", "https://shop.example/?b=Zo%EB+Lee", "return_url", "https://shop.example/?b=Zo%EB+Lee"),
    ("a+b", "for a%2Bb", "reason", BLANK),
    ("a+b", "for a b", "reason", "for a b"),
    ("100%", "paid 100%25.", "reason", BLANK),
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
SPELLINGS: list[Callable[[str], str]] = [
    str,
    lambda name: quote(name, safe=""),
    quote,
    quote_plus,
    lambda name: re.sub("%..", lambda found: found[0].lower(), quote(name, safe="")),
    lambda name: "".join(f"%{byte:02X}" for byte in name.encode()),
    lambda name: quote(quote(name, safe=""), safe=""),
]


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def database(postgres_server: Postgres, postgres_template: str) -> AsyncIterator[Any]:
    """The same rule in SQL: functions that read no row, so one database is enough."""
    name = f"earmark_names_{os.getpid()}"
    postgres_server.create_database(name, template=postgres_template)
    connection = await asyncpg.connect(postgres_server.url(name))
    yield connection
    await connection.close()
    postgres_server.drop_database(name)


@in_one_loop
@pytest.mark.parametrize("buyer, said, field, told", TEXTS)
async def test_a_text_without_the_name(database: Any, buyer: str, said: str, field: str | None, told: str) -> None:
    """Whole, with a prefix, inside an id, inside a sentence; and what only looks like it."""
    assert Unnamer(buyer, ALIAS).text(said, field) == told
    assert await database.fetchval("SELECT earmark_unname($1, $2, $3, $4)", said, field, buyer, ALIAS) == told


@in_one_loop
@pytest.mark.parametrize("document, told", DOCUMENTS)
async def test_a_document_without_the_name(database: Any, document: Any, told: Any) -> None:
    """In every field, known or not, but for those that name something else; in the same order."""
    said = json.dumps(document, separators=(",", ":"))
    own = Unnamer("ann", ALIAS).bytes(said.encode())
    assert own == json.dumps(told, separators=(",", ":")).encode()
    asked = "SELECT earmark_unname_bytes($1, 'ann', $2, $3)"
    assert await database.fetchval(asked, said.encode(), ALIAS, list(KEPT_FIELDS)) == own


@in_one_loop
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


ROUNDS = 400 if PROOF else 100
SIGNS = "aZ0259%+ @.\\[]^$|(){}*?-_/&=é…😀"


@in_one_loop
async def test_both_databases_find_the_same(database: Any) -> None:
    """Names and texts of the signs that patterns and addresses are made of, spelled in every way."""
    chance = Random(27)  # noqa: S311 (the same cases each time)

    def some_signs(least: int) -> str:
        return "".join(chance.choices(SIGNS, k=chance.randint(least, 4)))

    cases = []
    for spell in SPELLINGS * ROUNDS:
        name = some_signs(1)
        cases.append((some_signs(0) + spell(name) + some_signs(0), chance.choice(["reason", "key"]), name))
    asked = """SELECT earmark_unname(said, field, name, $4)
                 FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY c (said, field, name, n) ORDER BY n"""
    told = [row[0] for row in await database.fetch(asked, *map(list, zip(*cases, strict=True)), ALIAS)]
    own = [Unnamer(name, ALIAS).text(said, field) for said, field, name in cases]
    assert [case for case, mine, theirs in zip(cases, own, told, strict=True) if mine != theirs] == []
    kept = sum(mine == said for mine, (said, _, _) in zip(own, cases, strict=True))
    assert 100 < kept < len(cases) - 100, "the control: of both there are many"


@given(name=some.text(min_size=1, max_size=8))
def test_no_spelling_of_the_name_is_kept(name: str) -> None:
    """As a program writes it into an address, whatever the name is."""
    for spell in SPELLINGS:
        assert Unnamer(name, ALIAS).text(f"https://shop.example/?buyer={spell(name)}&a=1", "return_url") == ""


@in_one_loop
@pytest.mark.parametrize("name", ["😀" * 128, "%" * 128, "a" * 128, "." * 128])
async def test_the_longest_name_is_found(database: Any, name: str) -> None:
    """Each sign may be spelled by as many as twelve: the pattern of it is not too long for either."""
    for spell in SPELLINGS:
        said = f"https://shop.example/?buyer={spell(name)}"
        assert Unnamer(name, ALIAS).text(said, "return_url") == ""
        assert await database.fetchval("SELECT earmark_unname($1, 'return_url', $2, $3)", said, name, ALIAS) == ""


def test_a_pseudonym_is_made_by_chance() -> None:
    """128 bits of it: two of the same name have nothing in common."""
    made = {new_pseudonym() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(name) for name in made} == {len(PREFIX) + 32}
