"""The result of one check: a level, a sentence, and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from datetime import datetime


class Level(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    NOTE = "note"
    """Nothing has to be done."""
    PROBLEM = "problem"
    """An operator has to act; the exit code is 1."""
    FIXED = "fixed"
    """It was a problem, and `--fix` has corrected it."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found, and what to do about it."""

    check: str
    level: Level
    said: str
    advice: str | None = None
    fixable: bool = False
    """Whether `--fix` corrects it."""


def ok(check: str, said: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check=check, level=Level.OK, said=said)


def note(check: str, said: str, advice: str | None = None, *, fixable: bool = False) -> Finding:
    """A finding that an operator should know of, without a need to act."""
    return Finding(check=check, level=Level.NOTE, said=said, advice=advice, fixable=fixable)


def problem(check: str, said: str, advice: str, *, fixable: bool = False) -> Finding:
    """A finding that an operator has to act on."""
    return Finding(check=check, level=Level.PROBLEM, said=said, advice=advice, fixable=fixable)


def fixed(check: str, said: str) -> Finding:
    """A problem that this run has corrected."""
    return Finding(check=check, level=Level.FIXED, said=said)


def age(since: datetime | None, now: datetime) -> str:
    """How long ago that was, as a finding says it."""
    assert since is not None
    return f"{(now - since).total_seconds():.0f} s"
