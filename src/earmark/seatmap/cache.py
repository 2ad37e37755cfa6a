"""The availability cache: an event's map, read and worded once for all who look. Nothing is ever decided by it.

A snapshot is shown until something changes it:

    a commit of this process     drops it at once: `hear` is told what every commit wrote
    a commit of another one      shows in the outbox; before a snapshot is shown, and at most every quarter of a second,
                                 one query asks about all events that are kept here
    the clock                    ends it when the first hold on it runs out
    anything else                hand-written SQL, say: it lives for five seconds at most

Whoever asks while a map is being read gets the same reading, unless something was committed since it began: then they
get the next one, and the first is not kept. So whoever has been told of a commit of this process sees it. Of an event
there is one reading at a time, however fast it changes and however many look.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.event import Event
from earmark.domain.ids import Buyer
from earmark.engine.ports.store import MAP_HORIZON
from earmark.errors import EventUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.ids import EventId
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Changes, Clock, SeatMap

BYTES_MAX = 64 * 1024 * 1024
SECONDS_MAX = 5.0
LOOK_SECONDS = 0.25
READINGS_MAX = 2
"""Of different events at once: those who look must leave connections to those who buy."""
SEATS_AT_ONCE_MAX = 500
"""More than these are worded in a thread, so that others are answered meanwhile."""
MARK_BYTES = 250
"""About what remembering one owner costs."""


class RenderedMap(msgspec.Struct, frozen=True, kw_only=True):
    """A map in words, once for everybody. What differs from buyer to buyer is only marked in it."""

    version: str
    """Changes when anything on the map does."""
    body: bytes
    own: Mapping[Buyer, Sequence[int]] = {}
    """Where the body is about a buyer's own seats."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return len(self.body) + MARK_BYTES * len(self.own)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, and for how long it may be shown."""

    event: Event
    picture: RenderedMap
    entries: int | None
    """How many entries the event had before it was read; None when nobody could count them."""
    began: float
    ends: float


class _Reading:
    """One reading of a map, that many may wait for."""

    def __init__(self, *, previous: asyncio.Task[Snapshot] | None) -> None:
        self.previous = previous
        self.begun = False
        self.task: asyncio.Task[Snapshot]


class SeatMapCache:
    """One per process. Everything here happens in the event loop's thread but for the wording of large maps."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        word: Callable[[Event, SeatMap], RenderedMap],
        bytes_max: int = BYTES_MAX,
        seconds_max: float = SECONDS_MAX,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = clock
        self._word = word
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._look_seconds = look_seconds
        self._kept: OrderedDict[EventId, Snapshot] = OrderedDict()
        self._bytes = 0
        self._readings: dict[EventId, _Reading] = {}
        self._overtaken: dict[EventId, asyncio.Task[Snapshot]] = {}
        self._turns = asyncio.Semaphore(READINGS_MAX)
        self._looking: asyncio.Task[None] | None = None
        self._looked = float("-inf")
        self._engine_listens = False

    async def show(self, event_id: EventId) -> Snapshot:
        """The map as it is now, or was a moment ago as far as other processes are concerned."""
        if not self._engine_listens:
            # From the first map on: what is never shown is not followed.
            self._engine_listens = True
            self._engine.listen(self.hear)
        kept = self._find(event_id)
        if kept and max(kept.began, self._looked) + self._look_seconds <= self._time():
            await self._look_around()
            kept = self._find(event_id)
        return kept if kept is not None else await asyncio.shield(self._join(event_id).task)

    def hear(self, changes: Changes) -> None:
        """Something was committed by this process. Called before anybody is told of it."""
        if not self._kept and not self._readings:
            return
        for event_id in {entry.event_id for entry in changes.entries}:
            self._drop(event_id)
            self._overtake(event_id)

    def _time(self) -> float:
        """A clock that never steps, and that tests can push."""
        return time.monotonic() + self._clock.offset.total_seconds()

    def _find(self, event_id: EventId) -> Snapshot | None:
        kept = self._kept.get(event_id)
        if kept is None:
            return None
        if self._time() >= kept.ends:
            self._drop(event_id)
            return None
        self._kept.move_to_end(event_id)
        return kept

    def _keep(self, snapshot: Snapshot) -> None:
        """The one that nobody asked for the longest goes first; one that is larger than all room is not kept."""
        self._drop(snapshot.event.id)
        if snapshot.picture.size > self._bytes_max:
            return
        self._kept[snapshot.event.id] = snapshot
        self._bytes += snapshot.picture.size
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, event_id: EventId) -> None:
        dropped = self._kept.pop(event_id, None)
        if dropped:
            self._bytes -= dropped.picture.size

    def _overtake(self, event_id: EventId) -> None:
        """A reading that has begun may have missed what was just committed: nobody may join it, nor keep it."""
        reading = self._readings.get(event_id)
        if reading and reading.begun:
            del self._readings[event_id]
            self._overtaken[event_id] = reading.task
            reading.task.add_done_callback(lambda task: self._forget(event_id, task))

    def _forget(self, event_id: EventId, task: asyncio.Task[Snapshot]) -> None:
        if self._overtaken.get(event_id) is task:
            del self._overtaken[event_id]

    async def _look_around(self) -> None:
        """One question about all that is kept, shared by all who need it answered."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(_hear_out)
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        began = self._time()
        for event_id in [event_id for event_id, kept in self._kept.items() if began >= kept.ends]:
            self._drop(event_id)
        seen = dict(self._kept)
        entries = await self._store.outbox.count(seen.keys()) if seen else {}
        for event_id, snapshot in seen.items():
            # Where nobody can count them, nobody can tell whether something happened.
            unmoved = snapshot.entries is not None and entries[event_id] == snapshot.entries
            if not unmoved and self._kept.get(event_id) is snapshot:
                self._drop(event_id)
        self._looked = began

    def _join(self, event_id: EventId) -> _Reading:
        """The reading under way, or a new one, which waits for the one that was overtaken."""
        reading = self._readings.get(event_id)
        if reading is None:
            reading = self._readings[event_id] = _Reading(previous=self._overtaken.get(event_id))
            reading.task = asyncio.create_task(self._read(event_id, reading))
            reading.task.add_done_callback(_hear_out)
        return reading

    async def _read(self, event_id: EventId, reading: _Reading) -> Snapshot:
        try:
            if reading.previous:
                await asyncio.wait({reading.previous})
                reading.previous = None
            async with self._turns:
                reading.begun = True
                snapshot = await self._take(event_id)
            if self._readings.get(event_id) is reading:
                self._keep(snapshot)
            return snapshot
        finally:
            if self._readings.get(event_id) is reading:
                del self._readings[event_id]

    async def _take(self, event_id: EventId) -> Snapshot:
        """The entries are counted first, so that whatever is committed from here on makes a difference."""
        began = self._time()
        entries = (await self._store.outbox.count([event_id]))[event_id]
        event = await self._store.read_event(event_id)
        if event is None:
            raise EventUnknown(event_id=event_id)
        seen = await self._store.read_map(event_id)
        word = partial(self._word, event, seen)
        picture = word() if len(seen.seats) <= SEATS_AT_ONCE_MAX else await asyncio.to_thread(word)
        # Beyond its horizon a map does not know which holds run out.
        life = min(self._seconds_max, MAP_HORIZON.total_seconds())
        if seen.ends_at:
            life = min(life, (seen.ends_at - seen.now).total_seconds())
        return Snapshot(event=event, picture=picture, entries=entries, began=began, ends=began + life)


def _hear_out(task: asyncio.Task[Snapshot] | asyncio.Task[None]) -> None:
    """Those who waited may all have left; a failure that nobody hears of is then no error."""
    if not task.cancelled():
        task.exception()
