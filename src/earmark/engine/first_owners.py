"""Is this hold surely no repeat? A cheaper proof than to look its idempotency key up.

Redis refuses a hold because a seat is taken; a repeat of a hold that was granted before must get its answer all the
same. Where the seat still belongs to the first booking that ever had it, and another request made that booking, this
request was never granted the seat, so it is no repeat. This process knows which seats it gave to their first owner.
Whether they are still that owner's is asked of the store each time, in one question for all requests that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.ids import BookingId, EventId, SeatId, SeatRef
from earmark.engine.questions import Questions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from earmark.domain.booking import Booking
    from earmark.domain.journal import Key

SEATS_MAX = 20_000


class FirstOwners:
    """The seats that this process gave to their first owner."""

    def __init__(
        self,
        changed: Callable[[Mapping[SeatRef, BookingId]], Awaitable[Collection[SeatRef]]],
        *,
        seats_max: int = SEATS_MAX,
    ) -> None:
        self._changed = changed
        """Asks the store which of these seats have, or had meanwhile, another owner."""
        self._seats_max = seats_max
        self._owners: dict[SeatRef, tuple[BookingId, Key | None]] = {}
        self._questions: Questions[tuple[SeatRef, BookingId], bool] = Questions(self._are_kept)

    def add(self, booking: Booking, *, key: Key | None) -> None:
        """No booking had these seats before this one, which was made by the request with this key."""
        for ref in booking.seat_refs:
            self._owners[ref] = (booking.id, key)
        while len(self._owners) > self._seats_max:
            del self._owners[next(iter(self._owners))]

    async def had_another(self, event_id: EventId, seats: Collection[str], *, key: Key) -> bool:
        """Whether one of these seats has only ever had an owner that is not the request with this key."""
        for seat in seats:
            ref = SeatRef(event_id, SeatId(seat))
            owner = self._owners.get(ref)
            if owner is not None and owner[1] != key:
                return await self._questions.ask((ref, owner[0]))
        return False

    async def close(self) -> None:
        """Finish what was asked."""
        await self._questions.close()

    async def _are_kept(self, owned: Sequence[tuple[SeatRef, BookingId]]) -> list[bool]:
        changed = await self._changed(dict(owned))
        for ref in changed:
            self._owners.pop(ref, None)
        return [ref not in changed for ref, _ in owned]
