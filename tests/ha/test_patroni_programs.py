"""Where Patroni and etcd come from, and what the tests report where they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.ha import conftest, patroni_programs

from earmark.testservers import ServerUnavailable
from earmark.testservers.os_account import server_account

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a change of the pinned versions: the environment's name is another one."""
    other = tmp_path / "ha.txt"
    other.write_text("nothing")
    monkeypatch.setattr(patroni_programs, "REQUIREMENTS", other)


@pytest.mark.usefixtures("_not_installed")
def test_a_missing_cluster_skips_its_tests_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what was not tested, and how it can be."""
    monkeypatch.delenv(conftest.DEMANDED, raising=False)
    monkeypatch.setenv("EARMARK_PROOF", "1")
    with pytest.raises(pytest.skip.Exception, match=r"FAILOVER NOT TESTED: .*run `make ha`"):
        conftest.found_programs()


def test_failovers_without_their_make_target_are_skipped_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take minutes; the line says how to run them."""
    monkeypatch.delenv(conftest.DEMANDED, raising=False)
    monkeypatch.delenv("EARMARK_PROOF", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"FAILOVER NOT TESTED: `make ha` does it"):
        conftest.found_programs()


@pytest.mark.usefixtures("_not_installed")
def test_a_cluster_that_is_required_and_missing_fails_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI nothing is left out in silence."""
    monkeypatch.setenv(conftest.DEMANDED, "1")
    with pytest.raises(pytest.fail.Exception, match="FAILOVER NOT TESTED"):
        conftest.found_programs()


def test_a_python_that_the_servers_account_cannot_run_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unprivileged account cannot run root's own Python, and Patroni does not run on an old one."""
    old, closed = tmp_path / "old", tmp_path / "closed"
    for path, version in ((old, "3 8"), (closed, "3 14")):
        path.write_text(f"#!/bin/sh\necho {version}\n")
    old.chmod(0o755)
    closed.chmod(0o644)
    candidates = (str(tmp_path / "absent"), str(old), str(closed))
    monkeypatch.setattr(patroni_programs, "CANDIDATES", candidates)
    with pytest.raises(ServerUnavailable, match=r"No Python 3\.11 or newer that the servers' account can run"):
        patroni_programs._runnable_python(server_account())
