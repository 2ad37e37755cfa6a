"""Webhooks: create, read, change, rotate the secret, send a test, list deliveries, and repeat one."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.pagination import read_page
from earmark.api.response import ApiResponse, json_response
from earmark.api.routes.webhook_subscription_idempotency import deed_of, once
from earmark.domain.id_types import DeliveryId, EventId, WebhookId
from earmark.domain.webhook import WEBHOOKS_MAX, Delivery, DeliveryState, Webhook, enabled, rotated
from earmark.domain.webhook_messages import PING, ping_body
from earmark.errors import (
    DeliveryUnknown,
    EventUnknown,
    Forbidden,
    InvalidRequest,
    Overloaded,
    WebhookDisabled,
    WebhookUnknown,
)
from earmark.schemas import webhooks as schemas
from earmark.uuids import new_delivery_id, new_webhook_id
from earmark.webhooks.check_target_addresses import TargetRefused
from earmark.webhooks.sign_and_send_one_webhook import new_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.api.request_context_for_handlers import RequestContext

BY_THE_SHOP = "switched off by the shop"
SAVE_ROUNDS_MAX = 5
RESOLVE_SECONDS_MAX = 5.0


async def make(context: RequestContext, body: schemas.WebhookBody) -> ApiResponse:
    """Create a webhook and return it with its secret. It gets the journal entries that are numbered from now on."""
    _require_sell(context)
    return await once(context, lambda: _make(context, body))


async def _make(context: RequestContext, body: schemas.WebhookBody) -> Webhook:
    await _check(context, body.url)
    event_id = await _event(context, body.event_id)
    new = Webhook(
        id=new_webhook_id(),
        mode=context.principal.actor.mode,
        url=body.url,
        secret=new_secret(),
        created_at=context.services.clock.now(),
        types=tuple(kind.value for kind in body.types),
        event_id=event_id,
        description=body.description,
    )
    if not await context.engine.store.webhooks.make(new, limit=WEBHOOKS_MAX, deed=deed_of(context, new.id)):
        raise InvalidRequest.at("", f"there are {WEBHOOKS_MAX} webhooks already, and there can be no more")
    return new


def _require_sell(context: RequestContext) -> None:
    """A webhook's receiver reads bookings and trusts what its secret signs: the caller's key needs `sell` for both."""
    if Scope.SELL not in context.principal.scopes:
        raise Forbidden(needs=Scope.SELL)


async def list_(context: RequestContext) -> ApiResponse:
    """Webhooks of the caller's mode, oldest first."""
    page = read_page(context.request.query_params, of=context.endpoint.name, actor=context.principal.actor)
    after = WebhookId(_uuid(page.after)) if page.after else None
    found = await context.engine.store.webhooks.page(
        mode=context.principal.actor.mode, after=after, limit=page.limit + 1
    )
    shown = [schemas.webhook_answer(webhook) for webhook in found[: page.limit]]
    more = len(found) > page.limit
    return json_response(schemas.WebhooksPage(webhooks=shown, next_cursor=page.cursor(shown[-1].id) if more else None))


async def read(context: RequestContext) -> ApiResponse:
    """One webhook, without its secret."""
    return json_response(schemas.webhook_answer(await _find(context)))


async def change(context: RequestContext, body: schemas.WebhookPatchBody) -> ApiResponse:
    """Change the named fields. A webhook with a new URL, or enabled again, starts without earlier failures."""
    await _find(context)
    if any(value is not msgspec.UNSET for value in (body.url, body.types, body.event_id)):
        _require_sell(context)
    if body.url is not msgspec.UNSET:
        await _check(context, body.url)
    if body.event_id is not msgspec.UNSET:
        await _event(context, body.event_id)
    named = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    active = named.pop("active", None)
    if "types" in named:
        named["types"] = tuple(kind.value for kind in named["types"])

    def changed(webhook: Webhook) -> Webhook:
        after = msgspec.structs.replace(webhook, **named, version=webhook.version + 1)
        if active is False and after.disabled_at is None:
            now = context.services.clock.now()
            return msgspec.structs.replace(after, disabled_at=now, disabled_because=BY_THE_SHOP)
        if active:
            return enabled(after)
        fresh = after.url != webhook.url
        return msgspec.structs.replace(after, failing_since=None, resting_until=None) if fresh else after

    return json_response(schemas.webhook_answer(await _save(context, changed)))


async def remove(context: RequestContext) -> ApiResponse:
    """Delete a webhook with its log of deliveries, also those that are still pending."""
    webhook = await _find(context)
    await context.engine.store.webhooks.remove(webhook.id)
    return json_response(schemas.webhook_answer(webhook))


async def rotate(context: RequestContext, _: schemas.NothingBody) -> ApiResponse:
    """Give the webhook a new secret; for a day messages are signed with the old one too."""
    _require_sell(context)
    secret, now = new_secret(), context.services.clock.now()
    return await once(context, lambda: _save(context, lambda webhook: rotated(webhook, secret=secret, now=now)))


async def test(context: RequestContext, _: schemas.NothingBody) -> ApiResponse:
    """Queue a ping like any other delivery. Two requests are two pings, even with the same idempotency key."""
    context.key_and_hash()
    webhook = _active(await _find(context))
    now = context.services.clock.now()
    ping = Delivery(
        id=new_delivery_id(),
        webhook_id=webhook.id,
        type=PING,
        body=ping_body(now=now),
        created_at=now,
        due_at=now,
    )
    await context.engine.store.webhooks.queue(ping)
    return json_response(_answer(context, ping), status=HTTPStatus.ACCEPTED)


async def log(context: RequestContext) -> ApiResponse:
    """The deliveries of a webhook, also those that are pending, newest first."""
    webhook = await _find(context)
    query = context.request.query_params
    page = read_page(query, of=context.endpoint.name, actor=context.principal.actor)
    before = _number(page.after)
    found = await context.engine.store.webhooks.log(
        webhook.id, state=_state(query.get("state")), before=before, limit=page.limit + 1
    )
    shown = found[: page.limit]
    more = len(found) > page.limit
    answers = [_answer(context, delivery) for delivery in shown]
    return json_response(
        schemas.DeliveriesPage(deliveries=answers, next_cursor=page.cursor(str(shown[-1].number)) if more else None)
    )


async def replay(context: RequestContext) -> ApiResponse:
    """Queue the same message once more, under the same id, by which its receiver recognises it."""
    context.key_and_hash()
    webhook = _active(await _find(context))
    text = context.request.path_params["delivery_id"]
    try:
        delivery_id = DeliveryId(UUID(text))
    except ValueError:
        raise DeliveryUnknown(delivery_id=text) from None
    delivery = await context.engine.store.webhooks.replay(webhook.id, delivery_id)
    if delivery is None:
        raise DeliveryUnknown(delivery_id=text)
    return json_response(_answer(context, delivery), status=HTTPStatus.ACCEPTED)


def _answer(context: RequestContext, delivery: Delivery) -> schemas.DeliveryAnswer:
    """The delivery, with its body only for a key that may read bookings: the scope `manage` does not include that."""
    return schemas.delivery_answer(delivery, whole=Scope.SELL in context.principal.scopes)


async def _find(context: RequestContext) -> Webhook:
    text = context.request.path_params["webhook_id"]
    try:
        webhook = await context.engine.store.webhooks.read(WebhookId(UUID(text)))
    except ValueError:
        webhook = None
    if webhook is None or webhook.mode != context.principal.actor.mode:
        raise WebhookUnknown(webhook_id=text)
    return webhook


async def _save(context: RequestContext, change: Callable[[Webhook], Webhook]) -> Webhook:
    """Apply the change to the current webhook; if another request saved it in between, apply it again."""
    for _ in range(SAVE_ROUNDS_MAX):
        after = change(await _find(context))
        if await context.engine.store.webhooks.save(after, deed=deed_of(context, after.id)):
            return after
    raise Overloaded


async def _check(context: RequestContext, url: str) -> None:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            await context.services.targets.find(url)
    except TargetRefused as refused:
        raise InvalidRequest.at("url", str(refused)) from refused
    except TimeoutError as slow:
        raise InvalidRequest.at("url", "its host could not be resolved in time") from slow


async def _event(context: RequestContext, event_id: str | None) -> EventId | None:
    if event_id is None:
        return None
    event = await context.engine.store.read_event(EventId(event_id))
    if event is None or event.mode != context.principal.actor.mode:
        raise EventUnknown(event_id=event_id)
    return event.id


def _active(webhook: Webhook) -> Webhook:
    if webhook.disabled_at is not None:
        raise WebhookDisabled(why=webhook.disabled_because or BY_THE_SHOP)
    return webhook


def _uuid(cursor: str) -> UUID:
    try:
        return UUID(cursor)
    except ValueError:
        raise InvalidRequest.at("cursor", "is not one that this server gave out") from None


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > len(str(2**62)):
        raise InvalidRequest.at("cursor", "is not one that this server gave out")
    return min(int(cursor), 2**62)


def _state(text: str | None) -> DeliveryState | None:
    if not text:
        return None
    try:
        return DeliveryState(text)
    except ValueError:
        raise InvalidRequest.at("state", f"is one of {', '.join(DeliveryState)}") from None


_PATH = "/v1/webhooks/{webhook_id}"
_PAGE = (("cursor", "next_cursor of the page before"), ("limit", "how many"))

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/webhooks",
        name="make_webhook",
        summary="Create a webhook",
        handler=make,
        body=schemas.WebhookBody,
        answer=schemas.SecretAnswer,
        status=HTTPStatus.CREATED,
        scope=Scope.MANAGE,
        refusals=("event_unknown", "webhook_unknown"),
        idempotent=True,
        group="webhooks",
        example={"url": "https://shop.example/earmark", "types": ["booking.confirmed", "booking.expired"]},
    ),
    Endpoint(
        method="GET",
        path="/v1/webhooks",
        name="list_webhooks",
        summary="List webhooks",
        handler=list_,
        answer=schemas.WebhooksPage,
        scope=Scope.MANAGE,
        query=_PAGE,
        group="webhooks",
    ),
    Endpoint(
        method="GET",
        path=_PATH,
        name="read_webhook",
        summary="Read a webhook",
        handler=read,
        answer=schemas.WebhookAnswer,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown",),
        group="webhooks",
    ),
    Endpoint(
        method="PATCH",
        path=_PATH,
        name="change_webhook",
        summary="Change a webhook, or switch it off or on",
        handler=change,
        body=schemas.WebhookPatchBody,
        answer=schemas.WebhookAnswer,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown", "event_unknown"),
        group="webhooks",
        example={"active": False},
    ),
    Endpoint(
        method="DELETE",
        path=_PATH,
        name="remove_webhook",
        summary="Remove a webhook, with its log and all that waits",
        handler=remove,
        answer=schemas.WebhookAnswer,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown",),
        group="webhooks",
    ),
    Endpoint(
        method="POST",
        path=f"{_PATH}/rotate",
        name="rotate_webhook",
        summary="Give a webhook a new secret",
        handler=rotate,
        body=schemas.NothingBody,
        answer=schemas.SecretAnswer,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown",),
        idempotent=True,
        group="webhooks",
        example={},
    ),
    Endpoint(
        method="POST",
        path=f"{_PATH}/test",
        name="test_webhook",
        summary="Send a ping",
        handler=test,
        body=schemas.NothingBody,
        answer=schemas.DeliveryAnswer,
        status=HTTPStatus.ACCEPTED,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown", "webhook_disabled"),
        group="webhooks",
        example={},
    ),
    Endpoint(
        method="GET",
        path=f"{_PATH}/deliveries",
        name="list_deliveries",
        summary="Show what was delivered, what failed and what waits",
        handler=log,
        answer=schemas.DeliveriesPage,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown",),
        query=(("state", "pending, delivered or failed"), *_PAGE),
        group="webhooks",
    ),
    Endpoint(
        method="POST",
        path=f"{_PATH}/deliveries/{{delivery_id}}/replay",
        name="replay_delivery",
        summary="Send a message once more",
        handler=replay,
        answer=schemas.DeliveryAnswer,
        status=HTTPStatus.ACCEPTED,
        scope=Scope.MANAGE,
        refusals=("webhook_unknown", "delivery_unknown", "webhook_disabled"),
        group="webhooks",
    ),
)
