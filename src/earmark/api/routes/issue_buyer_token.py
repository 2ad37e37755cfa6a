"""Buyer tokens: a shop's back end issues one so that a buyer's browser can call the API itself, for a limited time."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.response import ApiResponse, json_response
from earmark.domain.id_types import Buyer
from earmark.schemas.requests import Who
from earmark.schemas.responses import Moment

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext

TOKEN_SECONDS_DEFAULT = 3600
TOKEN_SECONDS_MAX = 86_400


class TokenBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The buyer that a token authenticates, and for how long."""

    buyer: Who
    seconds: Annotated[int, Meta(ge=1, le=TOKEN_SECONDS_MAX)] = TOKEN_SECONDS_DEFAULT


class TokenAnswer(Struct, kw_only=True):
    """A token for one buyer. It is shown once, and expires at `expires_at` or with the key that issued it."""

    token: str
    buyer: str
    expires_at: Moment


async def issue(context: RequestContext, body: TokenBody) -> ApiResponse:
    """A token for one buyer, in the mode of the key. Its idempotency key stores no response: that is a secret."""
    context.key_and_hash()
    now = context.services.clock.now()
    buyer = Buyer(body.buyer)
    token = context.services.authenticator.issue(buyer, now=now, seconds=body.seconds, by=context.principal)
    ends_at = datetime.fromtimestamp(int(now.timestamp()) + body.seconds, UTC)
    answer = TokenAnswer(token=token, buyer=buyer, expires_at=ends_at)
    return json_response(answer, status=HTTPStatus.CREATED, headers={"Cache-Control": "no-store"})


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/tokens",
        name="issue",
        summary="Issue a token for one buyer",
        handler=issue,
        body=TokenBody,
        answer=TokenAnswer,
        status=HTTPStatus.CREATED,
        scope=Scope.SELL,
        group="buyers",
        example={"buyer": "alice", "seconds": 3600},
    ),
)
