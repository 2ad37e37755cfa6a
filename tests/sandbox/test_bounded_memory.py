"""The memory of a sandbox: bounded in a server, unbounded in a test."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.sandbox.payment_methods import Method

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import ReportedRefundState
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.gateway import FORGOTTEN, SandboxGateway
from earmark.sandbox.idempotency_keys import REMEMBERED_FOR, BankAnswer, BankIdempotencyKeys
from earmark.sandbox.model import IntentStatus
from earmark.wiring import gateways

from .support import authorised, captured, order, refund_of

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.gateway import Order

MAX = 20
LOG_MAX = 20


def bounded(clock: MovableClock) -> Sandbox:
    return Sandbox(clock, payments_max=MAX, log_max=LOG_MAX)


async def sold(gateway: SandboxGateway, clock: MovableClock, method: str = Method.VISA) -> Order:
    """A payment that was captured and partly refunded."""
    ordered = order(clock, method)
    report = await gateway.authorise(ordered)
    ordered = msgspec.structs.replace(ordered, gateway_id=report.gateway_id)
    await gateway.capture(ordered)
    await gateway.refund(refund_of(ordered, amount=100))
    return ordered


async def grown(gateway: SandboxGateway, clock: MovableClock, count: int) -> int:
    """How many bytes the process grows by this many payments of every kind."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(count):
        await sold(gateway, clock)
        await gateway.authorise(order(clock, Method.DECLINED))
        await sold(gateway, clock, Method.DISPUTE)
        await gateway.void(order(clock))
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.parametrize("bound", [True, False], ids=["in a server", "the control: all of it"])
async def test_a_server_does_not_grow_with_every_test_payment(clock: MovableClock, *, bound: bool) -> None:
    """The memory does not depend on the number of earlier payments."""
    gateway = SandboxGateway(bounded(clock) if bound else Sandbox(clock), timeout_seconds=60)
    tracemalloc.start()
    try:
        first = await grown(gateway, clock, 4 * MAX)
        more = await grown(gateway, clock, 4 * MAX)
    finally:
        tracemalloc.stop()
    await gateway.close()
    assert (more < first / 4) is bound, (first, more)


async def test_the_sandbox_of_a_server_is_bounded_and_that_of_a_test_is_not(clock: MovableClock) -> None:
    """A test that inspects the whole log makes its own sandbox."""
    server = gateways.open_sandbox(clock)["sandbox"]
    assert isinstance(server, SandboxGateway)
    whole = SandboxGateway(Sandbox(clock))
    for gateway in (server, whole):
        for _ in range(gateways.SANDBOX_LOG_MAX // 2 + 1):
            captured(gateway.bank)
            await gateway.status(order(clock))
    assert len(server.bank.ledger) == len(server.bank.events) == gateways.SANDBOX_LOG_MAX
    assert len(whole.bank.ledger) == gateways.SANDBOX_LOG_MAX + 2
    assert len(server.callbacks.deliveries) == gateways.SANDBOX_LOG_MAX
    assert len(whole.sandbox.pipeline.calls) == gateways.SANDBOX_LOG_MAX // 2 + 1


def test_ended_payments_are_deleted_before_open_ones(clock: MovableClock) -> None:
    """The oldest ended payments are deleted first; when none are left, the oldest of all."""
    bank = bounded(clock).bank
    waiting = authorised(bank, Method.AUTHENTICATION_REQUIRED)
    ended = [captured(bank) for _ in range(2 * MAX)]
    known = {intent.id for intent in bank.intents()}
    assert waiting.id in known
    assert {intent.id for intent in ended[-MAX // 2 :]} <= known
    assert ended[0].id not in known
    open_ones = [authorised(bank) for _ in range(3 * MAX)]
    known = {intent.id for intent in bank.intents()}
    assert waiting.id not in known
    assert open_ones[-1].id in known
    assert len(known) <= MAX + MAX // 10 + 1
    clock.advance(timedelta(days=8).total_seconds())
    assert {intent.status for intent in bank.intents()} == {IntentStatus.CANCELED}


async def test_a_deleted_payment_reaches_a_final_state(clock: MovableClock) -> None:
    """Every report about it is final, so the reconciler stops."""
    gateway = SandboxGateway(bounded(clock), timeout_seconds=60)
    old = await sold(gateway, clock)
    for _ in range(2 * MAX):
        await sold(gateway, clock)
    report = await gateway.refund(refund_of(old, amount=100))
    assert (report.state, report.code) == (ReportedRefundState.REFUSED, FORGOTTEN.code)
    assert await gateway.refund_status(refund_of(old, amount=100)) is None
    assert (await gateway.status(old)).state is ReportedState.ABSENT
    assert (await gateway.capture(old)).state is ReportedState.VOIDED
    await gateway.close()


def test_a_key_is_deleted_after_a_day(clock: MovableClock) -> None:
    """The oldest keys are deleted earlier when there are too many."""
    keys = BankIdempotencyKeys(clock, keys_max=MAX)
    for number in range(3):
        assert keys.begin(str(number), b"") is None
        keys.finish(str(number), BankAnswer())
    assert len(keys) == 3
    clock.advance(REMEMBERED_FOR.total_seconds())
    assert keys.begin("new", b"") is None
    assert len(keys) == 1
    for number in range(2 * MAX):
        keys.begin(f"more {number}", b"")
    assert len(keys) == MAX
    keys.finish("new", BankAnswer())
    assert keys.begin("new", b"") is None, "a deleted key can be used again"
