"""Running a page: its `sh` blocks as one session of a shell, its `python` blocks each as a program of its own.

A block that ends with a command which serves is started in the background, and the next block runs once the command has
printed that it is ready, as a reader would continue in a second terminal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import forked_programs
from tests.acceptance import forked_commands

from .pages import Block, blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

BIN = Path(sys.executable).parent
SHIM = Path(__file__).with_name("curl.py")
PAGE_SECONDS_MAX = 60
FOREGROUND = re.compile(r"^earmark (demo|serve|worker|sandbox)\b")
SETUP = re.compile(r"^(make |pip install |\. \.venv/)")
ANY = "…"

_HEAD = """
set -eu
pids=""
stop() { for pid in $pids; do kill "$pid" || true; done; wait || true; }
trap stop EXIT
starting=""
ready() {
    for out in $starting; do
        for _ in $(seq 400); do grep -qs '^Earmark ' "$out" && continue 2; sleep 0.05; done
        cat "$out"; return 1
    done
    starting=""
}
"""


class Failed(AssertionError):
    """The output differs from the page."""


def run_commands(
    text: str,
    *,
    folder: Path,
    instead: Mapping[str, str],
    client: str | None = None,
    anew: bool = False,
    **settings: str,
) -> int:
    """Run a page's shell blocks with the reader's own values in place; how many outputs were compared.

    `anew` starts each `earmark` as the reader does; else it is forked from a process that has imported it.
    """
    for said, really in instead.items():
        assert said in text, f"the page no longer says {said!r}"
        text = text.replace(said, really)
    shell = [block for block in blocks(text) if block.language == "sh" and not is_setup(block)]
    script = _HEAD + "\n".join(_step(number, block) for number, block in enumerate(shell)) + "\nready\n"
    with ExitStack() as stack:
        log = stack.enter_context((folder / "commands.log").open("wb"))
        process = subprocess.Popen(
            ["sh", "-c", script],  # noqa: S607 (the reader's own shell)
            cwd=folder,
            env=environment(path=_path(folder, client, anew=anew), **settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            code = process.wait(timeout=PAGE_SECONDS_MAX)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=10)
    outputs = {number: (folder / f"{number}.out") for number in range(len(shell))}
    if code:
        said = "\n".join(file.read_text() for file in outputs.values() if file.exists())
        raise Failed(f"the page ended with {code}:\n{(folder / 'commands.log').read_text()}\n{said}")
    return sum(compare(block, outputs[number].read_text()) for number, block in enumerate(shell))


def run_python(block: Block, *, folder: Path, **settings: str) -> int:
    """Run a program as it stands, or as tests where it has some; whether its output was compared."""
    tests = re.search(r"^(async )?def test_", block.text, re.MULTILINE) is not None
    if tests:
        settings |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    file = folder / ("test_snippet.py" if tests else "snippet.py")
    file.write_text(block.text)
    plugins = ("pytest_asyncio.plugin",) if "pytest.mark.asyncio" in block.text else ()
    wanted = [part for name in (*plugins, "earmark.pytest_plugin", "no:cacheprovider") for part in ("-p", name)]
    if tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *wanted, file.name],
            cwd=folder,
            env=environment(**settings),
            capture_output=True,
            text=True,
            timeout=PAGE_SECONDS_MAX,
            check=False,
        )
    else:
        done = forked_programs.run(
            [file], environment=environment(**settings), folder=folder, seconds_max=PAGE_SECONDS_MAX
        )
    if done.returncode:
        raise Failed(f"{done.stdout}\n{done.stderr}")
    if tests:
        assert re.search(r"\d+ passed", done.stdout), done.stdout
        return 1
    return compare(block, done.stdout)


def compare(block: Block, really: str) -> int:
    """Whether a block printed what the page says; 1 when the page says something."""
    if block.says is None:
        return 0
    if block.says.language == "json":
        answer = json.loads(really.strip().splitlines()[-1])
        if difference := differs(json.loads(block.says.text), answer):
            raise Failed(f"{block.text}\nanswered {answer}\nbut the page says {difference}")
        return 1
    said, lines = block.says.text.splitlines(), really.splitlines()
    if is_foreground(block):
        lines = lines[: len(said)]
    if len(said) != len(lines) or not all(map(matches, said, lines)):
        raise Failed(f"{block.text}\nprinted\n{really}\nbut the page says\n{block.says.text}")
    return 1


def differs(said: Any, really: Any, *, at: str = "") -> str | None:
    """Where an answer lacks something that the page shows; an answer may have more fields than are shown."""
    if isinstance(said, dict) and isinstance(really, dict):
        missing = [f"{at}.{key}" for key in said if key not in really]
        inner = (differs(value, really[key], at=f"{at}.{key}") for key, value in said.items() if key in really)
        return next(iter([*missing, *filter(None, inner)]), None)
    if isinstance(said, list) and isinstance(really, list) and len(said) == len(really):
        return next(filter(None, (differs(*pair, at=f"{at}[]") for pair in zip(said, really, strict=True))), None)
    same = matches(said, really) if isinstance(said, str) and isinstance(really, str) else said == really
    return None if same else f"{at} is {said!r}"


def matches(said: str, really: str) -> bool:
    """Equal, where `…` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, said.rstrip().split(ANY))), really.rstrip()) is not None


def is_setup(block: Block) -> bool:
    """Blocks that make the checkout ready, which it is while its tests run."""
    return all(SETUP.match(line) for line in block.text.splitlines())


def is_foreground(block: Block) -> bool:
    """Whether a block ends with a command that does not end by itself."""
    return FOREGROUND.match(block.text.splitlines()[-1]) is not None


def environment(*, path: str | None = None, **settings: str) -> dict[str, str]:
    """This machine's environment without any setting of Earmark's, and with the commands of this checkout."""
    platform = {"DATABASE_URL", "REDIS_URL", "REDIS_URLS", "PORT", "CI"}
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in platform and (not name.startswith("EARMARK_") or name.startswith("EARMARK_TEST_"))
    }
    return clean | {"PATH": path or f"{BIN}:{os.environ['PATH']}"} | settings


def free_port() -> str:
    """A port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _step(number: int, block: Block) -> str:
    if is_foreground(block):
        *before, last = block.text.splitlines()
        return "\n".join([*before, f'{last} > {number}.out 2>&1 & pids="$pids $!"; starting="$starting {number}.out"'])
    return f"ready\n{{\n{block.text}}} > {number}.out"


def _path(folder: Path, client: str | None, *, anew: bool) -> str:
    """Where commands are found: the machine's curl, or our own by that name; and `earmark`, started anew or forked."""
    commands = f"{BIN}:{os.environ['PATH']}"
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    if not anew and forked_commands.is_forked(str(BIN / "earmark"), {}):
        forked_commands.write_shell_command(place)
        commands = f"{place}:{commands}"
    if client == "curl" or (client is None and shutil.which("curl")):
        return commands
    shim = place / "curl"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(SHIM))} "$@"\n')
    shim.chmod(0o755)
    return f"{place}:{commands}"
