"""The alerts of the operator's console, derived only from the figures that the console shows.

Thresholds and advice are those of `earmark doctor`. Pure functions: figures in, alerts out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.observability.alert_thresholds import FAILING_WEBHOOK_SECONDS, LATE_SECONDS, OPEN_PAYMENT_SECONDS
from earmark.schemas.ops_console import OpsNeed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from earmark.schemas.ops_console import OpsHolds, OpsPart, OpsPayments, OpsRelay, OpsWebhooks, OpsWorker


def of_parts(parts: Sequence[OpsPart]) -> Iterator[OpsNeed]:
    """Parts that do not answer. A database that does not answer fails the whole request instead."""
    advice = {
        "server": "Nothing, during a planned restart; else find out what stops it.",
        "locks": "See whether Redis runs and can be reached from here; `earmark doctor` says what is wrong with it.",
        "admission": "Sales go on without it. See whether Redis runs and can be reached from here: `earmark doctor`.",
    }
    for part in parts:
        if not part.up and part.name != "database":
            yield OpsNeed(area=part.name, count=1, said=part.said, what_to_do=advice[part.name])


def of_payments(payments: OpsPayments) -> Iterator[OpsNeed]:
    """Payments that need review, and payments that are open for too long."""
    if payments.attention:
        said = f"{_count(payments.attention, 'payment needs', 'payments need')} review."
        yield OpsNeed(
            area="payments",
            count=payments.attention,
            said=said,
            what_to_do="Each is listed below with what to do about it; `earmark payments attention` lists them all.",
        )
    if payments.open_oldest_seconds > OPEN_PAYMENT_SECONDS:
        said = f"A payment or refund is open for {_age(payments.open_oldest_seconds)}."
        advice = "Check below whether a reconciler is running, and whether the gateway answers: the logs name it."
        yield OpsNeed(area="payments", count=1, said=said, what_to_do=advice)


def of_workers(missing: Sequence[str], workers: Sequence[OpsWorker]) -> Iterator[OpsNeed]:
    """Roles that no worker runs, and workers whose rounds fail."""
    if missing:
        said = f"No {_listed(missing)} is running."
        yield OpsNeed(
            area="workers",
            count=1,
            said=said,
            what_to_do="Run `earmark worker`, or serve with `EARMARK_EMBEDDED_WORKERS=on`.",
        )
    for worker in workers:
        if worker.health == "failing":
            why = f" ({worker.because})" if worker.because else ""
            said = f"The {worker.role} on {worker.host} fails: {worker.outcome}{why}."
            yield OpsNeed(area="workers", count=1, said=said, what_to_do="Its log has the whole error.")


def of_holds(holds: OpsHolds) -> Iterator[OpsNeed]:
    """Holds that are due and not ended. Their seats can be sold; lists and counts are wrong until they are ended."""
    if holds.due_seconds > LATE_SECONDS:
        said = f"{_count(holds.due, 'hold is', 'holds are')} due and not ended, for {_age(holds.due_seconds)}."
        advice = "Run `earmark worker`; `earmark doctor --fix` ends them now."
        yield OpsNeed(area="holds", count=1, said=said, what_to_do=advice)


def of_relay(relay: OpsRelay) -> Iterator[OpsNeed]:
    """Journal entries without a number: streams and webhooks wait for them."""
    if relay.oldest_seconds > LATE_SECONDS:
        have = _count(relay.unsent, "journal entry has", "journal entries have")
        said = f"{have} no number, the oldest for {_age(relay.oldest_seconds)}."
        advice = "Run `earmark worker`; `earmark doctor --fix` numbers them now."
        yield OpsNeed(area="relay", count=1, said=said, what_to_do=advice)


def of_webhooks(webhooks: OpsWebhooks, *, now: datetime) -> Iterator[OpsNeed]:
    """Webhooks that fail or are switched off, and deliveries that no worker has tried in time."""
    for one in webhooks.listed:
        failing = (now - one.failing_since).total_seconds() if one.failing_since else 0.0
        if one.health == "failing" and failing > FAILING_WEBHOOK_SECONDS:
            said = f"The webhook to {one.host} fails, for {_age(failing)}."
            advice = f"Deliveries are retried. `earmark webhooks deliveries {one.id}` shows what the receiver answers."
            yield OpsNeed(area="webhooks", count=1, said=said, what_to_do=advice)
        if one.health == "disabled":
            said = f"The webhook to {one.host} is switched off: {one.disabled_because}."
            advice = f"Repair the receiver, then enable the webhook: `earmark webhooks enable {one.id}`."
            yield OpsNeed(area="webhooks", count=1, said=said, what_to_do=advice)
    if webhooks.late_seconds > LATE_SECONDS:
        said = f"A delivery that was due {_age(webhooks.late_seconds)} ago has not been tried."
        yield OpsNeed(area="webhooks", count=1, said=said, what_to_do="Check below whether a courier is running.")


def _age(seconds: float) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name}s"
    return f"{seconds:.0f} seconds"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
