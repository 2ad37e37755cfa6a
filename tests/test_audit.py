"""How pip-audit's answers are reported. The answers here are as pip-audit 2.10 writes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests import audit
from tests.audit import CONTROL, NotDone, ask, judge, pins

if TYPE_CHECKING:
    from pathlib import Path

CONTROL_TOLD = {
    "name": "django",
    "version": "1.11",
    "vulns": [{"id": "PYSEC-2017-44", "fix_versions": ["1.10.8", "1.11.5"], "aliases": ["CVE-2017-12794"]}],
}
VULNERABLE = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"], "aliases": ["CVE-2014-1402"]}],
}
CLEAN = {"name": "markupsafe", "version": "3.0.3", "vulns": []}
SKIPPED = {
    "name": "markupsafe",
    "skip_reason": "Dependency not found on PyPI and could not be audited: markupsafe (3.0.3)",
}
OTHER = {"name": "idna", "version": "3.20", "vulns": []}
PINNED = {("markupsafe", "3.0.3")}


def written(*dependencies: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"dependencies": dependencies, "fixes": []})


def test_a_vulnerable_pin_is_a_finding_with_its_names_and_its_fixed_version() -> None:
    """The reader knows what to look up and which version to take."""
    found = judge(written(VULNERABLE, CLEAN, CONTROL_TOLD), PINNED | {("jinja2", "2.4.1")})
    assert found == ["jinja2 2.4.1: PYSEC-2014-8/CVE-2014-1402 (fixed in 2.7.2)"]


def test_a_vulnerable_pin_is_a_finding_though_others_were_not_answered_for() -> None:
    """What is known to be bad is bad, however much is not known."""
    assert judge(written(VULNERABLE, SKIPPED), PINNED | {("jinja2", "2.4.1")})


def test_clean_pins_of_an_index_that_keeps_advisories_have_no_findings() -> None:
    """And the vulnerabilities of the control are not ours."""
    assert judge(written(CLEAN, CONTROL_TOLD), PINNED) == []


@pytest.mark.parametrize(
    "answer, why",
    [
        (written(OTHER, SKIPPED, CONTROL_TOLD), "1 of 2 packages, not markupsafe"),
        (written(OTHER, CONTROL_TOLD), "1 of 2 packages, not markupsafe"),
        (written(OTHER, CLEAN | {"version": "3.0.2"}, CONTROL_TOLD), "1 of 2 packages, not markupsafe"),
        (written(CONTROL_TOLD), "none of 2 packages"),
        (written(OTHER, CLEAN, CONTROL_TOLD | {"vulns": []}), "keeps no advisories"),
        (written(OTHER, CLEAN), "keeps no advisories"),
        (b"No known vulnerabilities found", "no answer that can be read"),
        (b"{}", "no answer that can be read"),
    ],
)
def test_what_was_not_looked_up_is_never_called_clean(answer: bytes, why: str) -> None:
    """Of each of these pip-audit itself says that it found nothing, and exits with 0."""
    with pytest.raises(NotDone, match=why):
        judge(answer, PINNED | {("idna", "3.20")})


def test_every_release_that_the_requirements_pin_is_looked_up() -> None:
    """With extras, with markers for other platforms, and however the name is spelled."""
    text = (
        "Foo_Bar[x,y]==1.0 ; os_name == 'nt' \\\n    --hash=sha256:ab\nb==2.0.post1 \\\n    --hash=sha256:cd\n# c==3\n"
    )
    assert pins([text]) == {("foo-bar", "1.0"), ("b", "2.0.post1")}
    files = [file.read_text(encoding="utf-8") for file in sorted(audit.REQUIREMENTS.glob("*.txt"))]
    ours = pins(files)
    hashed = sum(line[:1].isalnum() for text in files for line in text.splitlines())
    assert len(ours) <= hashed
    assert {name for name, _ in ours} == {
        audit._canonical(line.partition("==")[0]) for text in files for line in text.splitlines() if line[:1].isalnum()
    }
    assert CONTROL[0] not in {name for name, _ in ours}, "a control is nothing that we use"


def test_a_program_that_does_not_answer_in_time_is_not_done(tmp_path: Path) -> None:
    """A run of everything else is not kept waiting."""
    program = tmp_path / "audit"
    (program / "bin").mkdir(parents=True)
    python = program / "bin" / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    python.chmod(0o700)
    (program / ".ready").write_bytes((audit.REQUIREMENTS / "audit.txt").read_bytes())
    with pytest.raises(NotDone, match="did not answer"):
        ask(PINNED, deadline=time.monotonic() + 0.1, program=program)


@pytest.mark.parametrize("said", ["ConnectionError: https://index.example/x failed", "host='index.example' is unknown"])
def test_the_reason_for_not_done_names_no_index(tmp_path: Path, said: str) -> None:
    """Logs are public; where packages come from is each machine's own."""
    program = tmp_path / "audit"
    (program / "bin").mkdir(parents=True)
    python = program / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n', encoding="utf-8")
    python.chmod(0o700)
    (program / ".ready").write_bytes((audit.REQUIREMENTS / "audit.txt").read_bytes())
    with pytest.raises(NotDone, match="could not ask") as told:
        ask(PINNED, deadline=time.monotonic() + 60, program=program)
    assert "example" not in str(told.value)


@pytest.mark.parametrize(
    "answer, code, said",
    [
        (written(CLEAN, CONTROL_TOLD), 0, "audit: no known vulnerabilities in 1 packages\n"),
        (written(VULNERABLE | {"name": "markupsafe", "version": "3.0.3"}), 1, "audit: VULNERABLE: 1 known"),
        (written(SKIPPED), 0, "audit: NOT DONE: the package index answers for none of 1 packages\n"),
    ],
)
def test_one_line_or_the_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes, code: int, said: str
) -> None:
    """Findings alone fail a run."""
    monkeypatch.setattr(audit, "pins", lambda _: PINNED)
    monkeypatch.setattr(audit, "ask", lambda *_, **__: answer)
    assert audit.main() == code
    assert capsys.readouterr().out.startswith(said)
