"""Guests: an anonymous buyer gets a token, in a cookie that scripts cannot read."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

from earmark.api.auth.keys_and_tokens import GUEST_ISSUER, GUEST_SECONDS, new_guest
from earmark.api.auth.read_and_set_guest_cookie import set_cookie
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.api.problem_response import NotFound
from earmark.api.request_context_for_handlers import KEY_HEADER, RequestContext
from earmark.api.response import ApiResponse, json_response
from earmark.schemas import responses
from earmark.schemas.to_command import check_key


async def issue_guest(context: RequestContext) -> ApiResponse:
    """A guest's name and token for a client that has none; a guest gets a new token for the same name."""
    if not context.services.guests:
        raise NotFound
    if (key := context.request.headers.get(KEY_HEADER)) is not None:
        check_key(key)
    context.services.limits.admit_guest(address_at(context.scope, hops=context.services.trust_proxy))
    now, authenticator = context.services.clock.now(), context.services.authenticator
    known = context.caller
    # A token that a key issued ends with that key: it is never exchanged for one that does not.
    is_guest = known is not None and known.issuer == GUEST_ISSUER and known.actor.mode == authenticator.mode
    buyer = (known.actor.buyer if known and is_guest else None) or new_guest()
    token = authenticator.issue(buyer, now=now, seconds=GUEST_SECONDS)
    ends_at = datetime.fromtimestamp(int(now.timestamp()) + GUEST_SECONDS, UTC)
    cookie = set_cookie(token, context.scope, hops=context.services.trust_proxy, seconds=GUEST_SECONDS)
    answer = responses.GuestAnswer(buyer=buyer, expires_at=ends_at)
    return json_response(answer, status=HTTPStatus.CREATED, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/guests",
        name="issue_guest",
        summary="Become an anonymous buyer",
        handler=issue_guest,
        answer=responses.GuestAnswer,
        status=HTTPStatus.CREATED,
        scope=None,
        refusals=("not_found", "too_many_requests"),
        group="buyers",
    ),
)
