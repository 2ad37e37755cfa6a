"""What became of a request: asked by its idempotency key, by the caller who chose it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from earmark.api.door import Call, Reply, Visit, say
from earmark.api.identity import Scope
from earmark.api.webhook_words import webhook_answer
from earmark.domain.journal import Key
from earmark.words.asking import check_key

if TYPE_CHECKING:
    from earmark.engine.webhooks import Deed


class Progress(StrEnum):
    """How far a request got."""

    DONE = "done"
    """It was answered, and the same request again gets the same answer."""
    IN_PROGRESS = "in_progress"
    """It is being decided, or its payment is."""
    UNKNOWN = "unknown"
    """Nothing was changed by it: it never came, it was refused, or it waits in line."""


class ProgressAnswer(Struct, kw_only=True, omit_defaults=True):
    """What became of the request with this key. `status` and `answer` are what it was told."""

    key: str
    state: Progress
    status: int | None = None
    booking_id: str | None = None
    answer: Any = None


async def recall(visit: Visit) -> Reply:
    """A key of the caller's own; what others did with the same word is not told."""
    text = visit.request.path_params["key"]
    check_key(text)
    found = await visit.engine.recall(Key(visit.principal.caller, text))
    headers = {"Cache-Control": "no-store"}
    if found.memory is None and not found.busy and Scope.MANAGE in visit.principal.scopes:
        deed = await visit.engine.store.webhooks.recall(Key(visit.principal.caller, text))
        if deed is not None:
            return say(await _done(visit, deed), headers=headers)
    if found.memory is None:
        state = Progress.IN_PROGRESS if found.busy else Progress.UNKNOWN
        booking_id = str(found.booking_id) if found.booking_id else None
        return say(ProgressAnswer(key=text, state=state, booking_id=booking_id), headers=headers)
    told = ProgressAnswer(
        key=text,
        state=Progress.DONE,
        status=found.memory.status,
        booking_id=_booking_id(found.memory.body),
        answer=msgspec.Raw(found.memory.body),
    )
    return say(told, headers=headers)


async def _done(visit: Visit, deed: Deed) -> ProgressAnswer:
    """Of a webhook it is said that it was done, and how the webhook is by now, without its secret."""
    webhook = await visit.engine.store.webhooks.read(deed.webhook_id)
    answer = None if webhook is None else webhook_answer(webhook)
    return ProgressAnswer(key=deed.key.key, state=Progress.DONE, status=deed.status, answer=answer)


class _Booking(Struct):
    """What tells the answer about a booking from any other."""

    id: str
    event_id: str
    buyer: str


def _booking_id(body: bytes) -> str | None:
    """The booking that an answer is about, if it is about one."""
    try:
        return msgspec.json.decode(body, type=_Booking).id
    except msgspec.ValidationError:
        return None


CALLS = (
    Call(
        method="GET",
        path="/v1/idempotency/{key}",
        name="recall",
        summary="Say what became of the request with an idempotency key",
        handler=recall,
        answer=ProgressAnswer,
        or_scope=Scope.MANAGE,
    ),
)
