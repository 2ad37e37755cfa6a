"""Guests: an anonymous buyer gets a token, in a cookie that scripts cannot read.

Browsers keep no cookie for a page of another site, so such a page gets the token itself, and sends it as a header.
"""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

from earmark.api.auth.keys_and_tokens import GUEST_ISSUER, GUEST_SECONDS, new_guest
from earmark.api.auth.read_and_set_guest_cookie import set_cookie
from earmark.api.cross_origin_requests import ORIGIN, is_from_elsewhere
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.api.problem_response import Forbidden, NotFound
from earmark.api.request_context_for_handlers import KEY_HEADER, RequestContext
from earmark.api.response import ApiResponse, json_response
from earmark.schemas import responses
from earmark.schemas.to_command import check_key


async def issue_guest(context: RequestContext) -> ApiResponse:
    """A guest's name and token for a client that has none; a guest gets a new token for the same name.

    A page of a site that is not listed gets nothing: its browser may send no cookie with the request, and a new cookie
    would then take the guest's name away.
    """
    services = context.services
    if not services.guests:
        raise NotFound
    elsewhere = is_from_elsewhere(context.scope, context.headers, hops=services.trust_proxy)
    if elsewhere and context.headers.get(ORIGIN) not in services.origins:
        raise Forbidden
    if (key := context.request.headers.get(KEY_HEADER)) is not None:
        check_key(key)
    services.limits.admit_guest(address_at(context.scope, hops=services.trust_proxy))
    now, authenticator = services.clock.now(), services.authenticator
    known = context.caller
    # A token that a key issued ends with that key: it is never exchanged for one that does not.
    is_guest = known is not None and known.issuer == GUEST_ISSUER and known.actor.mode == authenticator.mode
    buyer = (known.actor.buyer if known and is_guest else None) or new_guest()
    token = authenticator.issue(buyer, now=now, seconds=GUEST_SECONDS)
    ends_at = datetime.fromtimestamp(int(now.timestamp()) + GUEST_SECONDS, UTC)
    answer = responses.GuestAnswer(buyer=buyer, expires_at=ends_at, token=token if elsewhere else None)
    headers = {"Cache-Control": "no-store"}
    if not elsewhere:
        headers["Set-Cookie"] = set_cookie(token, context.scope, hops=services.trust_proxy, seconds=GUEST_SECONDS)
    return json_response(answer, status=HTTPStatus.CREATED, headers=headers)


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
        before_token=True,
        refusals=("not_found", "forbidden", "too_many_requests"),
        group="buyers",
    ),
)
