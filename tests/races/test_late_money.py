"""Expired is not final: manual SQL may confirm an expired booking. The schema then re-claims all its seats.

There is no verb for this yet; the statements here are what an operator might type into a console.
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

    from .support import RaceDatabase

_RECLAIM = "UPDATE bookings SET state = 'confirmed', version = version + 1 WHERE id = $1"


@pytest.fixture
async def operator_console(database: RaceDatabase) -> AsyncIterator[Any]:
    """A console."""
    connection = await asyncpg.connect(database.url)
    yield connection
    await connection.close()


async def expired(database: RaceDatabase) -> Booking:
    """A hold of two seats that ran out and was swept; its seats still point to it."""
    old = await database.held("A1", "A2")
    database.pass_the_end(old)
    assert await database.tried_sweep()
    return old


async def test_a_booking_that_still_owns_its_seats_may_be_re_claimed(
    database: RaceDatabase, operator_console: Any
) -> None:
    """And its seats' fences are raised, so that a request that saw them free reads again."""
    old = await expired(database)
    await operator_console.execute(_RECLAIM, old.id)
    assert await database.observer.fetch("SELECT fence FROM seats WHERE booking_id = $1", old.id) == [(1,), (1,)]
    assert isinstance(await database.tried(a_hold("A1")), SeatsTaken)


async def test_a_booking_that_lost_a_seat_may_not_be_re_claimed(database: RaceDatabase, operator_console: Any) -> None:
    """All its seats or nothing."""
    old = await expired(database)
    await database.done(a_hold("A2"))
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await operator_console.execute(_RECLAIM, old.id)
    assert not await database.flaws()


async def test_a_booking_whose_seat_is_blocked_may_not_be_re_claimed(
    database: RaceDatabase, operator_console: Any
) -> None:
    """A blocked seat has no owner, late money or not."""
    old = await expired(database)
    granted(await (await database.server()).submit(a_block("A1")).outcome())
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await operator_console.execute(_RECLAIM, old.id)


async def a_hold_saw_the_seat_free_before(database: RaceDatabase, operator_console: Any, shortcut: Shortcut) -> Any:
    """The hold reads, the operator locks the seats, the hold waits for them, the operator commits."""
    old = await expired(database)
    holding = (await database.server("before lock_seats", shortcut=shortcut)).submit(a_hold("A1"))
    await holding.reached("before lock_seats")
    async with operator_console.transaction():
        await operator_console.execute(_RECLAIM, old.id)
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
    database: RaceDatabase, operator_console: Any, shortcut: Shortcut
) -> None:
    """The pointer is as it was, and the owner that was joined had ended: the seat looks free, and would be sold."""
    taken = await a_hold_saw_the_seat_free_before(database, operator_console, shortcut)
    assert refused_by(taken) == "seat_keeps_its_active_owner"


async def test_a_hold_that_saw_the_seat_free_finds_the_fence_raised(
    database: RaceDatabase, operator_console: Any
) -> None:
    """It reads again, and is refused."""
    assert isinstance(await a_hold_saw_the_seat_free_before(database, operator_console, AS_BUILT), SeatsTaken)


async def test_a_hold_that_locked_first_keeps_the_seat(database: RaceDatabase, operator_console: Any) -> None:
    """The operator's statement waits for the seat, finds it taken, and re-claims nothing."""
    old = await expired(database)
    holding = (await database.server("before write")).submit(a_hold("A1"))
    await holding.reached("before write")
    coming_back = asyncio.ensure_future(operator_console.execute(_RECLAIM, old.id))
    await database.until_waiting(operator_console.get_server_pid)
    taken = granted(await holding.outcome())
    with pytest.raises(asyncpg.CheckViolationError, match="owns 1 of its 2 seats"):
        await coming_back
    assert await database.owner("A1") == taken.id
    assert not await database.flaws()
