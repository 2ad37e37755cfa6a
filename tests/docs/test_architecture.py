"""ARCHITECTURE names modules and functions step by step: each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STEP = re.compile(r"`([\w/]+\.py)`\s+`([\w.]+)`")
"""A path under src/earmark, and a name in that file."""


def walks(page: str) -> list[tuple[str, str]]:
    return STEP.findall("".join(part for part in page.split("\n## ") if "step by step" in part.partition("\n")[0]))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


@pytest.mark.parametrize("path, name", walks(PAGE))
def test_every_step_of_a_walk_is_there(path: str, name: str) -> None:
    """A reader who follows the list opens the file and finds the function."""
    assert name in names_in(ROOT / "src" / "earmark" / path)


def test_the_three_walks_are_shown_and_a_wrong_step_is_noticed() -> None:
    """The control: steps are found on the page, and a function that is gone would fail."""
    assert len(walks(PAGE)) > 20
    assert walks("\n## A hold, step by step\n\n1. `engine/engine.py` `Engine.grab` is not there.") == [
        ("engine/engine.py", "Engine.grab")
    ]
    assert "Engine.grab" not in names_in(ROOT / "src" / "earmark" / "engine" / "engine.py")
