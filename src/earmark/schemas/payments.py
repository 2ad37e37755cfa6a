"""The API's words about money: how to pay, and what became of it."""

from __future__ import annotations

from msgspec import Struct

from earmark.schemas import requests, responses, to_response

PayBody = requests.PayBody
RefundBody = requests.RefundBody

PaymentAnswer = responses.Payment
PaidAnswer = responses.Paid
RulingAnswer = responses.Ruling
UndoneAnswer = responses.Undone
PaymentsAnswer = responses.Payments

listed_payment_answer = to_response.listed_payment_value
paid_answer = to_response.paid_value
undone_answer = to_response.undone_value


class CallbackAnswer(Struct, kw_only=True):
    """The callback was taken in."""

    received: bool
