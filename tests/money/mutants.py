"""Mistakes that a shop could make with money, one at a time: each is built in, and has to be noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from earmark.domain import payment as payment_rules
from earmark.domain.id_types import RefundId
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewaySilent, RefundOrder, RefundReport, Report
from earmark.engine.verbs import cancel
from earmark.payments import apply_payment_report, build_gateway_orders, drive_payment_to_its_end
from earmark.payments.drive_payment_to_its_end import PaymentDriver, PaymentStep
from earmark.sandbox.gateway import SandboxGateway

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from earmark.domain.payment import Payment
    from earmark.engine.ports.gateway import Callback, Order

    Mutant = Callable[[pytest.MonkeyPatch], None]

SAID = {
    "payment_intent.payment_failed": ReportedState.DECLINED,
    "payment_intent.canceled": ReportedState.VOIDED,
    "payment_intent.amount_capturable_updated": ReportedState.AUTHORISED,
    "payment_intent.succeeded": ReportedState.CAPTURED,
}


def a_new_key_for_each_try(patch: pytest.MonkeyPatch) -> None:
    """A payment that is sent again is another one to the bank."""
    change = SandboxGateway._change

    async def changed(self: SandboxGateway, name: str, work: Any, key: str | None, params: object) -> Any:
        return await change(self, name, work, str(uuid4()) if key else None, params)

    patch.setattr(SandboxGateway, "_change", changed)


def a_refund_without_a_key(patch: pytest.MonkeyPatch) -> None:
    """A refund that is sent again is another one to the bank."""
    refund = SandboxGateway.refund

    async def refunded(self: SandboxGateway, order: RefundOrder) -> RefundReport:
        return await refund(self, msgspec.structs.replace(order, refund_id=RefundId(uuid4())))

    patch.setattr(SandboxGateway, "refund", refunded)


def a_timeout_is_a_no(patch: pytest.MonkeyPatch) -> None:
    """A timeout is taken for a decline; so no process looks at it again either."""
    ask = PaymentDriver._ask

    async def asked(self: PaymentDriver, gateway: Any, step: PaymentStep, payment: Payment, *, first: bool) -> Report:
        try:
            return await ask(self, gateway, step, payment, first=first)
        except (GatewaySilent, TimeoutError):
            if step is not PaymentStep.AUTHORISE:
                raise
            return Report(state=ReportedState.DECLINED, code="timeout")

    patch.setattr(PaymentDriver, "_ask", asked)
    _never_look_back(patch)


def the_last_callback_is_right(patch: pytest.MonkeyPatch) -> None:
    """Every callback is trusted, each time that it arrives, in the order of arrival."""

    async def receive_callback(self: PaymentDriver, gateway: str, callback: Callback) -> bool:
        about = await self._engine.store.read_payment_snapshot(callback.payment_id) if callback.payment_id else None  # type: ignore[arg-type]
        if about is None:
            return False
        if callback.kind in SAID:
            report = Report(state=SAID[callback.kind], gateway_id=callback.gateway_id, captured=callback.amount or 0)
            await self._apply_report(report, about)
        assert gateway == about.payment.gateway
        return True

    patch.setattr(PaymentDriver, "receive_callback", receive_callback)
    _never_look_back(patch)


def late_money_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Late money is kept for nothing."""
    patch.setattr(apply_payment_report._ReportedPayment, "_give_back", lambda _, payment, **__: payment)


def nothing_is_retried(patch: pytest.MonkeyPatch) -> None:
    """A call without an answer is never repeated."""
    scheduled = payment_rules.scheduled

    def once(payment: Payment, *, tried: bool, **how: Any) -> Payment:
        after = scheduled(payment, tried=tried, **how)
        return msgspec.structs.replace(after, due_at=None) if tried else after

    patch.setattr(payment_rules, "scheduled", once)


def a_cancellation_forgets_the_money(patch: pytest.MonkeyPatch) -> None:
    """The seats become free, and the refund is reported and not recorded."""
    patch.setattr(
        cancel,
        "owe",
        lambda writes, before, *_, **__: writes.set_payment(
            msgspec.structs.replace(before, version=before.version + 1)
        ),
    )


def what_is_given_up_is_not_voided(patch: pytest.MonkeyPatch) -> None:
    """The booking is lost, and the buyer's money stays set aside."""

    async def void(_: SandboxGateway, order: Order) -> Report:
        return Report(state=ReportedState.VOIDED, gateway_id=order.gateway_id)

    patch.setattr(SandboxGateway, "void", void)


def everything_is_charged_in_euro(patch: pytest.MonkeyPatch) -> None:
    """The same numbers, in the wrong currency."""
    order_of = build_gateway_orders.order_of
    patch.setattr(
        drive_payment_to_its_end, "order_of", lambda payment: msgspec.structs.replace(order_of(payment), currency="EUR")
    )


def _never_look_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(payment_rules, "_look_back_at", lambda *_, **__: None)


MUTANTS: tuple[Mutant, ...] = (
    a_new_key_for_each_try,
    a_refund_without_a_key,
    a_timeout_is_a_no,
    the_last_callback_is_right,
    late_money_is_kept,
    nothing_is_retried,
    a_cancellation_forgets_the_money,
    what_is_given_up_is_not_voided,
    everything_is_charged_in_euro,
)
