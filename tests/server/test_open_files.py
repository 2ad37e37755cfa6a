"""How many connections a server takes, by the number of files that it may open."""

from __future__ import annotations

import resource

import pytest

from earmark.server import serve_in_one_process

INFINITE = resource.RLIM_INFINITY
WANTED = 10_000
ENOUGH = 3_000
FILES = WANTED + serve_in_one_process.FILES_APART


@pytest.mark.parametrize(
    "soft, hard, raised, most, warned",
    [
        (1024, 1024, None, 1024 - serve_in_one_process.FILES_APART, True),
        (1024, 4096, 4096, 4096 - serve_in_one_process.FILES_APART, False),
        (1024, INFINITE, FILES, WANTED, False),
        (1024, 1_000_000, FILES, WANTED, False),
        (FILES, FILES, None, WANTED, False),
        (INFINITE, INFINITE, None, WANTED, False),
        (300, 300, None, 150, True),
    ],
)
def test_connections_follow_from_the_files_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    soft: int,
    hard: int,
    raised: int | None,
    most: int,
    warned: bool,
) -> None:
    """The limit is raised as far as it goes; where that is not enough, some files are left for the database."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    assert serve_in_one_process._allow_connections(WANTED, enough=ENOUGH) == most
    assert limits[-1][0] == (raised or soft)
    assert ("lowered" in caplog.text) is warned
