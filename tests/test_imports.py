"""What a program that imports Earmark loads: the library, and none of the tools beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOOLS = ("earmark.bench", "earmark.testservers", "earmark.sandbox")
"""The benchmarks, the servers for tests and the gateway for tests: each is loaded by the command that needs it."""
REPORT = f"print(*sorted(name for name in sys.modules if name.startswith({TOOLS!r})))"
USES = {
    "package": "import earmark",
    "public-names": "import earmark; [getattr(earmark, name) for name in earmark.__all__]",
    "command-line": "import earmark.cli",
}


def tools_loaded_by(program: str) -> list[str]:
    """The modules of the tools that a new interpreter has loaded after a program."""
    command = [sys.executable, "-c", f"import sys; {program}; {REPORT}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("program", USES.values(), ids=USES)
def test_a_program_that_uses_earmark_loads_no_tool(program: str) -> None:
    """A shop in production pays neither start-up time nor memory for benchmarks, test servers and the sandbox."""
    assert tools_loaded_by(program) == []


def test_the_server_loads_neither_benchmarks_nor_test_servers() -> None:
    """The sandbox gateway is part of every server: it takes the payments of test events."""
    loaded = tools_loaded_by("import earmark.asgi, earmark.api.app")
    assert [name for name in loaded if not name.startswith("earmark.sandbox")] == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_imported_is_noticed(tool: str) -> None:
    """The control: the check above finds each of the tools once a program imports it."""
    assert tool in tools_loaded_by(f"import earmark, {tool}")
