"""What the bank has written down, and how each move is written: the intent, its line in the ledger, its event.

Nothing is judged here; the bank has judged before.
"""

from __future__ import annotations

import random
import string
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.methods import METHODS
from earmark.sandbox.model import (
    Dispute,
    Event,
    FraudWarning,
    Intent,
    Line,
    Move,
    Problem,
    Refund,
    RefundStatus,
    Status,
    missing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from earmark.engine.ports.store import Clock
    from earmark.sandbox.methods import Objection

_ALPHABET = string.ascii_letters + string.digits
ID_LENGTH = 24
NAME_LENGTH = 8
ENDED = frozenset({Status.SUCCEEDED, Status.CANCELED, Status.REQUIRES_PAYMENT_METHOD})
"""Nothing more comes of such an intent by itself."""


class Books:
    """Intents, refunds, disputes, events and the ledger.

    Ids are random; those that come from a seed repeat, so that a run can be repeated. The id of an intent begins with
    the name of its bank: a bank in another process, or after a restart, is another bank and can tell.

    Of more than `payments_max` intents the oldest that have ended are forgotten, and where too few have, the oldest.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None,
        listener: Callable[[Event], None] | None,
        payments_max: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self.ledger: deque[Line] = deque(maxlen=log_max)
        self.events: deque[Event] = deque(maxlen=log_max)
        self.disputes: deque[Dispute] = deque(maxlen=log_max)
        self.intents: dict[str, Intent] = {}
        self.refunds: dict[str, Refund] = {}
        self.open: dict[str, datetime] = {}
        """Since when an intent's money is set aside, the longest first."""
        self._by_payment: dict[str, list[str]] = {}
        self._by_charge: dict[str, str] = {}
        self._refunds_of: dict[str, list[str]] = {}
        self._clock = clock
        self._listener = listener
        self._payments_max = payments_max
        self._random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 (a seed repeats)
        self.name = self._letters(NAME_LENGTH)

    def intent(self, intent_id: str) -> Intent:
        """An intent."""
        if intent_id not in self.intents:
            raise missing("payment_intent", intent_id)
        return self.intents[intent_id]

    def intent_of_charge(self, charge_id: str) -> Intent:
        """The intent that a charge belongs to."""
        if charge_id not in self._by_charge:
            raise missing("charge", charge_id)
        return self.intents[self._by_charge[charge_id]]

    def find(self, payment_id: str) -> list[Intent]:
        """The intents that carry this id of ours, the newest first."""
        return [self.intents[id_] for id_ in reversed(self._by_payment.get(payment_id, []))]

    def refunds_of(self, intent_id: str) -> list[Refund]:
        """The refunds of an intent, the newest first."""
        return [self.refunds[id_] for id_ in reversed(self._refunds_of.get(intent_id, []))]

    def add(self, intent: Intent) -> Intent:
        """A new intent."""
        self._forget_some()
        self.intents[intent.id] = intent
        self._by_charge[intent.charge_id] = intent.id
        if intent.payment_id is not None:
            self._by_payment.setdefault(intent.payment_id, []).append(intent.id)
        self._tell("payment_intent.created", intent)
        return intent

    def wait(self, intent: Intent, status: Status) -> Intent:
        """Somebody else has to do something first."""
        kind = "requires_action" if status is Status.REQUIRES_ACTION else "processing"
        return self._move(intent, f"payment_intent.{kind}", status=status, problem=None)

    def approve(self, intent: Intent) -> Intent:
        """The money is set aside and, where that is automatic, taken."""
        intent = self.change(
            intent, status=Status.REQUIRES_CAPTURE, problem=None, canceled_at=None, cancellation_reason=None
        )
        self.open[intent.id] = self._clock.now()
        self._write(Move.AUTHORISED, intent, intent.amount)
        if intent.automatic:
            return self.take(intent, intent.amount)
        self._tell("payment_intent.amount_capturable_updated", intent)
        return intent

    def take(self, intent: Intent, amount: int) -> Intent:
        """So much of what was set aside is taken, and the rest let go."""
        del self.open[intent.id]
        self._write(Move.CAPTURED, intent, amount)
        if amount < intent.amount:
            self._write(Move.VOIDED, intent, intent.amount - amount)
        intent = self._move(intent, "payment_intent.succeeded", status=Status.SUCCEEDED, captured=amount)
        assert intent.method is not None, "what was authorised has a method"
        card = METHODS[intent.method]
        if card.warned:
            self._warn(intent)
        return self._dispute(intent, card.disputes)

    def fail(self, intent: Intent, problem: Problem) -> Intent:
        """There is no money, or no longer."""
        self._let_go(intent)
        status = Status.REQUIRES_PAYMENT_METHOD
        return self._move(intent, "payment_intent.payment_failed", status=status, problem=problem)

    def cancel(self, intent: Intent, reason: str | None) -> Intent:
        """The intent is given up."""
        self._let_go(intent)
        changes = {"canceled_at": self._clock.now(), "cancellation_reason": reason}
        return self._move(intent, "payment_intent.canceled", status=Status.CANCELED, **changes)

    def begin_refund(self, intent: Intent, refund: Refund) -> Refund:
        """Money is on its way back."""
        self.refunds[refund.id] = refund
        self._refunds_of.setdefault(intent.id, []).append(refund.id)
        self.change(intent, refunding=intent.refunding + refund.amount)
        self._tell("refund.created", refund)
        return refund

    def end_refund(self, refund: Refund, *, succeed: bool) -> Refund:
        """It has arrived, or it never will."""
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
            self._write(Move.REFUNDED, intent, refund.amount)
            self._tell("charge.refunded", intent)
        self._tell("refund.updated" if succeed else "refund.failed", refund)
        return refund

    def return_refund(self, refund: Refund) -> Refund:
        """It had arrived, and came back: the buyer's account is closed by now."""
        intent = self.intents[refund.intent_id]
        intent = self.change(intent, refunded=intent.refunded - refund.amount)
        refund = msgspec.structs.replace(refund, status=RefundStatus.FAILED, failure="lost_or_stolen_card")
        self.refunds[refund.id] = refund
        self._write(Move.RETURNED, intent, refund.amount)
        self._tell("refund.failed", refund)
        return refund

    def change(self, intent: Intent, **changes: object) -> Intent:
        """The intent as it is from now on."""
        changed = msgspec.structs.replace(intent, **changes)
        self.intents[intent.id] = changed
        return changed

    def new_id(self, prefix: str) -> str:
        """An id that nothing else has."""
        return f"{prefix}_{self._letters(ID_LENGTH)}"

    def new_intent_id(self) -> str:
        """The same for an intent, with the name of this bank in it."""
        return f"pi_{self.name}{self._letters(ID_LENGTH - NAME_LENGTH)}"

    def gave(self, intent_id: str) -> bool:
        """Whether this id is one that this bank has given, or could have."""
        return intent_id.startswith(f"pi_{self.name}")

    def _forget_some(self) -> None:
        """A tenth at a time, so that looking for them costs each payment little."""
        most = self._payments_max
        if most is None or len(self.intents) <= most + most // 10:
            return
        surplus = len(self.intents) - most
        ended = [intent for intent in self.intents.values() if intent.status in ENDED][:surplus]
        for intent in ended:
            self._forget(intent)
        for intent in list(self.intents.values())[: surplus - len(ended)]:
            self._forget(intent)

    def _forget(self, intent: Intent) -> None:
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

    def _letters(self, count: int) -> str:
        return "".join(self._random.choices(_ALPHABET, k=count))

    def _dispute(self, intent: Intent, objections: Sequence[Objection]) -> Intent:
        """The buyer asks for it back, in as many parts as there are objections; a question takes no money yet."""
        left = intent.captured
        for number, objection in enumerate(objections):
            amount = left // (len(objections) - number)
            left -= amount
            if not amount:
                continue
            if not objection.inquiry:
                self._write(Move.DISPUTED, intent, amount)
                intent = self.change(intent, disputed=True)
            dispute = Dispute(
                id=self.new_id("dp"),
                intent_id=intent.id,
                charge_id=intent.charge_id,
                created=self._clock.now(),
                amount=amount,
                currency=intent.currency,
                reason=objection.reason,
                inquiry=objection.inquiry,
            )
            self.disputes.append(dispute)
            self._tell("charge.dispute.created", dispute)
        return intent

    def _warn(self, intent: Intent) -> None:
        id_, now = self.new_id("issfr"), self._clock.now()
        warning = FraudWarning(id=id_, intent_id=intent.id, charge_id=intent.charge_id, created=now)
        self._tell("radar.early_fraud_warning.created", warning)

    def _let_go(self, intent: Intent) -> None:
        if self.open.pop(intent.id, None) is not None:
            self._write(Move.VOIDED, intent, intent.amount)

    def _move(self, intent: Intent, kind: str, **changes: object) -> Intent:
        intent = self.change(intent, **changes)
        self._tell(kind, intent)
        return intent

    def _write(self, move: Move, intent: Intent, amount: int) -> None:
        line = Line(
            move=move,
            amount=amount,
            currency=intent.currency,
            at=self._clock.now(),
            intent_id=intent.id,
            payment_id=intent.payment_id,
        )
        self.ledger.append(line)

    def _tell(self, kind: str, about: Intent | Refund | Dispute | FraudWarning) -> None:
        event = Event(id=self.new_id("evt"), kind=kind, created=self._clock.now(), about=about)
        self.events.append(event)
        if self._listener is not None:
            self._listener(event)
