"""The calendar file (RFC 5545) of a booking's page: when the event starts, and which seats. No link and no secret."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from earmark.domain.id_types import BookingId

LINE_BYTES_MAX = 75
_ESCAPED = str.maketrans({"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n"})


def calendar_file(
    *,
    booking_id: BookingId,
    summary: str,
    places: Sequence[str],
    starts_at: datetime,
    now: datetime,
    sequence: int,
    cancelled: bool,
) -> bytes:
    """One event, as a calendar imports it. The booking's id keeps it one event however often it is imported.

    `sequence` is the booking's version: a later file replaces an earlier one, also when the sale was cancelled.
    """
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Earmark//Tickets//EN",
        "METHOD:PUBLISH",
        "BEGIN:VEVENT",
        f"UID:{booking_id}@earmark",
        f"DTSTAMP:{_moment(now)}",
        f"DTSTART:{_moment(starts_at)}",
        f"SEQUENCE:{sequence}",
        f"SUMMARY:{_text(summary)}",
        f"DESCRIPTION:{_text(', '.join(places))}",
        f"STATUS:{'CANCELLED' if cancelled else 'CONFIRMED'}",
        "END:VEVENT",
        "END:VCALENDAR",
    ]
    return b"".join(part + b"\r\n" for line in lines for part in _folded(line))


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(text: str) -> str:
    return text.translate(_ESCAPED)


def _folded(line: str) -> Iterator[bytes]:
    """Lines of at most 75 bytes, which continue after a space; a character is never split."""
    part = b""
    for character in line:
        encoded = character.encode()
        if len(part) + len(encoded) > LINE_BYTES_MAX:
            yield part
            part = b" "
        part += encoded
    yield part
