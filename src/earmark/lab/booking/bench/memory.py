"""Whether a server grows with what it has done: a million holds and releases, and what the process weighs on the way.

The same few seats are held and let go over and over: nothing can grow but what a server fails to let go of.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.ids import BookingId, Buyer, EventId, SeatId
from earmark.domain.journal import Key
from earmark.engine.asks import Actor, Hold, Memo, Release

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from earmark.engine.engine import Engine

GROWTH_MAX = 1.5
"""Times what it weighed after the first part."""
TOLD_EVERY = 50_000
_STATM = Path("/proc/self/statm")


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """What the process weighed, by how many holds it had made by then."""

    holds: int
    seconds: float
    megabytes: dict[int, float]

    @property
    def growth(self) -> float:
        """At the end, over what it was after the first part."""
        first, *_, last = [self.megabytes[holds] for holds in sorted(self.megabytes) if holds]
        return last / first


async def measure(
    engine: Engine,
    event_id: str,
    *,
    first: int,
    holds: int,
    clients: int,
    weigh: Callable[[], float] | None = None,
    told: Callable[[int], object] = lambda _done: None,
) -> Weighed:
    """Hold and release until there were so many; weigh the process at the start, after `first` and at the end.

    The event has as many seats S0, S1, … as there are clients.
    """
    weigh = weigh or resident_megabytes
    done, began = 0, perf_counter()
    megabytes = {0: weigh()}
    numbers = iter(range(holds))

    async def client(seat: int) -> None:
        nonlocal done
        for number in numbers:
            await _once(engine, EventId(event_id), number, SeatId(f"S{seat}"))
            done += 1
            if done in {first, holds}:
                gc.collect()
                megabytes[done] = weigh()
            if done % TOLD_EVERY == 0:
                told(done)

    async with asyncio.TaskGroup() as group:
        for seat in range(clients):
            group.create_task(client(seat))
    return Weighed(holds=done, seconds=perf_counter() - began, megabytes=megabytes)


async def _once(engine: Engine, event_id: EventId, number: int, seat: SeatId) -> None:
    ids = engine.ids
    booking_id = ids.booking_id()
    hold = Hold(
        actor=ACTOR,
        entry_id=ids.entry_id(),
        booking_id=booking_id,
        event_id=event_id,
        buyer=Buyer(f"buyer-{number % 1000}"),
        seats=(seat,),
        memo=_memo(event_id, number, "hold"),
    )
    await engine.hold(hold)
    release = Release(
        actor=ACTOR,
        entry_id=ids.entry_id(),
        booking_id=BookingId(booking_id),
        memo=_memo(event_id, number, "release"),
    )
    await engine.release(release)


ACTOR = Actor(name="bench", live=False)


def _memo(event_id: str, number: int, verb: str) -> Memo:
    return Memo(key=Key("bench", f"{event_id}-{number}-{verb}"), request_hash=b"\0" * 32, render=_render)


def _render(_booking: object, _now: datetime) -> tuple[int, bytes]:
    return 200, b"{}"


def resident_megabytes() -> float:
    """What this process has in memory now; where the system does not say, the most it ever had."""
    if _STATM.exists():
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
