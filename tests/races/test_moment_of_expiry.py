"""A confirm and a takeover meet at the very moment at which the hold ends: again and again, in every order."""

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
    from earmark.engine.commands import Command

    from .support import House, Till

ROUNDS = 60 if os.environ.get("EARMARK_PROOF") else 10
# How far around the end the two set out. The moment is shared by this process and the server: it is one machine.
JITTER_SECONDS = 0.004
# How long a request takes from setting out to its transaction's moment, about: without it the confirm is always late.
WAY_SECONDS = 0.002


async def assert_one_owner(services: House, old: Booking, *, confirmed: Any, taken: Any) -> str:
    """What was acknowledged is so, and nothing else; says who won."""
    flaws = await services.flaws()
    assert not flaws
    assert await services.live_owners("A1") <= 1
    if not isinstance(confirmed, Exception):
        assert isinstance(taken, SeatsTaken)
        assert await services.state(old) == "confirmed"
        assert await services.owner("A1") == old.id
        return "confirm"
    assert isinstance(confirmed, BookingExpired)
    if isinstance(taken, Exception):
        assert isinstance(taken, SeatsTaken)
        assert await services.state(old) == "expired"
        return "nobody"
    assert await services.state(old) == "expired"
    assert await services.owner("A1") == granted(taken).id
    return "takeover"


async def free_the_seat(services: House, old: Booking, *, taken: Any) -> None:
    """For the next round."""
    if not isinstance(taken, Exception):
        await services.done(a_release(granted(taken)))
    elif await services.state(old) == "confirmed":
        await services.done(a_cancel(old))


async def set_out(services: House, payments: Till, ask: Command, *, at: datetime) -> Any:
    """Ask at a moment of the house's time, and return what it came to."""
    await asyncio.sleep(max((at - services.clock.now()).total_seconds(), 0))
    return await payments.ask(ask).outcome()


async def test_whoever_comes_first_at_the_end_of_a_hold_wins(services: House) -> None:
    """Both set out within milliseconds of the end: never two owners, never a lost sale."""
    dice = random.Random(7)  # noqa: S311 (the same jitter at every run; the rest is left to the machine)
    confirming, holding = await services.payments(), await services.payments()
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        old = await services.held("A1", units=1)
        end = old.expires_at
        services.clock.advance((end - services.clock.now()).total_seconds() - 4 * JITTER_SECONDS)
        set_out_at = end - timedelta(seconds=WAY_SECONDS)
        starts = [set_out_at + timedelta(seconds=dice.uniform(-JITTER_SECONDS, JITTER_SECONDS)) for _ in range(2)]
        confirmed, taken = await asyncio.gather(
            set_out(services, confirming, a_confirm(old), at=starts[0]),
            set_out(services, holding, a_hold("A1", units=1), at=starts[1]),
        )
        winners[await assert_one_owner(services, old, confirmed=confirmed, taken=taken)] += 1
        await free_the_seat(services, old, taken=taken)
    print(f"\nAt the end of {ROUNDS} holds, who had the seat: {dict(winners)}")  # noqa: T201 (a measurement)
    assert await services.deadlocks() == 0


@pytest.mark.parametrize("winner", ["confirm", "takeover"])
async def test_whoever_locks_first_at_the_end_of_a_hold_wins(services: House, winner: str) -> None:
    """Both are under way when the hold ends; one has the booking, the other waits for it, and is told."""
    dice = random.Random(7)  # noqa: S311 (as above)
    confirming, holding = await services.payments(), await services.payments()
    for _ in range(ROUNDS):
        old = await services.held("A1", units=1)
        confirming.stop_at("after begin", "before write")
        confirming.ask(a_confirm(old))
        await confirming.reached("after begin")
        if winner == "confirm":
            confirming.go("after begin")
            await confirming.reached("before write")
        services.pass_the_end(old)
        holding.stop_at("before write")
        holding.ask(a_hold("A1", units=1))
        if winner == "takeover":
            await holding.reached("before write")
            confirming.go("after begin")
        await (holding if winner == "confirm" else confirming).waits_for_a_lock()
        await asyncio.sleep(dice.uniform(0, JITTER_SECONDS))
        confirmed, taken = await asyncio.gather(confirming.outcome(), holding.outcome())
        assert await assert_one_owner(services, old, confirmed=confirmed, taken=taken) == winner
        await free_the_seat(services, old, taken=taken)
    assert await services.deadlocks() == 0
