"""What this process remembers, so that a hold of fresh seats, and whatever follows on it, need not look first.

Remembered are an event's rules, the price and fence of its seats that nobody has had so far, and the holds that this
process has written. Nothing is decided by it alone: the call that writes compares every seat with what is remembered,
the versions of events and bookings, and the moment with the server's own clock. Where one differs, nothing is kept,
that event or booking is forgotten, and the verb looks.

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
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId, EventId, SeatId, SeatRef
    from earmark.engine.ports import Changes, Look

SEATS_MAX = 300_000
"""In all: about 110 bytes each."""
EVENTS_MAX = 1000
BOOKINGS_MAX = 10_000
"""The newest: less than a kilobyte each."""
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


class Memory(NamedTuple):
    """What a look would show."""

    now: datetime
    events: Mapping[EventId, Event]
    seats: dict[SeatRef, SeatSeen]
    bookings: dict[BookingId, Booking]


class Recall:
    """The houses, the one that was used last at the end; and the holds, the newest at the end."""

    def __init__(
        self,
        read_page: Callable[[EventId, str, int], Awaitable[Collection[tuple[SeatId, int, int]]]],
        *,
        bookings_max: int = BOOKINGS_MAX,
    ) -> None:
        self._read_page = read_page
        self._bookings: OrderedDict[BookingId, Booking] = OrderedDict()
        self._bookings_max = bookings_max
        self._houses: OrderedDict[EventId, House] = OrderedDict()
        self._doubts: dict[EventId, tuple[float, float]] = {}
        self._loading: dict[EventId, asyncio.Task[None]] = {}
        self._given: set[SeatRef] = set()
        """What was given away while a house was being read."""
        self._seats = 0
        self._clock: tuple[datetime, float] | None = None

    def of(self, look: Look, *, offset: timedelta) -> Memory | None:
        """All that is looked for, if all of it is remembered."""
        now = self._now()
        if now is None:
            return None
        if look.bookings:
            bookings = self._bookings
            found = {booking_id: bookings[booking_id] for booking_id in look.bookings if booking_id in bookings}
            return Memory(now + offset, {}, {}, found) if len(found) == len(look.bookings) else None
        houses = self._houses
        if not look.seats or any(event_id not in houses for event_id in look.events):
            return None
        seats: dict[SeatRef, SeatSeen] = {}
        for ref in look.seats:
            fresh = houses[ref.event_id].fresh.get(ref.seat_id)
            if fresh is None:
                return None
            seats[ref] = SeatSeen(ref=ref, price=fresh[0], blocked=False, pointer=None, fence=fresh[1])
        for event_id in look.events:
            houses.move_to_end(event_id)
        return Memory(now + offset, {event_id: houses[event_id].event for event_id in look.events}, seats, {})

    def learn(self, events: Iterable[Event], *, now: datetime) -> None:
        """Somebody looked: the server's clock is known, and these events' rules. Their seats are read by and by."""
        self._clock = (now, time.monotonic())
        for event in events:
            if (house := self._houses.get(event.id)) and house.event.version != event.version:
                self._forget(event.id)
            if not (event.id in self._houses or self._loading or self._is_doubted(event.id)):
                self._loading[event.id] = asyncio.get_running_loop().create_task(self._load(event))

    def wrote(self, changes: Changes | None) -> None:
        """This, if anything, was committed: the holds are remembered, and what has moved is not."""
        if changes is None:
            return
        bookings = self._bookings
        for booking in (*changes.moved, *changes.expired):
            bookings.pop(booking.id, None)
        for booking in changes.opened:
            bookings[booking.id] = booking
        while len(bookings) > self._bookings_max:
            bookings.popitem(last=False)

    def gave(self, refs: Collection[SeatRef]) -> None:
        """These seats were given away, or may have been."""
        for event_id, seat_id in refs:
            if (house := self._houses.get(event_id)) and house.fresh.pop(seat_id, None):
                self._seats -= 1
        if self._loading:
            self._given.update(refs)

    def doubt(self, event_ids: Iterable[EventId], booking_ids: Iterable[BookingId] = ()) -> None:
        """What was remembered of one of these was not so."""
        for booking_id in booking_ids:
            self._bookings.pop(booking_id, None)
        for event_id in event_ids:
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
