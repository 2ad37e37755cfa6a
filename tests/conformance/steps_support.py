"""What the step tests share: a small shop over any store, and clients that write SQL by hand."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg
import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import ACTIVE_STATES, State
from earmark.domain.id_types import Buyer, EventId, OutsidePaymentRef, PoolId, PoolRef, SeatId, SeatRef, TotalRef
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool, PoolDelta
from earmark.domain.seat import Seat
from earmark.engine.ports.store import Changes, SeatUpdate
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
    from earmark.engine.ports.store import Store, Transaction
    from earmark.uuids import Uuid7Ids

T = TypeVar("T")

SHOW = EventId("show")
ANN, BOB, CEM = Buyer("ann"), Buyer("bob"), Buyer("cem")
GA = PoolRef(SHOW, PoolId("GA"))
WITHIN = 10.0


def seat_ref(seat: str) -> SeatRef:
    return SeatRef(SHOW, SeatId(seat))


def total_ref(buyer: Buyer) -> TotalRef:
    return TotalRef(SHOW, buyer)


def paid(payment_id: str) -> OutsidePaymentRef:
    """The reference in the mode of the event."""
    return OutsidePaymentRef(payment_id, mode=Mode.LIVE)


class Shop:
    """One event, and bookings written step by step, as a verb would."""

    def __init__(self, store: Store, *, clock: MovableClock, ids: Uuid7Ids) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids

    async def step(self, ask: Callable[[Transaction], Awaitable[T]], *, keys: Sequence[IdempotencyKey] = ()) -> T:
        """One transaction that begins and then takes one step."""

        async def work(transaction: Transaction) -> T:
            await transaction.begin(keys)
            return await ask(transaction)

        return await self.store.transact(work, within=WITHIN)

    async def write(self, changes: Changes) -> None:
        """One transaction that locks what it counts, and writes."""

        async def work(transaction: Transaction) -> None:
            await transaction.lock_totals(changes.totals.keys())
            await transaction.write(changes)

        await self.step(work)

    def event(self, event_id: EventId = SHOW, **fields: Any) -> Event:
        """An event with a limit of four per buyer; nothing is written."""
        known: dict[str, Any] = {
            "name": "A show",
            "currency": "EUR",
            "mode": Mode.LIVE,
            "created_at": self.clock.now(),
            "per_buyer_max": 4,
        }
        return Event(id=event_id, **(known | fields))

    async def open(self, event: Event | None = None) -> Event:
        """Seats A1 to A6, and five units of GA."""
        event = event or self.event()
        seats = [Seat(event_id=event.id, id=SeatId(f"A{n}"), price=1000 + n) for n in range(1, 7)]
        pools = [Pool(event_id=event.id, id=GA.pool_id, capacity=5, price=500)]
        assert await self.step(lambda transaction: transaction.insert_event(event, seats=seats, pools=pools))
        return event

    def booking(self, *seats: str, units: int = 0, buyer: Buyer = ANN, seconds: float = 600, **fields: Any) -> Booking:
        """A hold as the rules would make it; nothing is written."""
        now = self.clock.now()
        lines = Lines(
            seats=tuple(SeatLine(id=SeatId(seat), price=1000) for seat in seats),
            pools=(PoolLine(id=GA.pool_id, units=units, price=500),) if units else (),
        )
        known: dict[str, Any] = {
            "event_id": SHOW,
            "mode": Mode.LIVE,
            "state": State.HELD,
            "lines": lines,
            "total": lines.total,
            "currency": "EUR",
            "created_at": now,
            "expires_at": now + timedelta(seconds=seconds),
        }
        return Booking(id=self.ids.booking_id(), buyer=buyer, **(known | fields))

    async def hold(self, *seats: str, units: int = 0, buyer: Buyer = ANN, seconds: float = 600) -> Booking:
        """A hold, written whole."""
        booking = self.booking(*seats, units=units, buyer=buyer, seconds=seconds)
        await self.write(self.taking(booking))
        return booking

    def taking(
        self, booking: Booking, *, key: IdempotencyKey | None = None, memory: IdempotencyRecord | None = None
    ) -> Changes:
        """What a new hold writes."""
        return Changes(
            totals={booking.total_ref: booking.lines.units},
            pools=booking.pool_deltas(held=1),
            opened=[booking],
            seats=dict.fromkeys(booking.seat_refs, booking.id),
            entries=[self.entry("hold", booking, key=key, memory=memory)],
        )

    async def move(self, booking: Booking, *states: State, **fields: Any) -> Booking:
        """The booking moved from state to state, each in a transaction of its own, with its counts."""
        for state in states:
            moved = msgspec.structs.replace(booking, state=state, version=booking.version + 1, **fields)
            await self.write(self.moving(booking, moved))
            booking = moved
        return booking

    def moving(self, before: Booking, after: Booking) -> Changes:
        """What a move writes: totals and pools follow the states."""
        units, pools = _weight(after), _held_and_sold(after)
        pools.subtract(_held_and_sold(before))
        delta = PoolDelta(held=pools["held"], sold=pools["sold"])
        return Changes(
            moved=[after],
            totals={after.total_ref: units - _weight(before)},
            pools={GA: delta} if before.lines.pools else {},
            entries=[self.entry("move", after, before=before.state)],
        )

    def entry(
        self,
        verb: str,
        booking: Booking,
        *,
        before: State | None = None,
        key: IdempotencyKey | None = None,
        memory: IdempotencyRecord | None = None,
    ) -> Entry:
        """What the journal says about the booking as it now is."""
        return Entry(
            id=self.ids.entry_id(),
            event_id=booking.event_id,
            booking_id=booking.id,
            version=booking.version,
            verb=verb,
            before=before,
            after=booking.state,
            at=self.clock.now(),
            actor="test",
            facts={"buyer": booking.buyer, "seats": [line.id for line in booking.lines.seats]},
            key=key,
            memory=memory,
        )


def _weight(booking: Booking) -> int:
    return booking.lines.units if booking.state in ACTIVE_STATES else 0


def _held_and_sold(booking: Booking) -> Counter[str]:
    units = sum(line.units for line in booking.lines.pools)
    where = {State.HELD: "held", State.PAYING: "held", State.CONFIRMED: "sold"}.get(booking.state, "gone")
    return Counter({where: units})


async def count(store: Store, table: str) -> int:
    """How many rows a table has, as the next transaction would find it."""
    match store:
        case SqliteStore():
            found = await store.access.read(
                lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone(), within=WITHIN
            )
            return int(found[0])
        case PostgresStore():
            return int(await store.pool.fetchval(f"SELECT count(*) FROM {table}"))
    raise AssertionError(store)


class Refused(Exception):
    """The database itself said no; the message names the rule."""


class SqlClient(Protocol):
    """A client that writes SQL by hand, as at the database's own prompt."""

    async def run(self, sql: str) -> None:
        """Run one statement, or raise `Refused` and undo just that."""
        ...

    async def look(self, sql: str) -> str:
        """The one value that a query finds."""
        ...


class SqliteClient:
    """A plain connection, as the sqlite3 shell makes one: it does not even keep foreign keys."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def run(self, sql: str) -> None:
        """A statement that a trigger refuses undoes itself."""
        try:
            self._connection.execute(sql)
        except sqlite3.IntegrityError as refusal:
            raise Refused(str(refusal)) from refusal

    async def look(self, sql: str) -> str:
        """As text."""
        return str(self._connection.execute(sql).fetchone()[0])


class PostgresClient:
    """A plain connection, as psql makes one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, sql: str) -> None:
        """In a savepoint, for a refusal would end the transaction."""
        await self._connection.execute("SAVEPOINT attempt")
        try:
            await self._connection.execute(sql)
        except asyncpg.IntegrityConstraintViolationError as refusal:
            await self._connection.execute("ROLLBACK TO SAVEPOINT attempt")
            raise Refused(f"{refusal} ({refusal.constraint_name})") from refusal

    async def look(self, sql: str) -> str:
        """As text."""
        return str(await self._connection.fetchval(sql))


class SqlSession:
    """A connection by hand to a SQLite file or a PostgreSQL URL; it begins transaction after transaction."""

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._connection: Any = None

    @asynccontextmanager
    async def client(self, *, keep: bool) -> AsyncIterator[SqlClient]:
        """One transaction, undone at the end unless it is to be kept."""
        run = await self._open()
        try:
            if isinstance(self._place, str):
                await run("BEGIN")
                yield PostgresClient(self._connection)
                await run("COMMIT" if keep else "ROLLBACK")
            else:
                run("BEGIN IMMEDIATE")
                yield SqliteClient(self._connection)
                run("COMMIT" if keep else "ROLLBACK")
        except BaseException:
            # What it left is undone with the connection; the next transaction gets a new one.
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if isinstance(self._place, str) and connection is not None:
            await connection.close()
        elif connection is not None:
            connection.close()

    async def _open(self) -> Callable[[str], Any]:
        if self._connection is None and isinstance(self._place, str):
            self._connection = await asyncpg.connect(self._place)
        elif self._connection is None:
            self._connection = sqlite3.connect(self._place, isolation_level=None)
        run: Callable[[str], Any] = self._connection.execute
        return run


@asynccontextmanager
async def a_sql_client(place: Path | str, *, keep: bool) -> AsyncIterator[SqlClient]:
    """One transaction by hand, on a connection of its own."""
    session = SqlSession(place)
    try:
        async with session.client(keep=keep) as client:
            yield client
    finally:
        await session.close()


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A database with one show and a booking in each state that matters, and the names for SQL to use."""

    place: Any
    names: Mapping[str, str]
    session: Any = None
    """A `SqlSession` that stays open from test to test, where all that tests do is undone."""

    def sql_client(self, *, keep: bool = False) -> AbstractAsyncContextManager[SqlClient]:
        """One transaction by hand; undone at the end unless it is to be kept."""
        if self.session is None:
            return a_sql_client(self.place, keep=keep)
        assert not keep, "other tests use this database"
        client: AbstractAsyncContextManager[SqlClient] = self.session.client(keep=False)
        return client

    def fill(self, sql: str) -> str:
        """SQL with the bookings' ids in place of their names."""
        return sql.format_map(self.names)


async def furnish(shop: Shop) -> Mapping[str, str]:
    """A1 and two units held by Ann, A2 sold to Bob, A3 expired, A4 released, A5 blocked, A6 free."""
    await shop.open()
    held = await shop.hold("A1", units=2)
    sold = await shop.move(await shop.hold("A2", buyer=BOB), State.CONFIRMED, confirmed_at=shop.clock.now())
    expired = await shop.move(await shop.hold("A3", buyer=CEM), State.EXPIRED, ended_at=shop.clock.now())
    released = await shop.move(await shop.hold("A4", buyer=CEM), State.RELEASED, ended_at=shop.clock.now())

    async def block(transaction: Transaction) -> None:
        await transaction.write(Changes(seat_changes=[SeatUpdate(ref=seat_ref("A5"), blocked=True)]))

    await shop.step(block)
    known = {"held": held, "sold": sold, "expired": expired, "released": released}
    unused = {name: str(shop.ids.booking_id()) for name in ("new", "newer")}
    return {name: str(booking.id) for name, booking in known.items()} | unused
