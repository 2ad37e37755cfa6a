"""The sandbox's bank: what it does and refuses, and a ledger of what the world was really charged.

Pure and synchronous. Time is handed in, and with a seed chance is too, so a run can be repeated. Every answer is a
frozen value: what was said stays said, whatever happens afterwards.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.books import Books
from earmark.sandbox.checks import (
    check_amount,
    check_currency,
    check_metadata,
    check_method,
    check_refund,
    unexpected,
)
from earmark.sandbox.methods import METHODS, Card, Refunds
from earmark.sandbox.model import (
    AS_ASKED,
    CAPTURE_REFUSED,
    DECLINED,
    NOT_AUTHENTICATED,
    Dispute,
    Event,
    Fate,
    Intent,
    Kind,
    Line,
    Move,
    Refund,
    RefundStatus,
    Refused,
    Status,
    invalid,
    missing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from earmark.engine.ports.store import Clock

AUTHORISED_FOR = timedelta(days=7)
REFUND_SECONDS = 60
"""How long a refund takes that is made, or fails, after a while."""
TRIABLE = frozenset({Status.REQUIRES_CONFIRMATION, Status.REQUIRES_PAYMENT_METHOD})
VOIDABLE = frozenset(Status) - {Status.SUCCEEDED, Status.CANCELED, Status.PROCESSING}


class _Late(msgspec.Struct, frozen=True):
    """Money that comes after the no."""

    intent_id: str
    capture: bool
    at: datetime | None


class _Later(msgspec.Struct, frozen=True):
    """A refund that moves by itself."""

    refund_id: str
    at: datetime


class Bank:
    """One bank, with its own books. Every public call first lets the clock do its work."""

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None = None,
        listener: Callable[[Event], None] | None = None,
        payments_max: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self.clock = clock
        self._books = Books(clock, seed=seed, listener=listener, payments_max=payments_max, log_max=log_max)
        self._late: list[_Late] = []
        self._refunds_later: list[_Later] = []

    # What a shop asks for.

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
        fate: Fate = AS_ASKED,
    ) -> Intent:
        """Make an intent and, with `confirm`, try to set the money aside. A decline is a refusal that carries it."""
        self._settle()
        check_amount(amount)
        check_currency(currency)
        check_metadata(metadata or {})
        if method is not None or confirm:
            check_method(method)
        id_ = self._books.new_intent_id()
        intent = Intent(
            id=id_,
            client_secret=self._books.new_id(f"{id_}_secret"),
            charge_id=self._books.new_id("ch"),
            created=self.clock.now(),
            amount=amount,
            currency=currency,
            automatic=automatic,
            method=method,
            metadata=dict(metadata or {}),
            return_url=return_url,
            description=description,
            status=Status.REQUIRES_CONFIRMATION if method else Status.REQUIRES_PAYMENT_METHOD,
        )
        self._books.add(intent)
        return self._try(intent, fate) if confirm else intent

    def confirm(
        self, intent_id: str, *, method: str | None = None, return_url: str | None = None, fate: Fate = AS_ASKED
    ) -> Intent:
        """Try to set the money aside: of a new intent, or again after a decline."""
        intent = self.intent(intent_id)
        if intent.status not in TRIABLE:
            raise unexpected(intent, "confirmed")
        # A decline takes the method away: the next try has to name one.
        method = method or (intent.method if intent.status is Status.REQUIRES_CONFIRMATION else None)
        check_method(method)
        return self._try(self._books.change(intent, method=method, return_url=return_url or intent.return_url), fate)

    def capture(self, intent_id: str, *, amount: int | None = None, fate: Fate = AS_ASKED) -> Intent:
        """Take what was set aside, or a part; the rest is let go. Only once."""
        intent = self.intent(intent_id)
        if intent.status is not Status.REQUIRES_CAPTURE:
            raise unexpected(intent, "captured")
        if amount is not None and not 1 <= amount <= intent.amount:
            message = f"The amount to capture must be from 1 to {intent.amount}."
            raise invalid(message, code="amount_too_large", param="amount_to_capture")
        problem = _card(intent).capture or (CAPTURE_REFUSED if fate.declined or fate.late else None)
        if problem is not None:
            intent = self._books.fail(intent, problem)
            self._postpone(intent, fate, capture=True)
            raise Refused(Kind.CARD, problem, intent=intent, kept=True)
        return self._books.take(intent, amount or intent.amount)

    def void(self, intent_id: str, *, reason: str | None = None, fate: Fate = AS_ASKED) -> Intent:
        """Give up what was not captured."""
        intent = self.intent(intent_id)
        if intent.status not in VOIDABLE:
            raise unexpected(intent, "canceled")
        self._postpone(intent, fate, capture=False)
        return self._books.cancel(intent, reason)

    def refund(
        self,
        intent_id: str,
        *,
        amount: int | None = None,
        metadata: Mapping[str, str] | None = None,
        reason: str | None = None,
        fate: Fate = AS_ASKED,
    ) -> Refund:
        """Give back some of what was captured, or all that is left; never more than that."""
        intent = self.intent(intent_id)
        check_metadata(metadata or {})
        if amount is not None:
            check_amount(amount)
        check_refund(intent, amount)
        refund = Refund(
            id=self._books.new_id("re"),
            intent_id=intent.id,
            charge_id=intent.charge_id,
            created=self.clock.now(),
            amount=intent.left if amount is None else amount,
            currency=intent.currency,
            status=RefundStatus.PENDING,
            metadata=dict(metadata or {}),
            reason=reason,
        )
        self._books.begin_refund(intent, refund)
        way = Refunds.REFUSED if fate.declined else _card(intent).refunds
        if way in {Refunds.MADE_LATER, Refunds.FAIL_LATER}:
            at = self.clock.now() + timedelta(seconds=REFUND_SECONDS)
            self._refunds_later.append(_Later(refund.id, at))
        if way in {Refunds.WAIT, Refunds.MADE_LATER}:
            return refund
        return self._books.end_refund(refund, succeed=way is not Refunds.REFUSED)

    # What may be read.

    def intent(self, intent_id: str) -> Intent:
        """An intent as it stands now."""
        return self._settle().intent(intent_id)

    def gave(self, intent_id: str) -> bool:
        """Whether this id is of this bank. One of another bank, in another process or before a restart, is not."""
        return self._books.gave(intent_id)

    def has(self, intent_id: str) -> bool:
        """Whether it is in the books, and not forgotten."""
        return intent_id in self._settle().intents

    def intents(self) -> list[Intent]:
        """All of them, the newest first."""
        return list(reversed(self._settle().intents.values()))

    def find(self, payment_id: str) -> list[Intent]:
        """Those that carry this id of ours, the newest first."""
        return self._settle().find(payment_id)

    def intent_of_charge(self, charge_id: str) -> Intent:
        """The intent that a charge belongs to."""
        return self._settle().intent_of_charge(charge_id)

    def refund_by_id(self, refund_id: str) -> Refund:
        """A refund as it stands now."""
        if refund_id not in self._settle().refunds:
            raise missing("refund", refund_id)
        return self._books.refunds[refund_id]

    def refunds(self, intent_id: str | None = None) -> list[Refund]:
        """The refunds of an intent, or all, the newest first."""
        books = self._settle()
        return list(reversed(books.refunds.values())) if intent_id is None else books.refunds_of(intent_id)

    @property
    def disputes(self) -> list[Dispute]:
        """All of them, the oldest first."""
        return list(self._settle().disputes)

    @property
    def events(self) -> list[Event]:
        """Everything that happened, the oldest first."""
        return list(self._settle().events)

    @property
    def ledger(self) -> list[Line]:
        """What the world was really charged, and got back, the oldest first."""
        return list(self._settle().ledger)

    def total(self, move: Move, *, intent_id: str | None = None, payment_id: str | None = None) -> int:
        """The sum of these lines of the ledger."""
        return sum(
            line.amount
            for line in self.ledger
            if line.move is move and intent_id in {None, line.intent_id} and payment_id in {None, line.payment_id}
        )

    # What others do: the buyer, the buyer's bank, time.

    def act(self, intent_id: str, *, succeed: bool) -> Intent:
        """The buyer has come back from the action."""
        intent = self.intent(intent_id)
        if intent.status is not Status.REQUIRES_ACTION:
            raise unexpected(intent, "acted upon")
        problem = _card(intent).after if succeed else NOT_AUTHENTICATED
        return self._books.approve(intent) if problem is None else self._books.fail(intent, problem)

    def decide(self, id_: str, *, succeed: bool) -> Intent | Refund:
        """The buyer's bank has made up its mind: about a payment that is processing, or a refund that is pending."""
        refund = self._settle().refunds.get(id_)
        if refund is not None:
            if refund.status is not RefundStatus.PENDING:
                raise invalid(f"The refund {id_} is {refund.status}.", code="refund_unexpected_state")
            return self._books.end_refund(refund, succeed=succeed)
        intent = self.intent(id_)
        if intent.status is not Status.PROCESSING:
            raise unexpected(intent, "decided")
        return self._books.approve(intent) if succeed else self._books.fail(intent, DECLINED)

    def return_refund(self, refund_id: str) -> Refund:
        """A refund that had arrived comes back, as it may weeks later: the buyer's account is closed by now."""
        refund = self.refund_by_id(refund_id)
        if refund.status is not RefundStatus.SUCCEEDED:
            raise invalid(f"The refund {refund_id} is {refund.status}.", code="refund_unexpected_state")
        return self._books.return_refund(refund)

    def land(self) -> list[Intent]:
        """Let all the money come now that comes after the no."""
        landing, self._late = self._late, []
        return [self._land(one) for one in landing if one.intent_id in self._books.intents]

    def tick(self) -> None:
        """Do what is due by the clock, without a request."""
        self._settle()

    # How it is done.

    def _settle(self) -> Books:
        """The books, with what time has brought: authorisations that ran out, money that comes late."""
        now = self.clock.now()
        while self._books.open:
            intent_id, since = next(iter(self._books.open.items()))
            if now < since + AUTHORISED_FOR:
                break
            self._books.cancel(self._books.intents[intent_id], "automatic")
        due = [one for one in self._late if one.at is not None and one.at <= now]
        self._late = [one for one in self._late if one not in due]
        for one in due:
            if one.intent_id in self._books.intents:
                self._land(one)
        self._move_refunds(now)
        return self._books

    def _move_refunds(self, now: datetime) -> None:
        """Those whose time has come, unless a request has decided before."""
        while self._refunds_later and self._refunds_later[0].at <= now:
            refund = self._books.refunds.get(self._refunds_later.pop(0).refund_id)
            if refund is None:
                continue
            way = _card(self._books.intents[refund.intent_id]).refunds
            if way is Refunds.MADE_LATER and refund.status is RefundStatus.PENDING:
                self._books.end_refund(refund, succeed=True)
            elif way is Refunds.FAIL_LATER and refund.status is RefundStatus.SUCCEEDED:
                self._books.return_refund(refund)

    def _try(self, intent: Intent, fate: Fate) -> Intent:
        card = _card(intent)
        problem = card.decline or (DECLINED if fate.declined or fate.late else None)
        if problem is not None:
            intent = self._books.fail(intent, problem)
            self._postpone(intent, fate, capture=False)
            raise Refused(Kind.CARD, problem, intent=intent, kept=True)
        return self._books.wait(intent, card.wait) if card.wait else self._books.approve(intent)

    def _postpone(self, intent: Intent, fate: Fate, *, capture: bool) -> None:
        if fate.late:
            at = None if fate.seconds is None else self.clock.now() + timedelta(seconds=fate.seconds)
            self._late.append(_Late(intent.id, capture, at))

    def _land(self, late: _Late) -> Intent:
        intent = self._books.intents[late.intent_id]
        if intent.status not in {Status.CANCELED, Status.REQUIRES_PAYMENT_METHOD, Status.REQUIRES_CAPTURE}:
            return intent
        if intent.status is not Status.REQUIRES_CAPTURE:
            intent = self._books.approve(intent)
        if late.capture and intent.status is Status.REQUIRES_CAPTURE:
            intent = self._books.take(intent, intent.amount)
        return intent


def _card(intent: Intent) -> Card:
    """How its method is treated; what is tried has one."""
    assert intent.method is not None, "what was tried has a method"
    return METHODS[intent.method]
