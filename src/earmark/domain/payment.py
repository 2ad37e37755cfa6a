"""A payment: what was asked of a gateway for one booking, what is known of it, and what is still to be done.

    pending ──► authorised ──► captured ──► partially_refunded ──► refunded
       │  ╲         │              ▲
       │   unknown  └──► voiding ──┼──► voided      (a void that found the money taken)
       │   requires_action         │
       └──► failed ────────────────┘                (money that came after the no)

    any ──► needs_attention ──► settled             (by a person, elsewhere)

A gateway's report is merged with what is known, and the later stage stays: reports may come in any order and any
number and lead to the same end. Captured money is a fact from every state. Silence is `unknown`, and never `failed`.
Nothing here changes anything; each function returns the payment as it then is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid5

import msgspec

from earmark.domain.id_types import BookingId, EventId, PaymentId, RefundId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mask_and_reference_payment_method import show
from earmark.errors import InvalidRequest, RefundRefused

PAYING_SECONDS = 900
"""How long `paying` pins a hold."""
PAYING_SECONDS_MAX = 3600
"""The same, while the gateway says that it is being decided."""
RESEND_SECONDS_MAX = 20 * 3600
"""Until when a create may be sent again: gateways forget idempotency keys after a day."""
KEY_SECONDS_MIN = 2 * 86_400
"""How long it is kept which request a key opened a payment with: until no hold of that time can be paid any more."""
LEASE_SECONDS = 30
"""How long a process that drives a payment has it for itself."""
LOOK_BACK_SECONDS = (3_600, 8 * 3_600, 26 * 3_600)
"""How long after its beginning a payment that came to nothing is looked at once more."""
WAIT_SECONDS_MIN = 2
WAIT_SECONDS_MAX = 300
DISPUTED = "disputed"
"""The code of a payment whose buyer has asked their bank for the money back."""
GATEWAY_UNAVAILABLE = "gateway_unavailable"
"""The code of a payment whose first call the gateway refused for the shop's own fault: no buyer was declined."""
INVALID_FIELDS = {"method_invalid": "method", "return_url_invalid": "return_url"}
"""The codes of payments whose request the gateway could not read, and what of it was wrong: no buyer was declined."""
BANK_BUSY = frozenset(
    {"issuer_not_available", "processing_error", "rate_limit", "reenter_transaction", "try_again_later"}
)
"""Why a gateway declines when it is not about the buyer's money: it, or a bank behind it, was too busy."""
REPLACED = "replaced"
"""The code of a payment whose buyer left its action undone and then named another method: ended at its gateway."""
REFUNDED_ELSEWHERE = "refunded_elsewhere"
"""The code of a payment of which a refund was made at its gateway, and not by Earmark."""
ALL_BY_HAND = "refunded_by_hand"
"""The code of a payment that an operator has refunded in full."""


_NAMESPACE = UUID("6f0b1c52-6e9f-5d3a-9a50-8f1f2a6d7c11")


class PaymentState(StrEnum):
    """Where a payment stands."""

    PENDING = "pending"
    REQUIRES_ACTION = "requires_action"
    UNKNOWN = "unknown"
    AUTHORISED = "authorised"
    CAPTURED = "captured"
    PARTIALLY_REFUNDED = "partially_refunded"
    REFUNDED = "refunded"
    VOIDING = "voiding"
    VOIDED = "voided"
    FAILED = "failed"
    NEEDS_ATTENTION = "needs_attention"
    SETTLED = "settled"


class Capture(StrEnum):
    """When the money is taken: the shop's choice, for only the gateway's own report ends an automatic payment."""

    MANUAL = "manual"
    """Set aside first, and taken once the booking is certain."""
    AUTOMATIC = "automatic"
    """At once, for ways to pay that cannot set money aside."""


class SettledAs(StrEnum):
    """How an operator settled a payment that needed one."""

    REFUNDED = "refunded"
    """The buyer has the money back, by another way than a refund of ours."""
    KEPT = "kept"
    """The shop keeps it."""
    NOTHING = "nothing"
    """Nothing was taken, as the gateway's own page shows: as if the gateway had said no."""


UNDECIDED = frozenset({PaymentState.PENDING, PaymentState.REQUIRES_ACTION, PaymentState.UNKNOWN})
"""It is not known here yet whether there is money."""
TAKEN = frozenset({PaymentState.CAPTURED, PaymentState.PARTIALLY_REFUNDED, PaymentState.REFUNDED, PaymentState.SETTLED})
"""The money was taken, whatever went back since."""


class ReportedState(StrEnum):
    """How a payment stands at its gateway, as the gateway reports it."""

    ABSENT = "absent"
    """The gateway knows no such payment."""
    PROCESSING = "processing"
    """It is being decided, and Earmark cannot hurry it."""
    REQUIRES_ACTION = "requires_action"
    """The buyer has to do something first, as with 3-D Secure."""
    AUTHORISED = "authorised"
    """The money is set aside and can be captured or voided."""
    CAPTURED = "captured"
    """The money is ours, less what was refunded."""
    VOIDED = "voided"
    """Given up before capture: by us, or because the authorisation ran out."""
    DECLINED = "declined"
    """The buyer's bank or the gateway said no."""


DECISIONS = frozenset({ReportedState.AUTHORISED, ReportedState.CAPTURED, ReportedState.VOIDED, ReportedState.DECLINED})
"""What a gateway says once it has decided."""


class Payment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row that is written before a gateway is called."""

    id: PaymentId
    booking_id: BookingId
    event_id: EventId
    mode: Mode
    gateway: str
    method: str
    amount: int
    currency: str
    automatic: bool
    """Whether the gateway takes the money at once; else it is set aside first."""
    created_at: datetime
    state: PaymentState = PaymentState.PENDING
    gateway_id: str | None = None
    captured: int = 0
    refunding: int = 0
    """All refunds that were ever owed; never more than was captured."""
    refunded: int = 0
    """Those that the gateway has made."""
    refunded_elsewhere: int = 0
    """What people gave back at the gateway's own page, as the gateway lists it: no refund of ours."""
    code: str | None = None
    message: str | None = None
    action: Mapping[str, str] | None = None
    return_url: str | None = None
    due_at: datetime | None = None
    """When the payment driver has to look at it next; None when nothing is left to do."""
    tries: int = 0
    version: int = 1
    processed_at: datetime | None = None
    """When the gateway's last decision was recorded: set aside, taken, let go or declined. A silence is none."""

    @property
    def left(self) -> int:
        """What can still be refunded; nothing once a person has given it all back."""
        if self.state is PaymentState.SETTLED and self.code == ALL_BY_HAND:
            return 0
        return max(0, self.captured - self.refunding - self.refunded_elsewhere)

    @property
    def shown_method(self) -> str:
        """What it is charged to, as answers show it."""
        return show(self.gateway, self.method)

    @property
    def owes(self) -> bool:
        """Whether a refund is on its way."""
        return self.refunding > self.refunded


class RefundState(StrEnum):
    """Where a refund stands."""

    PENDING = "pending"
    DONE = "done"
    REFUSED = "refused"


class Refund(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Money on its way back. Recorded before the gateway is asked."""

    id: RefundId
    payment_id: PaymentId
    booking_id: BookingId
    amount: int
    created_at: datetime
    reason: str | None = None
    state: RefundState = RefundState.PENDING
    gateway_id: str | None = None
    code: str | None = None
    processed_at: datetime | None = None
    """When it was recorded that the gateway made or refused it."""


class PaymentKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which payment an idempotency key opened, and by which request. Recorded with the payment."""

    key: IdempotencyKey
    request_hash: bytes
    payment_id: PaymentId
    opened_at: datetime

    def is_over(self, *, now: datetime, seconds: float) -> bool:
        """Whether the key may be used for another request by now."""
        return now - self.opened_at >= timedelta(seconds=seconds)


_NO = dict.fromkeys((ReportedState.DECLINED, ReportedState.VOIDED), PaymentState.FAILED)
_YES = {ReportedState.AUTHORISED: PaymentState.AUTHORISED, ReportedState.CAPTURED: PaymentState.CAPTURED}
_LATE = {ReportedState.AUTHORISED: PaymentState.VOIDING, ReportedState.CAPTURED: PaymentState.CAPTURED}
_DECIDING = {
    ReportedState.PROCESSING: PaymentState.PENDING,
    ReportedState.REQUIRES_ACTION: PaymentState.REQUIRES_ACTION,
}

STATE_AFTER_REPORT: dict[PaymentState, dict[ReportedState, PaymentState]] = {
    **dict.fromkeys(UNDECIDED, _NO | _YES | _DECIDING),
    PaymentState.NEEDS_ATTENTION: _NO | _YES,
    PaymentState.AUTHORISED: _NO | _YES,
    PaymentState.FAILED: _LATE,
    PaymentState.VOIDED: _LATE,
    PaymentState.VOIDING: {
        ReportedState.CAPTURED: PaymentState.CAPTURED,
        **dict.fromkeys((ReportedState.DECLINED, ReportedState.VOIDED), PaymentState.VOIDED),
    },
}
"""The state after a gateway's report, of a payment that was not captured yet. What is not listed changes nothing."""

EDGES = frozenset(
    {
        (source, to)
        for source, after_report in STATE_AFTER_REPORT.items()
        for to in after_report.values()
        if source is not to
    }
    | {(PaymentState.PENDING, PaymentState.UNKNOWN), (PaymentState.AUTHORISED, PaymentState.VOIDING)}
    | {(source, PaymentState.VOIDING) for source in UNDECIDED | {PaymentState.NEEDS_ATTENTION}}
    | {
        (source, PaymentState.NEEDS_ATTENTION)
        for source in TAKEN | (STATE_AFTER_REPORT.keys() - {PaymentState.NEEDS_ATTENTION})
    }
    | {(PaymentState.CAPTURED, PaymentState.PARTIALLY_REFUNDED), (PaymentState.CAPTURED, PaymentState.REFUNDED)}
    | {(PaymentState.PARTIALLY_REFUNDED, PaymentState.REFUNDED)}
    | {(PaymentState.NEEDS_ATTENTION, PaymentState.SETTLED)}
)
"""Every change of state that anything here makes: what the schema's guard lets pass."""


def after_report(payment: Payment, reported: ReportedState, *, wanted: bool, captured: int = 0) -> Payment:
    """The payment after this was said of it; the same one if that is nothing new.

    `wanted`: whether its booking still waits for this money or is sold for it. What is not wanted is given up.
    """
    to = _next(payment, reported, wanted=wanted)
    if to is payment.state:
        return payment
    if to is not PaymentState.CAPTURED:
        return msgspec.structs.replace(payment, state=to)
    if captured != payment.amount:
        known = msgspec.structs.replace(payment, captured=max(0, min(captured, payment.amount)))
        return flagged(known, code="captured_another_amount")
    return msgspec.structs.replace(payment, state=to, captured=captured)


def _next(payment: Payment, reported: ReportedState, *, wanted: bool) -> PaymentState:
    if payment.captured:
        return payment.state
    to = STATE_AFTER_REPORT[payment.state].get(reported, payment.state)
    return PaymentState.VOIDING if to is PaymentState.AUTHORISED and not wanted else to


def unanswered(payment: Payment) -> Payment:
    """The gateway was silent: what was asked may have happened."""
    if payment.state is PaymentState.PENDING:
        return msgspec.structs.replace(payment, state=PaymentState.UNKNOWN)
    return payment


def given_up(payment: Payment) -> Payment:
    """Its booking is lost: whatever is set aside, now or later, is never to be captured."""
    assert payment.state in UNDECIDED | {PaymentState.AUTHORISED}, f"a {payment.state} payment is not given up"
    return msgspec.structs.replace(payment, state=PaymentState.VOIDING)


def flagged(payment: Payment, *, code: str) -> Payment:
    """Nothing more can be done automatically: an operator has to look."""
    return msgspec.structs.replace(payment, state=PaymentState.NEEDS_ATTENTION, code=code)


def settled(payment: Payment, refunds: Sequence[Refund], *, how: SettledAs, note: str) -> Payment:
    """An operator has dealt with it elsewhere. What its gateway took and gave back stays as it is: that is a fact.

    Where a refund was refused it is that refund which was made by hand, and where a part went back at the gateway's own
    page it is that part: the rest can still go back. Else all was.
    """
    if payment.state is not PaymentState.NEEDS_ATTENTION:
        raise InvalidRequest.at("payment_id", f"is {payment.state}: only a payment that needs attention is settled")
    if how is SettledAs.NOTHING:
        return _settled_as_nothing(payment, note=note)
    if not payment.captured:
        said = "has taken nothing yet: ask its gateway again, or settle it as nothing if it is gone there"
        raise InvalidRequest.at("payment_id", said)
    if any(refund.state is RefundState.PENDING for refund in refunds):
        raise InvalidRequest.at("payment_id", "has a refund on its way: wait for what becomes of it")
    code = ALL_BY_HAND if how is SettledAs.REFUNDED else "kept_by_hand"
    in_part = 0 < payment.refunded_elsewhere < payment.captured - payment.refunded
    if how is SettledAs.REFUNDED and (in_part or any(refund.state is RefundState.REFUSED for refund in refunds)):
        code = "refund_by_hand"
    return msgspec.structs.replace(payment, state=PaymentState.SETTLED, code=code, message=note)


def _settled_as_nothing(payment: Payment, *, note: str) -> Payment:
    """The way out where the gateway cannot be asked any more. Money that comes all the same is late money."""
    if payment.captured:
        raise InvalidRequest.at("payment_id", f"has taken {payment.captured}: say what became of that")
    return msgspec.structs.replace(payment, state=PaymentState.FAILED, code="nothing_by_hand", message=note)


def owing(payment: Payment, amount: int) -> Payment:
    """So much more is to go back, and never more than was taken."""
    if not 1 <= amount <= payment.left:
        raise RefundRefused(available=payment.left, asked=amount)
    return msgspec.structs.replace(payment, refunding=payment.refunding + amount)


def repaid(payment: Payment, refund: Refund) -> Payment:
    """The gateway has made a refund."""
    refunded = payment.refunded + refund.amount
    assert refunded <= payment.refunding <= payment.captured, "more went back than was owed"
    state = PaymentState.REFUNDED if refunded == payment.captured else PaymentState.PARTIALLY_REFUNDED
    if payment.state in {PaymentState.NEEDS_ATTENTION, PaymentState.SETTLED}:
        state = payment.state
    # A gateway gives no more back than it took: what was seen there and does not fit any more has failed since.
    elsewhere = min(payment.refunded_elsewhere, payment.captured - refunded)
    return msgspec.structs.replace(payment, refunded=refunded, refunded_elsewhere=elsewhere, state=state)


def refunded_elsewhere(payment: Payment, amount: int) -> Payment:
    """So much was refunded at the gateway without Earmark, by the gateway's own list: flagged if that is new.

    The booking stays as it is: only an operator knows whether the sale was to be undone.
    """
    known = max(0, min(amount, payment.captured - payment.refunded))
    if known == payment.refunded_elsewhere:
        return payment
    return flagged(msgspec.structs.replace(payment, refunded_elsewhere=known), code=REFUNDED_ELSEWHERE)


def came_back(payment: Payment, refund: Refund, *, code: str) -> Payment:
    """A refund that was made has failed since: the buyer does not have the money, and an operator has to look."""
    assert refund.amount <= payment.refunded, "what came back never went"
    return flagged(msgspec.structs.replace(payment, refunded=payment.refunded - refund.amount), code=code)


def scheduled(payment: Payment, *, now: datetime, tried: bool, open_question: bool = False) -> Payment:
    """With the time at which it is looked at next: sooner after news, later after every try that brought none.

    An `open_question` is asked again in any state: a refund that is on its way, a look that was not answered.
    """
    tries = payment.tries + 1 if tried else 0
    seconds = min(WAIT_SECONDS_MIN * 2 ** min(tries, 10), WAIT_SECONDS_MAX)
    due_at = _look_back_at(payment, now=now)
    if open_question or has_work(payment):
        due_at = now + timedelta(seconds=seconds)
    return msgspec.structs.replace(payment, tries=tries, due_at=due_at)


def _look_back_at(payment: Payment, *, now: datetime) -> datetime | None:
    """A no may turn out to have been a yes, and the callback about it be lost: looked at a few times more."""
    if payment.state not in {PaymentState.FAILED, PaymentState.VOIDED}:
        return None
    looks = (payment.created_at + timedelta(seconds=after) for after in LOOK_BACK_SECONDS)
    return next((at for at in looks if at > now), None)


def has_work(payment: Payment) -> bool:
    """Whether the payment driver has something left to do for it."""
    if payment.state is PaymentState.NEEDS_ATTENTION:
        # It is not known whether there is money: an operator looks at it, and the gateway is asked all the same.
        return not payment.captured
    if payment.state is PaymentState.SETTLED:
        # What it owes beyond what went back is the refund that was refused, and an operator has dealt with that.
        return False
    return payment.state in UNDECIDED | {PaymentState.AUTHORISED, PaymentState.VOIDING} or payment.owes


def was_denied(payment: Payment) -> bool:
    """Whether it failed by the shop's own fault: the same request may open another one."""
    return payment.state is PaymentState.FAILED and payment.code == GATEWAY_UNAVAILABLE


def invalid_field(payment: Payment) -> str | None:
    """What was wrong with the request that opened it, if its gateway could not read that."""
    return INVALID_FIELDS.get(payment.code or "") if payment.state is PaymentState.FAILED else None


def is_unserved(payment: Payment) -> bool:
    """Whether it failed before any bank was asked: by the shop's own fault, or by a wrong request."""
    return was_denied(payment) or invalid_field(payment) is not None


def is_undecided_by_bank(payment: Payment) -> bool:
    """Whether it failed and no bank has said anything of the buyer's money: unserved, or a bank was too busy."""
    return is_unserved(payment) or (payment.state is PaymentState.FAILED and payment.code in BANK_BUSY)


def gives_way(payment: Payment, *, method: str | None, gateway: str | None) -> bool:
    """Whether an open payment is ended for one by another method: its buyer was sent away to act, and is back."""
    another = (method, gateway) != (payment.method, payment.gateway)
    return payment.state is PaymentState.REQUIRES_ACTION and bool(method and gateway) and another


def ended_for_another(payment: Payment) -> Payment:
    """The payment as it will be once its gateway has ended it for another one."""
    return msgspec.structs.replace(payment, state=PaymentState.FAILED, code=REPLACED)


def is_replaced(payment: Payment) -> bool:
    """Whether an open payment is being ended for another: what is set aside for it from now on is let go."""
    return payment.state in UNDECIDED and payment.code == REPLACED


def code_after(payment: Payment) -> str | None:
    """Its code, if its gateway reports no other. A payment that succeeds was not ended for another after all."""
    ended = payment.state in {PaymentState.FAILED, PaymentState.VOIDED, PaymentState.VOIDING} | UNDECIDED
    return payment.code if payment.code != REPLACED or ended else None


def keeps_hold(payment: Payment) -> bool:
    """Whether a payment that failed ends no hold, whatever the event says of declines: no bank has said no."""
    return is_unserved(payment) or payment.code == REPLACED


def paying_until(*, began: datetime, now: datetime) -> datetime:
    """Until when a gateway that is deciding pins the hold, if it said so now."""
    return min(now + timedelta(seconds=PAYING_SECONDS), began + timedelta(seconds=PAYING_SECONDS_MAX))


def is_past_cap(payment: Payment, *, now: datetime) -> bool:
    """Whether even a gateway that says it is deciding has had its time."""
    return now - payment.created_at >= timedelta(seconds=PAYING_SECONDS_MAX)


def may_resend(payment: Payment, *, now: datetime) -> bool:
    """Whether the gateway still knows the first create by its key."""
    return now - payment.created_at < timedelta(seconds=RESEND_SECONDS_MAX)


def is_to_be_looked_up(payment: Payment) -> bool:
    """Whether to look for it by our id rather than to send it again: every other time that brought nothing.

    A gateway may repeat the error that it began with for as long as it knows the key, though the money is there.
    """
    return payment.state is PaymentState.UNKNOWN and payment.tries % 2 == 1


def payment_id_for(key: IdempotencyKey, booking_id: BookingId) -> PaymentId:
    """The payment that a request with this idempotency key opens for a booking, now and whenever it comes again."""
    return PaymentId(uuid5(_NAMESPACE, f"{key.caller}\x1f{key.key}\x1f{booking_id}"))


def next_payment_id(payment_id: PaymentId) -> PaymentId:
    """The payment that a request opens after this one came to nothing by the shop's own fault."""
    return PaymentId(uuid5(payment_id, "next"))


def payment_id_of(text: str) -> PaymentId | None:
    """One of our payments' ids, if a booking's payment is one; a shop's own reference is none."""
    try:
        return PaymentId(UUID(text))
    except ValueError:
        return None
