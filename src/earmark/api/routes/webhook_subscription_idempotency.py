"""Idempotency keys of requests about webhooks: one effect for one key, and no second copy of a webhook's secret."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from earmark.api.response import REPLAYED_HEADER, ApiResponse, json_response
from earmark.engine.ports.webhook_storage import AlreadyDone, WebhookChange
from earmark.errors import IdempotencyMismatch, Overloaded, WebhookUnknown
from earmark.schemas import webhooks as schemas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.domain.id_types import WebhookId
    from earmark.domain.webhook import Webhook


async def once(context: RequestContext, work: Callable[[], Awaitable[Webhook]]) -> ApiResponse:
    """Run `work`, unless the same request was done before: then only show the webhook as it is now.

    The record of the key names the webhook and stores no response, which would contain the secret.
    """
    webhook = await _done_before(context)
    if webhook is None:
        try:
            return _shown(context, await work())
        except AlreadyDone:
            webhook = await _done_before(context)
            if webhook is None:
                raise Overloaded from None
    return _shown(context, webhook, replayed=True)


async def _done_before(context: RequestContext) -> Webhook | None:
    shown = context.key_and_hash()
    deed = None if shown is None else await context.engine.store.webhooks.look_up_key(shown[0])
    if shown is None or deed is None:
        return None
    if deed.request_hash != shown[1]:
        raise IdempotencyMismatch
    webhook = await context.engine.store.webhooks.read(deed.webhook_id)
    if webhook is None:
        raise WebhookUnknown(webhook_id=str(deed.webhook_id))
    return webhook


def deed_of(context: RequestContext, webhook_id: WebhookId) -> WebhookChange | None:
    """The record of this request's idempotency key; None if the caller sent no key."""
    shown = context.key_and_hash() if context.endpoint.idempotent else None
    if shown is None:
        return None
    now, status = context.services.clock.now(), int(context.endpoint.status)
    return WebhookChange(key=shown[0], request_hash=shown[1], webhook_id=webhook_id, status=status, done_at=now)


def _shown(context: RequestContext, webhook: Webhook, *, replayed: bool = False) -> ApiResponse:
    """The webhook with its secret."""
    headers = {REPLAYED_HEADER: "true"} if replayed else {}
    if context.endpoint.status is HTTPStatus.CREATED:
        headers["Location"] = f"{context.root}/v1/webhooks/{webhook.id}"
    return json_response(schemas.secret_answer(webhook), status=context.endpoint.status, headers=headers)
