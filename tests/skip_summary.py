"""What was not tested, at the end of a run: one line for each cause, with how many tests it kept from running.

pytest prints a line for each place that skips, so that one missing program is dozens of lines, and another cause
between them is not seen. A reason that names in capitals what is not tested, and then why, is counted under its why.

A test that needs a server or a program which this machine lacks calls `missing`. It skips, on every machine, unless
`EARMARK_TEST_DEMANDS` demands what is missing: then it fails. `.ci/run` installs and demands all of it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEMANDS: Final = "EARMARK_TEST_DEMANDS"
"""Empty, or `all`: every server and program that the tests can use must be on this machine."""
PLACES_MAX = 3
_LOUD = re.compile(r"([A-Z][A-Z0-9 ,'-]{9,}): (.+)", re.DOTALL)
_PYTESTS_OWN = "Skipped: "


def missing(untested: str, reason: object) -> NoReturn:
    """Skip this test with what stays untested, in capitals, and why; fail it where everything is demanded.

    A platform often sets `CI` by itself, so that is no demand: `make test` passes wherever Python does.
    """
    refuse = pytest.fail if demands_all() else pytest.skip
    refuse(f"{untested}: {reason}")


def demands_all() -> bool:
    """Whether a missing server or program is a failure."""
    demanded = os.environ.get(DEMANDS, "")
    if demanded not in {"", "all"}:
        pytest.fail(f"{DEMANDS} is {demanded!r}: leave it unset, or set it to all.")
    return demanded == "all"


def lines(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Of files and reasons: the cause that keeps the most from running first."""
    places: dict[str, Counter[str]] = {}
    parts: dict[str, Counter[str]] = {}
    for file, reason in skipped:
        part, cause = _split(reason.removeprefix(_PYTESTS_OWN))
        places.setdefault(cause, Counter())[file] += 1
        parts.setdefault(cause, Counter())[part] += 1
    for cause in sorted(places, key=lambda cause: (-places[cause].total(), cause)):
        said = ", ".join(sorted(filter(None, parts[cause])))
        loud = f"{said}: " if said else ""
        yield f"SKIPPED [{places[cause].total()}] {loud}{' '.join(cause.split())} ({_few(places[cause])})"


def _split(reason: str) -> tuple[str, str]:
    """What is not tested, where the reason names it, and why."""
    found = _LOUD.fullmatch(reason)
    return (found[1], found[2]) if found else ("", reason)


def _few(files: Counter[str]) -> str:
    named = [file for file, _ in files.most_common(PLACES_MAX)]
    more = len(files) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print them below the tests' own summary."""
    reports = terminalreporter.stats.get("skipped", [])
    for line in lines((report.nodeid.partition("::")[0], str(report.longrepr[2])) for report in reports):
        terminalreporter.write_line(line, yellow=True)
