"""Each step about payments, refunds and callbacks does the same on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark.domain.payment import Payment, PaymentState, Refund, RefundState
from earmark.engine.ports.store import Changes

from .payment_support import REFUSED, PaymentShop, until_a_transaction_waits
from .steps_support import BOB, count

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.id_types import PaymentId
    from earmark.engine.ports.store import Store, Transaction
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

AT = datetime(2031, 5, 4, 3, 2, 1, 123_457, tzinfo=UTC)


@pytest.fixture
async def payments(store: Store, clock: MovableClock, ids: Uuid7Ids) -> PaymentShop:
    payments = PaymentShop(store, clock=clock, ids=ids)
    await payments.open()
    return payments


@pytest.fixture
async def postgres_till(postgres_store: PostgresStore, clock: MovableClock, ids: Uuid7Ids) -> PaymentShop:
    payments = PaymentShop(postgres_store, clock=clock, ids=ids)
    await payments.open()
    return payments


def unset(value: Payment | Refund) -> set[str]:
    """The fields that have their defaults."""
    return {field.name for field in msgspec.structs.fields(value) if getattr(value, field.name) == field.default}


# -- payments and refunds -----------------------------------------------------------------------------------------


async def test_a_payment_and_its_refunds_come_back_as_they_were_written(payments: PaymentShop) -> None:
    """Every field survives: moments to the microsecond, large amounts, and text as it is."""
    held = await payments.hold("A1", "A2")
    told: dict[str, Any] = {"gateway_id": "pi_é", "code": "do_not_honour", "message": 'Said "no";\n∅', "tries": 3}
    told |= {"due_at": AT, "processed_at": AT + timedelta(microseconds=3)}
    acted = {"action": {"url": "https://bank/é?a=1&b=2", "kind": "redirect"}, "return_url": "https://shop/back?x='"}
    new = await payments.pay(held, amount=2**53 + 1, automatic=True, created_at=AT, **told, **acted)
    assert await payments.read(new) == new
    taken = await payments.step_on(new, state=PaymentState.CAPTURED, captured=2**53, refunding=0)
    first = payments.refund(taken, 7, reason="rain & wind", created_at=AT)
    second = payments.refund(taken, 2**52, created_at=AT + timedelta(microseconds=1))
    owing = await payments.step_on(taken, second, first, refunding=7 + 2**52)
    made = msgspec.structs.replace(first, state=RefundState.DONE, gateway_id="re_é", code="late", processed_at=AT)
    paid = await payments.step_on(owing, made, state=PaymentState.PARTIALLY_REFUNDED, refunded=7)
    paid = await payments.step_on(paid, state=PaymentState.NEEDS_ATTENTION, refunded_elsewhere=2**52)
    about = await payments.store.read_payment_snapshot(new.id)
    assert about is not None
    assert (unset(paid), unset(made)) == (set(), set())
    assert (about.payment, list(about.refunds), about.booking) == (paid, [made, second], held)
    assert about.payment.created_at.utcoffset() == timedelta(0)
    assert await payments.step(lambda tx: tx.lock_payments([new.id])) == {new.id: paid}
    assert await payments.step(lambda tx: tx.read_refunds(new.id)) == [made, second]
    assert await payments.store.list_payments(held.id) == [(paid, [made, second])]


async def test_what_is_no_longer_so_is_written_too(payments: PaymentShop) -> None:
    """None takes the place of a value, and an empty action stays one."""
    told: dict[str, Any] = {"gateway_id": "pi_1", "code": "odd", "message": "Odd.", "due_at": AT}
    payment = await payments.pay(await payments.hold("A1"), action={"url": "https://bank"}, tries=2, **told)
    emptied = await payments.step_on(payment, action={})
    assert await payments.read(payment) == emptied
    cleared = await payments.step_on(emptied, action=None, tries=0, **dict.fromkeys(told))
    assert await payments.read(payment) == cleared
    assert cleared.due_at is None


async def test_payments_that_are_not_there_are_not_found(payments: PaymentShop) -> None:
    """Unknown ids are left out, and nothing asked is nothing found."""
    known, unknown = await payments.pay(await payments.hold("A1")), payments.ids.payment_id()
    assert await payments.step(lambda tx: tx.lock_payments([unknown, known.id])) == {known.id: known}
    assert await payments.step(lambda tx: tx.lock_payments([unknown])) == {}
    assert await payments.step(lambda tx: tx.lock_payments([])) == {}
    assert await payments.step(lambda tx: tx.read_refunds(unknown)) == []
    assert await payments.store.read_payment_snapshot(unknown) is None
    assert await payments.store.list_payments(payments.ids.booking_id()) == []


async def test_payments_are_listed_by_age_each_with_its_refunds(payments: PaymentShop) -> None:
    """Whatever the order in which they were written, and without those of other bookings."""
    held, other = await payments.hold("A1"), await payments.hold("A2", buyer=BOB)
    now = payments.clock.now()
    younger = await payments.take(held, created_at=now + timedelta(seconds=2))
    older = await payments.take(held, created_at=now)
    elder = await payments.take(other, created_at=now)
    refunds = [payments.refund(younger, 10, created_at=now + timedelta(seconds=second)) for second in (3, 1, 2)]
    younger = await payments.step_on(younger, *refunds, refunding=30)
    strange = payments.refund(elder, 5)
    elder = await payments.step_on(elder, strange, refunding=5)
    by_age = [refunds[1], refunds[2], refunds[0]]
    assert await payments.store.list_payments(held.id) == [(older, []), (younger, by_age)]
    assert await payments.store.list_payments(other.id) == [(elder, [strange])]
    assert await payments.step(lambda tx: tx.read_refunds(younger.id)) == by_age


async def test_a_payment_that_moved_meanwhile_is_not_written(payments: PaymentShop) -> None:
    """The version says so, and nothing of the transaction is kept."""
    held = await payments.hold("A1")
    first = await payments.pay(held)
    second = await payments.step_on(first, state=PaymentState.UNKNOWN)
    noted = msgspec.structs.replace(held, version=2)
    for stale in (
        msgspec.structs.replace(first, state=PaymentState.FAILED, version=2),
        msgspec.structs.replace(first, state=PaymentState.FAILED, version=4),
        msgspec.structs.replace(first, code="twice"),
        payments.payment(held, version=2),
    ):
        with pytest.raises(REFUSED):
            await payments.write(Changes(moved=[noted], payments=[stale]))
    assert await payments.store.list_payments(held.id) == [(second, [])]
    assert (await payments.store.read_booking(held.id))[1] == held


WRONG: dict[str, tuple[dict[str, Any], int]] = {
    "more owed than taken": ({"refunding": 1001}, 0),
    "more given back than owed": ({"refunded": 701}, 0),
    "another amount taken": ({"captured": 900}, 0),
    "a debt forgotten": ({"refunding": 650}, 0),
    "a refund unmade": ({"refunded": 500}, 0),
    "a move along no edge": ({"state": PaymentState.VOIDED}, 0),
    "a refund that is not owed": ({}, 1),
    "a refund of nothing": ({}, 0),
    "a refund decided again": ({}, 0),
    "a refund that is made as it begins": ({"refunding": 800}, 100),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_write_that_breaks_the_law_of_the_money_is_refused(payments: PaymentShop, wrong: str) -> None:
    """It is our bug, and no store keeps any of it."""
    taken = await payments.take(await payments.hold("A1"))
    back, more = payments.refund(taken, 600), payments.refund(taken, 100)
    owing = await payments.step_on(taken, back, more, refunding=700)
    made = msgspec.structs.replace(back, state=RefundState.DONE)
    paid = await payments.step_on(owing, made, state=PaymentState.PARTIALLY_REFUNDED, refunded=600)
    fields, amount = WRONG[wrong]
    after = msgspec.structs.replace(paid, version=paid.version + 1, **fields)
    refunds = {
        "a refund that is not owed": [payments.refund(paid, amount)],
        "a refund of nothing": [payments.refund(paid, amount)],
        "a refund decided again": [msgspec.structs.replace(made, state=RefundState.REFUSED)],
        "a refund that is made as it begins": [payments.refund(paid, amount, state=RefundState.DONE)],
    }.get(wrong, [])
    with pytest.raises(REFUSED):
        await payments.write(Changes(payments=[after], refunds=refunds))
    assert await payments.store.list_payments(taken.booking_id) == [(paid, [made, more])]


@pytest.mark.parametrize("fields", [{"captured": 1}, {"state": PaymentState.AUTHORISED}, {"amount": 0}], ids=str)
async def test_a_payment_begins_with_nothing_but_what_is_asked(payments: PaymentShop, fields: dict[str, Any]) -> None:
    """It is written before its gateway is called."""
    held = await payments.hold("A1")
    with pytest.raises(REFUSED):
        await payments.pay(held, **fields)
    assert await payments.store.list_payments(held.id) == []


async def test_no_more_is_taken_than_was_asked(payments: PaymentShop) -> None:
    """Whatever a gateway says."""
    payment = await payments.pay(await payments.hold("A1"))
    with pytest.raises(REFUSED):
        await payments.step_on(payment, state=PaymentState.CAPTURED, captured=payment.amount + 1)
    assert await payments.read(payment) == payment


async def test_locking_a_payment_waits_for_the_transaction_that_changes_it(
    postgres_till: PaymentShop, postgres_store: PostgresStore
) -> None:
    """And then reads it as it is, not as it was."""
    payments = postgres_till
    payment = await payments.pay(await payments.hold("A1"))
    after = msgspec.structs.replace(payment, state=PaymentState.UNKNOWN, version=2)
    waiting: list[asyncio.Task[dict[PaymentId, Payment]]] = []

    async def change(tx: Transaction) -> None:
        await tx.lock_payments([payment.id])
        waiting.append(asyncio.create_task(payments.step(lambda tx: tx.lock_payments([payment.id]))))
        await until_a_transaction_waits(postgres_store)
        await tx.write(Changes(payments=[after]))

    await payments.step(change)
    assert await waiting[0] == {payment.id: after}


# -- callbacks ----------------------------------------------------------------------------------------------------


async def test_a_callback_is_taken_once(payments: PaymentShop) -> None:
    """By each gateway's own name for it; the second to bring it learns that it was known."""
    payment = await payments.pay(await payments.hold("A1"))

    async def take(tx: Transaction) -> list[bool]:
        names = [("bank", "evt_1"), ("bank", "evt_1"), ("bank", "evt_2"), ("purse", "evt_1")]
        new = [await tx.take_callback(*name, payment_id=payment.id) for name in names]
        await tx.write(Changes())
        return new

    assert await payments.step(take) == [True, False, True, True]
    assert await payments.step(take) == [False, False, False, False]
    assert await count(payments.store, "callbacks") == 3


async def test_a_callback_is_forgotten_with_its_transaction(payments: PaymentShop) -> None:
    """Nothing came of it, so that it may be brought again."""
    payment = await payments.pay(await payments.hold("A1"))
    stale = msgspec.structs.replace(payment, version=7)

    async def take(tx: Transaction) -> None:
        assert await tx.take_callback("bank", "evt_1", payment_id=payment.id)
        await tx.write(Changes(payments=[stale]))

    for _ in range(2):
        with pytest.raises(REFUSED):
            await payments.step(take)
    assert await count(payments.store, "callbacks") == 0


async def test_a_callback_that_two_bring_at_once_is_taken_by_one(
    postgres_till: PaymentShop, postgres_store: PostgresStore
) -> None:
    """The second waits until the first has committed, and then knows."""
    payments = postgres_till
    payment = await payments.pay(await payments.hold("A1"))
    second: list[asyncio.Task[bool]] = []

    async def take(tx: Transaction) -> bool:
        new = await tx.take_callback("bank", "evt_1", payment_id=payment.id)
        if not second:
            second.append(asyncio.create_task(payments.step(take)))
            await until_a_transaction_waits(postgres_store)
        await tx.write(Changes())
        return new

    assert await payments.step(take)
    assert not await second[0]
