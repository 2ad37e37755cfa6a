"""Glob patterns on keys, translated into regular expressions that mean the same in Python and in PostgreSQL."""

from __future__ import annotations

import re

ANYTHING = ".*"
_CLASS = re.compile(r"\[([!^]?)([a-zA-Z0-9_:.-]+)\]")


def regex_of(match: str) -> str:
    r"""A regex for a whole key, which Python and PostgreSQL read alike. For Python, `compiled` is quicker.

    As in Redis `*` is anything, `?` any one character, `[a-z]` one of a few, `[^a]` any other, and a character after
    a backslash just itself.
    """
    return "".join(_parts(match))


def compiled(match: str) -> re.Pattern[str]:
    """The same for Python alone, which must not try each star against every other one.

    What stands between two stars is taken where it is found first: a later place would leave less for the rest.
    PostgreSQL needs no such hint, and does not know its sign.
    """
    pieces = [""]
    for part in _parts(match):
        if part == ANYTHING:
            pieces.append("")
        else:
            pieces[-1] += part
    regex, *others = pieces
    if others:
        *middle, last = others
        regex += "".join(f"(?>{ANYTHING}?{piece})" for piece in middle if piece) + ANYTHING + last
    return re.compile(regex, re.DOTALL)


def _parts(match: str) -> list[str]:
    parts: list[str] = []
    place = 0
    while place < len(match):
        character = match[place]
        if character == "[" and (found := _class_at(match, place)):
            parts.append(found[1])
            place = found[0]
            continue
        if character == "\\" and place + 1 < len(match):
            place += 1
            parts.append(literal(match[place]))
        else:
            parts.append({"*": ANYTHING, "?": "."}.get(character) or literal(character))
        place += 1
    return parts


def literal(text: str) -> str:
    """The text itself. A backslash before a letter would mean something else; before a sign it means just that sign."""
    return "".join(sign if sign.isalnum() or not sign.isascii() else "\\" + sign for sign in text)


def _class_at(match: str, place: int) -> tuple[int, str] | None:
    """Where the class that begins here ends, and its regex; None if it is none, as `[z-a]` is."""
    found = _CLASS.match(match, place)
    if found is None:
        return None
    regex = f"[{'^' if found[1] else ''}{found[2]}]"
    try:
        re.compile(regex)
    except re.error:
        return None
    return found.end(), regex
