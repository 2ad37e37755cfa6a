"""Checks for payments that only an operator can settle, and for payments that have been open for too long."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, age, note, ok, problem
from earmark.domain.live_or_test_mode import Mode
from earmark.observability.alert_thresholds import OPEN_PAYMENT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.engine.ports.payment_monitoring_reads import MoneyWatch
    from earmark.engine.ports.store import Store

MONEY_MAX = 1000

LIVE_ADVICE = "Does any process run the reconciler, with its gateway set up? Some banks take days for a refund."
TEST_ADVICE = (
    "A test payment at a server's own sandbox is known to that process alone. Once that process has ended, the "
    "reconciler of any server gives it up after a day."
)


async def money(store: Store) -> AsyncIterator[Finding]:
    """Payments that only an operator can settle, and payments that have been open for too long."""
    live = await store.watch_money(limit=MONEY_MAX, mode=Mode.LIVE)
    test = await store.watch_money(limit=MONEY_MAX, mode=Mode.TEST)
    found = [*_flagged(live, problem, "Payments"), *_flagged(test, note, "Test payments")]
    found += [*_open_long(live, "payment", LIVE_ADVICE), *_open_long(test, "test payment", TEST_ADVICE)]
    for finding in found or [ok("money", "No payment needs review.")]:
        yield finding


def _flagged(watch: MoneyWatch, level: Callable[[str, str, str], Finding], what: str) -> Iterator[Finding]:
    if watch.attention:
        counts_ = ", ".join(f"{count} at {gateway}" for gateway, count in sorted(watch.attention.items()))
        yield level("money", f"{what} need review: {counts_}.", "See `earmark payments attention`.")


def _open_long(watch: MoneyWatch, what: str, advice: str) -> Iterator[Finding]:
    if watch.open_since and watch.now - watch.open_since > timedelta(seconds=OPEN_PAYMENT_SECONDS):
        said = f"The oldest open {what} or refund is open for {age(watch.open_since, watch.now)}."
        yield note("money", said, advice)
