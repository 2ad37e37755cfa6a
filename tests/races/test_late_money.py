"""Ended is not final: a hand may bring an expired booking back. The schema sees to it that all its seats come along.

There is no verb for this yet; the statements here are what somebody might type into a console.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.errors import SeatsTaken

from . import shortcuts
from .commands import a_block, a_hold
from .support import AS_BUILT, Shortcut, granted, refused_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.domain.booking import Booking

    from .support import House

_RECLAIM = "UPDATE bookings SET state = 'confirmed', version = version + 1 WHERE id = $1"


@pytest.fixture
async def hand(services: House) -> AsyncIterator[Any]:
    """A console."""
    connection = await asyncpg.connect(services.url)
    yield connection
    await connection.close()


async def expired(services: House) -> Booking:
    """A hold of two seats that ran out and was swept; its seats still point to it."""
    old = await services.held("A1", "A2")
    services.pass_the_end(old)
    assert await services.tried_sweep()
    return old


async def test_a_booking_that_still_owns_its_seats_may_come_back(services: House, hand: Any) -> None:
    """And its seats' fences are raised, so that whoever saw them free looks again."""
    old = await expired(services)
    await hand.execute(_RECLAIM, old.id)
    assert await services.observer.fetch("SELECT fence FROM seats WHERE booking_id = $1", old.id) == [(1,), (1,)]
    assert isinstance(await services.tried(a_hold("A1")), SeatsTaken)


async def test_a_booking_that_lost_a_seat_may_not(services: House, hand: Any) -> None:
    """All its seats or nothing."""
    old = await expired(services)
    await services.done(a_hold("A2"))
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await hand.execute(_RECLAIM, old.id)
    assert not await services.flaws()


async def test_a_booking_whose_seat_is_blocked_may_not(services: House, hand: Any) -> None:
    """A blocked seat is nobody's, late money or not."""
    old = await expired(services)
    granted(await (await services.payments()).ask(a_block("A1")).outcome())
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await hand.execute(_RECLAIM, old.id)


async def a_hold_saw_the_seat_free_before(services: House, hand: Any, shortcut: Shortcut) -> Any:
    """The hold looks, the hand has the seats, the hold waits for them, the hand commits."""
    old = await expired(services)
    holding = (await services.payments("before lock_seats", shortcut=shortcut)).ask(a_hold("A1"))
    await holding.reached("before lock_seats")
    async with hand.transaction():
        await hand.execute(_RECLAIM, old.id)
        holding.go()
        await holding.waits_for_a_lock()
    return await holding.outcome()


@pytest.mark.parametrize(
    "shortcut",
    [
        pytest.param(shortcuts.JUDGES_OWNERS_IN_THE_LOCK, id="judges-owners-in-the-lock"),
        pytest.param(shortcuts.COMPARES_THE_POINTER_ONLY, id="compares-the-pointer-only"),
    ],
)
async def test_only_the_schema_stops_a_hold_that_missed_the_fence(
    services: House, hand: Any, shortcut: Shortcut
) -> None:
    """The pointer is as it was, and the owner that was joined had ended: the seat looks free, and would be sold."""
    taken = await a_hold_saw_the_seat_free_before(services, hand, shortcut)
    assert refused_by(taken) == "seat_keeps_its_live_owner"


async def test_a_hold_that_saw_the_seat_free_finds_the_fence_raised(services: House, hand: Any) -> None:
    """It looks again, and is told that the seat is taken."""
    assert isinstance(await a_hold_saw_the_seat_free_before(services, hand, AS_BUILT), SeatsTaken)


async def test_a_hold_that_locked_first_keeps_the_seat(services: House, hand: Any) -> None:
    """The hand waits for the seat, then finds it gone, and nothing comes back."""
    old = await expired(services)
    holding = (await services.payments("before write")).ask(a_hold("A1"))
    await holding.reached("before write")
    coming_back = asyncio.ensure_future(hand.execute(_RECLAIM, old.id))
    await services.until_waiting(hand.get_server_pid)
    taken = granted(await holding.outcome())
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await coming_back
    assert await services.owner("A1") == taken.id
    assert not await services.flaws()
