"""The arguments that the commands for events and bookings share, and how their text becomes names and numbers."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from earmark.errors import SetupError

Event = Annotated[str, Parameter(help="The event's id.")]
Key = Annotated[
    str | None, Parameter(name="--idempotency-key", help="The same command with the same key has one effect.")
]


def name_and_text(text: str) -> tuple[str, str]:
    """Split NAME=TEXT at its last equals sign."""
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise SetupError(problem=f"{text!r} has no number: write it as NAME=NUMBER.")
    return name, value


def whole_number(text: str) -> int:
    """Read a number that has only the digits 0 to 9."""
    if not text.isascii() or not text.isdigit():
        raise SetupError(problem=f"{text!r} is not a whole number.")
    return int(text)
