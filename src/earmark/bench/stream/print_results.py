"""The results of the stream bench on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from earmark.bench.stream.run import StreamResult


def show(out: Console, result: StreamResult) -> None:
    """One line for each figure."""
    told, [start, middle, end] = result.told, result.rss_mb
    table = Table(show_header=False, box=None)
    dropped = f"after {result.dropped_after_seconds} s" if result.dropped else "no"
    for name, figure in (
        ("readers", f"{told.readers}"),
        ("changes", f"{result.plan.changes}, {result.rate:g} per second"),
        ("seen", f"{told.samples} in {told.frames} events, {told.missing} missing"),
        ("delay", f"median {told.median_ms} ms, p99 {told.p99_ms} ms, longest {told.max_ms} ms"),
        ("server's share of a core", f"{result.cpu:.0%}"),
        ("server's memory", f"{start} MB, then {middle}, at the end {end}"),
        ("the reader that stopped was dropped", dropped),
    ):
        table.add_row(name, figure)
    out.print(table)
