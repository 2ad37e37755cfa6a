"""The cache of seat maps: each event's map is read and encoded once for all requests. It never decides a sale.

A snapshot is served until something changes it:

    a commit of this process     drops it at once: the engine calls `on_commit` with what every commit wrote
    a commit of another one      shows in the outbox; before a snapshot is served, and at most every quarter of a
                                 second, one query counts the entries of all cached events
    the clock                    ends it when the first hold on it runs out
    anything else                hand-written SQL, say: a snapshot is served for five seconds at most

Requests that arrive while a map is being read share that reading, unless something was committed since it began: then
they get the next reading, and the first is not kept. So a client that has the response to a commit of this process sees
that commit. An event has one reading at a time, however fast it changes and however many requests there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.id_types import Buyer
from earmark.engine.ports.store import MAP_HORIZON
from earmark.errors import EventUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.id_types import EventId
    from earmark.engine.engine import Engine
    from earmark.engine.ports.store import Changes, Clock, SeatMap

BYTES_MAX = 64 * 1024 * 1024
SECONDS_MAX = 5.0
CHECK_SECONDS = 0.25
READINGS_MAX = 2
"""Of different events at once: reading maps must leave connections for bookings."""
SEATS_AT_ONCE_MAX = 500
"""Larger maps are encoded in a thread, so that the event loop keeps serving other requests."""
MARK_BYTES = 250
"""About what remembering one owner costs."""


class RenderedMap(msgspec.Struct, frozen=True, kw_only=True):
    """A map as JSON, encoded once for all buyers. What differs between buyers is only marked in it."""

    version: str
    """Changes when anything on the map does."""
    body: bytes
    own: Mapping[Buyer, Sequence[int]] = {}
    """The positions in the body that differ for the owner of a seat."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return len(self.body) + MARK_BYTES * len(self.own)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered map, and for how long it may be served."""

    event: Event
    rendered: RenderedMap
    entries: int | None
    """How many entries the event had before it was read; None when the store could not count them."""
    began: float
    ends: float


class _MapReading:
    """One reading of a map, shared by all requests that wait for it."""

    def __init__(self, *, previous: asyncio.Task[Snapshot] | None) -> None:
        self.previous = previous
        self.begun = False
        self.task: asyncio.Task[Snapshot]


class SeatMapCache:
    """One per process. Everything here runs in the event loop's thread, except the encoding of large maps."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        render: Callable[[Event, SeatMap], RenderedMap],
        bytes_max: int = BYTES_MAX,
        seconds_max: float = SECONDS_MAX,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = clock
        self._render = render
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._check_seconds = check_seconds
        self._kept: OrderedDict[EventId, Snapshot] = OrderedDict()
        self._bytes = 0
        self._readings: dict[EventId, _MapReading] = {}
        self._overtaken: dict[EventId, asyncio.Task[Snapshot]] = {}
        self._turns = asyncio.Semaphore(READINGS_MAX)
        self._checking: asyncio.Task[None] | None = None
        self._checked = float("-inf")
        self._engine_listens = False

    async def show(self, event_id: EventId) -> Snapshot:
        """The map as it is now; commits of other processes show at most `check_seconds` late."""
        if not self._engine_listens:
            # From the first map on: what is never shown is not followed.
            self._engine_listens = True
            self._engine.listen(self.on_commit)
        kept = self._find(event_id)
        if kept and max(kept.began, self._checked) + self._check_seconds <= self._time():
            await self._check_for_changes()
            kept = self._find(event_id)
        return kept if kept is not None else await asyncio.shield(self._join(event_id).task)

    def on_commit(self, changes: Changes) -> None:
        """Drop the maps that a commit of this process changed. The engine calls this before it answers the request."""
        if not self._kept and not self._readings:
            return
        for event_id in {entry.event_id for entry in changes.entries}:
            self._drop(event_id)
            self._overtake(event_id)

    def _time(self) -> float:
        """A monotonic clock that tests can move forward."""
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
        """Cache it, and drop the least recently used when there is no room; one larger than all room is not kept."""
        self._drop(snapshot.event.id)
        if snapshot.rendered.size > self._bytes_max:
            return
        self._kept[snapshot.event.id] = snapshot
        self._bytes += snapshot.rendered.size
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, event_id: EventId) -> None:
        dropped = self._kept.pop(event_id, None)
        if dropped:
            self._bytes -= dropped.rendered.size

    def _overtake(self, event_id: EventId) -> None:
        """Detach a reading that has begun, as it may have missed the commit: it is neither joined nor kept."""
        reading = self._readings.get(event_id)
        if reading and reading.begun:
            del self._readings[event_id]
            self._overtaken[event_id] = reading.task
            reading.task.add_done_callback(lambda task: self._forget(event_id, task))

    def _forget(self, event_id: EventId, task: asyncio.Task[Snapshot]) -> None:
        if self._overtaken.get(event_id) is task:
            del self._overtaken[event_id]

    async def _check_for_changes(self) -> None:
        """Run one query about all cached events, shared by all requests that need it."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._drop_changed())
            self._checking.add_done_callback(_ignore_failure)
        await asyncio.shield(self._checking)

    async def _drop_changed(self) -> None:
        began = self._time()
        for event_id in [event_id for event_id, kept in self._kept.items() if began >= kept.ends]:
            self._drop(event_id)
        seen = dict(self._kept)
        entries = await self._store.outbox.count(seen.keys()) if seen else {}
        for event_id, snapshot in seen.items():
            # Without a count it is not known whether something happened.
            unmoved = snapshot.entries is not None and entries[event_id] == snapshot.entries
            if not unmoved and self._kept.get(event_id) is snapshot:
                self._drop(event_id)
        self._checked = began

    def _join(self, event_id: EventId) -> _MapReading:
        """The reading under way, or a new one, which waits for the one that was overtaken."""
        reading = self._readings.get(event_id)
        if reading is None:
            reading = self._readings[event_id] = _MapReading(previous=self._overtaken.get(event_id))
            reading.task = asyncio.create_task(self._read(event_id, reading))
            reading.task.add_done_callback(_ignore_failure)
        return reading

    async def _read(self, event_id: EventId, reading: _MapReading) -> Snapshot:
        try:
            if reading.previous:
                await asyncio.wait({reading.previous})
                reading.previous = None
            async with self._turns:
                reading.begun = True
                snapshot = await self._read_snapshot(event_id)
            if self._readings.get(event_id) is reading:
                self._keep(snapshot)
            return snapshot
        finally:
            if self._readings.get(event_id) is reading:
                del self._readings[event_id]

    async def _read_snapshot(self, event_id: EventId) -> Snapshot:
        """Read and encode the map. Entries are counted first, so that every later commit changes the count."""
        began = self._time()
        entries = (await self._store.outbox.count([event_id]))[event_id]
        event = await self._store.read_event(event_id)
        if event is None:
            raise EventUnknown(event_id=event_id)
        seen = await self._store.read_map(event_id)
        render = partial(self._render, event, seen)
        rendered = render() if len(seen.seats) <= SEATS_AT_ONCE_MAX else await asyncio.to_thread(render)
        # Beyond its horizon a map does not know which holds run out.
        life = min(self._seconds_max, MAP_HORIZON.total_seconds())
        if seen.ends_at:
            life = min(life, (seen.ends_at - seen.now).total_seconds())
        return Snapshot(event=event, rendered=rendered, entries=entries, began=began, ends=began + life)


def _ignore_failure(task: asyncio.Task[Snapshot] | asyncio.Task[None]) -> None:
    """All requests that waited may have been cancelled; asyncio must not log the failure of their task then."""
    if not task.cancelled():
        task.exception()
