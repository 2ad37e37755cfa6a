"""The API's words about money: how to pay, and what became of it."""

from __future__ import annotations

from msgspec import Struct

from earmark.words import bodies, values, wording

PayBody = bodies.PayBody
RefundBody = bodies.RefundBody

PaymentAnswer = values.Payment
PaidAnswer = values.Paid
RulingAnswer = values.Ruling
UndoneAnswer = values.Undone
PaymentsAnswer = values.Payments

listed_payment_answer = wording.listed_payment_value
paid_answer = wording.paid_value
undone_answer = wording.undone_value


class CallbackAnswer(Struct, kw_only=True):
    """The callback was taken in."""

    received: bool
