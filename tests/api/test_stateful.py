"""Whatever buyers and the shop do over HTTP, in whatever order, a simple model with a list of bookings agrees.

It is the model that the stores are tested with as well; here it is compared with the API, with idempotency keys:
what was answered once is answered again, byte for byte, however much has happened since.
"""

from __future__ import annotations

import itertools
import json
import os
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.api.conftest import KEY, house_over
from tests.api.real import running
from tests.conformance.test_model import BUYERS, CAPACITY, LIMIT, POOLS, SEATS, Model

from earmark.api import problem_response
from earmark.store import sqlite
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

PROOF = bool(os.environ.get("EARMARK_PROOF"))
EXAMPLES, STEPS = (300, 40) if PROOF else (4, 20)
_numbers = itertools.count(1)

pytestmark = pytest.mark.timeout(3600 if PROOF else 300)


class Connection:
    """One connection to the server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def send(self, method: str, path: str, body: bytes | None = None, key: str | None = None) -> tuple[int, bytes, Any]:
        """Status, bytes and headers of the answer."""
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers | ({"Idempotency-Key": key} if key else {}))
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Counter(RuleBasedStateMachine):
    """The shop's back end: every rule calls the model and the API, and compares."""

    url: str
    clock: MovableClock

    def __init__(self) -> None:
        super().__init__()
        self.line = Connection(self.url)
        self.model = Model()
        self.bookings: list[str] = []
        self.answered: list[tuple[str, bytes, str, int, bytes]] = []

    @initialize()
    def open_the_event(self) -> None:
        """An event of its own for each run."""
        self.event = f"event-{next(_numbers)}"
        body = {
            "id": self.event,
            "name": "A play",
            "currency": "EUR",
            "per_buyer_max": LIMIT,
            "seats": [{"id": seat, "price": 4500} for seat in SEATS],
            "pools": [{"id": pool, "capacity": CAPACITY, "price": 2500} for pool in POOLS],
        }
        status, told, _ = self.line.send("POST", "/v1/events", json.dumps(body).encode())
        assert status == 201, told

    def ask(self, path: str, body: Any, *, keyed: bool, expected: str) -> Any:
        """Send it, and expect the model's result: the state that it leads to, or the code of a refusal."""
        raw, key = json.dumps(body).encode(), f"key-{next(_numbers)}" if keyed else None
        status, told, headers = self.line.send("POST", path, raw, key)
        answer = json.loads(told)
        assert "Idempotency-Replayed" not in headers
        if expected in problem_response.STATUS:
            assert (status, answer["code"]) == (problem_response.STATUS[expected], expected), told
            return None
        assert status < 300, told
        assert answer["state"] == expected, told
        if key:
            self.answered.append((path, raw, key, status, told))
        return answer

    @rule(
        buyer=st.sampled_from(BUYERS),
        seats=st.sets(st.sampled_from(SEATS), max_size=3),
        pools=st.dictionaries(st.sampled_from(POOLS), st.integers(1, 3), max_size=1),
        ttl=st.sampled_from([20, 100, 600, 1780]),
        keyed=st.booleans(),
    )
    def hold(self, buyer: str, seats: set[str], pools: dict[str, int], ttl: int, *, keyed: bool) -> None:
        """Seats and units for a while."""
        if not seats and not pools:
            return
        expected = self.model.hold(buyer, seats, pools, ttl)
        body = {"event_id": self.event, "buyer": buyer, "seats": sorted(seats), "pools": pools, "ttl_seconds": ttl}
        if made := self.ask("/v1/bookings", body, keyed=keyed, expected=expected):
            self.bookings.append(made["id"])

    def verb(self, which: int, verb: str, body: Any, *details: Any, keyed: bool) -> None:
        """Something about a booking, by the shop."""
        number = which % len(self.bookings)
        expected = self.model.ask(verb, self.model.claims[number], None, *details)
        self.ask(f"/v1/bookings/{self.bookings[number]}/{verb}", body, keyed=keyed, expected=expected)

    @precondition(lambda self: self.bookings)
    @rule(which=st.integers(0, 7), seconds=st.sampled_from([20, 600, 3600]), keyed=st.booleans())
    def extend(self, which: int, seconds: int, *, keyed: bool) -> None:
        """More time."""
        self.verb(which, "extend", {"seconds": seconds}, seconds, keyed=keyed)

    @precondition(lambda self: self.bookings)
    @rule(which=st.integers(0, 7), payment=st.integers(1, 6), keyed=st.booleans())
    def confirm(self, which: int, payment: int, *, keyed: bool) -> None:
        """Paid elsewhere."""
        body = {"payment_id": f"{self.event}-visa-{payment}"}
        self.verb(which, "confirm", body, f"visa-{payment}", keyed=keyed)

    @precondition(lambda self: self.bookings)
    @rule(which=st.integers(0, 7), keyed=st.booleans())
    def release(self, which: int, *, keyed: bool) -> None:
        """Let go."""
        self.verb(which, "release", {}, keyed=keyed)

    @precondition(lambda self: self.bookings)
    @rule(which=st.integers(0, 7), seats=st.sets(st.sampled_from(SEATS), max_size=2), keyed=st.booleans())
    def cancel(self, which: int, seats: set[str], *, keyed: bool) -> None:
        """Undo a sale, or some seats of it."""
        self.verb(which, "cancel", {"refund": "none", "seats": sorted(seats)}, seats, {}, keyed=keyed)

    @rule(seconds=st.sampled_from([20, 80, 300]))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.model.advance(seconds)
        self.clock.advance(seconds)

    @precondition(lambda self: self.answered)
    @rule(which=st.integers(0, 20))
    def repeat(self, which: int) -> None:
        """The first answer again, byte for byte; and nothing is done by it, as the map shows."""
        path, raw, key, status, told = self.answered[which % len(self.answered)]
        replayed_response, bytes_again, headers = self.line.send("POST", path, raw, key)
        assert (replayed_response, bytes_again, headers["Idempotency-Replayed"]) == (status, told, "true")

    @precondition(lambda self: self.answered)
    @rule(which=st.integers(0, 20))
    def misuse(self, which: int) -> None:
        """The same key for another request is refused, and the key's record stays."""
        path, raw, key, *_ = self.answered[which % len(self.answered)]
        status, told, _ = self.line.send("POST", path, raw + b" ", key)
        assert (status, json.loads(told)["code"]) == (422, "idempotency_mismatch")

    @precondition(lambda self: hasattr(self, "event"))
    @invariant()
    def the_map_is_the_clerks(self) -> None:
        """Every seat and every pool, after every step."""
        _, told, _ = self.line.send("GET", f"/v1/events/{self.event}/seats")
        shown = json.loads(told)
        assert {seat["id"]: seat["state"] for seat in shown["seats"]} == {seat: self.model.seat(seat) for seat in SEATS}
        for pool in shown["pools"]:
            assert pool["available"] == self.model.free(pool["id"])

    def teardown(self) -> None:
        """Every booking stands where its card says."""
        for booking_id, claim in zip(self.bookings, self.model.claims, strict=True):
            _, told, _ = self.line.send("GET", f"/v1/bookings/{booking_id}")
            assert json.loads(told)["state"] == claim.state
        self.line.close()


def play(make: Callable[[], Awaitable[Services]], clock: MovableClock, *, examples: int, shrink: bool = True) -> None:
    """Run after run against one real server."""
    with running(make) as url:
        machine = type("CounterHere", (Counter,), {"url": url, "clock": clock})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                derandomize=not PROOF,
                phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )


def on_sqlite(tmp_path: Path, clock: MovableClock) -> Callable[[], Awaitable[Services]]:
    async def make() -> Services:
        path = tmp_path / "earmark.sqlite3"
        await sqlite.migrate(path)
        return house_over(await SqliteStore.open(path, clock=clock), clock)

    return make


def test_the_api_on_sqlite_agrees_with_the_model(tmp_path: Path, clock: MovableClock) -> None:
    """Hold, extend, confirm, release, cancel, time, repeats and misuse, in any order."""
    play(on_sqlite(tmp_path, clock), clock, examples=EXAMPLES)
    assert next(_numbers) > EXAMPLES, "every run had an event of its own"


def test_the_api_on_postgresql_agrees_with_the_model(postgres_url: str, clock: MovableClock) -> None:
    """The same, on the database of production."""

    async def make() -> Services:
        return house_over(await PostgresStore.connect(postgres_url, clock=clock), clock)

    play(make, clock, examples=EXAMPLES)
    assert next(_numbers) > EXAMPLES, "every run had an event of its own"


def test_an_api_that_renders_a_repeat_anew_is_noticed(
    tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one byte more in a repeat, and the clerk protests."""
    from earmark.api import response
    from earmark.api.routes import bookings
    from earmark.engine.commands_and_results import Replayed

    true = response.verb_response

    def anew(answer: Any, write: Any) -> Any:
        told = true(answer, write)
        if isinstance(answer, Replayed):
            told.body += b" "
        return told

    monkeypatch.setattr(bookings, "verb_response", anew)
    with pytest.raises(AssertionError):
        play(on_sqlite(tmp_path, clock), clock, examples=50, shrink=False)
