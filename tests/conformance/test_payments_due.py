"""Payments that a reconciler or an operator must look at are found and claimed alike on every store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState

from .payment_support import PaymentShop

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.id_types import PaymentId
    from earmark.engine.ports.store import Store, Transaction
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

LEASE = 600.0


@pytest.fixture
async def till(store: Store, clock: MovableClock, ids: Uuid7Ids) -> PaymentShop:
    till = PaymentShop(store, clock=clock, ids=ids)
    await till.open()
    return till


@pytest.fixture
async def postgres_till(postgres_store: PostgresStore, clock: MovableClock, ids: Uuid7Ids) -> PaymentShop:
    till = PaymentShop(postgres_store, clock=clock, ids=ids)
    await till.open()
    return till


async def test_due_payments_are_claimed_the_longest_due_first(till: PaymentShop) -> None:
    """As many as are asked for, and none before its time."""
    ago = [40, 90, 10, 70, 20, 80, 30, 60, 50, 100]
    payments = await till.due(*ago, -3600)
    idle = await till.pay(await till.hold("A2"))
    in_order = [payments[ago.index(seconds)].id for seconds in sorted(ago, reverse=True)]
    assert await _claim(till, limit=3) == in_order[:3]
    assert await _claim(till, limit=0) == []
    assert await _claim(till, limit=100) == in_order[3:]
    assert await _claim(till, limit=100) == []
    assert await till.read(idle) == idle


async def test_a_claimed_payment_is_left_alone_for_its_lease(till: PaymentShop) -> None:
    """Then it is given again. Nothing else about it changes: who writes it next needs no other version."""
    [payment] = await till.due(10)
    assert await _claim(till) == [payment.id]
    assert await _claim(till) == []
    leased = await till.read(payment)
    assert leased is not None
    assert leased.due_at is not None
    assert leased.due_at - till.clock.now() > timedelta(seconds=LEASE / 2)
    assert msgspec.structs.replace(leased, due_at=payment.due_at) == payment
    till.clock.advance(LEASE)
    assert await _claim(till) == [payment.id]
    done = await till.step_on(payment, state=PaymentState.FAILED, due_at=None)
    till.clock.advance(LEASE)
    assert (await _claim(till), await till.read(payment)) == ([], done)


async def test_control_a_lease_of_nothing_gives_the_same_payment_again(till: PaymentShop) -> None:
    """So it is the lease that keeps others away."""
    [payment] = await till.due(10)
    assert [await _claim(till, lease_seconds=-1) for _ in range(2)] == [[payment.id]] * 2


async def test_no_reconciler_is_given_a_payment_that_another_has(till: PaymentShop) -> None:
    """Several ask at once, again and again, until nothing is left."""
    payments = await till.due(*range(1, 41))
    given: list[PaymentId] = []
    while any(claimed := await asyncio.gather(*(_claim(till, limit=7) for _ in range(4)))):
        given += chain(*claimed)
    assert sorted(given) == sorted(payment.id for payment in payments)


async def test_a_payment_that_a_transaction_is_changing_is_passed_over(postgres_till: PaymentShop) -> None:
    """No reconciler waits for it: it is claimed once it is free, if it is then still due."""
    till = postgres_till
    first, second = await till.due(20, 10)

    async def hold_it(tx: Transaction) -> list[PaymentId]:
        await tx.lock_payments([first.id])
        return await _claim(till)

    assert await till.step(hold_it) == [second.id]
    assert await _claim(till) == [first.id]


async def test_payments_of_other_gateways_are_left_to_others(till: PaymentShop) -> None:
    """Who names gateways is given theirs alone, and none when none is named; who names nothing is given all."""
    held, ago = await till.hold("A1"), till.clock.now() - timedelta(seconds=60)
    bank, purse, vault = [await till.pay(held, gateway=name, due_at=ago) for name in ("bank", "purse", "vault")]
    assert await till.store.claim_payments(limit=9, lease_seconds=LEASE, gateways=[]) == []
    assert await till.store.claim_payments(limit=1, lease_seconds=LEASE, gateways=["vault"]) == [vault.id]
    assert await till.store.claim_payments(limit=9, lease_seconds=LEASE, gateways=["purse", "vault"]) == [purse.id]
    assert await _claim(till) == [bank.id]


async def test_what_is_undecided_after_an_hour_is_given_to_any_reconciler(till: PaymentShop) -> None:
    """Giving it up needs no gateway, which may be gone. A decided one waits for its gateway."""
    held, ago = await till.hold("A1"), till.clock.now() - timedelta(seconds=60)
    open_one, failed = [await till.pay(held, gateway="gone", due_at=ago) for _ in range(2)]
    await till.step_on(failed, state=PaymentState.FAILED)
    till.clock.advance(3599)
    assert await till.store.claim_payments(limit=9, lease_seconds=LEASE, gateways=["bank"]) == []
    till.clock.advance(2)
    assert await till.store.claim_payments(limit=9, lease_seconds=LEASE, gateways=["bank"]) == [open_one.id]


async def test_the_next_payment_is_known_ahead(till: PaymentShop) -> None:
    """In seconds; zero or less when it is due, none when nothing is under way."""
    assert await till.store.seconds_to_next_payment() is None
    held = await till.hold("A1")
    await till.pay(held)
    assert await till.store.seconds_to_next_payment() is None
    later = await till.pay(held, due_at=till.clock.now() + timedelta(hours=2))
    assert 7000 < (await till.store.seconds_to_next_payment() or 0) <= 7200
    sooner = await till.pay(held, due_at=till.clock.now() + timedelta(hours=1))
    assert 3400 < (await till.store.seconds_to_next_payment() or 0) <= 3600
    till.clock.advance(3600)
    assert (await till.store.seconds_to_next_payment() or 0) <= 0
    await till.step_on(sooner, state=PaymentState.FAILED, due_at=None)
    assert 3000 < (await till.store.seconds_to_next_payment() or 0) <= 3600
    await till.step_on(later, state=PaymentState.FAILED, due_at=None)
    assert await till.store.seconds_to_next_payment() is None


async def test_payments_that_need_an_operator_are_listed_by_age(till: PaymentShop) -> None:
    """As many as are asked for, and none that goes on by itself."""
    held, now = await till.hold("A1"), till.clock.now()
    flagged = [
        await till.step_on(
            await till.pay(held, created_at=now + timedelta(seconds=seconds)),
            state=PaymentState.NEEDS_ATTENTION,
            code="undecided",
        )
        for seconds in (2, 3, 1)
    ]
    await till.take(held)
    by_age = [flagged[2], flagged[0], flagged[1]]
    assert await till.store.list_attention(limit=9) == by_age
    assert await till.store.list_attention(limit=2) == by_age[:2]
    await till.step_on(flagged[2], state=PaymentState.FAILED)
    assert await till.store.list_attention(limit=9) == by_age[1:]


async def test_the_payments_of_one_mode_are_counted_alone(till: PaymentShop) -> None:
    """What needs an operator and what is open, of test payments, of live ones, and of both."""
    rehearsal = await till.open(till.event(EventId("rehearsal"), mode=Mode.TEST))
    tried = till.booking("A1", event_id=rehearsal.id, mode=Mode.TEST)
    await till.write(till.taking(tried))
    flagged = [
        await till.step_on(await till.pay(booking), state=PaymentState.NEEDS_ATTENTION, code="undecided")
        for booking in (await till.hold("A1"), tried)
    ]
    await till.pay(tried, due_at=till.clock.now())
    store = till.store
    assert [one.id for one in await store.list_attention(limit=9, mode=Mode.LIVE)] == [flagged[0].id]
    assert [one.id for one in await store.list_attention(limit=9, mode=Mode.TEST)] == [flagged[1].id]
    assert len(await store.list_attention(limit=9)) == 2
    seen = {mode: await store.watch_money(limit=9, mode=mode) for mode in (Mode.LIVE, Mode.TEST, None)}
    assert {mode: sum(watch.attention.values()) for mode, watch in seen.items()} == {"live": 1, "test": 1, None: 2}
    assert {mode: watch.open for mode, watch in seen.items()} == {"live": 0, "test": 1, None: 1}


async def _claim(till: PaymentShop, *, limit: int = 100, lease_seconds: float = LEASE) -> list[PaymentId]:
    return await till.store.claim_payments(limit=limit, lease_seconds=lease_seconds)
