"""A seat of a booking is printed so that its buyer finds it, and nothing is printed twice."""

from __future__ import annotations

from typing import Any

import pytest

from earmark.cli.explain.format_seat_name import seat_name
from earmark.schemas.responses import SeatLine


@pytest.mark.parametrize(
    "names, more, said",
    [
        ({}, (), "S17"),
        ({"row": "S", "number": 17}, (), "S17"),
        ({"row": "S", "number": 17, "section": "Stalls"}, ("45.00 EUR",), "S17 (Stalls, 45.00 EUR)"),
        ({"row": "K", "number": 12, "section": "Stalls"}, (), "S17 (Stalls, row K, number 12)"),
        ({"number": 0}, (), "S17 (number 0)"),
        ({"section": "Box 3"}, ("45.00 EUR",), "S17 (Box 3, 45.00 EUR)"),
    ],
)
def test_a_seat_says_what_its_id_does_not(names: dict[str, Any], more: tuple[str, ...], said: str) -> None:
    """The id comes first, for that is what every command takes."""
    assert seat_name(SeatLine(id="S17", price=4500, **names), *more) == said
