"""What a program that imports Earmark loads: the library, and none of the tools beside it."""

from __future__ import annotations

import subprocess
import sys

TOOLS = ("earmark.bench", "earmark.testservers", "earmark.sandbox")
"""The benchmarks, the servers for tests and the gateway for tests: each is loaded by the command that needs it."""
REPORT = f"print(*sorted(name for name in sys.modules if name.startswith({TOOLS!r})))"
USES = {
    "package": "import earmark",
    "public-names": "[getattr(earmark, name) for name in earmark.__all__]",
    "command-line": "import earmark.cli",
    "server": "import earmark.asgi, earmark.api.app",
}
"""Each after those before it, in one interpreter: what one of them loads stays loaded for the next."""


def tools_loaded_by(*programs: str) -> list[list[str]]:
    """The modules of the tools that a new interpreter has loaded after each of these programs."""
    steps = "; ".join(f"{program}; {REPORT}" for program in programs)
    command = [sys.executable, "-c", f"import sys; {steps}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_a_program_that_uses_earmark_loads_no_tool() -> None:
    """A shop in production pays neither start-up time nor memory for benchmarks, test servers and the sandbox.

    Of these only the sandbox gateway is part of every server: it takes the payments of test events.
    """
    loaded = dict(zip(USES, tools_loaded_by(*USES.values()), strict=True))
    served = loaded.pop("server")
    assert loaded == {"package": [], "public-names": [], "command-line": []}
    assert [name for name in served if not name.startswith("earmark.sandbox")] == []


def test_a_tool_that_is_imported_is_noticed() -> None:
    """The control: the check above finds each of the tools once a program imports it, and not before."""
    first, *rest = tools_loaded_by("import earmark", *(f"import {tool}" for tool in TOOLS))
    assert first == []
    assert all(tool in loaded for tool, loaded in zip(TOOLS, rest, strict=True)), rest
