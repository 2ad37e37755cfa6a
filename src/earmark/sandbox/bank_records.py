"""The bank's records. Each method writes one change: the intent, its line in the ledger and its event.

Nothing is checked here: `earmark.sandbox.bank` has checked before.
"""

from __future__ import annotations

import random
import string
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.model import (
    BankEvent,
    BankIntent,
    BankRefund,
    Dispute,
    FraudWarning,
    IntentStatus,
    LedgerLine,
    LedgerMove,
    Problem,
    RefundStatus,
    missing,
)
from earmark.sandbox.payment_methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from earmark.engine.ports.store import Clock
    from earmark.sandbox.payment_methods import ScriptedDispute

_ALPHABET = string.ascii_letters + string.digits
ID_LENGTH = 24
NAME_LENGTH = 8
ENDED = frozenset({IntentStatus.SUCCEEDED, IntentStatus.CANCELED, IntentStatus.REQUIRES_PAYMENT_METHOD})
"""An intent with such a status changes only by a request."""


class BankRecords:
    """Intents, refunds, disputes, events and the ledger.

    Ids are random, or repeatable with a seed. The id of an intent begins with the name of its bank, so a bank in
    another process, or after a restart, can recognise that it did not issue the id.

    Above `payments_max` intents, the oldest ended ones are deleted; if too few have ended, the oldest of all.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None,
        listener: Callable[[BankEvent], None] | None,
        payments_max: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self.ledger: deque[LedgerLine] = deque(maxlen=log_max)
        self.events: deque[BankEvent] = deque(maxlen=log_max)
        self.disputes: deque[Dispute] = deque(maxlen=log_max)
        self.intents: dict[str, BankIntent] = {}
        self.refunds: dict[str, BankRefund] = {}
        self.open: dict[str, datetime] = {}
        """Since when each authorised intent is authorised, the oldest first."""
        self._by_payment: dict[str, list[str]] = {}
        self._by_charge: dict[str, str] = {}
        self._refunds_of: dict[str, list[str]] = {}
        self._clock = clock
        self._listener = listener
        self._payments_max = payments_max
        self._random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 (a seed repeats)
        self.name = self._random_text(NAME_LENGTH)

    def intent(self, intent_id: str) -> BankIntent:
        """The intent with this id; raises a refusal when there is none."""
        if intent_id not in self.intents:
            raise missing("payment_intent", intent_id)
        return self.intents[intent_id]

    def intent_of_charge(self, charge_id: str) -> BankIntent:
        """The intent of a charge; raises a refusal when there is none."""
        if charge_id not in self._by_charge:
            raise missing("charge", charge_id)
        return self.intents[self._by_charge[charge_id]]

    def find(self, payment_id: str) -> list[BankIntent]:
        """The intents whose metadata has this payment id of Earmark's, the newest first."""
        return [self.intents[id_] for id_ in reversed(self._by_payment.get(payment_id, []))]

    def refunds_of(self, intent_id: str) -> list[BankRefund]:
        """The refunds of an intent, the newest first."""
        return [self.refunds[id_] for id_ in reversed(self._refunds_of.get(intent_id, []))]

    def add(self, intent: BankIntent) -> BankIntent:
        """Record a new intent."""
        self._delete_surplus()
        self.intents[intent.id] = intent
        self._by_charge[intent.charge_id] = intent.id
        if intent.payment_id is not None:
            self._by_payment.setdefault(intent.payment_id, []).append(intent.id)
        self._add_event("payment_intent.created", intent)
        return intent

    def wait(self, intent: BankIntent, status: IntentStatus) -> BankIntent:
        """The intent waits for its buyer or for the buyer's bank."""
        kind = "requires_action" if status is IntentStatus.REQUIRES_ACTION else "processing"
        return self._move(intent, f"payment_intent.{kind}", status=status, problem=None)

    def approve(self, intent: BankIntent) -> BankIntent:
        """The intent is authorised and, with automatic capture, captured."""
        intent = self.change(
            intent, status=IntentStatus.REQUIRES_CAPTURE, problem=None, canceled_at=None, cancellation_reason=None
        )
        self.open[intent.id] = self._clock.now()
        self._add_ledger_line(LedgerMove.AUTHORISED, intent, intent.amount)
        if intent.automatic:
            return self.capture(intent, intent.amount)
        self._add_event("payment_intent.amount_capturable_updated", intent)
        return intent

    def capture(self, intent: BankIntent, amount: int) -> BankIntent:
        """Capture this part of the authorised amount and void the rest; the method's disputes and warnings follow."""
        del self.open[intent.id]
        self._add_ledger_line(LedgerMove.CAPTURED, intent, amount)
        if amount < intent.amount:
            self._add_ledger_line(LedgerMove.VOIDED, intent, intent.amount - amount)
        intent = self._move(intent, "payment_intent.succeeded", status=IntentStatus.SUCCEEDED, captured=amount)
        assert intent.method is not None, "an authorised intent has a method"
        card = METHODS[intent.method]
        if card.warned:
            self._warn(intent)
        return self._dispute(intent, card.disputes)

    def fail(self, intent: BankIntent, problem: Problem) -> BankIntent:
        """The intent is declined; an authorised amount is voided."""
        self._release(intent)
        status = IntentStatus.REQUIRES_PAYMENT_METHOD
        return self._move(intent, "payment_intent.payment_failed", status=status, problem=problem)

    def cancel(self, intent: BankIntent, reason: str | None) -> BankIntent:
        """The intent is cancelled; an authorised amount is voided."""
        self._release(intent)
        changes = {"canceled_at": self._clock.now(), "cancellation_reason": reason}
        return self._move(intent, "payment_intent.canceled", status=IntentStatus.CANCELED, **changes)

    def begin_refund(self, intent: BankIntent, refund: BankRefund) -> BankRefund:
        """Record a pending refund; its amount counts against what is left to refund."""
        self.refunds[refund.id] = refund
        self._refunds_of.setdefault(intent.id, []).append(refund.id)
        self.change(intent, refunding=intent.refunding + refund.amount)
        self._add_event("refund.created", refund)
        return refund

    def end_refund(self, refund: BankRefund, *, succeed: bool) -> BankRefund:
        """A pending refund succeeds or fails."""
        intent = self.intents[refund.intent_id]
        intent = self.change(
            intent,
            refunding=intent.refunding - refund.amount,
            refunded=intent.refunded + (refund.amount if succeed else 0),
        )
        status = RefundStatus.SUCCEEDED if succeed else RefundStatus.FAILED
        failure = None if succeed else "expired_or_canceled_card"
        refund = msgspec.structs.replace(refund, status=status, failure=failure)
        self.refunds[refund.id] = refund
        if succeed:
            self._add_ledger_line(LedgerMove.REFUNDED, intent, refund.amount)
            self._add_event("charge.refunded", intent)
        self._add_event("refund.updated" if succeed else "refund.failed", refund)
        return refund

    def return_refund(self, refund: BankRefund) -> BankRefund:
        """A refund that had succeeded is returned by the buyer's bank."""
        intent = self.intents[refund.intent_id]
        intent = self.change(intent, refunded=intent.refunded - refund.amount)
        refund = msgspec.structs.replace(refund, status=RefundStatus.FAILED, failure="lost_or_stolen_card")
        self.refunds[refund.id] = refund
        self._add_ledger_line(LedgerMove.RETURNED, intent, refund.amount)
        self._add_event("refund.failed", refund)
        return refund

    def change(self, intent: BankIntent, **changes: object) -> BankIntent:
        """Replace fields of an intent."""
        changed = msgspec.structs.replace(intent, **changes)
        self.intents[intent.id] = changed
        return changed

    def new_id(self, prefix: str) -> str:
        """A new unique id."""
        return f"{prefix}_{self._random_text(ID_LENGTH)}"

    def new_intent_id(self) -> str:
        """A new unique id of an intent, which contains the name of this bank."""
        return f"pi_{self.name}{self._random_text(ID_LENGTH - NAME_LENGTH)}"

    def issued(self, intent_id: str) -> bool:
        """Whether the id contains the name of this bank."""
        return intent_id.startswith(f"pi_{self.name}")

    def _delete_surplus(self) -> None:
        """Delete surplus intents, a tenth at a time, so that the search for them costs each payment little."""
        most = self._payments_max
        if most is None or len(self.intents) <= most + most // 10:
            return
        surplus = len(self.intents) - most
        ended = [intent for intent in self.intents.values() if intent.status in ENDED][:surplus]
        for intent in ended:
            self._delete(intent)
        for intent in list(self.intents.values())[: surplus - len(ended)]:
            self._delete(intent)

    def _delete(self, intent: BankIntent) -> None:
        del self.intents[intent.id]
        del self._by_charge[intent.charge_id]
        self.open.pop(intent.id, None)
        for refund_id in self._refunds_of.pop(intent.id, []):
            del self.refunds[refund_id]
        if intent.payment_id is not None:
            same = self._by_payment[intent.payment_id]
            same.remove(intent.id)
            if not same:
                del self._by_payment[intent.payment_id]

    def _random_text(self, count: int) -> str:
        return "".join(self._random.choices(_ALPHABET, k=count))

    def _dispute(self, intent: BankIntent, disputes: Sequence[ScriptedDispute]) -> BankIntent:
        """The buyer disputes the charge in as many parts as are scripted; an inquiry moves no money."""
        left = intent.captured
        for number, scripted in enumerate(disputes):
            amount = left // (len(disputes) - number)
            left -= amount
            if not amount:
                continue
            if not scripted.inquiry:
                self._add_ledger_line(LedgerMove.DISPUTED, intent, amount)
                intent = self.change(intent, disputed=True)
            dispute = Dispute(
                id=self.new_id("dp"),
                intent_id=intent.id,
                charge_id=intent.charge_id,
                created=self._clock.now(),
                amount=amount,
                currency=intent.currency,
                reason=scripted.reason,
                inquiry=scripted.inquiry,
            )
            self.disputes.append(dispute)
            self._add_event("charge.dispute.created", dispute)
        return intent

    def _warn(self, intent: BankIntent) -> None:
        id_, now = self.new_id("issfr"), self._clock.now()
        warning = FraudWarning(id=id_, intent_id=intent.id, charge_id=intent.charge_id, created=now)
        self._add_event("radar.early_fraud_warning.created", warning)

    def _release(self, intent: BankIntent) -> None:
        if self.open.pop(intent.id, None) is not None:
            self._add_ledger_line(LedgerMove.VOIDED, intent, intent.amount)

    def _move(self, intent: BankIntent, kind: str, **changes: object) -> BankIntent:
        intent = self.change(intent, **changes)
        self._add_event(kind, intent)
        return intent

    def _add_ledger_line(self, move: LedgerMove, intent: BankIntent, amount: int) -> None:
        line = LedgerLine(
            move=move,
            amount=amount,
            currency=intent.currency,
            at=self._clock.now(),
            intent_id=intent.id,
            payment_id=intent.payment_id,
        )
        self.ledger.append(line)

    def _add_event(self, kind: str, about: BankIntent | BankRefund | Dispute | FraudWarning) -> None:
        event = BankEvent(id=self.new_id("evt"), kind=kind, created=self._clock.now(), about=about)
        self.events.append(event)
        if self._listener is not None:
            self._listener(event)
