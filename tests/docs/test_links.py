"""Nothing that the documentation points at is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from .pages import PAGES, ROOT, SOURCE, codes, name, prose, read, section, table

if TYPE_CHECKING:
    from pathlib import Path

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|sql|md|toml|txt|example))")
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links name a file in this repository, and a heading in it where they say so."""
    for link in _LINK.findall(prose(page.read_text())):
        if link.startswith("https://"):
            continue
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not heading or heading in _headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_is_there(page: Path) -> None:
    """A file or folder that is named in backticks exists: from the root, from the package, or in one of its folders."""
    for named in codes(prose(page.read_text())):
        if _PATH.fullmatch(named) and named not in YOURS and not named.startswith("/"):
            places = (ROOT, SOURCE, page.parent, *(folder for folder in SOURCE.iterdir() if folder.is_dir()))
            assert any((place / named).exists() for place in places), f"{named} is nowhere"


YOURS = {"first.py", "expiry.py", "sell.py"}
"""Files that a reader makes."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_named_test_exists(page: Path) -> None:
    """A promise that points at a test points at one that is run."""
    for file, test in _TEST.findall(page.read_text()):
        assert test in _tests(ROOT / file), f"{file}::{test}"


def test_every_promise_names_a_test() -> None:
    """The README claims nothing that no test tries to break."""
    promises = table(read("README.md"))
    assert len(promises) >= 10
    for promise, shown_by in promises:
        assert _TEST.fullmatch(shown_by.strip("`")), promise


def test_every_folder_of_tests_is_explained() -> None:
    """CONTRIBUTING says what belongs in each folder."""
    tests = ROOT / "tests"
    folders = {f"`tests/{file.relative_to(tests).parts[0]}/`" for file in tests.glob("*/**/test_*.py")}
    assert {row[0] for row in table(section(read("CONTRIBUTING.md"), "## How the tests are organised"))} == folders


def test_every_page_can_be_reached() -> None:
    """From the README, by links alone."""
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in _LINK.findall(prose(page.read_text())))
        waiting += [(page.parent / link).resolve() for link in links if link.endswith(".md") and "://" not in link]
    assert {name(page) for page in PAGES} == {name(page) for page in reached}


DECISIONS = [page for page in PAGES if page.parent.name == "decisions" and page.name != "README.md"]


def test_decisions_are_numbered_without_a_gap() -> None:
    """A number is used once and none is left out."""
    assert [page.name[:4] for page in DECISIONS] == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]


@cache
def _headings(page: Path) -> frozenset[str]:
    found = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)


@cache
def _tests(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module(body=[], type_ignores=[])
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )
