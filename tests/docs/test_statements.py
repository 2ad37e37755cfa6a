"""Statements that went wrong before, checked: what Earmark lacks, what a key remembers, how many slots a verb has."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark import config
from earmark.api.app import ENDPOINTS
from earmark.asgi import Service
from earmark.testing import open_in_memory

from .pages import PAGES, ROOT, name, prose, read, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

IDEMPOTENCY = read("docs/explanation/idempotency.md")
GROUP_COMMIT = read("docs/explanation/group-commit.md")
CHECKED = [
    page for page in (*PAGES, ROOT / "examples" / "README.md") if page.name not in {"CHANGELOG.md", "ARCHITECTURE.md"}
]

ABSENCE = re.compile(
    r"\bnot (?:\w+ ){0,3}yet\b|\bdoes not [^.|]{0,60}\byet\b|\bnothing yet\b|\bno (?:\w+ ){1,4}yet\b"
    r"|\b(?:not|never) (?:built|implemented|supported)\b|\buntil [^.|]{0,60}\bis built\b|\bnot in this version\b"
    r"|\b(?:for now|planned|coming soon|in a later version)\b"
    r"|\b(?:no|none of the) (?:calls?|verbs?|endpoints?|commands?) (?:uses?|leads?|makes?|takes?)\b"
    r"|\bEarmark (?:does not|cannot|has no|itself does not)\b|\bVersion [\d.]+ (?:has no|does not|cannot)\b"
    r"|\b(?:the library|the client|the page|the API|the service) (?:has no|does not|cannot)\b",
    re.IGNORECASE,
)
"""Sentences about what is missing: they become false when the missing part is built, and no other test notices."""

STILL_TRUE = {
    ("docs/reference/states.md", "no call makes"): "asserted below: a caller cannot make the moves of a payment",
    ("docs/reference/states.md", "Earmark cannot"): "the meaning of needs_attention",
    ("docs/explanation/what-happens-if.md", "Earmark cannot"): "a fact about gateways that capture by themselves",
    ("docs/reference/errors.md", "Earmark cannot"): "the text of the error `setup`, compared with the code elsewhere",
    (
        "docs/reference/metrics.md",
        "no relay has numbered yet",
    ): "the text of a metric, compared with the code elsewhere",
    ("docs/reference/command-line.md", "the API does not"): "tests/cli tests what explain says over HTTP",
    ("docs/explanation/idempotency.md", "The client cannot"): "about a client whose connection broke",
    ("docs/howto/alerts.md", "Earmark does not"): "the text of an alert: a server of Earmark does not answer",
    ("docs/explanation/speed.md", "planned"): "about plans of statements in PostgreSQL",
    ("README.md", "Version 0.1.0 has no"): "asserted below: there is no endpoint for a waiting room",
}
"""Pages and phrases that may stay, and why."""


def absences(text: str) -> list[str]:
    """What a page says is missing, outside its blocks of code."""
    return [" ".join(found[0].split()) for found in ABSENCE.finditer(" ".join(prose(text).split()))]


@pytest.mark.parametrize("page", CHECKED, ids=name)
def test_a_page_says_that_something_is_missing_only_where_that_is_known_to_be_so(page: Path) -> None:
    """A sentence such as "not yet" stays long after it has become false."""
    assert [found for found in absences(page.read_text()) if (name(page), found) not in STILL_TRUE] == []


@pytest.mark.parametrize("allowed", STILL_TRUE, ids=" ".join)
def test_a_phrase_that_is_allowed_is_still_there(allowed: tuple[str, str]) -> None:
    """An exception that no page needs any more is removed."""
    page, phrase = allowed
    assert phrase in absences(read(page))


@pytest.mark.parametrize(
    "sentence",
    [
        "Earmark does not take the money; a gateway is yours to call.",
        "The states paying and failed exist, and no call leads to them.",
        "The sweeper has a queue of its own, but no call uses it yet.",
        "The library has no keys: its caller is told what happened.",
        "The page does not follow the live stream yet; it asks again.",
        "Sharding is possible, but until it is built and tested it is not claimed.",
    ],
)
def test_sentences_that_were_once_false_are_found(sentence: str) -> None:
    """The control: what older pages said, long after it had become untrue."""
    assert absences(sentence)


HIDDEN_ACTOR = re.compile(
    r"\b(whoever|whomever|somebody|someone|nobody|anybody|everybody|one who|those who|they who)\b", re.IGNORECASE
)
TEXTS_OF_THE_CODE = {
    "docs/explanation/speed.md": "the tables that `earmark bench booking` writes",
    "docs/howto/deploy.md": "what `earmark doctor` prints",
    "docs/reference/command-line.md": "what `--help` prints",
    "docs/reference/errors.md": "the texts of the errors",
    "docs/reference/metrics.md": "the texts of the metrics",
    "docs/reference/settings.md": "the texts of the settings",
    "docs/reference/webhooks.md": "the texts of the types",
}
"""Pages with texts that other tests compare with the code: they change with it. At most so many words each:"""
WORDS_OF_THE_CODE_MAX = 4
PAGES_OF_LOCKS = {"docs/howto/locks.md", "docs/reference/locks.md"}
"""Rewritten together with the code of the locks."""


@pytest.mark.parametrize("page", [page for page in CHECKED if name(page) not in PAGES_OF_LOCKS], ids=name)
def test_a_page_names_who_acts(page: Path) -> None:
    """The client, the worker, the store, the gateway or the operator; a sentence without an actor is read twice."""
    found = HIDDEN_ACTOR.findall(page.read_text())
    assert len(found) <= (WORDS_OF_THE_CODE_MAX if name(page) in TEXTS_OF_THE_CODE else 0), found


def test_the_glossary_is_short_and_defines_each_word_once() -> None:
    """A reader holds about thirty words of ours, not seventy."""
    words = [row[0] for row in table(read("docs/glossary.md"))]
    assert len(words) == len(set(words))
    assert 20 <= len(words) <= 30


def test_there_is_no_waiting_room() -> None:
    """The README says so."""
    assert not any("waiting" in call.path for call in ENDPOINTS)


def test_which_calls_take_a_key_and_which_need_one() -> None:
    """The table of the page is the table of the API."""
    _, calls = re.split(r"^\| call \| key \|$", IDEMPOTENCY, maxsplit=1, flags=re.MULTILINE)
    keyed = {f"`{call.method} {call.path}`": call.keyed for call in ENDPOINTS if call.idempotent}
    assert {row[0]: row[1] == "required" for row in table(calls)} == keyed


async def test_how_many_connection_slots_each_verb_has() -> None:
    """The table of the page follows from the engine's queues and the defaults of the settings."""
    defaults = config.Settings()
    _, slots = re.split(r"^\| verb with a queue .*$", GROUP_COMMIT, maxsplit=1, flags=re.MULTILINE)
    assert table(slots) == [
        [f"`{verb}`", str(defaults.batch_connections_max), str(defaults.batch_size_max)] for verb in await _queues()
    ]
    text = " ".join(GROUP_COMMIT.split())
    assert f"at most {defaults.batch_size_max} requests (`EARMARK_BATCH_SIZE_MAX`)" in text
    assert f"when {defaults.queue_length_max} requests wait for its verb" in text
    assert f"`EARMARK_QUEUE_SECONDS_MAX` ({defaults.queue_seconds_max:.0f} seconds)" in text
    assert f"Each request has {defaults.request_seconds_max:.0f} seconds." in text


KEY = "ek_test_0123456789abcdef"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A server in this process, with one event of five seats."""
    url = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    service = Service(database_url=url, admin_key=KEY, embedded_workers=False, log="off")
    async with service.running():
        transport = httpx2.ASGITransport(app=service)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            layout = {"rows": 1, "seats_per_row": 5, "price": 4500}
            event = {"id": "play", "name": "A play", "currency": "EUR", "layout": layout}
            assert (await client.post("/v1/events", json=event)).status_code == HTTPStatus.CREATED
            yield client


async def post(shop: httpx2.AsyncClient, path: str, key: str, body: dict[str, Any]) -> tuple[int, bool]:
    """The status, and whether a key remembered it."""
    answer = await shop.post(path, json=body, headers={"Idempotency-Key": key})
    return answer.status_code, answer.headers.get("Idempotency-Replayed") == "true"


async def hold(shop: httpx2.AsyncClient, seat: str) -> str:
    """The path of a new hold of this seat."""
    answer = await shop.post("/v1/bookings", json={"event_id": "play", "buyer": "alice", "seats": [seat]})
    return f"/v1/bookings/{answer.json()['id']}"


async def test_which_answers_a_key_remembers(shop: httpx2.AsyncClient) -> None:
    """Each row of the page's table: the same request with the same key, twice."""
    seen: dict[str, bool] = {}
    body = {"event_id": "play", "buyer": "bob", "seats": ["A1"]}
    assert await post(shop, "/v1/bookings", "hold-1", body) == (HTTPStatus.CREATED, False)
    seen["200, 201"] = (await post(shop, "/v1/bookings", "hold-1", body))[1]

    for method, row in {
        "pm_card_authenticationRequired": "202, the gateway is still deciding",
        "pm_card_chargeDeclined": "402 `payment_declined`",
    }.items():
        booking = await hold(shop, "A2" if row.startswith("202") else "A3")
        status, replayed = await post(shop, f"{booking}/pay", f"pay-{method}", {"method": method})
        assert (str(status), replayed) == (row[:3], False)
        again, seen[row] = await post(shop, f"{booking}/pay", f"pay-{method}", {"method": method})
        assert again == status

    taken = await hold(shop, "A4")
    body = {"event_id": "play", "buyer": "bob", "seats": ["A4"]}
    assert await post(shop, "/v1/bookings", "hold-2", body) == (HTTPStatus.CONFLICT, False)
    await shop.post(f"{taken}/release", json={})
    status, replayed = await post(shop, "/v1/bookings", "hold-2", body)
    seen["any other refusal, and 503"] = replayed or status != HTTPStatus.CREATED

    _, answers = re.split(r"^\| answer \| remembered by the key \|$", IDEMPOTENCY, maxsplit=1, flags=re.MULTILINE)
    assert {row: remembered.startswith("yes") for row, remembered in table(answers)} == seen


async def _queues() -> list[str]:
    """The verbs whose requests wait in a queue."""
    async with open_in_memory() as earmark:
        return list(earmark.engine.queues)
