"""The guest's cookie: its name, how it is set, and how it is read.

Over TLS its name has a prefix that browsers protect: such a cookie can only be set over TLS, and with `__Host-`, where
Earmark is mounted at the root, only by this host. There the plain name is not read: over plain HTTP, or from another
host of the same domain, an attacker could have set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import cookie_parser

from earmark.api.middleware.read_forwarded_headers import is_secure_at

if TYPE_CHECKING:
    from starlette.types import Scope

COOKIE = "earmark_guest"
HOST, SECURE = f"__Host-{COOKIE}", f"__Secure-{COOKIE}"


def read_cookie(header: str, scope: Scope, *, hops: int) -> str | None:
    """The token in a request's cookies, under the one name that is right for its scheme and path."""
    if COOKIE not in header:
        return None
    return cookie_parser(header).get(name_for(scope, tls=is_secure_at(scope, hops=hops)))


def set_cookie(token: str, scope: Scope, *, hops: int, seconds: int) -> str:
    """The `Set-Cookie` header: not readable by scripts, and sent only with requests from this site."""
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
