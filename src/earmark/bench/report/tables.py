"""Tables of results, for the terminal and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

UNKNOWN = "·"
"""Shown where there is no figure."""


def terminal_table(headings: Sequence[str], rows: Iterable[Sequence[str]] = (), *, left: Collection[str] = ()) -> Table:
    """A table without lines. The first column and those named in `left` are aligned left, figures right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, heading in enumerate(headings):
        justify = "left" if not number or heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=not number)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """The same as text."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: float | None, form: str = "{:,.1f}") -> str:
    """A number as text."""
    return UNKNOWN if value is None else form.format(value)


def list_versions(versions: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Names and versions on one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name not in without)


def plural(count: int, word: str) -> str:
    """A number with its word: `1 core`, `2 cores`."""
    return f"{count} {word}{'s' if count != 1 else ''}"
