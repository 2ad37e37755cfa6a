"""The same requests at a service that really runs, on a real database: what only a store can raise comes up too."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.support import serve
from tests.api.conftest import KEY
from tests.api.test_fuzz import fuzzer_of_a_shop, summary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.support import Service
    from tests.api.fuzz import Fuzzer

    from earmark.testservers import Postgres

PROOF = bool(os.environ.get("EARMARK_PROOF"))
EXAMPLES, SENT_MIN = (120, 5000) if PROOF else (2, 100)
FUZZED = "earmark_fuzzed"
NOTHING_LISTENS = "http://127.0.0.1:9/earmark"
# Many callers come from one machine, and an unknown name is looked up once and for a second.
SETTINGS: dict[str, Any] = {
    "EARMARK_TRUST_PROXY": "on",
    "EARMARK_REQUESTS_PER_SECOND_PER_BUYER": "0",
    "EARMARK_WEBHOOK_PRIVATE": "on",
    "RES_OPTIONS": "timeout:1 attempts:1",
}

pytestmark = [
    pytest.mark.timeout(3600 if PROOF else 300),
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@contextmanager
def served(database: str, directory: Path) -> Iterator[Service]:
    """An `earmark serve` of its own; nothing is ever sent to a webhook."""
    service = serve("--no-embedded-workers", database=database, directory=directory, key=KEY, **SETTINGS)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="module")
def on_postgresql(
    postgres_server: Postgres, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Fuzzer]]:
    """One service, of which the control takes a column away for a while."""
    postgres_server.create_database(FUZZED, template=postgres_template)
    with served(postgres_server.url(FUZZED), tmp_path_factory.mktemp("service")) as service:
        yield service, fuzzer_of_a_shop(service.url, hears=NOTHING_LISTENS)
    postgres_server.drop_database(FUZZED)


def fuzz(name: str, service: Service, fuzzer: Fuzzer, capsys: pytest.CaptureFixture[str]) -> None:
    """All callers, all operations, all checks."""
    before = len(service.log())
    findings = fuzzer.run(EXAMPLES)
    with capsys.disabled():
        print(f"\n[fuzz] {name}: {findings.sent} cases, answered {dict(sorted(findings.statuses.items()))}")  # noqa: T201
    assert findings.wrong == {}, summary(findings)
    assert findings.sent >= SENT_MIN
    assert not [status for status in findings.statuses if status >= 500], summary(findings)
    assert set(findings.statuses) >= {200, 201, 401, 403, 404, 422}, "it came further than authentication"
    assert "Traceback" not in service.log()[before:]


def test_no_request_breaks_the_contract_on_postgresql(
    on_postgresql: tuple[Service, Fuzzer], capsys: pytest.CaptureFixture[str]
) -> None:
    """What PostgreSQL alone refuses, and its driver's error, stay inside the server."""
    fuzz("postgresql", *on_postgresql, capsys)


def test_what_only_the_database_has_wrong_is_found(
    on_postgresql: tuple[Service, Fuzzer], postgres_server: Postgres
) -> None:
    """The control: with a column gone that one call reads, that call is reported; no memory store would show it."""
    _, fuzzer = on_postgresql
    postgres_server.psql("ALTER TABLE journal RENAME COLUMN facts TO other", database=FUZZED)
    try:
        findings = fuzzer.run(10, only="GET /v1/bookings/{booking_id}/history")
    finally:
        postgres_server.psql("ALTER TABLE journal RENAME COLUMN other TO facts", database=FUZZED)
    assert [status for status in findings.statuses if status >= 500], summary(findings)
    assert any("ServerError" in found for found in findings.wrong), summary(findings)


@pytest.mark.skipif(not PROOF, reason="a long proof")
def test_no_request_breaks_the_contract_on_sqlite(
    sqlite_template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same of SQLite, whose types are looser and whose writers wait for each other."""
    path = tmp_path / "earmark.sqlite3"
    shutil.copyfile(sqlite_template, path)
    with served(f"sqlite:///{path}", tmp_path) as service:
        fuzz("sqlite", service, fuzzer_of_a_shop(service.url, hears=NOTHING_LISTENS), capsys)
