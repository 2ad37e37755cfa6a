"""One cause of skipped tests is one line, and two causes are two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.observability import promtool
from tests.skip_summary import DEMANDS, lines, missing

ROOT = Path(__file__).parent.parent
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROOF = bool(os.environ.get("EARMARK_PROOF"))
NO_VALKEY = "no valkey-server was found"
BY_PROMTOOL = "test_a_promtool_that_does_not_understand_says_nothing"


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
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skip_summary", "-p", "xdist", "-n", processes]
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


@pytest.mark.parametrize("platform", ["", "true"])
def test_a_missing_server_skips_also_where_ci_is_set(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many platforms set `CI` by themselves, and a bare one has no browser: `make test` passes there."""
    monkeypatch.setenv("CI", platform)
    monkeypatch.delenv(DEMANDS, raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"LOCKS ARE NOT TESTED HERE: {NO_VALKEY}"):
        missing("LOCKS ARE NOT TESTED HERE", NO_VALKEY)


def test_a_missing_server_that_is_demanded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: `.ci/run` leaves nothing out."""
    monkeypatch.setenv(DEMANDS, "all")
    with pytest.raises(pytest.fail.Exception, match=f"LOCKS ARE NOT TESTED HERE: {NO_VALKEY}"):
        missing("LOCKS ARE NOT TESTED HERE", NO_VALKEY)


def test_a_demand_that_is_mistyped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a CI that demands `everything` demands nothing, and is green."""
    monkeypatch.setenv(DEMANDS, "everything")
    with pytest.raises(pytest.fail.Exception, match="set it to all"):
        missing("LOCKS ARE NOT TESTED HERE", NO_VALKEY)


READS_CI = re.compile(r"""(environ(\.get\(|\[)|getenv\()["']CI["']""")


def test_no_test_reads_ci() -> None:
    """What is demanded is said in one variable, which is the project's own."""
    reading = [str(path.relative_to(ROOT)) for path in TESTS if READS_CI.search(path.read_text(encoding="utf-8"))]
    assert reading == ["tests/test_skip_summary.py"], "here it stands as the control: os.environ.get('CI')"


@pytest.mark.proof
@pytest.mark.parametrize("demanded, outcome", [("", "2 skipped"), ("all", "2 errors")][: 2 if PROOF else 1])
def test_a_bare_machine_passes_with_a_line_for_each_cause(demanded: str, outcome: str) -> None:
    """With the real fixtures and no program on the path; the control, in a proof, demands all and fails."""
    chosen = (
        "browser/test_reference.py::test_finding_narrows_the_list",
        f"observability/test_alerts.py::{BY_PROMTOOL}",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/{name}" for name in chosen)],
        cwd=ROOT,
        env=os.environ | {"CI": "true", DEMANDS: demanded, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert f"{outcome} in " in done.stdout, done.stdout + done.stderr
    assert done.returncode == (1 if demanded else 0)
    for untested in ("NO BROWSER: the page is not tested", f"{promtool.UNTESTED}: {promtool.MISSING}"):
        assert (f"SKIPPED [1] {untested}" if not demanded else untested) in done.stdout
