"""Every fault, with the gateway in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.sandbox.payment_methods import Method

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewayRefused, GatewaySilent, Order, Report, ReportedRefundState
from earmark.sandbox.call_pipeline import ReplyLost
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.model import BankIntent, BankRefusal, LedgerMove, RefusalKind, ScriptedOutcome

from .support import DAY, PRICE, authorised, order, refund_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from earmark.clock import MovableClock
    from earmark.sandbox.assemble_sandbox import Sandbox

SHORT_TIMEOUT = 0.05
"""A short timeout, for an answer that never arrives."""
BEFORE = [Fault.ERROR_BEFORE, Fault.RATE_LIMIT, Fault.HANG]
AFTER = [Fault.ERROR_AFTER, Fault.REPLY_LOST, Fault.HANG_AFTER]


async def silent(call: Awaitable[object]) -> None:
    with pytest.raises(GatewaySilent):
        await call


async def ready(gateway: SandboxGateway, name: str, method: str = Method.VISA) -> Order:
    """A payment in the state that this call needs."""
    ordered = order(gateway.sandbox.clock, method)
    if name in {"capture", "void", "refund"}:
        await gateway.authorise(ordered)
    if name == "refund":
        await gateway.capture(ordered)
    return ordered


CALLS = {
    "authorise": (LedgerMove.AUTHORISED, SandboxGateway.authorise),
    "capture": (LedgerMove.CAPTURED, SandboxGateway.capture),
    "void": (LedgerMove.VOIDED, SandboxGateway.void),
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
async def test_a_repeated_call_after_a_lost_answer_has_one_effect(
    gateway: SandboxGateway, name: str, fault: Fault
) -> None:
    """Only the ledger shows whether the first call had its effect."""
    move, call = CALLS[name]
    ordered = await ready(gateway, name)
    gateway.script.add(fault, name)
    gateway.timeout_seconds = SHORT_TIMEOUT if fault in {Fault.HANG, Fault.HANG_AFTER} else 60
    await silent(call(gateway, ordered))
    assert gateway.bank.total(move) == (PRICE if fault in AFTER else 0)
    gateway.timeout_seconds = 60
    await call(gateway, ordered)
    assert gateway.bank.total(move) == PRICE


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
async def test_a_refund_whose_answer_was_lost_is_made_once(gateway: SandboxGateway, fault: Fault) -> None:
    """The same rule for refunds."""
    refund = refund_of(await ready(gateway, "refund"), 1000)
    gateway.script.add(fault, "refund")
    gateway.timeout_seconds = SHORT_TIMEOUT if fault in {Fault.HANG, Fault.HANG_AFTER} else 60
    await silent(gateway.refund(refund))
    gateway.timeout_seconds = 60
    known = await gateway.refund_status(refund)
    assert (known is not None) is (fault in AFTER)
    assert (await gateway.refund(refund)).state is ReportedRefundState.DONE
    assert gateway.bank.total(LedgerMove.REFUNDED) == 1000


async def test_without_a_key_a_repeat_would_charge_twice(sandbox: Sandbox) -> None:
    """The control: the ledger does show a double charge when there is one."""
    for _ in range(2):
        sandbox.bank.authorise(amount=PRICE, currency="EUR", method=Method.VISA)
    assert sandbox.bank.total(LedgerMove.AUTHORISED) == 2 * PRICE


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
async def test_a_sticky_error_is_repeated_for_a_day(gateway: SandboxGateway, clock: MovableClock, fault: Fault) -> None:
    """Some gateways repeat a 500 for its key: only the status shows what happened."""
    gateway.script.sticky_errors = True
    gateway.script.add(fault, "authorise")
    ordered = order(clock)
    for _ in range(3):
        await silent(gateway.authorise(ordered))
    happened = fault is Fault.ERROR_AFTER
    state = ReportedState.AUTHORISED if happened else ReportedState.ABSENT
    assert (await gateway.status(ordered)).state is state
    assert gateway.bank.total(LedgerMove.AUTHORISED) == (PRICE if happened else 0)
    clock.advance(DAY)
    assert (await gateway.authorise(ordered)).state is ReportedState.AUTHORISED


async def test_an_error_that_is_not_sticky_is_not_repeated(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The control of the test above."""
    gateway.script.add(Fault.ERROR_BEFORE, "authorise")
    ordered = order(clock)
    await silent(gateway.authorise(ordered))
    assert (await gateway.authorise(ordered)).state is ReportedState.AUTHORISED


async def test_a_scripted_decline_is_final(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The decline is stored under the key."""
    gateway.script.add(Fault.DECLINE, "authorise")
    ordered = order(clock)
    for _ in range(2):
        report = await gateway.authorise(ordered)
        assert (report.state, report.code) == (ReportedState.DECLINED, "card_declined")
    assert not gateway.bank.ledger


async def test_a_scripted_decline_of_a_capture_voids_the_authorisation(gateway: SandboxGateway) -> None:
    """Nothing is captured."""
    ordered = await ready(gateway, "capture")
    gateway.script.add(Fault.DECLINE, "capture")
    assert (await gateway.capture(ordered)).state is ReportedState.DECLINED
    assert (await gateway.capture(ordered)).state is ReportedState.DECLINED
    assert gateway.bank.total(LedgerMove.CAPTURED) == 0


async def test_a_scripted_decline_of_a_refund_is_repeated(gateway: SandboxGateway) -> None:
    """Each call reports refused, and nothing is paid."""
    refund = refund_of(await ready(gateway, "refund"))
    gateway.script.add(Fault.DECLINE, "refund")
    for _ in range(2):
        assert (await gateway.refund(refund)).state is ReportedRefundState.REFUSED
    assert gateway.bank.total(LedgerMove.REFUNDED) == 0


@pytest.mark.parametrize("automatic", [True, False])
async def test_money_can_arrive_after_a_decline(
    gateway: SandboxGateway, clock: MovableClock, *, automatic: bool
) -> None:
    """A declined payment is authorised later, even if it was voided meanwhile."""
    gateway.script.add(Fault.LATE_SUCCESS, "authorise")
    ordered = order(clock, automatic=automatic)
    assert (await gateway.authorise(ordered)).state is ReportedState.DECLINED
    assert (await gateway.void(ordered)).state is ReportedState.VOIDED
    assert not gateway.bank.ledger
    assert len(gateway.bank.land()) == 1
    report = await gateway.status(ordered)
    assert report.state is (ReportedState.CAPTURED if automatic else ReportedState.AUTHORISED)
    assert gateway.bank.total(LedgerMove.CAPTURED) == report.captured == (PRICE if automatic else 0)
    assert gateway.bank.land() == []


async def test_late_money_arrives_by_the_clock(gateway: SandboxGateway, clock: MovableClock) -> None:
    """After the seconds of its rule."""
    gateway.script.add(Fault.LATE_SUCCESS, "authorise", seconds=600)
    ordered = order(clock)
    assert (await gateway.authorise(ordered)).state is ReportedState.DECLINED
    assert (await gateway.status(ordered)).state is ReportedState.DECLINED
    clock.advance(600)
    assert (await gateway.status(ordered)).state is ReportedState.AUTHORISED


async def test_a_capture_can_take_effect_after_its_decline(gateway: SandboxGateway) -> None:
    """The amount is captured once."""
    ordered = await ready(gateway, "capture")
    gateway.script.add(Fault.LATE_SUCCESS, "capture")
    assert (await gateway.capture(ordered)).state is ReportedState.DECLINED
    gateway.bank.land()
    assert (await gateway.status(ordered)).state is ReportedState.CAPTURED
    assert gateway.bank.total(LedgerMove.CAPTURED) == PRICE


async def test_a_voided_payment_can_become_authorised_again(gateway: SandboxGateway) -> None:
    """A second void ends it."""
    ordered = await ready(gateway, "void")
    gateway.script.add(Fault.LATE_SUCCESS, "void")
    assert (await gateway.void(ordered)).state is ReportedState.VOIDED
    gateway.bank.land()
    assert (await gateway.status(ordered)).state is ReportedState.AUTHORISED
    assert (await gateway.void(ordered)).state is ReportedState.VOIDED


async def test_a_slow_bank_charges_a_client_that_timed_out(sandbox: Sandbox, clock: MovableClock) -> None:
    """The effect happens after the timeout."""
    gateway = SandboxGateway(sandbox, timeout_seconds=0)
    sandbox.script.add(Fault.SLOW, "authorise", seconds=0.01)
    await silent(gateway.authorise(order(clock)))
    assert not sandbox.bank.ledger
    await asyncio.wait(gateway._running)
    assert sandbox.bank.total(LedgerMove.AUTHORISED) == PRICE
    await gateway.close()


async def test_a_slow_answer_arrives_after_the_callback(sandbox: Sandbox, clock: MovableClock) -> None:
    """The effect happens before the answer."""
    gateway = SandboxGateway(sandbox, timeout_seconds=0.05)
    sandbox.script.add(Fault.SLOW_AFTER, "authorise", seconds=600)
    await silent(gateway.authorise(order(clock)))
    assert sandbox.bank.total(LedgerMove.AUTHORISED) == PRICE
    assert [delivery.event.kind for delivery in sandbox.callbacks.deliveries][
        -1
    ] == "payment_intent.amount_capturable_updated"
    await gateway.close()


async def test_a_repeat_of_a_call_in_progress_is_refused(sandbox: Sandbox, clock: MovableClock) -> None:
    """Two concurrent calls with one key have one effect; the second gets no outcome."""
    gateway = SandboxGateway(sandbox, timeout_seconds=SHORT_TIMEOUT)
    sandbox.script.add(Fault.SLOW, "authorise", seconds=600)
    ordered = order(clock)
    await silent(gateway.authorise(ordered))
    gateway.timeout_seconds = 60
    await silent(gateway.authorise(ordered))
    assert [call.outcome for call in sandbox.pipeline.calls] == ["in progress", "idempotency_key_in_use"]
    await gateway.close()
    # The call in progress was cancelled and had no effect.
    assert (await gateway.authorise(ordered)).state is ReportedState.AUTHORISED
    assert sandbox.bank.total(LedgerMove.AUTHORISED) == PRICE


async def test_a_hanging_call_does_not_free_the_key_of_its_retry(sandbox: Sandbox) -> None:
    """A retry after a hang owns the key, also after the first call has ended."""
    given_up = asyncio.Event()

    async def client_gave_up() -> None:
        await given_up.wait()

    def call() -> asyncio.Task[object]:
        def work(_: ScriptedOutcome) -> BankIntent:
            return authorised(sandbox.bank)

        return asyncio.ensure_future(
            sandbox.pipeline.change("authorise", work, key="one", params=None, client_gave_up=client_gave_up)
        )

    sandbox.script.add(Fault.HANG, "authorise")
    sandbox.script.add(Fault.SLOW, "authorise", seconds=600)
    hung = call()
    await asyncio.sleep(0)
    slow = call()
    await asyncio.sleep(0)
    given_up.set()
    with pytest.raises(ReplyLost):
        await hung
    with pytest.raises(BankRefusal) as refused:
        await call()
    assert refused.value.kind is RefusalKind.IN_PROGRESS
    slow.cancel()
    await asyncio.wait([slow])
    assert not sandbox.bank.ledger


async def test_a_call_that_hangs_can_be_cancelled(gateway: SandboxGateway, clock: MovableClock) -> None:
    """A caller may have its own timeout."""
    gateway.script.add(Fault.HANG, "authorise")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_TIMEOUT):
            await gateway.authorise(order(clock))
    assert not gateway.bank.ledger


async def test_the_same_key_with_other_parameters_is_refused(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The refused calls have no effect."""
    ordered = order(clock)
    await gateway.authorise(ordered)
    for changed in ({"amount": 1}, {"currency": "USD"}, {"method": Method.DISPUTE}, {"automatic": True}):
        with pytest.raises(GatewayRefused) as refused:
            await gateway.authorise(msgspec.structs.replace(ordered, **changed))
        assert refused.value.code == "idempotency_error"
    assert gateway.bank.total(LedgerMove.AUTHORISED) == PRICE


async def test_a_key_is_deleted_after_a_day(gateway: SandboxGateway, clock: MovableClock) -> None:
    """After that the same create is another charge, so Earmark must not repeat a create so late."""
    ordered = order(clock)
    first = await gateway.authorise(ordered)
    clock.advance(DAY - 60)
    assert (await gateway.authorise(ordered)).gateway_id == first.gateway_id
    clock.advance(60)
    assert (await gateway.authorise(ordered)).gateway_id != first.gateway_id
    assert gateway.bank.total(LedgerMove.AUTHORISED) == 2 * PRICE


async def test_a_refund_is_made_once_even_after_its_key_was_deleted(
    gateway: SandboxGateway, clock: MovableClock
) -> None:
    """A refund that is requested again days later is found by our id."""
    refund = refund_of(await ready(gateway, "refund"), 1000)
    first = await gateway.refund(refund)
    clock.advance(3 * DAY)
    assert await gateway.refund(refund) == first
    assert gateway.bank.total(LedgerMove.REFUNDED) == 1000


async def test_a_wrong_call_is_not_stored_under_its_key(gateway: SandboxGateway, clock: MovableClock) -> None:
    """A correct call can use the same key."""
    ordered = order(clock, method="pm_card_gold")
    with pytest.raises(GatewayRefused):
        await gateway.authorise(ordered)
    report = await gateway.authorise(msgspec.structs.replace(ordered, method=Method.VISA))
    assert report.state is ReportedState.AUTHORISED


async def test_every_call_is_recorded(gateway: SandboxGateway, clock: MovableClock) -> None:
    """With its name, key, fault and outcome."""
    ordered = order(clock)
    gateway.script.add(Fault.REPLY_LOST, "authorise")
    await silent(gateway.authorise(ordered))
    await gateway.authorise(ordered)
    await gateway.status(ordered)
    calls = list(gateway.sandbox.pipeline.calls)
    assert [(call.number, call.name, call.fault, call.outcome, call.replayed) for call in calls] == [
        (1, "authorise", Fault.REPLY_LOST, "lost", False),
        (2, "authorise", None, "answered", True),
        (3, "status", None, "answered", False),
    ]
    assert {call.key for call in calls[:2]} == {str(ordered.payment_id)}


async def test_reads_can_fail_too(gateway: SandboxGateway, clock: MovableClock) -> None:
    """Status, refund status and the list of payments are calls like any other."""
    refund = refund_of(await ready(gateway, "refund"))
    for name in ("status", "refund_status", "list"):
        gateway.script.add(Fault.ERROR_BEFORE, name)
    await silent(gateway.status(refund.payment))
    await silent(gateway.refund_status(refund))
    with pytest.raises(GatewaySilent):
        async for _ in gateway.books(since=clock.now()):
            pass


async def test_a_payment_that_needs_an_action_has_its_url(gateway: SandboxGateway, clock: MovableClock) -> None:
    """After the action the report has no URL."""
    ordered = order(clock, Method.AUTHENTICATION_REQUIRED)
    report: Report = await gateway.authorise(ordered)
    assert report.action is not None
    assert report.gateway_id is not None
    assert report.gateway_id in report.action["url"]
    gateway.bank.act(report.gateway_id, succeed=True)
    assert (await gateway.status(ordered)).action is None
