from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.workers.undo import undone_on_error

from earmark.domain.id_types import BookingId
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.testing import open_in_memory
from earmark.workers import loop
from earmark.workers.due_hold_sweeper import Sweeper
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark import Booking
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking as Row


DUE = 10_000 if os.environ.get("EARMARK_PROOF") else 1_000


@pytest.fixture
async def earmark(clock: MovableClock) -> AsyncIterator[Earmark]:
    """An event of ten seats and a pool, in memory."""
    async with open_in_memory(clock=clock) as shop:
        seats = {f"A{number}": 100 for number in range(1, 11)}
        await shop.create_event("play", name="A play", currency="EUR", seats=seats, pools={"GA": (10, 100)})
        yield shop


async def hold(earmark: Earmark, number: int, *, ttl_seconds: int = 60) -> Booking:
    return await earmark.hold("play", buyer=f"b{number}", seats=[f"A{number}"], ttl_seconds=ttl_seconds)


async def states(earmark: Earmark, *bookings: Booking) -> list[str]:
    """As they are stored; to a reader a hold past its time is expired, swept or not."""
    read = [await earmark.engine.store.read_booking(BookingId(UUID(booking.id))) for booking in bookings]
    return [row.state.value for _, row in read if row]


async def test_due_holds_are_ended_and_others_are_not(earmark: Earmark, clock: MovableClock) -> None:
    """And it says how many."""
    short, long = await hold(earmark, 1), await hold(earmark, 2, ttl_seconds=600)
    swept: list[int] = []
    sweeper = Sweeper(earmark.engine, swept=swept.append)
    await sweeper.act()
    assert (await states(earmark, short, long), swept) == (["held", "held"], [])
    clock.advance(60)
    await sweeper.act()
    assert (await states(earmark, short, long), swept) == (["expired", "held"], [1])


async def test_it_sleeps_until_the_next_hold_is_due(earmark: Earmark) -> None:
    """Never longer than the interval, for a newer hold may be due sooner than any that is known."""
    sweeper = Sweeper(earmark.engine, interval_seconds_max=100)
    assert 80 <= await sweeper.act() <= 100
    await hold(earmark, 1, ttl_seconds=10)
    assert 9 < await sweeper.act() <= 10


async def test_a_full_batch_is_followed_at_once_by_the_next(earmark: Earmark, clock: MovableClock) -> None:
    """Small steps, without a pause between them."""
    held = [await hold(earmark, number) for number in (1, 2, 3)]
    clock.advance(60)
    sweeper = Sweeper(earmark.engine, batch_size_max=2)
    assert await sweeper.act() == 0
    assert await sweeper.act() > 0
    assert await states(earmark, *held) == ["expired"] * 3


async def test_a_hold_that_cannot_be_ended_does_not_keep_the_others(
    earmark: Earmark, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, skipped and tried again in the next round."""
    held = [await hold(earmark, number) for number in range(1, 9)]
    clock.advance(60)
    bad = held[2].id
    expire = earmark.engine.expire
    poisoned = True

    async def broken(**asked: Any) -> list[Row]:
        with undone_on_error(earmark.engine.store):
            ended = await expire(**asked)
            if poisoned and bad in {str(booking.id) for booking in ended}:
                raise ValueError("the counts of this one are off")
        return ended

    monkeypatch.setattr(earmark.engine, "expire", broken)
    sweeper = Sweeper(earmark.engine, retry_seconds=0.0)
    for _ in range(20):
        with contextlib.suppress(RoundFailed):
            await sweeper.act()
    with pytest.raises(RoundFailed, match="the counts of this one are off"):
        await sweeper.act()
    assert (await states(earmark, *held)).count("held") == 1
    assert (await states(earmark, held[2])) == ["held"]
    poisoned = False
    for _ in range(3):
        with contextlib.suppress(RoundFailed):
            await sweeper.act()
    assert (await states(earmark, held[2])) == ["expired"]


async def test_a_worker_outlives_an_outage_and_stops_on_request() -> None:
    """It pauses, tries again, and ends at once when it is stopped."""
    stop, calls = asyncio.Event(), 0

    class Flaky:
        name = "flaky"

        async def act(self) -> float:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StoreUnavailable(because="the cable was cut")
            if calls == 2:
                raise ValueError("a bug")
            stop.set()
            return 1000.0

    await asyncio.wait_for(loop.run([Flaky()], stop), timeout=30)
    assert calls == 3


async def test_many_due_holds_delay_no_request_on_sqlite(tmp_path: Path, clock: MovableClock) -> None:
    """One writer, small steps: a hold waits for one of them, never for all. How long is printed, not judged."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    async with Earmark.open(url, clock=clock) as shop:
        await shop.create_event(
            "play", name="A play", currency="EUR", seats={f"S{n}": 1 for n in range(DUE + DUE // 5)}
        )
        for first in range(0, DUE, 1000):
            crowd = range(first, first + 1000)
            await asyncio.gather(*(shop.hold("play", buyer=f"b{n}", seats=[f"S{n}"], ttl_seconds=60) for n in crowd))
        clock.advance(60)

        async def sweep() -> None:
            sweeper = Sweeper(shop.engine)
            while await sweeper.act() == 0:
                pass

        sweeping = asyncio.gather(sweep(), sweep())
        seconds: list[float] = []
        while not sweeping.done():
            began = asyncio.get_running_loop().time()
            await shop.hold("play", buyer="another", seats=[f"S{DUE + len(seconds)}"])
            seconds.append(asyncio.get_running_loop().time() - began)
        await sweeping
        print(f"\n{DUE} due holds swept beside {len(seconds)} holds, the slowest in {max(seconds) * 1000:.0f} ms")  # noqa: T201
        held = [seat for seat in (await shop.map("play")).seats if seat.state == "held"]
        assert len(held) == len(seconds) > 0
        assert await shop.engine.store.find_flaws(limit=1) == []
