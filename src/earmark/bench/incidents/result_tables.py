"""The results of the incidents as tables, on the terminal and in Markdown, with the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.incidents.analysis import ALL
from earmark.bench.incidents.clients import OK
from earmark.bench.incidents.results_and_required_floors import P99_RATIO_MAX, PHASES
from earmark.bench.report.tables import UNKNOWN, markdown_table, terminal_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from earmark.bench.incidents.analysis import SecondFigures
    from earmark.bench.incidents.results_and_required_floors import IncidentReport, IncidentResult

BAR = 20
"""How long the bar of the best second is."""


def show(console: Console, result: IncidentResult) -> None:
    """Every incident: the answers by second, the phases, and the sentences."""
    for report in result.reports:
        console.print(f"\n[bold]{report.incident}[/]: {report.said}; {report.clients} clients")
        headings = second_headings(report)
        console.print(terminal_table(headings, second_rows(report), left=_texts(headings)))
        console.print()
        console.print(terminal_table(PHASE_HEADINGS, phase_rows(report), left=_texts(PHASE_HEADINGS)))
        for sentence in sentences(report):
            console.print(sentence, soft_wrap=True)


def markdown(result: IncidentResult) -> str:
    """The same as a page."""
    parts = []
    for report in result.reports:
        parts += [f"### {report.incident}", f"{report.said[0].upper()}{report.said[1:]}; {report.clients} clients."]
        parts += [markdown_table(PHASE_HEADINGS, phase_rows(report)), "\n".join(f"- {s}" for s in sentences(report))]
        parts += [markdown_table(second_headings(report), second_rows(report))]
    return "\n\n".join(parts) + "\n"


def second_headings(report: IncidentReport) -> list[str]:
    """The headings of the table of seconds."""
    of = [f"{name} " if name != ALL else "" for name in report.groups]
    heard = [heading for name in of for heading in (f"{name}ok", f"{name}not ok", f"{name}p50 ms")]
    return ["second", *heard, "backends", "sockets", "ready", ""]


def second_rows(report: IncidentReport) -> Iterator[list[str]]:
    """A row per second, with a bar for the holds that were granted."""
    best = max((_granted(one) for one in report.seconds), default=0) or 1
    for one in report.seconds:
        row = [f"{one.second:+d}"]
        for name in report.groups:
            codes = one.codes[name]
            refused = ", ".join(f"{code} {count}" for code, count in codes.items() if code != OK)
            row += [str(codes.get(OK, 0)), refused or UNKNOWN, _number(one.p50_ms[name])]
        row += [_number(one.backends), _number(one.sockets), one.ready or UNKNOWN]
        yield [*row, "█" * round(BAR * _granted(one) / best)]


def _granted(second: SecondFigures) -> int:
    return sum(codes.get(OK, 0) for codes in second.codes.values())


PHASE_HEADINGS = ["clients", "phase", "seconds", "holds/s", "p50 ms", "p99 ms", "p99 of all ms", "not ok"]


def phase_rows(report: IncidentReport) -> Iterator[list[str]]:
    """A row per group and phase."""
    for name in report.groups:
        for title in PHASES:
            phase = report.phases[name][title]
            refused = ", ".join(f"{code} {count}" for code, count in phase.codes.items() if code != OK)
            times = (_number(phase.p50_ms), _number(phase.p99_ms), _number(phase.p99_all_ms))
            yield [name, title, f"{phase.seconds:g}", f"{phase.ok_per_second:,.0f}", *times, refused or UNKNOWN]


def sentences(report: IncidentReport) -> Iterator[str]:
    """The figures that have floors."""
    told, back = report.effects, report.recovery
    if report.p99_ratio is not None:
        yield f"p99 of the other events, during over before: {report.p99_ratio:g} (at most {P99_RATIO_MAX:g})"
    if report.others_share is not None:
        yield f"throughput of the other events, during over before: {report.others_share:.2f}"
    yield (
        f"after it: first hold {_seconds(back.first_ok_seconds)}, 70 % of the throughput "
        f"{_seconds(back.back_70_seconds)}, 90 % {_seconds(back.back_90_seconds)}; told overloaded in the first 5 s "
        f"{back.overloaded_share:.1%}, from 2 s on {back.overloaded_share_late:.1%}"
    )
    yield (
        f"acknowledged {told.acknowledged}, of these lost {told.lost}; told no {told.told_no}, of these carried out "
        f"{told.told_no_kept}; outcome unknown {told.unknown}, of these carried out {told.unknown_kept}; without an "
        f"answer {told.no_answer}, of these carried out {told.no_answer_kept}"
    )
    yield (
        f"most connections: {report.backends_max} backends, {report.sockets_max} sockets of the server; "
        f"{report.tracebacks} tracebacks in its log"
    )


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}" if isinstance(value, int) else f"{value:,.1f}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:g} s"


def _texts(headings: Sequence[str]) -> list[str]:
    """The columns that hold text and no figures."""
    return [heading for heading in headings if heading in {"", "clients", "phase"} or "not ok" in heading]
