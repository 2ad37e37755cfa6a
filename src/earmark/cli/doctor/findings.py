"""What a check finds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How it is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    ILL = "ill"
    """Somebody has to do something."""
    FIXED = "fixed"
    """It was ill, and has been set right."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing, how it is, and what to do about it."""

    check: str
    level: Level
    said: str
    advice: str | None = None
    fixable: bool = False
    """Whether `--fix` sets it right."""


def well(check: str, said: str) -> Finding:
    """As it should be."""
    return Finding(check=check, level=Level.OK, said=said)


def note(check: str, said: str, advice: str | None = None, *, fixable: bool = False) -> Finding:
    """Worth knowing."""
    return Finding(check=check, level=Level.NOTE, said=said, advice=advice, fixable=fixable)


def ill(check: str, said: str, advice: str, *, fixable: bool = False) -> Finding:
    """Not as it should be."""
    return Finding(check=check, level=Level.ILL, said=said, advice=advice, fixable=fixable)


def fixed(check: str, said: str) -> Finding:
    """Set right just now."""
    return Finding(check=check, level=Level.FIXED, said=said)
