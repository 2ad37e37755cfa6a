"""The engine: the verbs over one store, each with its queue of requests.

    engine = Engine(store, ids=ids)
    result = await engine.hold(command)

Every call returns a `Result` or raises a `Refusal` or an `Outage`. What a result says is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from earmark.domain.booking_state_machine import Verb
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.id_types import PoolRef, TotalRef
from earmark.engine.close_each_in_turn import close_each
from earmark.engine.commands_and_results import (
    Cancel,
    Change,
    ChangeEvent,
    Command,
    Confirm,
    CreateEvent,
    Decided,
    Extend,
    Hold,
    Outcome,
    Release,
    Result,
    Row,
    TryAgain,
)
from earmark.engine.find_earlier_response_before_refusing import KeyLookup, KnownKeys, look_up_key
from earmark.engine.group_commit import BatchQueue
from earmark.engine.hold_best_available import BestSeats
from earmark.engine.limits_and_ids_for_verbs import VerbContext
from earmark.engine.make_room_in_steps import make_room_in_steps
from earmark.engine.pending_writes import CLOCK
from earmark.engine.ports.observer import NullObserver
from earmark.engine.ports.seat_admission import Busy
from earmark.engine.ports.store import LOCK_SECONDS_MAX, Changes
from earmark.engine.requests_waiting_for_room import for_now
from earmark.engine.verbs.cancel import cancel
from earmark.engine.verbs.change import change
from earmark.engine.verbs.change_event import change_event
from earmark.engine.verbs.confirm import confirm
from earmark.engine.verbs.create_event import create_event
from earmark.engine.verbs.expire import CONTENDED_SECONDS, Room, expire, have_due, make_room
from earmark.engine.verbs.extend import extend
from earmark.engine.verbs.hold import hold
from earmark.engine.verbs.release import release
from earmark.engine.wait_for_one_locked_row import LockedRowWaits, lock_row
from earmark.errors import EarmarkError, OutcomeUnknown, Refusal, SeatsTaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping

    from earmark.domain.booking import Booking
    from earmark.domain.choose_best_seats import Wish
    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.engine.ports.observer import Observer
    from earmark.engine.ports.seat_admission import Admission
    from earmark.engine.ports.store import Ids, Store, Transaction

A = TypeVar("A", bound=Command)
A_contra = TypeVar("A_contra", bound=Command, contravariant=True)
T = TypeVar("T")

VERBS_BATCHED = 6
REPLAY_SECONDS_MAX = 5.0
"""For a repeat whose key was looked up before: that may have taken the rest of a request's time."""
LOOKUPS_MAX = 5
LOOKUP_SECONDS = 0.2
LOOKUP_SECONDS_MAX = 2.0
"""For all look-ups of one lost commit: the requests behind it wait for them too."""


class BatchVerb(Protocol[A_contra]):
    """A verb that decides a batch of commands in one transaction."""

    def __call__(
        self, transaction: Transaction, batch: Sequence[A_contra], context: VerbContext, /
    ) -> Awaitable[list[Outcome]]:
        """The outcomes, in the order of the commands."""
        ...


class BatchRun(msgspec.Struct, Generic[A]):
    """One batch of a verb in one transaction, and what came of it."""

    verb: BatchVerb[A]
    begin: Callable[[], Sequence[A]]
    """Returns the commands of the batch, each time the transaction is run."""
    context: VerbContext
    commands: Sequence[A] = ()
    outcomes: list[Outcome] = []
    written: Changes | None = None

    async def run(self, transaction: Transaction) -> None:
        """Called by the store; again, from the beginning, when it repeats a transaction that was rolled back."""
        self.commands = self.begin()
        self.outcomes = await self.verb(transaction, self.commands, self.context) if self.commands else []
        self.written = transaction.written


class Engine:
    """One engine per process and store."""

    def __init__(
        self,
        store: Store,
        *,
        ids: Ids,
        policy: Policy | None = None,
        admission: Admission | None = None,
        request_seconds_max: float = 15.0,
        transaction_seconds_max: float = 10.0,
        connection_slots: int = 3,
        batch_size_max: int = 100,
        observer: Observer | None = None,
        waiting_max: int = 5000,
        queue_seconds_max: float = 15.0,
    ) -> None:
        self.store = store
        self.ids = ids
        self.policy = policy or Policy()
        self.observer: Observer = observer or NullObserver()
        self.admission = admission
        self._listeners: list[Callable[[Changes], None]] = []
        if admission is not None:
            self.listen(lambda changes: admission.drop_hints(changes.freed))
        self._request_seconds_max = request_seconds_max
        self._transaction_seconds_max = transaction_seconds_max
        self.row_waits = LockedRowWaits(self._lock_row)
        self._context = VerbContext(policy=self.policy, ids=ids)
        size_max = min(
            batch_size_max, store.requests_at_once_max(batches=connection_slots * VERBS_BATCHED) or batch_size_max
        )

        def queue(name: str, verb: BatchVerb[A], *, optimistic: bool = True, **options: Any) -> BatchQueue[A]:
            return BatchQueue(
                partial(self.run, verb, optimistic=optimistic, name=name),
                make_room_in=self.make_room_in,
                have_due=self.have_due,
                verb=name,
                observer=self.observer,
                connection_slots=connection_slots,
                size_max=size_max,
                waiting_max=waiting_max,
                waiting_seconds_max=queue_seconds_max,
                row_waits=self.row_waits,
                **options,
            )

        self._holds: BatchQueue[Hold] = queue("hold", hold, claims=attrgetter("seat_refs"))
        self._changes: BatchQueue[Change] = queue("change", change, optimistic=False, claims=attrgetter("claims"))
        self._extends: BatchQueue[Extend] = queue("extend", extend)
        self._confirms: BatchQueue[Confirm] = queue("confirm", confirm)
        self._releases: BatchQueue[Release] = queue("release", release)
        self._cancels: BatchQueue[Cancel] = queue("cancel", cancel)
        self._known_keys = KnownKeys(store)
        self._deciding: set[IdempotencyKey] = set()
        """The keys of the holds that admission let through, while this process decides them."""
        self._best = BestSeats(store, hold=self.hold, waiting_max=waiting_max)
        self.queues: Mapping[str, BatchQueue[Any]] = {
            "hold": self._holds,
            "change": self._changes,
            "extend": self._extends,
            "confirm": self._confirms,
            "release": self._releases,
            "cancel": self._cancels,
        }

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Call this after each commit of this process with what it wrote. It must be quick and must not raise."""
        self._listeners.append(listener)

    def hold(self, command: Hold, *, within: float | None = None) -> Coroutine[Any, Any, Result]:
        """Set seats and units aside, all or nothing; `within` is what is left of a request's time."""
        within = self._request_seconds_max if within is None else within
        if self.admission is None or not command.seats:
            return self._holds.submit(command, within=within)
        return self._hold_admitted(command, self.admission, within=within)

    async def _hold_admitted(self, command: Hold, admission: Admission, *, within: float) -> Result:
        """Admit → hold → report the outcome to admission, whatever it is."""
        key = command.idempotency.key if command.idempotency else None
        passed = await admission.admit(command.event_id, command.seats, buyer=command.buyer, key=key)
        if isinstance(passed, Busy):
            # A repeat gets its response whatever became of its seats. Only the store knows if it is one: a hint may
            # be older than a sale at another server.
            if key is None:
                await asyncio.sleep(0)  # A client that repeats its request at once leaves the event loop to others.
            elif key in self._deciding or await self._known_keys.is_known(key):
                return await self._holds.submit(command, within=min(within, REPLAY_SECONDS_MAX))
            raise SeatsTaken(seats=passed.seats, transient=True)
        if key is None or key in self._deciding:
            return await self._hold_passed(command, admission, passed, within=within)
        self._deciding.add(key)
        try:
            return await self._hold_passed(command, admission, passed, within=within)
        finally:
            self._deciding.discard(key)

    async def _hold_passed(self, command: Hold, admission: Admission, passed: Any, *, within: float) -> Result:
        try:
            result = await self._holds.submit(command, within=within)
        except SeatsTaken as taken:
            hopeless = taken.why is not None  # A blocked seat comes back by no hold's end.
            admission.withdraw(passed, taken=taken.lapses, owners=taken.owners, hopeless=hopeless)
            raise
        except BaseException as broken:
            admission.withdraw(passed, hopeless=isinstance(broken, Refusal) and not broken.transient)
            raise
        if isinstance(result, Decided):
            left = (result.value.expires_at - result.now).total_seconds()
            admission.record_grant(passed, seconds=left)
        else:
            admission.withdraw(passed)
        return result

    def hold_best(self, command: Hold, wish: Wish) -> Coroutine[Any, Any, Result]:
        """Hold the best seats there are, and the units that the command names: see `best_available`."""
        return self._best.hold(command, wish, within=self._request_seconds_max)

    def change(self, command: Change) -> Coroutine[Any, Any, Result]:
        """Give a hold other seats and units; its end stays."""
        return self._changes.submit(command, within=self._request_seconds_max)

    def extend(self, command: Extend) -> Coroutine[Any, Any, Result]:
        """Give a hold more time."""
        return self._extends.submit(command, within=self._request_seconds_max)

    def confirm(self, command: Confirm) -> Coroutine[Any, Any, Result]:
        """Turn a hold into a sale that was paid elsewhere."""
        return self._confirms.submit(command, within=self._request_seconds_max)

    def release(self, command: Release) -> Coroutine[Any, Any, Result]:
        """Let go of a hold."""
        return self._releases.submit(command, within=self._request_seconds_max)

    def cancel(self, command: Cancel) -> Coroutine[Any, Any, Result]:
        """Undo a sale, or some lines of it."""
        return self._cancels.submit(command, within=self._request_seconds_max)

    async def create_event(self, command: CreateEvent) -> Result:
        """Create an event with its seats and pools."""
        return await self.run_alone(
            "create_event", command, lambda transaction: create_event(transaction, command, ids=self.ids)
        )

    async def change_event(self, command: ChangeEvent) -> Result:
        """Change an event: its window, limits, prices, capacity or blocked seats."""
        return await self.run_alone(
            "change_event", command, lambda transaction: change_event(transaction, command, ids=self.ids)
        )

    async def look_up_key(self, key: IdempotencyKey) -> KeyLookup:
        """What became of the request with this key."""
        key_seconds = self.policy.key_seconds
        return await look_up_key(self.store, key, within=self._transaction_seconds_max, key_seconds=key_seconds)

    async def expire(
        self, *, limit: int, skip: int = 0, reason: str = "swept", within: PoolRef | TotalRef | None = None
    ) -> list[Booking]:
        """End due holds: the sweeper's verb. It waits for a locked row only briefly, for it has others to end."""
        return await self._transact(
            lambda transaction: expire(transaction, limit=limit, skip=skip, ids=self.ids, reason=reason, within=within),
            lock_seconds=self._lock_seconds,
        )

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """One transaction outside the batches; listeners get what it wrote."""
        return await self._patiently(partial(self._transact, work))

    async def _patiently(self, run: Callable[..., Awaitable[T]]) -> T:
        """With the short wait for locked rows, and once more when the row that it met was had.

        However many want a row that stays locked, they never have all connections, and keep no other row locked.
        """
        return await self.row_waits.run(run, lock_seconds=self._lock_seconds, within=self._transaction_seconds_max)

    async def _lock_row(self, row: Row, *, lock_seconds: float) -> None:
        await self._transact(partial(lock_row, row=row), lock_seconds=lock_seconds)

    @property
    def _lock_seconds(self) -> float:
        return max(queue.lock_seconds for queue in self.queues.values())

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]], *, lock_seconds: float) -> T:
        written: Changes | None = None

        async def watched(transaction: Transaction) -> T:
            nonlocal written
            result = await work(transaction)
            written = transaction.written
            return result

        with self.observer.transaction("work"):
            try:
                result = await self.store.transact(
                    watched, within=self._transaction_seconds_max, lock_seconds=lock_seconds
                )
            finally:
                self._notify_listeners(written)
        self._count_expired(written)
        return result

    async def close(self) -> None:
        """Finish what was accepted, then let go of the store: also where that fails or is cancelled."""
        parts = [self._finish, self.store.close]
        if self.admission is not None:
            parts.insert(1, self.admission.close)
        await close_each(*parts)

    async def _finish(self) -> None:
        queues = self.queues.values()
        await asyncio.gather(*(queue.close() for queue in queues), self._best.close(), self._known_keys.close())

    async def make_room_in(
        self,
        ref: object,
        *,
        units: int,
        lock_seconds: float | None = None,
        freed_now: Callable[[int], None] = lambda _: None,
    ) -> Room:
        """End lapsed holds of a pool or a buyer until so many units are free, or none is left that could be ended.

        Each step commits, and `freed_now` is told at once how many units that freed.
        """
        assert isinstance(ref, PoolRef | TotalRef)
        lock_seconds = self._lock_seconds if lock_seconds is None else lock_seconds

        async def end_holds(*, limit: int) -> Room:
            work = partial(make_room, limit=limit, ids=self.ids, within=ref)
            return await self._transact(work, lock_seconds=lock_seconds)

        return await make_room_in_steps(end_holds, ref, units=units, freed_now=freed_now)

    async def have_due(self, refs: Sequence[PoolRef | TotalRef], *, lock_seconds: float) -> list[bool]:
        """For each of these pools and buyers whether a lapsed hold is left that could be ended, by one read."""
        return await self._transact(partial(have_due, refs=refs), lock_seconds=lock_seconds)

    async def run(
        self,
        verb: BatchVerb[A],
        begin: Callable[[], Sequence[A]],
        *,
        optimistic: bool = False,
        name: str = "",
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> list[Outcome]:
        """Run one batch in one transaction. A commit whose reply was lost is looked up, never tried again blindly.

        `begin` returns the commands of the batch, each time the store runs the transaction.
        """
        batch: BatchRun[A] = BatchRun(verb, begin, self._context)
        with self.observer.transaction(name):
            try:
                await self.store.transact(
                    batch.run, within=self._transaction_seconds_max, optimistic=optimistic, lock_seconds=lock_seconds
                )
            except OutcomeUnknown:
                if not await self._took_place(batch.commands, batch.outcomes):
                    raise
            finally:
                self._notify_listeners(batch.written)
        if batch.written is not None and batch.written.expired:
            self._count_expired(batch.written)
        return batch.outcomes

    def _notify_listeners(self, written: Changes | None) -> None:
        """Also after a commit that failed or is in doubt: a needless read costs little, a stale cache costs more."""
        if written is not None:
            for listener in self._listeners:
                listener(written)

    def _count_expired(self, written: Changes | None) -> None:
        if written is not None and written.expired:
            for entry in written.entries:
                if entry.verb == Verb.EXPIRE and entry.actor == CLOCK:
                    self.observer.expired(entry.reason or "")

    async def _took_place(self, batch: Sequence[A], outcomes: Sequence[Outcome]) -> bool:
        """Whether a lost commit is there after all. All of a batch is, or nothing: one entry shows it.

        Not finding it proves nothing, for the commit may still be on its way: then the outcome stays unknown, and
        the caller finds out by its key.
        """
        written = [command.entry_id for command, outcome in zip(batch, outcomes, strict=True) if _wrote(outcome)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                for _ in range(LOOKUPS_MAX if written else 0):
                    with contextlib.suppress(Exception):  # whatever the lookup meets, the outcome is no better known
                        if await self.store.has_entry(written[0]):
                            return True
                    await asyncio.sleep(LOOKUP_SECONDS)
        return False

    async def run_alone(self, name: str, command: Command, verb: Callable[[Transaction], Awaitable[Outcome]]) -> Result:
        """A verb that is not batched: rare, and larger than a booking."""

        async def batch_of_one(transaction: Transaction, _: Sequence[Command], __: VerbContext) -> list[Outcome]:
            return [await verb(transaction)]

        nothing_due_in: set[object] = set()
        rounds = 0
        while True:
            (outcome,) = await self._patiently(partial(self.run, batch_of_one, lambda: [command], name=name))
            rounds += 1
            if isinstance(outcome, EarmarkError):
                raise outcome
            if not isinstance(outcome, TryAgain):
                return outcome
            if outcome.full in nothing_due_in:
                raise outcome.refusal
            if rounds >= outcome.rounds_max:
                raise outcome.refusal if outcome.full is None else for_now(outcome.refusal)
            delay = outcome.delay_seconds
            if outcome.full is not None:
                room = await self.make_room_in(outcome.full, units=outcome.short)
                if room.has_nothing_due:
                    nothing_due_in.add(outcome.full)
                elif not room.ended:
                    delay = CONTENDED_SECONDS
            await asyncio.sleep(delay)


def _wrote(outcome: Outcome) -> bool:
    return isinstance(outcome, Decided) and outcome.wrote
