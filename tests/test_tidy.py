"""The code's own shape, under test: what a reader relies on."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULE_LINES_WARN = 400
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
OPEN_ENDS = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "NotImplemented" + "Error")
SQL_WORDS = re.compile(r"\b(SELECT\s.+\sFROM|INSERT INTO|UPDATE\s\w+\sSET|DELETE FROM)\b")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def parsed(paths: list[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for path in paths:
        yield path, parse(path)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def tracked() -> list[str]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return [
            str(path.relative_to(ROOT)) for path in (*SOURCES, *TESTS, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
        ]
    found = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.split()


@pytest.mark.filterwarnings("default")
def test_a_module_is_read_in_one_sitting() -> None:
    """What the admired codebases share is a short tail: a warning first, so that no function is moved only to fit."""
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES}
    long = {name: count for name, count in lines.items() if count > MODULE_LINES_WARN}
    if long:
        warnings.warn(f"modules of more than {MODULE_LINES_WARN} lines: {long}", stacklevel=1)
    assert lines
    assert max(lines.values()) <= MODULE_LINES_MAX, long


def test_a_function_is_one_screen() -> None:
    """A function that scrolls hides something."""
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path, tree in parsed(SOURCES)
        for function in functions(tree)
        if (function.end_lineno or 0) - function.lineno > FUNCTION_LINES_MAX
    ]
    assert not long


def test_nothing_is_left_open() -> None:
    """A stub called done is a defect."""
    left = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (*SOURCES, *TESTS)
        for word in OPEN_ENDS
        if re.search(rf"\b{word}\b", path.read_text(encoding="utf-8"))
    ]
    assert not left


def calls(function: ast.AST) -> set[str]:
    """The names of everything a function calls."""
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "") for name in called}


def checking(trees: list[ast.Module]) -> set[str]:
    """The functions of the tests that check something: by themselves, or by calling one that does."""
    known = [function for tree in trees for function in functions(tree)]
    called = [(function.name, calls(function)) for function in known]
    found = {function.name for function in known if any(isinstance(node, ast.Assert) for node in ast.walk(function))}
    found |= {"raises", "fail", "expect"}
    while more := {name for name, names in called if name not in found and names & found}:
        found |= more
    return found


def test_every_test_says_which_rule_it_protects_and_checks_something() -> None:
    """A test is a sentence about the domain; one that asserts nothing passes for ever."""
    trees = dict(parsed(TESTS))
    checks = checking(list(trees.values()))
    hollow = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path, tree in trees.items()
        for function in functions(tree)
        if function.name.startswith("test_") and not (ast.get_docstring(function) and function.name in checks)
    ]
    assert not hollow


def test_sql_lives_in_sql_files() -> None:
    """Statements that decide have a name, a file and a reason; a migration ledger is the one exception."""
    loose = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in parsed(SOURCES)
        if path.name != "migrate.py" and "servers" not in path.parts
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL_WORDS.search(node.value)
    ]
    assert not loose


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
@pytest.mark.parametrize("file", ["queries.sql", "verify.sql"])
def test_every_query_says_why_it_exists(dialect: str, file: str) -> None:
    """A named query without a reason is a riddle to whoever must change it."""
    known = queries.load(dialect, file)
    assert len(known) > 5
    assert not [query.name for query in known.values() if not query.why or query.name.upper() == query.name]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_every_named_query_is_used(dialect: str) -> None:
    """Dead SQL is believed by the next reader."""
    code = "".join(path.read_text() for path in (ROOT / "src/earmark/store" / dialect).glob("*.py"))
    assert not [name for name in queries.sql(dialect) if f'"{name}"' not in code]


def test_the_law_and_the_verbs_ask_no_clock_and_no_dice() -> None:
    """Time, ids and chance arrive as arguments, or nothing can be replayed."""
    forbidden = re.compile(r"datetime\.now|utcnow|time\.time\(|uuid4|uuid7|random\.|secrets\.")
    asked = [
        str(path.relative_to(ROOT))
        for folder in ("domain", "engine")
        for path in (ROOT / "src/earmark" / folder).glob("*.py")
        if forbidden.search(path.read_text(encoding="utf-8"))
    ]
    assert not asked


@pytest.mark.parametrize("name", ["audit", "build", "dev", "ha", "production"])
def test_no_lock_file_records_where_packages_came_from(name: str) -> None:
    """The lock is names, versions and hashes."""
    lock = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    assert "--hash=sha256:" in lock
    assert "://" not in lock


def test_the_repository_names_no_path_of_a_machine() -> None:
    """What is in the tree must be true on every machine."""
    local = re.compile(r"(^|[\s\"'(=:])/(work|root|home/\w+)/")
    named = [
        name
        for name in tracked()
        if (path := ROOT / name).suffix in {".py", ".md", ".sql", ".toml", ".js", ".txt"} and path.is_file()
        for line in path.read_text(encoding="utf-8").splitlines()
        if local.search(line)
    ]
    assert not named
