"""A channel: one followed event. News says what may have changed, the store how it is, the scene what to send.

    an entry from this process's relay       names its seats
    a number from elsewhere, or a count      entries are read on from the last number, and name theirs
    entries that nobody numbers              after a second the whole map is read and compared
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
from earmark.seatmap.seats_in_entry import needs_history, seats_named
from earmark.seatmap.state_and_changes import MapState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from earmark.domain.ids import EventId, SeatId
    from earmark.engine.ports.outbox import Numbered
    from earmark.engine.ports.store import Clock, SeatMap, Store
    from earmark.seatmap.state_and_changes import Frame, MapRenderer

TICK_SECONDS = 0.02
"""How long changes are collected before they are read together."""
ENTRIES_MAX = 1000
"""Who missed more than these reads the whole map instead."""
PAST_MARGIN = 100
"""How much further back is read than one reader needs, for the others who come from about the same place."""
UNNUMBERED_SECONDS_MAX = 1.0
"""Entries that no relay has numbered for so long are looked for in the map."""
PAUSE_SECONDS = 1.0
"""After a failure of the store."""
SEATS_AT_ONCE_MAX = 500
"""More than these are worded in a thread, so that others are answered meanwhile."""

log = logs.get()


class EventChannel:
    """One followed event of one process."""

    scene: MapState

    def __init__(
        self, event_id: EventId, *, store: Store, clock: Clock, brush: MapRenderer, changed: Callable[[], None]
    ) -> None:
        self.event_id = event_id
        self._store = store
        self._clock = clock
        self._brush = brush
        self._changed = changed
        self._news = asyncio.Event()
        self._heard: list[Numbered] = []
        self._promised = 0
        """The newest number that anybody spoke of."""
        self._counted: tuple[int, float] | None = None
        """How many entries there are, and since when we know."""
        self._covered = 0
        """That many entries, numbered or not, are in the scene."""
        self._uncounted = False
        self._compared = float("-inf")
        """When the whole map was last read."""
        self._due: set[SeatId] = set()
        self._alarm = 0.0
        self._moment: tuple[datetime, float]
        self._asking = asyncio.Lock()
        self._past: tuple[int, int, set[SeatId]] | None = None
        """After which entry and up to which one the past was read, and the seats that were named in it."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the map; from then on the scene follows what happens."""
        # The number first: what is committed from here on is told by a later one.
        number = await self._store.followed_events.newest(self.event_id)
        event = await self._store.read_event(self.event_id)
        if event is None:
            raise EventUnknown(event_id=self.event_id)
        seen = await self._store.read_map(self.event_id)
        if len(seen.seats) <= SEATS_AT_ONCE_MAX:
            self.scene = MapState(event, seen, number=number, brush=self._brush)
        else:
            self.scene = await asyncio.to_thread(MapState, event, seen, number=number, brush=self._brush)
        self._covered = number
        self._set_alarm(seen)
        self._task = asyncio.create_task(self._follow(), name=f"channel {self.event_id}")

    @property
    def task(self) -> asyncio.Task[None]:
        """What follows, to be cancelled by whoever opened it."""
        assert self._task is not None, "a channel is opened before it is stopped"
        return self._task

    def hear(self, numbered: Numbered) -> None:
        """The relay of this process has told this."""
        self._heard.append(numbered)
        self.promise(numbered.sequence)

    def promise(self, number: int) -> None:
        """There is an entry with this number."""
        if number > max(self.scene.number, self._promised):
            self._promised = number
            self._news.set()

    def count(self, entries: int | None) -> None:
        """How many entries the event has, numbered or not; None when nobody can count them."""
        if entries is None:
            self._uncounted = self._time() - self._compared >= UNNUMBERED_SECONDS_MAX
        elif entries > max(self.scene.number, self._covered) and (
            self._counted is None or self._counted[0] <= self.scene.number
        ):
            self._counted = (entries, self._time())
        if self._uncounted or self._counted or self._time() >= self._alarm:
            self._news.set()

    async def resume(self, number: int) -> Frame:
        """For somebody who has seen everything up to this entry: what changed since, or all of it."""
        if number < self.scene.oldest:
            named = await self._read_past(number)
            # Nothing may happen between what was read and the frame: the scene remembers what came since.
            found = None if named is None else self.scene.after(self.scene.oldest, also=named)
        else:
            found = self.scene.after(number)
        return found or self.scene.snapshot()

    async def _read_past(self, number: int) -> set[SeatId] | None:
        """The seats that entries from before this channel's memory name; None when those are too many.

        After another server went away, many ask at once, from about the same place: one reading serves them.
        """
        async with self._asking:
            if self._past and self._past[0] <= number and self._past[1] >= self.scene.oldest - 1:
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
        """A clock that never steps, and that tests can push."""
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
                self._news.set()
                log.warning("stream", outcome=outage.code, event_id=self.event_id, **outage.facts())
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception:
                self._news.set()
                log.exception("stream", outcome="internal", event_id=self.event_id)
                await asyncio.sleep(PAUSE_SECONDS)
            # No more than half of the time: those who book come first.
            await asyncio.sleep(min(self._time() - began, 2 * TICK_SECONDS))

    async def _wait(self) -> None:
        """Until there is news, or the clock has some; a clock that was pushed is noticed by whoever counts entries."""
        if not self._news.is_set():
            # Not `wait_for`: in Python 3.11 it forgets that it was cancelled when there is news at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._alarm - self._time(), 0.0)):
                    await self._news.wait()
        self._news.clear()

    async def _round(self) -> None:
        """Find out what may have changed, read it, show it."""
        heard, self._heard = self._heard, []
        entries, whole = await self._collect(heard)
        named = None if whole else await self._name(entries)
        number = entries[-1].sequence if entries else self.scene.number
        if any(one.entry.booking_id is None for one in entries):
            event = await self._store.read_event(self.event_id)
            assert event is not None, "events are never deleted"
            self.scene.event = event
        if named is None:
            await self._compare(number, passed_over=len(entries) > ENTRIES_MAX)
            return
        # Kept until they were read: a store that fails does not make them forgotten.
        self._due |= self.scene.due(self._now())
        if not named and not self._due and self._time() < self._alarm:
            self.scene.reach(number)
            return
        seen = await self._store.followed_events.read_seats(self.event_id, named | self._due)
        self._due.clear()
        self._set_alarm(seen)
        if self.scene.show(seen, named=named, number=number):
            self._changed()

    async def _collect(self, heard: Sequence[Numbered]) -> tuple[Sequence[Numbered], bool]:
        """The entries after the last one, in order; and whether the whole map has to be read, for want of them."""
        known = self.scene.number
        fresh = [one for one in heard if one.sequence > known]
        unbroken = all(one.sequence == known + place for place, one in enumerate(fresh, start=1))
        reached = fresh[-1].sequence if fresh else known
        owed = self._counted is not None and self._counted[0] > reached
        if unbroken and reached >= self._promised and not owed and not self._uncounted:
            self._counted = None
            return fresh, False
        entries = await self._store.outbox.read_numbered(self.event_id, after=known, limit=ENTRIES_MAX + 1)
        if len(entries) > ENTRIES_MAX:
            return entries, True
        # Numbers are told after they were committed: one that is not there is not of this event's story.
        self._promised = reached = entries[-1].sequence if entries else known
        if self._counted is not None and self._counted[0] <= reached:
            self._counted = None
        late = self._counted is not None and self._time() - self._counted[1] >= UNNUMBERED_SECONDS_MAX
        return entries, late or self._uncounted

    async def _name(self, entries: Sequence[Numbered]) -> set[SeatId] | None:
        """The seats that these are about; None when one of them does not tell."""
        named: set[SeatId] = set()
        for one in entries:
            entry = one.entry
            told = seats_named(entry)
            if told is None:
                return None
            named |= told
            if entry.booking_id is not None:
                named.update(self.scene.seats_of(entry.booking_id))
                if needs_history(entry):
                    for older in await self._store.read_history(entry.booking_id):
                        named |= seats_named(older) or set()
        return named

    async def _compare(self, number: int, *, passed_over: bool) -> None:
        """Everything, compared with what was shown."""
        counted = (await self._store.outbox.count([self.event_id]))[self.event_id]
        if passed_over:
            number = await self._store.followed_events.newest(self.event_id)
        seen = await self._store.read_map(self.event_id)
        self._covered = counted if counted is not None else self._covered
        self._counted, self._uncounted, self._compared = None, False, self._time()
        self._due.clear()
        self._set_alarm(seen)
        changed = self.scene.show(seen, named=(), number=number)
        if passed_over:
            self.scene.restart()
        if changed or passed_over:
            self._changed()

    def _set_alarm(self, seen: SeatMap) -> None:
        """When the clock alone may change something; beyond its horizon a map does not know."""
        self._moment = (seen.now, self._time())
        life = (seen.ends_at - seen.now if seen.ends_at else MAP_HORIZON).total_seconds()
        self._alarm = self._time() + min(life, MAP_HORIZON.total_seconds())

    def _now(self) -> datetime:
        """The store's clock, as far as we can tell without asking."""
        then, at = self._moment
        return then + timedelta(seconds=self._time() - at)
