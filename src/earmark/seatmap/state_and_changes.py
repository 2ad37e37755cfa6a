"""The scene: what the followers of one event are shown, in words, and what changed when.

It is told how seats are, compares, and says what to send. It reads nothing itself. Every change makes a new revision:
a reader that has seen revision r is sent what changed since, in one frame, however many revisions that were. So nobody
needs a queue, and whoever is slow gets fewer and larger frames.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.domain.ids import Buyer, PoolId, SeatId
from earmark.domain.state_machine import State
from earmark.seatmap import sse_frames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import SeatMap, SeatOnMap
    from earmark.seatmap.cache import RenderedMap

STEPS_MAX = 1000
DELTA_MAX = 100
"""More seats than these, and more than half of all, are sent as a whole map."""
NAMED_MAX = 50_000
"""So many names of seats are remembered, over all steps, for those who were away."""


class SeatPart(msgspec.Struct, frozen=True, gc=False):
    """A seat in words, as it is for a shop, and the buyer to whom it is theirs."""

    body: bytes
    owner: Buyer | None = None


class MapRenderer(Protocol):
    """How the door words it."""

    def part(self, on_map: SeatOnMap, *, now: datetime) -> SeatPart:
        """A seat."""
        ...

    def pool(self, pool: Pool) -> bytes:
        """A pool."""
        ...

    def paint(self, event: Event, parts: Sequence[SeatPart], pools: Sequence[bytes]) -> RenderedMap:
        """Seats and pools as one picture."""
        ...

    def tell(self, picture: RenderedMap, buyer: Buyer | None, *, whole: bool) -> bytes:
        """The picture as JSON, for a buyer or for a shop; a whole one has its version in front."""
        ...


class MapChange(msgspec.Struct, frozen=True, gc=False):
    """What one published entry changed."""

    revision: int
    number: int
    seats: frozenset[SeatId]
    """Which changed, and which the entries named."""
    pools: frozenset[PoolId]


class Frame:
    """Something to send, worded once for all but those whose own seats are in it."""

    def __init__(self, kind: str, *, number: int, picture: RenderedMap, brush: MapRenderer) -> None:
        self._kind = kind
        self._number = number
        self._picture = picture
        self._brush = brush
        self._shared: bytes | None = None

    def for_(self, buyer: Buyer | None) -> bytes:
        """As this buyer is to see it."""
        if buyer is not None and buyer in self._picture.own:
            return self._word(buyer)
        if self._shared is None:
            self._shared = self._word(None)
        return self._shared

    def _word(self, buyer: Buyer | None) -> bytes:
        told = self._brush.tell(self._picture, buyer, whole=self._kind == "snapshot")
        return sse_frames.frame(self._kind, number=self._number, data=told)


class MapState:
    """Of one event, in one process."""

    def __init__(self, event: Event, seen: SeatMap, *, number: int, brush: MapRenderer) -> None:
        self.event = event
        self.number = number
        """The newest entry that is included for certain; younger ones may be."""
        self.revision = 0
        self._brush = brush
        self._parts: dict[SeatId, SeatPart] = {}
        self._pools: dict[PoolId, bytes] = {}
        self._pointers: dict[SeatId, BookingId] = {}
        self._seats_of: dict[BookingId, set[SeatId]] = {}
        self._ends: dict[SeatId, datetime] = {}
        self._lapses: list[tuple[datetime, SeatId]] = []
        self._unswept: set[SeatId] = set()
        self._steps: deque[MapChange] = deque()
        self._named = 0
        self._oldest_number = number
        self._oldest_revision = 0
        self._frames: dict[int, Frame] = {}
        self._take(seen)

    def seats_of(self, booking_id: BookingId) -> Collection[SeatId]:
        """The seats that point to this booking, live or not."""
        return self._seats_of.get(booking_id, ())

    def due(self, now: datetime) -> set[SeatId]:
        """Seats whose holds have run out by now, each told once for each end."""
        due: set[SeatId] = set()
        while self._lapses and self._lapses[0][0] <= now:
            ends_at, seat_id = heapq.heappop(self._lapses)
            if self._ends.get(seat_id) == ends_at:
                del self._ends[seat_id]
                due.add(seat_id)
        return due

    def show(self, seen: SeatMap, *, named: Iterable[SeatId], number: int) -> bool:
        """How these seats and all pools are now, and up to which number; whether there is something to send.

        A seat that an entry names is told again even if it is as it was: it may have been read here before its entry
        had a number, and whoever came from another server, by number, has not seen that.
        """
        seats, pools = self._take(seen)
        seats |= {seat for seat in named if seat in self._parts}
        self.reach(number)
        if not seats and not pools:
            return False
        self.revision += 1
        self._frames.clear()
        self._remember(frozenset(seats), frozenset(pools))
        return True

    def reach(self, number: int) -> None:
        """Entries up to this number changed nothing that is shown."""
        if number > self.number:
            self.number = number
            self._frames.clear()

    def restart(self) -> None:
        """Entries were passed over: everybody gets the whole map."""
        self._steps.clear()
        self._frames.clear()
        self._named = 0
        self.revision += 1
        self._oldest_number, self._oldest_revision = self.number, self.revision

    def snapshot(self) -> Frame:
        """The whole map."""
        return self._frame(-1, "snapshot", self._parts, self._pools)

    def since(self, revision: int) -> Frame | None:
        """What changed since a revision; None when nothing did."""
        if revision >= self.revision:
            return None
        if revision < self._oldest_revision:
            return self.snapshot()
        if known := self._frames.get(revision):
            return known
        later = [step for step in self._steps if step.revision > revision]
        return self._delta(
            {seat for step in later for seat in step.seats},
            {pool for step in later for pool in step.pools},
            key=revision,
        )

    def after(self, number: int, *, also: Collection[SeatId] = ()) -> Frame | None:
        """What changed after an entry, and perhaps a little more; None when it is not known any more.

        A change that the clock made has no number, so those that nobody has swept up yet are told again.
        """
        if number > self.number or number < self._oldest_number:
            return None
        seats = {seat for step in self._steps if step.number >= number for seat in step.seats}
        return self._delta(seats | self._unswept | set(also), self._pools.keys(), key=None)

    @property
    def oldest(self) -> int:
        """Everything after this entry is remembered."""
        return self._oldest_number

    def _delta(self, seats: Collection[SeatId], pools: Collection[PoolId], *, key: int | None) -> Frame:
        if len(seats) > DELTA_MAX and 2 * len(seats) > len(self._parts):
            return self.snapshot()
        parts = {seat: self._parts[seat] for seat in sorted(seats) if seat in self._parts}
        return self._frame(key, "delta", parts, {pool: self._pools[pool] for pool in sorted(pools)})

    def _frame(self, key: int | None, kind: str, parts: dict[SeatId, SeatPart], pools: dict[PoolId, bytes]) -> Frame:
        if key is not None and (known := self._frames.get(key)):
            return known
        picture = self._brush.paint(self.event, list(parts.values()), list(pools.values()))
        made = Frame(kind, number=self.number, picture=picture, brush=self._brush)
        if key is not None:
            self._frames[key] = made
        return made

    def _take(self, seen: SeatMap) -> tuple[set[SeatId], set[PoolId]]:
        """Keep what is new, and say what that was."""
        seats: set[SeatId] = set()
        for on_map in seen.seats:
            seat_id = on_map.seat.id
            part = self._brush.part(on_map, now=seen.now)
            if self._parts.get(seat_id) != part:
                self._parts[seat_id] = part
                seats.add(seat_id)
            self._point(seat_id, on_map.owner_id)
            self._time(seat_id, on_map, now=seen.now)
        pools: set[PoolId] = set()
        for pool in seen.pools:
            told = self._brush.pool(pool)
            if self._pools.get(pool.id) != told:
                self._pools[pool.id] = told
                pools.add(pool.id)
        return seats, pools

    def _point(self, seat_id: SeatId, owner_id: BookingId | None) -> None:
        before = self._pointers.get(seat_id)
        if before == owner_id:
            return
        if before is not None:
            mates = self._seats_of[before]
            mates.discard(seat_id)
            if not mates:
                del self._seats_of[before]
        if owner_id is None:
            del self._pointers[seat_id]
        else:
            self._pointers[seat_id] = owner_id
            self._seats_of.setdefault(owner_id, set()).add(seat_id)

    def _time(self, seat_id: SeatId, on_map: SeatOnMap, *, now: datetime) -> None:
        ends_at = on_map.owner_expires_at if on_map.owner_state is State.HELD else None
        lapsed = ends_at is not None and ends_at <= now
        (self._unswept.add if lapsed else self._unswept.discard)(seat_id)
        if ends_at is None or lapsed:
            self._ends.pop(seat_id, None)
        elif self._ends.get(seat_id) != ends_at:
            self._ends[seat_id] = ends_at
            heapq.heappush(self._lapses, (ends_at, seat_id))

    def _remember(self, seats: frozenset[SeatId], pools: frozenset[PoolId]) -> None:
        self._steps.append(MapChange(revision=self.revision, number=self.number, seats=seats, pools=pools))
        self._named += len(seats)
        while len(self._steps) > STEPS_MAX or self._named > NAMED_MAX:
            gone = self._steps.popleft()
            self._named -= len(gone.seats)
            # Others may carry the same number, and who has seen that number has not seen them all.
            self._oldest_number, self._oldest_revision = gone.number + 1, gone.revision
