"""What the sandbox's bank keeps: intents, refunds, disputes, events, and the ledger of what really happened.

An intent moves like this; the words are those of Stripe, for the sandbox speaks its language over HTTP.

    requires_action ──┐
    processing ───────┼──► requires_capture ──► succeeded
                      │         └──► canceled   (by us, or after seven days)
                      └──► requires_payment_method   (declined)
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

PAYMENT_ID = "payment_id"
"""Where in the metadata of an intent our own id stands."""


class Status(StrEnum):
    """How an intent stands."""

    REQUIRES_PAYMENT_METHOD = "requires_payment_method"
    REQUIRES_CONFIRMATION = "requires_confirmation"
    REQUIRES_ACTION = "requires_action"
    PROCESSING = "processing"
    REQUIRES_CAPTURE = "requires_capture"
    CANCELED = "canceled"
    SUCCEEDED = "succeeded"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a payment did not go through."""

    code: str
    message: str
    decline_code: str | None = None


DECLINED = Problem(code="card_declined", decline_code="generic_decline", message="The card was declined.")
INSUFFICIENT_FUNDS = Problem(
    code="card_declined", decline_code="insufficient_funds", message="The card has insufficient funds."
)
NOT_AUTHENTICATED = Problem(
    code="payment_intent_authentication_failure", message="The buyer did not prove to be the card's owner."
)
CAPTURE_REFUSED = Problem(
    code="card_declined", decline_code="do_not_honor", message="The buyer's bank refused the capture."
)


class Intent(msgspec.Struct, frozen=True, kw_only=True):
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
    status: Status = Status.REQUIRES_CONFIRMATION
    captured: int = 0
    refunding: int = 0
    """What of the refunds is on its way."""
    refunded: int = 0
    disputed: bool = False
    problem: Problem | None = None
    canceled_at: datetime | None = None
    cancellation_reason: str | None = None

    @property
    def payment_id(self) -> str | None:
        """Our own id, as it was handed in."""
        return self.metadata.get(PAYMENT_ID)

    @property
    def left(self) -> int:
        """What can still be refunded."""
        return self.captured - self.refunded - self.refunding


class RefundStatus(StrEnum):
    """How a refund stands."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """Money on its way back to the buyer."""

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
    """A buyer who asked their bank for the money back."""

    id: str
    intent_id: str
    charge_id: str
    created: datetime
    amount: int
    currency: str
    reason: str
    inquiry: bool = False
    """Only a question so far: the money stays."""


class FraudWarning(msgspec.Struct, frozen=True, kw_only=True):
    """The buyer's bank suspects fraud, before the buyer has asked for the money back."""

    id: str
    intent_id: str
    charge_id: str
    created: datetime


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something to call about, with its subject as it was then."""

    id: str
    kind: str
    created: datetime
    about: Intent | Refund | Dispute | FraudWarning


class Move(StrEnum):
    """What a line of the ledger says."""

    AUTHORISED = "authorised"
    CAPTURED = "captured"
    VOIDED = "voided"
    REFUNDED = "refunded"
    RETURNED = "returned"
    """A refund that had arrived, and came back."""
    DISPUTED = "disputed"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger. It is never changed."""

    move: Move
    amount: int
    currency: str
    at: datetime
    intent_id: str
    payment_id: str | None


class Kind(StrEnum):
    """Why the bank refuses, as Stripe sorts it."""

    CARD = "card_error"
    INVALID = "invalid_request_error"
    IDEMPOTENCY = "idempotency_error"
    IN_PROGRESS = "in_progress"
    BUSY = "rate_limit"
    BROKEN = "api_error"


class Refused(Exception):
    """The bank's no. `kept` tells whether an idempotency key remembers it."""

    def __init__(
        self,
        kind: Kind,
        problem: Problem,
        *,
        intent: Intent | None = None,
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

    def again(self, *, replayed: bool) -> Refused:
        """The same no, to be raised once more."""
        return Refused(
            self.kind,
            self.problem,
            intent=self.intent,
            param=self.param,
            missing=self.missing,
            kept=self.kept,
            replayed=replayed,
        )


def invalid(message: str, *, code: str = "parameter_invalid", param: str | None = None) -> Refused:
    """A call that makes no sense: nothing was begun, and no key remembers it."""
    return Refused(Kind.INVALID, Problem(code=code, message=message), param=param)


def missing(what: str, id_: str) -> Refused:
    """There is no such thing."""
    problem = Problem(code="resource_missing", message=f"No such {what}: '{id_}'")
    return Refused(Kind.INVALID, problem, missing=True)


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What a script has in store for a call, beyond how it is answered."""

    declined: bool = False
    """The answer is no."""
    late: bool = False
    """The answer is no, and then it happens all the same."""
    seconds: float | None = None
    """How much later, by the bank's clock; None for when `Bank.land` is called."""


AS_ASKED = Fate()
