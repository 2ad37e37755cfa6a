"""The rules take their facts as arguments: they use no clock, no randomness and no I/O."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import earmark.domain

MODULES = sorted(Path(earmark.domain.__path__[0]).glob("*.py"))
ALLOWED = {
    "__future__", "bisect", "collections", "datetime", "decimal", "enum",
    "heapq", "itertools", "math", "msgspec", "re", "typing", "unicodedata", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today", "open", "print", "input", "uuid1", "uuid4", "uuid7", "getenv", "exec", "eval"}


def imports_of(module: Path) -> set[str]:
    """Every module that it names in an import, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "earmark"}
    return found


def calls_of(module: Path) -> set[str]:
    """The last name of everything that it calls."""
    calls = (node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def test_the_rules_have_their_modules() -> None:
    """The search below looks at real files."""
    named = {module.stem for module in MODULES}
    assert {
        "booking",
        "bookable_event",
        "booking_state_machine",
        "default_limits_for_all_events",
        "id_types",
        "idempotency_record",
        "journal_entry",
        "money",
        "pool",
        "seat",
    } <= named


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_the_rules_import_only_values(module: Path) -> None:
    """Nothing but itself, the errors, and libraries of plain values: no clock, no randomness, no I/O."""
    ours = {name for name in imports_of(module) if name.partition(".")[0] == "earmark"}
    assert {name for name in ours if not name.startswith(("earmark.domain", "earmark.errors"))} <= {"earmark"}
    assert {name.partition(".")[0] for name in imports_of(module) - ours} <= ALLOWED


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_the_rules_read_no_clock(module: Path) -> None:
    """`now` and ids arrive as arguments, and the rules are never coroutines."""
    assert not calls_of(module) & IMPURE_CALLS
    tree = ast.parse(module.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def test_the_search_would_notice_a_clock(tmp_path: Path) -> None:
    """The control: a module that looks at the clock, hidden in a function, is seen."""
    impure = tmp_path / "impure.py"
    impure.write_text("def late():\n    import time\n    from datetime import datetime\n    return datetime.now()\n")
    assert "time" in imports_of(impure) - ALLOWED
    assert calls_of(impure) & IMPURE_CALLS == {"now"}
