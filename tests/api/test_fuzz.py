"""Whatever is sent, the answer is one that the document has: no 5xx, no unknown status, no other shape."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import requests
from tests.api.conftest import KEY, house_over
from tests.api.fuzz import Findings, Fuzzer
from tests.api.real import running

from earmark.api.middleware.rate_limits import Buckets
from earmark.api.response import ApiResponse
from earmark.clock import MovableClock
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.api.open_services_for_handlers import Services

PROOF = bool(os.environ.get("EARMARK_PROOF"))
EXAMPLES, SENT_MIN = (120, 5000) if PROOF else (3, 200)
SHOP = {"Authorization": f"Bearer {KEY}"}

pytestmark = [
    pytest.mark.timeout(3600 if PROOF else 300),
    # The fuzzer warns of what it cannot vary; what is not sent is counted here.
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


async def services() -> Services:
    """A shop in memory, with everything that a shop has."""
    clock = MovableClock()
    made = house_over(MemoryStore(clock=clock), clock)
    # A fuzzer shows wrong keys all the time, from one address: their limit is not under test here.
    made.limits._failures = Buckets(per_second=1e9, burst=10**9, timer=time.monotonic)
    return made


def fuzzer_of_a_shop(url: str, *, hears: str = "https://shop.example/earmark") -> Fuzzer:
    """An event with seats, a guest with a token, and bookings of that guest's in several states."""

    def post(path: str, body: Any, headers: dict[str, str]) -> Any:
        answer = requests.post(f"{url}{path}", json=body, headers=headers, timeout=60)
        assert answer.ok, answer.text
        return answer

    event = {
        "id": "concert",
        "name": "A concert",
        "currency": "EUR",
        "layout": {"rows": 10, "seats_per_row": 10, "price": 4500},
        "pools": [{"id": "GA", "capacity": 1000, "price": 2500}],
    }
    post("/v1/events", event, SHOP)
    token = post("/v1/guests", {}, {}).cookies["earmark_guest"]
    guest = {"Authorization": f"Bearer {token}"}
    bookings = [
        post("/v1/bookings", {"event_id": "concert", "best_available": {"count": 2}}, guest).json()["id"]
        for _ in range(6)
    ]
    post(f"/v1/bookings/{bookings[0]}/confirm", {"payment_id": "till-1"}, SHOP)
    post(f"/v1/bookings/{bookings[1]}/pay", {"method": "pm_card_visa"}, guest | {"Idempotency-Key": "basket-7"})
    post(f"/v1/bookings/{bookings[2]}/release", {}, guest)
    webhook = post("/v1/webhooks", {"url": hears}, SHOP).json()["id"]
    delivery = post(f"/v1/webhooks/{webhook}/test", {}, SHOP).json()["id"]
    return Fuzzer(
        url,
        callers={"the shop": SHOP, "a buyer": guest, "no key": {}},
        known={
            "event_id": ["concert"],
            "seat_id": ["A1", "J10"],
            "booking_id": bookings,
            "gateway": ["sandbox"],
            "webhook_id": [webhook],
            "delivery_id": [delivery],
        },
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(services) as opened:
        yield opened


@pytest.fixture(scope="module")
def fuzzer(url: str) -> Fuzzer:
    return fuzzer_of_a_shop(url)


def summary(findings: Findings) -> str:
    shown = "\n".join(f"{what}\n    {how}" for what, how in sorted(findings.wrong.items()))
    return f"{findings.sent} cases, {dict(findings.statuses)}\n{shown}"


def test_no_request_breaks_the_contract(fuzzer: Fuzzer, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that fits and data that does not, from the shop, a buyer and a client without a key; every case was sent."""
    findings = fuzzer.run(EXAMPLES)
    with capsys.disabled():
        statuses = dict(sorted(findings.statuses.items()))
        print(f"\n[fuzz] {findings.sent} cases: {dict(findings.cases)}, answered {statuses}")  # noqa: T201 (a measurement)
    assert findings.wrong == {}, summary(findings)
    assert findings.sent >= SENT_MIN
    assert len(findings.cases) == 6, "each caller, with each kind of data"
    assert set(findings.statuses) >= {200, 201, 401, 403, 404, 422}, "it came further than authentication"


def test_a_planted_500_is_found_and_the_others_are_still_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a bug that only some data triggers is found, and it does not end the search."""

    async def broken(*_: object, **__: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(MemoryStore, "read_history", broken)
    with running(services) as opened:
        findings = fuzzer_of_a_shop(opened).run(20, only="GET /v1/bookings/{booking_id}/history")
    assert findings.statuses[500] >= 1, summary(findings)
    assert any("ServerError" in found for found in findings.wrong), summary(findings)
    assert findings.sent >= 30, "it went on after the first finding"


@pytest.mark.skipif(not PROOF, reason="a long proof")
def test_an_answer_that_the_document_has_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a field of another type, and an undocumented status."""
    from earmark.api.routes import events_and_seat_map

    plain = ApiResponse

    def lying(*_: object, **__: object) -> Any:
        return plain(status=HTTPStatus.IM_A_TEAPOT, body=msgspec.json.encode({"id": 7}))

    monkeypatch.setattr(events_and_seat_map, "say", lying)
    with running(services) as opened:
        findings = fuzzer_of_a_shop(opened).run(5, only="GET /v1/events/{event_id}")
    kinds = " ".join(findings.wrong)
    assert "UndefinedStatusCode" in kinds, summary(findings)


@pytest.mark.skipif(not PROOF, reason="a long proof")
def test_the_fuzzers_own_phases_find_nothing(url: str, tmp_path: Path) -> None:
    """Its command line with every phase and every check: also methods that are not there and headers left out."""
    config = tmp_path / "schemathesis.toml"
    statuses = '["2xx", "3xx", "400", "401", "402", "403", "404", "409", "410", "422", "429"]'
    config.write_text(f"[checks]\npositive_data_acceptance.expected-statuses = {statuses}\n")
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "--config-file", str(config), "run", f"{url}/openapi.json", "--checks", "all"]
    command += [
        "--header",
        f"Authorization: Bearer {KEY}",
        "--max-examples",
        "20",
        "--continue-on-failure",
        "--seed",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    generated = re.search(r"([\d,]+) generated", done.stdout)
    assert generated, done.stdout[-2000:]
    assert int(generated[1].replace(",", "")) >= 1000
