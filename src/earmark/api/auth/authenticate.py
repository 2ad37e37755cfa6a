"""The welcome: who comes, whether they may, and what they bring. All of it is bounded before anything is decided."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request

from earmark.api import problem_response, query_parameters
from earmark.api.auth.api_keys import TOKEN_PREFIX, Doubt, Principal, bearer_of
from earmark.api.auth.guest_cookie import read_cookie
from earmark.api.middleware import rate_limits
from earmark.api.middleware.client_address import address_at
from earmark.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive
    from starlette.types import Scope as Asked

    from earmark.api.endpoint import Endpoint, Services
    from earmark.api.middleware.body_timeout import BodyTimeout

DISCARDED_BYTES_MAX = 64 * 1024 * 1024
_JSON = b"application/json"


class AuthenticatedRequest(NamedTuple):
    """Somebody at the door, and what they have with them."""

    principal: Principal | None
    headers: Mapping[bytes, bytes]
    """As they were sent: bytes, by names in small letters."""
    raw: bytes


async def authenticate(scope: Asked, receive: Receive, *, call: Endpoint, services: Services) -> AuthenticatedRequest:
    """Let them in, or raise why not."""
    # Of a header that is sent twice the first counts.
    headers = dict(reversed(scope["headers"]))
    principal = await _recognise(scope, headers, services, anybody=call.scope is None)
    if call.scope is not None:
        if principal is None:
            raise problem_response.Unauthorized
        if not {call.scope, call.or_scope} & principal.scopes:
            raise problem_response.Forbidden(needs=call.scope)
        services.limits.admit(principal)
    if scope["query_string"] and not call.raw:
        query_parameters.check(Request(scope).query_params.multi_items(), known={name for name, _ in call.query})
    raw = await _read(headers, receive, call=call, patience=services.body_patience) if call.body or call.raw else b""
    return AuthenticatedRequest(principal, headers, raw)


async def _recognise(
    scope: Asked, headers: Mapping[bytes, bytes], services: Services, *, anybody: bool
) -> Principal | None:
    """Who shows what the request shows. Whoever is known costs no wait; who tries out keys is slowed down.

    Where it may be anybody, nobody is looked up and nobody is slowed down.
    """
    authenticator = services.authenticator
    authorization = _text(headers, b"authorization")
    if not authorization:
        token = _cookie(scope, headers, services)
        return authenticator.recognise_guest(token, now=services.clock.now()) if token else None
    credential = bearer_of(authorization)
    found = authenticator.authenticate(credential, now=services.clock.now())
    if isinstance(found, Principal):
        return found
    if anybody:
        return None
    # A token cannot be guessed, and one that has run out is no attempt to.
    guess = not credential.startswith(TOKEN_PREFIX)
    if not guess or (isinstance(found, Doubt) and authenticator.knows(found)):
        return await authenticator.look_up(found, now=services.clock.now()) if isinstance(found, Doubt) else None
    return await _try(found, address_at(scope, hops=services.trust_proxy), services)


async def _try(found: Doubt | None, address: str, services: Services) -> Principal | None:
    """Who shows a key that this server does not know. Wrong ones are counted by the address that shows them.

    From an address that has shown too many, a key is looked for among all keys: so the wrong keys of one caller never
    lock out the good key of another, and are bounded in what they cost all the same.
    """
    if services.limits.is_suspicious(address):
        # Where too many wait for the next reading of all keys, this one counts as a guess.
        with suppress(Overloaded):
            if found and (good := await services.authenticator.look_up_among_all(found, now=services.clock.now())):
                return good
        services.limits.check_guess(address)
    # Before it is looked up: keys that come together are as many guesses as keys that come one by one.
    services.limits.count_guess(address)
    known = await services.authenticator.look_up(found, now=services.clock.now()) if found else None
    if known is not None:
        services.limits.forgive_guess(address)
    return known


def shown(scope: Asked, headers: Mapping[bytes, bytes], services: Services) -> str | None:
    """The key or token that a request carries: in the header, else a guest's in the cookie."""
    authorization = _text(headers, b"authorization")
    return bearer_of(authorization) if authorization else _cookie(scope, headers, services)


def _cookie(scope: Asked, headers: Mapping[bytes, bytes], services: Services) -> str | None:
    if b"cookie" not in headers:
        return None
    # HTTP/2 sends cookies in as many fields as it likes.
    said = "; ".join(said.decode("latin-1") for name, said in scope["headers"] if name == b"cookie")
    return read_cookie(said, scope, hops=services.trust_proxy) if said else None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    said = headers.get(name)
    return None if said is None else said.decode("latin-1")


async def _read(headers: Mapping[bytes, bytes], receive: Receive, *, call: Endpoint, patience: BodyTimeout) -> bytes:
    """The body, if it is JSON and not too large.

    What is too large is read on and thrown away, up to a bound: a sender that is cut off while it still sends would
    see a broken connection instead of the answer.
    """
    rate_limits.check_encoding(_text(headers, b"content-encoding"))
    try:
        raw, size = await patience.wait(_gather(receive, bytes_max=call.bytes_max))
    except TimeoutError:
        raise InvalidRequest.at("", "the body did not arrive in time") from None
    if size > call.bytes_max:
        raise problem_response.TooLarge(bytes_max=call.bytes_max)
    if size and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise problem_response.WrongMediaType
    return raw


async def _gather(receive: Receive, *, bytes_max: int) -> tuple[bytes, int]:
    """All that is sent, and its size; of what is too large, only the size."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= DISCARDED_BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest.at("", "the connection broke before the body was here")
        part = message.get("body", b"")
        size += len(part)
        if size <= bytes_max:
            parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts), size
