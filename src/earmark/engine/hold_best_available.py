"""Best available: holds whose seats are chosen here, from a seat map that is read for them.

    recorded response? → read the map → choose → hold, as if the buyer had named these seats

The map decides nothing: the hold does. A request whose seats are gone reads again and chooses again, a bounded number
of times, and all of it within the one deadline of the request. Requests for one event that arrive while its map is
being read share the next reading, and are offered different seats; what was offered and is not decided yet is offered
to no other request of this process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.bookable_event import check_on_sale
from earmark.domain.choose_best_seats import Offer, Wish, allocate
from earmark.domain.id_types import SeatId
from earmark.domain.seat import SeatState, shown_state
from earmark.engine.find_earlier_response_before_refusing import KnownKeys
from earmark.errors import EventUnknown, NoneAvailable, Overloaded, SeatsTaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Sequence
    from typing import Protocol

    from earmark.domain.id_types import EventId
    from earmark.domain.seat import Seat
    from earmark.engine.commands_and_results import Hold, Result
    from earmark.engine.ports.store import SeatMap, SeatOnMap, Store

    class HoldCall(Protocol):
        """The engine's own hold."""

        def __call__(self, command: Hold, /, *, within: float) -> Awaitable[Result]:
            """In so many seconds."""
            ...


ROUNDS_MAX = 10
PAUSE_SECONDS = 0.001
PAUSE_SECONDS_MAX = 0.05
"""Between rounds, growing: as long as it takes until the map shows what another request was given."""
BATCH_MAX = 500
"""How many share one reading and one search."""
AT_ONCE_MAX = 500
"""So many seats are searched in 4 ms or less, which is done at once."""
WISH_COSTS = 5
"""One wish more is as much work as so many seats."""
FORGET_MIN = 64
WAITING_MAX = 5000


class _SeatRequest:
    """A request that waits to be offered seats."""

    __slots__ = ("avoid", "command", "offer", "wish")

    def __init__(self, command: Hold, wish: Wish, *, avoid: frozenset[SeatId]) -> None:
        self.command = command
        self.wish = wish
        self.avoid = avoid
        """Seats that it was refused a moment ago, though the map still shows them as free: another request has them."""
        self.offer: asyncio.Future[tuple[SeatId, ...]] = asyncio.get_running_loop().create_future()


class _OnlyAvoided(Exception):
    """The seats that would do were refused a moment ago. They are to be tried again."""


class _EventRequests:
    """One event: the requests that wait for an offer, those that wait for offered seats, and the offered seats."""

    def __init__(self) -> None:
        self.waiting: list[_SeatRequest] = []
        self.parked: list[_SeatRequest] = []
        self.offered: set[SeatId] = set()
        self.reading: asyncio.Task[None] | None = None
        self._gone = 0

    def forget_one(self) -> None:
        """A waiting request was cancelled. When most are, they are taken out: the lists do not grow without bound."""
        self._gone += 1
        if self._gone > max(FORGET_MIN, (len(self.waiting) + len(self.parked)) // 2):
            self.waiting = [wanted for wanted in self.waiting if not wanted.offer.done()]
            self.parked = [wanted for wanted in self.parked if not wanted.offer.done()]
            self._gone = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits, no seat is offered and no reading is under way."""
        return not (self.waiting or self.parked or self.offered or self.reading)


class BestSeats:
    """Chooses seats for many requests at once; the engine then holds them."""

    def __init__(self, store: Store, *, hold: HoldCall, waiting_max: int = WAITING_MAX) -> None:
        self._store = store
        self._hold = hold
        # Of its own: a rush of holds that Redis refuses fills the engine's.
        self._known_keys = KnownKeys(store)
        self._waiting_max = waiting_max
        self._waiting = 0
        """How many wait for an offer, of all events."""
        self._pending: dict[EventId, _EventRequests] = {}
        # One search at a time: threads that compute take turns of 5 ms with the event loop, each of them.
        self._searching = asyncio.Semaphore(1)

    async def hold(self, command: Hold, wish: Wish, *, within: float) -> Result:
        """The best seats there are, held; a repeat gets those that were chosen the first time.

        A request whose time is over while seats are chosen was not begun, and gets `Overloaded`.
        """
        until = asyncio.get_running_loop().time() + within
        taken: Sequence[str] = ()
        avoid: frozenset[SeatId] = frozenset()
        for number in range(ROUNDS_MAX):
            try:
                if number:
                    # The map may show for some more milliseconds as free what another request is being given.
                    await asyncio.sleep(_pause_seconds(command, number))
                return await self._round(command, wish, until=until, avoid=avoid)
            except SeatsTaken as refused:
                taken, avoid = refused.seats, frozenset(map(SeatId, refused.seats))
            except _OnlyAvoided:
                avoid = frozenset()
            except TimeoutError as late:
                raise Overloaded from late
        raise SeatsTaken(seats=taken, transient=True)

    async def _round(self, command: Hold, wish: Wish, *, until: float, avoid: frozenset[SeatId]) -> Result:
        """Choose and hold, once."""
        async with asyncio.timeout_at(until):
            if again := await self._remembered(command, until=until):
                return again
        pending = self._pending.setdefault(command.event_id, _EventRequests())
        seats: tuple[SeatId, ...] = ()
        try:
            async with asyncio.timeout_at(until):
                seats = await self._offer(pending, _SeatRequest(command, wish, avoid=avoid))
            # The queue reports a request whose time is over itself, and knows more about what it was doing.
            left = until - asyncio.get_running_loop().time()
            return await self._hold(msgspec.structs.replace(command, seats=seats, _seat_refs=None), within=left)
        except NoneAvailable:
            # The last ones may have gone to this very request, sent twice.
            async with asyncio.timeout_at(until):
                if again := await self._remembered(command, until=until):
                    return again
            raise
        finally:
            if seats:
                self._end_offer(pending, command.event_id, seats)
            else:
                self._tidy(pending, command.event_id)

    async def _remembered(self, command: Hold, *, until: float) -> Result | None:
        if command.idempotency is None:
            return None
        return await self._known_keys.find_response(
            command.idempotency, within=until - asyncio.get_running_loop().time()
        )

    async def close(self) -> None:
        """Wait for the look-ups and readings under way."""
        await self._known_keys.close()
        readings = [pending.reading for pending in self._pending.values() if pending.reading]
        if readings:
            await asyncio.wait(readings)

    async def _offer(self, pending: _EventRequests, wanted: _SeatRequest) -> tuple[SeatId, ...]:
        if self._waiting >= self._waiting_max:
            raise Overloaded
        event_id = wanted.command.event_id
        pending.waiting.append(wanted)
        self._waiting += 1
        self._wake(pending, event_id)
        try:
            return await wanted.offer
        except asyncio.CancelledError:
            # A request that was cancelled after its offer was made has not taken the seats.
            if wanted.offer.done() and not wanted.offer.cancelled() and wanted.offer.exception() is None:
                self._end_offer(pending, event_id, wanted.offer.result())
            pending.forget_one()
            raise
        finally:
            self._waiting -= 1

    def _end_offer(self, pending: _EventRequests, event_id: EventId, seats: Collection[SeatId]) -> None:
        """These seats are decided: requests that waited for that are offered what is left."""
        pending.offered.difference_update(seats)
        pending.waiting[:0] = pending.parked
        pending.parked.clear()
        self._wake(pending, event_id)
        self._tidy(pending, event_id)

    def _tidy(self, pending: _EventRequests, event_id: EventId) -> None:
        if pending.idle and self._pending.get(event_id) is pending:
            del self._pending[event_id]

    def _wake(self, pending: _EventRequests, event_id: EventId) -> None:
        if pending.waiting and pending.reading is None:
            reading = asyncio.get_running_loop().create_task(self._read(pending, event_id))
            # Done already where the event loop begins tasks at once and the store answered without a wait.
            pending.reading = None if reading.done() else reading

    async def _read(self, pending: _EventRequests, event_id: EventId) -> None:
        pending.reading = asyncio.current_task()
        try:
            while pending.waiting:
                batch, pending.waiting = pending.waiting[:BATCH_MAX], pending.waiting[BATCH_MAX:]
                try:
                    await self._choose(pending, event_id, batch)
                except Exception as broken:  # noqa: BLE001 (any error goes to the requests that wait)
                    for wanted in batch:
                        if not wanted.offer.done():
                            wanted.offer.set_exception(broken)
        finally:
            pending.reading = None
            self._tidy(pending, event_id)

    async def _choose(self, pending: _EventRequests, event_id: EventId, batch: list[_SeatRequest]) -> None:
        """One reading for all of them, each offered what is best of what is left."""
        before = frozenset(pending.offered)
        event = await self._store.read_event(event_id)
        seen = await self._store.read_map(event_id)
        for wanted in batch:
            if not wanted.offer.done() and (event is None or event.mode != wanted.command.actor.mode):
                wanted.offer.set_exception(EventUnknown(event_id=event_id))
        batch = [wanted for wanted in batch if not wanted.offer.done()]
        if event is None or not batch:
            return
        check_on_sale(event, now=seen.now)
        # An offer that was decided while the map was read may stand on it as free.
        avoided = frozenset[SeatId]().union(*(wanted.avoid for wanted in batch))
        offered = before | pending.offered | avoided
        wishes = [wanted.wish for wanted in batch]
        chosen = await self._search(seen, offered=offered, wishes=wishes)
        for wanted, found in zip(batch, chosen, strict=True):
            if not wanted.offer.done():
                self._set_offer(pending, wanted, found)

    async def _search(
        self, seen: SeatMap, *, offered: frozenset[SeatId], wishes: Sequence[Wish]
    ) -> list[Offer | NoneAvailable]:
        """Run a long search in a thread, so that the event loop serves other requests meanwhile."""
        if len(seen.seats) + WISH_COSTS * len(wishes) <= AT_ONCE_MAX:
            return _search(seen, offered=offered, wishes=wishes)
        async with self._searching:
            return await asyncio.to_thread(_search, seen, offered=offered, wishes=wishes)

    @staticmethod
    def _set_offer(pending: _EventRequests, wanted: _SeatRequest, found: Offer | NoneAvailable) -> None:
        if isinstance(found, NoneAvailable):
            wanted.offer.set_exception(found)
        elif found.seats is not None:
            pending.offered.update(found.seats)
            wanted.offer.set_result(found.seats)
        elif pending.offered:
            wanted.avoid = frozenset()
            pending.parked.append(wanted)
        elif wanted.avoid:
            wanted.offer.set_exception(_OnlyAvoided())
        else:
            # All that was on offer was decided during the search: the next reading shows how.
            pending.waiting.append(wanted)


def _pause_seconds(command: Hold, number: int) -> float:
    """The pause before the round of this number. Requests that were refused together do not try again together."""
    spread: float = 0.5 + command.booking_id.int % 1024 / 2048
    return spread * min(PAUSE_SECONDS * float(2**number), PAUSE_SECONDS_MAX)


def _search(seen: SeatMap, *, offered: frozenset[SeatId], wishes: Sequence[Wish]) -> list[Offer | NoneAvailable]:
    """For each wish its seats, or that it has to wait for others to decide, or why there are none.

    It runs in a thread, on values that do not change: for a stadium it takes a good part of a second.
    """
    states = [(one.seat, _state(one, seen)) for one in seen.seats]
    free = {seat.id for seat, state in states if state is SeatState.AVAILABLE}
    offers = allocate((seat for seat, _ in states), free=free, offered=offered, wishes=wishes)
    counts: dict[Wish, NoneAvailable] = {}
    found: list[Offer | NoneAvailable] = []
    for wish, offer in zip(wishes, offers, strict=True):
        if offer.seats is None and not offer.later:
            if wish not in counts:
                counts[wish] = _none(wish, states)
            found.append(counts[wish])
        else:
            found.append(offer)
    return found


def _state(on_map: SeatOnMap, seen: SeatMap) -> SeatState:
    ends_at = on_map.owner_expires_at
    due = ends_at is not None and seen.now >= ends_at
    return shown_state(blocked=on_map.seat.blocked, owner_state=on_map.owner_state, due=due)


def _none(wish: Wish, states: Iterable[tuple[Seat, SeatState]]) -> NoneAvailable:
    """How many there are of the kind; holds that run out may still bring more."""
    fit = [state for seat, state in states if wish.fits(seat)]
    free, held = fit.count(SeatState.AVAILABLE), fit.count(SeatState.HELD)
    return NoneAvailable(asked=wish.count, available=free, transient=held > 0 and free + held >= wish.count)
