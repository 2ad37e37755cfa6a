"""The tutorial from `pip install` on: only the wheel made of the checkout is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .pages import ROOT, blocks, read
from .run_page import free_port, is_setup, run_commands

if TYPE_CHECKING:
    from pathlib import Path

PROOF = bool(os.environ.get("EARMARK_PROOF"))
PAGE = "docs/tutorial/with-the-client.md"
PACKAGE = "earmark[server,client]"
KEY = "ek_test_of-the-tutorial-00"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(*command: str | Path, folder: Path, path: str) -> str:
    """Run a command without the settings and paths of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EARMARK_", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=kept | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def as_files(text: str, folder: Path) -> str:
    """The page with each of its programs put into a file and run from there, as it tells its reader to."""
    found = PROGRAM.findall(text)
    for number, program in enumerate(found):
        (folder / f"program{number}.py").write_text(program)
        text = text.replace(f"```python\n{program}```", f"```sh\npython program{number}.py\n```")
    assert found
    return text


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not PROOF, reason="a proof: it fetches every package by pip")
def test_the_tutorial_from_pip_install_to_a_cancelled_booking(tmp_path: Path) -> None:
    """What the page installs is enough for all that it does: server, client and commands, in a fresh environment."""
    page, port = read(PAGE), free_port()
    [install] = [block.text for block in blocks(page) if block.language == "sh" and is_setup(block)]
    assert install.strip() == f'pip install "{PACKAGE}"'
    venv, dist, shop = tmp_path / "venv", tmp_path / "dist", tmp_path / "shop"
    shop.mkdir()
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    run(sys.executable, "-m", "venv", venv, folder=tmp_path, path=os.environ["PATH"])
    run(venv / "bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, ROOT, folder=tmp_path, path=path)
    [wheel] = dist.glob("earmark-*.whl")
    run(venv / "bin/pip", "install", "--quiet", f"{PACKAGE} @ {wheel.as_uri()}", folder=tmp_path, path=path)
    where = run("python", "-c", "import earmark; print(earmark.__file__)", folder=shop, path=path)
    assert where.startswith(str(venv)), "what is tried is what was installed"
    text = page.replace("8080", port).replace("ek_test_…", KEY)
    compared = run_commands(
        as_files(text, shop), folder=shop, instead={}, EARMARK_ADMIN_KEY=KEY, PATH=path, PYTHONPATH=""
    )
    assert compared == 4, "the demo, the two programs and the command"
