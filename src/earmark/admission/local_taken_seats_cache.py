"""What this process remembers of the marks and hints in Redis, so that a rush on sold seats does not reach Redis.

It remembers the hints that it has read, and what its own requests have in flight. Each for a moment only, never past
its own end, and no longer than until a request of this process changes those seats. Changes by other processes are
noticed when the moment is over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from earmark.admission.encode_and_decode_script_calls import request_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from earmark.domain.id_types import EventId, SeatId


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
