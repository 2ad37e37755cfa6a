"""What this process remembers, so that a hold of free seats, and whatever follows on it, need not look first.

Remembered are an event's rules, its seats that nobody has had so far or that a booking left which has ended, its pools,
and the holds that this process has written. Nothing is decided by it alone: the call that writes compares every seat
with what is remembered, the versions of events and bookings, and the moment with the server's own clock. Where one
differs, nothing is kept, that event or booking is forgotten, and the verb looks.

That a booking has ended may be remembered for as long as the fence stands: the one way back, late money, raises it.

A house is read page by page, as fast as it is asked for: reading a thousand seats for a single hold would be no gain.
A seat is forgotten when this process gives it away. When another one does, the first to find out makes the whole event
be looked at for a while, longer each time: a house that several processes sell to a crowd is better looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from earmark.domain.ids import BookingId
from earmark.domain.seat import SeatSeen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.ids import EventId, PoolId, PoolRef, SeatId, SeatRef
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import Changes, RowsNeeded

    Page = tuple[
        int, int, list[SeatId], list[BookingId] | None, SeatId, str | None, str | None, str | None, list[int | None]
    ]
    """Seats of one price, fence and row: price and fence, their ids, the ended bookings they point to if any, the last
    id, then row, section and category, and their numbers."""

SEATS_MAX = 1_000_000
"""In all: 180 to 230 bytes each; 110 to 160 where seats have no number."""
EVENTS_MAX = 1000
BOOKINGS_MAX = 10_000
"""The newest: less than a kilobyte each."""
PAGE = 2000
"""So many seats are read at once: few enough that nobody waits for them."""
REQUESTS_PER_PAGE = 16
"""A page costs about as much as it saves so many requests to be decided without a look."""
KEPT_SECONDS = 30.0
"""A house that was asked for so lately makes room for no other."""
SPARSE = 4
"""What is remembered of a house is packed anew when so much less of it is left."""
DOUBT_SECONDS_MIN = 5.0
DOUBT_SECONDS_MAX = 60.0
CLOCK_SECONDS_MAX = 60.0
"""How long the server's clock is reckoned from the last time that it was read."""


class Free(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a free seat, or of several that are alike."""

    price: int
    fence: int
    pointer: BookingId | None
    row: str | None = None
    section: str | None = None
    category: str | None = None
    number: int | None = None


class House:
    """One event, its free seats, and its pools as they were seen."""

    __slots__ = ("awaits_page", "event", "free", "given", "is_next", "last", "pools", "requests", "room", "used_at")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.free: dict[SeatId, Free] = {}
        self.room = 0
        """How many seats there is room for in `free`, which does not shrink by itself."""
        self.pools: dict[PoolId, Pool] = {}
        self.used_at = 0.0
        self.requests = 0
        """How often it would have been of use before it was known."""
        self.last: SeatId | None = None
        """The last seat that was read; the next page begins behind it."""
        self.is_next = False
        """It stands in line for its next page."""
        self.awaits_page = False
        self.given: set[SeatId] = set()
        """What was given away while a page was on its way, which may not know it."""

    def give(self, seat_id: SeatId) -> bool:
        """The seat has an owner now. Whether it was known."""
        if self.awaits_page:
            self.given.add(seat_id)
        known = self.free.pop(seat_id, None) is not None
        if len(self.free) * SPARSE < self.room:
            # Else a thousand houses that are sold out would weigh as much as a thousand full ones.
            self.free, self.room = dict(self.free), len(self.free)
        return known

    def add(self, page: Sequence[Page]) -> int:
        """Remember what a page shows. How many seats that were."""
        before = len(self.free)
        for price, fence, ids, pointers, last, row, section, category, numbers in page:
            # Seats that are alike are kept as one: it is half of what they weigh.
            shared: dict[tuple[BookingId | None, int | None], Free] = {}
            owners: Sequence[BookingId | None] = pointers or [None] * len(ids)
            for seat_id, pointer, number in zip(ids, owners, numbers, strict=True):
                alike = shared.get((pointer, number))
                if alike is None:
                    alike = Free(price, fence, pointer, row, section, category, number)
                    shared[pointer, number] = alike
                self.free[seat_id] = alike
            self.last = max(self.last, last) if self.last is not None else last
        for seat_id in self.given:
            self.free.pop(seat_id, None)
        self.given.clear()
        self.room = max(self.room, len(self.free))
        return len(self.free) - before


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
        read_page: Callable[[EventId, str, int], Awaitable[Sequence[Page]]],
        *,
        bookings_max: int = BOOKINGS_MAX,
        requests_per_page: int = REQUESTS_PER_PAGE,
    ) -> None:
        self._read_page = read_page
        self._requests_per_page = requests_per_page
        self._houses: OrderedDict[EventId, House] = OrderedDict()
        self._unread: OrderedDict[EventId, House] = OrderedDict()
        """Houses that are not known whole yet."""
        self._next: deque[House] = deque()
        """Those of them whose next page is due."""
        self._reading: asyncio.Task[None] | None = None
        self._bookings: OrderedDict[BookingId, Booking] = OrderedDict()
        self._bookings_max = bookings_max
        self._doubts: dict[EventId, tuple[float, float]] = {}
        self._seats = 0
        self._clock: tuple[datetime, float] | None = None

    def of(self, look: RowsNeeded, *, offset: timedelta) -> Memory | None:
        """All that is looked for, if all of it is remembered."""
        now = self._now()
        if now is None:
            return None
        if look.bookings:
            bookings = self._bookings
            found = {booking_id: bookings[booking_id] for booking_id in look.bookings if booking_id in bookings}
            return Memory(now + offset, {}, {}, found) if len(found) == len(look.bookings) else None
        houses = self._houses
        if any(event_id not in houses for event_id in look.events):
            return None
        seats: dict[SeatRef, SeatSeen] = {}
        for ref in look.seats:
            free = houses[ref.event_id].free.get(ref.seat_id)
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
            houses.move_to_end(event_id)
            houses[event_id].used_at = time.monotonic()
        return Memory(now + offset, {event_id: houses[event_id].event for event_id in look.events}, seats, {})

    def pools(self, refs: Collection[PoolRef]) -> dict[PoolRef, Pool] | None:
        """These pools as they were seen or changed last, if all of them are remembered."""
        houses = self._houses
        found = {ref: pool for ref in refs if (house := houses.get(ref[0])) and (pool := house.pools.get(ref[1]))}
        return found if len(found) == len(refs) else None

    def saw_pools(self, pools: Iterable[Pool]) -> None:
        """Somebody looked at these."""
        for pool in pools:
            if house := self._houses.get(pool.event_id):
                house.pools[pool.id] = pool

    def learn(self, events: Collection[Event], *, now: datetime, requests: int = 1) -> None:
        """Somebody looked: the server's clock is known, and these events' rules. Their seats are read by and by.

        `requests` is for how many memory would have done: for none if one of the seats was not free.
        """
        self._clock = (now, time.monotonic())
        for event in events:
            if (house := self._houses.get(event.id)) and house.event.version != event.version:
                self._forget(event.id)
            if event.id in self._houses or self._is_doubted(event.id):
                continue
            unread = self._unread.get(event.id)
            if unread is None or unread.event.version != event.version:
                self._forget(event.id)
                unread = self._unread[event.id] = House(event)
            unread.requests += -(-requests // len(events))
            self._queue(unread)
        self._read_next()
        while len(self._unread) > EVENTS_MAX:
            self._forget(next(iter(self._unread)))

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
        for (event_id, pool_id), delta in changes.pools.items():
            if (house := self._houses.get(event_id)) and (pool := house.pools.get(pool_id)):
                held, sold = pool.held + delta.held, pool.sold + delta.sold
                house.pools[pool_id] = msgspec.structs.replace(pool, held=held, sold=sold)

    def gave(self, refs: Collection[SeatRef]) -> None:
        """These seats were given away, or may have been."""
        for event_id, seat_id in refs:
            if house := self._houses.get(event_id) or self._unread.get(event_id):
                self._seats -= house.give(seat_id)

    def doubt(self, event_ids: Iterable[EventId], booking_ids: Iterable[BookingId] = ()) -> None:
        """What was remembered of one of these was not so."""
        for booking_id in booking_ids:
            self._bookings.pop(booking_id, None)
        for event_id in event_ids:
            self._forget(event_id)
            _, seconds = self._doubts.get(event_id, (0.0, DOUBT_SECONDS_MIN / 2))
            self._leave(event_id, min(2 * seconds, DOUBT_SECONDS_MAX))

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _queue(self, unread: House) -> None:
        """In line for its next page, if that has been asked for often enough."""
        pages = len(unread.free) // PAGE + 1
        if not unread.is_next and not unread.awaits_page and unread.requests >= pages * self._requests_per_page:
            unread.is_next = True
            self._next.append(unread)

    def _read_next(self) -> None:
        """One page at a time: whoever is served meanwhile shares the loop with it."""
        while self._reading is None and self._next:
            unread = self._next.popleft()
            unread.is_next = False
            if self._unread.get(unread.event.id) is unread:
                unread.awaits_page = True
                self._reading = asyncio.get_running_loop().create_task(self._read(unread))

    async def _read(self, unread: House) -> None:
        """One page. A house that is known whole by then is remembered, if there is room for it."""
        event_id = unread.event.id
        try:
            page = await self._read_page(event_id, unread.last or "", PAGE)
        except Exception:  # noqa: BLE001 (a store that does not answer is met by those who need it)
            return
        finally:
            self._reading = None
            unread.awaits_page = False
        if self._unread.get(event_id) is unread:
            self._remember(unread, page)
        self._read_next()

    def _remember(self, unread: House, page: Sequence[Page]) -> None:
        event_id = unread.event.id
        self._seats += unread.add(page)
        if not self._has_room():
            self._forget(event_id)
            self._leave(event_id, KEPT_SECONDS)
        elif sum(len(seats[2]) for seats in page) < PAGE:
            del self._unread[event_id]
            self._houses[event_id] = unread
        else:
            self._queue(unread)

    def _has_room(self) -> bool:
        """If need be, because those go that nobody asked for in a while."""
        while self._seats > SEATS_MAX or len(self._houses) >= EVENTS_MAX:
            oldest = next(iter(self._houses.values()), None)
            if oldest is None or time.monotonic() - oldest.used_at < KEPT_SECONDS:
                return False
            self._forget(oldest.event.id)
        return True

    def _leave(self, event_id: EventId, seconds: float) -> None:
        """Do not remember this event for so long."""
        self._doubts[event_id] = (time.monotonic() + seconds, seconds)
        while len(self._doubts) > EVENTS_MAX:
            del self._doubts[next(iter(self._doubts))]

    def _forget(self, event_id: EventId) -> None:
        if house := self._houses.pop(event_id, None) or self._unread.pop(event_id, None):
            self._seats -= len(house.free)

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
