"""Remembers for how long Redis has refused seats, and which buyers the store has refused in the last seconds."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from earmark.domain.id_types import Buyer, EventId, SeatId


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
