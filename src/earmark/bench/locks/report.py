"""A run as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import importlib.resources
from html import escape
from string import Template
from typing import TYPE_CHECKING, TypeVar

from earmark.bench import charts
from earmark.bench.locks import charts as own_charts
from earmark.bench.locks import figures as lab
from earmark.bench.locks.figures import HANDOVER, LONE, SINGLE, SYNC, THREE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from earmark.bench.locks.run import Result

T = TypeVar("T")
TILES = {
    SINGLE: ("{:.1f}&times;", "50 tasks, a key each: ours over redis-py's rate"),
    THREE: ("{:.1f}&times;", "50 tasks, three keys each: ours over redis-py's rate"),
    HANDOVER: ("{:.1f}&times;", "50 waiters on one key: our hand-overs per second over redis-py's"),
    "jain": ("{:.3f}", "fairness among our 50 waiters (Jain's index, 1 is even)"),
    "worst_wait": ("{:.3f}&times;", "our longest wait over redis-py's"),
    LONE: ("{:.2f}&times;", "one task alone: our speed over the quickest peer's"),
    SYNC: ("{:.2f}&times;", "one thread alone: our speed over the quickest peer's"),
}


def page(result: Result, *, when: datetime) -> str:
    """The whole file."""
    template = Template(importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    plan = result.plan
    return template.substitute(
        when=f"{when:%Y-%m-%d %H:%M} UTC",
        server=escape(result.versions["server"]),
        cores=f"{result.cores} core{'s' if result.cores != 1 else ''}",
        rounds=plan.rounds,
        seconds=f"{plan.seconds:g}",
        pairs=plan.pairs * plan.rounds,
        command=f"earmark bench locks --rounds {plan.rounds} --seconds {plan.seconds:g} --html report.html",
        verdict=_verdict(result),
        tiles="\n".join(_tiles(result)),
        sections="\n".join(_sections(result)),
        versions="\n".join(
            f"<tr><td>{escape(name)}</td><td>{escape(version)}</td></tr>" for name, version in result.versions.items()
        ),
        absent=f"<p>Not installed, so left out: {escape(', '.join(result.absent))}.</p>" if result.absent else "",
    )


def _verdict(result: Result) -> str:
    if not result.flaws:
        turns = sum(sum(line.passes) for lines in result.figures.lines.values() for line in lines)
        return (
            f"<p>In {turns:,} turns on one key nobody was let in while another was inside, "
            "and ours left no lock behind.</p>"
        )
    return "".join(f'<p class="flaw">{escape(flaw)}</p>' for flaw in result.flaws)


def _tiles(result: Result) -> list[str]:
    ratios = lab.ratios(result.figures)
    return [
        f'<div class="tile"><b>{form.format(ratio)}</b><span>{said}</span></div>'
        for name, (form, said) in TILES.items()
        if (ratio := ratios[name]) is not None
    ]


def _sections(result: Result) -> list[str]:
    figures = result.figures
    last = {contender: lines[-1] for contender, lines in figures.lines.items()}
    return [
        _section(
            "50 tasks, a key each",
            "Acquire and release without rivals, all tasks at once. A bar is the median, a dot is a round.",
            _bars(result, SINGLE, "pairs per second"),
        ),
        _section(
            "50 tasks, three keys each",
            "Ours takes the three in one call, all or nothing; the peers nest three locks.",
            _bars(result, THREE, "triples per second"),
        ),
        _section(
            "50 waiters on one key",
            "Everybody wants the same lock, holds it for a moment, and wants it again.",
            _bars(result, HANDOVER, "hand-overs to another waiter per second") + _turns(result),
        ),
        _section(
            "Who waits how long",
            "The last round of the above. In a fair line all columns look alike.",
            own_charts.strips(_ordered(last), title="waits of every waiter, per contender"),
        ),
        _section(
            "One task alone",
            "No rivals, nobody to travel with: every pass of every round.",
            _ridges(result, LONE) + _bars(result, LONE, "µs, p50 of a round"),
        ),
        _section(
            "One thread alone",
            "The same in plain threads, with a plain <code>with</code>.",
            _ridges(result, SYNC) + _bars(result, SYNC, "µs, p50 of a round"),
        ),
    ]


def _section(heading: str, said: str, chart: str) -> str:
    return f'<section><h2>{heading}</h2><p class="soft">{said}</p>{chart}</section>'


def _bars(result: Result, workload: str, unit: str) -> str:
    rounds = _ordered(result.figures.rounds(workload))
    return charts.bars(rounds, title=lab.WORKLOADS[workload], unit=unit, lower_is_better=workload in lab.LATENCIES)


def _turns(result: Result) -> str:
    """A waiter that takes the lock again at once has a turn, but hands nothing over."""
    lines = result.figures.lines.items()
    rounds = {contender: [sum(line.passes) / line.seconds for line in known] for contender, known in lines}
    return charts.bars(_ordered(rounds), title="all turns", unit="all turns per second, those kept by one waiter too")


def _ridges(result: Result, workload: str) -> str:
    passes = {
        contender: [one for seconds in rounds for one in seconds]
        for contender, rounds in result.figures.latencies[workload].items()
    }
    return charts.ridges(
        _ordered(passes),
        title=f"latencies of {lab.WORKLOADS[workload]}",
        label="µs for acquire and release, logarithmic",
        unit="µs",
        per_second=1e6,
    )


def _ordered(by_contender: Mapping[str, T]) -> dict[str, T]:
    return {name: by_contender[name] for name in lab.contenders(by_contender)}
