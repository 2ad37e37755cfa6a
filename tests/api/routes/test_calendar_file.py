"""The calendar file of a booking's page, as calendars read it (RFC 5545)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from earmark.domain.id_types import BookingId
from earmark.tickets.calendar_file import LINE_BYTES_MAX, calendar_file

STARTS = datetime(2031, 5, 2, 20, 30, tzinfo=timezone(timedelta(hours=2)))


def made(*, summary: str = "A recital", places: tuple[str, ...] = ("A1",), cancelled: bool = False) -> list[str]:
    """The file's lines, unfolded as a calendar does."""
    file = calendar_file(
        booking_id=BookingId(UUID(int=7)),
        summary=summary,
        places=places,
        starts_at=STARTS,
        now=datetime(2031, 1, 1, tzinfo=UTC),
        sequence=3,
        cancelled=cancelled,
    )
    assert file.endswith(b"\r\n")
    assert all(len(line) <= LINE_BYTES_MAX for line in file.split(b"\r\n"))
    assert file.count(b"\n") == file.count(b"\r\n")
    return file.decode().replace("\r\n ", "").split("\r\n")[:-1]


def test_it_is_one_event_with_its_start_in_utc() -> None:
    """Its id is the booking's, so a second import changes the first."""
    lines = made()
    assert (lines[0], lines[-1]) == ("BEGIN:VCALENDAR", "END:VCALENDAR")
    assert {"DTSTART:20310502T183000Z", f"UID:{UUID(int=7)}@earmark", "SEQUENCE:3", "STATUS:CONFIRMED"} <= set(lines)
    assert "STATUS:CANCELLED" in made(cancelled=True)


def test_a_name_cannot_add_lines_of_its_own() -> None:
    """A comma, a semicolon, a backslash and a line break are escaped, in a name as in a seat's."""
    lines = made(summary="One, two; three\\four\nSTATUS:X", places=("A1", "B,2"))
    assert r"SUMMARY:One\, two\; three\\four\nSTATUS:X" in lines
    assert r"DESCRIPTION:A1\, B\,2" in lines
    assert len(lines) == len(made())


def test_a_long_name_is_folded_between_characters() -> None:
    """Each of its characters has three bytes, and none is split."""
    name = "\N{SNOWMAN}" * 100
    assert f"SUMMARY:{name}" in made(summary=name)
