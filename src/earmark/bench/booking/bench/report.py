"""A run as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import importlib.resources
from html import escape
from statistics import median
from string import Template
from typing import TYPE_CHECKING, TypeVar

from earmark.bench import charts
from earmark.bench.booking.bench import charts as own_charts
from earmark.bench.booking.bench.figures import BESIDE, RATIOS, meets, times
from earmark.bench.booking.bench.plan import CONTESTS, FLASH, HOT, LONE, OUTAGE, PGBENCH, SKU, UNIFORM
from earmark.bench.booking.bench.screen import zeros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from earmark.bench.booking.bench.figures import Figures, Reading
    from earmark.bench.booking.bench.plan import Contest
    from earmark.bench.booking.bench.run import Result

T = TypeVar("T")
HEADINGS = ("", "rate", "seats/s", "hold p50 ms", "p99 ms", "database µs", "clients µs", "errors")


def page(result: Result, *, when: datetime) -> str:
    """The whole file."""
    template = Template(importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    plan = result.plan
    chosen = "" if len(result.plan.contests) == len(CONTESTS) else "".join(f" --workload {n}" for n in plan.workloads)
    return template.substitute(
        when=f"{when:%Y-%m-%d %H:%M} UTC",
        database=escape(result.versions.get("database", "SQLite")),
        cores=f"{result.cores} core{'s' if result.cores != 1 else ''}",
        rounds=f"{plan.rounds} round{'s' if plan.rounds != 1 else ''}",
        seconds=f"{plan.seconds:g}",
        clients=plan.clients,
        command=(
            f"earmark bench booking --rounds {plan.rounds} --seconds {plan.seconds:g} --clients {plan.clients}"
            f"{chosen} --html report.html"
        ),
        verdict=_verdict(result),
        tiles="\n".join(_tiles(result)),
        sections="\n".join(_sections(result)),
        limits=_limits(result),
        settings=_settings(result),
        versions="\n".join(
            f"<tr><td>{escape(name)}</td><td>{escape(version)}</td></tr>" for name, version in result.versions.items()
        ),
        absent="".join(
            f"<p>{escape(name)} did not take part: {escape(why)}</p>" for name, why in result.absent.items()
        ),
    )


def _verdict(result: Result) -> str:
    counted = f'<p class="zeros">{zeros(result)}</p>'
    if not result.flaws:
        sold = sum(reading.counted.confirmed for _, _, reading in result.figures.ours())
        return f"{counted}<p>Counted in the database after every cell, over {sold:,} sales of ours.</p>"
    return counted + "".join(f'<p class="flaw">{escape(flaw)}</p>' for flaw in result.flaws)


def _tiles(result: Result) -> Iterator[str]:
    for ratio in (*RATIOS, *BESIDE):
        if (found := result.figures.ratio(ratio)) is not None:
            css = "tile" if meets(ratio, found) else "tile short"
            must = "" if ratio.floor is None else f" (must be {'≤' if ratio.less else '≥'} {ratio.floor:g})"
            yield (
                f'<div class="{css}"><b>{times(found)}&times;</b><span>{escape(ratio.said)}{escape(must)}</span></div>'
            )


def _sections(result: Result) -> Iterator[str]:
    figures = result.figures
    found = [(ratio, value) for ratio in RATIOS if (value := figures.ratio(ratio)) is not None and value > 0]
    if found:
        yield _section(
            "What was found, and what it must be",
            "A dot in its shaded ground is as good as it must be; the dashed line is the aim.",
            own_charts.ladder(found, title="ratios against their floors"),
        )
    for contest in result.plan.contests:
        if contest.name in figures.readings:
            yield _section(contest.title, escape(contest.said), "".join(_plots(contest, figures)))
    if result.weighed:
        weights = {f"{holds:,}": [weight] for holds, weight in sorted(result.weighed.megabytes.items())}
        bars = charts.bars(weights, title="memory", unit="megabytes, by holds made", lower_is_better=True)
        yield _section("Memory", "The same seats, held and released over and over, in one process.", bars)


def _plots(contest: Contest, figures: Figures) -> Iterator[str]:
    name, readings = contest.name, figures.readings[contest.name]
    if name != LONE:
        yield from _bars(contest, figures.rounds(name), contest.unit)
    if name in {HOT, OUTAGE}:
        yield from _bars(contest, figures.rounds(name, "sold_per_second"), "seats sold per second")
    if name == FLASH:
        lines = {contender: rounds[-1].curve for contender, rounds in readings.items() if rounds[-1].curve}
        if lines:
            yield own_charts.curves(
                _ordered(contest, lines), title="a flash sale", label="seconds until answered, last round"
            )
    if name in {UNIFORM, LONE, SKU, HOT}:
        waits = {
            contender: [wait for reading in rounds for wait in reading.waits] for contender, rounds in readings.items()
        }
        drawn = {contender: values for contender, values in waits.items() if own_charts.finite(values)}
        if drawn:
            yield charts.ridges(
                _ordered(contest, drawn),
                title=f"latencies of hold: {contest.title}",
                label="ms until a hold is answered, logarithmic",
                unit="ms",
                per_second=1e3,
            )
    if name in {UNIFORM, SKU}:
        unit = "µs of the database's cores per flow" if name == UNIFORM else "µs of the database's cores per booking"
        yield from _bars(contest, figures.rounds(name, "database_us"), unit, lower_is_better=True)
    yield _table(contest, readings)


def _section(heading: str, said: str, chart: str) -> str:
    return f'<section><h2>{escape(heading)}</h2><p class="soft">{said}</p>{chart}</section>'


def _bars(
    contest: Contest, rounds: Mapping[str, Sequence[float]], unit: str, *, lower_is_better: bool = False
) -> Iterator[str]:
    if rounds:
        yield charts.bars(_ordered(contest, rounds), title=contest.title, unit=unit, lower_is_better=lower_is_better)


def _table(contest: Contest, readings: Mapping[str, Sequence[Reading]]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = "".join(_row(contender, rounds) for contender, rounds in _ordered(contest, readings).items())
    return f"<details><summary>in numbers, medians</summary><table><tr>{head}</tr>{rows}</table></details>"


def _row(contender: str, rounds: Sequence[Reading]) -> str:
    figures = ("rate", "sold_per_second", "p50_ms", "p99_ms", "database_us", "client_us")
    cells = [_median([getattr(reading, figure) for reading in rounds]) for figure in figures]
    errors = sum(sum(reading.errors.values()) for reading in rounds)
    return f"<tr><td>{contender}</td>{''.join(f'<td>{cell}</td>' for cell in (*cells, errors or ''))}</tr>"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return charts.short(median(known)) if known else ""


def _limits(result: Result) -> str:
    said = []
    if pgbench := result.figures.medians(UNIFORM).get(PGBENCH):
        tried = ", ".join(f"{clients}: {rate:,.0f}" for clients, rate in result.sweep.items())
        said.append(
            f"PostgreSQL, one transaction per request: {pgbench:,.0f} flows per second by pgbench, "
            f"at the best of several numbers of clients ({tried})."
        )
    if limit := result.redis_limit:
        said.append(f"Redis: {limit.sets_per_second:,.0f} pipelined SETs per second, by {escape(limit.by)}.")
    return f"<p>The limits of this machine. {' '.join(said)}</p>" if said else ""


def _settings(result: Result) -> str:
    listed = ", ".join(f"{escape(name)} = {escape(value)}" for name, value in result.settings.items())
    warning = "" if result.durable else '<p class="flaw">A commit did not wait for the disk on this server.</p>'
    return f"{warning}<p>The database was set up with {listed}.</p>" if listed else warning


def _ordered(contest: Contest, by_contender: Mapping[str, T]) -> dict[str, T]:
    return {name: by_contender[name] for name in contest.contenders if name in by_contender}
