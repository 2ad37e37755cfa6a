"""Each misbehaviour, in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.payments.methods import Method

from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import GatewayRefused, GatewaySilent, Order, RefundStanding, Report
from earmark.sandbox.desk import ReplyLost
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.model import Fate, Intent, Kind, Move, Refused

from .support import DAY, PRICE, authorised, order, refund_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from earmark.clock import MovableClock
    from earmark.sandbox.house import Sandbox

IMPATIENT = 0.05
"""A patience that is over soon, for what never comes."""
BEFORE = [Fault.ERROR_BEFORE, Fault.RATE_LIMIT, Fault.HANG]
AFTER = [Fault.ERROR_AFTER, Fault.REPLY_LOST, Fault.HANG_AFTER]


async def silent(call: Awaitable[object]) -> None:
    with pytest.raises(GatewaySilent):
        await call


async def ready(gateway: SandboxGateway, name: str, method: str = Method.VISA) -> Order:
    """A payment to which this can be done."""
    asked = order(gateway.sandbox.clock, method)
    if name in {"capture", "void", "refund"}:
        await gateway.authorise(asked)
    if name == "refund":
        await gateway.capture(asked)
    return asked


CALLS = {
    "authorise": (Move.AUTHORISED, SandboxGateway.authorise),
    "capture": (Move.CAPTURED, SandboxGateway.capture),
    "void": (Move.VOIDED, SandboxGateway.void),
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
async def test_silence_may_hide_an_effect_and_the_same_call_again_has_it_once(
    gateway: SandboxGateway, name: str, fault: Fault
) -> None:
    """Whether it happened is seen in the ledger and not in the silence."""
    move, call = CALLS[name]
    asked = await ready(gateway, name)
    gateway.script.add(fault, name)
    gateway.patience_seconds = IMPATIENT if fault in {Fault.HANG, Fault.HANG_AFTER} else 60
    await silent(call(gateway, asked))
    assert gateway.bank.total(move) == (PRICE if fault in AFTER else 0)
    gateway.patience_seconds = 60
    await call(gateway, asked)
    assert gateway.bank.total(move) == PRICE


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
async def test_a_refund_whose_answer_was_lost_is_made_once(gateway: SandboxGateway, fault: Fault) -> None:
    """The same, for what goes back."""
    refund = refund_of(await ready(gateway, "refund"), 1000)
    gateway.script.add(fault, "refund")
    gateway.patience_seconds = IMPATIENT if fault in {Fault.HANG, Fault.HANG_AFTER} else 60
    await silent(gateway.refund(refund))
    gateway.patience_seconds = 60
    known = await gateway.refund_status(refund)
    assert (known is not None) is (fault in AFTER)
    assert (await gateway.refund(refund)).standing is RefundStanding.DONE
    assert gateway.bank.total(Move.REFUNDED) == 1000


async def test_without_a_key_a_repeat_would_charge_twice(sandbox: Sandbox) -> None:
    """The control: the ledger does show a double charge when there is one."""
    for _ in range(2):
        sandbox.bank.authorise(amount=PRICE, currency="EUR", method=Method.VISA)
    assert sandbox.bank.total(Move.AUTHORISED) == 2 * PRICE


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
async def test_a_sticky_error_is_repeated_for_a_day(gateway: SandboxGateway, clock: MovableClock, fault: Fault) -> None:
    """Some gateways repeat a 500 for its key: only to look tells what happened."""
    gateway.script.sticky_errors = True
    gateway.script.add(fault, "authorise")
    asked = order(clock)
    for _ in range(3):
        await silent(gateway.authorise(asked))
    happened = fault is Fault.ERROR_AFTER
    standing = Standing.AUTHORISED if happened else Standing.ABSENT
    assert (await gateway.status(asked)).standing is standing
    assert gateway.bank.total(Move.AUTHORISED) == (PRICE if happened else 0)
    clock.advance(DAY)
    assert (await gateway.authorise(asked)).standing is Standing.AUTHORISED


async def test_an_error_that_is_not_sticky_is_not_repeated(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The control of the one above."""
    gateway.script.add(Fault.ERROR_BEFORE, "authorise")
    asked = order(clock)
    await silent(gateway.authorise(asked))
    assert (await gateway.authorise(asked)).standing is Standing.AUTHORISED


async def test_a_call_that_is_declined_by_script_is_declined_for_good(
    gateway: SandboxGateway, clock: MovableClock
) -> None:
    """The key remembers the no."""
    gateway.script.add(Fault.DECLINE, "authorise")
    asked = order(clock)
    for _ in range(2):
        report = await gateway.authorise(asked)
        assert (report.standing, report.code) == (Standing.DECLINED, "card_declined")
    assert not gateway.bank.ledger


async def test_a_capture_can_be_declined_by_script(gateway: SandboxGateway) -> None:
    """What was set aside is let go."""
    asked = await ready(gateway, "capture")
    gateway.script.add(Fault.DECLINE, "capture")
    assert (await gateway.capture(asked)).standing is Standing.DECLINED
    assert (await gateway.capture(asked)).standing is Standing.DECLINED
    assert gateway.bank.total(Move.CAPTURED) == 0


async def test_a_refund_can_be_declined_by_script(gateway: SandboxGateway) -> None:
    """It will not happen, and says so each time."""
    refund = refund_of(await ready(gateway, "refund"))
    gateway.script.add(Fault.DECLINE, "refund")
    for _ in range(2):
        assert (await gateway.refund(refund)).standing is RefundStanding.REFUSED
    assert gateway.bank.total(Move.REFUNDED) == 0


@pytest.mark.parametrize("automatic", [True, False])
async def test_money_may_come_after_the_no(gateway: SandboxGateway, clock: MovableClock, *, automatic: bool) -> None:
    """Declined, and then there is money all the same; even if the payment was given up in between."""
    gateway.script.add(Fault.LATE_SUCCESS, "authorise")
    asked = order(clock, automatic=automatic)
    assert (await gateway.authorise(asked)).standing is Standing.DECLINED
    assert (await gateway.void(asked)).standing is Standing.VOIDED
    assert not gateway.bank.ledger
    assert len(gateway.bank.land()) == 1
    report = await gateway.status(asked)
    assert report.standing is (Standing.CAPTURED if automatic else Standing.AUTHORISED)
    assert gateway.bank.total(Move.CAPTURED) == report.captured == (PRICE if automatic else 0)
    assert gateway.bank.land() == []


async def test_late_money_may_come_with_time(gateway: SandboxGateway, clock: MovableClock) -> None:
    """By the bank's clock."""
    gateway.script.add(Fault.LATE_SUCCESS, "authorise", seconds=600)
    asked = order(clock)
    assert (await gateway.authorise(asked)).standing is Standing.DECLINED
    assert (await gateway.status(asked)).standing is Standing.DECLINED
    clock.advance(600)
    assert (await gateway.status(asked)).standing is Standing.AUTHORISED


async def test_a_capture_may_happen_after_it_was_refused(gateway: SandboxGateway) -> None:
    """The money is taken once."""
    asked = await ready(gateway, "capture")
    gateway.script.add(Fault.LATE_SUCCESS, "capture")
    assert (await gateway.capture(asked)).standing is Standing.DECLINED
    gateway.bank.land()
    assert (await gateway.status(asked)).standing is Standing.CAPTURED
    assert gateway.bank.total(Move.CAPTURED) == PRICE


async def test_a_void_may_turn_out_not_to_have_been_one(gateway: SandboxGateway) -> None:
    """Told as given up, and then it is set aside again: a second void ends it."""
    asked = await ready(gateway, "void")
    gateway.script.add(Fault.LATE_SUCCESS, "void")
    assert (await gateway.void(asked)).standing is Standing.VOIDED
    gateway.bank.land()
    assert (await gateway.status(asked)).standing is Standing.AUTHORISED
    assert (await gateway.void(asked)).standing is Standing.VOIDED


async def test_a_slow_bank_charges_whoever_has_given_up(sandbox: Sandbox, clock: MovableClock) -> None:
    """The effect comes after the silence."""
    gateway = SandboxGateway(sandbox, patience_seconds=0)
    sandbox.script.add(Fault.SLOW, "authorise", seconds=0.01)
    await silent(gateway.authorise(order(clock)))
    assert not sandbox.bank.ledger
    await asyncio.wait(gateway._under_way)
    assert sandbox.bank.total(Move.AUTHORISED) == PRICE
    await gateway.close()


async def test_a_slow_answer_comes_after_the_effect(sandbox: Sandbox, clock: MovableClock) -> None:
    """The callback is there before the answer."""
    gateway = SandboxGateway(sandbox, patience_seconds=0.05)
    sandbox.script.add(Fault.SLOW_AFTER, "authorise", seconds=600)
    await silent(gateway.authorise(order(clock)))
    assert sandbox.bank.total(Move.AUTHORISED) == PRICE
    assert [letter.event.kind for letter in sandbox.courier.letters][-1] == "payment_intent.amount_capturable_updated"
    await gateway.close()


async def test_a_twin_of_a_call_in_progress_is_told_so(sandbox: Sandbox, clock: MovableClock) -> None:
    """Two of the same at once have one effect: the second learns nothing."""
    gateway = SandboxGateway(sandbox, patience_seconds=IMPATIENT)
    sandbox.script.add(Fault.SLOW, "authorise", seconds=600)
    asked = order(clock)
    await silent(gateway.authorise(asked))
    gateway.patience_seconds = 60
    await silent(gateway.authorise(asked))
    assert [call.outcome for call in sandbox.desk.calls] == ["in progress", "idempotency_key_in_use"]
    await gateway.close()
    # Whoever was in progress is gone, and nothing came of it.
    assert (await gateway.authorise(asked)).standing is Standing.AUTHORISED
    assert sandbox.bank.total(Move.AUTHORISED) == PRICE


async def test_a_call_that_hung_does_not_end_its_twin(sandbox: Sandbox) -> None:
    """Whoever tries again after a hang owns the key, also when the first one is given up at last."""
    given_up = asyncio.Event()

    async def gone() -> None:
        await given_up.wait()

    def call() -> asyncio.Task[object]:
        def work(_: Fate) -> Intent:
            return authorised(sandbox.bank)

        return asyncio.ensure_future(sandbox.desk.change("authorise", work, key="one", params=None, gone=gone))

    sandbox.script.add(Fault.HANG, "authorise")
    sandbox.script.add(Fault.SLOW, "authorise", seconds=600)
    hung = call()
    await asyncio.sleep(0)
    slow = call()
    await asyncio.sleep(0)
    given_up.set()
    with pytest.raises(ReplyLost):
        await hung
    with pytest.raises(Refused) as refused:
        await call()
    assert refused.value.kind is Kind.IN_PROGRESS
    slow.cancel()
    await asyncio.wait([slow])
    assert not sandbox.bank.ledger


async def test_a_call_that_hangs_can_be_cancelled(gateway: SandboxGateway, clock: MovableClock) -> None:
    """Whoever waits may have a clock of their own."""
    gateway.script.add(Fault.HANG, "authorise")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(IMPATIENT):
            await gateway.authorise(order(clock))
    assert not gateway.bank.ledger


async def test_the_same_key_with_other_parameters_is_refused(gateway: SandboxGateway, clock: MovableClock) -> None:
    """And changes nothing."""
    asked = order(clock)
    await gateway.authorise(asked)
    for changed in ({"amount": 1}, {"currency": "USD"}, {"method": Method.DISPUTE}, {"automatic": True}):
        with pytest.raises(GatewayRefused) as refused:
            await gateway.authorise(msgspec.structs.replace(asked, **changed))
        assert refused.value.code == "idempotency_error"
    assert gateway.bank.total(Move.AUTHORISED) == PRICE


async def test_a_key_is_forgotten_after_a_day(gateway: SandboxGateway, clock: MovableClock) -> None:
    """And then the same create is another charge: this is why nobody may send one again so late."""
    asked = order(clock)
    first = await gateway.authorise(asked)
    clock.advance(DAY - 60)
    assert (await gateway.authorise(asked)).gateway_id == first.gateway_id
    clock.advance(60)
    assert (await gateway.authorise(asked)).gateway_id != first.gateway_id
    assert gateway.bank.total(Move.AUTHORISED) == 2 * PRICE


async def test_a_refund_is_the_same_even_after_its_key_was_forgotten(
    gateway: SandboxGateway, clock: MovableClock
) -> None:
    """A refund may be asked for again for days, and is found by our id."""
    refund = refund_of(await ready(gateway, "refund"), 1000)
    first = await gateway.refund(refund)
    clock.advance(3 * DAY)
    assert await gateway.refund(refund) == first
    assert gateway.bank.total(Move.REFUNDED) == 1000


async def test_a_call_that_makes_no_sense_is_not_remembered(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The key is free for one that does."""
    asked = order(clock, method="pm_card_gold")
    with pytest.raises(GatewayRefused):
        await gateway.authorise(asked)
    report = await gateway.authorise(msgspec.structs.replace(asked, method=Method.VISA))
    assert report.standing is Standing.AUTHORISED


async def test_every_call_can_be_looked_at(gateway: SandboxGateway, clock: MovableClock) -> None:
    """What was asked, with which fault, and how it ended."""
    asked = order(clock)
    gateway.script.add(Fault.REPLY_LOST, "authorise")
    await silent(gateway.authorise(asked))
    await gateway.authorise(asked)
    await gateway.status(asked)
    calls = list(gateway.sandbox.desk.calls)
    assert [(call.number, call.name, call.fault, call.outcome, call.replayed) for call in calls] == [
        (1, "authorise", Fault.REPLY_LOST, "lost", False),
        (2, "authorise", None, "answered", True),
        (3, "status", None, "answered", False),
    ]
    assert {call.key for call in calls[:2]} == {str(asked.payment_id)}


async def test_to_look_can_go_wrong_too(gateway: SandboxGateway, clock: MovableClock) -> None:
    """Status, the status of a refund and the books are calls like any other."""
    refund = refund_of(await ready(gateway, "refund"))
    for name in ("status", "refund_status", "list"):
        gateway.script.add(Fault.ERROR_BEFORE, name)
    await silent(gateway.status(refund.payment))
    await silent(gateway.refund_status(refund))
    with pytest.raises(GatewaySilent):
        async for _ in gateway.books(since=clock.now()):
            pass


async def test_a_payment_with_an_action_says_where(gateway: SandboxGateway, clock: MovableClock) -> None:
    """And no longer once the buyer has acted."""
    asked = order(clock, Method.AUTHENTICATION_REQUIRED)
    report: Report = await gateway.authorise(asked)
    assert report.action is not None
    assert report.gateway_id is not None
    assert report.gateway_id in report.action["url"]
    gateway.bank.act(report.gateway_id, succeed=True)
    assert (await gateway.status(asked)).action is None
