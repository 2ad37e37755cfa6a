"""The payment driver: takes a payment from where its rows stand to where nothing is left to do.

    read the payment, its booking and its refunds → one step → call the gateway → write what it reported → and again

The rows are the saga. What drives a payment (a request, a callback, the reconciler) starts from them, and may crash
anywhere: the next one starts from them too. No lock and no transaction is open while a gateway works, and two processes
that drive the same payment do no harm, for every call carries an id that makes it the same call.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from earmark.domain import booking as booking_rules
from earmark.domain import payment as payment_rules
from earmark.domain.id_types import PaymentId, PoolRef, RefundId, TotalRef
from earmark.domain.payment import UNDECIDED, Payment, PaymentState, RefundState, ReportedState
from earmark.engine.commands_and_results import Decided, PayResult, Replayed
from earmark.engine.ports.gateway import (
    Gateway,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    Order,
    Report,
    ReportedRefundState,
)
from earmark.engine.verbs.expire import CONTENDED_SECONDS
from earmark.engine.verbs.hold import MAKE_ROOM_ROUNDS_MAX
from earmark.errors import GatewayUnavailable, InvalidRequest, Outage, PaymentInProgress
from earmark.payments import apply_payment_report, apply_refund_report, change_payment_without_report
from earmark.payments.build_gateway_orders import order_of, refund_order_of
from earmark.payments.due_payment_queues_by_gateway import GatewayQueues
from earmark.payments.open_and_conclude_payment import conclude_payment, is_concluded, open_payment
from earmark.payments.record_requested_refund import record_refund
from earmark.payments.remove_codes_from_requests import without_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from earmark.domain.booking import Booking
    from earmark.domain.payment import Refund
    from earmark.engine.commands_and_results import Pay, RefundPayment, Result
    from earmark.engine.engine import Engine
    from earmark.engine.ports.gateway import Callback, RefundReport
    from earmark.engine.ports.store import PaymentSnapshot, Transaction

T = TypeVar("T")

STEPS_MAX = 20
HURRIED_SECONDS = 1.0
"""How long a request that comes after `hurry` waits for a gateway: most answer by then."""
MOVED_ROUNDS_MAX = 3
REPLACE_TRIES_MAX = 2
"""How often a gateway is called in a row to end a payment for another: the first reply may be lost."""
REFUND_STATUS = "refund_status"
LIST_REFUNDS = "list_refunds"
REFUNDS_LOOKED_AT_MAX = 100
"""Of a payment with more refunds than that, the newest are asked about."""

_log = logging.getLogger("earmark.money")


class PaymentStep(StrEnum):
    """What to do next about a payment."""

    AUTHORISE = "authorise"
    CAPTURE = "capture"
    VOID = "void"
    REFUND = "refund"
    STATUS = "status"
    GIVE_UP = "give_up"
    REPLACE = "replace"
    """Void it, because its buyer left its action undone and has named another method."""


def next_step(about: PaymentSnapshot, *, ask_gateway: bool, asked: Collection[RefundId] = ()) -> PaymentStep | None:
    """The next step by the rows; where they need none, `STATUS` with `ask_gateway`, or None.

    Refunds that were `asked` for in this drive are on their way; those behind them need not wait for that.
    """
    payment = about.payment
    if payment.state in UNDECIDED:
        return _while_undecided(about)
    pending = [refund for refund in about.refunds if refund.state is RefundState.PENDING]
    if any(refund.id not in asked for refund in pending):
        return PaymentStep.REFUND
    match payment.state:
        case _ if pending:
            pass
        case PaymentState.AUTHORISED:
            return PaymentStep.CAPTURE if booking_rules.wants(about.booking, payment) else PaymentStep.GIVE_UP
        case PaymentState.VOIDING:
            return PaymentStep.VOID
        case PaymentState.NEEDS_ATTENTION if not payment.captured:
            return PaymentStep.VOID
    return PaymentStep.STATUS if ask_gateway else None


def _while_undecided(about: PaymentSnapshot) -> PaymentStep:
    """Call the gateway until it took too long. A payment that it takes by itself is only ended by its own report."""
    payment, now, until = about.payment, about.now, about.booking.paying_until
    if until is not None and now >= until:
        return (
            PaymentStep.VOID
            if payment.automatic and not payment_rules.is_past_cap(payment, now=now)
            else PaymentStep.GIVE_UP
        )
    if payment_rules.is_replaced(payment):
        return PaymentStep.REPLACE
    known = payment.gateway_id is not None or not payment_rules.may_resend(payment, now=now)
    return PaymentStep.STATUS if known or payment_rules.is_to_be_looked_up(payment) else PaymentStep.AUTHORISE


class CallbackMismatch(Exception):
    """A callback names a payment of ours, and its facts differ from the payment's."""


class PaymentDriver:
    """Drives payments; one per process, over the engine's store."""

    def __init__(self, engine: Engine, gateways: Mapping[str, Gateway], *, call_seconds_max: float = 30.0) -> None:
        self._engine = engine
        self._gateways = gateways
        self._call_seconds_max = call_seconds_max
        self._driving: dict[PaymentId, asyncio.Task[Payment | None]] = {}
        self._hurried = asyncio.Event()
        self._queues = GatewayQueues(gateways)

    async def open_and_drive(self, command: Pay, *, within: float) -> Result:
        """Open a payment and drive it, for so long; what is not decided by then goes on by itself."""
        until = asyncio.get_running_loop().time() + within
        command = await without_code(command, self._gateways)
        result = await open_payment(self._engine, command)
        if isinstance(result, Decided) and result.value.gives_way:
            result = await self._pay_instead(command, result, within=within)
        if isinstance(result, Replayed) or result.value.payment is None:
            return result
        payment_id: PaymentId = result.value.payment.id
        await self._drive_within(payment_id, max(0.0, until - asyncio.get_running_loop().time()))
        about = await self._engine.store.read_payment_snapshot(payment_id)
        assert about is not None, "a payment is never deleted"
        if payment_rules.was_denied(about.payment):
            raise GatewayUnavailable(gateway=about.payment.gateway)
        if field := payment_rules.invalid_field(about.payment):
            if result.value.joined:
                # Another request named it, and is over: this one may be sent again.
                raise PaymentInProgress
            raise InvalidRequest.at(field, f"is nothing that {about.payment.gateway} takes: {about.payment.message}")
        if not result.value.joined and is_concluded(about.booking, about.payment):
            again = msgspec.structs.replace(command, entry_id=self._engine.ids.entry_id(), payment_id=payment_id)
            return await conclude_payment(self._engine, again)
        return Decided(value=PayResult(booking=about.booking, payment=about.payment), now=about.now)

    async def _pay_instead(self, command: Pay, joined: Decided, *, within: float) -> Result:
        """End the payment whose action was left undone, and open this request's own once it is known to be over.

        While its gateway has not said that it is over, the open payment stays the answer; so it does if it succeeded.
        """
        open_one: Payment = joined.value.payment
        if driving := self._driving.get(open_one.id):
            await self._wait(driving, seconds=within)
        if open_one.id not in self._driving:
            await self._wait(self._track(open_one.id, self._replace(open_one.id)), seconds=within)
        about = await self._engine.store.read_payment_snapshot(open_one.id)
        if about is None or about.payment.state is not PaymentState.FAILED:
            return joined
        return await open_payment(self._engine, msgspec.structs.replace(command, entry_id=self._engine.ids.entry_id()))

    async def _replace(self, payment_id: PaymentId) -> Payment | None:
        """End a payment that waits for its buyer. One that was paid meanwhile is kept, and driven on."""
        payment = await self._drive(payment_id, ask_gateway=False)
        about = await self._engine.store.read_payment_snapshot(payment_id)
        if about is None or about.payment.state is not PaymentState.REQUIRES_ACTION:
            return payment
        # Recorded before its gateway is called: from here on any process that drives it ends it.
        await self._transact(partial(change_payment_without_report.mark_replaced, about=about, ids=self._engine.ids))
        for _ in range(REPLACE_TRIES_MAX):
            payment = await self._drive(payment_id, ask_gateway=False)
            if payment is not None and payment.state not in UNDECIDED:
                break
        return payment

    async def refund(self, command: RefundPayment, *, within: float) -> Result:
        """Record a refund and request it at the gateway; what is not done in time is driven on in the background."""
        result = await record_refund(self._engine, command)
        if isinstance(result, Decided):
            await self._drive_within(result.value.payment.id, within)
        return result

    def follow_up(self, booking: Booking) -> None:
        """Drive the payment of a booking that was just changed, in the background."""
        payment_id = payment_rules.payment_id_of(booking.payment_id) if booking.payment_id else None
        if payment_id is not None:
            self._drive_on(payment_id)

    async def receive_callback(self, gateway: str, callback: Callback) -> bool:
        """Record a gateway's callback, and ask how the payment stands now. False for a payment that is not ours.

        Of the callback only the payment it names is believed.
        """
        about = await self._subject(gateway, callback)
        if about is None:
            return False
        _check(about.payment, gateway, callback)
        if callback.disputed and not about.payment.captured:
            # It overtook the reply to our capture: that is read first, and the gateway calls again.
            await self.advance(about.payment.id, ask_gateway=True)
            raise GatewaySilent("what is disputed is not known to be taken yet")
        take = partial(
            change_payment_without_report.take_callback,
            gateway=gateway,
            callback=callback,
            about=about,
            ids=self._engine.ids,
        )
        new = await self._transact(take)
        # A drive under way may wait for a reply that this callback overtook. The payment is due, and read afterwards.
        if new and about.payment.id not in self._driving:
            await self._wait(self._drive_on(about.payment.id, ask_gateway=True))
        return True

    async def _subject(self, gateway: str, callback: Callback) -> PaymentSnapshot | None:
        """The payment that a callback is about.

        A dispute does not carry our id, nor does a refund that was made without us: the gateway is asked whose it is.
        """
        payment_id = callback.payment_id
        known = self._gateways.get(gateway)
        nameless = payment_id is None and (callback.disputed or callback.refund)
        if nameless and callback.gateway_id and known is not None:
            payment_id = await self._call(known, "whose", known.whose(callback.gateway_id))
        return await self._engine.store.read_payment_snapshot(PaymentId(payment_id)) if payment_id else None

    async def seconds_to_next(self, gateways: Collection[str] | None = None) -> float | None:
        """How long until a payment is due that can be driven, of these gateways or of all; None when none is open."""
        ready = [name for name in self._queues.ready if gateways is None or name in gateways]
        return await self._engine.store.seconds_to_next_payment(gateways=ready)

    async def reconcile(
        self, *, limit: int, within: float | None = None, gateways: Collection[str] | None = None
    ) -> int:
        """Drive the payments that are due, each gateway's in a queue of its own; how many were found.

        `gateways` limits it to some of this process's gateways.

        They are waited for, for so long; those that are not done by then go on by themselves.
        """
        claim = partial(self._engine.store.claim_payments, lease_seconds=payment_rules.LEASE_SECONDS)
        return await self._queues.drive(claim, self._advance_claimed, limit=limit, within=within, only=gateways)

    @property
    def silent_gateways(self) -> list[str]:
        """The gateways that are silent now."""
        return self._queues.silent

    async def advance(self, payment_id: PaymentId, *, ask_gateway: bool = False) -> Payment | None:
        """Take a payment as far as it goes now. A caller that names one which is being driven waits for that drive.

        With `ask_gateway`, the gateway is asked once also about a payment that is over.
        """
        return await asyncio.shield(self._drive_on(payment_id, ask_gateway=ask_gateway))

    async def _advance_claimed(self, queue: str, payment_id: PaymentId) -> None:
        """Drive what a queue has claimed. A payment of another gateway is only given up: its own queue voids it."""
        try:
            about = await self._engine.store.read_payment_snapshot(payment_id)
            if about is None or about.payment.gateway == queue:
                await self.advance(payment_id, ask_gateway=True)
            elif next_step(about, ask_gateway=False) is PaymentStep.GIVE_UP:
                # No gateway is called here: one that hangs would take a turn of a queue that is not its own.
                await self._transact(
                    partial(change_payment_without_report.give_up, about=about, ids=self._engine.ids, hand_over=True)
                )
                if about.payment.gateway not in self._gateways:
                    _log.error("payment %s waits: this process has no gateway %r", payment_id, about.payment.gateway)
        except Outage as outage:
            _log.warning("payment %s paused: %s; due again when its claim ends", payment_id, outage)

    def hurry(self) -> None:
        """Let no request wait for a gateway any longer: this process is about to end, and what was recorded goes on."""
        self._hurried.set()

    async def close(self) -> None:
        """Finish the steps that are under way, then let go of the gateways."""
        await self._queues.close()
        while self._driving:
            await asyncio.wait(self._driving.values())
        await self._close_gateways()

    async def _close_gateways(self) -> None:
        """Close all of them, also where one fails to close; then raise the first error."""
        closing = (gateway.close() for gateway in self._gateways.values())
        ends = await asyncio.gather(*closing, return_exceptions=True)
        errors = {name: end for name, end in zip(self._gateways, ends, strict=True) if end is not None}
        for name, error in errors.items():
            _log.error("gateway %s was not closed: %s", name, error)
        for error in errors.values():
            raise error

    def _drive_on(self, payment_id: PaymentId, *, ask_gateway: bool = False) -> asyncio.Task[Payment | None]:
        return self._driving.get(payment_id) or self._track(
            payment_id, self._drive(payment_id, ask_gateway=ask_gateway)
        )

    def _track(self, payment_id: PaymentId, drive: Coroutine[Any, Any, Payment | None]) -> asyncio.Task[Payment | None]:
        task = asyncio.create_task(drive)
        self._driving[payment_id] = task
        task.add_done_callback(lambda _: self._driving.pop(payment_id, None))
        return task

    async def _drive_within(self, payment_id: PaymentId, seconds: float) -> None:
        await self._wait(self._drive_on(payment_id), seconds=seconds)

    async def _wait(self, driving: asyncio.Task[Payment | None], *, seconds: float | None = None) -> None:
        """Wait until it is done, for so long; `hurry` ends the wait."""
        if self._hurried.is_set():
            await asyncio.wait([driving], timeout=HURRIED_SECONDS)
        else:
            hurried = asyncio.ensure_future(self._hurried.wait())
            try:
                await asyncio.wait([driving, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurried.cancel()
        if driving.done():
            driving.result()

    async def _drive(self, payment_id: PaymentId, *, ask_gateway: bool) -> Payment | None:
        payment = None
        asked: set[RefundId] = set()
        try:
            answered_all = not ask_gateway or await self._check_refunds(payment_id)
            asks = ask_gateway
            for _ in range(STEPS_MAX):
                about = await self._engine.store.read_payment_snapshot(payment_id)
                step = next_step(about, ask_gateway=asks, asked=asked) if about else None
                if about is None or step is None:
                    break
                asked_before, asks = len(asked), asks and step is PaymentStep.REFUND
                payment = await self._take_step(
                    step, about, first=not ask_gateway and about.payment.version == 1, asked=asked
                )
                if not _went_on(about.payment, payment) and len(asked) == asked_before:
                    break
            if not answered_all and (about := await self._engine.store.read_payment_snapshot(payment_id)):
                payment = await self._transact(
                    partial(apply_payment_report.apply_silence, about=about, ids=self._engine.ids)
                )
        except Outage as outage:
            # The gateway is called again: the payment is due soon.
            _log.warning("payment %s paused: %s; the reconciler goes on when it is due", payment_id, outage)
        return payment

    async def _take_step(
        self, step: PaymentStep, about: PaymentSnapshot, *, first: bool, asked: set[RefundId]
    ) -> Payment:
        """Take one step: call the gateway, then write what it reported. `first`: no call was made before."""
        ids = self._engine.ids
        if step is PaymentStep.GIVE_UP:
            return await self._transact(partial(change_payment_without_report.give_up, about=about, ids=ids))
        gateway = self._gateways.get(about.payment.gateway)
        if gateway is None:
            _log.error("payment %s waits: this process has no gateway %r", about.payment.id, about.payment.gateway)
            return await self._transact(partial(apply_payment_report.apply_silence, about=about, ids=ids))
        try:
            if step is PaymentStep.REFUND:
                return await self._refund_next(gateway, about, asked=asked)
            report = await self._ask(gateway, step, about.payment, first=first)
        except (GatewaySilent, TimeoutError) as silence:
            _log.warning("gateway %s did not say what became of %s: %s", gateway.name, about.payment.id, silence)
            return await self._transact(partial(apply_payment_report.apply_silence, about=about, ids=ids))
        payment = await self._apply_report(report, about)
        return await self._find_refunds_elsewhere(gateway, payment) if _is_news(payment, report) else payment

    async def _ask(self, gateway: Gateway, step: PaymentStep, payment: Payment, *, first: bool) -> Report:
        calls: dict[PaymentStep, Callable[[Order], Awaitable[Report]]] = {
            PaymentStep.AUTHORISE: gateway.authorise,
            PaymentStep.CAPTURE: gateway.capture,
            PaymentStep.VOID: gateway.void,
            PaymentStep.REPLACE: gateway.void,
            PaymentStep.STATUS: gateway.status,
        }
        try:
            with self._engine.observer.gateway(gateway.name, step), self._queues.call(gateway.name):
                async with asyncio.timeout(self._call_seconds_max):
                    report = await calls[step](order_of(payment))
        except GatewayRefused as refused:
            denied = isinstance(refused, GatewayDenied)
            if denied:
                _log.error("gateway %s refuses this shop: %s; check its key and its account", gateway.name, refused)
            if step is not PaymentStep.AUTHORISE or not first:
                # This refusal (a revoked key, say) does not show whether an earlier call moved the money.
                raise GatewaySilent(str(refused)) from refused
            if isinstance(refused, GatewayInvalid):
                return Report(state=ReportedState.DECLINED, code=f"{refused.field}_invalid", message=str(refused))
            if denied:
                # The gateway's message is only logged: it may mention the shop's key, and buyers can read the payment.
                return Report(state=ReportedState.DECLINED, code=payment_rules.GATEWAY_UNAVAILABLE)
            return Report(state=ReportedState.DECLINED, code=refused.code, message=str(refused))
        if step in {PaymentStep.VOID, PaymentStep.REPLACE} and report.state is ReportedState.ABSENT:
            report = msgspec.structs.replace(report, state=ReportedState.VOIDED)
        if step is PaymentStep.REPLACE and report.state is ReportedState.VOIDED:
            return msgspec.structs.replace(report, code=payment_rules.REPLACED, message=None)
        return report

    async def _apply_report(self, report: Report, about: PaymentSnapshot) -> Payment:
        """Write what was reported; where a row moved meanwhile, read again and decide anew, a few times.

        What was only contended is left as it is: the reconciler tries again, and nothing is given back before that.
        """
        nothing_due_in: set[PoolRef | TotalRef] = set()
        rounds = {"moved": MOVED_ROUNDS_MAX, "made room": MAKE_ROOM_ROUNDS_MAX}
        while all(rounds.values()):
            outcome = await self._transact(
                partial(
                    apply_payment_report.apply_report,
                    report=report,
                    about=about,
                    ids=self._engine.ids,
                    policy=self._engine.policy,
                    nothing_due_in=nothing_due_in,
                )
            )
            if isinstance(outcome, Payment):
                return outcome
            rounds["moved" if outcome.full is None else "made room"] -= 1
            if outcome.full is not None:
                room = await self._engine.make_room_in(outcome.full, units=outcome.short)
                if room.has_nothing_due:
                    nothing_due_in.add(outcome.full)
                elif not room.ended:
                    await asyncio.sleep(CONTENDED_SECONDS)
            about = await self._engine.store.read_payment_snapshot(about.payment.id) or about
        return about.payment

    async def _refund_next(self, gateway: Gateway, about: PaymentSnapshot, *, asked: set[RefundId]) -> Payment:
        pending = (one for one in about.refunds if one.state is RefundState.PENDING and one.id not in asked)
        refund = next(pending)  # `next_step` has seen it
        report = await self._call(gateway, PaymentStep.REFUND, gateway.refund(refund_order_of(refund, about.payment)))
        asked.add(refund.id)
        return await self._apply_refund_report(report, refund, about)

    async def _check_refunds(self, payment_id: PaymentId) -> bool:
        """Check that refunds that were made have not failed since. False when the gateway did not reply."""
        about = await self._engine.store.read_payment_snapshot(payment_id)
        gateway = self._gateways.get(about.payment.gateway) if about else None
        if about is None or gateway is None:
            return True
        made = [refund for refund in about.refunds if refund.state is RefundState.DONE]
        for refund in made[-REFUNDS_LOOKED_AT_MAX:]:
            order = refund_order_of(refund, about.payment)
            try:
                report = await self._call(gateway, REFUND_STATUS, gateway.refund_status(order))
            except (GatewaySilent, TimeoutError) as silence:
                _log.warning("gateway %s did not say what became of refund %s: %s", gateway.name, refund.id, silence)
                return False
            if report is not None and report.state is ReportedRefundState.REFUSED:
                await self._apply_refund_report(report, refund, about)
                about = await self._engine.store.read_payment_snapshot(payment_id) or about
        return True

    async def _find_refunds_elsewhere(self, gateway: Gateway, payment: Payment) -> Payment:
        """Find the refunds that Earmark did not request: more or less of the payment went back than is known here."""
        # Read before the gateway is asked: what moves meanwhile shows that its list is too old.
        about = await self._engine.store.read_payment_snapshot(payment.id)
        assert about is not None, "a payment is never deleted"
        try:
            found = await self._call(gateway, LIST_REFUNDS, gateway.list_refunds(order_of(about.payment)))
        except (GatewaySilent, TimeoutError) as silence:
            _log.warning("gateway %s did not list the refunds of %s: %s", gateway.name, payment.id, silence)
            return await self._transact(partial(apply_payment_report.apply_silence, about=about, ids=self._engine.ids))
        work = partial(apply_refund_report.apply_refunds_elsewhere, found=found, about=about, ids=self._engine.ids)
        after = await self._transact(work)
        if after.refunded_elsewhere != about.payment.refunded_elsewhere:
            facts = (after.id, after.refunded_elsewhere, after.currency, gateway.name)
            _log.error("payment %s: %s %s was refunded at gateway %s, not by Earmark; an operator has to look", *facts)
        return after

    async def _apply_refund_report(self, report: RefundReport, refund: Refund, about: PaymentSnapshot) -> Payment:
        work = partial(apply_refund_report.apply_refund_report, report=report, refund_id=refund.id)
        return await self._transact(partial(work, about=about, ids=self._engine.ids))

    async def _call(self, gateway: Gateway, name: str, call: Awaitable[T]) -> T:
        """Call a gateway about a refund. A call that it refuses says nothing of the money."""
        try:
            with self._engine.observer.gateway(gateway.name, name), self._queues.call(gateway.name):
                async with asyncio.timeout(self._call_seconds_max):
                    return await call
        except GatewayRefused as refused:
            raise GatewaySilent(str(refused)) from refused

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self._engine.transact(work)


def _went_on(before: Payment, after: Payment) -> bool:
    """Whether a step changed the payment, so that the next may follow at once."""
    return after.state not in UNDECIDED and (before.state, before.refunded) != (after.state, after.refunded)


def _is_news(payment: Payment, report: Report) -> bool:
    """Whether a gateway has given back something that is not counted here, or has no longer what was counted."""
    if report.state is not ReportedState.CAPTURED:
        # A gateway that does not know the payment any more says nothing of what went back.
        return False
    elsewhere = report.refunded - payment.refunded
    has_failed = elsewhere < payment.refunded_elsewhere and payment.refunded_elsewhere > 0
    return payment.captured > 0 and (elsewhere > payment.refunded_elsewhere or has_failed)


def _check(payment: Payment, gateway: str, callback: Callback) -> None:
    ours: dict[str, Any] = {"mode": payment.mode, "amount": payment.amount, "currency": payment.currency}
    ours |= {"booking_id": payment.booking_id, "gateway_id": payment.gateway_id}
    theirs = {name: getattr(callback, name) for name in ours}
    for name, said in theirs.items():
        if said is not None and ours[name] is not None and said != ours[name]:
            raise CallbackMismatch(f"{name} is {said!r}, not {ours[name]!r}")
    if gateway != payment.gateway:
        raise CallbackMismatch(f"{payment.id} is no payment of {gateway}")
