"""The sandbox as a gateway in this process: an implementation of the port in `earmark.engine.ports.gateway`.

A payment of a bank in another process is left to that process for a day. After that, the gateway assumes that the
process has ended and its test money is lost: it captures nothing, reports no authorisation and refuses refunds.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import (
    Callback,
    CallbackRefused,
    GatewayDenied,
    GatewayInvalid,
    GatewayRefused,
    GatewaySilent,
    Order,
    Record,
    RefundOrder,
    RefundRecord,
    RefundReport,
    Report,
    ReportedRefundState,
)
from earmark.sandbox import sign_and_verify_callbacks, stripe_json
from earmark.sandbox.call_pipeline import ReplyLost
from earmark.sandbox.model import (
    PAYMENT_ID,
    BankIntent,
    BankRefund,
    BankRefusal,
    IntentStatus,
    Problem,
    RefundStatus,
    RefusalKind,
    ScriptedOutcome,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from datetime import datetime

    from earmark.sandbox.assemble_sandbox import Sandbox

T = TypeVar("T")
Moved = TypeVar("Moved", bound=BankIntent | BankRefund)

BOOKING_ID = "booking_id"
REFUND_ID = "refund_id"
WARNING = "radar.early_fraud_warning"
FOREIGN = "foreign_sandbox"
FOREIGN_MESSAGE = (
    "This test payment is in the memory of another process, which may have ended; only that process can report on it."
)
GONE = Problem(
    code=FOREIGN, message="The process that had this test payment in its memory has ended, and the payment with it."
)
FORGOTTEN = Problem(
    code="forgotten_by_sandbox", message="This test payment is too old: a server's sandbox keeps only the newest ones."
)
GONE_AFTER = timedelta(days=1)
"""After this time another process is assumed to have ended: a running one would have ended the payment before."""
UNKNOWN = frozenset({RefusalKind.BROKEN, RefusalKind.BUSY, RefusalKind.IN_PROGRESS})
FIELDS = {"payment_method": "method", "return_url": "return_url"}
"""The parameters of a call that come from the request to pay, and the names of their fields there."""
OF_THE_SHOP = frozenset({"amount", "currency"})
"""The parameters of a call that come from what the shop sells."""
REPORTED_STATES = {
    IntentStatus.REQUIRES_CONFIRMATION: ReportedState.PROCESSING,
    IntentStatus.REQUIRES_ACTION: ReportedState.REQUIRES_ACTION,
    IntentStatus.PROCESSING: ReportedState.PROCESSING,
    IntentStatus.REQUIRES_PAYMENT_METHOD: ReportedState.DECLINED,
    IntentStatus.REQUIRES_CAPTURE: ReportedState.AUTHORISED,
    IntentStatus.CANCELED: ReportedState.VOIDED,
    IntentStatus.SUCCEEDED: ReportedState.CAPTURED,
}
REPORTED_REFUND_STATES = {
    RefundStatus.PENDING: ReportedRefundState.PROCESSING,
    RefundStatus.SUCCEEDED: ReportedRefundState.DONE,
    RefundStatus.FAILED: ReportedRefundState.REFUSED,
}


class SandboxGateway:
    """A gateway over one sandbox. `timeout_seconds` is how long it waits for an answer of the bank."""

    name = "sandbox"
    mode = Mode.TEST

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: float = 10.0) -> None:
        self.sandbox = sandbox
        self.bank = sandbox.bank
        self.script = sandbox.script
        self.callbacks = sandbox.callbacks
        self.timeout_seconds = timeout_seconds
        self._running: set[asyncio.Task[Any]] = set()

    async def authorise(self, order: Order) -> Report:
        """Authorise a payment or, with automatic capture, capture it."""
        params: dict[str, Any] = {
            "amount": order.amount,
            "currency": order.currency,
            "method": order.method,
            "automatic": order.automatic,
            "return_url": order.return_url,
            "metadata": _metadata(order),
        }
        key = str(order.payment_id)
        try:
            intent = await self._change(
                "authorise", lambda scripted: self.bank.authorise(**params, scripted=scripted), key, params
            )
        except BankRefusal as refused:
            if refused.kind is not RefusalKind.CARD or refused.intent is None:
                raise _refusal(refused) from refused
            intent = refused.intent
        # An idempotency key repeats the first answer; the bank has the current state.
        return self._report(self.bank.intent(intent.id))

    async def capture(self, order: Order) -> Report:
        """Capture the whole authorised amount."""
        return await self._move("capture", order, lambda id_, scripted: self.bank.capture(id_, scripted=scripted))

    async def void(self, order: Order) -> Report:
        """Void a payment that was not captured."""
        return await self._move("void", order, lambda id_, scripted: self.bank.void(id_, scripted=scripted))

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Refund, or report the refund that was already made under this id."""
        if lost := self._lost(refund.payment, since=refund.created_at):
            return RefundReport(state=ReportedRefundState.REFUSED, code=lost.code, message=lost.message)
        found = self._find(refund.payment)
        if found is None:
            raise GatewayRefused("resource_missing", "There is no such payment.")
        intent = found
        metadata = _metadata(refund.payment) | {REFUND_ID: str(refund.refund_id)}

        def work(scripted: ScriptedOutcome) -> BankRefund:
            # The bank deletes keys after a day. A refund that was made is found by our id, and is not made twice.
            made = self._find_refund(intent, refund)
            return made or self.bank.refund(intent.id, amount=refund.amount, metadata=metadata, scripted=scripted)

        try:
            given = await self._change("refund", work, str(refund.refund_id), [intent.id, refund.amount])
        except BankRefusal as refused:
            if not refused.kept:
                raise GatewayRefused(refused.problem.code, refused.problem.message) from refused
            code, message = refused.problem.code, refused.problem.message
            return RefundReport(state=ReportedRefundState.REFUSED, code=code, message=message)
        return _refund_report(self.bank.refund_by_id(given.id))

    async def status(self, order: Order) -> Report:
        """The current state of a payment."""
        if self._lost(order):
            return Report(state=ReportedState.ABSENT)
        found = await self._read("status", lambda: self._find(order))
        return self._report(found) if found else Report(state=ReportedState.ABSENT)

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """The current state of a refund; None when there is none under this id."""
        if self._lost(refund.payment):
            return None

        def find() -> BankRefund | None:
            intent = self._find(refund.payment)
            return self._find_refund(intent, refund) if intent else None

        found = await self._read("refund_status", find)
        return _refund_report(found) if found else None

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """The refunds of a payment, the newest first; none of a payment that was lost with its process."""
        if self._lost(order):
            return []

        def find() -> list[BankRefund]:
            intent = self._find(order)
            return self.bank.refunds(intent.id) if intent else []

        return [
            RefundRecord(
                refund_id=_uuid(known.metadata.get(REFUND_ID)),
                gateway_id=known.id,
                amount=known.amount,
                state=REPORTED_REFUND_STATES[known.status],
            )
            for known in await self._read("refund_status", find)
        ]

    async def whose(self, gateway_id: str) -> UUID | None:
        """Our payment id, from the metadata of the intent."""
        return _uuid(await self._read("status", lambda: self._payment_id(gateway_id)))

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Verify the signature and its time, and read the event."""
        sign_and_verify_callbacks.verify(headers, body, secret=self.sandbox.secret, now=self.sandbox.clock.now())
        try:
            event = msgspec.json.decode(body)
            about = event["data"]["object"]
            gateway_id = about["id"] if about["object"] == "payment_intent" else about["payment_intent"]
            whole = about["object"] in {"payment_intent", "charge"}
            # A fraud warning has neither our ids nor a currency.
            metadata = about["metadata"] if about["object"] != WARNING else {}
            return Callback(
                id=event["id"],
                kind=event["type"],
                mode=Mode.LIVE if event["livemode"] else Mode.TEST,
                payment_id=_uuid(metadata.get(PAYMENT_ID) or self._payment_id(gateway_id)),
                booking_id=_uuid(metadata.get(BOOKING_ID)),
                gateway_id=gateway_id,
                # The amount of a refund or a dispute is not that of its payment.
                amount=about["amount"] if whole else None,
                currency=about["currency"].upper() if about["object"] != WARNING else None,
                disputed=about["object"] == "dispute",
                refund=about["object"] == "refund",
            )
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise CallbackRefused("The body is not an event.") from error

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Every payment that was made since then, the newest first."""
        for intent in await self._read("list", self.bank.intents):
            if intent.created >= since:
                yield Record(
                    payment_id=_uuid(intent.payment_id),
                    gateway_id=intent.id,
                    state=REPORTED_STATES[intent.status],
                    currency=intent.currency,
                    captured=intent.captured,
                    refunded=intent.refunded,
                )

    async def close(self) -> None:
        """Cancel the calls that are still running."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _move(self, name: str, order: Order, work: Callable[[str, ScriptedOutcome], BankIntent]) -> Report:
        """Change an existing intent. If its status does not allow the change, report its current state."""
        if lost := self._lost(order):
            return Report(state=ReportedState.VOIDED, code=lost.code, message=lost.message)
        found = self._find(order)
        if found is None:
            return Report(state=ReportedState.ABSENT)
        intent_id = found.id
        try:
            # No key: the status of the intent allows the change once, and a refusal must not be stored.
            moved = await self._change(name, lambda scripted: work(intent_id, scripted), None, intent_id)
        except BankRefusal as refused:
            return self._report(refused.intent or found)
        return self._report(moved)

    def _lost(self, order: Order, *, since: datetime | None = None) -> Problem | None:
        """Why no bank has this payment any more; None for a payment of this bank.

        A payment of a bank in another process is not absent: this process must not end it, so the call is refused.
        """
        if order.gateway_id is None:
            return None
        if self.bank.issued(order.gateway_id):
            return None if self.bank.has(order.gateway_id) else FORGOTTEN
        if not self._is_gone(since or order.created_at):
            raise GatewayRefused(FOREIGN, FOREIGN_MESSAGE)
        return GONE

    def _is_gone(self, since: datetime) -> bool:
        """Whether the process of another bank is assumed to have ended, for a request of that time."""
        return self.sandbox.clock.now() >= since + GONE_AFTER

    def _find(self, order: Order) -> BankIntent | None:
        if order.gateway_id is None:
            return next(iter(self.bank.find(str(order.payment_id))), None)
        try:
            return self.bank.intent(order.gateway_id)
        except BankRefusal:
            return None

    def _find_refund(self, intent: BankIntent, refund: RefundOrder) -> BankRefund | None:
        id_ = str(refund.refund_id)
        return next((known for known in self.bank.refunds(intent.id) if known.metadata.get(REFUND_ID) == id_), None)

    def _payment_id(self, gateway_id: str) -> str | None:
        """Our payment id, looked up by the intent: a dispute does not have it."""
        try:
            return self.bank.intent(gateway_id).payment_id
        except BankRefusal:
            return None

    async def _change(
        self, name: str, work: Callable[[ScriptedOutcome], Moved], key: str | None, params: object
    ) -> Moved:
        value, _ = await self._with_timeout(
            self.sandbox.pipeline.change(name, work, key=key, params=params, client_gave_up=self._client_gave_up)
        )
        return value

    async def _read(self, name: str, work: Callable[[], T]) -> T:
        return await self._with_timeout(self.sandbox.pipeline.read(name, work, client_gave_up=self._client_gave_up))

    async def _with_timeout(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer up to the timeout. The call goes on after it, as a real gateway's does."""
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=self.timeout_seconds)
        if not done:
            raise GatewaySilent("The sandbox did not answer.")
        try:
            return task.result()
        except ReplyLost as lost:
            raise GatewaySilent("The connection was cut.") from lost
        except BankRefusal as refused:
            if refused.kind in UNKNOWN:
                raise GatewaySilent(refused.problem.message) from refused
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    async def _client_gave_up(self) -> None:
        """Return when this gateway stops waiting for the answer."""
        await asyncio.sleep(self.timeout_seconds)

    def _report(self, intent: BankIntent) -> Report:
        action = None
        if intent.status is IntentStatus.REQUIRES_ACTION:
            url = stripe_json.action_url(intent, base_url=self.sandbox.base_url)
            action = {"url": url, "client_secret": intent.client_secret}
        return Report(
            state=REPORTED_STATES[intent.status],
            gateway_id=intent.id,
            captured=intent.captured,
            refunded=intent.refunded,
            code=_code(intent),
            message=intent.problem.message if intent.problem else None,
            action=action,
        )


def _code(intent: BankIntent) -> str | None:
    """The most specific code of a decline or a cancellation."""
    if intent.problem is None:
        return intent.cancellation_reason
    specific = intent.problem.decline_code not in {None, "generic_decline"}
    return intent.problem.decline_code if specific else intent.problem.code


def _refund_report(refund: BankRefund) -> RefundReport:
    state = REPORTED_REFUND_STATES[refund.status]
    return RefundReport(state=state, gateway_id=refund.id, code=refund.failure)


def _refusal(refused: BankRefusal) -> GatewayRefused:
    """The error for a wrong call: wrong by the buyer's request, by what the shop sells, or otherwise."""
    reason = (refused.problem.code, refused.problem.message)
    if field := FIELDS.get(refused.param or ""):
        return GatewayInvalid(*reason, field=field)
    return GatewayDenied(*reason) if refused.param in OF_THE_SHOP else GatewayRefused(*reason)


def _metadata(order: Order) -> dict[str, str]:
    return {PAYMENT_ID: str(order.payment_id), BOOKING_ID: str(order.booking_id), "event_id": order.event_id}


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
