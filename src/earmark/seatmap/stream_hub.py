"""The hub: all readers in this process that follow an event live, with one channel per event for any number of readers.

A reader has no queue. It remembers which revision of the map state it was sent; when it has taken that, it is sent what
changed since, in one frame that readers at the same revision share. A reader that takes nothing for too long is
dropped, and an idle one is sent a keep-alive.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Self

from earmark.errors import Outage, Overloaded
from earmark.observability import logs
from earmark.seatmap import sse_frames
from earmark.seatmap.follow_seat_changes import EventChannel

if TYPE_CHECKING:
    from types import TracebackType

    from earmark.domain.id_types import Buyer, EventId
    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.ports.store import Clock, Store
    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
    from earmark.seatmap.state_and_changes import MapRenderer

POLL_SECONDS = 0.25
"""How often entries are counted while there are no notifications from other processes."""
NOTIFIED_POLL_SECONDS = 5.0
"""How often while there are: a lost message may only delay."""
TICK_SECONDS = 1.0
LIFE_SECONDS_MAX = 3600.0
"""After so long a reader has to reconnect and authenticate again."""
RETRY_SECONDS = (0.5, 3.0)
"""Readers that are disconnected together reconnect at different times."""
STOPPING = "stopping"
RENEW = "renew"
CREDENTIAL_ENDED = "credential_ended"
"""The reader's credential has ended: the key was revoked, or the token has expired."""

log = logs.get()


class Reader:
    """One client that follows an event: `async with reader: async for data in reader: …`. Nothing waits for it."""

    def __init__(
        self,
        hub: StreamHub,
        channel: EventChannel,
        *,
        buyer: Buyer | None,
        first: bytes,
        now: float,
        caller: str | None = None,
        address: str | None = None,
    ) -> None:
        self.channel = channel
        self.caller = caller
        self.address = address
        self.stalled = False
        self.sending_since: float | None = None
        self._hub = hub
        self._buyer = buyer
        self._first: bytes | None = first
        self._revision = channel.map_state.revision
        self._began = self._sent = now
        self._end: sse_frames.StreamEnd | None = None
        self._at_once = False
        self._until: float | None = None
        self._keep_alive = False
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone = True
        self._hub.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self.sending_since = None
        while (data := self._next()) is None:
            if self._gone:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self.sending_since = self._sent = time.monotonic()
        return data

    def wake(self) -> None:
        """Let the reader check whether there is something to send."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """End the iteration: the client has disconnected."""
        self._gone = True
        self.wake()

    def stay(self, seconds: float | None) -> None:
        """End the stream in so many seconds, when the reader's credential expires; None if it does not expire."""
        self._until = None if seconds is None else time.monotonic() + seconds

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """Send one last event with the reason; `at_once` sends it before changes that were not sent yet."""
        self._at_once = self._at_once or at_once
        pause = round(random.uniform(*RETRY_SECONDS), 2)  # noqa: S311 (jitter, not a secret)
        self._end = self._end or sse_frames.StreamEnd(reason=reason, retry_seconds=pause)
        self.wake()

    def tick(self, now: float, *, heartbeat_seconds: float, stall_seconds: float) -> None:
        """Called about once a second: drop a reader that takes nothing, end one that is due, or send a keep-alive."""
        if self.sending_since is not None:
            if now - self.sending_since >= stall_seconds and self._task is not None and not self.stalled:
                self.stalled = True
                self._task.cancel()
        elif self._until is not None and now >= self._until:
            self.end(CREDENTIAL_ENDED, at_once=True)
        elif now - self._began >= self._hub.life_seconds_max:
            self.end(RENEW)
        elif now - self._sent >= heartbeat_seconds:
            self._keep_alive = True
            self.wake()

    def _next(self) -> bytes | None:
        """The next data to send, or None. A keep-alive is only sent when there is nothing else."""
        if self._gone:
            return None
        if self._end is not None and self._at_once:
            self._gone = True
            return sse_frames.last(self._end)
        keep_alive, self._keep_alive = self._keep_alive, False
        map_state = self.channel.map_state
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if frame := map_state.since(self._revision):
            self._revision = map_state.revision
            return frame.for_(self._buyer)
        if self._end is not None:
            self._gone = True
            return sse_frames.last(self._end)
        return sse_frames.keep_alive(number=map_state.number) if keep_alive else None


class StreamHub:
    """One per process. Everything here runs in the event loop's thread, except the encoding of large maps."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        renderer: MapRenderer,
        feed: EntryFeed,
        heartbeat_seconds: float = 15.0,
        stall_seconds: float = 30.0,
        readers_max: int = 10_000,
        life_seconds_max: float = LIFE_SECONDS_MAX,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._renderer = renderer
        self._feed = feed
        self._heartbeat_seconds = heartbeat_seconds
        self._stall_seconds = stall_seconds
        self._readers_max = readers_max
        self.life_seconds_max = life_seconds_max
        self._tick_seconds = min(tick_seconds, heartbeat_seconds, stall_seconds)
        self._channels: dict[EventId, EventChannel] = {}
        self._readers: dict[EventId, set[Reader]] = {}
        self._joining: Counter[EventId] = Counter()
        self._callers: Counter[str | None] = Counter()
        """How many streams each caller has, or is about to have."""
        self._addresses: Counter[str | None] = Counter()
        """How many streams each address has, or is about to have."""
        self._opening: dict[EventId, asyncio.Task[EventChannel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False
        self._notified = False
        self._counted_at = float("-inf")
        self.dropped = 0
        """How many readers took nothing for too long."""

    @property
    def readers(self) -> int:
        """How many readers this process has now."""
        return sum(map(len, self._readers.values()))

    def followed_by(self, caller: str) -> int:
        """How many streams a caller has, or is about to have."""
        return self._callers[caller]

    def followed_from(self, address: str) -> int:
        """How many streams go to an address, or are about to."""
        return self._addresses[address]

    def keep_room(self, readers_max: int) -> None:
        """Lower the limit on readers, so that connections are left for requests; it is never raised."""
        self._readers_max = min(self._readers_max, readers_max)

    async def join(
        self,
        event_id: EventId,
        *,
        mode: Mode,
        buyer: Buyer | None,
        after: int | None,
        caller: str | None = None,
        address: str | None = None,
    ) -> Reader | None:
        """Start following, after entry `after` if given; None when the event is not in the caller's mode."""
        if self._ended or self.readers + self._joining.total() >= self._readers_max:
            raise Overloaded
        self._joining[event_id] += 1
        self._callers[caller] += 1
        self._addresses[address] += 1
        reader: Reader | None = None
        try:
            channel = await self._open(event_id)
            if channel.map_state.event.mode != mode:
                return None
            frame = channel.map_state.snapshot() if after is None else await channel.resume(after)
            # From here to the end nothing else runs: later changes are sent to this reader.
            if self._ended:
                raise Overloaded
            first, now = frame.for_(buyer), time.monotonic()
            reader = Reader(self, channel, buyer=buyer, first=first, now=now, caller=caller, address=address)
            self._readers.setdefault(event_id, set()).add(reader)
            return reader
        finally:
            if reader is None:
                self._uncount(caller, address)
            self._joining[event_id] -= 1
            if not self._joining[event_id]:
                del self._joining[event_id]
            self._close_if_idle(event_id)

    def leave(self, reader: Reader) -> None:
        """Remove a reader; the last one of an event closes its channel."""
        event_id = reader.channel.event_id
        if reader.stalled:
            self.dropped += 1
            log.info("stream", outcome="stalled", event_id=event_id)
        self._readers.get(event_id, set()).discard(reader)
        self._uncount(reader.caller, reader.address)
        self._close_if_idle(event_id)

    def _uncount(self, caller: str | None, address: str | None) -> None:
        for counted, name in ((self._callers, caller), (self._addresses, address)):
            counted[name] -= 1
            if not counted[name]:
                del counted[name]

    def on_number(self, event_id: EventId, number: int) -> None:
        """Note that another process has numbered an entry of this event."""
        if channel := self._channels.get(event_id):
            channel.on_number(number)

    def on_connection(self, *, connected: bool) -> None:
        """Note whether notifications from other processes arrive. Entries are counted at once: some may be missed."""
        self._notified = connected
        self._counted_at = float("-inf")

    def end(self) -> None:
        """End all streams, each with a last event, and refuse new readers."""
        self._ended = True
        for readers in self._readers.values():
            for reader in readers:
                reader.end(STOPPING)

    async def close(self) -> None:
        """Close all readers and channels, and wait for their tasks."""
        self._ended = True
        for event_id in list(self._channels):
            for reader in self._readers.pop(event_id, set()):
                reader.close()
            self._close_if_idle(event_id)
        await asyncio.gather(*self._closing, *self._opening.values(), return_exceptions=True)

    async def _open(self, event_id: EventId) -> EventChannel:
        """The open channel of the event, or a new one that all joining readers share."""
        if channel := self._channels.get(event_id):
            return channel
        opening = self._opening.get(event_id)
        if opening is None:
            opening = asyncio.create_task(self._begin(event_id))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Done already where the event loop begins tasks at once and the store answered without a wait.
            if not opening.done():
                self._opening[event_id] = opening
        return await asyncio.shield(opening)

    async def _begin(self, event_id: EventId) -> EventChannel:
        channel = EventChannel(
            event_id,
            store=self._store,
            clock=self._clock,
            renderer=self._renderer,
            changed=lambda: self._wake(event_id),
        )
        try:
            await channel.open()
            self._channels[event_id] = channel
            if not self._tasks:
                doing = (self._follow(), self._poll(), self._tick())
                self._tasks = [asyncio.create_task(one) for one in doing]
            return channel
        finally:
            self._opening.pop(event_id, None)

    def _close_if_idle(self, event_id: EventId) -> None:
        """Close a channel without current or joining readers; with the last one, stop the hub's own tasks."""
        if self._readers.get(event_id) or event_id in self._joining:
            return
        self._readers.pop(event_id, None)
        closing = [channel.task] if (channel := self._channels.pop(event_id, None)) else []
        if not self._channels:
            closing += self._tasks
            self._tasks = []
        for task in closing:
            task.cancel()
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _wake(self, event_id: EventId) -> None:
        for reader in self._readers.get(event_id, ()):
            reader.wake()

    async def _follow(self) -> None:
        """Pass on what the relay of this process publishes."""
        async with self._feed.subscribe() as follower:
            async for numbered in follower:
                if channel := self._channels.get(numbered.entry.event_id):
                    channel.on_entry(numbered)

    async def _poll(self) -> None:
        """Find what other processes committed, with one query about all followed events.

        While that keeps failing it is asked ever more rarely: each failure is a line in the log.
        """
        pause = POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._notified and time.monotonic() - self._counted_at < NOTIFIED_POLL_SECONDS:
                continue
            self._counted_at = time.monotonic()
            pause = POLL_SECONDS if await self._can_count() else min(2 * pause, NOTIFIED_POLL_SECONDS)

    async def _can_count(self) -> bool:
        try:
            await self._count()
        except Outage as outage:
            log.warning("stream", outcome=outage.code, **outage.facts())
        except Exception:
            # Without this task no change of another process would be found until the last reader leaves.
            log.exception("stream", outcome="internal")
        else:
            return True
        return False

    async def _count(self) -> None:
        for event_id, entries in (await self._store.outbox.count(self._channels.keys())).items():
            if channel := self._channels.get(event_id):
                channel.on_count(entries)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            now = time.monotonic()
            for readers in list(self._readers.values()):
                for reader in list(readers):
                    reader.tick(now, heartbeat_seconds=self._heartbeat_seconds, stall_seconds=self._stall_seconds)
