"""The journal has before and after of every field that changed: compared with the rows, transaction by transaction.

`the_journal_is_whole` compares in every test of the money and of the verbs that runs in memory. Here each verb is gone
through once, so that none is left out, and one field is left out on purpose.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.money.conftest import PRICE, Shop
from tests.money.scripted_gateway import AUTHORISED, CAPTURED, DECLINED, PROCESSING
from tests.money.test_disputes import about
from tests.money.test_needs_attention import settle

from earmark.domain import journal_before_and_after_values
from earmark.domain.bookable_event import Event, OnDecline
from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId, PoolId, SeatId
from earmark.domain.payment import Payment, Refund, ReportedState, SettledAs
from earmark.domain.webhook_messages import BY_MOVE, NOTE, type_of
from earmark.engine.commands_and_results import Change, ChangeEvent, Confirm, Extend, PoolPatch, Release, SeatPatch
from earmark.engine.ports.gateway import GatewaySilent, RefundRecord, RefundReport, Report, ReportedRefundState
from earmark.payments import apply_refund_report
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.journal_completeness import JournalComparison

    from earmark.clock import MovableClock
    from earmark.domain.journal_before_and_after_values import FieldChange as Changed
    from earmark.uuids import Uuid7Ids

CLOSES = datetime(2040, 1, 1, tzinfo=UTC)
REFUND_MADE = RefundReport(state=ReportedRefundState.DONE, gateway_id="re_1")
REFUND_PROCESSING = RefundReport(state=ReportedRefundState.PROCESSING, gateway_id="re_1")
REFUND_REFUSED = RefundReport(state=ReportedRefundState.REFUSED, gateway_id="re_1", code="charge_disputed")


async def history(shop: Shop, booking: Booking) -> list[dict[str, Changed]]:
    """The changes of each entry, in order."""
    told = [journal_before_and_after_values.changes_of(entry) for entry in await shop.store.read_history(booking.id)]
    assert all(one is not None for one in told)
    return [one for one in told if one is not None]


def pair(before: object, after: object) -> Changed:
    return journal_before_and_after_values.FieldChange(before=before, after=after)


async def operate(shop: Shop) -> None:
    """What an operator changes: the event, a seat and a pool."""
    ask = ChangeEvent(
        actor=shop.actor,
        entry_id=shop.engine.ids.entry_id(),
        event_id=EventId("concert"),
        fields={"name": "Another show", "sale_closes_at": CLOSES, "per_buyer_max": 9, "on_decline": OnDecline.KEEP},
        seats=(SeatPatch(id=SeatId("A4"), blocked=True, price=9900),),
        pools=(PoolPatch(id=PoolId("GA"), capacity=30, price=2600),),
    )
    await shop.engine.change_event(ask)


async def pay_elsewhere(shop: Shop) -> None:
    """Hold, extend, confirm with money taken elsewhere, cancel a part, then all; release one, let one expire."""
    held = await shop.hold("A1", "A2", pools={"GA": 2}, ttl=60)
    await shop.engine.change(Change(**shop.about(held), add_seats=(SeatId("A3"),), pools={PoolId("GA"): 3}))
    await shop.engine.extend(Extend(**shop.about(held), seconds=60))
    await shop.engine.confirm(Confirm(**shop.about(held), payment_id="till-1", payment_method="cash"))
    await shop.cancel(held, seats=frozenset([SeatId("A1")]))
    await shop.cancel(held)
    await shop.engine.release(Release(**shop.about(await shop.hold("A1"))))
    await shop.hold("A1", ttl=1)
    shop.clock.advance(2)
    await shop.engine.expire(limit=9)


async def pay_nothing(shop: Shop) -> None:
    """Paying is confirming."""
    await shop.open_another("free", seats={"A1": 0})
    await shop.pay(await shop.hold("A1", event="free"))


async def sell_and_refund(shop: Shop) -> None:
    """Authorised, captured, refunded in two steps, cancelled, and a refund that fails weeks later."""
    sold = (await shop.pay(await shop.hold("A1"))).booking
    shop.gateway.refunds, shop.gateway.made = REFUND_PROCESSING, REFUND_MADE
    await shop.refund(sold, 1000)
    await shop.reconcile(seconds=600)
    shop.gateway.refunds = REFUND_MADE
    await shop.cancel(sold)
    await shop.reconcile(seconds=600)
    kept = (await shop.pay(await shop.hold("A1"))).booking
    await shop.cancel(kept, refund=0)
    await shop.refund(kept, 700)
    shop.gateway.refunds = shop.gateway.made = REFUND_REFUSED
    other = (await shop.pay(await shop.hold("A2"))).booking
    await shop.refund(other, 500)
    payment = await shop.payment(other)
    await settle(shop, payment, SettledAs.REFUNDED)
    await shop.cancel(other)
    shop.gateway.refunds = shop.gateway.made = REFUND_MADE


async def refund_elsewhere(shop: Shop) -> None:
    """An operator was at the gateway's own page."""
    await shop.open_another("matinee")
    sold = (await shop.pay(await shop.hold("A4", event="matinee"))).booking
    snapshot = await shop.store.read_payment_snapshot((await shop.payment(sold)).id)
    assert snapshot is not None
    found = [RefundRecord(refund_id=None, gateway_id="re_9", amount=100, state=ReportedRefundState.DONE)]
    await shop.engine.transact(
        partial(apply_refund_report.apply_refunds_elsewhere, found=found, about=snapshot, ids=shop.engine.ids)
    )


async def decline(shop: Shop) -> None:
    """The hold stays, ends with the payment, or has no time left."""
    shop.gateway.says["authorise"] = DECLINED
    await shop.pay(await shop.hold("A1"))
    await shop.open_another("strict", on_decline=OnDecline.RELEASE)
    await shop.pay(await shop.hold("A1", event="strict"))
    late = await shop.hold("A2", ttl=5)
    shop.gateway.says |= {"authorise": PROCESSING, "status": DECLINED}
    await shop.pay(late)
    await shop.reconcile(seconds=600)
    shop.gateway.says["authorise"] = AUTHORISED


async def wait_in_vain(shop: Shop) -> None:
    """Silence, then an action, then nothing: given up, and the money that comes all the same finds the seat free."""
    held = await shop.hold("A3")
    acting = Report(state=ReportedState.REQUIRES_ACTION, gateway_id="pi_9", action={"url": "https://bank"})
    shop.gateway.says |= {"authorise": GatewaySilent("no answer"), "status": acting, "void": GatewaySilent("no answer")}
    await shop.pay(held)
    shop.gateway.says |= {"authorise": acting}
    await shop.reconcile(seconds=60)
    await shop.reconcile(seconds=901)
    assert (await shop.booking(held)).state is State.EXPIRED
    shop.gateway.says |= {"status": CAPTURED, "void": CAPTURED}
    await shop.reconcile(seconds=600)
    assert (await shop.booking(held)).state is State.CONFIRMED
    payment = await shop.payment(held)
    await shop.driver.receive_callback("scripted", about(payment))
    await settle(shop, await shop.payment(held), SettledAs.KEPT)


WAYS: dict[str, Callable[[Shop], Awaitable[None]]] = {
    "an operator": operate,
    "money taken elsewhere": pay_elsewhere,
    "nothing to pay": pay_nothing,
    "a sale and its refunds": sell_and_refund,
    "a refund elsewhere": refund_elsewhere,
    "declines": decline,
    "silence and late money": wait_in_vain,
}


@pytest.fixture
async def memory_shop(clock: MovableClock, ids: Uuid7Ids) -> Shop:
    shop = Shop(MemoryStore(clock=clock), ids=ids, clock=clock)
    await shop.open_another("concert")
    return shop


async def test_every_verb_records_every_field_before_and_after(
    memory_shop: Shop, the_journal_is_whole: JournalComparison
) -> None:
    """All moves that there are, and the changes of events, seats, pools, payments and refunds."""
    watch = the_journal_is_whole
    for way in WAYS.values():
        await way(memory_shop)
    assert watch.untold == []
    assert {(verb, after) for verb, after in BY_MOVE if (verb, after) not in watch.moves} == set(), (
        "a verb was left out"
    )
    assert {verb for verb, _ in watch.moves} >= {"change_event", NOTE}
    told = {f"payment.{name}" for name in journal_before_and_after_values.PAYMENT_FIELDS} | {
        f"refund.{name}" for name in journal_before_and_after_values.REFUND_FIELDS
    }
    told |= {
        f"booking.{name}"
        for name in journal_before_and_after_values.BOOKING_FIELDS
        if name not in journal_before_and_after_values.UNTOLD["booking"]
    }
    told |= {"event.name", "event.sale_closes_at", "seats.blocked", "seats.price", "pools.capacity", "pools.price"}
    # A gateway's message comes with gateways that have one; refunds at its own page are made in a file of their own,
    # under the same watch.
    elsewhere = {"payment.message", "payment.refunded_elsewhere", "booking.buyer"}
    assert told - watch.columns <= elsewhere, "a column never changed: the test is too short"


@pytest.mark.parametrize(
    "where, name",
    [
        ("BOOKING_FIELDS", "expires_at"),
        ("BOOKING_FIELDS", "ended_at"),
        ("PAYMENT_FIELDS", "captured"),
        ("REFUND_FIELDS", "state"),
    ],
)
async def test_control_a_field_that_is_left_out_is_noticed(
    memory_shop: Shop, monkeypatch: pytest.MonkeyPatch, the_journal_is_whole: JournalComparison, where: str, name: str
) -> None:
    """The comparison sees one missing field among all."""
    monkeypatch.setattr(
        journal_before_and_after_values,
        where,
        tuple(one for one in getattr(journal_before_and_after_values, where) if one != name),
    )
    watch = the_journal_is_whole
    await pay_elsewhere(memory_shop)
    await sell_and_refund(memory_shop)
    assert watch.untold
    assert {line.partition(":")[0].rpartition(".")[2] for line in watch.untold} == {name}
    watch.untold.clear()


async def test_control_an_old_value_that_is_left_out_is_noticed(
    memory_shop: Shop, monkeypatch: pytest.MonkeyPatch, the_journal_is_whole: JournalComparison
) -> None:
    """With the new values alone, as entries had them once, the comparison fails."""
    monkeypatch.setattr(journal_before_and_after_values, "was", lambda *_: {})
    monkeypatch.setattr(journal_before_and_after_values, "event_was", lambda _, names: dict.fromkeys(names))
    watch = the_journal_is_whole
    await operate(memory_shop)
    await pay_elsewhere(memory_shop)
    assert {line.partition(":")[0] for line in watch.untold} >= {"booking.expires_at", "event.name", "booking.lines"}
    watch.untold.clear()


@pytest.mark.parametrize(
    "kind, value", [("booking", Booking), ("payment", Payment), ("refund", Refund), ("event", Event)]
)
def test_every_field_is_recorded_or_says_why_not(kind: str, value: Any) -> None:
    """A new column of a row is one or the other, with a reason."""
    told = {
        "booking": set(journal_before_and_after_values.BOOKING_FIELDS),
        "payment": {
            *journal_before_and_after_values.PAYMENT_FIELDS,
            *journal_before_and_after_values.NEW_PAYMENT_FIELDS,
        },
        "refund": set(journal_before_and_after_values.REFUND_FIELDS),
        "event": set(Event.__struct_fields__) - set(journal_before_and_after_values.UNTOLD["event"]),
    }[kind]
    fields = set(value.__struct_fields__)
    assert fields - told == set(journal_before_and_after_values.UNTOLD[kind]) - told
    assert all(journal_before_and_after_values.UNTOLD[kind].values())


async def test_a_history_reads_the_same_from_every_store(shop: Shop) -> None:
    """Every store returns moments and amounts as they were, before and after, in order."""
    held = await shop.hold("A1", "A2", ttl=60)
    await shop.engine.extend(Extend(**shop.about(held), seconds=60))
    sold = (await shop.pay(held)).booking
    await shop.cancel(sold, seats=frozenset([SeatId("A2")]))
    told = await history(shop, held)
    ends = (held.expires_at, held.expires_at + timedelta(seconds=60))
    until, later = (at.isoformat().replace("+00:00", "Z") for at in ends)
    assert told[0]["state"] == pair(None, "held")
    assert told[0]["expires_at"] == pair(None, until)
    assert told[1] == {"expires_at": pair(until, later)}
    assert told[2]["payment.amount"] == pair(None, 2 * PRICE)
    assert told[2]["state"] == pair("held", "paying")
    taken = next(one for one in told if "payment.captured" in one)
    assert taken["payment.captured"] == pair(0, 2 * PRICE)
    reduced = told[-1]
    assert reduced["total"] == pair(2 * PRICE, PRICE)
    assert [seat["id"] for seat in reduced["lines"].before["seats"]] == ["A1", "A2"]
    assert [seat["id"] for seat in reduced["lines"].after["seats"]] == ["A1"]
    assert reduced["payment.refunding"] == pair(0, PRICE)
    [state] = [change for name, change in reduced.items() if name.startswith("refunds.") and name.endswith(".state")]
    assert state == pair(None, "pending")


async def test_an_operators_change_reads_the_same_from_every_store(shop: Shop) -> None:
    """With the old values; a requested value that equals the old one is no change."""
    await operate(shop)
    await shop.store.outbox.number(after=EventId(""), limit=100)
    numbered = await shop.store.outbox.read_numbered(EventId("concert"), after=0, limit=100)
    entries = [told.entry for told in numbered]
    [entry] = [entry for entry in entries if entry.verb == "change_event"]
    told = journal_before_and_after_values.changes_of(entry)
    assert told == {
        "name": pair("A show", "Another show"),
        "sale_closes_at": pair(None, "2040-01-01T00:00:00Z"),
        "per_buyer_max": pair(None, 9),
        "seats.A4.blocked": pair(before=False, after=True),
        "seats.A4.price": pair(PRICE, 9900),
        "pools.GA.capacity": pair(3, 30),
        "pools.GA.price": pair(2500, 2600),
    }


async def test_an_old_entry_does_not_claim_that_there_was_no_value_before(shop: Shop) -> None:
    """It kept no old values, so it reports no changes at all."""
    held = await shop.hold("A1")
    await shop.engine.extend(Extend(**shop.about(held), seconds=60))
    first, last = await shop.store.read_history(held.id)
    old = {name: value for name, value in last.facts.items() if name != journal_before_and_after_values.WAS}
    assert journal_before_and_after_values.changes_of(msgspec.structs.replace(last, facts=old)) is None
    assert journal_before_and_after_values.changes_of(first) is not None


async def test_silence_is_recorded_and_details_send_no_webhook(shop: Shop) -> None:
    """That the gateway did not answer is published; the gateway's id of the payment is in the journal alone."""
    held = await shop.hold("A1")
    shop.gateway.says["authorise"] = GatewaySilent("no answer")
    await shop.pay(held)
    shop.gateway.says["authorise"] = Report(state=ReportedState.PROCESSING, gateway_id="pi_7")
    await shop.reconcile(seconds=60)
    entries = await shop.store.read_history(held.id)
    kinds = [type_of(entry) for entry in entries]
    assert kinds[:3] == ["booking.held", "booking.paying", "payment.unknown"]
    told = [one for one in await history(shop, held) if "payment.gateway_id" in one]
    assert [one["payment.gateway_id"] for one in told] == [pair(None, "pi_7")]


async def test_an_operators_note_is_in_the_reason_alone(shop: Shop) -> None:
    """What buyers do not read as a reason they do not read as a message either."""
    sold = (await shop.pay(await shop.hold("A1"))).booking
    shop.gateway.refunds = REFUND_REFUSED
    await shop.refund(sold, 500)
    await settle(shop, await shop.payment(sold), SettledAs.KEPT)
    entry, told = (await shop.store.read_history(sold.id))[-1], (await history(shop, sold))[-1]
    assert entry.reason
    assert entry.reason not in str(entry.facts)
    assert told["payment.state"] == pair("needs_attention", "settled")
