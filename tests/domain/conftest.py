"""Fixtures of the domain tests: one moment, and bookings in any state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import pytest

from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import ENDED, State
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)


class Booked(Protocol):
    """Makes a booking as it would stand ten minutes before its hold ends."""

    def __call__(self, state: State = ..., *, lines: Lines = ..., payment_id: str | None = ...) -> Booking:
        """In the given state."""
        ...


@pytest.fixture
def now() -> datetime:
    """The moment at which everything here is judged."""
    return NOW


@pytest.fixture
def booked() -> Callable[..., Booking]:
    """A booking in any state: two seats and three units, made at NOW, held for ten minutes."""

    def make(state: State = State.HELD, *, lines: Lines | None = None, payment_id: str | None = None) -> Booking:
        claimed = lines or Lines(
            seats=(SeatLine(id=SeatId("A1"), price=4500), SeatLine(id=SeatId("A2"), price=5500)),
            pools=(PoolLine(id=PoolId("GA"), units=3, price=2500),),
        )
        sold = state in {State.CONFIRMED, State.CANCELLED}
        return Booking(
            id=BookingId(UUID(int=7)),
            event_id=EventId("concert"),
            buyer=Buyer("ada"),
            mode=Mode.LIVE,
            state=state,
            lines=claimed,
            total=claimed.total,
            currency="EUR",
            created_at=NOW,
            expires_at=NOW + timedelta(seconds=600),
            confirmed_at=NOW if sold else None,
            ended_at=NOW if state in ENDED else None,
            payment_id=payment_id or ("pay-1" if sold else None),
            version=1 if state is State.HELD else 2,
        )

    return make
