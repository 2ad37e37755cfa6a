"""The result of an earlier request, looked up by its idempotency key and only for the caller that chose the key."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes.pay_refund_and_list_payments import write_payment
from earmark.domain.booking_state_machine import State
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import KeyedRequest, Pay, PayResult
from earmark.payments.open_and_conclude_payment import conclude_payment, is_concluded
from earmark.schemas.to_command import check_key
from earmark.schemas.to_response import is_under_way
from earmark.schemas.webhooks import webhook_answer

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.engine.find_earlier_response_before_refusing import KeyLookup
    from earmark.engine.ports.webhook_storage import WebhookChange
    from earmark.schemas.to_command import Common


class Progress(StrEnum):
    """The state of a request with an idempotency key."""

    DONE = "done"
    """It was answered, and the same request again gets the same answer."""
    IN_PROGRESS = "in_progress"
    """It is being decided, or its payment is."""
    UNKNOWN = "unknown"
    """It changed nothing: it never arrived, it was refused, or it waits in a queue."""


class ProgressAnswer(Struct, kw_only=True, omit_defaults=True):
    """The result of the request with this key. `status` and `answer` are those of its response."""

    key: str
    state: Progress
    status: int | None = None
    booking_id: str | None = None
    answer: Any = None


async def show_key_result(context: RequestContext) -> ApiResponse:
    """The result of a request of this caller; requests of other callers with the same key are not shown."""
    text = context.request.path_params["key"]
    check_key(text)
    found = await context.engine.look_up_key(IdempotencyKey(context.principal.caller, text))
    headers = {"Cache-Control": "no-store"}
    if found.record is None and not found.busy and Scope.MANAGE in context.principal.scopes:
        deed = await context.engine.store.webhooks.look_up_key(IdempotencyKey(context.principal.caller, text))
        if deed is not None:
            return json_response(await _done(context, deed), headers=headers)
    booking_id = str(found.about.booking.id) if found.about else None
    response = await _end_of_payment(context, IdempotencyKey(context.principal.caller, text), found)
    if response is None:
        state = Progress.IN_PROGRESS if found.busy else Progress.UNKNOWN
        return json_response(ProgressAnswer(key=text, state=state, booking_id=booking_id), headers=headers)
    status, body = response
    progress = ProgressAnswer(
        key=text,
        state=Progress.DONE,
        status=status,
        booking_id=booking_id or _booking_id(body),
        answer=msgspec.Raw(body),
    )
    return json_response(progress, headers=headers)


async def _end_of_payment(context: RequestContext, key: IdempotencyKey, found: KeyLookup) -> tuple[int, bytes] | None:
    """The status and the body of the answer; None while there is none.

    A callback or a worker may have ended the payment, and these write no responses. Then the response is written here,
    and kept in the idempotency record, so that the same request gets the same response for a day.
    """
    if found.record is not None:
        return found.record.status, found.record.body
    if found.about is None:
        return None
    about, now = found.about, found.about.now
    write = partial(write_payment, notes=context.principal.actor.buyer is None)
    if about.booking.state is State.PAYING or is_under_way(PayResult(booking=about.booking, payment=about.payment)):
        return None
    if found.request_hash is not None and is_concluded(about.booking, about.payment):
        idempotency = KeyedRequest(key=key, request_hash=found.request_hash, write=write)
        common: Common = {
            "actor": context.principal.actor,
            "entry_id": context.engine.ids.entry_id(),
            "idempotency": idempotency,
        }
        command = Pay(**common, booking_id=about.booking.id, payment_id=about.payment.id)
        answer = await conclude_payment(context.engine, command)
        assert answer.record is not None, "a concluded payment has a record"
        return answer.record.status, answer.record.body
    return write(PayResult(booking=about.booking, payment=about.payment), now)


async def _done(context: RequestContext, deed: WebhookChange) -> ProgressAnswer:
    """For a request about a webhook: that it was done, and the webhook as it is now, without its secret."""
    webhook = await context.engine.store.webhooks.read(deed.webhook_id)
    answer = None if webhook is None else webhook_answer(webhook)
    return ProgressAnswer(key=deed.key.key, state=Progress.DONE, status=deed.status, answer=answer)


class _BookingAnswer(Struct):
    """The fields by which a response about a booking differs from any other."""

    id: str
    event_id: str
    buyer: str


def _booking_id(body: bytes) -> str | None:
    """The booking that a response is about, if it is about one."""
    try:
        return msgspec.json.decode(body, type=_BookingAnswer).id
    except msgspec.ValidationError:
        return None


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/idempotency/{key}",
        name="show_key_result",
        summary="Show the result of the request with an idempotency key",
        handler=show_key_result,
        answer=ProgressAnswer,
        or_scope=Scope.MANAGE,
    ),
)
