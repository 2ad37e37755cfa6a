"""The same requests from the three callers that shops have: a key that manages, a key that sells, and a guest.

The admin key may do everything, so faults that only one scope triggers, or only a lack of scope, never show
with it. Each credential is fuzzed by itself, with no rate limit, and its cases and findings are counted apart.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.api.conftest import KEY, house_over
from tests.api.real import running
from tests.api.test_fuzz import fuzzer_of_a_shop, summary

from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.api.middleware.rate_limits import Buckets, RateLimits
from earmark.clock import MovableClock
from earmark.domain.api_key import Scope
from earmark.domain.live_or_test_mode import Mode
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from tests.api.fuzz import Findings, Fuzzer

    from earmark.api.open_services_for_handlers import Services

PROOF = bool(os.environ.get("EARMARK_PROOF"))
EXAMPLES, SENT_MIN = (120, 5000) if PROOF else (2, 60)
MANAGES, SELLS = new_key(mode=Mode.TEST), new_key(mode=Mode.TEST)
SCOPES = {MANAGES: Scope.MANAGE, SELLS: Scope.SELL}
REACHED = {
    "a manage key": {200, 201, 403, 404, 422},
    "a sell key": {200, 201, 403, 404, 422},
    "a guest": {200, 201, 403, 404, 422},
}
"""What each is answered at least: it came further than authentication, and was kept from what is not its own."""

pytestmark = [
    pytest.mark.timeout(3600 if PROOF else 300),
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


async def services() -> Services:
    """A shop in memory that knows both keys and limits no caller."""
    clock = MovableClock()
    store = MemoryStore(clock=clock)
    for secret, scope in SCOPES.items():
        await store.keys.create(
            new_key_id(), name=scope.value, mode=Mode.TEST, scopes=frozenset({scope}), secret_hash=hash_of(secret)
        )
    limits = RateLimits()
    limits._failures = Buckets(per_second=1e9, burst=10**9, timer=time.monotonic)
    authenticator = Authenticator(admin_key=KEY, keys=store.keys)
    return msgspec.structs.replace(house_over(store, clock), authenticator=authenticator, limits=limits)


def callers(fuzzer: Fuzzer) -> dict[str, dict[str, str]]:
    """By name, what each shows."""
    keys = {"a manage key": MANAGES, "a sell key": SELLS}
    shown = {name: {"Authorization": f"Bearer {secret}"} for name, secret in keys.items()}
    return shown | {"a guest": fuzzer.callers["a buyer"]}


def fuzzer_of_credentials(url: str, *names: str) -> Fuzzer:
    """Of a shop with these callers."""
    fuzzer = fuzzer_of_a_shop(url)
    fuzzer.callers = {name: shown for name, shown in callers(fuzzer).items() if name in names}
    return fuzzer


@pytest.fixture(scope="module")
def found() -> dict[str, Findings]:
    """By caller; each of them sends the same requests."""
    with running(services) as url:
        return fuzzer_of_credentials(url, *REACHED).run_each(EXAMPLES)


@pytest.mark.parametrize("caller", REACHED)
def test_no_request_breaks_the_contract(
    found: dict[str, Findings], caller: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data that fits and data that does not, at every operation."""
    findings = found[caller]
    with capsys.disabled():
        print(f"\n[fuzz] {caller}: {findings.sent} cases, answered {dict(sorted(findings.statuses.items()))}")  # noqa: T201
    check(findings, caller)


def check(findings: Findings, caller: str) -> None:
    """Nothing found, enough sent, and far enough."""
    assert findings.wrong == {}, summary(findings)
    assert findings.sent >= SENT_MIN
    assert set(findings.statuses) >= REACHED[caller], "it came further than authentication"
    assert not {429, 500, 502, 503, 504} & set(findings.statuses), summary(findings)


def test_what_only_a_seller_triggers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a bug behind the scope `sell` shows to the seller, and the manager is refused before it."""

    async def broken(*_: object, **__: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(MemoryStore, "read_history", broken)
    with running(services) as url:
        at = "GET /v1/bookings/{booking_id}/history"
        found = fuzzer_of_credentials(url, "a manage key", "a sell key").run_each(20, only=at)
    assert found["a sell key"].statuses[500] >= 1, summary(found["a sell key"])
    assert any("ServerError" in what for what in found["a sell key"].wrong)
    assert found["a manage key"].statuses[500] == 0
