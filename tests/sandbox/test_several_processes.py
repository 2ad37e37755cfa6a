"""Sandboxes in the memory of several processes over one database: after a restart, and at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from uuid import UUID

import pytest
from tests.sandbox.support import PRICE

from earmark import config
from earmark.domain import payment as payment_rules
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import (
    PAYING_SECONDS,
    PAYING_SECONDS_MAX,
    Payment,
    PaymentState,
    Refund,
    RefundState,
    SettledAs,
)
from earmark.engine.engine import Engine
from earmark.errors import PaymentDeclined
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.bank import Bank
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import FOREIGN, GONE_AFTER, SandboxGateway
from earmark.sandbox.model import IntentStatus
from earmark.store.sqlite.memory import MemoryStore
from earmark.wiring import gateways

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

    How = Literal["manual", "automatic"]

ACTION = "pm_card_authenticationRequired"
SEATS = ("A1", "A2", "A3", "A4")
ROUNDS = 40


class Process:
    """A server process: its own bank in memory, and the shared database."""

    def __init__(self, store: Store, gateways: dict[str, Gateway], ids: Uuid7Ids) -> None:
        engine = Engine(store, ids=ids)
        self.store = store
        self.earmark = Earmark(engine, mode=Mode.TEST, gateways=gateways)
        self.teller = PaymentDriver(engine, gateways)
        gateway = gateways.get("sandbox")
        self.gateway = gateway if isinstance(gateway, SandboxGateway) else None
        self.bank = self.gateway.bank if self.gateway else None

    def refuse_captures(self) -> None:
        """Make every capture fail without an effect."""
        assert self.gateway is not None
        self.gateway.script.add(Fault.ERROR_BEFORE, "capture", times=None)

    async def paid(self, seat: str, method: str = "pm_card_visa", capture: How | None = None) -> str:
        """Hold a seat and pay for it; returns the booking id."""
        booking = await self.earmark.hold("play", buyer="alice", seats=[seat])
        await self.earmark.pay(booking.id, method=method, capture=capture)
        return booking.id

    async def payment(self, booking: str) -> tuple[Payment, list[Refund]]:
        """The one payment of a booking, and its refunds."""
        [(payment, refunds)] = await self.store.list_payments(BookingId(UUID(booking)))
        return payment, list(refunds)


@pytest.fixture
async def store(clock: MovableClock, ids: Uuid7Ids) -> Store:
    """A database that all processes share."""
    opened = MemoryStore(clock=clock)
    shop = Earmark(Engine(opened, ids=ids), mode=Mode.TEST)
    await shop.create_event("play", name="A play", currency="EUR", seats=dict.fromkeys(SEATS, PRICE))
    return opened


def started(store: Store, clock: MovableClock, ids: Uuid7Ids) -> Process:
    return Process(store, gateways.open_sandbox(clock), ids)


async def test_after_a_restart_no_payment_has_the_id_of_an_older_one(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """A new bank issues ids that no earlier bank issued."""
    first = await started(store, clock, ids).paid("A1")
    second = await started(store, clock, ids).paid("A2")
    process = started(store, clock, ids)
    (one, _), (other, _) = await process.payment(first), await process.payment(second)
    assert one.gateway_id != other.gateway_id


@pytest.mark.parametrize("seed", [None, 0])
async def test_a_refund_is_never_made_from_another_bookings_payment(
    store: Store, clock: MovableClock, ids: Uuid7Ids, seed: int | None
) -> None:
    """The bank that took the money has ended, so the refund waits. With repeated ids it is another buyer's money."""
    first = await Process(store, {"sandbox": SandboxGateway(Sandbox(clock, seed=seed))}, ids).paid("A1")
    restarted = Process(store, {"sandbox": SandboxGateway(Sandbox(clock, seed=seed))}, ids)
    second = await restarted.paid("A2")
    await restarted.earmark.refund(first, amount=PRICE)
    [refund] = (await restarted.payment(first))[1]
    assert restarted.bank is not None
    [theirs] = restarted.bank.intents()
    assert theirs.id == (await restarted.payment(second))[0].gateway_id
    repeated = seed is not None  # the control: ids from a seed repeat
    assert (theirs.refunded == PRICE) is repeated
    assert (refund.state is RefundState.DONE) is repeated


async def test_two_sandboxes_have_different_secrets_and_keys(clock: MovableClock) -> None:
    """The secret is random, unless it is given."""
    one, other = Sandbox(clock), Sandbox(clock)
    assert one.secret != other.secret
    assert one.key != other.key
    assert Sandbox(clock, secret="whsec_ours").secret == "whsec_ours"
    assert Sandbox(clock, seed=7).bank.authorise(amount=1, currency="EUR", method="pm_card_visa").id == (
        Sandbox(clock, seed=7).bank.authorise(amount=1, currency="EUR", method="pm_card_visa").id
    )


async def test_the_secret_of_a_servers_sandbox_can_be_set() -> None:
    """A test outside of the server can then sign callbacks."""
    settings = config.read({"EARMARK_SANDBOX_SECRET": "whsec_ours"})
    gateway = gateways.open_sandbox(secret=settings.sandbox_secret)["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    assert gateway.sandbox.secret == "whsec_ours"


async def test_another_servers_reconciler_leaves_a_test_payment_alone(
    store: Store, clock: MovableClock, ids: Uuid7Ids, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs that another process has the payment; that process then ends it."""
    ours, theirs = started(store, clock, ids), started(store, clock, ids)
    booking = await ours.paid("A1", ACTION)
    assert ours.bank is not None
    for _ in range(10):
        clock.advance(PAYING_SECONDS)
        await theirs.teller.reconcile(limit=100)
    [intent] = ours.bank.intents()
    assert intent.status is IntentStatus.REQUIRES_ACTION, "the money is still set aside, or may come"
    assert (await ours.payment(booking))[0].state is PaymentState.VOIDING
    assert "another process" in caplog.text
    clock.advance(PAYING_SECONDS)
    await ours.teller.reconcile(limit=100)
    assert (await ours.payment(booking))[0].state is PaymentState.VOIDED
    assert ours.bank.intent(intent.id).status is IntentStatus.CANCELED


async def test_payments_of_another_process_do_not_make_the_gateway_count_as_silent(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The process goes on with its own payments."""
    ours, theirs = started(store, clock, ids), started(store, clock, ids)
    for seat in ("A1", "A2", "A3"):
        await ours.paid(seat, ACTION)
    for _ in range(5):
        clock.advance(PAYING_SECONDS)
        await theirs.teller.reconcile(limit=100)
    assert theirs.teller.silent_gateways == []


async def test_a_worker_without_a_sandbox_ends_only_payments_past_their_time(
    store: Store, clock: MovableClock, ids: Uuid7Ids, caplog: pytest.LogCaptureFixture
) -> None:
    """`earmark worker` beside a server frees the seats after an hour, and does not report the money as voided."""
    server = started(store, clock, ids)
    worker = Process(store, gateways.open_gateways(config.read({}), store.accounts), ids)
    booking = await server.paid("A1", ACTION)
    clock.advance(PAYING_SECONDS)
    await worker.teller.reconcile(limit=100)
    assert (await server.payment(booking))[0].state is PaymentState.REQUIRES_ACTION
    clock.advance(PAYING_SECONDS_MAX)
    await worker.teller.reconcile(limit=100)
    assert (await server.payment(booking))[0].state is PaymentState.VOIDING
    assert "this process has no gateway 'sandbox'" in caplog.text


async def test_control_without_the_banks_name_a_foreign_payment_is_voided(
    store: Store, clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bank that accepts every id as its own reports voided for a payment that it never had."""
    ours, theirs = started(store, clock, ids), started(store, clock, ids)
    booking = await ours.paid("A1", ACTION)
    monkeypatch.setattr(Bank, "issued", lambda *_: True)
    for _ in range(10):
        clock.advance(PAYING_SECONDS)
        await theirs.teller.reconcile(limit=100)
    assert (await ours.payment(booking))[0].state is PaymentState.VOIDED
    assert ours.bank is not None
    assert [intent.status for intent in ours.bank.intents()] == [IntentStatus.REQUIRES_ACTION]


async def test_any_process_ends_a_payment_after_a_day(store: Store, clock: MovableClock, ids: Uuid7Ids) -> None:
    """The process of the bank has ended: no test payment stays open for ever."""
    booking = await started(store, clock, ids).paid("A1", ACTION)
    restarted = started(store, clock, ids)
    clock.advance(GONE_AFTER.total_seconds())
    for _ in range(3):
        await restarted.teller.reconcile(limit=100)
        clock.advance(PAYING_SECONDS)
    assert (await restarted.payment(booking))[0].state is PaymentState.VOIDED


async def rounds(process: Process, clock: MovableClock, *, seconds: float) -> int:
    """Run the reconciler over this time; returns how many payments its last run found."""
    found = 0
    for _ in range(ROUNDS):
        clock.advance(seconds / ROUNDS)
        found = await process.teller.reconcile(limit=100)
    return found


async def test_a_refund_of_a_lost_bank_is_refused_after_a_day(store: Store, clock: MovableClock, ids: Uuid7Ids) -> None:
    """After a day the payment needs attention, an operator can settle it, and the reconciler stops."""
    booking = await started(store, clock, ids).paid("A1")
    clock.advance(3 * GONE_AFTER.total_seconds())
    restarted = started(store, clock, ids)
    await restarted.earmark.cancel(booking, refund="full")
    await rounds(restarted, clock, seconds=GONE_AFTER.total_seconds() / 2)
    payment, [refund] = await restarted.payment(booking)
    assert (payment.state, refund.state) == (PaymentState.CAPTURED, RefundState.PENDING), "another process may have it"
    assert await rounds(restarted, clock, seconds=GONE_AFTER.total_seconds()) == 0
    payment, [refund] = await restarted.payment(booking)
    assert (payment.state, payment.code) == (PaymentState.NEEDS_ATTENTION, FOREIGN)
    assert (refund.state, refund.code, payment.refunded) == (RefundState.REFUSED, FOREIGN, 0)
    assert (await store.watch_money(limit=100)).open == 0
    settled = payment_rules.settled(payment, [refund], how=SettledAs.REFUNDED, note="test money")
    assert settled.state is PaymentState.SETTLED


@pytest.mark.parametrize("capture", ["manual", "automatic"])
async def test_every_test_payment_ends_after_a_restart(
    store: Store, clock: MovableClock, ids: Uuid7Ids, capture: How
) -> None:
    """In every state: declined, waiting for its buyer, to be captured, refunded."""
    first = started(store, clock, ids)
    await first.paid("A1", ACTION, capture)
    with pytest.raises(PaymentDeclined):
        await first.paid("A2", "pm_card_declined", capture)
    sold = await first.paid("A3", capture=capture)
    await first.earmark.refund(sold, amount=PRICE)
    first.refuse_captures()
    await first.paid("A4", capture=capture)
    restarted = started(store, clock, ids)
    assert await rounds(restarted, clock, seconds=3 * GONE_AFTER.total_seconds()) == 0
    assert await restarted.teller.seconds_to_next() is None
    assert (await store.watch_money(limit=100)).open == 0


async def test_a_sale_whose_authorisation_was_lost_is_cancelled(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The payment was never captured: the result is that of a refused capture."""
    first = started(store, clock, ids)
    first.refuse_captures()
    booking = await first.paid("A1")
    restarted = started(store, clock, ids)
    await rounds(restarted, clock, seconds=GONE_AFTER.total_seconds() / 2)
    assert (await restarted.earmark.booking(booking)).state == "confirmed", "another process may have it"
    await rounds(restarted, clock, seconds=GONE_AFTER.total_seconds())
    assert (await restarted.payment(booking))[0].state is PaymentState.FAILED
    assert (await restarted.earmark.booking(booking)).state == "cancelled"


async def test_control_without_the_limit_of_a_day_a_refund_never_ends(
    store: Store, clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway waits for the other process for ever."""
    monkeypatch.setattr(SandboxGateway, "_is_gone", lambda *_, **__: False)
    booking = await started(store, clock, ids).paid("A1")
    restarted = started(store, clock, ids)
    await restarted.earmark.cancel(booking, refund="full")
    assert await rounds(restarted, clock, seconds=40 * GONE_AFTER.total_seconds()) == 1
    [refund] = (await restarted.payment(booking))[1]
    assert refund.state is RefundState.PENDING
