"""No secret leaves by the back door: what looks like one, or is known to be one, is struck out of a text.

Two nets, one behind the other. *Shapes*: API keys, buyers' tokens, signing secrets, Stripe's keys, what stands behind
`Authorization` or in a cookie, passwords in URLs. *Known ones*: the values of this process's own secret settings, which
may have no shape at all, and the passwords in its URLs. Text that only looks like a secret is struck out as well: a
log that says too little can be helped, one that says too much cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

STRUCK = "[redacted]"
DEPTH_MAX = 6
KNOWN_LENGTH_MIN = 4
"""Shorter than this, a password is a syllable: striking it out everywhere would spoil every line."""


def _net(shape: str, *triggers: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """A shape, and the small letters without which it cannot be there: to look for those costs next to nothing."""
    return triggers, re.compile(shape, re.IGNORECASE | re.ASCII)


_URLS = (
    # A password in a URL, up to the last @: it may have one of its own. And in what is a URL but for its scheme.
    _net(r"""(?P<said>://[^\s:/@'"]*:)[^\s'"]+(?=@)""", "://"),
    _net(r"""(?P<said>(?<![\w:/])[\w.\-]+:)[^\s@/:'",]+(?=@[\w.\-]+[:/])""", "@"),
)
_NETS = (
    *_URLS,
    _net(r"(?P<said>\b(?:bearer|basic)[\s:]+)[\w.~+/=\-]+", "bearer", "basic"),
    _net(
        r"""(?P<said>(?:authorization|cookie|api-key|idempotency-key|-signature)['"]?\s*[:=,]\s*(?:b?['"])?)[^'"\r\n]+""",
        "authorization",
        "cookie",
        "api-key",
        "idempotency-key",
        "-signature",
    ),
    _net(
        r"""(?P<said>(?:passw(?:or)?d|pwd|secret|token|key|earmark_guest|signature)['"]?\s*[:=]\s*(?:b?['"])?)"""
        r"""[^'"\s,;&#})\]]+""",
        "passw",
        "pwd",
        "secret",
        "token",
        "key",
        "earmark_guest",
        "signature",
    ),
    _net(r"(?<![a-z0-9])(?:ek|sk|rk)_[\w\-]{6,}", "ek_", "sk_", "rk_"),
    _net(r"(?<![a-z0-9])et_[\w\-]{6,}(?:\.[\w\-]+)?", "et_"),
    _net(r"whsec_[\w+/=\-]+", "whsec_"),
    _net(r"(?<![a-z0-9])[a-z]+_[a-z0-9]+_secret_\w+", "_secret_"),
)
_ANY = re.compile(r"[_@:=,\s]")
"""Each shape has one of these: a plain word, a number or an id is looked at once."""
_NAMES = re.compile(r"passw|secret|token|authorization|cookie|api_?key|credential|signature|idempotency", re.IGNORECASE)

_known: tuple[str, ...] = ()
"""The longest first: one may be a part of another."""


def know(secrets: Iterable[str | None]) -> None:
    """These values are secrets of this process, whatever they look like: of a URL, only its password is."""
    global _known  # noqa: PLW0603 (one process has one set of secrets)
    found = {part for text in secrets if text for part in _parts(text) if len(part) >= KNOWN_LENGTH_MIN}
    _known = tuple(sorted({*_known, *found}, key=len, reverse=True))


def redact(text: str) -> str:
    """The text without its secrets."""
    return _strike_all(text, _NETS)


def redact_setup(text: str) -> str:
    """What is wrong with the set-up, without its passwords. A new key that is offered is there to be read."""
    return _strike_all(text, _URLS)


def _strike_all(text: str, nets: Iterable[tuple[tuple[str, ...], re.Pattern[str]]]) -> str:
    for secret in _known:
        if secret in text:
            text = text.replace(secret, STRUCK)
    if _ANY.search(text) is None:
        return text
    small = text.lower()
    for triggers, shape in nets:
        if any(trigger in small for trigger in triggers):
            text = shape.sub(_strike, text)
    return text


def clean(value: object, *, depth: int = DEPTH_MAX) -> object:
    """A value as it may be written down: text, numbers, and lists and mappings of these, without their secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes):
        return redact(value.decode(errors="backslashreplace"))
    if depth and isinstance(value, Mapping):
        return {redact(str(name)): clean_field(str(name), inner, depth=depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [clean(inner, depth=depth - 1) for inner in value]
    return redact(str(value))


def clean_field(name: str, value: object, *, depth: int = DEPTH_MAX) -> object:
    """The same for a named value: under some names everything is a secret."""
    if isinstance(value, str | bytes) and _NAMES.search(name):
        return STRUCK
    return clean(value, depth=depth)


def _strike(found: re.Match[str]) -> str:
    """What says that there was a secret stays, so that a reader knows what is missing."""
    return f"{found['said']}{STRUCK}" if found.lastgroup else STRUCK


def _parts(text: str) -> list[str]:
    """A secret in all the forms it may be met in."""
    _, is_url, rest = text.partition("://")
    if not is_url:
        return [text]
    found = []
    # Several URLs may stand in one setting. Up to the last @: a password may have one of its own.
    for login in (one.rpartition("@")[0] for one in re.split(r",(?=[a-z]+://)", rest)):
        password = login.rpartition("://")[2].partition(":")[2]
        # Unescaped, these end a URL's part: what a parser then complains of is a piece of the password.
        found += [password, unquote(password), *re.split(r"[/?#@:]", password)]
    return found
