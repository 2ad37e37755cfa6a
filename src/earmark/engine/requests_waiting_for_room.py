"""The requests that need units which lapsed holds may still count.

Before a pool or a buyer's limit refuses, its lapsed holds are ended. That takes a transaction for each pool and buyer,
so it is done beside the batches, in a task of its own: a request that needs no room never waits for it. Where several
pools or buyers are in need, one read finds first which of them have a lapsed hold at all. Most have none.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

from earmark.engine.commands_and_results import Command, TryAgain
from earmark.engine.start_and_track_task import start_task
from earmark.engine.verbs.expire import CONTENDED_SECONDS, Room
from earmark.observability import logs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.engine.queued_request import QueuedRequest
    from earmark.errors import Refusal

A = TypeVar("A", bound=Command)

log = logs.get()

ROUND_MAX = 200
"""How many requests are looked at in one round: those that came later wait for the rest of it."""
NOTHING_DUE = Room(ended=0, units=0, passed_over=False)


class RequestsWaitingForRoom(Generic[A]):
    """Ends lapsed holds for requests of one queue, round after round, and queues the requests again."""

    def __init__(
        self,
        *,
        relieve: Callable[..., Awaitable[Room]],
        have_due: Callable[..., Awaitable[Sequence[bool]]],
        lock_seconds: Callable[[], float],
        enter: Callable[[QueuedRequest[A], float], None],
    ) -> None:
        self._relieve = relieve
        self._have_due = have_due
        self._lock_seconds = lock_seconds
        self._enter = enter
        """Queues a request again: as the first, or after so many seconds."""
        self._waiting: list[tuple[QueuedRequest[A], TryAgain]] = []
        self._in_round = 0
        self.tasks: set[asyncio.Task[None]] = set()
        """The task that makes room, while one is needed."""

    def __len__(self) -> int:
        return len(self._waiting) + self._in_round

    def add(self, requests: Sequence[tuple[QueuedRequest[A], TryAgain]]) -> None:
        """Make room for these, and queue them again then."""
        self._waiting += requests
        if requests and not self.tasks:
            start_task(self.tasks, self._make_rounds)

    async def _make_rounds(self) -> None:
        logs.request_id.set(None)
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:ROUND_MAX], self._waiting[ROUND_MAX:]
                self._in_round = len(taken)
                await self._round(taken)
        finally:
            self._in_round = 0

    async def _round(self, taken: Sequence[tuple[QueuedRequest[A], TryAgain]]) -> None:
        """One read about all that is in need, then one relief for each pool and buyer that has lapsed holds."""
        in_need: dict[tuple[type, object], list[tuple[QueuedRequest[A], TryAgain]]] = {}
        for pair in taken:
            in_need.setdefault(key_of(pair[1].relief), []).append(pair)
        due = await self._which_have_due([relief for _, relief in in_need])
        if due is None:
            self._answer(taken, None)
            return
        self._answer([pair for pair in taken if not due[key_of(pair[1].relief)]], NOTHING_DUE)
        for key, pairs in in_need.items():
            if due[key] and (waiting := [pair for pair in pairs if not pair[0].result.done()]):
                room = await self._make_room(key[1], units=sum(outcome.short for _, outcome in waiting))
                self._answer(waiting, room)

    async def _which_have_due(self, reliefs: Sequence[object]) -> dict[tuple[type, object], bool] | None:
        """None where the read failed. Where there is only one, making room finds it out without a read."""
        if len(reliefs) == 1:
            return {key_of(reliefs[0]): True}
        try:
            found = await self._have_due(reliefs, lock_seconds=self._lock_seconds())
        except Exception as broken:  # noqa: BLE001 (whatever it is, no request in this queue caused it)
            log.warning("expire", outcome="failed", reliefs=len(reliefs), because=repr(broken))
            return None
        return {key_of(relief): due for relief, due in zip(reliefs, found, strict=True)}

    async def _make_room(self, relief: object, *, units: int) -> Room | None:
        """None where it failed: then the requests that need room are refused for now, and the queue goes on."""
        try:
            return await self._relieve(relief, units=units, lock_seconds=self._lock_seconds())
        except Exception as broken:  # noqa: BLE001 (whatever it is, no request in this queue caused it)
            log.warning("expire", outcome="failed", relief=repr(relief), because=repr(broken))
            return None

    def _answer(self, pairs: Sequence[tuple[QueuedRequest[A], TryAgain]], room: Room | None) -> None:
        """Queue them again, in their order; refused are only those that no room could be made for at present."""
        for request, outcome in reversed(pairs):
            if room is None:
                request.fail(for_now(outcome.refusal))
                continue
            delay = outcome.delay_seconds
            if room.is_dry:
                request.dry |= {key_of(outcome.relief)}
            elif not room.ended:
                delay = CONTENDED_SECONDS
            self._enter(request, delay)


def key_of(relief: object) -> tuple[type, object]:
    """A pool and a buyer's total may be equal as tuples."""
    return type(relief), relief


def for_now(refusal: Refusal) -> Refusal:
    """The same refusal, of a request that may succeed later: it is not known yet that nothing is left."""
    return dataclasses.replace(refusal, transient=True)  # type: ignore[type-var] # every refusal with a relief has it
