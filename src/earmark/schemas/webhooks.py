"""Request and response bodies about webhooks."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from earmark.domain.webhook import DeliveryState
from earmark.domain.webhook_messages import PING, TYPES
from earmark.schemas.requests import EventIdText, Name
from earmark.webhooks.check_target_addresses import URL_LENGTH_MAX

if TYPE_CHECKING:
    from earmark.domain.webhook import Delivery, Webhook

WebhookType = Enum("WebhookType", {name.replace(".", "_").upper(): name for name in TYPES if name != PING})  # type: ignore[misc]
WebhookType.__doc__ = "The types of messages that a webhook can receive."
_URI = {"format": "uri"}
Url = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=URL_LENGTH_MAX,
        description="https, on the public internet",
        extra_json_schema=_URI,
    ),
]
Types = Annotated[list[WebhookType], Meta(max_length=len(TYPES), description="none is all")]


class WebhookBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The URL of a new webhook, and which messages it receives."""

    url: Url
    types: Types = []
    event_id: EventIdText | None = None
    description: Name | None = None


class WebhookPatchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change about a webhook. Fields that are not named stay."""

    url: Url | UnsetType = UNSET
    types: Types | UnsetType = UNSET
    event_id: EventIdText | UnsetType | None = UNSET
    description: Name | UnsetType | None = UNSET
    active: bool | UnsetType = UNSET


class NothingBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An empty object: the request has no fields."""


class WebhookAnswer(Struct, kw_only=True):
    """A webhook, without its secret."""

    id: str
    url: Annotated[str, Meta(extra_json_schema=_URI)]
    types: list[str]
    event_id: str | None
    description: str | None
    active: bool
    disabled_at: datetime | None
    disabled_because: str | None
    failing_since: datetime | None
    created_at: datetime


class SecretAnswer(WebhookAnswer, kw_only=True):
    """A webhook with its secret, which is shown this once."""

    secret: str
    old_secret_until: datetime | None


class WebhooksPage(Struct, kw_only=True):
    """Some webhooks, oldest first."""

    webhooks: list[WebhookAnswer]
    next_cursor: str | None


class DeliveryAnswer(Struct, kw_only=True):
    """One message to a webhook, and what became of it. Its body is for keys that may read bookings."""

    id: str
    type: str
    state: DeliveryState
    attempts: int
    created_at: datetime
    next_at: datetime | None
    tried_at: datetime | None
    ended_at: datetime | None
    status: int | None
    error: str | None
    took_ms: int | None
    body: str | None


class DeliveriesPage(Struct, kw_only=True):
    """Some deliveries, newest first."""

    deliveries: list[DeliveryAnswer]
    next_cursor: str | None


def webhook_answer(webhook: Webhook) -> WebhookAnswer:
    """A webhook, without its secrets."""
    return WebhookAnswer(**_fields(webhook))


def secret_answer(webhook: Webhook) -> SecretAnswer:
    """A webhook with its secret, for the response that created or rotated it."""
    return SecretAnswer(**_fields(webhook), secret=webhook.secret, old_secret_until=webhook.old_secret_until)


def delivery_answer(delivery: Delivery, *, whole: bool) -> DeliveryAnswer:
    """A delivery, with its next attempt only while it is pending.

    Its body and its receiver's error may contain bookings and buyers: they are withheld unless `whole`.
    """
    d = delivery
    whole = whole or d.type == PING
    return DeliveryAnswer(
        id=str(d.id),
        type=d.type,
        state=d.state,
        attempts=d.attempts,
        created_at=d.created_at,
        next_at=d.due_at if d.state is DeliveryState.PENDING else None,
        tried_at=d.tried_at,
        ended_at=d.ended_at,
        status=d.status,
        error=d.error if whole or d.error is None or d.status is None else f"HTTP {d.status}",
        took_ms=d.took_ms,
        body=d.body.decode() if whole else None,
    )


def _fields(webhook: Webhook) -> dict[str, Any]:
    own = msgspec.structs.asdict(webhook)
    shown = {name: own[name] for name in WebhookAnswer.__struct_fields__ if name in own}
    return shown | {"id": str(webhook.id), "types": list(webhook.types), "active": webhook.disabled_at is None}
