"""A channel follows one event: it finds which seats may have changed, reads them, and updates the `MapState`.

    an entry from this process's relay       names its seats
    a number from elsewhere, or a count      entries are read on from the last number, and name theirs
    entries that no relay numbers            after a second the whole map is read and compared
    the clock                                seats whose holds run out are read when they do

Only seats that may have changed are read, together, once for all readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.engine.ports.store import MAP_HORIZON
from earmark.errors import EventUnknown, Outage
from earmark.observability import logs
from earmark.seatmap.seat_ids_in_journal_entry import needs_history, seats_named
from earmark.seatmap.state_and_changes import MapState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from earmark.domain.id_types import EventId, SeatId
    from earmark.engine.ports.number_and_read_journal import Numbered
    from earmark.engine.ports.store import Clock, SeatMap, Store
    from earmark.seatmap.state_and_changes import Frame, MapRenderer

TICK_SECONDS = 0.02
"""How long changes are collected before they are read together."""
ENTRIES_MAX = 1000
"""A reader that missed more than these gets the whole map instead."""
PAST_MARGIN = 100
"""How much further back is read than one reader needs, for other readers that resume from about the same entry."""
UNNUMBERED_SECONDS_MAX = 1.0
"""When no relay has numbered an entry for so long, the whole map is read and compared."""
PAUSE_SECONDS = 1.0
"""After a failure of the store."""
SEATS_AT_ONCE_MAX = 500
"""Larger maps are encoded in a thread, so that the event loop keeps serving other requests."""

log = logs.get()


class EventChannel:
    """One followed event of one process."""

    map_state: MapState

    def __init__(
        self, event_id: EventId, *, store: Store, clock: Clock, renderer: MapRenderer, changed: Callable[[], None]
    ) -> None:
        self.event_id = event_id
        self._store = store
        self._clock = clock
        self._renderer = renderer
        self._changed = changed
        self._wake_up = asyncio.Event()
        self._received: list[Numbered] = []
        self._newest = 0
        """The newest number that a relay or another process has announced."""
        self._counted: tuple[int, float] | None = None
        """How many entries there are, and since when we know."""
        self._covered = 0
        """How many entries, numbered or not, the map state includes."""
        self._uncounted = False
        self._compared = float("-inf")
        """When the whole map was last read."""
        self._due: set[SeatId] = set()
        self._alarm = 0.0
        self._moment: tuple[datetime, float]
        self._past_lock = asyncio.Lock()
        self._past: tuple[int, int, set[SeatId]] | None = None
        """After which entry and up to which one the past was read, and the seats that were named in it."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the map; from then on the map state follows what happens."""
        # The number first: what is committed from here on has a later one.
        number = await self._store.followed_events.newest(self.event_id)
        event = await self._store.read_event(self.event_id)
        if event is None:
            raise EventUnknown(event_id=self.event_id)
        seen = await self._store.read_map(self.event_id)
        if len(seen.seats) <= SEATS_AT_ONCE_MAX:
            self.map_state = MapState(event, seen, number=number, renderer=self._renderer)
        else:
            self.map_state = await asyncio.to_thread(MapState, event, seen, number=number, renderer=self._renderer)
        self._covered = number
        self._set_alarm(seen)
        self._task = asyncio.create_task(self._follow(), name=f"channel {self.event_id}")

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that follows the event; the hub cancels it."""
        assert self._task is not None, "a channel is opened before it is stopped"
        return self._task

    def on_entry(self, numbered: Numbered) -> None:
        """Take an entry that the relay of this process has published."""
        self._received.append(numbered)
        self.on_number(numbered.sequence)

    def on_number(self, number: int) -> None:
        """Note that an entry has this number; it is read in the next round."""
        if number > max(self.map_state.number, self._newest):
            self._newest = number
            self._wake_up.set()

    def on_count(self, entries: int | None) -> None:
        """Note how many entries the event has, numbered or not; None when the store cannot count them."""
        if entries is None:
            self._uncounted = self._time() - self._compared >= UNNUMBERED_SECONDS_MAX
        elif entries > max(self.map_state.number, self._covered) and (
            self._counted is None or self._counted[0] <= self.map_state.number
        ):
            self._counted = (entries, self._time())
        if self._uncounted or self._counted or self._time() >= self._alarm:
            self._wake_up.set()

    async def resume(self, number: int) -> Frame:
        """For a reader that has seen everything up to this entry: what changed since, or the whole map."""
        if number < self.map_state.oldest:
            named = await self._read_past(number)
            # No gap between what was read and the frame: the map state remembers what came since.
            found = None if named is None else self.map_state.after(self.map_state.oldest, also=named)
        else:
            found = self.map_state.after(number)
        return found or self.map_state.snapshot()

    async def _read_past(self, number: int) -> set[SeatId] | None:
        """The seats that entries from before this channel's memory name; None when those are too many.

        After another server stopped, many readers resume at once, from about the same entry: one reading serves them.
        """
        async with self._past_lock:
            if self._past and self._past[0] <= number and self._past[1] >= self.map_state.oldest - 1:
                return self._past[2]
            after = max(number - PAST_MARGIN, 0)
            entries = await self._store.outbox.read_numbered(self.event_id, after=after, limit=ENTRIES_MAX + 1)
            if len(entries) > ENTRIES_MAX:
                return None
            named = await self._name(entries)
            if named is not None:
                self._past = (after, entries[-1].sequence if entries else after, named)
            return named

    def _time(self) -> float:
        """A monotonic clock that tests can move forward."""
        return time.monotonic() + self._clock.offset.total_seconds()

    async def _follow(self) -> None:
        while True:
            began = self._time()
            try:
                await self._wait()
                await asyncio.sleep(TICK_SECONDS)
                began = self._time()
                await self._round()
            except Outage as outage:
                self._wake_up.set()
                log.warning("stream", outcome=outage.code, event_id=self.event_id, **outage.facts())
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception:
                self._wake_up.set()
                log.exception("stream", outcome="internal", event_id=self.event_id)
                await asyncio.sleep(PAUSE_SECONDS)
            # No more than half of the time: bookings come first.
            await asyncio.sleep(min(self._time() - began, 2 * TICK_SECONDS))

    async def _wait(self) -> None:
        """Wait until there may be a change. A clock that a test moved is noticed when the hub counts entries."""
        if not self._wake_up.is_set():
            # Not `wait_for`: in Python 3.11 it forgets that it was cancelled when the event is set at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._alarm - self._time(), 0.0)):
                    await self._wake_up.wait()
        self._wake_up.clear()

    async def _round(self) -> None:
        """Find which seats may have changed, read them, and update the map state."""
        received, self._received = self._received, []
        entries, whole = await self._collect(received)
        named = None if whole else await self._name(entries)
        number = entries[-1].sequence if entries else self.map_state.number
        if any(one.entry.booking_id is None for one in entries):
            event = await self._store.read_event(self.event_id)
            assert event is not None, "events are never deleted"
            self.map_state.event = event
        if named is None:
            await self._compare(number, passed_over=len(entries) > ENTRIES_MAX)
            return
        # Kept until they were read: they survive a failure of the store.
        self._due |= self.map_state.due(self._now())
        # An entry about units alone names no seat: the counts of the pools are read with whatever seats there are.
        counts = self.map_state.has_pools and any(one.entry.booking_id is not None for one in entries)
        if not named and not self._due and not counts and self._time() < self._alarm:
            self.map_state.reach(number)
            return
        seen = await self._store.followed_events.read_seats(self.event_id, named | self._due)
        self._due.clear()
        self._set_alarm(seen)
        if self.map_state.show(seen, named=named, number=number):
            self._changed()

    async def _collect(self, received: Sequence[Numbered]) -> tuple[Sequence[Numbered], bool]:
        """The entries after the last one, in order; and whether the whole map has to be read instead."""
        known = self.map_state.number
        fresh = [one for one in received if one.sequence > known]
        unbroken = all(one.sequence == known + place for place, one in enumerate(fresh, start=1))
        reached = fresh[-1].sequence if fresh else known
        owed = self._counted is not None and self._counted[0] > reached
        if unbroken and reached >= self._newest and not owed and not self._uncounted:
            self._counted = None
            return fresh, False
        entries = await self._store.outbox.read_numbered(self.event_id, after=known, limit=ENTRIES_MAX + 1)
        if len(entries) > ENTRIES_MAX:
            return entries, True
        # A number is published after it was committed: one that is not in the store is not of this event.
        self._newest = reached = entries[-1].sequence if entries else known
        if self._counted is not None and self._counted[0] <= reached:
            self._counted = None
        late = self._counted is not None and self._time() - self._counted[1] >= UNNUMBERED_SECONDS_MAX
        return entries, late or self._uncounted

    async def _name(self, entries: Sequence[Numbered]) -> set[SeatId] | None:
        """The seats that these entries are about; None when one of them does not name its seats."""
        named: set[SeatId] = set()
        for one in entries:
            entry = one.entry
            seats = seats_named(entry)
            if seats is None:
                return None
            named |= seats
            if entry.booking_id is not None:
                named.update(self.map_state.seats_of(entry.booking_id))
                if needs_history(entry):
                    for older in await self._store.read_history(entry.booking_id):
                        named |= seats_named(older) or set()
        return named

    async def _compare(self, number: int, *, passed_over: bool) -> None:
        """Read the whole map, and send what differs from the map state."""
        counted = (await self._store.outbox.count([self.event_id]))[self.event_id]
        if passed_over:
            number = await self._store.followed_events.newest(self.event_id)
        seen = await self._store.read_map(self.event_id)
        self._covered = counted if counted is not None else self._covered
        self._counted, self._uncounted, self._compared = None, False, self._time()
        self._due.clear()
        self._set_alarm(seen)
        changed = self.map_state.show(seen, named=(), number=number)
        if passed_over:
            self.map_state.restart()
        if changed or passed_over:
            self._changed()

    def _set_alarm(self, seen: SeatMap) -> None:
        """When the clock alone may change something; beyond its horizon a map does not know."""
        self._moment = (seen.now, self._time())
        life = (seen.ends_at - seen.now if seen.ends_at else MAP_HORIZON).total_seconds()
        self._alarm = self._time() + min(life, MAP_HORIZON.total_seconds())

    def _now(self) -> datetime:
        """The store's clock, estimated from the last read."""
        then, at = self._moment
        return then + timedelta(seconds=self._time() - at)
