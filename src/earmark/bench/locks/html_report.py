"""A run as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, TypeVar

from earmark.bench.locks import compute_medians_and_fairness
from earmark.bench.locks import wait_chart as own_charts
from earmark.bench.locks.compute_medians_and_fairness import HANDOVER, LONE, SINGLE, SYNC, THREE
from earmark.bench.report import charts
from earmark.bench.report.html_page_layout import flaw_lines, html_page, in_order, section, tile
from earmark.bench.report.tables import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from earmark.bench.locks.run import LockResult

T = TypeVar("T")
TILES = {
    SINGLE: ("{:.1f}&times;", "50 tasks, a key each: ours over redis-py's rate"),
    THREE: ("{:.1f}&times;", "50 tasks, three keys each: ours over redis-py's rate"),
    HANDOVER: ("{:.1f}&times;", "50 waiters on one key: our hand-overs per second over redis-py's"),
    "jain": ("{:.3f}", "fairness among our 50 waiters (Jain's index, 1 is even)"),
    "worst_wait": ("{:.3f}&times;", "our longest wait over redis-py's"),
    LONE: ("{:.2f}&times;", "one task alone: our speed over the fastest other library's"),
    SYNC: ("{:.2f}&times;", "one thread alone: our speed over the fastest other library's"),
}


METHOD = """<p>Each workload ran on every contender, one right after the other, in each of {rounds} rounds of
{seconds:g} s; the first contender was another one in every round. One task or thread alone was measured in {pairs}
paired rounds. Every contender had a client of its own, set up as its documentation shows, on one server. The lock of
Earmark ran with metrics, circuit breaker, queue and fence. Figures of one machine and one run compare with nothing but
each other.</p>"""


def page(result: LockResult, *, when: datetime) -> str:
    """The HTML file, with its charts and tables."""
    plan, server = result.plan, result.versions["server"]
    return html_page(
        title=f"Locks on {server}: Earmark beside other libraries",
        heading="The lock of Earmark beside other libraries",
        when=when,
        facts=(server, plural(result.cores, "core"), f"{plan.rounds} rounds, interleaved on one server"),
        verdict=_verdict(result),
        tiles=_tiles(result),
        sections=_sections(result),
        method=METHOD.format(rounds=plan.rounds, seconds=plan.seconds, pairs=plan.pairs * plan.rounds),
        command=f"earmark bench locks --rounds {plan.rounds} --seconds {plan.seconds:g} --html report.html",
        versions=result.versions,
        notes=f"<p>Not installed, so left out: {escape(', '.join(result.absent))}.</p>" if result.absent else "",
    )


def _verdict(result: LockResult) -> str:
    if result.flaws:
        return flaw_lines(result.flaws)
    turns = sum(sum(line.passes) for lines in result.figures.lines.values() for line in lines)
    return f"<p>In {turns:,} turns on one key no lock had two holders, and Earmark left no lock behind.</p>"


def _tiles(result: LockResult) -> list[str]:
    ratios = compute_medians_and_fairness.ratios(result.figures)
    return [
        tile(form.format(ratio), text) for name, (form, text) in TILES.items() if (ratio := ratios[name]) is not None
    ]


def _sections(result: LockResult) -> list[str]:
    figures = result.figures
    last = {contender: lines[-1] for contender, lines in figures.lines.items()}
    return [
        section(
            "50 tasks, a key each",
            "Acquire and release without rivals, all tasks at once. A bar is the median, a dot is a round.",
            _bars(result, SINGLE, "pairs per second"),
        ),
        section(
            "50 tasks, three keys each",
            "Ours takes the three in one call, all or nothing; the peers nest three locks.",
            _bars(result, THREE, "triples per second"),
        ),
        section(
            "50 waiters on one key",
            "All tasks want the same lock, hold it for a moment, and want it again.",
            _bars(result, HANDOVER, "hand-overs to another waiter per second") + _turns(result),
        ),
        section(
            "How long each waiter waits",
            "The last round of the above. With a fair queue all columns look alike.",
            own_charts.strips(_ordered(last), title="waits of every waiter, per contender"),
        ),
        section(
            "One task alone",
            "One task without rivals: every pass of every round.",
            _ridges(result, LONE) + _bars(result, LONE, "µs, p50 of a round"),
        ),
        section(
            "One thread alone",
            "The same in plain threads, with a plain <code>with</code>.",
            _ridges(result, SYNC) + _bars(result, SYNC, "µs, p50 of a round"),
        ),
    ]


def _bars(result: LockResult, workload: str, unit: str) -> str:
    rounds = _ordered(result.figures.rounds(workload))
    return charts.bars(
        rounds,
        title=compute_medians_and_fairness.WORKLOADS[workload],
        unit=unit,
        lower_is_better=workload in compute_medians_and_fairness.LATENCIES,
    )


def _turns(result: LockResult) -> str:
    """A waiter that takes the lock again at once has a turn, but hands nothing over."""
    lines = result.figures.lines.items()
    rounds = {contender: [sum(line.passes) / line.seconds for line in known] for contender, known in lines}
    return charts.bars(_ordered(rounds), title="all turns", unit="all turns per second, those kept by one waiter too")


def _ridges(result: LockResult, workload: str) -> str:
    passes = {
        contender: [one for seconds in rounds for one in seconds]
        for contender, rounds in result.figures.latencies[workload].items()
    }
    return charts.ridges(
        _ordered(passes),
        title=f"latencies of {compute_medians_and_fairness.WORKLOADS[workload]}",
        label="µs for acquire and release, logarithmic",
        unit="µs",
        per_second=1e6,
    )


def _ordered(by_contender: Mapping[str, T]) -> dict[str, T]:
    return in_order(compute_medians_and_fairness.contenders(by_contender), by_contender)
