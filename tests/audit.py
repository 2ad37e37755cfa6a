"""Query the package index for known vulnerabilities of all pins: `python -m tests.audit` (`make audit`).

It prints one line, or the findings, and exits with 1 for these alone. pip-audit makes the requests; its own last line
is not trusted: where an index does not answer for a package, or keeps no advisories, it prints "No known
vulnerabilities found" as well. So every pin must be answered for, and beside the pins a release with known
vulnerabilities is looked up: only an index that reports these has said anything about the others. Anything less is
reported as NOT DONE.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements"
PROGRAM = ROOT / ".venv" / "audit"
SECONDS_MAX = 30.0
"""For everything: an install, where there is none yet, and all requests."""
CONTROL = ("django", "1.11")
"""A release with well-known vulnerabilities, which nothing of ours needs."""
NAMED_MAX = 5
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,-]*\])?==([^\s;\\]+)", re.MULTILINE)


class NotDone(Exception):
    """There is no answer; the text says why."""


class Vulnerability(msgspec.Struct, frozen=True, kw_only=True):
    """One that the index knows of, with pip-audit's fields."""

    id: str
    fix_versions: list[str] = []
    aliases: list[str] = []


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """One release that was looked up, with pip-audit's fields."""

    name: str
    version: str | None = None
    vulns: list[Vulnerability] = []
    skip_reason: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What pip-audit writes."""

    dependencies: list[Dependency]


def pins(texts: Iterable[str]) -> set[tuple[str, str]]:
    """Every release that the requirements name, for whichever platform and Python."""
    found = (pin for text in texts for pin in _PIN.findall(text))
    return {(_canonical(name), version) for name, version in found}


def judge(written: bytes | str, pinned: set[tuple[str, str]]) -> list[str]:
    """The findings, a line each; none where an index that reports the control has answered for every pin."""
    try:
        answer = msgspec.json.decode(written, type=Answer)
    except msgspec.DecodeError as odd:
        raise NotDone(f"pip-audit wrote no answer that can be read ({odd})") from odd
    told = {(_canonical(one.name), one.version): one for one in answer.dependencies if one.version is not None}
    findings = [_finding(told[pin], found) for pin in sorted(pinned & told.keys()) for found in told[pin].vulns]
    if findings:
        return findings
    silent = sorted(pinned - told.keys())
    if len(silent) == len(pinned):
        raise NotDone(f"the package index answers for none of {len(pinned)} packages")
    if silent:
        names = ", ".join(name for name, _ in silent[:NAMED_MAX]) + (", …" if len(silent) > NAMED_MAX else "")
        raise NotDone(
            f"the package index answers for {len(pinned) - len(silent)} of {len(pinned)} packages, not {names}"
        )
    if CONTROL not in told or not told[CONTROL].vulns:
        raise NotDone(
            f"the package index keeps no advisories: it tells of none for {'=='.join(CONTROL)}, which has many"
        )
    return []


def _finding(dependency: Dependency, found: Vulnerability) -> str:
    fixed = f"fixed in {', '.join(found.fix_versions)}" if found.fix_versions else "no fixed version"
    names = "/".join([found.id, *found.aliases])
    return f"{dependency.name} {dependency.version}: {names} ({fixed})"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def ask(pinned: set[tuple[str, str]], *, deadline: float, program: Path = PROGRAM) -> bytes:
    """pip-audit's answer for the pins and the control."""
    command = _pip_audit(deadline=deadline, program=program)
    asked = sorted(pinned | {CONTROL})
    with tempfile.TemporaryDirectory(prefix="earmark-audit-") as folder:
        # Without markers and hashes: what another platform would install is looked up too.
        wanted = Path(folder, "pins.txt")
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in asked), encoding="utf-8")
        options = ("--requirement", str(wanted), "--no-deps", "--disable-pip", "--progress-spinner", "off")
        done = _run([*command, *options, "--format", "json", "--aliases", "on"], deadline=deadline, what="answer")
    if not done.stdout:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise NotDone(f"pip-audit could not ask the package index ({_without_addresses(last[0])})")
    return done.stdout


def _pip_audit(*, deadline: float, program: Path) -> Sequence[str]:
    """In an environment of its own, beside ours: what it needs is nothing that we need."""
    python = program / "bin" / "python"
    ready = program / ".ready"
    pinned = (REQUIREMENTS / "audit.txt").read_text(encoding="utf-8")
    if not ready.exists() or ready.read_text(encoding="utf-8") != pinned:
        venv.create(program, clear=True, symlinks=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        requirements = ("--require-hashes", "--requirement", str(REQUIREMENTS / "audit.txt"))
        if _run([*pip, *requirements], deadline=deadline, what="be installed").returncode:
            raise NotDone("pip-audit cannot be installed from the package index")
        ready.write_text(pinned, encoding="utf-8")
    return (str(python), "-m", "pip_audit")


def _run(command: Sequence[str], *, deadline: float, what: str) -> subprocess.CompletedProcess[bytes]:
    left = deadline - time.monotonic()
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=max(left, 0.0), cwd=ROOT)
    except subprocess.TimeoutExpired as late:
        raise NotDone(f"pip-audit did not {what} within {SECONDS_MAX:.0f} seconds") from late


def _without_addresses(said: str) -> str:
    """No log names the index: it is another one on every machine."""
    return re.sub(r"\S*(?:://|host=|\w\.\w+\.\w)\S*", "…", said)


def main() -> int:
    """Print what came of it; vulnerable pins alone are a failure."""
    files = sorted(REQUIREMENTS.glob("*.txt"))
    pinned = pins(file.read_text(encoding="utf-8") for file in files)
    try:
        findings = judge(ask(pinned, deadline=time.monotonic() + SECONDS_MAX), pinned)
    except NotDone as reason:
        print(f"audit: NOT DONE: {reason}")  # noqa: T201 (what it is for)
        return 0
    if not findings:
        print(f"audit: no known vulnerabilities in {len(pinned)} packages")  # noqa: T201
        return 0
    print(f"audit: VULNERABLE: {len(findings)} known in what is pinned", *findings, sep="\n  ")  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
