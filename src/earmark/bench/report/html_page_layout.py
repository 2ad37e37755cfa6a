"""A report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import importlib.resources
from html import escape
from string import Template
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

T = TypeVar("T")


def html_page(
    *,
    title: str,
    heading: str,
    when: datetime,
    facts: Sequence[str],
    verdict: str,
    tiles: Iterable[str],
    sections: Iterable[str],
    method: str,
    command: str,
    versions: Mapping[str, str],
    notes: str = "",
) -> str:
    """The whole file. Titles, facts, command and versions are plain text; the other parts are HTML."""
    template = Template(importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    rows = (f"<tr><td>{escape(name)}</td><td>{escape(version)}</td></tr>" for name, version in versions.items())
    return template.substitute(
        title=escape(title),
        heading=escape(heading),
        facts=escape(" · ".join([f"{when:%Y-%m-%d %H:%M} UTC", *facts, "medians"])),
        verdict=verdict,
        tiles="\n".join(tiles),
        sections="\n".join(sections),
        method=method,
        command=escape(command),
        versions="\n".join(rows),
        notes=notes,
    )


def section(heading: str, text: str, chart: str) -> str:
    """A part of the page; `text` is HTML."""
    return f'<section><h2>{escape(heading)}</h2><p class="soft">{text}</p>{chart}</section>'


def tile(value: str, text: str, *, missed: bool = False) -> str:
    """One figure in large type; `missed` marks one that is below its floor."""
    css = "tile short" if missed else "tile"
    return f'<div class="{css}"><b>{value}</b><span>{escape(text)}</span></div>'


def flaw_lines(flaws: Iterable[str]) -> str:
    """What must never be, in red."""
    return "".join(f'<p class="flaw">{escape(flaw)}</p>' for flaw in flaws)


def in_order(order: Iterable[str], by_contender: Mapping[str, T]) -> dict[str, T]:
    """The same values in the order in which contenders are shown."""
    return {name: by_contender[name] for name in order if name in by_contender}
