"""Which tests a worker runs together, and which come first."""

from __future__ import annotations

import os
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

FIRST_IN_A_PROOF = (
    "conformance/test_model.py",
    "bench/test_bench_attacks.py",
    "bench/test_bench_memory.py",
    "money/test_crashes.py",
    "money/test_killed.py",
    "money/test_orders.py",
    "api/test_fuzz.py",
    "api/test_fuzz_real.py",
    "api/test_fuzz_credentials.py",
    "races/test_money_storms.py",
    "publish/test_stream.py",
    "migration/test_rolling_upgrade.py",
    "acceptance/test_stopping.py",
)
"""Files of a few seconds, which take minutes in a proof."""
# Several workers share the files; the one that got one of these last would work alone while the others are done.
# They are in this order only with `--no-loadscope-reorder`: else the files with the most tests come first.
LONGEST_FILES = (
    "ha/",
    *(FIRST_IN_A_PROOF if os.environ.get("EARMARK_PROOF") else ()),
    "fleet with redis",
    "fleet",
    "browser/",
    "docs/test_stories.py",
    "races/test_hung_database.py",
    "conformance/test_money_guards.py",
    "bench/",
    "locks/conformance/test_core.py",
    "locks/test_redis_outages.py",
    "locks/conformance/test_verbs.py",
    "acceptance/test_stopping.py",
    "conformance/test_steps_guards.py",
    "locks/test_queue_hazards.py",
    "locks/test_failovers.py",
    "locks/conformance/test_sync.py",
    "conformance/test_verbs.py",
    "races/test_locked_rows.py",
    "admission/test_with_engine.py",
    "publish/test_stream.py",
    "conformance/test_refund_rules.py",
    "locks/conformance/test_fifo.py",
    "admission/test_outages.py",
    "locks/test_two_holders.py",
    "races/test_outages.py",
    "races/test_standby.py",
    "money/test_killed.py",
    "conformance/test_idempotency.py",
    "races/test_money_storms.py",
    "examples/test_examples.py",
    "testservers/test_postgres.py",
    "testservers/test_supervisor.py",
    "publish/test_stream_over_http.py",
    "locks/conformance/test_backend_port.py",
    "payments/gateways/stripe/test_stripe_gateway.py",
    "acceptance/test_durability.py",
    "acceptance/test_crew.py",
    "acceptance/test_redis_faults.py",
    "admission/test_seat_admission.py",
    "races/test_money_reclaims.py",
    "races/test_pooler.py",
    "workers/test_sweeper.py",
    "testservers/test_os_account.py",
    "api/test_redis_up.py",
    "api/test_ops.py",
    "migration/",
    "cli/test_payments_cli.py",
    "cli/test_doctor_failover.py",
    "api/test_fuzz.py",
    "api/test_fuzz_real.py",
    "api/test_fuzz_credentials.py",
    "api/test_canary.py",
    "webhooks/test_courier.py",
    "money/test_crashes.py",
    "money/test_orders.py",
    "races/test_moment_of_expiry.py",
    "races/test_lock_table.py",
    "conformance/test_model.py",
    "test_tidy.py",
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
