"""The code's own shape, under test: what a reader relies on."""

from __future__ import annotations

import ast
import gc
import re
import shutil
import string
import subprocess
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from earmark.store import load_named_sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULE_LINES_WARN = 400
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
DOCSTRING_WORDS_MIN = 4
OPEN_ENDS = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "NotImplemented" + "Error")
HIDDEN_ACTOR = re.compile(
    r"\b(who(m)?ever|(some|any|every|no)body|someo" + r"ne|(one|those|they) who)\b", re.IGNORECASE
)
HIDDEN_ACTORS_MAX = {"src": 8, "docs": 10, "tests": 40}
"""How often a sentence may hide its actor. These numbers only fall."""
CLASS_NAMES_TWICE_MAX = 0
"""Class names that stand in several modules, beside a domain value and its schema. This number only falls."""
SCHEMAS = ("words", "schemas")
"""A class here may have the name of the value in `domain` that it shows or reads."""
SHORT_DOCSTRINGS_MAX = 1
"""Docstrings of three words or fewer. This number only falls."""
BEFORE_A_PATH = string.whitespace + "\"'(=:"
SQL_WORDS = re.compile(r"\b(SELECT\s.+\sFROM|INSERT INTO|UPDATE\s\w+\sSET|DELETE FROM)\b")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(path)))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.fixture(scope="module", autouse=True)
def _without_garbage() -> Iterator[None]:
    """A million nodes have no garbage among them: the search for it takes longer than the parser."""
    gc.disable()
    yield
    for known in (nodes, parse):
        known.cache_clear()
    gc.enable()


def tracked() -> list[str]:
    """What git tracks. Without git, or in a checkout that it refuses to read, what a checkout is known to hold."""
    if (git := shutil.which("git")) and (ROOT / ".git").exists():
        found = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.split()
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    return [str(path.relative_to(ROOT)) for path in (*SOURCES, *TESTS, *pages)]


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 128\n"])
def test_the_files_are_found_without_git(script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare machine has no git, and git refuses the checkout of another account."""
    if script:
        (tmp_path / "git").write_text(script)
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {"tests/test_tidy.py", "README.md", "src/earmark/__init__.py"} <= set(tracked())


@pytest.mark.filterwarnings("default")
def test_a_module_is_short_enough_to_read() -> None:
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
        for path in SOURCES
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno > FUNCTION_LINES_MAX
    ]
    assert not long


def test_nothing_is_left_open() -> None:
    """A stub called done is a defect."""
    left = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (*SOURCES, *TESTS)
        for text in (path.read_text(encoding="utf-8"),)
        for word in OPEN_ENDS
        if word in text and re.search(rf"\b{word}\b", text)
    ]
    assert not left


@dataclass
class Body:
    """A function of the tests, with what stands in it and in the functions within it."""

    function: ast.FunctionDef | ast.AsyncFunctionDef
    calls: set[str] = field(default_factory=set)
    asserts: bool = False


def bodies(tree: ast.Module) -> list[Body]:
    """Every function of a file, from one walk through it."""
    found: list[Body] = []
    todo: list[tuple[ast.AST, tuple[Body, ...]]] = [(tree, ())]
    for node, within in todo:
        around = within
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.append(Body(node))
                around = (*within, found[-1])
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                for body in within:
                    body.calls.add(name)
            case ast.Assert():
                for body in within:
                    body.asserts = True
        todo += [(child, around) for child in ast.iter_child_nodes(node)]
    return found


def checking(written: list[Body]) -> set[str]:
    """The functions of the tests that check something: by themselves, or by calling one that does."""
    found = {"raises", "fail", "expect"} | {body.function.name for body in written if body.asserts}
    while more := {body.function.name for body in written if body.function.name not in found and body.calls & found}:
        found |= more
    return found


def hollow(written: list[Body]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tests without a docstring, or without a check."""
    checks = checking(written)
    tests = [body.function for body in written if body.function.name.startswith("test_")]
    return [test for test in tests if not (ast.get_docstring(test) and test.name in checks)]


def test_every_test_says_which_rule_it_protects_and_checks_something() -> None:
    """A test is a sentence about the domain; one that asserts nothing passes for ever."""
    files = {path.relative_to(ROOT): bodies(parse(path)) for path in TESTS}
    found = {id(test) for test in hollow([body for written in files.values() for body in written])}
    assert not [
        f"{path}:{body.function.lineno} {body.function.name}"
        for path, written in files.items()
        for body in written
        if id(body.function) in found
    ]


def test_a_test_that_checks_nothing_is_found() -> None:
    """The control of the test above: a check may stand in a function within it, or in one that it calls."""
    written = """
def test_said(): "It is."; check()
def test_within(): "It is."; [lambda: 1]; (lambda: raises())()
async def test_nested():
    "It is."
    async def inner(): assert 1
def check(): self.again()
def again(): assert 1
def test_hollow(): "It is."; called()
def test_silent(): assert 1
"""
    assert [test.name for test in hollow(bodies(ast.parse(written)))] == ["test_hollow", "test_silent"]


def area(name: str) -> list[Path]:
    """The files of an area in which sentences stand."""
    kinds = {
        "src": ("src/**/*.py", "src/**/*.sql", "src/**/*.lua", "src/**/*.js", "src/**/*.html"),
        "docs": ("docs/**/*.md", "*.md", "examples/*"),
        "tests": ("tests/**/*.py",),
    }
    return [path for kind in kinds[name] for path in sorted(ROOT.glob(kind)) if path.is_file()]


@pytest.mark.parametrize("name", HIDDEN_ACTORS_MAX)
def test_a_sentence_names_its_actor(name: str) -> None:
    """A reader who must guess between the client, the worker and the store reads the sentence twice."""
    found = Counter(
        {
            str(path.relative_to(ROOT)): len(HIDDEN_ACTOR.findall(path.read_text(encoding="utf-8", errors="ignore")))
            for path in area(name)
        }
    )
    assert found.total() <= HIDDEN_ACTORS_MAX[name], found.most_common(10)


def test_a_word_that_hides_the_actor_is_found() -> None:
    """The control of the test above. Each word is written in two parts, so that it is not found here."""
    hidden = [word.replace("|", "") for word in ("who|ever", "Some|one", "no|body", "any|body", "those| who")]
    assert [word for word in hidden if not HIDDEN_ACTOR.search(f"It is for {word} asks.")] == []
    assert not HIDDEN_ACTOR.search("The client who asks is one whose key is known to anyone_else.")


def classes_twice(paths: Mapping[str, Iterable[ast.AST]]) -> dict[str, list[str]]:
    """Names of classes that stand in several modules, a domain value and its one schema excepted."""
    found: dict[str, set[str]] = {}
    for path, among in paths.items():
        for node in among:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), set()).add(path)
    return {name: sorted(where) for name, where in found.items() if len(where) > 1 and not _is_value_and_schema(where)}


def _is_value_and_schema(where: set[str]) -> bool:
    folders = [PurePosixPath(path).parts[0] for path in where]
    return len(where) == 2 and "domain" in folders and any(folder in SCHEMAS for folder in folders)


def test_two_classes_do_not_share_a_name() -> None:
    """A name that means two things is looked up twice. The more special class has the longer name."""
    below = ROOT / "src" / "earmark"
    twice = classes_twice({path.relative_to(below).as_posix(): nodes(path) for path in SOURCES})
    assert len(twice) <= CLASS_NAMES_TWICE_MAX, twice


def test_a_class_name_that_stands_twice_is_found() -> None:
    """The control of the test above, and its one exception."""
    one = ast.parse("class Seat: ...").body
    assert classes_twice({"domain/seat.py": one, "store/memory.py": one}) == {
        "Seat": ["domain/seat.py", "store/memory.py"]
    }
    assert classes_twice({"domain/seat.py": one, "words/values.py": one}) == {}
    assert list(classes_twice({"domain/seat.py": one, "words/values.py": one, "store/memory.py": one})) == ["Seat"]


def short_docstrings(among: Iterable[ast.AST]) -> Iterator[str]:
    """Where a docstring has three words or fewer."""
    for node in among:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said and len(said.split()) <= DOCSTRING_WORDS_MIN - 1:
                yield f"{node.lineno} {node.name}: {said}"


def test_a_docstring_says_something() -> None:
    """Three words repeat the name. A docstring that adds nothing to it is deleted."""
    short = [f"{path.relative_to(ROOT)}:{found}" for path in SOURCES for found in short_docstrings(nodes(path))]
    assert len(short) <= SHORT_DOCSTRINGS_MAX, short


def test_a_docstring_that_says_nothing_is_found() -> None:
    """The control of the test above: three words are too few, four are enough."""
    three, four = (
        ast.parse(f'def held() -> None:\n    """{said}"""') for said in ("It was held.", "The seats still held.")
    )
    assert list(short_docstrings(three.body)) == ["1 held: It was held."]
    assert list(short_docstrings(four.body)) == []


def test_no_assert_does_anything() -> None:
    """Python leaves asserts out when it is asked to optimise: what one awaits would not happen."""
    effects = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Assert) and acts(node)
    ]
    assert not effects


def acts(node: ast.Assert) -> bool:
    return any(isinstance(part, ast.Await | ast.NamedExpr) for part in ast.walk(node))


def test_an_assert_that_writes_is_found() -> None:
    """The control of the test above."""
    (written,) = ast.parse("async def f():\n    assert await write() == 1").body
    assert acts(next(node for node in ast.walk(written) if isinstance(node, ast.Assert)))


def test_sql_lives_in_sql_files() -> None:
    """Statements that decide have a name, a file and a reason; a migration ledger is the one exception."""
    loose = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if path.name != "migrate.py" and "servers" not in path.parts
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL_WORDS.search(node.value)
    ]
    assert not loose


@pytest.mark.parametrize(
    "dialect, file",
    [
        (dialect, file)
        for dialect, files in load_named_sql.FILES.items()
        for file in (*files, "find_broken_invariants.sql")
    ],
)
def test_every_query_says_why_it_exists(dialect: str, file: str) -> None:
    """A named query without a reason is a riddle to the engineer who must change it."""
    known = load_named_sql.load(dialect, file)
    assert len(known) > 1
    assert not [query.name for query in known.values() if not query.why or query.name.upper() == query.name]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_every_named_query_is_used(dialect: str) -> None:
    """Unused SQL misleads the next reader."""
    store = ROOT / "src/earmark/store"
    folders = (store, store / "both_databases", store / dialect)
    code = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    assert not [name for name in load_named_sql.statements(dialect) if f'"{name}"' not in code]


def test_domain_and_engine_use_no_clock_and_no_randomness() -> None:
    """Time, ids and chance arrive as arguments, or nothing can be replayed."""
    forbidden = re.compile(r"datetime\.now|utcnow|time\.time\(|uuid4|uuid7|random\.|secrets\.")
    asked = [
        str(path.relative_to(ROOT))
        for folder in ("domain", "engine")
        for path in (ROOT / "src/earmark" / folder).glob("*.py")
        if forbidden.search(path.read_text(encoding="utf-8"))
    ]
    assert not asked


def test_no_lock_file_records_where_packages_came_from() -> None:
    """The lock is names, versions and hashes."""
    locks = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "requirements").glob("*.txt")}
    assert locks
    assert [name for name, lock in locks.items() if "--hash=sha256:" not in lock or "://" in lock] == []


def test_the_repository_names_no_path_of_a_machine() -> None:
    """What is in the tree must be true on every machine."""
    # The folder first, and only where it stands what is before it: at each place of every file that takes a second.
    folder = re.compile(r"/(work|root|home/\w+)/")
    named = [
        name
        for name in tracked()
        if (path := ROOT / name).suffix in {".py", ".md", ".sql", ".toml", ".js", ".txt"} and path.is_file()
        for text in (path.read_text(encoding="utf-8"),)
        for found in folder.finditer(text)
        if not found.start() or text[found.start() - 1] in BEFORE_A_PATH
    ]
    assert not named
