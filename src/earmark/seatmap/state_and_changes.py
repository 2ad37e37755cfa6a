"""The map state of one event: what its followers were sent, encoded, and which seats changed in which revision.

It compares what was read with what was sent and makes the frames to send; it reads nothing itself. Every change makes a
new revision: a reader that has seen revision r is sent all changes since in one frame. So no reader needs a queue, and
a slow reader gets fewer and larger frames.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import Buyer, PoolId, SeatId
from earmark.seatmap import sse_frames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.id_types import BookingId
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import SeatMap, SeatOnMap
    from earmark.seatmap.rendered_seat_map_cache import RenderedMap

STEPS_MAX = 1000
DELTA_MAX = 100
"""More seats than these, and more than half of all, are sent as a whole map."""
NAMED_MAX = 50_000
"""So many names of seats are remembered, over all steps, for readers that reconnect."""


class SeatPart(msgspec.Struct, frozen=True, gc=False):
    """A seat as JSON, as the shop sees it, and the buyer who owns it."""

    body: bytes
    owner: Buyer | None = None


class MapRenderer(Protocol):
    """Encodes seats, pools and maps as the API shows them."""

    def part(self, on_map: SeatOnMap, *, now: datetime) -> SeatPart:
        """One seat as JSON, with its owner."""
        ...

    def pool(self, pool: Pool) -> bytes:
        """One pool as JSON."""
        ...

    def render(self, event: Event, parts: Sequence[SeatPart], pools: Sequence[bytes]) -> RenderedMap:
        """A map of these seats and pools."""
        ...

    def encode(self, rendered: RenderedMap, buyer: Buyer | None, *, whole: bool) -> bytes:
        """The map as one buyer or the shop sees it; a whole map begins with its version."""
        ...


class MapChange(msgspec.Struct, frozen=True, gc=False):
    """What one published entry changed."""

    revision: int
    number: int
    seats: frozenset[SeatId]
    """The seats that changed, and those that the entries named."""
    pools: frozenset[PoolId]


class Frame:
    """Data to send, encoded once for all buyers but those whose own seats are in it."""

    def __init__(self, kind: str, *, number: int, rendered: RenderedMap, renderer: MapRenderer) -> None:
        self._kind = kind
        self._number = number
        self._rendered = rendered
        self._renderer = renderer
        self._shared: bytes | None = None

    def for_(self, buyer: Buyer | None) -> bytes:
        """The frame as this buyer sees it; None is the shop."""
        if buyer is not None and buyer in self._rendered.own:
            return self._encode_for(buyer)
        if self._shared is None:
            self._shared = self._encode_for(None)
        return self._shared

    def _encode_for(self, buyer: Buyer | None) -> bytes:
        data = self._renderer.encode(self._rendered, buyer, whole=self._kind == "snapshot")
        return sse_frames.frame(self._kind, number=self._number, data=data)


class MapState:
    """What the followers of one event in one process have been sent."""

    def __init__(self, event: Event, seen: SeatMap, *, number: int, renderer: MapRenderer) -> None:
        self.event = event
        self.number = number
        """The newest entry that is included for certain; younger ones may be."""
        self.revision = 0
        self._renderer = renderer
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
        self._update(seen)

    @property
    def has_pools(self) -> bool:
        """Whether the event sells units too."""
        return bool(self._pools)

    def seats_of(self, booking_id: BookingId) -> Collection[SeatId]:
        """The seats that point to this booking, live or not."""
        return self._seats_of.get(booking_id, ())

    def due(self, now: datetime) -> set[SeatId]:
        """Seats whose holds have run out by now; each is returned once for each end."""
        due: set[SeatId] = set()
        while self._lapses and self._lapses[0][0] <= now:
            ends_at, seat_id = heapq.heappop(self._lapses)
            if self._ends.get(seat_id) == ends_at:
                del self._ends[seat_id]
                due.add(seat_id)
        return due

    def show(self, seen: SeatMap, *, named: Iterable[SeatId], number: int) -> bool:
        """Update these seats and all pools, up to an entry number; return whether there is something to send.

        A seat that an entry names is sent again even if it did not change: it may have been read here before its entry
        had a number, and a reader that came from another server, by number, has not seen that.
        """
        seats, pools = self._update(seen)
        seats |= {seat for seat in named if seat in self._parts}
        self.reach(number)
        if not seats and not pools:
            return False
        self.revision += 1
        self._frames.clear()
        self._remember(frozenset(seats), frozenset(pools))
        return True

    def reach(self, number: int) -> None:
        """Note that entries up to this number changed nothing on the map."""
        if number > self.number:
            self.number = number
            self._frames.clear()

    def restart(self) -> None:
        """Forget all changes, because entries were skipped: every reader gets the whole map."""
        self._steps.clear()
        self._frames.clear()
        self._named = 0
        self.revision += 1
        self._oldest_number, self._oldest_revision = self.number, self.revision

    def snapshot(self) -> Frame:
        """A frame with the whole map."""
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

        A hold that ran out has no entry until it is swept, so seats of unswept holds are sent again.
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
        rendered = self._renderer.render(self.event, list(parts.values()), list(pools.values()))
        made = Frame(kind, number=self.number, rendered=rendered, renderer=self._renderer)
        if key is not None:
            self._frames[key] = made
        return made

    def _update(self, seen: SeatMap) -> tuple[set[SeatId], set[PoolId]]:
        """Keep what changed, and return it."""
        seats: set[SeatId] = set()
        for on_map in seen.seats:
            seat_id = on_map.seat.id
            part = self._renderer.part(on_map, now=seen.now)
            if self._parts.get(seat_id) != part:
                self._parts[seat_id] = part
                seats.add(seat_id)
            self._point(seat_id, on_map.owner_id)
            self._time(seat_id, on_map, now=seen.now)
        pools: set[PoolId] = set()
        for pool in seen.pools:
            data = self._renderer.pool(pool)
            if self._pools.get(pool.id) != data:
                self._pools[pool.id] = data
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
            dropped = self._steps.popleft()
            self._named -= len(dropped.seats)
            # Other steps may have the same number, and a reader that has seen that number may not have seen them all.
            self._oldest_number, self._oldest_revision = dropped.number + 1, dropped.revision
