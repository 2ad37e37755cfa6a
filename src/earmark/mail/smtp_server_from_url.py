"""The mail server that a URL names: `smtp://user:password@host:port`, `smtps://…`, with `?starttls=on` or `off`.

Without TLS a password would cross the network in clear, so only a server on this machine may be given one then.
"""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from earmark.errors import SetupError

PORTS = {"smtp": 587, "smtps": 465}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SWITCH = {"on": True, "off": False}


class Tls(StrEnum):
    """How the connection is protected."""

    FROM_THE_START = "from the start"
    STARTTLS = "starttls"
    NONE = "none"


class SmtpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A mail server, and how to log in."""

    host: str
    port: int
    tls: Tls
    user: str | None = None
    password: str | None = None


def parse(url: str) -> SmtpServer:
    """The server of this URL. The errors never repeat it, for there is a password in it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _wrong("it is no URL") from None
    if parts.scheme not in PORTS:
        raise _wrong("it must begin with smtp:// or smtps://")
    if not parts.hostname:
        raise _wrong("it names no host")
    if parts.path not in {"", "/"} or parts.fragment:
        raise _wrong("nothing but ?starttls= may follow the port; write / # ? @ in a password as %2F %23 %3F %40")
    tls = _tls(parts.scheme, dict(parse_qsl(parts.query, keep_blank_values=True)))
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if (user is None) != (password is None):
        raise _wrong("it must have a user and a password, or neither")
    if not f"{user}{password}".isascii():
        raise _wrong("its user and password must be ASCII, which mail servers understand")
    if password is not None and tls is Tls.NONE and parts.hostname not in LOOPBACK:
        raise _wrong("its password would be sent in clear: leave out ?starttls=off")
    return SmtpServer(host=parts.hostname, port=port or PORTS[parts.scheme], tls=tls, user=user, password=password)


def _tls(scheme: str, query: dict[str, str]) -> Tls:
    if unknown := sorted(query.keys() - {"starttls"}):
        raise _wrong(f"it has the parameter {unknown[0]!r}, and only starttls is known")
    wanted = query.get("starttls")
    if wanted not in {None, *SWITCH}:
        raise _wrong("starttls is either on or off")
    if scheme == "smtps":
        if wanted is not None:
            raise _wrong("smtps:// has TLS from the start, and no starttls")
        return Tls.FROM_THE_START
    return Tls.NONE if wanted == "off" else Tls.STARTTLS


def _wrong(why: str) -> SetupError:
    return SetupError(problem=f"EARMARK_SMTP_URL cannot be used: {why}.")
