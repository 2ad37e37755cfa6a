"""A gateway that answers what a test has set, and records its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import Callback, CallbackRefused, RefundReport, Report, ReportedRefundState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.ports.gateway import Order, Record, RefundOrder, RefundRecord


class ScriptedGateway:
    """Answers each call with what the test has put under its name: a report, or an error to raise."""

    name = "scripted"
    mode = Mode.LIVE

    def __init__(self, **says: Report | Exception) -> None:
        self.says: dict[str, Report | Exception] = {"authorise": AUTHORISED, "capture": CAPTURED, "void": VOIDED}
        self.says["status"] = Report(state=ReportedState.ABSENT)
        self.says |= says
        self.refunds: RefundReport | Exception = RefundReport(state=ReportedRefundState.DONE, gateway_id="re_1")
        self.made: RefundReport | Exception | None = RefundReport(state=ReportedRefundState.DONE, gateway_id="re_1")
        self.calls: list[str] = []

    async def authorise(self, order: Order) -> Report:
        """Authorise."""
        return self._answer("authorise", order)

    async def capture(self, order: Order) -> Report:
        """Capture."""
        return self._answer("capture", order)

    async def void(self, order: Order) -> Report:
        """Void."""
        return self._answer("void", order)

    async def status(self, order: Order) -> Report:
        """The payment's status."""
        return self._answer("status", order)

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Refund."""
        self.calls.append(f"refund {refund.amount}")
        if isinstance(self.refunds, Exception):
            raise self.refunds
        return self.refunds

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """The refund's status."""
        self.calls.append(f"refund_status {refund.amount}")
        if isinstance(self.made, Exception):
            raise self.made
        return self.made

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """It has made no refund without us."""
        self.calls.append(f"refunds {order.amount}")
        return []

    async def whose(self, gateway_id: str) -> UUID | None:
        """It knows no such payment."""
        self.calls.append(f"whose {gateway_id}")
        return None

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """It accepts no callback."""
        raise CallbackRefused(f"{len(headers)} headers, {len(body)} bytes")

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """It keeps none."""
        kept: list[Record] = []
        for record in kept:
            assert record.captured, since
            yield record

    async def close(self) -> None:
        """It has nothing to close."""

    def _answer(self, call: str, order: Order) -> Report:
        self.calls.append(call)
        said = self.says[call]
        if isinstance(said, Exception):
            raise said
        if said.state is ReportedState.CAPTURED:
            return Report(state=said.state, gateway_id=said.gateway_id, captured=order.amount)
        return said


AUTHORISED = Report(state=ReportedState.AUTHORISED, gateway_id="pi_1")
CAPTURED = Report(state=ReportedState.CAPTURED, gateway_id="pi_1")
VOIDED = Report(state=ReportedState.VOIDED, gateway_id="pi_1")
DECLINED = Report(state=ReportedState.DECLINED, gateway_id="pi_1", code="card_declined")
PROCESSING = Report(state=ReportedState.PROCESSING, gateway_id="pi_1")
