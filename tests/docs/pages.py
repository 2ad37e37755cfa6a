"""Reading the documentation as data: its pages, blocks, tables and sections."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "earmark"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; `says` is the block of output that stands right after it."""

    language: str
    text: str
    says: Block | None = None


def read(page: str) -> str:
    """A page, by its path from the root."""
    return (ROOT / page).read_text(encoding="utf-8")


def name(page: Path) -> str:
    """A page's path from the root, as tests show it."""
    return page.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", text)


def blocks(text: str) -> list[Block]:
    """The blocks of a page that can be run, each with the output that the page shows for it."""
    found = [Block(language=match[2], text=textwrap.dedent(match[3])) for match in _BLOCK.finditer(text)]
    runnable = []
    for number, block in enumerate(found):
        if block.language in {"sh", "python"}:
            after = found[number + 1] if number + 1 < len(found) else None
            says = after if after and after.language in {"json", "text"} else None
            runnable.append(Block(language=block.language, text=block.text, says=says))
    return runnable


def outputs(text: str, language: str) -> list[str]:
    """All blocks of one language."""
    return [textwrap.dedent(match[3]) for match in _BLOCK.finditer(text) if match[2] == language]


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its rank or above."""
    rank = len(heading) - len(heading.lstrip("#"))
    ends = rf"^#{{1,{rank}}} "
    _, found, rest = f"\n{text}".partition(f"\n{heading}\n")
    assert found, f"there is no heading {heading!r}"
    return re.split(ends, rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str) -> list[list[str]]:
    """The rows of the first table in a text, without its head."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


def codes(text: str) -> list[str]:
    """Everything in backticks, in order."""
    return _CODE.findall(text)
