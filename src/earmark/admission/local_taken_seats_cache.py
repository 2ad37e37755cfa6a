"""What this process remembers of the marks and hints in Redis, so that a rush on sold seats does not reach Redis.

It remembers the hints that it has read, and what its own requests have in flight. Each for a moment only, never past
its own end, and no longer than until a request of this process changes those seats. Changes by other processes are
noticed when the moment is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from earmark.admission.encode_and_decode_script_calls import request_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from earmark.domain.id_types import Buyer, EventId, SeatId


class LocalHints:
    """Seats that were taken a moment ago. With `seconds_max` 0 it remembers nothing."""

    def __init__(
        self, *, seconds_max: float = 0.1, seats_max: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds_max = seconds_max
        self._seats_max = seats_max
        self._clock = clock
        self._seen: dict[EventId, dict[SeatId, tuple[float, int, int]]] = {}
        """By event and seat: when it ends, the token of its owner, and the request in that."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def remembers(self) -> bool:
        """False when `seconds_max` is 0: `learn` then stores nothing."""
        return self._seconds_max > 0

    def busy(self, event_id: EventId, seats: tuple[SeatId, ...], request: int) -> dict[SeatId, int]:
        """Which of the seats another request is known to have, each with the token of its owner."""
        busy: dict[SeatId, int] = {}
        if seen := self._seen.get(event_id):
            now = self._clock()
            for seat in seats:
                hint = seen.get(seat)
                if hint is not None and hint[0] > now and hint[2] != request:
                    busy[seat] = hint[1]
        return busy

    def learn(self, event_id: EventId, seat: SeatId, *, owner: int, seconds: float) -> None:
        """Remember a hint that was read, with so much time left."""
        if self._seconds_max <= 0:
            return
        seen = self._seen.setdefault(event_id, {})
        if seat not in seen:
            if self._count >= self._seats_max:
                # Clear everything: hints live for a moment, so those still needed are learnt again at once.
                self._seen = {event_id: (seen := {})}
                self._count = 0
            self._count += 1
        seen[seat] = (self._clock() + min(seconds, self._seconds_max), owner, request_in(owner))

    def forget(self, event_id: EventId, seats: Iterable[SeatId]) -> None:
        """Forget these seats: what is remembered of them may be outdated."""
        if seen := self._seen.get(event_id):
            for seat in seats:
                self._count -= seen.pop(seat, None) is not None
            if not seen:
                del self._seen[event_id]


class RefusedSeats:
    """How long seats have been refused since the store last decided about them, so that this time has a bound.

    A server whose data is wrong in the right shape (a restored copy, a bug of ours) could refuse a free seat for ever.
    So every so often one request for a refused seat is passed on to the store, which decides.
    """

    def __init__(
        self, *, seconds_max: float, seats_max: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds_max = seconds_max
        self._seats_max = seats_max
        self._clock = clock
        self._since: OrderedDict[tuple[EventId, SeatId], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def refused(self, event_id: EventId, seats: Iterable[SeatId]) -> bool:
        """Note that these were refused. Whether one of them was refused for too long; its time then begins anew."""
        now = self._clock()
        too_long = False
        for seat in seats:
            ref = (event_id, seat)
            since = self._since.get(ref)
            if since is None:
                if len(self._since) >= self._seats_max:
                    self._since.popitem(last=False)
                self._since[ref] = now
            elif now - since > self._seconds_max:
                del self._since[ref]
                too_long = True
        return too_long

    def decided(self, event_id: EventId, seats: Iterable[SeatId]) -> None:
        """The store has decided about these."""
        if self._since:
            for seat in seats:
                self._since.pop((event_id, seat), None)


class RefusedBuyers:
    """Buyers whose hold the store refused in the last seconds, for good and for another reason than its seats.

    Their requests mark no seats: a buyer that repeats a request which the store refuses anyway (more than a limit
    allows, an unknown seat) would otherwise block a hundred seats at a time for other buyers.
    """

    def __init__(
        self, *, seconds: float, buyers_max: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._buyers_max = buyers_max
        self._clock = clock
        self._until: OrderedDict[tuple[EventId, Buyer], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, event_id: EventId, buyer: Buyer) -> None:
        """Remember this buyer at this event for `seconds`."""
        self._until.pop((event_id, buyer), None)
        if len(self._until) >= self._buyers_max:
            self._until.popitem(last=False)
        self._until[event_id, buyer] = self._clock() + self._seconds

    def has(self, event_id: EventId, buyer: Buyer) -> bool:
        """Whether this buyer's requests shall mark nothing."""
        return self._until.get((event_id, buyer), 0.0) > self._clock()
