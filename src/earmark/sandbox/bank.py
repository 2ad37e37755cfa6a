"""The simulated bank: payment intents, captures, refunds and disputes, and a ledger of every movement of money.

Synchronous and without I/O. The clock is injected, and a seed makes ids repeatable, so a run can be repeated. Every
return value is frozen: later changes of the bank do not alter it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.bank_records import BankRecords
from earmark.sandbox.check_bank_requests import (
    check_amount,
    check_currency,
    check_metadata,
    check_method,
    check_refund,
    unexpected,
)
from earmark.sandbox.model import (
    AS_REQUESTED,
    CAPTURE_REFUSED,
    DECLINED,
    NOT_AUTHENTICATED,
    BankEvent,
    BankIntent,
    BankRefund,
    BankRefusal,
    Dispute,
    IntentStatus,
    LedgerLine,
    LedgerMove,
    RefundStatus,
    RefusalKind,
    ScriptedOutcome,
    invalid,
    missing,
)
from earmark.sandbox.payment_methods import DECISION_SECONDS, METHODS, Card, RefundBehaviour

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from earmark.engine.ports.store import Clock

AUTHORISED_FOR = timedelta(days=7)
REFUND_SECONDS = 60
"""After how many seconds a refund is made, or fails, where its method says that this happens later."""
TRIABLE = frozenset({IntentStatus.REQUIRES_CONFIRMATION, IntentStatus.REQUIRES_PAYMENT_METHOD})
VOIDABLE = frozenset(IntentStatus) - {IntentStatus.SUCCEEDED, IntentStatus.CANCELED, IntentStatus.PROCESSING}


class _LateMoney(msgspec.Struct, frozen=True):
    """Money that arrives although its call was refused; `at` is None until `Bank.land` is called."""

    intent_id: str
    capture: bool
    at: datetime | None


class _DueRefund(msgspec.Struct, frozen=True):
    """A refund that changes its status at this time without a request."""

    refund_id: str
    at: datetime


class _DueDecision(msgspec.Struct, frozen=True):
    """A processing payment that is authorised at this time without a request."""

    intent_id: str
    at: datetime


class Bank:
    """One simulated bank. Every public method first applies the changes that are due by the clock."""

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None = None,
        listener: Callable[[BankEvent], None] | None = None,
        payments_max: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self.clock = clock
        self._records = BankRecords(clock, seed=seed, listener=listener, payments_max=payments_max, log_max=log_max)
        self._late: list[_LateMoney] = []
        self._refunds_later: list[_DueRefund] = []
        self._decisions_later: list[_DueDecision] = []

    # Requests of a shop.

    def authorise(
        self,
        *,
        amount: int,
        currency: str,
        method: str | None,
        metadata: Mapping[str, str] | None = None,
        automatic: bool = False,
        confirm: bool = True,
        return_url: str | None = None,
        description: str | None = None,
        in_page: bool = False,
        scripted: ScriptedOutcome = AS_REQUESTED,
    ) -> BankIntent:
        """Create an intent and, with `confirm`, authorise it. A decline raises a refusal that carries the intent."""
        self._apply_due_changes()
        check_amount(amount)
        check_currency(currency)
        check_metadata(metadata or {})
        if method is not None or confirm:
            check_method(method)
        id_ = self._records.new_intent_id()
        intent = BankIntent(
            id=id_,
            client_secret=self._records.new_id(f"{id_}_secret"),
            charge_id=self._records.new_id("ch"),
            created=self.clock.now(),
            amount=amount,
            currency=currency,
            automatic=automatic,
            method=method,
            metadata=dict(metadata or {}),
            return_url=return_url,
            description=description,
            in_page=in_page,
            status=IntentStatus.REQUIRES_CONFIRMATION if method else IntentStatus.REQUIRES_PAYMENT_METHOD,
        )
        self._records.add(intent)
        return self._try(intent, scripted) if confirm else intent

    def confirm(
        self,
        intent_id: str,
        *,
        method: str | None = None,
        return_url: str | None = None,
        scripted: ScriptedOutcome = AS_REQUESTED,
    ) -> BankIntent:
        """Authorise a new intent, or one that was declined before."""
        intent = self.intent(intent_id)
        if intent.status not in TRIABLE:
            raise unexpected(intent, "confirmed")
        # A decline clears the method, so the next attempt must name one.
        method = method or (intent.method if intent.status is IntentStatus.REQUIRES_CONFIRMATION else None)
        check_method(method)
        return self._try(
            self._records.change(intent, method=method, return_url=return_url or intent.return_url), scripted
        )

    def capture(
        self, intent_id: str, *, amount: int | None = None, scripted: ScriptedOutcome = AS_REQUESTED
    ) -> BankIntent:
        """Capture the authorised amount, once, whole or in part; the rest is voided."""
        intent = self.intent(intent_id)
        if intent.status is not IntentStatus.REQUIRES_CAPTURE:
            raise unexpected(intent, "captured")
        if amount is not None and not 1 <= amount <= intent.amount:
            message = f"The amount to capture must be from 1 to {intent.amount}."
            raise invalid(message, code="amount_too_large", param="amount_to_capture")
        problem = _card(intent).capture or (CAPTURE_REFUSED if scripted.declined or scripted.late else None)
        if problem is not None:
            intent = self._records.fail(intent, problem)
            self._postpone(intent, scripted, capture=True)
            raise BankRefusal(RefusalKind.CARD, problem, intent=intent, kept=True)
        return self._records.capture(intent, amount or intent.amount)

    def void(
        self, intent_id: str, *, reason: str | None = None, scripted: ScriptedOutcome = AS_REQUESTED
    ) -> BankIntent:
        """Cancel an intent that was not captured."""
        intent = self.intent(intent_id)
        if intent.status not in VOIDABLE:
            raise unexpected(intent, "canceled")
        self._postpone(intent, scripted, capture=False)
        return self._records.cancel(intent, reason)

    def refund(
        self,
        intent_id: str,
        *,
        amount: int | None = None,
        metadata: Mapping[str, str] | None = None,
        reason: str | None = None,
        scripted: ScriptedOutcome = AS_REQUESTED,
    ) -> BankRefund:
        """Refund a part of what was captured, or all that is left, and never more."""
        intent = self.intent(intent_id)
        check_metadata(metadata or {})
        if amount is not None:
            check_amount(amount)
        check_refund(intent, amount)
        refund = BankRefund(
            id=self._records.new_id("re"),
            intent_id=intent.id,
            charge_id=intent.charge_id,
            created=self.clock.now(),
            amount=intent.left if amount is None else amount,
            currency=intent.currency,
            status=RefundStatus.PENDING,
            metadata=dict(metadata or {}),
            reason=reason,
        )
        self._records.begin_refund(intent, refund)
        way = RefundBehaviour.REFUSED if scripted.declined else _card(intent).refunds
        if way in {RefundBehaviour.MADE_LATER, RefundBehaviour.FAIL_LATER}:
            at = self.clock.now() + timedelta(seconds=REFUND_SECONDS)
            self._refunds_later.append(_DueRefund(refund.id, at))
        if way in {RefundBehaviour.WAIT, RefundBehaviour.MADE_LATER}:
            return refund
        return self._records.end_refund(refund, succeed=way is not RefundBehaviour.REFUSED)

    # Queries.

    def intent(self, intent_id: str) -> BankIntent:
        """The current state of an intent; raises a refusal when there is none with this id."""
        return self._apply_due_changes().intent(intent_id)

    def issued(self, intent_id: str) -> bool:
        """Whether this bank issued the id. A bank in another process, or before a restart, is another bank."""
        return self._records.issued(intent_id)

    def has(self, intent_id: str) -> bool:
        """Whether the bank still keeps this intent in memory."""
        return intent_id in self._apply_due_changes().intents

    def intents(self) -> list[BankIntent]:
        """All intents, the newest first."""
        return list(reversed(self._apply_due_changes().intents.values()))

    def find(self, payment_id: str) -> list[BankIntent]:
        """The intents whose metadata has this payment id of Earmark's, the newest first."""
        return self._apply_due_changes().find(payment_id)

    def intent_of_charge(self, charge_id: str) -> BankIntent:
        """The intent that a charge belongs to."""
        return self._apply_due_changes().intent_of_charge(charge_id)

    def refund_by_id(self, refund_id: str) -> BankRefund:
        """The current state of a refund; raises a refusal when there is none with this id."""
        if refund_id not in self._apply_due_changes().refunds:
            raise missing("refund", refund_id)
        return self._records.refunds[refund_id]

    def refunds(self, intent_id: str | None = None) -> list[BankRefund]:
        """The refunds of an intent, or all, the newest first."""
        records = self._apply_due_changes()
        return list(reversed(records.refunds.values())) if intent_id is None else records.refunds_of(intent_id)

    @property
    def disputes(self) -> list[Dispute]:
        """All disputes, the oldest first."""
        return list(self._apply_due_changes().disputes)

    @property
    def events(self) -> list[BankEvent]:
        """All events, the oldest first."""
        return list(self._apply_due_changes().events)

    @property
    def ledger(self) -> list[LedgerLine]:
        """Every movement of money, the oldest first."""
        return list(self._apply_due_changes().ledger)

    def total(self, move: LedgerMove, *, intent_id: str | None = None, payment_id: str | None = None) -> int:
        """The sum of the ledger lines with this move, of one intent or payment if named."""
        return sum(
            line.amount
            for line in self.ledger
            if line.move is move and intent_id in {None, line.intent_id} and payment_id in {None, line.payment_id}
        )

    # Actions of the buyer, of the buyer's bank, and of time.

    def act(self, intent_id: str, *, succeed: bool) -> BankIntent:
        """The buyer completes the requested action, or fails it."""
        intent = self.intent(intent_id)
        if intent.status is not IntentStatus.REQUIRES_ACTION:
            raise unexpected(intent, "acted upon")
        problem = _card(intent).after if succeed else NOT_AUTHENTICATED
        return self._records.approve(intent) if problem is None else self._records.fail(intent, problem)

    def decide(self, id_: str, *, succeed: bool) -> BankIntent | BankRefund:
        """The buyer's bank decides a payment that is processing, or a refund that is pending."""
        refund = self._apply_due_changes().refunds.get(id_)
        if refund is not None:
            if refund.status is not RefundStatus.PENDING:
                raise invalid(f"The refund {id_} is {refund.status}.", code="refund_unexpected_state")
            return self._records.end_refund(refund, succeed=succeed)
        intent = self.intent(id_)
        if intent.status is not IntentStatus.PROCESSING:
            raise unexpected(intent, "decided")
        return self._records.approve(intent) if succeed else self._records.fail(intent, DECLINED)

    def return_refund(self, refund_id: str) -> BankRefund:
        """The buyer's bank returns a refund that had succeeded, as it may weeks later when an account is closed."""
        refund = self.refund_by_id(refund_id)
        if refund.status is not RefundStatus.SUCCEEDED:
            raise invalid(f"The refund {refund_id} is {refund.status}.", code="refund_unexpected_state")
        return self._records.return_refund(refund)

    def land(self) -> list[BankIntent]:
        """Let all late money arrive now: refused calls with the fault `late_success` take effect."""
        landing, self._late = self._late, []
        return [self._land(one) for one in landing if one.intent_id in self._records.intents]

    def new_id(self, prefix: str) -> str:
        """A new unique id, for what is kept beside the bank."""
        return self._records.new_id(prefix)

    def tick(self) -> None:
        """Apply the changes that are due by the clock, without a request."""
        self._apply_due_changes()

    # Internals.

    def _apply_due_changes(self) -> BankRecords:
        """Expire old authorisations, and change what is due by the clock; returns the current records."""
        now = self.clock.now()
        while self._records.open:
            intent_id, since = next(iter(self._records.open.items()))
            if now < since + AUTHORISED_FOR:
                break
            self._records.cancel(self._records.intents[intent_id], "automatic")
        due = [one for one in self._late if one.at is not None and one.at <= now]
        self._late = [one for one in self._late if one not in due]
        for one in due:
            if one.intent_id in self._records.intents:
                self._land(one)
        self._decide_payments(now)
        self._move_refunds(now)
        return self._records

    def _decide_payments(self, now: datetime) -> None:
        """Authorise the processing payments that are due, unless a request has decided them before."""
        while self._decisions_later and self._decisions_later[0].at <= now:
            intent = self._records.intents.get(self._decisions_later.pop(0).intent_id)
            if intent is not None and intent.status is IntentStatus.PROCESSING:
                self._records.approve(intent)

    def _move_refunds(self, now: datetime) -> None:
        """Change the refunds that are due, unless a request has decided them before."""
        while self._refunds_later and self._refunds_later[0].at <= now:
            refund = self._records.refunds.get(self._refunds_later.pop(0).refund_id)
            if refund is None:
                continue
            way = _card(self._records.intents[refund.intent_id]).refunds
            if way is RefundBehaviour.MADE_LATER and refund.status is RefundStatus.PENDING:
                self._records.end_refund(refund, succeed=True)
            elif way is RefundBehaviour.FAIL_LATER and refund.status is RefundStatus.SUCCEEDED:
                self._records.return_refund(refund)

    def _try(self, intent: BankIntent, scripted: ScriptedOutcome) -> BankIntent:
        card = _card(intent)
        problem = card.decline or (DECLINED if scripted.declined or scripted.late else None)
        if problem is not None:
            intent = self._records.fail(intent, problem)
            self._postpone(intent, scripted, capture=False)
            raise BankRefusal(RefusalKind.CARD, problem, intent=intent, kept=True)
        if card.decided_later:
            at = self.clock.now() + timedelta(seconds=DECISION_SECONDS)
            self._decisions_later.append(_DueDecision(intent.id, at))
        return self._records.wait(intent, card.wait) if card.wait else self._records.approve(intent)

    def _postpone(self, intent: BankIntent, scripted: ScriptedOutcome, *, capture: bool) -> None:
        if scripted.late:
            at = None if scripted.seconds is None else self.clock.now() + timedelta(seconds=scripted.seconds)
            self._late.append(_LateMoney(intent.id, capture, at))

    def _land(self, late: _LateMoney) -> BankIntent:
        intent = self._records.intents[late.intent_id]
        if intent.status not in {
            IntentStatus.CANCELED,
            IntentStatus.REQUIRES_PAYMENT_METHOD,
            IntentStatus.REQUIRES_CAPTURE,
        }:
            return intent
        if intent.status is not IntentStatus.REQUIRES_CAPTURE:
            intent = self._records.approve(intent)
        if late.capture and intent.status is IntentStatus.REQUIRES_CAPTURE:
            intent = self._records.capture(intent, intent.amount)
        return intent


def _card(intent: BankIntent) -> Card:
    """How the bank treats the method of an intent that was confirmed."""
    assert intent.method is not None, "a confirmed intent has a method"
    return METHODS[intent.method]
