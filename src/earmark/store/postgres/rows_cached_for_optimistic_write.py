"""The seat cache of a process: with it, a hold of free seats, and what follows on the hold, need not look first.

It keeps an event's rules, those of its seats that are free, its pools, and the holds that this process has written.
It decides nothing: the call that writes compares every seat with what was cached, the versions of events and bookings,
and the moment with the server's own clock. Where one differs, nothing is kept, the event or booking is dropped from
the cache, and the verb looks.

That a booking has ended may be cached for as long as the seat's fence stands: late money, the one way back, raises it.

Seats are read page by page, as requests ask for the event: reading a thousand seats for a single hold would be no
gain. A seat is dropped when this process sells it. When another process has sold it, the event is not cached for a
while, longer each time: an event that several processes sell at once is faster to look at.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.domain.id_types import BookingId
from earmark.domain.seat import SeatSeen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import EventId, PoolId, PoolRef, SeatId, SeatRef
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import Changes, RowsNeeded

    Page = tuple[
        int, int, list[SeatId], list[BookingId] | None, SeatId, str | None, str | None, str | None, list[int | None]
    ]
    """Seats of one price, fence and row: price and fence, their ids, the ended bookings they point to if any, the last
    id, then row, section and category, and their numbers."""

SEATS_MAX = 1_000_000
"""In all events together: 180 to 230 bytes each; 110 to 160 where seats have no number."""
EVENTS_MAX = 1000
BOOKINGS_MAX = 10_000
"""The newest: less than a kilobyte each."""
PAGE = 2000
"""How many seats one statement reads: few enough that no request waits for it."""
REQUESTS_PER_PAGE = 16
"""A page costs about as much as this many requests save by not looking."""
KEPT_SECONDS = 30.0
"""An event that was used this recently is not dropped to make room for another."""
SPARSE = 4
"""The dictionary of free seats is copied to a smaller one when less than one in this many is left."""
LEFT_OUT_SECONDS_MIN = 5.0
LEFT_OUT_SECONDS_MAX = 60.0
CLOCK_SECONDS_MAX = 60.0
"""How long the server's clock is computed from the last time that it was read."""


class FreeSeat(msgspec.Struct, frozen=True, gc=False):
    """What is cached of a free seat, or of several that are alike."""

    price: int
    fence: int
    pointer: BookingId | None
    row: str | None = None
    section: str | None = None
    category: str | None = None
    number: int | None = None


class CachedEvent:
    """One event, its free seats, and its pools as they were read last."""

    __slots__ = ("awaits_page", "event", "free", "is_next", "last", "pools", "requests", "room", "taken", "used_at")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.free: dict[SeatId, FreeSeat] = {}
        self.room = 0
        """How many seats `free` has memory for: a dictionary does not shrink by itself."""
        self.pools: dict[PoolId, Pool] = {}
        self.used_at = 0.0
        self.requests = 0
        """How many requests it would have served before it was complete."""
        self.last: SeatId | None = None
        """The last seat that was read; the next page begins after it."""
        self.is_next = False
        """Whether it is queued for its next page."""
        self.awaits_page = False
        self.taken: set[SeatId] = set()
        """Seats that were taken while a page was being read, which may show them as free."""

    def remove(self, seat_id: SeatId) -> bool:
        """Remove a seat that has an owner now. True where it was cached."""
        if self.awaits_page:
            self.taken.add(seat_id)
        known = self.free.pop(seat_id, None) is not None
        if len(self.free) * SPARSE < self.room:
            # Otherwise a thousand sold-out events would take as much memory as a thousand full ones.
            self.free, self.room = dict(self.free), len(self.free)
        return known

    def add(self, page: Sequence[Page]) -> int:
        """Add the seats of a page. Returns how many were new."""
        before = len(self.free)
        for price, fence, ids, pointers, last, row, section, category, numbers in page:
            # Seats that are alike share one object, which halves the memory.
            shared: dict[tuple[BookingId | None, int | None], FreeSeat] = {}
            owners: Sequence[BookingId | None] = pointers or [None] * len(ids)
            for seat_id, pointer, number in zip(ids, owners, numbers, strict=True):
                alike = shared.get((pointer, number))
                if alike is None:
                    alike = FreeSeat(price, fence, pointer, row, section, category, number)
                    shared[pointer, number] = alike
                self.free[seat_id] = alike
            self.last = max(self.last, last) if self.last is not None else last
        for seat_id in self.taken:
            self.free.pop(seat_id, None)
        self.taken.clear()
        self.room = max(self.room, len(self.free))
        return len(self.free) - before


class CachedRows(NamedTuple):
    """What a look at the database would show."""

    now: datetime
    events: Mapping[EventId, Event]
    seats: dict[SeatRef, SeatSeen]
    bookings: dict[BookingId, Booking]


class SeatCache:
    """Events, the most recently used last, and the holds that this process wrote, the newest last."""

    def __init__(
        self,
        read_page: Callable[[EventId, str, int], Awaitable[Sequence[Page]]],
        *,
        bookings_max: int = BOOKINGS_MAX,
        requests_per_page: int = REQUESTS_PER_PAGE,
    ) -> None:
        self._read_page = read_page
        self._requests_per_page = requests_per_page
        self._events: OrderedDict[EventId, CachedEvent] = OrderedDict()
        self._unread: OrderedDict[EventId, CachedEvent] = OrderedDict()
        """Events whose seats are not all read yet."""
        self._next: deque[CachedEvent] = deque()
        """Those of them whose next page is to be read."""
        self._reading: asyncio.Task[None] | None = None
        self._bookings: OrderedDict[BookingId, Booking] = OrderedDict()
        self._bookings_max = bookings_max
        self._left_out: dict[EventId, tuple[float, float]] = {}
        self._seats = 0
        self._clock: tuple[datetime, float] | None = None

    def find(self, look: RowsNeeded, *, offset: timedelta) -> CachedRows | None:
        """All that is looked for, if all of it is cached."""
        now = self._now()
        if now is None:
            return None
        if look.bookings:
            bookings = self._bookings
            found = {booking_id: bookings[booking_id] for booking_id in look.bookings if booking_id in bookings}
            return CachedRows(now + offset, {}, {}, found) if len(found) == len(look.bookings) else None
        known = self._events
        if any(event_id not in known for event_id in look.events):
            return None
        seats: dict[SeatRef, SeatSeen] = {}
        for ref in look.seats:
            free = known[ref.event_id].free.get(ref.seat_id)
            if free is None:
                return None
            seats[ref] = SeatSeen(
                ref=ref,
                price=free.price,
                blocked=False,
                pointer=free.pointer,
                fence=free.fence,
                row=free.row,
                number=free.number,
                section=free.section,
                category=free.category,
            )
        for event_id in look.events:
            known.move_to_end(event_id)
            known[event_id].used_at = time.monotonic()
        return CachedRows(now + offset, {event_id: known[event_id].event for event_id in look.events}, seats, {})

    def pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool] | None:
        """These pools as they were read or changed last, if all of them are cached."""
        known = self._events
        found = {ref: pool for ref in refs if (cached := known.get(ref[0])) and (pool := cached.pools.get(ref[1]))}
        return found if len(found) == len(refs) else None

    def keep_pools(self, pools: Iterable[Pool]) -> None:
        """Keep pools that were read."""
        for pool in pools:
            if cached := self._events.get(pool.event_id):
                cached.pools[pool.id] = pool

    def keep_events(self, events: Collection[Event], *, now: datetime, requests: int = 1) -> None:
        """Keep what a look has read: the server's clock and these events. Their seats are read later, page by page.

        `requests` is how many of the requests the cache could have served: none if one of the seats was not free.
        """
        self._clock = (now, time.monotonic())
        for event in events:
            if (cached := self._events.get(event.id)) and cached.event.version != event.version:
                self._forget(event.id)
            if event.id in self._events or self._is_left_out(event.id):
                continue
            unread = self._unread.get(event.id)
            if unread is None or unread.event.version != event.version:
                self._forget(event.id)
                unread = self._unread[event.id] = CachedEvent(event)
            unread.requests += -(-requests // len(events))
            self._queue(unread)
        self._read_next()
        while len(self._unread) > EVENTS_MAX:
            self._forget(next(iter(self._unread)))

    def follow_commit(self, changes: Changes | None) -> None:
        """Follow a commit: keep the holds that it opened, and drop the bookings that it moved."""
        if changes is None:
            return
        bookings = self._bookings
        for booking in (*changes.moved, *changes.expired):
            bookings.pop(booking.id, None)
        for booking in changes.opened:
            bookings[booking.id] = booking
        while len(bookings) > self._bookings_max:
            bookings.popitem(last=False)
        for (event_id, pool_id), delta in changes.pools.items():
            if (cached := self._events.get(event_id)) and (pool := cached.pools.get(pool_id)):
                held, sold = pool.held + delta.held, pool.sold + delta.sold
                cached.pools[pool_id] = msgspec.structs.replace(pool, held=held, sold=sold)

    def remove_seats(self, refs: Collection[SeatRef]) -> None:
        """Remove seats that were taken, or may have been."""
        for event_id, seat_id in refs:
            if cached := self._events.get(event_id) or self._unread.get(event_id):
                self._seats -= cached.remove(seat_id)

    def drop_outdated(self, event_ids: Iterable[EventId], booking_ids: Iterable[BookingId] = ()) -> None:
        """Drop what turned out to be outdated, and look at these events for a while, longer each time."""
        for booking_id in booking_ids:
            self._bookings.pop(booking_id, None)
        for event_id in event_ids:
            self._forget(event_id)
            _, seconds = self._left_out.get(event_id, (0.0, LEFT_OUT_SECONDS_MIN / 2))
            self._leave_out(event_id, min(2 * seconds, LEFT_OUT_SECONDS_MAX))

    async def close(self) -> None:
        """Stop reading pages of seats."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _queue(self, unread: CachedEvent) -> None:
        """Queue it for its next page, if enough requests have asked for the event."""
        pages = len(unread.free) // PAGE + 1
        if not unread.is_next and not unread.awaits_page and unread.requests >= pages * self._requests_per_page:
            unread.is_next = True
            self._next.append(unread)

    def _read_next(self) -> None:
        """Read one page at a time, since requests share the event loop with it."""
        while self._reading is None and self._next:
            unread = self._next.popleft()
            unread.is_next = False
            if self._unread.get(unread.event.id) is unread:
                unread.awaits_page = True
                self._reading = asyncio.get_running_loop().create_task(self._read(unread))

    async def _read(self, unread: CachedEvent) -> None:
        """Read one page. An event with all its seats is used from then on, if there is room for it."""
        event_id = unread.event.id
        try:
            page = await self._read_page(event_id, unread.last or "", PAGE)
        except Exception:  # noqa: BLE001 (the next request meets a store that does not answer)
            return
        finally:
            self._reading = None
            unread.awaits_page = False
        if self._unread.get(event_id) is unread:
            self._remember(unread, page)
        self._read_next()

    def _remember(self, unread: CachedEvent, page: Sequence[Page]) -> None:
        event_id = unread.event.id
        self._seats += unread.add(page)
        if not self._has_room():
            self._forget(event_id)
            self._leave_out(event_id, KEPT_SECONDS)
        elif sum(len(seats[2]) for seats in page) < PAGE:
            del self._unread[event_id]
            self._events[event_id] = unread
        else:
            self._queue(unread)

    def _has_room(self) -> bool:
        """Drop events that were not used recently until there is room; False where there are none."""
        while self._seats > SEATS_MAX or len(self._events) >= EVENTS_MAX:
            oldest = next(iter(self._events.values()), None)
            if oldest is None or time.monotonic() - oldest.used_at < KEPT_SECONDS:
                return False
            self._forget(oldest.event.id)
        return True

    def _leave_out(self, event_id: EventId, seconds: float) -> None:
        """Do not cache this event for this long."""
        self._left_out[event_id] = (time.monotonic() + seconds, seconds)
        while len(self._left_out) > EVENTS_MAX:
            del self._left_out[next(iter(self._left_out))]

    def _forget(self, event_id: EventId) -> None:
        if cached := self._events.pop(event_id, None) or self._unread.pop(event_id, None):
            self._seats -= len(cached.free)

    def _is_left_out(self, event_id: EventId) -> bool:
        until, _ = self._left_out.get(event_id, (0.0, 0.0))
        return time.monotonic() < until

    def _now(self) -> datetime | None:
        """The server's clock, computed from when it was last read."""
        if self._clock is None:
            return None
        at, since = self._clock
        elapsed = time.monotonic() - since
        return at + timedelta(seconds=elapsed) if elapsed < CLOCK_SECONDS_MAX else None
