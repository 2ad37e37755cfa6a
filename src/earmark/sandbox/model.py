"""The values of the simulated bank: intents, refunds, disputes, events, ledger lines and refusals.

The names of an intent's statuses are Stripe's, because the sandbox serves Stripe's API:

    requires_action ──┐
    processing ───────┼──► requires_capture ──► succeeded
                      │         └──► canceled   (by the shop, or after seven days)
                      └──► requires_payment_method   (declined)
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

PAYMENT_ID = "payment_id"
"""The key of Earmark's payment id in the metadata of an intent."""


class IntentStatus(StrEnum):
    """The status of an intent, as Stripe names it."""

    REQUIRES_PAYMENT_METHOD = "requires_payment_method"
    REQUIRES_CONFIRMATION = "requires_confirmation"
    REQUIRES_ACTION = "requires_action"
    PROCESSING = "processing"
    REQUIRES_CAPTURE = "requires_capture"
    CANCELED = "canceled"
    SUCCEEDED = "succeeded"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call was refused or a payment declined."""

    code: str
    message: str
    decline_code: str | None = None


DECLINED = Problem(code="card_declined", decline_code="generic_decline", message="The card was declined.")
INSUFFICIENT_FUNDS = Problem(
    code="card_declined", decline_code="insufficient_funds", message="The card has insufficient funds."
)
NOT_AUTHENTICATED = Problem(
    code="payment_intent_authentication_failure", message="The buyer did not authenticate as the card's owner."
)
CAPTURE_REFUSED = Problem(
    code="card_declined", decline_code="do_not_honor", message="The buyer's bank refused the capture."
)


class BankIntent(msgspec.Struct, frozen=True, kw_only=True):
    """One payment, from its first call to its last refund."""

    id: str
    client_secret: str
    charge_id: str
    created: datetime
    amount: int
    currency: str
    automatic: bool
    """Captured as soon as it is authorised."""
    method: str | None
    metadata: Mapping[str, str]
    return_url: str | None = None
    description: str | None = None
    in_page: bool = False
    """Whether Stripe.js in the shop's page handles its action, rather than a page that the buyer is sent to."""
    status: IntentStatus = IntentStatus.REQUIRES_CONFIRMATION
    captured: int = 0
    refunding: int = 0
    """The sum of the pending refunds."""
    refunded: int = 0
    disputed: bool = False
    problem: Problem | None = None
    canceled_at: datetime | None = None
    cancellation_reason: str | None = None

    @property
    def payment_id(self) -> str | None:
        """Earmark's payment id, if the metadata has one."""
        return self.metadata.get(PAYMENT_ID)

    @property
    def left(self) -> int:
        """What can still be refunded."""
        return self.captured - self.refunded - self.refunding


class RefundStatus(StrEnum):
    """The status of a refund, as Stripe names it."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class BankRefund(msgspec.Struct, frozen=True, kw_only=True):
    """A refund of one intent."""

    id: str
    intent_id: str
    charge_id: str
    created: datetime
    amount: int
    currency: str
    status: RefundStatus
    metadata: Mapping[str, str]
    reason: str | None = None
    failure: str | None = None


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    """A dispute: the buyer asked their bank for the money back."""

    id: str
    intent_id: str
    charge_id: str
    created: datetime
    amount: int
    currency: str
    reason: str
    inquiry: bool = False
    """The buyer's bank only inquires so far: the money stays with the shop."""


class FraudWarning(msgspec.Struct, frozen=True, kw_only=True):
    """The buyer's bank warns of fraud, before the buyer disputes the charge."""

    id: str
    intent_id: str
    charge_id: str
    created: datetime


class BankEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a callback reports, with a copy of its object at that time."""

    id: str
    kind: str
    created: datetime
    about: BankIntent | BankRefund | Dispute | FraudWarning


class LedgerMove(StrEnum):
    """The kind of a ledger line."""

    AUTHORISED = "authorised"
    CAPTURED = "captured"
    VOIDED = "voided"
    REFUNDED = "refunded"
    RETURNED = "returned"
    """A refund that had succeeded and was returned."""
    DISPUTED = "disputed"


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One movement of money in the ledger. It is never changed."""

    move: LedgerMove
    amount: int
    currency: str
    at: datetime
    intent_id: str
    payment_id: str | None


class RefusalKind(StrEnum):
    """The kind of a refusal; mostly Stripe's error types."""

    CARD = "card_error"
    INVALID = "invalid_request_error"
    IDEMPOTENCY = "idempotency_error"
    IN_PROGRESS = "in_progress"
    BUSY = "rate_limit"
    BROKEN = "api_error"


class BankRefusal(Exception):
    """The bank refuses a call. `kept` says whether the refusal is stored under the call's idempotency key."""

    def __init__(
        self,
        kind: RefusalKind,
        problem: Problem,
        *,
        intent: BankIntent | None = None,
        param: str | None = None,
        missing: bool = False,
        kept: bool = False,
        replayed: bool = False,
    ) -> None:
        super().__init__(problem.message)
        self.kind = kind
        self.problem = problem
        self.intent = intent
        self.param = param
        self.missing = missing
        self.kept = kept
        self.replayed = replayed

    def copy(self, *, replayed: bool) -> BankRefusal:
        """A new exception with the same content, because one instance must not be raised twice."""
        return BankRefusal(
            self.kind,
            self.problem,
            intent=self.intent,
            param=self.param,
            missing=self.missing,
            kept=self.kept,
            replayed=replayed,
        )


def invalid(message: str, *, code: str = "parameter_invalid", param: str | None = None) -> BankRefusal:
    """The refusal of a wrong request: nothing was done, and no idempotency key stores it."""
    return BankRefusal(RefusalKind.INVALID, Problem(code=code, message=message), param=param)


def missing(what: str, id_: str) -> BankRefusal:
    """The refusal of a request that names an unknown id."""
    problem = Problem(code="resource_missing", message=f"No such {what}: '{id_}'")
    return BankRefusal(RefusalKind.INVALID, problem, missing=True)


class ScriptedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault script demands of the bank's decision about a call."""

    declined: bool = False
    """The bank declines the call."""
    late: bool = False
    """The bank declines the call, and its effect happens later all the same."""
    seconds: float | None = None
    """How much later, by the bank's clock; None: when `Bank.land` is called."""


AS_REQUESTED = ScriptedOutcome()
