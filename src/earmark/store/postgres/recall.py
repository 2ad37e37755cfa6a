"""What this process remembers of the houses it sells, so that a hold of fresh seats need not look first.

Remembered are an event's rules, and the price and fence of its seats that nobody has had so far. Nothing is decided by
it alone: the call that writes compares every seat with what is remembered, the event's version, and the moment with
the server's own clock. Where one differs, nothing is kept, the event is forgotten, and the hold looks.

A seat is forgotten when this process gives it away. When another one does, the first to find out makes the whole event
be looked at for a while, longer each time: a house that several processes sell to a crowd is better looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from earmark.domain.seat import SeatSeen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from datetime import datetime

    from earmark.domain.event import Event
    from earmark.domain.ids import EventId, SeatId, SeatRef
    from earmark.engine.ports import Look

SEATS_MAX = 300_000
"""In all: about 110 bytes each."""
EVENTS_MAX = 1000
PAGE = 2000
"""So many seats are read at once: few enough that nobody waits for them."""
DOUBT_SECONDS_MIN = 1.0
DOUBT_SECONDS_MAX = 60.0
CLOCK_SECONDS_MAX = 60.0
"""How long the server's clock is reckoned from the last time that it was read."""


class House(NamedTuple):
    """One event, and the price and fence of its seats that nobody has had."""

    event: Event
    fresh: dict[SeatId, tuple[int, int]]


class Recall:
    """The houses, the one that was used last at the end."""

    def __init__(
        self, read_page: Callable[[EventId, str, int], Awaitable[Collection[tuple[SeatId, int, int]]]]
    ) -> None:
        self._read_page = read_page
        self._houses: OrderedDict[EventId, House] = OrderedDict()
        self._doubts: dict[EventId, tuple[float, float]] = {}
        self._loading: dict[EventId, asyncio.Task[None]] = {}
        self._given: set[SeatRef] = set()
        """What was given away while a house was being read."""
        self._seats = 0
        self._clock: tuple[datetime, float] | None = None

    def of(
        self, look: Look, *, offset: timedelta
    ) -> tuple[datetime, dict[EventId, Event], dict[SeatRef, SeatSeen]] | None:
        """The moment, the events and the seats, if all of them are remembered."""
        now = self._now()
        houses = self._houses
        if now is None or any(event_id not in houses for event_id in look.events):
            return None
        seats: dict[SeatRef, SeatSeen] = {}
        for ref in look.seats:
            fresh = houses[ref.event_id].fresh.get(ref.seat_id)
            if fresh is None:
                return None
            seats[ref] = SeatSeen(ref=ref, price=fresh[0], blocked=False, pointer=None, fence=fresh[1])
        for event_id in look.events:
            houses.move_to_end(event_id)
        return now + offset, {event_id: houses[event_id].event for event_id in look.events}, seats

    def learn(self, events: Iterable[Event], *, now: datetime) -> None:
        """Somebody looked: the server's clock is known, and these events' rules. Their seats are read by and by."""
        self._clock = (now, time.monotonic())
        for event in events:
            if (house := self._houses.get(event.id)) and house.event.version != event.version:
                self._forget(event.id)
            if not (event.id in self._houses or self._loading or self._is_doubted(event.id)):
                self._loading[event.id] = asyncio.get_running_loop().create_task(self._load(event))

    def gave(self, refs: Collection[SeatRef]) -> None:
        """These seats were given away, or may have been."""
        for event_id, seat_id in refs:
            if (house := self._houses.get(event_id)) and house.fresh.pop(seat_id, None):
                self._seats -= 1
        if self._loading:
            self._given.update(refs)

    def doubt(self, ids: Iterable[EventId]) -> None:
        """What was remembered of these events was not so."""
        for event_id in ids:
            self._forget(event_id)
            _, seconds = self._doubts.get(event_id, (0.0, DOUBT_SECONDS_MIN / 2))
            seconds = min(2 * seconds, DOUBT_SECONDS_MAX)
            self._doubts[event_id] = (time.monotonic() + seconds, seconds)
        while len(self._doubts) > EVENTS_MAX:
            del self._doubts[next(iter(self._doubts))]

    async def close(self) -> None:
        """Stop reading."""
        for task in self._loading.values():
            task.cancel()
        if self._loading:
            await asyncio.wait(self._loading.values())

    async def _load(self, event: Event) -> None:
        fresh: dict[SeatId, tuple[int, int]] = {}
        kinds: dict[tuple[int, int], tuple[int, int]] = {}
        last = ""
        try:
            while page := await self._read_page(event.id, last, PAGE):
                for seat_id, price, fence in page:
                    kind = (price, fence)
                    fresh[seat_id] = kinds.setdefault(kind, kind)
                    last = seat_id
                if len(fresh) > SEATS_MAX:
                    fresh = {}
                    break
        except Exception:  # noqa: BLE001 (a store that does not answer is met by those who need it)
            return
        finally:
            given, self._given = self._given, set()
            del self._loading[event.id]
        for event_id, seat_id in given:
            if event_id == event.id:
                fresh.pop(seat_id, None)
        self._houses[event.id] = House(event, fresh)
        self._seats += len(fresh)
        while self._seats > SEATS_MAX or len(self._houses) > EVENTS_MAX:
            self._forget(next(iter(self._houses)))

    def _forget(self, event_id: EventId) -> None:
        if house := self._houses.pop(event_id, None):
            self._seats -= len(house.fresh)

    def _is_doubted(self, event_id: EventId) -> bool:
        until, _ = self._doubts.get(event_id, (0.0, 0.0))
        return time.monotonic() < until

    def _now(self) -> datetime | None:
        """The server's clock, reckoned on from when it was last read."""
        if self._clock is None:
            return None
        at, since = self._clock
        elapsed = time.monotonic() - since
        return at + timedelta(seconds=elapsed) if elapsed < CLOCK_SECONDS_MAX else None
