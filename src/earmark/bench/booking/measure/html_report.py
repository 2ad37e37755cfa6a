"""A run as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING

from earmark.bench.booking.measure import ratio_and_latency_charts as own_charts
from earmark.bench.booking.measure.measurement_plan import FLASH, HOT, LONE, OUTAGE, PGBENCH, SKU, UNIFORM, WORKLOADS
from earmark.bench.booking.measure.ratios_and_required_floors import BESIDE, RATIOS, meets, times
from earmark.bench.booking.measure.show_progress_and_results import zeros
from earmark.bench.report import charts
from earmark.bench.report.html_page_layout import flaw_lines, html_page, in_order, section, tile
from earmark.bench.report.tables import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from earmark.bench.booking.measure.measurement_plan import WorkloadSpec
    from earmark.bench.booking.measure.results import BookingFigures, MeasurementResult
    from earmark.bench.booking.measure.run import BookingResult

HEADINGS = ("", "rate", "seats/s", "hold p50 ms", "p99 ms", "database µs", "clients µs", "errors")


METHOD = """<p>Every workload ran on every contender, one right after the other, in {rounds} of {seconds:g} s each; the
first contender was another one in every round. All contenders wrote the same rows into the same tables: booking, seats,
counts, payment and a journal entry per verb with its idempotency record, with the guards of the schema on. Each
measurement had an event of its own, on tables that were vacuumed, analysed and written out before, and a warm-up that
was not counted. Clients are tasks of one process and one event loop, the same for all contenders; each peer has the
number of connections that suits it best. A ratio is the median of the ratios of the rounds. Sales were counted in
the database. Figures of one machine and one run compare with nothing but each other.</p>"""


def page(result: BookingResult, *, when: datetime) -> str:
    """The HTML file, with its charts and tables."""
    plan, rounds = result.plan, plural(result.plan.rounds, "round")
    chosen = "" if len(plan.specs) == len(WORKLOADS) else "".join(f" --workload {name}" for name in plan.workloads)
    options = f"--rounds {plan.rounds} --seconds {plan.seconds:g} --clients {plan.clients}{chosen}"
    database, cores = result.versions.get("database", "SQLite"), plural(result.cores, "core")
    return html_page(
        title=f"Bookings on {database}: Earmark beside other strategies",
        heading="Earmark beside other booking strategies",
        when=when,
        facts=(database, cores, f"{plan.clients} clients", f"{rounds}, interleaved on one server"),
        verdict=_verdict(result),
        tiles=_tiles(result),
        sections=_sections(result),
        method=METHOD.format(rounds=rounds, seconds=plan.seconds) + _limits(result) + _settings(result),
        command=f"earmark bench booking {options} --html report.html",
        versions=result.versions,
        notes="".join(f"<p>{escape(name)} did not take part: {escape(why)}</p>" for name, why in result.absent.items()),
    )


def _verdict(result: BookingResult) -> str:
    counted = f'<p class="zeros">{zeros(result)}</p>'
    if result.flaws:
        return counted + flaw_lines(result.flaws)
    sold = sum(reading.counted.confirmed for _, _, reading in result.figures.ours())
    return f"{counted}<p>Counted in the database after every measurement, over {sold:,} sales of ours.</p>"


def _tiles(result: BookingResult) -> Iterator[str]:
    for ratio in (*RATIOS, *BESIDE):
        if (found := result.figures.ratio(ratio)) is not None:
            must = "" if ratio.floor is None else f" (must be {'≤' if ratio.less else '≥'} {ratio.floor:g})"
            yield tile(f"{times(found)}&times;", f"{ratio.description}{must}", missed=not meets(ratio, found))


def _sections(result: BookingResult) -> Iterator[str]:
    figures = result.figures
    found = [(ratio, value) for ratio in RATIOS if (value := figures.ratio(ratio)) is not None and value > 0]
    if found:
        yield section(
            "What was found, and what it must be",
            "A dot in the shaded area reaches its floor; the dashed line is the aim.",
            own_charts.ladder(found, title="ratios against their floors"),
        )
    for spec in result.plan.specs:
        if spec.name in figures.readings:
            yield section(spec.title, escape(spec.description), "".join(_plots(spec, figures)))
    if result.weighed:
        weights = {f"{holds:,}": [weight] for holds, weight in sorted(result.weighed.megabytes.items())}
        bars = charts.bars(weights, title="memory", unit="megabytes, by holds made", lower_is_better=True)
        yield section("Memory", "The same seats, held and released over and over, in one process.", bars)


def _plots(spec: WorkloadSpec, figures: BookingFigures) -> Iterator[str]:
    name, readings = spec.name, figures.readings[spec.name]
    if name != LONE:
        yield from _bars(spec, figures.rounds(name), spec.unit)
    if name in {HOT, OUTAGE}:
        yield from _bars(spec, figures.rounds(name, "sold_per_second"), "seats sold per second")
    if name == FLASH:
        lines = {contender: rounds[-1].curve for contender, rounds in readings.items() if rounds[-1].curve}
        if lines:
            yield own_charts.curves(
                in_order(spec.contenders, lines), title="a flash sale", label="seconds until answered, last round"
            )
    if name in {UNIFORM, LONE, SKU, HOT}:
        waits = {
            contender: [wait for reading in rounds for wait in reading.waits] for contender, rounds in readings.items()
        }
        drawn = {contender: values for contender, values in waits.items() if own_charts.finite(values)}
        if drawn:
            yield charts.ridges(
                in_order(spec.contenders, drawn),
                title=f"latencies of hold: {spec.title}",
                label="ms until a hold is answered, logarithmic",
                unit="ms",
                per_second=1e3,
            )
    if name in {UNIFORM, SKU}:
        unit = "µs of the database's cores per flow" if name == UNIFORM else "µs of the database's cores per booking"
        yield from _bars(spec, figures.rounds(name, "database_us"), unit, lower_is_better=True)
    yield _table(spec, readings)


def _bars(
    spec: WorkloadSpec, rounds: Mapping[str, Sequence[float]], unit: str, *, lower_is_better: bool = False
) -> Iterator[str]:
    if rounds:
        yield charts.bars(
            in_order(spec.contenders, rounds), title=spec.title, unit=unit, lower_is_better=lower_is_better
        )


def _table(spec: WorkloadSpec, readings: Mapping[str, Sequence[MeasurementResult]]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = "".join(_row(contender, rounds) for contender, rounds in in_order(spec.contenders, readings).items())
    return f"<details><summary>in numbers, medians</summary><table><tr>{head}</tr>{rows}</table></details>"


def _row(contender: str, rounds: Sequence[MeasurementResult]) -> str:
    figures = ("rate", "sold_per_second", "p50_ms", "p99_ms", "database_us", "client_us")
    cells = [_median([getattr(reading, figure) for reading in rounds]) for figure in figures]
    errors = sum(sum(reading.errors.values()) for reading in rounds)
    return f"<tr><td>{contender}</td>{''.join(f'<td>{cell}</td>' for cell in (*cells, errors or ''))}</tr>"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return charts.short(median(known)) if known else ""


def _limits(result: BookingResult) -> str:
    parts = []
    if pgbench := result.figures.medians(UNIFORM).get(PGBENCH):
        tried = ", ".join(f"{clients}: {rate:,.0f}" for clients, rate in result.sweep.items())
        parts.append(
            f"PostgreSQL, one transaction per request: {pgbench:,.0f} flows per second by pgbench, "
            f"at the best of several numbers of clients ({tried})."
        )
    if limit := result.redis_limit:
        parts.append(f"Redis: {limit.sets_per_second:,.0f} pipelined SETs per second, by {escape(limit.by)}.")
    return f"<p>The limits of this machine. {' '.join(parts)}</p>" if parts else ""


def _settings(result: BookingResult) -> str:
    listed = ", ".join(f"{escape(name)} = {escape(value)}" for name, value in result.settings.items())
    warning = "" if result.durable else '<p class="flaw">A commit did not wait for the disk on this server.</p>'
    return f"{warning}<p>The database was set up with {listed}.</p>" if listed else warning
