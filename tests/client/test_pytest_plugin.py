"""The fixtures that Earmark provides for the tests of its users."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import earmark as package
from earmark import pytest_plugin

ROOT = Path(__file__).parents[2]
LOADED = """
import sys
import pytest
before = set(sys.modules)
import {module}
after = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(after - set(sys.stdlib_module_names)), "earmark.engine" in sys.modules, "earmark.api" in sys.modules)
"""


def loaded(module: str) -> str:
    """What an import brings along."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    """Having Earmark installed slows no other test run; the control shows what would be loaded."""
    assert loaded("earmark.pytest_plugin") == "['earmark'] False False"
    assert loaded("earmark.library").endswith("True False")


def test_pytest_finds_the_plugin_by_itself() -> None:
    """By the entry point that the package declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"earmark": pytest_plugin.__name__}


def test_every_name_of_the_package_is_there() -> None:
    """Imported at first use, and no others are."""
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "Nonsense")
