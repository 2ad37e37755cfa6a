"""Which tests one xdist worker runs together, and which run first."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

WITH_REDIS = ("test_races", "test_idempotency", "test_ownership")
"""The files of `tests/acceptance` that are run with Redis too, and not only in a proof."""
FLEET_WITH_REDIS = (*WITH_REDIS, "test_idempotency_races", "test_overlapping_claims")
LONG_PART = 0.85
"""How far through a run the last long file begins."""
OWN_SERVERS = ("test_stopping", "test_durability", "test_server_processes", "test_redis_faults")
"""These start what they need, and kill it."""

FIRST_IN_A_PROOF = (
    "tests/conformance/test_model.py",
    "tests/bench/test_bench_attacks.py",
    "tests/bench/test_bench_memory.py",
    "tests/money/test_crashes.py",
    "tests/money/test_killed_server.py",
    "tests/money/test_callback_orders.py",
    "tests/api/test_fuzz.py",
    "tests/api/test_fuzz_real.py",
    "tests/api/test_fuzz_credentials.py",
    "tests/races/test_payment_contention.py",
    "tests/seatmap/test_stream.py",
    "tests/migration/test_rolling_upgrade.py",
    "tests/acceptance/test_stopping.py",
)
"""Files of a few seconds, which take minutes in a proof."""
# Several workers share the files; the worker that got one of these last would run alone while the others are done.
# They take turns with all others (`take_turns`), and are in this order only with `--no-loadscope-reorder`: else the
# files with the most tests come first.
LONGEST_FILES = (
    "tests/ha/",
    *(FIRST_IN_A_PROOF if os.environ.get("EARMARK_PROOF") else ()),
    "fleet with redis",
    "fleet",
    "tests/browser/test_shop.py",
    "tests/browser/test_checkout.py",
    "tests/browser/test_shop_accessibility.py",
    "tests/browser/test_my_bookings.py",
    "tests/browser/test_embed.py",
    "tests/browser/test_payment_element.py",
    "tests/browser/test_seat_map_element.py",
    "tests/browser/test_ops.py",
    "tests/browser/test_tickets.py",
    "tests/locks/conformance/test_renewal.py",
    "tests/docs/test_page_commands.py",
    "tests/bench/test_booking_race.py",
    "tests/bench/test_bench_booking.py",
    "tests/races/test_hung_database.py",
    "tests/erasure/test_erase_buyer.py",
    "tests/conformance/test_payment_guards.py",
    "tests/conformance/test_steps_guards.py",
    "tests/bench/test_bench_attacks.py",
    "tests/bench/test_bench_memory.py",
    "tests/locks/conformance/test_core.py",
    "tests/locks/test_redis_outages.py",
    "tests/locks/conformance/test_verbs.py",
    "tests/acceptance/test_stopping.py",
    "tests/acceptance/test_durability.py",
    "tests/acceptance/test_server_processes.py",
    "tests/acceptance/test_redis_faults.py",
    "tests/cli/test_doctor_failover.py",
    "tests/money/test_declines.py",
    "tests/money/test_saga.py",
    "tests/sandbox/test_bounded_memory.py",
    "tests/testservers/",
    "tests/races/test_locked_rows.py",
    "tests/races/test_sweepers.py",
    "tests/races/test_seats.py",
    "tests/locks/test_queue_hazards.py",
    "tests/locks/test_failovers.py",
    "tests/locks/conformance/test_sync.py",
    "tests/money/test_crashes.py",
    "tests/money/test_refunds_elsewhere.py",
    "tests/payments/gateways/conformance/test_authorise_capture_void.py",
    "tests/conformance/test_verbs.py",
    "tests/bench/",
    "tests/admission/test_with_engine.py",
    "tests/seatmap/test_stream.py",
    "tests/seatmap/test_stream_over_http.py",
    "tests/api/test_fuzz.py",
    "tests/api/test_fuzz_credentials.py",
    "tests/api/test_fuzz_real.py",
    "tests/observability/test_alerts.py",
    "tests/observability/test_secrets_never_leave.py",
    "tests/api/routes/test_sandbox_payments.py",
    "tests/observability/test_redis_gauges.py",
    "tests/conformance/test_refund_rules.py",
    "tests/conformance/test_idempotency.py",
    "tests/conformance/test_model.py",
    "tests/locks/conformance/test_fifo.py",
    "tests/locks/conformance/test_backend_port.py",
    "tests/locks/test_two_holders.py",
    "tests/admission/test_outages.py",
    "tests/admission/test_seat_admission.py",
    "tests/races/test_outages.py",
    "tests/races/test_standby.py",
    "tests/races/test_payment_contention.py",
    "tests/races/test_money_reclaims.py",
    "tests/races/test_pgbouncer.py",
    "tests/races/test_moment_of_expiry.py",
    "tests/races/test_lock_table.py",
    "tests/wiring/test_runtime.py",
    "tests/migration/test_rolling_upgrade.py",
    "tests/races/test_connections.py",
    "tests/money/test_killed_server.py",
    "tests/money/test_callback_orders.py",
    "tests/money/test_chaos.py",
    "tests/locks/conformance/test_many_keys.py",
    "tests/docs/test_handmade.py",
    "tests/server/test_wait_for_native_threads.py",
    "tests/erasure/",
    "tests/workers/",
    "tests/migration/",
    "tests/browser/",
    "tests/examples/test_examples.py",
    "tests/payments/gateways/stripe/test_stripe_gateway.py",
    "tests/cli/test_doctor.py",
    "tests/cli/test_payments_cli.py",
    "tests/docs/test_locks.py",
    "tests/webhooks/test_webhook_dispatcher.py",
    "tests/test_regex_cost.py",
    "tests/test_tidy.py",
    "tests/test_skip_summary.py",
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
    found = [number for number, name in enumerate(LONGEST_FILES) if own.startswith(name)]
    return found[0] if found else len(LONGEST_FILES)


def take_turns(groups: Iterable[str]) -> list[str]:
    """The groups in the order of a run: long files in their order, and the others evenly between them.

    Most long files wait for servers and for time to pass, and most others need a core: side by side they use both. The
    long ones end a little earlier, so that no worker begins one when the others are done.
    """
    waiting: list[str] = []
    working: list[str] = []
    for own in groups:
        (waiting if place(own) < len(LONGEST_FILES) else working).append(own)
    places = {own: LONG_PART * number / len(waiting) for number, own in enumerate(sorted(waiting, key=place))}
    places |= {own: number / len(working) for number, own in enumerate(working)}
    return sorted(places, key=places.__getitem__)


class Scheduler(LoadFileScheduling):  # type: ignore[misc]
    """A worker gets a file at a time, or all files that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    """For `--dist loadfile`; any other way to share the tests is left to xdist."""
    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None
