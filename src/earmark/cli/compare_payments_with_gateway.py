"""Compares our payments with a gateway's records, for `earmark verify --books`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from earmark.domain.id_types import PaymentId
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import Gateway, Record
from earmark.payments import gateway_comparison_rules
from earmark.payments.build_gateway_orders import order_of
from earmark.payments.gateway_comparison_rules import Comparison

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.payment import Payment
    from earmark.engine.ports.store import Flaw, Store

PAGE_SIZE = 500
CLOCKS_APART = timedelta(minutes=10)


async def compare(store: Store, gateway: Gateway, *, since: datetime) -> Comparison:
    """Compare both records, from `since` on. Ours are read first: what they say was captured was captured by then."""
    ours = await _ours(store, gateway, since=since)
    theirs: dict[UUID, list[Record]] = {}
    found = Comparison()
    async for record in gateway.books(since=since - CLOCKS_APART):
        if record.payment_id is None:
            found.foreign += record.captured > record.refunded
        else:
            theirs.setdefault(record.payment_id, []).append(record)
    for payment_id in theirs.keys() - ours.keys():
        about = await store.read_payment_snapshot(PaymentId(payment_id))
        if about is None or about.payment.gateway != gateway.name:
            found.flaws += gateway_comparison_rules.orphans(theirs[payment_id])
        else:
            ours[payment_id] = about.payment
    for payment_id, payment in ours.items():
        records = theirs.get(payment_id, [])
        found.flaws += gateway_comparison_rules.strays(payment, records)
        differs = gateway_comparison_rules.differences(payment, gateway_comparison_rules.chosen(payment, records))
        if not differs:
            found.agree += 1
        else:
            await _judge(store, gateway, payment, differs, found)
    return found


async def _ours(store: Store, gateway: Gateway, *, since: datetime) -> dict[UUID, Payment]:
    """Our payments at this gateway, in its mode: the gateway keeps separate records for test and live."""
    found: dict[UUID, Payment] = {}
    after: PaymentId | None = None
    while page := await store.page_payments(gateway.name, since=since, after=after, limit=PAGE_SIZE):
        found |= {payment.id: payment for payment in page if payment.mode == gateway.mode}
        after = page[-1].id
    return found


async def _judge(store: Store, gateway: Gateway, payment: Payment, differs: list[Flaw], found: Comparison) -> None:
    """Read both sides again before reporting: the payment may have moved while pages were read."""
    about = await store.read_payment_snapshot(payment.id)
    assert about is not None, "a payment is never deleted"
    now = about.payment
    if gateway_comparison_rules.is_open(now):
        found.still_open += differs
        return
    report = await gateway.status(order_of(now))
    record = None
    if report.state is not ReportedState.ABSENT:
        record = Record(
            payment_id=now.id,
            gateway_id=report.gateway_id or "",
            state=report.state,
            currency=now.currency,
            captured=report.captured,
            refunded=report.refunded,
        )
    still = [
        flaw for flaw in differs if flaw.rule == gateway_comparison_rules.CURRENCY
    ] + gateway_comparison_rules.differences(now, record)
    again = await store.read_payment_snapshot(payment.id)
    moved = again is None or again.payment.version != now.version
    (found.still_open if moved else found.flaws).extend(still)
    found.agree += not still
