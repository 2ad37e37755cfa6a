"""One cause of skipped tests is one line, and two causes are two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.skips import lines

ROOT = Path(__file__).parent.parent
NO_VALKEY = "no valkey-server was found"


def test_86_skips_of_one_cause_are_one_line() -> None:
    """Whichever files they are in, and whatever each says that it does not test."""
    skipped = [("tests/a.py", f"Skipped: NOT TESTED ON A REAL SERVER: {NO_VALKEY}")] * 50
    skipped += [("tests/b.py", f"Skipped: LOCKS ARE NOT TESTED HERE: {NO_VALKEY}")] * 36
    assert list(lines(skipped)) == [
        f"SKIPPED [86] LOCKS ARE NOT TESTED HERE, NOT TESTED ON A REAL SERVER: {NO_VALKEY} (tests/a.py, tests/b.py)"
    ]


def test_another_cause_is_never_hidden_among_them() -> None:
    """However many there are of one, the other has its own line; the greatest is first, and the files are few."""
    skipped = [(f"tests/{n}.py", f"Skipped: NOT TESTED ON A REAL SERVER: {NO_VALKEY}") for n in range(86)]
    skipped.insert(40, ("tests/c.py", "Skipped: NOT TESTED ON A REAL SERVER: initdb failed:\n  no space left"))
    skipped.insert(41, ("tests/c.py", "a long proof"))
    skipped.insert(42, ("tests/d.py", "a long proof"))
    assert list(lines(skipped)) == [
        f"SKIPPED [86] NOT TESTED ON A REAL SERVER: {NO_VALKEY} (tests/0.py, tests/1.py, tests/2.py and 83 more)",
        "SKIPPED [2] a long proof (tests/c.py, tests/d.py)",
        "SKIPPED [1] NOT TESTED ON A REAL SERVER: initdb failed: no space left (tests/c.py)",
    ]


def test_a_run_ends_with_the_lines(tmp_path: Path) -> None:
    """As pytest prints them, by mark, by call and by a fixture, in several processes or in one."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(
            "import pytest\n"
            "@pytest.fixture\n"
            "def server():\n    pytest.skip('NOT TESTED ON A REAL SERVER: none was found')\n"
            "@pytest.mark.parametrize('n', range(20))\n"
            "def test_a(server, n): pass\n"
            "def test_b(): pytest.skip('LOCKS ARE NOT TESTED HERE: none was found')\n"
            "@pytest.mark.skipif(True, reason='only on another system')\n"
            "def test_c(): pass\n",
            encoding="utf-8",
        )
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for processes in ("0", "2"):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "xdist", "-n", processes]
        done = subprocess.run(
            [*command, "--disable-plugin-autoload", "--rootdir", str(tmp_path), str(tmp_path)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        told = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        both = "(test_one.py, test_two.py)"
        assert told == [
            f"SKIPPED [42] LOCKS ARE NOT TESTED HERE, NOT TESTED ON A REAL SERVER: none was found {both}",
            f"SKIPPED [2] only on another system {both}",
        ], done.stdout + done.stderr
        assert "44 skipped" in done.stdout
