"""The requests that need units which lapsed holds may still count.

Before a pool or a buyer's limit refuses, its lapsed holds are ended. That takes a transaction for each pool and buyer,
so it is done beside the batches, in tasks of its own: a request that needs no room never waits for it. Where several
pools or buyers are in need, one read finds first which of them have a lapsed hold at all. Most have none.

A pool's units are for the request that comes first, so pools are served before buyers. Ending many holds takes several
commits, and each frees units that later requests can see: so after each the first requests are queued again at once, as
many as that freed units for. The requests of several buyers take nothing from each other: they are queued again
together, to share a batch.

Where holds of one event cannot be ended, for a row that they need stays locked, each try takes long and brings nothing.
So one task at most tries those events, and the others serve the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.domain.id_types import PoolRef, TotalRef
from earmark.engine.commands_and_results import Command, TryAgain
from earmark.engine.queued_request import QueuedRequest
from earmark.engine.start_and_track_task import start_task
from earmark.engine.verbs.expire import CONTENDED_SECONDS, Room
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from earmark.errors import Refusal

A = TypeVar("A", bound=Command)
RequestWithoutRoom = tuple[QueuedRequest[A], TryAgain]
Key = tuple[type, object]

log = logs.get()

READ_MAX = 200
"""How many requests are looked at by one read: those that came later wait for the next."""
MAKE_ROOM_AT_ONCE_MAX = 3
"""For how many pools and buyers room is made at once: each takes a connection."""
TOGETHER_SECONDS = 0.05
"""How long the requests of buyers with room wait for those of others, to share a batch with them."""
LOCKED_SECONDS = 5.0
"""For how long an event counts as one whose holds cannot be ended, once that failed."""
NOTHING_DUE = Room(ended=0, units=0, passed_over=False)


class RequestsWaitingForRoom(Generic[A]):
    """Ends lapsed holds for requests of one queue, of a few pools and buyers at once, and queues the requests again."""

    def __init__(
        self,
        *,
        make_room_in: Callable[..., Awaitable[Room]],
        have_due: Callable[..., Awaitable[Sequence[bool]]],
        lock_seconds: Callable[[], float],
        enter: Callable[[Sequence[tuple[QueuedRequest[A], float]]], None],
        waiting_max: int,
    ) -> None:
        self._make_room_in = make_room_in
        self._have_due = have_due
        self._lock_seconds = lock_seconds
        self._enter = enter
        """Queues requests again: each as one of the first, or after so many seconds."""
        self._waiting_max = waiting_max
        self._count = 0
        self._unread: list[RequestWithoutRoom[A]] = []
        self._pools: dict[Key, list[RequestWithoutRoom[A]]] = {}
        """For each pool in which holds have lapsed, the requests that need its units."""
        self._buyers: dict[Key, list[RequestWithoutRoom[A]]] = {}
        """For each buyer whose holds have lapsed, that buyer's requests."""
        self._making_room_in: set[Key] = set()
        self._freed: list[tuple[list[RequestWithoutRoom[A]], Room | None]] = []
        """The requests of buyers for whom room was made, until they are queued again together."""
        self._freed_timer: asyncio.TimerHandle | None = None
        self._locked_until: dict[object, float] = {}
        """The events in which lapsed holds could not be ended just now."""
        self._readers: set[asyncio.Task[None]] = set()
        self._room_makers: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that make room, while some is needed."""
        return self._readers | self._room_makers

    def add(self, requests: Sequence[RequestWithoutRoom[A]]) -> None:
        """Make room for these, and queue them again then. Those that are too many are refused for now."""
        for request, outcome in requests:
            if self._count >= self._waiting_max:
                self._drop_answered()
            if self._count >= self._waiting_max:
                request.fail(for_now(outcome.refusal))
                continue
            self._unread.append((request, outcome))
            self._count += 1
        if self._unread and not self._readers:
            start_task(self._readers, self._read)

    def _drop_answered(self) -> None:
        for requests in (self._unread, *self._pools.values(), *self._buyers.values()):
            waiting = [pair for pair in requests if not pair[0].result.done()]
            self._count -= len(requests) - len(waiting)
            requests[:] = waiting

    async def _read(self) -> None:
        """One read about all that came meanwhile; room is made only where holds have lapsed."""
        logs.request_id.set(None)
        while self._unread:
            taken, self._unread = self._unread[:READ_MAX], self._unread[READ_MAX:]
            in_need: dict[Key, list[RequestWithoutRoom[A]]] = {}
            for pair in taken:
                in_need.setdefault(key_of(pair[1].full), []).append(pair)
            due = await self._which_have_due([ref for _, ref in in_need])
            if due is None:
                self._answer(taken, None)
                continue
            self._answer([pair for pair in taken if not due[key_of(pair[1].full)]], NOTHING_DUE)
            for key, requests in in_need.items():
                if due[key]:
                    self._waiting_for(key).setdefault(key, []).extend(requests)
            for _ in range(min(len(in_need), MAKE_ROOM_AT_ONCE_MAX - len(self._room_makers))):
                start_task(self._room_makers, self._make_room_in_turn)

    async def _which_have_due(self, refs: Sequence[object]) -> dict[Key, bool] | None:
        """None where the read failed. Where there is only one, making room finds it out without a read."""
        if len(refs) == 1:
            return {key_of(refs[0]): True}
        try:
            found = await self._have_due(refs, lock_seconds=self._lock_seconds())
        except Exception as broken:  # noqa: BLE001 (whatever it is, no request in this queue caused it)
            log.warning("expire", outcome="failed", refs=len(refs), because=repr(broken))
            return None
        return {key_of(ref): due for ref, due in zip(refs, found, strict=True)}

    def _waiting_for(self, key: Key) -> dict[Key, list[RequestWithoutRoom[A]]]:
        return self._buyers if key[0] is TotalRef else self._pools

    async def _make_room_in_turn(self) -> None:
        """One pool or buyer after the other, until none is left."""
        logs.request_id.set(None)
        while (key := self._next()) is not None:
            is_pool = self._waiting_for(key) is self._pools
            requests = self._waiting_for(key).pop(key)
            room: Room | None = NOTHING_DUE
            if waiting := [outcome.short for request, outcome in requests if not request.result.done()]:
                self._making_room_in.add(key)
                freed_now = self._serve_first(requests) if is_pool else no_step
                try:
                    room = await self._make_room(key[1], units=sum(waiting), freed_now=freed_now)
                finally:
                    self._making_room_in.discard(key)
                self._note_if_locked(key, failed=room is None)
            if is_pool:
                self._answer(requests, room)
            else:
                self._freed.append((requests, room))
                if self._freed_timer is None:
                    loop = asyncio.get_running_loop()
                    self._freed_timer = loop.call_later(TOGETHER_SECONDS, self._answer_freed)
            if not self._buyers:
                self._answer_freed()

    def _serve_first(self, requests: list[RequestWithoutRoom[A]]) -> Callable[[int], None]:
        """Takes the first requests away, after each step, that the units freed so far are enough for, and queues them.

        At the end of all steps, a later request would have had those units.
        """
        unused = 0

        def serve(units: int) -> None:
            nonlocal unused
            unused += units
            served = 0
            for request, outcome in requests:
                needed = 0 if request.result.done() else outcome.short
                if needed > unused:
                    break
                unused -= needed
                served += 1
            first, requests[:] = requests[:served], requests[served:]
            if first:
                self._answer(first, Room(ended=1, units=units, passed_over=False))

        return serve

    def _next(self) -> Key | None:
        """A pool before a buyer, and none for which room is being made already, or that waits for such an event."""
        shut = self._events_shut()
        keys = chain(self._pools, self._buyers)
        return next((key for key in keys if key not in self._making_room_in and event_of(key) not in shut), None)

    def _events_shut(self) -> Collection[object]:
        """All events whose holds cannot be ended, while one of them is tried."""
        if self._locked_until:
            now = asyncio.get_running_loop().time()
            self._locked_until = {event: until for event, until in self._locked_until.items() if until > now}
        one_is_tried = any(event_of(key) in self._locked_until for key in self._making_room_in)
        return self._locked_until if one_is_tried else ()

    def _note_if_locked(self, key: Key, *, failed: bool) -> None:
        if failed:
            self._locked_until[event_of(key)] = asyncio.get_running_loop().time() + LOCKED_SECONDS
        else:
            self._locked_until.pop(event_of(key), None)

    async def _make_room(self, ref: object, *, units: int, freed_now: Callable[[int], None]) -> Room | None:
        """None where it failed: then the requests that need room are refused for now, and the queue goes on."""
        try:
            return await self._make_room_in(ref, units=units, lock_seconds=self._lock_seconds(), freed_now=freed_now)
        except Exception as broken:  # noqa: BLE001 (whatever it is, no request in this queue caused it)
            log.warning("expire", outcome="failed", full=repr(ref), because=repr(broken))
            return None

    def _answer_freed(self) -> None:
        """Queue the requests of buyers again together: no other buyer is left to wait for, or they waited enough."""
        if self._freed_timer is not None:
            self._freed_timer.cancel()
            self._freed_timer = None
        freed, self._freed = self._freed, []
        self._enter([pair for requests, room in freed for pair in self._to_enter(requests, room)])

    def _answer(self, requests: Sequence[RequestWithoutRoom[A]], room: Room | None) -> None:
        """Queue them again, in their order; refused are only those that no room could be made for at present."""
        self._enter(self._to_enter(requests, room))

    def _to_enter(
        self, requests: Sequence[RequestWithoutRoom[A]], room: Room | None
    ) -> list[tuple[QueuedRequest[A], float]]:
        self._count -= len(requests)
        again = []
        for request, outcome in requests:
            if room is None:
                request.fail(for_now(outcome.refusal))
                continue
            delay = outcome.delay_seconds
            if room.has_nothing_due:
                request.nothing_due_in |= {key_of(outcome.full)}
            elif not room.ended:
                delay = CONTENDED_SECONDS
            again.append((request, delay))
        return again


def no_step(_: int) -> None:
    """What a step freed is of no interest: the requests are queued again after the last."""


def event_of(key: Key) -> object:
    """The event of this pool or this buyer."""
    ref = key[1]
    return ref.event_id if isinstance(ref, PoolRef | TotalRef) else ref


def key_of(ref: object) -> Key:
    """A pool and a buyer's total may be equal as tuples."""
    return type(ref), ref


def for_now(refusal: Refusal) -> Refusal:
    """The same refusal, of a request that may succeed later: it is not known yet that nothing is left."""
    return dataclasses.replace(refusal, transient=True)  # type: ignore[type-var] # every refusal of a full pool or buyer has it
