"""What the strategies share: connections, named statements, and the rows that all of them write.

Nothing here keeps two buyers apart: each strategy does that in its own file.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import asyncpg
import msgspec

from earmark.bench.booking.strategies import build_rows_all_strategies_write
from earmark.bench.named_sql import named_sql
from earmark.domain import booking as booking_rules
from earmark.errors import Refusal
from earmark.store.postgres.migrate import split_url
from earmark.store.postgres.session_settings import RESTRAINED
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from earmark.bench.booking.strategies.build_rows_all_strategies_write import EventRules
    from earmark.bench.booking.strategy_protocol import StrategySettings, Want
    from earmark.domain.booking import Booking

    Write = Callable[[Any, Booking], Awaitable[None]]

Connection = Any  # a connection of asyncpg, which ships no types, inside a transaction or not

ATTEMPTS_MAX = 5
KEY_USED = "journal_by_key"
SETTINGS = {
    "application_name": "earmark-bench",
    # Otherwise statements over arrays would be planned again at each call.
    "plan_cache_mode": "force_generic_plan",
    # A plan is kept, and may have been made when the tables were small: rows are found by key, as in our store.
    **dict.fromkeys(RESTRAINED, "off"),
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}


class HoldRefused(Exception):
    """A seat is taken or a pool is exhausted."""

    def __init__(self, *, stale: bool = False) -> None:
        self.stale = stale
        """Taken only by holds that have lapsed or ended: expire them, and look again."""


class AnsweredBefore(Exception):
    """This key was answered before."""

    def __init__(self, booking_id: UUID) -> None:
        self.booking_id = booking_id


class ChangedMeanwhile(Exception):
    """Another request has written between the look and the write: look again."""


class ConfirmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to confirm a booking with a payment."""

    booking_id: UUID
    payment_id: str
    key: str

    @property
    def request_hash(self) -> bytes:
        """The hash that is stored with the key."""
        return build_rows_all_strategies_write.hash_of(self.booking_id, self.payment_id)


class StrategyDatabase:
    """A pool of connections, and the statements that write a booking."""

    def __init__(self, pool: Any, settings: StrategySettings, sql: Mapping[str, str]) -> None:
        self._pool = pool
        self._settings = settings
        self.sql = sql

    @classmethod
    async def open(cls, settings: StrategySettings, *files: str) -> Self:
        """A pool of connections, all open, and the statements that strategies share and those of these files."""
        dsn, _ = split_url(settings.database)
        pool = await asyncpg.create_pool(
            dsn,
            min_size=settings.connections,
            max_size=settings.connections,
            # No strategy changes a session, so that no reset and no round trip is needed.
            reset=_leave,
            server_settings=SETTINGS,
        )
        known = (named_sql(__package__, file) for file in ("shared_hold_and_confirm", *files))
        return cls(pool, settings, {name: sql for file in known for name, sql in file.items()})

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection on which each statement is a transaction."""
        async with self._pool.acquire() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection

    async def pause(self) -> None:
        """Wait for the time that a race injects between a look and its write."""
        if self._settings.pause_seconds:
            await asyncio.sleep(self._settings.pause_seconds)

    async def hold(self, want: Want, attempt: Callable[[Want], Awaitable[UUID]]) -> UUID | None:
        """Repeat the attempt until it is decided: after a deadlock, a lapsed hold or a duplicate key."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return await attempt(want)
            except AnsweredBefore as earlier:
                return earlier.booking_id
            except HoldRefused as refused:
                if not refused.stale:
                    return None
                await self.expire_lapsed(want)
            except (ChangedMeanwhile, asyncpg.DeadlockDetectedError):
                pass
            except asyncpg.UniqueViolationError as duplicate:
                # The same request was sent twice, and the other one has committed: its answer can be read.
                if duplicate.constraint_name != KEY_USED:
                    raise
            except asyncpg.CheckViolationError:
                return None
        return None

    async def confirm(self, paid: ConfirmRequest, attempt: Callable[[ConfirmRequest], Awaitable[None]]) -> bool:
        """As `hold`: whether the booking is confirmed now, by this attempt or by an earlier one with its key."""
        for _ in range(ATTEMPTS_MAX):
            try:
                await attempt(paid)
            except AnsweredBefore:
                return True
            except (HoldRefused, Refusal, asyncpg.CheckViolationError):
                return False
            except (ChangedMeanwhile, asyncpg.DeadlockDetectedError):
                continue
            except asyncpg.UniqueViolationError as duplicate:
                if duplicate.constraint_name != KEY_USED:
                    return False
                continue
            return True
        return False

    async def open_hold(self, connection: Connection, want: Want) -> EventRules:
        """The rules of the event, unless the key was answered before or nothing is on sale."""
        row = await connection.fetchrow(
            self.sql["open_hold"], want.event_id, build_rows_all_strategies_write.CALLER, want.key
        )
        return judge_opening(row, want)

    async def find_key(self, connection: Connection, key: str, request_hash: bytes) -> None:
        """Raise `AnsweredBefore` if the key was used."""
        row = await connection.fetchrow(self.sql["find_key"], build_rows_all_strategies_write.CALLER, key)
        if row is not None:
            judge_key(row, request_hash)

    async def look_at_seats(self, connection: Connection, want: Want, statement: str = "look_at_seats") -> list[Any]:
        """The wanted seats, by a statement that locks them or does not."""
        if not want.seats:
            return []
        rows: list[Any] = await connection.fetch(self.sql[statement], want.event_id, sorted(want.seats))
        return rows

    async def look_at_pools(self, connection: Connection, want: Want, statement: str = "look_at_pools") -> list[Any]:
        """The wanted pools, by a statement that locks them or does not."""
        if not want.pools:
            return []
        rows: list[Any] = await connection.fetch(self.sql[statement], want.event_id, sorted(want.pools))
        return rows

    async def write_hold(
        self,
        connection: Connection,
        want: Want,
        sale: EventRules,
        *,
        seats: Mapping[str, int],
        pools: Mapping[str, int],
        point: Write | None = None,
        take: Write | None = None,
    ) -> UUID:
        """One statement per table. `seats` and `pools` are the prices that were looked up.

        `point` and `take` are another way of writing the seats and the pools than to overwrite what was looked at.
        """
        booking = build_rows_all_strategies_write.held(want, booking_id=uuid7(), sale=sale, seats=seats, pools=pools)
        total = await connection.fetchval(
            self.sql["add_total"], want.event_id, want.buyer, build_rows_all_strategies_write.units(want)
        )
        judge_limit(total, sale)
        if want.pools:
            await (take or self.take_pools)(connection, booking)
        await connection.execute(self.sql["insert_booking"], *build_rows_all_strategies_write.opened_row(booking))
        if want.seats:
            await (point or self.point_seats)(connection, booking)
        entry = build_rows_all_strategies_write.hold_entry(
            booking, key=want.key, request_hash=build_rows_all_strategies_write.hash_of(want)
        )
        await connection.execute(self.sql["insert_entry"], *entry)
        return booking.id

    async def point_seats(self, connection: Connection, booking: Booking) -> None:
        """Point the seats to the booking, whatever they pointed to."""
        ids = [line.id for line in booking.lines.seats]
        await connection.execute(self.sql["point_seats"], booking.event_id, ids, booking.id)

    async def take_pools(self, connection: Connection, booking: Booking) -> None:
        """Count the units as held, however many were free."""
        await self.add_pools(connection, booking, held=1, sold=0)

    async def add_pools(self, connection: Connection, booking: Booking, *, held: int, sold: int) -> None:
        """Add the booking's units to the counts of held and sold, with these signs."""
        lines = booking.lines.pools
        counts = ([line.units * held for line in lines], [line.units * sold for line in lines])
        await connection.execute(self.sql["add_pools"], booking.event_id, [line.id for line in lines], *counts)

    async def write_confirm(
        self, connection: Connection, row: Any, paid: ConfirmRequest, *, mark: Write | None = None
    ) -> None:
        """Judge the booking as it was read, then one statement per table; `mark` is another way of writing it."""
        if row is None:
            raise HoldRefused
        before = build_rows_all_strategies_write.booking(row)
        after = booking_rules.confirm(before, payment_id=paid.payment_id, payment_method=None, now=row["now"])
        if after is before:
            return
        await connection.execute(self.sql["insert_payment"], paid.payment_id, after.id)
        if after.lines.pools:
            await self.add_pools(connection, after, held=-1, sold=1)
        await (mark or self.mark_confirmed)(connection, after)
        entry = build_rows_all_strategies_write.confirm_entry(
            before, after, key=paid.key, request_hash=paid.request_hash
        )
        await connection.execute(self.sql["insert_entry"], *entry)

    async def mark_confirmed(self, connection: Connection, after: Booking) -> None:
        """Mark the booking as confirmed, whatever its state."""
        await connection.execute(
            self.sql["mark_confirmed"], after.id, after.confirmed_at, after.payment_id, after.version
        )

    async def expire_lapsed(self, want: Want) -> None:
        """Expire the lapsed holds of the wanted seats, and free these: other shops use a cron job for that.

        It runs in its own transaction, decides on the locked booking, and is the same for all strategies.
        """
        async with self.transaction() as connection:
            for row in await connection.fetch(self.sql["lock_stale"], want.event_id, list(want.seats)):
                before = build_rows_all_strategies_write.booking(row)
                seats = [line.id for line in before.lines.seats]
                if before.is_due(row["now"]):
                    after = booking_rules.expire(before, now=row["now"])
                    await connection.execute(self.sql["mark_expired"], after.id, after.ended_at, after.version)
                    await connection.execute(self.sql["give_back"], before.event_id, before.buyer, before.lines.units)
                    if before.lines.pools:
                        await self.add_pools(connection, before, held=-1, sold=0)
                    await connection.execute(
                        self.sql["insert_entry"], *build_rows_all_strategies_write.expire_entry(before, after)
                    )
                elif before.is_active:
                    continue
                await connection.execute(self.sql["clear_seats"], before.event_id, seats, before.id)


class TableStrategy(ABC):
    """A strategy on the tables: a subclass defines one attempt at a hold and one at a confirm."""

    def __init__(self, database: StrategyDatabase) -> None:
        self.database = database

    async def hold(self, want: Want) -> UUID | None:
        """The booking, or None: refused."""
        return await self.database.hold(want, self.try_hold)

    async def confirm(self, booking_id: UUID, *, payment_id: str, key: str) -> bool:
        """Whether the paid hold is a sale now."""
        paid = ConfirmRequest(booking_id=booking_id, payment_id=payment_id, key=key)
        return await self.database.confirm(paid, self.try_confirm)

    async def close(self) -> None:
        """Close the connections to the servers under test."""
        await self.database.close()

    @abstractmethod
    async def try_hold(self, want: Want) -> UUID:
        """The new booking; raises `HoldRefused`, `AnsweredBefore` or `ChangedMeanwhile`."""

    @abstractmethod
    async def try_confirm(self, paid: ConfirmRequest) -> None:
        """Confirm the booking; raises the same."""


def judge_opening(row: Any, want: Want) -> EventRules:
    """The rules of the event that `open_hold` has read."""
    if row is None:
        raise LookupError(f"There is no event {want.event_id}.")
    if row["earlier"]:
        judge_key(row, build_rows_all_strategies_write.hash_of(want))
    if not row["on_sale"]:
        raise HoldRefused
    return build_rows_all_strategies_write.EventRules(
        now=row["now"],
        mode=row["mode"],
        currency=row["currency"],
        per_buyer_max=row["per_buyer_max"],
        on_sale=row["on_sale"],
    )


def judge_key(row: Any, request_hash: bytes) -> None:
    """Answer a used key as before, or refuse it when it was used for another request."""
    raise AnsweredBefore(row["earlier"]) if row["request_hash"] == request_hash else HoldRefused


def judge_limit(total: int, sale: EventRules) -> None:
    """No buyer has more than the event allows."""
    if sale.per_buyer_max is not None and total > sale.per_buyer_max:
        raise HoldRefused


def judge_seats(wanted: Collection[str], rows: Sequence[Any]) -> dict[str, int]:
    """The prices of the seats, if all of them are there and free."""
    if len(rows) < len(wanted) or any(row["blocked"] for row in rows):
        raise HoldRefused
    if taken := [row for row in rows if row["booking_id"] is not None]:
        # An owner that the look did not see has come while it waited, and is active.
        raise HoldRefused(stale=all(row["stale"] for row in taken))
    return {row["id"]: row["price"] for row in rows}


def judge_pools(wanted: Mapping[str, int], rows: Sequence[Any]) -> dict[str, int]:
    """The prices of the pools, if all of them are there and have enough."""
    if len(rows) < len(wanted) or any(row["free"] < wanted[row["id"]] for row in rows):
        raise HoldRefused
    return {row["id"]: row["price"] for row in rows}


async def _leave(connection: Any) -> None:
    """Change nothing when a connection returns to the pool."""
