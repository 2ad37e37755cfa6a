"""The desk: one batch of asks in one transaction, from its keys to its answers.

Asks are decided in the order in which they came. Nobody is told anything before the transaction has committed,
so a loser learns of the loss only when the winner is certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from earmark.engine.commands import Again, Ask, BookingAsk, Decided, Outcome, Paid, Replayed, Undone
from earmark.engine.pending_writes import Ledger
from earmark.engine.ports.store import Look
from earmark.errors import BookingExpired, BookingUnknown, IdempotencyInProgress, IdempotencyMismatch, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.booking import Booking
    from earmark.domain.event import Event
    from earmark.domain.ids import BookingId
    from earmark.domain.journal import Key
    from earmark.domain.state_machine import Verb
    from earmark.engine.ports.store import Ids, Opening, Transaction

A = TypeVar("A", bound=Ask)
B = TypeVar("B", bound=BookingAsk)

TWIN_ROUNDS_MAX = 1000
TWIN_DELAY_SECONDS = 0.01


class Desk(Generic[A]):
    """Outcomes so far, by ask, and the ledger they follow from."""

    def __init__(self, transaction: Transaction, batch: Sequence[A], *, opening: Opening, ids: Ids) -> None:
        self.transaction = transaction
        self.ledger = Ledger(now=opening.now, ids=ids)
        self._batch = batch
        self._numbers = {id(ask): number for number, ask in enumerate(batch)}
        self._outcomes: dict[int, Outcome] = {}
        self._recall(opening)

    @classmethod
    async def open(cls, transaction: Transaction, batch: Sequence[A], *, ids: Ids, look: Look | None = None) -> Desk[A]:
        """Claim the batch's keys; what a key remembers is answered and leaves the batch."""
        opening = await transaction.begin([ask.memo.key for ask in batch if ask.memo], look)
        return cls(transaction, batch, opening=opening, ids=ids)

    @property
    def now(self) -> datetime:
        """The transaction's one moment."""
        return self.ledger.now

    @property
    def waiting(self) -> list[A]:
        """The asks without an outcome, in arrival order."""
        return [ask for number, ask in enumerate(self._batch) if number not in self._outcomes]

    def refuse(self, ask: A, refusal: Refusal) -> None:
        """The rules say no. Where that was found out is nobody's business, and would keep the whole batch in memory."""
        self._settle(ask, refusal.with_traceback(None))

    def again(self, ask: A, again: Again) -> None:
        """Decide it in the next batch."""
        self._settle(ask, again)

    def answer(self, ask: A, value: Booking | Event | Paid | Undone, *, wrote: bool = True) -> None:
        """Decided; the answer that a key remembers is the very one that is given."""
        memory = self.ledger.memories.get(ask.entry_id)
        self._settle(ask, Decided(value=value, now=self.now, wrote=wrote, memory=memory))

    async def close(self, **offer: Any) -> list[Outcome]:
        """Write what moved (and what an operator changed), and hand out the outcomes in arrival order."""
        assert not self.waiting, "an ask was forgotten"
        if self.ledger:
            await self.transaction.write(self.ledger.changes(**offer))
        return [self._outcomes[number] for number in range(len(self._batch))]

    def _settle(self, ask: A, outcome: Outcome) -> None:
        number = self._numbers[id(ask)]
        assert number not in self._outcomes, "an ask is decided once"
        self._outcomes[number] = outcome

    def _recall(self, opening: Opening) -> None:
        taken: set[Key] = set()
        for ask in self._batch:
            if ask.memo is None:
                continue
            key = ask.memo.key
            if memory := opening.remembered.get(key):
                same = ask.memo.is_of(memory.request_hash)
                self._settle(ask, Replayed(memory=memory) if same else IdempotencyMismatch())
            elif key in opening.busy or key in taken:
                twin = Again(
                    refusal=IdempotencyInProgress(), rounds_max=TWIN_ROUNDS_MAX, delay_seconds=TWIN_DELAY_SECONDS
                )
                self._settle(ask, twin)
            taken.add(key)


async def open_on_bookings(transaction: Transaction, batch: Sequence[B], *, ids: Ids) -> Desk[B]:
    """A desk for asks about bookings, which it will want to see."""
    look = Look(requests=len(batch), bookings={ask.booking_id for ask in batch})
    return await Desk.open(transaction, batch, ids=ids, look=look)


async def settle(
    desk: Desk[B], verb: Verb, law: Callable[[B, Booking, datetime], Booking], *, reason: Callable[[B], str | None]
) -> list[Outcome]:
    """The shared recipe of the verbs on one booking: lock, judge the locked row, write."""
    bookings = await lock(desk)
    decide(desk, verb, law, bookings=bookings, reason=reason)
    await lock_counts(desk)
    return await desk.close()


async def lock(desk: Desk[B]) -> Mapping[BookingId, Booking]:
    """The bookings that are asked about, locked."""
    return await desk.transaction.lock_bookings({ask.booking_id for ask in desk.waiting})


async def lock_counts(desk: Desk[B]) -> None:
    """The totals and pools that the ledger changes, locked in their order before they are written."""
    await desk.transaction.lock_totals({ref for ref, units in desk.ledger.totals.items() if units})
    await desk.transaction.lock_pools(desk.ledger.pools.keys())


def decide(
    desk: Desk[B],
    verb: Verb,
    law: Callable[[B, Booking, datetime], Booking],
    *,
    bookings: Mapping[BookingId, Booking],
    reason: Callable[[B], str | None],
) -> None:
    """Judge every waiting ask on the locked row, in arrival order."""
    for ask in desk.waiting:
        try:
            before = find(desk, ask, bookings, verb=verb)
            after = law(ask, before, desk.now)
        except Refusal as refusal:
            desk.refuse(ask, refusal)
            continue
        moved = after is not before
        if moved:
            desk.ledger.move(verb, before, after, ask=ask, reason=reason(ask))
        else:
            desk.ledger.remember(verb, after, ask=ask)
        desk.answer(ask, after, wrote=moved or ask.memo is not None)


def find(desk: Desk[B], ask: B, bookings: Mapping[BookingId, Booking], *, verb: Verb) -> Booking:
    """The ask's booking, as this transaction has it now; a due hold that is met here ends here."""
    locked = bookings.get(ask.booking_id)
    if locked is None or not ask.actor.may_see(locked):
        raise BookingUnknown(booking_id=str(ask.booking_id))
    booking = desk.ledger.current(locked)
    if booking.is_due(desk.now):
        desk.ledger.expire(booking, reason=f"met by {verb}")
        raise BookingExpired(expires_at=booking.expires_at)
    return booking
