"""Removes secrets from texts that leave the process: text that looks like a secret, and known secrets.

Two passes. *Patterns*: API keys, buyers' tokens, signing secrets, Stripe's keys, the values of `Authorization` and
cookies, passwords in URLs, card numbers. *Known secrets*: the values of this process's own secret settings, which may
match no pattern, and the passwords in its URLs. Text that only looks like a secret is removed as well: a missing word
in a log does less harm than a secret in it.

Clients choose the text, so its cost is bounded twice: what is longer than `TEXT_MAX` is cut before it is searched, and
each search takes time in proportion to what is left. A secret that the cut would part is dropped as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from earmark.domain import detect_card_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STRUCK = "[redacted]"
CUT = "…"
"""Written in place of the rest of a text that was cut."""
TEXT_MAX = 8_192
"""So many characters of one text are searched and written; the rest is cut."""
DEPTH_MAX = 6
KNOWN_LENGTH_MIN = 4
"""A shorter password occurs inside ordinary words: removing it everywhere would make every line unreadable."""


def _rule(shape: str, *triggers: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """A pattern, and lower-case texts without which it cannot match: to search for those is cheap."""
    return triggers, re.compile(shape, re.IGNORECASE | re.ASCII)


_URLS = (
    # A URL without its scheme. Possessive: each part ends where a character follows that it cannot contain.
    _rule(r"""(?P<kept>:)[^\s@/:'",]++(?=@[\w.\-]++[:/])""", "@"),
)
_RULES = (
    *_URLS,
    _rule(r"(?P<kept>\b(?:bearer|basic)[\s:]+)[\w.~+/=\-]+", "bearer", "basic"),
    _rule(
        r"""(?P<kept>(?:authorization|cookie|api-key|idempotency-key|-signature)['"]?\s*[:=,]\s*(?:b?['"])?)[^'"\r\n]+""",
        "authorization",
        "cookie",
        "api-key",
        "idempotency-key",
        "-signature",
    ),
    _rule(
        r"""(?P<kept>(?:passw(?:or)?d|pwd|secret|token|key|earmark_guest|signature)['"]?\s*[:=]\s*(?:b?['"])?)"""
        r"""[^'"\s,;&#})\]]+""",
        "passw",
        "pwd",
        "secret",
        "token",
        "key",
        "earmark_guest",
        "signature",
    ),
    _rule(r"(?<![a-z0-9])(?:ek|sk|rk)_[\w\-]{6,}", "ek_", "sk_", "rk_"),
    _rule(r"(?<![a-z0-9])et_[\w\-]{6,}(?:\.[\w\-]+)?", "et_"),
    _rule(r"whsec_[\w+/=\-]+", "whsec_"),
    _rule(r"(?<![a-z0-9])[a-z]+_[a-z0-9]+_secret_\w+", "_secret_"),
)
_ANY = re.compile(r"[_@:=,\s]")
"""Each pattern contains one of these: a plain word, a number or an id needs one search only."""
_NAMES = re.compile(r"passw|secret|token|authorization|cookie|api_?key|credential|signature|idempotency", re.IGNORECASE)

_RUN = re.compile(r"""[^\s'"]++""", re.ASCII)
_LOGIN = re.compile(r"""://[^\s:/@'"]*+:""", re.ASCII)
_BREAKS = " \t\n\r\f\v'\""
"""Characters that end a run: only secrets that reach to the end of the text continue after one of these."""
_MARK = re.compile(r"[_@:=,]")
"""In a run, a secret follows one of these."""

_OF_A_NUMBER = "0123456789 -"

_known: tuple[str, ...] = ()
"""The longest first: one may be a part of another."""


def know(secrets: Iterable[str | None]) -> None:
    """Register secrets of this process, whatever they look like; of a URL, only its password."""
    global _known  # noqa: PLW0603 (one process has one set of secrets)
    found = {part for text in secrets if text for part in _parts(text) if len(part) >= KNOWN_LENGTH_MIN}
    _known = tuple(sorted({*_known, *found}, key=len, reverse=True))


def redact(text: str, *, most: int = TEXT_MAX) -> str:
    """The text without its secrets, cut after `most` characters."""
    return _strike_all(text, _RULES) if len(text) <= most else f"{_strike_all(_head(text, most), _RULES)}{CUT}"


def redact_setup(text: str) -> str:
    """A text about the set-up without passwords; a new API key in it stays, for the operator is to read it."""
    return _strike_all(text, _URLS)


def _strike_all(text: str, rules: Iterable[tuple[tuple[str, ...], re.Pattern[str]]]) -> str:
    text = _strike_known(text)
    text = _strike_spans(text, detect_card_numbers.find(text))
    if _ANY.search(text) is None:
        return text
    small = text.lower()
    if "://" in small and "@" in small:
        text = _RUN.sub(_strike_login, text)
    for triggers, shape in rules:
        if any(trigger in small for trigger in triggers):
            text = shape.sub(_strike, text)
    return text


def _head(text: str, most: int) -> str:
    """The beginning of a text, without any part of a secret that continues after it.

    A pattern matches by the text before its secret, so a part of one is removed like the whole. Two do not: one that
    matches by the `@` after a password, and one that needs so many letters. Neither continues after a space.
    """
    end = most
    while (start := _parted(text, end)) is not None or (start := _number(text, end)) is not None:
        end = start
    start = 1 + max(text.rfind(sign, 0, end) for sign in _BREAKS)
    mark = _MARK.search(text, start, end)
    return text[: mark.start() if mark else end]


def _parted(text: str, end: int) -> int | None:
    """Where a known secret begins that a cut at `end` would split."""
    for secret in _known:
        reach = len(secret) - 1
        if (at := text.find(secret, max(0, end - reach), end + reach)) >= 0:
            return at
    return None


def _number(text: str, end: int) -> int | None:
    """Where a number begins that may continue after `end`: a card number is recognised by its last digit."""
    start = len(text[:end].rstrip(_OF_A_NUMBER))
    return start if start < end else None


def _strike_known(text: str) -> str:
    """Search each secret in the original text: if another was removed before, a part of one might be left."""
    return _strike_spans(text, sorted((at, at + len(secret)) for secret in _known for at in _places(secret, text)))


def _strike_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Remove the spans, from the left; overlapping spans count as one."""
    parts, done = [], 0
    for start, end in spans:
        if start >= done:
            parts += [text[done:start], STRUCK]
        done = max(done, end)
    return "".join((*parts, text[done:])) if parts else text


def _places(secret: str, text: str) -> Iterator[int]:
    at = text.find(secret)
    while at >= 0:
        yield at
        at = text.find(secret, at + 1)


def _strike_login(run: re.Match[str]) -> str:
    """Remove the password of a URL, up to the last @: it may contain one itself.

    One search from the front and one from the end: a pattern for both would search for the @ from each `://` again.
    """
    text = run[0]
    last = text.rfind("@")
    kept = _LOGIN.search(text, 0, last - 1) if last > 0 else None
    return f"{text[: kept.end()]}{STRUCK}{text[last:]}" if kept else text


def clean(value: object, *, depth: int = DEPTH_MAX, most: int = TEXT_MAX) -> object:
    """A value for a log or a response: text, numbers, and lists and mappings of these, without secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact(value, most=most)
    if isinstance(value, bytes):
        return redact(value.decode(errors="backslashreplace"), most=most)
    if depth and isinstance(value, Mapping):
        return {
            redact(str(name), most=most): clean_field(str(name), inner, depth=depth - 1, most=most)
            for name, inner in value.items()
        }
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [clean(inner, depth=depth - 1, most=most) for inner in value]
    return redact(str(value), most=most)


def clean_field(name: str, value: object, *, depth: int = DEPTH_MAX, most: int = TEXT_MAX) -> object:
    """Like `clean`, for a named value: under some names every text is a secret."""
    if isinstance(value, str | bytes) and _NAMES.search(name):
        return STRUCK
    return clean(value, depth=depth, most=most)


def _strike(found: re.Match[str]) -> str:
    """Replace the secret and keep the text that announced it, so that a reader knows what is missing."""
    return f"{found['kept']}{STRUCK}" if found.lastgroup else STRUCK


def _parts(text: str) -> list[str]:
    """A secret in all forms in which it may appear."""
    _, is_url, rest = text.partition("://")
    if not is_url:
        return [text]
    found = []
    # One setting may contain several URLs. Up to the last @: a password may contain one itself.
    for login in (one.rpartition("@")[0] for one in re.split(r",(?=[a-z]+://)", rest)):
        password = login.rpartition("://")[2].partition(":")[2]
        # Unescaped, these end a part of the URL: a parser's error then contains a piece of the password.
        found += [password, unquote(password), *re.split(r"[/?#@:]", password)]
    return found
