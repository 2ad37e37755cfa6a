"""A harness for races: server processes on real connections that stop where a test says.

A `RaceDatabase` is one database with its clock. A `Server` is what a server process is in production: an engine over
connections of its own. Its transactions go step by step through `Breakpoints`, which stop them at named places, such as
"before write", until the test lets them continue. So an interleaving is written down and not left to chance.

A server may be given a `Shortcut`: the tempting way of doing one step. The same interleaving is run with the
shortcut, where it must break, and as built, where it must not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg

from earmark.domain.default_limits_for_all_events import Policy
from earmark.engine.commands_and_results import (
    Cancel,
    CancelResult,
    Change,
    ChangeEvent,
    Command,
    Confirm,
    Decided,
    Extend,
    Hold,
    Release,
)
from earmark.engine.engine import Engine
from earmark.engine.group_commit import BatchQueue
from earmark.engine.limits_and_ids_for_verbs import VerbContext
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.engine.verbs.cancel import cancel
from earmark.engine.verbs.change import change
from earmark.engine.verbs.confirm import confirm
from earmark.engine.verbs.expire import expire
from earmark.engine.verbs.extend import extend
from earmark.engine.verbs.hold import hold
from earmark.engine.verbs.release import release
from earmark.store import load_named_sql
from earmark.store.postgres import PostgresStore
from earmark.store.postgres.optimistic_transaction_connections import PreparedConnection
from earmark.store.postgres.rows_cached_for_optimistic_write import SeatCache

from .commands import IDS, TTL_SECONDS, a_hold, a_play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId
    from earmark.engine.ports.store import Transaction

T = TypeVar("T")

PATIENCE_SECONDS = 8.0
POLL_SECONDS = 0.003
SQL = load_named_sql.statements("postgres")

# Deleting a few rows with all triggers off is quicker than truncating: this runs before every test.
_EMPTY = """
    SET session_replication_role = replica;
    DELETE FROM journal; DELETE FROM outside_payments; DELETE FROM buyer_totals; DELETE FROM pools;
    DELETE FROM seats; DELETE FROM bookings; DELETE FROM events;
    RESET session_replication_role;
    ALTER TABLE seats DROP COLUMN IF EXISTS expires_at"""
_WAITS = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
_ALONE = """
    SELECT count(*) = 0 FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

# Rules, as the store's own audit states them.
TWO_OWNERS = "no two active bookings list the same seat"
PINNED = "a seat points only to a booking of its event that lists it"
LOST_ITS_SEAT = "every seat of an active booking points to it"
BLOCKED_AND_OWNED = "a blocked seat has no active owner"
POOL_DRIFT = "a pool's counts are the sum of its active bookings"
TOTAL_DRIFT = "a buyer's total is the sum of the buyer's active bookings"
OVERSOLD = "a pool never sells more than it has"
RESOLVED_TWICE = "a booking resolves at most once, but for expired bookings that late money brought back"

VERBS: Mapping[type[Command], Any] = {
    Hold: hold,
    Change: change,
    Extend: extend,
    Confirm: confirm,
    Release: release,
    Cancel: cancel,
}

CONTEXT = VerbContext(policy=Policy(), ids=IDS)

SWEEPER = partial(expire, ids=IDS, reason="swept")


async def in_time(awaited: Awaitable[T]) -> T:
    """Nothing in a race is waited for without a bound."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaited


async def without_fresh_seats(*_: object) -> list[Any]:
    """A database whose seats were all held before: the seat cache has none of them, so each request must read."""
    return []


async def until(fact: Callable[[], Any]) -> None:
    """Poll for a fact that can only be queried."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await found if isawaitable(found := fact()) else found):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


def has_ended(connection: Any) -> bool:
    """Whether a connection of a pool is no more; the pool takes it back by itself, and then it only raises."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


def bare(transaction: Any) -> Any:
    """The connection that it runs on, without the statements prepared for optimistic writes."""
    connection = transaction.connection
    return connection.bare if isinstance(connection, PreparedConnection) else connection


class Breakpoints:
    """Where the transactions of one server stop."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._reached = {place: asyncio.Event() for place in stops}
        self._opened = {place: asyncio.Event() for place in stops}
        self.pid = 0

    async def reach(self, place: str) -> None:
        """Called by a transaction at a step; waits there if the test wants it to."""
        if place in self._reached:
            self._reached[place].set()
            await in_time(self._opened[place].wait())

    async def reached(self, place: str) -> None:
        """Called by the test: returns once a transaction has come this far."""
        await self._reached[place].wait()

    def open(self, place: str | None) -> None:
        """Let the transaction go on, from one place or from wherever it stops."""
        for opened in [self._opened[place]] if place else self._opened.values():
            opened.set()


class ForwardingTransaction:
    """A transaction that forwards every step; a shortcut is a subclass that does one of them differently."""

    def __init__(self, transaction: Any, breakpoints: Breakpoints) -> None:
        self.inner = transaction
        self.breakpoints = breakpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class StoppableTransaction:
    """A transaction that reports to its breakpoints before and after each step."""

    def __init__(self, transaction: Any, breakpoints: Breakpoints) -> None:
        self._transaction = transaction
        self._stage = breakpoints

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._transaction, name)
        if not callable(step):
            return step

        async def stoppable(*arguments: Any, **named: Any) -> Any:
            await self._stage.reach(f"before {name}")
            result = await step(*arguments, **named)
            await self._stage.reach(f"after {name}")
            return result

        return stoppable


@dataclass(frozen=True, kw_only=True)
class Shortcut:
    """A tempting way to do without one of the steps."""

    sql: Mapping[str, str] = field(default_factory=dict)
    """Named queries to use instead."""
    warp: Callable[[Any, Breakpoints], Any] = ForwardingTransaction
    prepare: str = "SELECT 1"
    """What it needs from the schema, in SQL."""


AS_BUILT = Shortcut()


def edited(name: str, old: str, new: str) -> dict[str, str]:
    """One of the store's own queries with one thing changed, which must be there to be changed."""
    assert old in SQL[name], f"{name} has changed: it no longer says {old!r}"
    return {name: SQL[name].replace(old, new)}


class StoppableStore(PostgresStore):
    """The PostgreSQL store, with breakpoints. It retries only where a test wants it, so that a deadlock is seen."""

    breakpoints: Breakpoints
    shortcut: Shortcut
    retries: bool = False
    drafts: bool = False
    tries_again = 0
    lock_seconds = LOCK_SECONDS_MAX
    ran: list[str]
    """How the work was run, each time: from the cache ("memory"), by a "look", or under "locks"."""
    connection: Any = None
    """The one that it runs on."""

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,
        lock_seconds: float = LOCK_SECONDS_MAX,
    ) -> T:
        """Once, step by step, and under locks: what follows when an optimistic write finds a change.

        With the full wait, whatever the engine allows: a deadlock takes a second to show.
        """
        assert lock_seconds > 0

        async def stoppable(transaction: Any) -> T:
            self.connection = bare(transaction)
            self.breakpoints.pid = self.connection.get_server_pid()
            warped = self.shortcut.warp(transaction, self.breakpoints)
            try:
                return await work(cast("Transaction", StoppableTransaction(warped, self.breakpoints)))
            finally:
                remembered = getattr(transaction, "cached", None)
                self.ran.append("locks" if remembered is None else "memory" if remembered else "look")

        if self.retries:
            return await super().transact(
                stoppable, within=within, optimistic=optimistic and self.drafts, lock_seconds=self.lock_seconds
            )
        return await self._once(stoppable, within=within, lock_seconds=self.lock_seconds)


class Server:
    """One server process, and the one request it carries out."""

    def __init__(self, database: RaceDatabase, store: StoppableStore) -> None:
        self.engine = Engine(store, ids=IDS)
        self.store = store
        self._house = database
        self._task: asyncio.Task[Any] | None = None

    def submit(self, ask: Command) -> Server:
        """Begin one request, as the engine would: decided again if something changed."""
        if isinstance(ask, ChangeEvent):
            return self._begin(self.engine.change_event(ask))
        run = partial(self.engine.run, VERBS[type(ask)], optimistic=type(ask) is not Change)
        queue: BatchQueue[Command] = BatchQueue(
            run, make_room_in=self.engine.make_room_in, have_due=self.engine.have_due, row_waits=self.engine.row_waits
        )
        return self._begin(queue.submit(ask, within=PATIENCE_SECONDS))

    def submit_batch(self, *batch: Command) -> Server:
        """Begin one batch, one transaction."""
        optimistic = type(batch[0]) is not Change
        return self._begin(self.engine.run(VERBS[type(batch[0])], lambda: batch, optimistic=optimistic))

    def sweep(self, sweeper: Any = SWEEPER, **how: int) -> Server:
        """Begin one round of sweeping."""
        how = {"limit": 100, **how}
        return self._begin(self.store.transact(lambda step: sweeper(step, **how), within=PATIENCE_SECONDS))

    async def reached(self, place: str, doing: asyncio.Future[Any] | None = None) -> None:
        """Return once it has come this far; fail at once if its request ends before."""
        await self._until(self.store.breakpoints.reached(place), place, doing)

    async def waits_for_a_lock(self, doing: asyncio.Future[Any] | None = None) -> None:
        """Return once PostgreSQL reports that this server's backend waits for a lock."""
        await self._until(self._house.until_waiting(lambda: self.store.breakpoints.pid), "a lock", doing)

    def go(self, place: str | None = None) -> None:
        """Let it go on from a place, or from all."""
        self.store.breakpoints.open(place)

    async def outcome(self) -> Any:
        """The result: a value, or the error as a value."""
        assert self._task is not None
        self.go()
        await asyncio.wait([self._task], timeout=PATIENCE_SECONDS)
        assert self._task.done(), "still not done"
        return self._task.exception() or self._task.result()

    def stop_at(self, *stops: str) -> None:
        """From now on, for what it does next."""
        self.store.breakpoints = Breakpoints(stops)

    async def close(self) -> None:
        """Cancel its request, and close its connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.engine.close()

    def _begin(self, doing: Any) -> Server:
        assert self._task is None or self._task.done()
        self._task = asyncio.get_running_loop().create_task(doing)
        return self

    async def _until(self, fact: Any, named: str, doing: asyncio.Future[Any] | None = None) -> None:
        ending = doing or self._task
        assert ending is not None
        waiting = asyncio.ensure_future(in_time(fact))
        await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            raise AssertionError(f"never came to {named}") from ending.exception()
        await waiting


class RaceDatabase:
    """One database, its clock, and the servers that sell from it."""

    def __init__(self, url: str, *, clock: MovableClock, observer: Any) -> None:
        self.url = url
        self.clock = clock
        self.observer = observer
        self._servers: list[Server] = []
        self._deadlocks_before = 0

    @classmethod
    async def open(cls, url: str, *, clock: MovableClock) -> RaceDatabase:
        """Empty the database and create one event. Deadlocks are detected soon, so that tests of them are quick."""
        observer = await asyncpg.connect(url)
        name = await observer.fetchval("SELECT current_database()")
        await observer.execute(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '100ms'")
        await observer.execute(_EMPTY)
        database = cls(url, clock=clock, observer=observer)
        database._deadlocks_before = await database.deadlocks()
        server = await database.server()
        await server.engine.create_event(a_play())
        return database

    async def close(self) -> None:
        """Close everything."""
        for server in self._servers:
            await server.close()
        await self.observer.close()

    async def server(
        self,
        *stops: str,
        shortcut: Shortcut = AS_BUILT,
        connections_max: int = 2,
        retries: bool = False,
        drafts: bool = False,
        memory: bool = False,
        url: str | None = None,
    ) -> Server:
        """A new server process, which stops at these places.

        With `drafts` it first tries without locks, and with `memory` at times from the seat cache, without a read.
        """
        store = await StoppableStore.connect(url or self.url, clock=self.clock, connections_max=connections_max)
        assert isinstance(store, StoppableStore)
        store.breakpoints = Breakpoints(stops)
        store.shortcut = shortcut
        store.retries = retries or drafts
        store.drafts = drafts
        store.ran = []
        if memory:
            store.seat_cache._requests_per_page = 0
        else:
            store.seat_cache = SeatCache(without_fresh_seats, bookings_max=0)
        store._sql = {**store._sql, **shortcut.sql}
        server = Server(self, store)
        self._servers.append(server)
        return server

    async def held(self, *seats: str, buyer: str = "ann", units: int = 0, ttl_seconds: int = TTL_SECONDS) -> Booking:
        """A hold that is simply there."""
        return await self.done(a_hold(*seats, buyer=buyer, units=units, ttl_seconds=ttl_seconds))

    async def done(self, ask: Command) -> Booking:
        """A request without contention that succeeds."""
        outcome = await self._servers[0].submit(ask).outcome()
        return granted(outcome)

    async def tried(self, ask: Command) -> Any:
        """A request without contention, and its result."""
        return await self._servers[0].submit(ask).outcome()

    async def tried_sweep(self) -> list[Booking]:
        """One round of sweeping, and what it expired."""
        swept: list[Booking] = await self._servers[0].sweep().outcome()
        return swept

    def pass_the_end(self, booking: Booking) -> None:
        """Let time pass until a second after a hold's end."""
        self.clock.advance((booking.expires_at - self.clock.now()).total_seconds() + 1)

    async def booking(self, booking: Booking) -> Booking:
        """The booking as it is now."""
        _, found = await self._servers[0].engine.store.read_booking(booking.id)
        assert found is not None
        return found

    async def state(self, booking: Booking) -> str:
        """The booking's state now."""
        return (await self.booking(booking)).state.value

    async def owner(self, seat: str) -> BookingId | None:
        """The booking that the seat points to."""
        found: BookingId | None = await self.observer.fetchval("SELECT booking_id FROM seats WHERE id = $1", seat)
        return found

    async def live_owners(self, seat: str) -> int:
        """How many active bookings list the seat: one too many is a seat sold twice."""
        listed: int = await self.observer.fetchval(
            """SELECT count(*) FROM bookings
                WHERE state IN ('held', 'paying', 'confirmed')
                  AND lines -> 'seats' @> jsonb_build_array(jsonb_build_object('id', $1::text))""",
            seat,
        )
        return listed

    async def flaws(self) -> set[str]:
        """The rules that are broken."""
        return {flaw.rule for flaw in await self._servers[0].engine.store.find_flaws(limit=20)}

    async def verbs(self, booking: Booking) -> list[str]:
        """What happened to a booking, in order."""
        return [entry.verb for entry in await self._servers[0].engine.store.read_history(booking.id)]

    async def until_waiting(self, pid: Callable[[], int]) -> None:
        """Poll for a fact: this backend waits for a lock."""
        await self._poll(_WAITS, pid)

    async def deadlocks(self) -> int:
        """How many deadlocks PostgreSQL has seen here. Backends report at their end, so the servers are closed."""
        for server in self._servers:
            await server.close()
        await self._poll(_ALONE)
        seen: int = await self.observer.fetchval(_DEADLOCKS)
        return seen - self._deadlocks_before

    async def _poll(self, fact: str, *arguments: Callable[[], Any]) -> None:
        await until(lambda: self.observer.fetchval(fact, *(argument() for argument in arguments)))


def granted(outcome: Any) -> Booking:
    """The booking of a successful result."""
    assert isinstance(outcome, Decided), repr(outcome)
    found: Booking = outcome.value.booking if isinstance(outcome.value, CancelResult) else outcome.value
    return found


def refused_by(outcome: Any) -> str:
    """Which guard of the schema refused."""
    assert isinstance(outcome, asyncpg.CheckViolationError), repr(outcome)
    constraint: str = outcome.constraint_name
    return constraint
