"""Which tests a worker runs together, and which come first."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest

WITH_REDIS = ("test_races", "test_idempotency", "test_ownership", "test_life")
"""The files of `tests/acceptance` that are run with Redis too, and not only in a proof."""
FLEET_WITH_REDIS = (*WITH_REDIS, "test_one_effect", "test_overlapping_claims")
OWN_SERVERS = ("test_stopping", "test_durability", "test_crew", "test_redis_faults")
"""These start what they need, and kill it."""

# Several workers share the files; the one that got one of these last would work alone while the others are done.
# They are in this order only with `--no-loadscope-reorder`: else the files with the most tests come first.
LONGEST_FILES = (
    "ha/",
    "fleet with redis",
    "fleet",
    "docs/test_stories.py",
    "browser/",
    "conformance/test_model.py",
    "examples/test_examples.py",
    "api/test_fuzz.py",
    "api/test_fuzz_real.py",
    "acceptance/test_stopping.py",
    "migration/test_rolling_upgrade.py",
    "lab/",
    "cli/test_payments_cli.py",
    "money/test_killed.py",
    "money/test_crashes.py",
    "api/test_ops.py",
    "races/test_money_storms.py",
    "acceptance/test_durability.py",
    "test_tidy.py",
    "locks/conformance/test_core.py",
    "money/test_orders.py",
    "api/test_canary.py",
    "conformance/test_money_guards.py",
    "conformance/test_steps_guards.py",
    "acceptance/test_crew.py",
    "races/test_moment_of_expiry.py",
)


def group(nodeid: str) -> str:
    """The file of a test, or what it shares with the tests of other files: servers that take seconds to start."""
    file = PurePosixPath(nodeid.split("::", 1)[0])
    if file.parent.name != "acceptance" or file.stem in OWN_SERVERS:
        return str(file)
    return "fleet with redis" if file.stem in FLEET_WITH_REDIS else "fleet"


def place(nodeid: str) -> int:
    """Where a test comes in the order of a run."""
    own = group(nodeid)
    found = [number for number, name in enumerate(LONGEST_FILES) if own == name or f"tests/{name}" in own]
    return found[0] if found else len(LONGEST_FILES)


class Scheduler(LoadFileScheduling):  # type: ignore[misc]
    """A worker gets a file at a time, or all files that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    """For `--dist loadfile`; any other way to share the tests is left to xdist."""
    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None
