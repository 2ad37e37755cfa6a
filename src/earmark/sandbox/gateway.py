"""The sandbox as a gateway in this process: the gateway port over a simulated bank that follows its script.

A payment that is in the bank of another process is left to that process for a day. After that its bank is taken to be
gone, and with it the money: nothing more is captured, nothing is set aside, and a refund is refused.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from earmark.domain.payment import Standing
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
    RefundStanding,
    Report,
)
from earmark.sandbox import signature, words
from earmark.sandbox.desk import ReplyLost
from earmark.sandbox.model import (
    PAYMENT_ID,
    Fate,
    Intent,
    Kind,
    Problem,
    Refund,
    RefundStatus,
    Refused,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from datetime import datetime

    from earmark.sandbox.house import Sandbox

T = TypeVar("T")
Moved = TypeVar("Moved", bound=Intent | Refund)

BOOKING_ID = "booking_id"
REFUND_ID = "refund_id"
WARNING = "radar.early_fraud_warning"
FOREIGN = "foreign_sandbox"
FOREIGN_MESSAGE = (
    "This test payment is in the memory of another process, which may have ended: that one alone knows it."
)
GONE = Problem(
    code=FOREIGN, message="The process that had this test payment in its memory has ended, and nothing is left of it."
)
FORGOTTEN = Problem(
    code="forgotten_by_sandbox", message="This test payment is too old: a server's sandbox remembers the newest ones."
)
GONE_AFTER = timedelta(days=1)
"""From when on the bank of another process is taken to be gone: the reconciler of one that runs has long been there."""
UNKNOWN = frozenset({Kind.BROKEN, Kind.BUSY, Kind.IN_PROGRESS})
FIELDS = {"payment_method": "method", "return_url": "return_url"}
"""What of a call is what a request to pay says, and under which name."""
OF_THE_SHOP = frozenset({"amount", "currency"})
"""What of a call follows from what the shop sells."""
STANDINGS = {
    Status.REQUIRES_CONFIRMATION: Standing.PROCESSING,
    Status.REQUIRES_ACTION: Standing.REQUIRES_ACTION,
    Status.PROCESSING: Standing.PROCESSING,
    Status.REQUIRES_PAYMENT_METHOD: Standing.DECLINED,
    Status.REQUIRES_CAPTURE: Standing.AUTHORISED,
    Status.CANCELED: Standing.VOIDED,
    Status.SUCCEEDED: Standing.CAPTURED,
}
REFUND_STANDINGS = {
    RefundStatus.PENDING: RefundStanding.PROCESSING,
    RefundStatus.SUCCEEDED: RefundStanding.DONE,
    RefundStatus.FAILED: RefundStanding.REFUSED,
}


class SandboxGateway:
    """One shop's view of a sandbox bank. `patience_seconds` is how long it waits for an answer."""

    name = "sandbox"
    live = False

    def __init__(self, sandbox: Sandbox, *, patience_seconds: float = 10.0) -> None:
        self.sandbox = sandbox
        self.bank = sandbox.bank
        self.script = sandbox.script
        self.courier = sandbox.courier
        self.patience_seconds = patience_seconds
        self._under_way: set[asyncio.Task[Any]] = set()

    async def authorise(self, order: Order) -> Report:
        """Set the money aside, or take it at once."""
        asked: dict[str, Any] = {
            "amount": order.amount,
            "currency": order.currency,
            "method": order.method,
            "automatic": order.automatic,
            "return_url": order.return_url,
            "metadata": _metadata(order),
        }
        key = str(order.payment_id)
        try:
            intent = await self._change("authorise", lambda fate: self.bank.authorise(**asked, fate=fate), key, asked)
        except Refused as refused:
            if refused.kind is not Kind.CARD or refused.intent is None:
                raise _refusal(refused) from refused
            intent = refused.intent
        # A key repeats the first answer; what is true now is in the books.
        return self._report(self.bank.intent(intent.id))

    async def capture(self, order: Order) -> Report:
        """Take all of what was set aside."""
        return await self._move("capture", order, lambda id_, fate: self.bank.capture(id_, fate=fate))

    async def void(self, order: Order) -> Report:
        """Give up what was not captured."""
        return await self._move("void", order, lambda id_, fate: self.bank.void(id_, fate=fate))

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Give money back."""
        if lost := self._lost(refund.payment, since=refund.created_at):
            return RefundReport(standing=RefundStanding.REFUSED, code=lost.code, message=lost.message)
        found = self._find(refund.payment)
        if found is None:
            raise GatewayRefused("resource_missing", "There is no such payment.")
        intent = found
        metadata = _metadata(refund.payment) | {REFUND_ID: str(refund.refund_id)}

        def work(fate: Fate) -> Refund:
            # The bank forgets keys after a day. A refund that was made is found by our id, and is not made twice.
            made = self._find_refund(intent, refund)
            return made or self.bank.refund(intent.id, amount=refund.amount, metadata=metadata, fate=fate)

        try:
            given = await self._change("refund", work, str(refund.refund_id), [intent.id, refund.amount])
        except Refused as refused:
            if not refused.kept:
                raise GatewayRefused(refused.problem.code, refused.problem.message) from refused
            code, message = refused.problem.code, refused.problem.message
            return RefundReport(standing=RefundStanding.REFUSED, code=code, message=message)
        return _refund_report(self.bank.refund_by_id(given.id))

    async def status(self, order: Order) -> Report:
        """How the payment stands now."""
        if self._lost(order):
            return Report(standing=Standing.ABSENT)
        found = await self._read("status", lambda: self._find(order))
        return self._report(found) if found else Report(standing=Standing.ABSENT)

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """How a refund stands now."""
        if self._lost(refund.payment):
            return None

        def look() -> Refund | None:
            intent = self._find(refund.payment)
            return self._find_refund(intent, refund) if intent else None

        found = await self._read("refund_status", look)
        return _refund_report(found) if found else None

    async def list_refunds(self, order: Order) -> list[RefundRecord]:
        """From the bank's books, the newest first; of a payment that is lost with its process, none are known."""
        if self._lost(order):
            return []

        def look() -> list[Refund]:
            intent = self._find(order)
            return self.bank.refunds(intent.id) if intent else []

        return [
            RefundRecord(
                refund_id=_uuid(one.metadata.get(REFUND_ID)),
                gateway_id=one.id,
                amount=one.amount,
                standing=REFUND_STANDINGS[one.status],
            )
            for one in await self._read("refund_status", look)
        ]

    async def whose(self, gateway_id: str) -> UUID | None:
        """As its metadata says."""
        return _uuid(await self._read("status", lambda: self._payment_id(gateway_id)))

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Check who signed it and when, and read what it is about."""
        signature.verify(headers, body, secret=self.sandbox.secret, now=self.sandbox.clock.now())
        try:
            said = msgspec.json.decode(body)
            about = said["data"]["object"]
            gateway_id = about["id"] if about["object"] == "payment_intent" else about["payment_intent"]
            whole = about["object"] in {"payment_intent", "charge"}
            # A warning of fraud carries neither our ids nor a currency.
            metadata = about["metadata"] if about["object"] != WARNING else {}
            return Callback(
                id=said["id"],
                kind=said["type"],
                live=said["livemode"],
                payment_id=_uuid(metadata.get(PAYMENT_ID) or self._payment_id(gateway_id)),
                booking_id=_uuid(metadata.get(BOOKING_ID)),
                gateway_id=gateway_id,
                # The amount of a refund or a dispute is not that of its payment.
                amount=about["amount"] if whole else None,
                currency=about["currency"].upper() if about["object"] != WARNING else None,
                disputed=about["object"] == "dispute",
                refund=about["object"] == "refund",
            )
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as unread:
            raise CallbackRefused("It is no event.") from unread

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Every intent from `since` on, the newest first."""
        for intent in await self._read("list", self.bank.intents):
            if intent.created >= since:
                yield Record(
                    payment_id=_uuid(intent.payment_id),
                    gateway_id=intent.id,
                    standing=STANDINGS[intent.status],
                    currency=intent.currency,
                    captured=intent.captured,
                    refunded=intent.refunded,
                )

    async def deliver_callbacks(self, *, flush: bool = True) -> int:
        """Send the callbacks that are due; how many were taken."""
        return await self.courier.send_due(flush=flush)

    async def close(self) -> None:
        """Nothing goes on after this."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _move(self, name: str, order: Order, work: Callable[[str, Fate], Intent]) -> Report:
        """Change an intent that exists. One that cannot be changed so, any more or yet, is reported as it stands."""
        if lost := self._lost(order):
            return Report(standing=Standing.VOIDED, code=lost.code, message=lost.message)
        found = self._find(order)
        if found is None:
            return Report(standing=Standing.ABSENT)
        intent_id = found.id
        try:
            # No key: that it happens once follows from the intent's state, and a no need not be remembered.
            moved = await self._change(name, lambda fate: work(intent_id, fate), None, intent_id)
        except Refused as refused:
            return self._report(refused.intent or found)
        return self._report(moved)

    def _lost(self, order: Order, *, since: datetime | None = None) -> Problem | None:
        """Why no bank knows this payment any longer; None for one that this bank can speak of.

        What is in the bank of another process is not absent: this one must not end it, and refuses to say anything.
        """
        if order.gateway_id is None:
            return None
        if self.bank.gave(order.gateway_id):
            return None if self.bank.has(order.gateway_id) else FORGOTTEN
        if not self._is_gone(since or order.created_at):
            raise GatewayRefused(FOREIGN, FOREIGN_MESSAGE)
        return GONE

    def _is_gone(self, since: datetime) -> bool:
        """Whether another bank has had its time for what was asked then."""
        return self.sandbox.clock.now() >= since + GONE_AFTER

    def _find(self, order: Order) -> Intent | None:
        if order.gateway_id is None:
            return next(iter(self.bank.find(str(order.payment_id))), None)
        try:
            return self.bank.intent(order.gateway_id)
        except Refused:
            return None

    def _find_refund(self, intent: Intent, refund: RefundOrder) -> Refund | None:
        id_ = str(refund.refund_id)
        return next((one for one in self.bank.refunds(intent.id) if one.metadata.get(REFUND_ID) == id_), None)

    def _payment_id(self, gateway_id: str) -> str | None:
        """Ours, of an intent: a dispute does not carry it."""
        try:
            return self.bank.intent(gateway_id).payment_id
        except Refused:
            return None

    async def _change(self, name: str, work: Callable[[Fate], Moved], key: str | None, params: object) -> Moved:
        value, _ = await self._patiently(self.sandbox.desk.change(name, work, key=key, params=params, gone=self._gone))
        return value

    async def _read(self, name: str, work: Callable[[], T]) -> T:
        return await self._patiently(self.sandbox.desk.read(name, work, gone=self._gone))

    async def _patiently(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer, for so long. The bank goes on with what was asked, whether or not somebody waits."""
        task = asyncio.ensure_future(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=self.patience_seconds)
        if not done:
            raise GatewaySilent("The sandbox did not answer.")
        try:
            return task.result()
        except ReplyLost as lost:
            raise GatewaySilent("The connection was cut.") from lost
        except Refused as refused:
            if refused.kind in UNKNOWN:
                raise GatewaySilent(refused.problem.message) from refused
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def _gone(self) -> None:
        """Whoever asked gives up when its patience is over."""
        await asyncio.sleep(self.patience_seconds)

    def _report(self, intent: Intent) -> Report:
        action = None
        if intent.status is Status.REQUIRES_ACTION:
            url = words.action_url(intent, base_url=self.sandbox.base_url)
            action = {"url": url, "client_secret": intent.client_secret}
        return Report(
            standing=STANDINGS[intent.status],
            gateway_id=intent.id,
            captured=intent.captured,
            refunded=intent.refunded,
            code=_code(intent),
            message=intent.problem.message if intent.problem else None,
            action=action,
        )


def _code(intent: Intent) -> str | None:
    """The most telling word there is."""
    if intent.problem is None:
        return intent.cancellation_reason
    telling = intent.problem.decline_code not in {None, "generic_decline"}
    return intent.problem.decline_code if telling else intent.problem.code


def _refund_report(refund: Refund) -> RefundReport:
    standing = REFUND_STANDINGS[refund.status]
    return RefundReport(standing=standing, gateway_id=refund.id, code=refund.failure)


def _refusal(refused: Refused) -> GatewayRefused:
    """A call that the bank could not read: by the buyer's request, by what the shop sells, or by another fault."""
    told = (refused.problem.code, refused.problem.message)
    if field := FIELDS.get(refused.param or ""):
        return GatewayInvalid(*told, field=field)
    return GatewayDenied(*told) if refused.param in OF_THE_SHOP else GatewayRefused(*told)


def _metadata(order: Order) -> dict[str, str]:
    return {PAYMENT_ID: str(order.payment_id), BOOKING_ID: str(order.booking_id), "event_id": order.event_id}


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
