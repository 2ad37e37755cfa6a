"""The same requests at a service that really runs, on a real database: what only a store can raise comes up too."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.support import serve
from tests.api.conftest import KEY
from tests.api.test_fuzz import fuzzer_of_a_shop, summary

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.testservers import Postgres

PROOF = bool(os.environ.get("EARMARK_PROOF"))
EXAMPLES, SENT_MIN = (120, 5000) if PROOF else (2, 100)
SPOILT = "earmark_spoilt"
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


def fuzz(name: str, database: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All callers, all operations, all checks, at an `earmark serve` of its own; nothing is ever sent to a webhook."""
    service = serve("--no-embedded-workers", database=database, directory=directory, key=KEY, **SETTINGS)
    try:
        findings = fuzzer_of_a_shop(service.url, hears=NOTHING_LISTENS).run(EXAMPLES)
    finally:
        service.stop()
    with capsys.disabled():
        print(f"\n[fuzz] {name}: {findings.sent} cases, answered {dict(sorted(findings.statuses.items()))}")  # noqa: T201
    assert findings.wrong == {}, summary(findings)
    assert findings.sent >= SENT_MIN
    assert not [status for status in findings.statuses if status >= 500], summary(findings)
    assert set(findings.statuses) >= {200, 201, 401, 403, 404, 422}, "it came further than authentication"
    assert "Traceback" not in service.log()


def test_no_request_breaks_the_contract_on_postgresql(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What PostgreSQL alone refuses, and its driver's error, stay inside the server."""
    fuzz("postgresql", postgres_url, tmp_path, capsys)


def test_what_only_the_database_has_wrong_is_found(
    postgres_server: Postgres, postgres_template: str, tmp_path: Path
) -> None:
    """The control: with a column gone that one call reads, that call is reported; no memory store would show it."""
    postgres_server.create_database(SPOILT, template=postgres_template)
    service = serve(
        "--no-embedded-workers", database=postgres_server.url(SPOILT), directory=tmp_path, key=KEY, **SETTINGS
    )
    try:
        fuzzer = fuzzer_of_a_shop(service.url, hears=NOTHING_LISTENS)
        postgres_server.psql("ALTER TABLE journal RENAME COLUMN facts TO other", database=SPOILT)
        findings = fuzzer.run(10, only="GET /v1/bookings/{booking_id}/history")
    finally:
        service.stop()
        postgres_server.drop_database(SPOILT)
    assert [status for status in findings.statuses if status >= 500], summary(findings)
    assert any("ServerError" in found for found in findings.wrong), summary(findings)


@pytest.mark.skipif(not PROOF, reason="a long proof")
def test_no_request_breaks_the_contract_on_sqlite(
    sqlite_template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same of SQLite, whose types are looser and whose writers wait for each other."""
    path = tmp_path / "earmark.sqlite3"
    shutil.copyfile(sqlite_template, path)
    fuzz("sqlite", f"sqlite:///{path}", tmp_path, capsys)
