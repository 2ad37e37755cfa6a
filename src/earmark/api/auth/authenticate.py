"""Which caller sends a request, and whether the endpoint's scope allows it.

A known caller costs no wait. An address that tries out keys is slowed down, and never locks out another caller.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from earmark.api import problem_response
from earmark.api.auth.keys_and_tokens import TOKEN_PREFIX, Principal, UnverifiedCredential, bearer_of
from earmark.api.auth.read_and_set_guest_cookie import read_cookie
from earmark.api.cross_origin_requests import is_from_elsewhere
from earmark.api.middleware.read_forwarded_headers import address_at
from earmark.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope as AsgiScope

    from earmark.api.endpoint_declaration import Endpoint
    from earmark.api.open_services_for_handlers import Services


async def authenticate(
    scope: AsgiScope, headers: Mapping[bytes, bytes], *, endpoint: Endpoint, services: Services
) -> Principal | None:
    """The caller; None where the endpoint has no scope and no caller is known. Raises where the caller may not."""
    authorization = headers.get(b"authorization")
    if authorization:
        credential = bearer_of(authorization.decode("latin-1"))
        found = services.authenticator.authenticate(credential, services.clock)
        principal = (
            found
            if isinstance(found, Principal)
            else await _look_up(found, scope, credential, endpoint=endpoint, services=services)
        )
    else:
        token = _cookie(scope, headers, services)
        principal = services.authenticator.recognise_guest(token, now=services.clock.now()) if token else None
    if endpoint.scope is not None:
        if principal is None:
            raise problem_response.Unauthorized
        if endpoint.scope not in principal.scopes and endpoint.or_scope not in principal.scopes:
            raise problem_response.Forbidden(needs=endpoint.scope)
        limits = services.limits
        if limits.limits_keys if principal.actor.buyer is None else limits.limits_buyers:
            limits.admit(principal)
    return principal


async def _look_up(
    found: UnverifiedCredential | None, scope: AsgiScope, credential: str, *, endpoint: Endpoint, services: Services
) -> Principal | None:
    """The owner of a credential that this process does not know yet. An endpoint without a scope looks nothing up."""
    if endpoint.scope is None:
        return None
    authenticator = services.authenticator
    # A token cannot be guessed, and an expired one is no guess.
    guess = not credential.startswith(TOKEN_PREFIX)
    if not guess or (isinstance(found, UnverifiedCredential) and authenticator.knows(found)):
        return (
            await authenticator.look_up(found, now=services.clock.now())
            if isinstance(found, UnverifiedCredential)
            else None
        )
    return await _try(found, address_at(scope, hops=services.trust_proxy), services)


async def _try(found: UnverifiedCredential | None, address: str, services: Services) -> Principal | None:
    """The owner of a key that this process does not know. Wrong keys are counted by the address that sends them.

    A key from an address that has sent too many is searched among all keys, which are read at once: so the wrong
    keys of one caller never lock out the valid key of another, and their cost is bounded all the same.
    """
    if services.limits.is_suspicious(address):
        # When too many requests wait for the next reading of all keys, this one counts as a guess.
        with suppress(Overloaded):
            if found and (good := await services.authenticator.look_up_in_snapshot(found, now=services.clock.now())):
                return good
        services.limits.check_guess(address)
    # Before it is looked up: keys that arrive together count as as many guesses as keys that arrive one by one.
    services.limits.count_guess(address)
    known = await services.authenticator.look_up(found, now=services.clock.now()) if found else None
    if known is not None:
        services.limits.forgive_guess(address)
    return known


def credential_of(scope: AsgiScope, headers: Mapping[bytes, bytes], services: Services) -> str | None:
    """The key or token that a request carries: in the header, else a guest's in the cookie."""
    authorization = _text(headers, b"authorization")
    return bearer_of(authorization) if authorization else _cookie(scope, headers, services)


def _cookie(scope: AsgiScope, headers: Mapping[bytes, bytes], services: Services) -> str | None:
    """The guest's cookie; of a request from another site it is not read, whichever cookies its browser sends."""
    if b"cookie" not in headers or is_from_elsewhere(scope, headers, hops=services.trust_proxy):
        return None
    # HTTP/2 sends cookies in as many fields as it likes.
    header = "; ".join(header.decode("latin-1") for name, header in scope["headers"] if name == b"cookie")
    return read_cookie(header, scope, hops=services.trust_proxy) if header else None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    header = headers.get(name)
    return None if header is None else header.decode("latin-1")
