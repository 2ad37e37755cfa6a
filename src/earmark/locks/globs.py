"""Glob patterns on keys, read alike by every backend that does not read them by itself."""

from __future__ import annotations

import re

_CLASS = re.compile(r"\[([!^]?)([a-zA-Z0-9_:.-]+)\]")


def regex_of(match: str) -> str:
    r"""A regex for a whole key, which Python and PostgreSQL read alike.

    As in Redis `*` is anything, `?` any one character, `[a-z]` one of a few, `[^a]` any other, and a character after
    a backslash just itself.
    """
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
            parts.append({"*": ".*", "?": "."}.get(character) or literal(character))
        place += 1
    return "".join(parts)


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
