"""The name of a seat for people: its id, and the section, row and number that the id does not contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from earmark.domain.booking import SeatLine
    from earmark.schemas import responses


def seat_name(seat: SeatLine | responses.SeatLine, *more: str) -> str:
    """`A1` alone where that is row A, number 1; else `S17 (Stalls, row K, number 12)`, and the texts in `more`."""
    parts = [seat.section] if seat.section else []
    if f"{seat.row}{seat.number}" != seat.id:
        parts += [f"row {seat.row}"] if seat.row else []
        parts += [f"number {seat.number}"] if seat.number is not None else []
    parts += more
    return f"{seat.id} ({', '.join(parts)})" if parts else seat.id
