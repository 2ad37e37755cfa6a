"""A confirm and a takeover collide at the very moment at which the hold ends: repeatedly, in every order."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import BookingExpired, SeatsTaken

from .commands import a_cancel, a_confirm, a_hold, a_release
from .support import granted

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import Command

    from .support import RaceDatabase, Server

ROUNDS = 60 if os.environ.get("EARMARK_PROOF") else 10
# How far around the end the two set out. The moment is shared by this process and the server: it is one machine.
JITTER_SECONDS = 0.004
# How long a request takes from setting out to its transaction's moment, about: without it the confirm is always late.
WAY_SECONDS = 0.002


async def assert_one_owner(database: RaceDatabase, old: Booking, *, confirmed: Any, taken: Any) -> str:
    """What was acknowledged is so, and nothing else; returns the winner."""
    flaws = await database.flaws()
    assert not flaws
    assert await database.live_owners("A1") <= 1
    if not isinstance(confirmed, Exception):
        assert isinstance(taken, SeatsTaken)
        assert await database.state(old) == "confirmed"
        assert await database.owner("A1") == old.id
        return "confirm"
    assert isinstance(confirmed, BookingExpired)
    if isinstance(taken, Exception):
        assert isinstance(taken, SeatsTaken)
        assert await database.state(old) == "expired"
        return "no buyer"
    assert await database.state(old) == "expired"
    assert await database.owner("A1") == granted(taken).id
    return "takeover"


async def free_the_seat(database: RaceDatabase, old: Booking, *, taken: Any) -> None:
    """For the next round."""
    if not isinstance(taken, Exception):
        await database.done(a_release(granted(taken)))
    elif await database.state(old) == "confirmed":
        await database.done(a_cancel(old))


async def submit_at(database: RaceDatabase, server: Server, ask: Command, *, at: datetime) -> Any:
    """Send it at a moment of the database's time, and return the result."""
    await asyncio.sleep(max((at - database.clock.now()).total_seconds(), 0))
    return await server.submit(ask).outcome()


async def test_the_first_request_at_the_end_of_a_hold_wins(database: RaceDatabase) -> None:
    """Both set out within milliseconds of the end: never two owners, never a lost sale."""
    dice = random.Random(7)  # noqa: S311 (the same jitter at every run; the rest is left to the machine)
    confirming, holding = await database.server(), await database.server()
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        old = await database.held("A1", units=1)
        end = old.expires_at
        database.clock.advance((end - database.clock.now()).total_seconds() - 4 * JITTER_SECONDS)
        set_out_at = end - timedelta(seconds=WAY_SECONDS)
        starts = [set_out_at + timedelta(seconds=dice.uniform(-JITTER_SECONDS, JITTER_SECONDS)) for _ in range(2)]
        confirmed, taken = await asyncio.gather(
            submit_at(database, confirming, a_confirm(old), at=starts[0]),
            submit_at(database, holding, a_hold("A1", units=1), at=starts[1]),
        )
        winners[await assert_one_owner(database, old, confirmed=confirmed, taken=taken)] += 1
        await free_the_seat(database, old, taken=taken)
    print(f"\nAt the end of {ROUNDS} holds, who had the seat: {dict(winners)}")  # noqa: T201 (a measurement)
    assert await database.deadlocks() == 0


@pytest.mark.parametrize("winner", ["confirm", "takeover"])
async def test_the_first_lock_at_the_end_of_a_hold_wins(database: RaceDatabase, winner: str) -> None:
    """Both are under way when the hold ends; one has the booking, the other waits for it, and is refused."""
    dice = random.Random(7)  # noqa: S311 (as above)
    confirming, holding = await database.server(), await database.server()
    for _ in range(ROUNDS):
        old = await database.held("A1", units=1)
        confirming.stop_at("after begin", "before write")
        confirming.submit(a_confirm(old))
        await confirming.reached("after begin")
        if winner == "confirm":
            confirming.go("after begin")
            await confirming.reached("before write")
        database.pass_the_end(old)
        holding.stop_at("before write")
        holding.submit(a_hold("A1", units=1))
        if winner == "takeover":
            await holding.reached("before write")
            confirming.go("after begin")
        await (holding if winner == "confirm" else confirming).waits_for_a_lock()
        await asyncio.sleep(dice.uniform(0, JITTER_SECONDS))
        confirmed, taken = await asyncio.gather(confirming.outcome(), holding.outcome())
        assert await assert_one_owner(database, old, confirmed=confirmed, taken=taken) == winner
        await free_the_seat(database, old, taken=taken)
    assert await database.deadlocks() == 0
