"""The measurement over HTTP: a whole small run on real servers, and what its figures mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.bench.booking.bench.house import Counted
from earmark.bench.http import load, run
from earmark.bench.http.contenders import EMPTY, OURS, PEER
from earmark.bench.http.figures import Cell, Figures, Limits, Plan, Result
from earmark.bench.http.load import Heard, Job
from earmark.config import Settings

if TYPE_CHECKING:
    from earmark.testservers import Postgres

TINY = Plan(
    rounds=1,
    seconds=0.3,
    connections=8,
    overload_connections=60,
    requests_per_second_max={OURS: 3000, PEER: 2000, EMPTY: 20_000},
    warm_seconds=0.05,
    log_files=1,
)


class Notes:
    """Somebody who is told how a run goes on."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shares: list[float] = []

    def say(self, said: str) -> None:
        """Something begins."""
        self.said.append(said)

    def measured(self, _figures: Figures, share: float) -> None:
        """A cell is done."""
        self.shares.append(share)


async def test_a_run_counts_in_the_database_what_the_clients_heard(postgres_server: Postgres) -> None:
    """Real servers, real connections: every 201 of both sides is a row, and no seat was sold twice."""
    notes = Notes()
    result = await run.run(TINY, database=postgres_server.url(), watch=notes)
    told = json.loads(msgspec.json.encode(result.plain()))
    assert set(told["contenders"]) == {OURS, PEER, EMPTY}
    for name in (OURS, PEER):
        (cell,) = told["contenders"][name]["rounds"]
        assert cell["held"] == cell["statuses"]["201"] > 0
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


def heard(statuses: dict[int, int], **more: object) -> Heard:
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
    return msgspec.convert(told | more, Heard)


def cell(granted: int, *, held: int | None = None, statuses: dict[int, int] | None = None, **more: object) -> Cell:
    rows = {name: value for name, value in more.items() if name in Counted.__struct_fields__}
    rest = {name: value for name, value in more.items() if name not in rows}
    counted = Counted(held=granted if held is None else held, **rows)  # type: ignore[arg-type]
    return Cell(heard=heard({201: granted} | (statuses or {}), **rest), counted=counted)


def result(figures: Figures, *, durable: bool = True) -> Result:
    switch = "on" if durable else "off"
    settings = {"fsync": switch, "synchronous_commit": switch}
    return Result(plan=TINY, figures=figures, versions={}, cores=2, settings=settings)


def sound() -> Figures:
    """Three rounds in which nothing is wrong."""
    figures = Figures()
    for ours, peer, empty in ((800, 100, 9000), (400, 100, 9000), (600, 100, 9000)):
        figures.add(OURS, cell(ours))
        figures.add(PEER, cell(peer))
        figures.add(EMPTY, Cell(heard=heard({201: empty})))
    figures.overload = cell(500, statuses={503: 1500})
    return figures


def test_ratios_are_medians_of_the_rounds_own() -> None:
    """A slow minute falls on both sides of a round."""
    told = result(sound())
    assert told.figures.ratios == {"hold_vs_fastapi_for_update": 6.0, "generator_vs_best": 15.0}
    assert told.flaws == []
    over = told.plain()["overload"]
    assert (over["shed"], over["shed_share"], over["unloaded_p99_ms"]) == (1500, 0.75, 2.0)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (cell(800, oversold=1), "sold more than once"),
        (cell(800, lost=2), "are not there"),
        (cell(800, held=801), "that nobody was told of"),
        (cell(800, unanswered=3), "got no answer"),
        (cell(800, statuses={500: 1}), "neither yes nor"),
        (cell(800, statuses={503: 1}), "neither yes nor"),
        (cell(8), "hold_vs_fastapi_for_update is"),
        (cell(80_000), "generator_vs_best is"),
    ],
)
def test_whatever_is_wrong_is_said_and_fails_the_run(wrong: Cell, said: str) -> None:
    """In the database, in the answers, and a ratio below its floor."""
    figures = sound()
    figures.cells[OURS] = [wrong] * 3
    assert any(said in flaw for flaw in result(figures).flaws)


def test_who_was_turned_away_without_a_word_about_when_to_come_again_is_a_flaw() -> None:
    """A 503 alone invites everybody back at once."""
    figures = sound()
    figures.overload = cell(500, statuses={503: 10}, no_retry_after=10)
    assert any("without a Retry-After" in flaw for flaw in result(figures).flaws)


@pytest.mark.parametrize(
    "overload, said",
    [
        (cell(500), "nobody was turned away"),
        (cell(0, statuses={503: 10}), "nobody was served"),
        (cell(500, statuses={503: 10}, p99_ms=15_001.0), "waited for more than 15.0 seconds"),
        (cell(500, statuses={503: 10}, shed_p99_ms=20_000.0), "waited for more than 20.0 seconds"),
        (cell(500, statuses={429: 10, 500: 1}), "neither yes nor"),
        (cell(500, statuses={503: 10, 504: 1}), "neither yes nor"),
        (cell(500, held=499, lost=1, statuses={503: 10}), "are not there"),
    ],
)
def test_an_overload_in_which_nobody_hears_no_or_anybody_waits_too_long_is_a_flaw(overload: Cell, said: str) -> None:
    """More came than can be served: some are, the others are told so, and all within the time of a request."""
    figures = sound()
    assert result(figures).flaws == [], "the control"
    figures.overload = overload
    assert any(said in flaw for flaw in result(figures).flaws)


def test_the_figures_say_by_which_settings_the_server_said_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, unless somebody set one for the run: a short line makes a fine p99, and a reader must see that."""
    over = result(sound()).plain()["overload"]
    own = Settings()
    assert over["settings"] == Limits(
        line_seconds_max=own.line_seconds_max,
        request_seconds_max=own.request_seconds_max,
        batch_waiting_max=own.batch_waiting_max,
    )
    assert (over["connections"], over["times"]) == (60, 7.5)
    assert {"p50_ms", "p99_ms", "shed_p50_ms", "shed_p99_ms", "shed_share", "held", "oversold", "lost"} <= over.keys()
    monkeypatch.setenv("EARMARK_LINE_SECONDS_MAX", "0.25")
    assert run._limits().line_seconds_max == 0.25


def test_by_default_more_come_than_every_line_of_every_process_takes_in() -> None:
    """Else whoever is quick enough turns nobody away, and the run proves nothing."""
    own = Settings()
    carried = own.batch_waiting_max + own.batch_lanes_max * own.batch_size_max
    assert Plan().workers * carried < Plan().overload_connections


@pytest.mark.parametrize("cut", [0, 10, 40, 60])
def test_half_an_answer_is_no_answer(cut: int) -> None:
    """The generator waits for all of it, however it comes in pieces."""
    answer = b'HTTP/1.1 201 Created\r\nContent-Length: 13\r\n\r\n{"id":"here"}'
    assert load.whole(answer)
    assert not load.whole(answer[: min(cut, len(answer) - 1)])


def test_a_generator_asks_for_seats_and_keys_that_nobody_else_has() -> None:
    """Uniform: no two requests meet, so that what is measured is the way and not the fight."""
    job = Job(port=1, connections=1, seconds=1.0, token="t", event_id="e", seats_each=2, requests=3)
    asked = list(load.requests(job))
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in asked]
    assert [body["seats"] for body in bodies] == [["S0", "S1"], ["S2", "S3"], ["S4", "S5"]]
    keys = {request.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0] for request in asked}
    assert keys == {b"e-0", b"e-1", b"e-2"}
