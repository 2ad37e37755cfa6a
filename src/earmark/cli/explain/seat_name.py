"""A seat of a booking as people find it: its id, and what of its section, row and number the id does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from earmark.domain.booking import SeatLine
    from earmark.schemas import responses


def seat_name(seat: SeatLine | responses.SeatLine, *more: str) -> str:
    """`A1` alone where that is row A, number 1; else `S17 (Stalls, row K, number 12)`, and what `more` is said."""
    said = [seat.section] if seat.section else []
    if f"{seat.row}{seat.number}" != seat.id:
        said += [f"row {seat.row}"] if seat.row else []
        said += [f"number {seat.number}"] if seat.number is not None else []
    said += more
    return f"{seat.id} ({', '.join(said)})" if said else seat.id
