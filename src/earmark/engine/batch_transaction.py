"""What the verbs share to decide a batch of commands in one transaction, from its idempotency keys to its results.

`BatchDecisions` keeps the outcome of each command and what is to be written; a verb sets both. The functions behind it
are the steps that all verbs on existing bookings have in common. The store opens and commits the transaction.

Commands are decided in order of arrival. No caller gets its result before the transaction has committed, so a request
is refused only once the request that won has been committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from earmark.engine.commands_and_results import (
    BookingCommand,
    CancelResult,
    Command,
    Decided,
    Outcome,
    PayResult,
    Replayed,
    TryAgain,
)
from earmark.engine.pending_writes import PendingWrites
from earmark.engine.ports.store import RowsNeeded
from earmark.errors import BookingExpired, BookingUnknown, IdempotencyInProgress, IdempotencyMismatch, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.booking import Booking
    from earmark.domain.booking_state_machine import Verb
    from earmark.domain.id_types import BookingId
    from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
    from earmark.engine.ports.store import Ids, Transaction, TransactionStart

A = TypeVar("A", bound=Command)
B = TypeVar("B", bound=BookingCommand)

REPEAT_ROUNDS_MAX = 1000
REPEAT_DELAY_SECONDS = 0.01


class BatchDecisions(Generic[A]):
    """The outcomes so far, by command, and the pending writes that they follow from."""

    def __init__(self, transaction: Transaction, batch: Sequence[A], *, start: TransactionStart, ids: Ids) -> None:
        self.transaction = transaction
        self.now = start.now
        """The transaction's one moment."""
        self.writes = PendingWrites(now=start.now, ids=ids)
        self._batch = batch
        self._numbers = {id(command): number for number, command in enumerate(batch)}
        self._outcomes: dict[int, Outcome] = {}
        self._recall(start)

    @classmethod
    async def open(
        cls, transaction: Transaction, batch: Sequence[A], *, ids: Ids, needed: RowsNeeded | None = None
    ) -> BatchDecisions[A]:
        """Claim the batch's keys; a command whose key has a recorded response gets that and leaves the batch."""
        start = await transaction.begin([command.idempotency.key for command in batch if command.idempotency], needed)
        return cls(transaction, batch, start=start, ids=ids)

    @property
    def waiting(self) -> list[A]:
        """The commands without an outcome, in arrival order."""
        return [command for number, command in enumerate(self._batch) if number not in self._outcomes]

    def refuse(self, command: A, refusal: Refusal) -> None:
        """The rules say no. The traceback is dropped, for it would keep the whole batch in memory."""
        self._set_outcome(command, refusal.with_traceback(None))

    def again(self, command: A, again: TryAgain) -> None:
        """Decide it in the next batch."""
        self._set_outcome(command, again)

    def record_response(
        self, command: A, value: Booking | Event | PayResult | CancelResult
    ) -> IdempotencyRecord | None:
        """The response that the command's key will keep; None where the client sent no key."""
        return command.idempotency.record(value, self.now) if command.idempotency else None

    def complete(
        self,
        command: A,
        value: Booking | Event | PayResult | CancelResult,
        *,
        record: IdempotencyRecord | None = None,
        wrote: bool = True,
    ) -> None:
        """Set the command's result. A response that a key keeps is also the one that the client gets."""
        self._set_outcome(command, Decided(value=value, now=self.now, wrote=wrote, record=record))

    async def close(self, **event_changes: Any) -> list[Outcome]:
        """Write what moved (and what an operator changed), and return the outcomes in arrival order."""
        outcomes = [self._outcomes[number] for number in range(len(self._batch))]
        if self.writes:
            await self.transaction.write(self.writes.changes(**event_changes))
        return outcomes

    def _set_outcome(self, command: A, outcome: Outcome) -> None:
        number = self._numbers[id(command)]
        assert number not in self._outcomes, "a command is decided once"
        self._outcomes[number] = outcome

    def _recall(self, start: TransactionStart) -> None:
        taken: set[IdempotencyKey] = set()
        for command in self._batch:
            if command.idempotency is None:
                continue
            key = command.idempotency.key
            if memory := start.remembered.get(key):
                same = command.idempotency.is_of(memory.request_hash)
                self._set_outcome(command, Replayed(record=memory) if same else IdempotencyMismatch())
            elif key in start.busy or key in taken:
                repeat = TryAgain(
                    refusal=IdempotencyInProgress(), rounds_max=REPEAT_ROUNDS_MAX, delay_seconds=REPEAT_DELAY_SECONDS
                )
                self._set_outcome(command, repeat)
            taken.add(key)


async def open_on_bookings(transaction: Transaction, batch: Sequence[B], *, ids: Ids) -> BatchDecisions[B]:
    """Open a batch of commands about bookings; the store may fetch those together with the keys."""
    needed = RowsNeeded(requests=len(batch), bookings={command.booking_id for command in batch})
    return await BatchDecisions.open(transaction, batch, ids=ids, needed=needed)


async def decide_on_bookings(
    decisions: BatchDecisions[B],
    verb: Verb,
    rule: Callable[[B, Booking, datetime], Booking],
    *,
    reason: Callable[[B], str | None],
) -> list[Outcome]:
    """What verbs on one booking have in common: lock, decide by the locked row, write."""
    bookings = await lock(decisions)
    decide(decisions, verb, rule, bookings=bookings, reason=reason)
    await lock_counts(decisions)
    return await decisions.close()


async def lock(decisions: BatchDecisions[B]) -> Mapping[BookingId, Booking]:
    """The bookings that the commands name, locked."""
    return await decisions.transaction.lock_bookings({command.booking_id for command in decisions.waiting})


async def lock_counts(decisions: BatchDecisions[B]) -> None:
    """Lock the totals and pools that will be written, in their order."""
    await decisions.transaction.lock_totals({ref for ref, units in decisions.writes.totals.items() if units})
    await decisions.transaction.lock_pools(decisions.writes.pools.keys())


def decide(
    decisions: BatchDecisions[B],
    verb: Verb,
    rule: Callable[[B, Booking, datetime], Booking],
    *,
    bookings: Mapping[BookingId, Booking],
    reason: Callable[[B], str | None],
) -> None:
    """Decide every waiting command by its locked row, in arrival order."""
    for command in decisions.waiting:
        try:
            before = find(decisions, command, bookings, verb=verb)
            after = rule(command, before, decisions.now)
        except Refusal as refusal:
            decisions.refuse(command, refusal)
            continue
        moved = after is not before
        record = decisions.record_response(command, after)
        if moved:
            decisions.writes.move(verb, before, after, command=command, record=record, reason=reason(command))
        else:
            decisions.writes.record_repeat(verb, after, command=command, record=record)
        decisions.complete(command, after, record=record, wrote=moved or record is not None)


def find(decisions: BatchDecisions[B], command: B, bookings: Mapping[BookingId, Booking], *, verb: Verb) -> Booking:
    """The command's booking, as this transaction has it now; a due hold that is met here ends here."""
    locked = bookings.get(command.booking_id)
    if locked is None or not command.actor.may_see(locked):
        raise BookingUnknown(booking_id=str(command.booking_id))
    booking = decisions.writes.current(locked)
    if booking.is_due(decisions.now):
        decisions.writes.expire(booking, reason=f"met by {verb}")
        raise BookingExpired(expires_at=booking.expires_at)
    return booking
