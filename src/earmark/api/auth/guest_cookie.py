"""The guest's cookie: its name, how it is set, and how it is read.

Over TLS its name has a prefix that browsers protect: such a cookie can be set over TLS alone, and with `__Host-`, where
Earmark stands at the root, by this very host alone. There the plain name is not read: over plain HTTP, or from another
host of the same domain, an attacker could have set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import cookie_parser

from earmark.api.middleware.client_address import is_secure_at

if TYPE_CHECKING:
    from starlette.types import Scope

COOKIE = "earmark_guest"
HOST, SECURE = f"__Host-{COOKIE}", f"__Secure-{COOKIE}"


def read_cookie(said: str, scope: Scope, *, hops: int) -> str | None:
    """The token in a request's cookies, under the one name that fits how it came."""
    if COOKIE not in said:
        return None
    return cookie_parser(said).get(name_for(scope, tls=is_secure_at(scope, hops=hops)))


def set_cookie(token: str, scope: Scope, *, hops: int, seconds: int) -> str:
    """What a browser is told to keep: out of reach of scripts, and for requests from this site."""
    tls = is_secure_at(scope, hops=hops)
    path, secure = _root(scope) or "/", "; Secure" if tls else ""
    return f"{name_for(scope, tls=tls)}={token}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def name_for(scope: Scope, *, tls: bool) -> str:
    """The cookie's name. `__Host-` wants the path `/`, which under a prefix would be that of the whole application."""
    if not tls:
        return COOKIE
    return SECURE if _root(scope) else HOST


def _root(scope: Scope) -> str:
    return str(scope.get("root_path", "")).rstrip("/")
