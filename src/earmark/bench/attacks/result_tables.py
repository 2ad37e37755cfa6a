"""The results of the attacks on the terminal and in Markdown: a line for each attack, and below it its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.attacks.results import STALL_MS_MAX
from earmark.bench.report.tables import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from earmark.bench.attacks.results import AttackReport, AttackResult

HEADINGS = ("attack", "sent", "answered", "bounds", "quiet ms", "attack ms", "difference", "median", "p99 ms")


def show(console: Console, result: AttackResult) -> None:
    """A line for each attack, and below it its bounds."""
    for one in result.reports:
        attack, sent, answers, held, quiet, hit, difference, middle, p99 = row(one)
        console.print(
            f"[bold]{attack}[/]: sent {sent}; answered {answers}; bounds {held}; longest /healthz {quiet} ms without "
            f"and {hit} ms with it, difference {difference} ms (median of the rounds {middle}), p99 with it {p99} ms",
            soft_wrap=True,
        )
        for line in bounds(one):
            console.print(f"  {line}", soft_wrap=True, markup=False)
    console.print(f"[dim]{_footer(result)}[/]", soft_wrap=True)


def markdown(result: AttackResult) -> str:
    """The same as a page."""
    table = markdown_table(HEADINGS, (row(one) for one in result.reports))
    told = [
        f"**{one.attack}**: {one.said}.\n\n" + "\n".join(f"- {said}" for said in bounds(one)) for one in result.reports
    ]
    return "\n\n".join([table, *told, _footer(result)]) + "\n"


def row(report: AttackReport) -> tuple[str, ...]:
    """The cells of one attack."""
    last = report.measured
    answers = ", ".join(f"{said} x {count}" for said, count in report.answers.items())
    held = sum(one.holds is True for one in report.bounds)
    judged = sum(one.holds is not None for one in report.bounds)
    p99 = max(one.p99_ms for one in last.attacked)
    times = (last.quiet_ms, last.attacked_ms)
    return (
        *(report.attack, str(report.sent), answers, f"{'pass' if held == judged else 'FAIL'} {held}/{judged}"),
        *(f"{one:.1f}" for one in times),
        *(f"{one:+.1f}" for one in (last.difference_ms, last.middle_ms)),
        f"{p99:.1f}",
    )


def bounds(report: AttackReport) -> Iterator[str]:
    """The bounds of one attack, each with its figures."""
    marks = {True: "pass", False: "FAIL", None: "told"}
    for one in report.bounds:
        yield f"{marks[one.holds]}  {one.said}"
    mark = marks[not report.stalls]
    yield f"{mark}  longest stall of /healthz at most {STALL_MS_MAX:g} ms more than without the attack"


def _footer(result: AttackResult) -> str:
    plan = result.plan
    return (
        f"{plan.rounds} rounds of {plan.seconds:g} s without and {plan.seconds:g} s with each attack, "
        f"{plan.honest_per_second:g} honest holds a second; {result.seconds:g} s in all; load of the machine at most "
        f"{max((one.load for one in result.reports), default=0.0):g}."
    )
