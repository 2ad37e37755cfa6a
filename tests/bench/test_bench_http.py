"""The HTTP bench: a small run on real servers, and what its figures mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.bench.http import load_generator, run
from earmark.bench.http.load_generator import HttpAnswers, HttpJob
from earmark.bench.http.measured_servers import EMPTY, OURS, PEER
from earmark.bench.http.results import HttpFigures, HttpMeasurement, HttpPlan, HttpResult, ServerLimits
from earmark.bench.http_bytes import is_complete
from earmark.bench.prepare_and_count_rows import CountedRows
from earmark.config import Settings

if TYPE_CHECKING:
    from earmark.testservers import Postgres

TINY = HttpPlan(
    workers=1,
    rounds=1,
    seconds=0.1,
    connections=8,
    overload_connections=60,
    requests_per_second_max={OURS: 3000, PEER: 2000, EMPTY: 20_000},
    warm_seconds=0.05,
    log_files=1,
)


class Notes:
    """Collects the progress of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shares: list[float] = []

    def say(self, said: str) -> None:
        """Keep the text."""
        self.said.append(said)

    def measured(self, _figures: HttpFigures, share: float) -> None:
        """Keep the share."""
        self.shares.append(share)


async def test_a_run_compares_the_answers_with_the_database(postgres_server: Postgres) -> None:
    """Real servers, real connections: every 201 of both sides is a row, and no seat was sold twice."""
    notes = Notes()
    result = await run.run(TINY, database=postgres_server.url(), watch=notes)
    told = json.loads(msgspec.json.encode(result.plain()))
    assert set(told["contenders"]) == {OURS, PEER, EMPTY}
    for name in (OURS, PEER):
        (measurement,) = told["contenders"][name]["rounds"]
        assert measurement["held"] == measurement["statuses"]["201"] > 0
    assert {name: told[name] for name in ("oversold", "lost", "unanswered", "missing")} == {
        "oversold": 0,
        "lost": 0,
        "unanswered": 0,
        "missing": 0,
    }
    assert set(told["ratios"]) == {"hold_vs_fastapi_for_update", "generator_vs_best"}
    assert all(ratio > 0 for ratio in told["ratios"].values())
    over = told["overload"]
    assert over["held"] == over["statuses"]["201"] > 0
    assert over["without_retry_after"] == 0
    assert over["unloaded_p99_ms"] > 0
    assert notes.shares == sorted(notes.shares)
    assert notes.shares[-1] == 1.0
    assert told["durable"] is False, "the tests' own server does not wait for its disk, and the run says so"
    assert any("did not wait for its disk" in flaw for flaw in result.flaws)


def answers(statuses: dict[int, int], **more: object) -> HttpAnswers:
    told = {
        "seconds": 1.0,
        "client_seconds": 0.1,
        "statuses": statuses,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "shed_p50_ms": None,
        "shed_p99_ms": None,
        "no_retry_after": 0,
        "unanswered": 0,
        "ids": [],
    }
    return msgspec.convert(told | more, HttpAnswers)


def measurement(
    granted: int, *, held: int | None = None, statuses: dict[int, int] | None = None, **more: object
) -> HttpMeasurement:
    rows = {name: value for name, value in more.items() if name in CountedRows.__struct_fields__}
    rest = {name: value for name, value in more.items() if name not in rows}
    counted = CountedRows(held=granted if held is None else held, **rows)  # type: ignore[arg-type]
    return HttpMeasurement(answers=answers({201: granted} | (statuses or {}), **rest), counted=counted)


def result(figures: HttpFigures, *, durable: bool = True) -> HttpResult:
    switch = "on" if durable else "off"
    settings = {"fsync": switch, "synchronous_commit": switch}
    return HttpResult(plan=TINY, figures=figures, versions={}, cores=2, settings=settings)


def sound() -> HttpFigures:
    """Three rounds in which nothing is wrong."""
    figures = HttpFigures()
    for ours, peer, empty in ((800, 100, 9000), (400, 100, 9000), (600, 100, 9000)):
        figures.add(OURS, measurement(ours))
        figures.add(PEER, measurement(peer))
        figures.add(EMPTY, HttpMeasurement(answers=answers({201: empty})))
    figures.overload = measurement(500, statuses={503: 1500})
    return figures


def test_ratios_are_medians_of_the_rounds_own() -> None:
    """A slow minute affects both sides of a round."""
    told = result(sound())
    assert told.figures.ratios == {"hold_vs_fastapi_for_update": 6.0, "generator_vs_best": 15.0}
    assert told.flaws == []
    over = told.plain()["overload"]
    assert (over["shed"], over["shed_share"], over["unloaded_p99_ms"]) == (1500, 0.75, 2.0)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (measurement(800, oversold=1), "sold more than once"),
        (measurement(800, lost=2), "are not there"),
        (measurement(800, held=801), "that no client was told of"),
        (measurement(800, unanswered=3), "got no answer"),
        (measurement(800, statuses={500: 1}), "neither yes nor"),
        (measurement(800, statuses={503: 1}), "neither yes nor"),
        (measurement(8), "hold_vs_fastapi_for_update is"),
        (measurement(80_000), "generator_vs_best is"),
    ],
)
def test_every_flaw_is_reported_and_fails_the_run(wrong: HttpMeasurement, said: str) -> None:
    """In the database, in the answers, and a ratio below its floor."""
    figures = sound()
    figures.measurements[OURS] = [wrong] * 3
    assert any(said in flaw for flaw in result(figures).flaws)


def test_a_refusal_without_retry_after_is_a_flaw() -> None:
    """With a 503 alone, all clients would come back at once."""
    figures = sound()
    figures.overload = measurement(500, statuses={503: 10}, no_retry_after=10)
    assert any("without a Retry-After" in flaw for flaw in result(figures).flaws)


@pytest.mark.parametrize(
    "overload, said",
    [
        (measurement(500), "no request was turned away"),
        (measurement(0, statuses={503: 10}), "no request was served"),
        (measurement(500, statuses={503: 10}, p99_ms=15_001.0), "waited for more than 15.0 seconds"),
        (measurement(500, statuses={503: 10}, shed_p99_ms=20_000.0), "waited for more than 20.0 seconds"),
        (measurement(500, statuses={429: 10, 500: 1}), "neither yes nor"),
        (measurement(500, statuses={503: 10, 504: 1}), "neither yes nor"),
        (measurement(500, held=499, lost=1, statuses={503: 10}), "are not there"),
    ],
)
def test_an_overload_without_refusals_or_with_long_waits_is_a_flaw(overload: HttpMeasurement, said: str) -> None:
    """Under overload some requests are served, the others are refused, and all within the time of a request."""
    figures = sound()
    assert result(figures).flaws == [], "the control"
    figures.overload = overload
    assert any(said in flaw for flaw in result(figures).flaws)


def test_the_figures_have_the_settings_by_which_the_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults, unless the operator set one for the run: a short queue makes a good p99, which must be visible."""
    over = result(sound()).plain()["overload"]
    own = Settings()
    assert over["settings"] == ServerLimits(
        queue_seconds_max=own.queue_seconds_max,
        request_seconds_max=own.request_seconds_max,
        queue_length_max=own.queue_length_max,
    )
    assert (over["connections"], over["times"]) == (60, 7.5)
    assert {"p50_ms", "p99_ms", "shed_p50_ms", "shed_p99_ms", "shed_share", "held", "oversold", "lost"} <= over.keys()
    monkeypatch.setenv("EARMARK_QUEUE_SECONDS_MAX", "0.25")
    assert run._limits().queue_seconds_max == 0.25


def test_by_default_more_connect_than_all_queues_of_all_processes_accept() -> None:
    """Otherwise a fast server refuses no request, and the run proves nothing."""
    own = Settings()
    carried = own.queue_length_max + own.batch_connections_max * own.batch_size_max
    assert HttpPlan().workers * carried < HttpPlan().overload_connections


@pytest.mark.parametrize("cut", [0, 10, 40, 60])
def test_an_incomplete_answer_is_no_answer(cut: int) -> None:
    """The generator waits for all parts of an answer."""
    answer = b'HTTP/1.1 201 Created\r\nContent-Length: 13\r\n\r\n{"id":"here"}'
    assert is_complete(answer)
    assert not is_complete(answer[: min(cut, len(answer) - 1)])


def test_each_request_of_a_generator_has_its_own_seats_and_key() -> None:
    """No two requests want the same seat, so that contention is not measured."""
    job = HttpJob(port=1, connections=1, seconds=1.0, token="t", event_id="e", seats_each=2, requests=3)
    asked = list(load_generator.requests(job))
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in asked]
    assert [body["seats"] for body in bodies] == [["S0", "S1"], ["S2", "S3"], ["S4", "S5"]]
    keys = {request.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0] for request in asked}
    assert keys == {b"e-0", b"e-1", b"e-2"}
