"""Payments: pay, refund, list, and what gateways call about."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from earmark import logs
from earmark.api import money_words, problems
from earmark.api.bookings import booking_id, find
from earmark.api.door import KEY_HEADER, Call, Reply, Visit, again, reply, say
from earmark.api.identity import Scope
from earmark.api.problems import CallbackForged, NotFound
from earmark.domain.machine import State
from earmark.domain.payment import UNDECIDED, PaymentState, payment_id_for
from earmark.engine.asks import Decided, GiveBack, Paid, Pay
from earmark.engine.gateway import CallbackRefused
from earmark.engine.teller import CallbackMismatch
from earmark.errors import BookingExpired, BookingResolved, InvalidRequest, PaymentDeclined

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.engine.asks import Memo
    from earmark.errors import Refusal

log = logs.get()


async def pay(visit: Visit, body: money_words.PayBody) -> Reply:
    """Open a payment for a hold, and see it through."""
    memo = _required(visit.memo_of(_word))
    actor = visit.principal.actor
    ask = Pay(
        actor=actor,
        entry_id=visit.engine.ids.entry_id(),
        memo=memo,
        booking_id=booking_id(visit),
        payment_id=payment_id_for(*memo.key),
        gateway=visit.house.till.choose(body.gateway, live=actor.live),
        method=body.method,
        automatic=body.capture is money_words.Capture.AUTOMATIC,
        return_url=body.return_url,
    )
    answer = await visit.house.till.pay(ask)
    if told := again(answer):
        return told
    assert isinstance(answer, Decided), "what is replayed is remembered"
    return _word(answer.value, answer.now)


async def refund(visit: Visit, body: money_words.RefundBody) -> Reply:
    """Money back for a sale, all of it or a part."""
    memo = _required(visit.memo(money_words.paid_answer, status=HTTPStatus.CREATED))
    ids = visit.engine.ids
    ask = GiveBack(
        actor=visit.principal.actor,
        entry_id=ids.entry_id(),
        memo=memo,
        booking_id=booking_id(visit),
        refund_id=ids.refund_id(),
        amount=body.amount,
        reason=body.reason,
    )
    return reply(await visit.house.till.refund(ask), money_words.paid_answer, status=HTTPStatus.CREATED)


async def list_(visit: Visit) -> Reply:
    """The payments of a booking."""
    _, booking = await find(visit)
    payments = await visit.engine.store.list_payments(booking.id)
    return say(money_words.PaymentsAnswer(payments=[money_words.payment_answer(payment) for payment, _ in payments]))


async def callback(visit: Visit) -> Reply:
    """A gateway calls: its signature is checked over the very bytes, and then it is asked how things stand."""
    name = visit.path["gateway"]
    gateway = visit.house.till.gateways.get(name)
    if gateway is None:
        raise NotFound
    try:
        called = gateway.read_callback(visit.request.headers, visit.raw)
        ours = await visit.house.till.teller.hear(name, called)
    except (CallbackRefused, CallbackMismatch) as refused:
        log.warning("callback", outcome="refused", gateway=name, because=str(refused))
        raise CallbackForged from refused
    if not ours and called.payment_id is not None:
        # Perhaps it is faster than the row that it is about: the gateway calls again, a bounded number of times.
        raise NotFound
    return say(money_words.CallbackAnswer(received=True))


def _word(paid: Paid, now: datetime) -> Reply:
    """200 sold, 202 under way, 402 declined; else what became of the booking instead."""
    if paid.payment is None or paid.booking.state is State.CONFIRMED:
        return say(money_words.paid_answer(paid, now))
    if paid.payment.state in UNDECIDED:
        return say(money_words.paid_answer(paid, now), status=HTTPStatus.ACCEPTED)
    problem = problems.describe(_refusal(paid, now))
    return Reply(
        status=HTTPStatus(problem["status"]), body=msgspec.json.encode(problem), media_type=problems.MEDIA_TYPE
    )


def _refusal(paid: Paid, now: datetime) -> Refusal:
    booking, payment = paid.booking, paid.payment
    if payment is not None and payment.state is PaymentState.FAILED:
        left = (booking.expires_at - now).total_seconds()
        in_time = booking.state is State.HELD and left > 0
        return PaymentDeclined(
            state=booking.state.value, expires_in=round(left, 3) if in_time else None, why=payment.code
        )
    if booking.state is State.EXPIRED:
        return BookingExpired(expires_at=booking.expires_at)
    return BookingResolved(state=booking.state.value)


def _required(memo: Memo | None) -> Memo:
    if memo is None:
        raise InvalidRequest.at("Idempotency-Key", f"is required where money moves: send the header {KEY_HEADER}")
    return memo


_ON_BOOKING = ("booking_unknown", "booking_expired", "booking_resolved")

CALLS = (
    Call(
        method="POST",
        path="/v1/bookings/{booking_id}/pay",
        name="pay",
        summary="Pay for a hold",
        handler=pay,
        body=money_words.PayBody,
        answer=money_words.PaidAnswer,
        refusals=(*_ON_BOOKING, "payment_declined"),
        idempotent=True,
        keyed=True,
        also=(HTTPStatus.ACCEPTED,),
        group="payments",
        example={"method": "pm_card_visa"},
    ),
    Call(
        method="GET",
        path="/v1/bookings/{booking_id}/payments",
        name="list_payments",
        summary="Show the payments of a booking",
        handler=list_,
        answer=money_words.PaymentsAnswer,
        refusals=("booking_unknown",),
        group="payments",
    ),
    Call(
        method="POST",
        path="/v1/bookings/{booking_id}/refunds",
        name="refund",
        summary="Give money back, all of it or a part",
        handler=refund,
        body=money_words.RefundBody,
        answer=money_words.PaidAnswer,
        status=HTTPStatus.CREATED,
        scope=Scope.SELL,
        refusals=(*_ON_BOOKING, "payment_in_progress", "booking_not_confirmed", "refund_refused"),
        idempotent=True,
        keyed=True,
        group="payments",
        example={"amount": 4500},
    ),
    Call(
        method="POST",
        path="/v1/payments/{gateway}/callback",
        name="callback",
        summary="Where a gateway calls",
        handler=callback,
        raw=True,
        answer=money_words.CallbackAnswer,
        scope=None,
        refusals=("not_found", "callback_refused", "body_too_large", "unsupported_media_type"),
        group="payments",
    ),
)
