"""What the strategies stand on: connections, named statements, and the rows they all write.

Nothing here keeps two buyers apart. That is each strategy's own affair, and all that its file is about.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import asyncpg
import msgspec

from earmark.bench.booking.strategies import drafts
from earmark.domain import booking as law
from earmark.errors import Refusal
from earmark.store.postgres.migrate import split_url
from earmark.store.postgres.upkeep import RESTRAINED
from earmark.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from earmark.bench.booking.ports import Place, Want
    from earmark.bench.booking.strategies.drafts import Sale
    from earmark.domain.booking import Booking

    Write = Callable[[Any, Booking], Awaitable[None]]

Step = Any  # a connection of asyncpg, which ships no types, inside a transaction or not

ATTEMPTS_MAX = 5
KEY_USED = "journal_by_key"
SETTINGS = {
    "application_name": "earmark-lab",
    # Statements over arrays would be planned anew at each call.
    "plan_cache_mode": "force_generic_plan",
    # A plan is kept, and may have been made when the tables were small: everything is found by its key, as in ours.
    **dict.fromkeys(RESTRAINED, "off"),
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


class Refused(Exception):
    """Something of it is taken or exhausted."""

    def __init__(self, *, stale: bool = False) -> None:
        self.stale = stale
        """Taken only by holds that have lapsed or ended: let go of them, and look again."""


class Earlier(Exception):
    """This key was answered before."""

    def __init__(self, booking_id: UUID) -> None:
        self.booking_id = booking_id


class Moved(Exception):
    """Somebody else was quicker between the look and the write: look again."""


@cache
def statements(name: str, *, package: str = __package__) -> Mapping[str, str]:
    """The named statements of one file in a package's `sql/`."""
    text = (resources.files(package) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    starts = list(_NAMED.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        start[1]: text[start.end() : end].strip().removesuffix(";") for start, end in zip(starts, ends, strict=True)
    }


class Paid(msgspec.Struct, frozen=True, kw_only=True):
    """What a confirm is asked: this booking was paid for, by that payment."""

    booking_id: UUID
    payment_id: str
    key: str

    @property
    def request_hash(self) -> bytes:
        """Which request it was."""
        return drafts.hash_of(self.booking_id, self.payment_id)


class Ground:
    """A database, and how to write what a booking is made of."""

    def __init__(self, pool: Any, place: Place, sql: Mapping[str, str]) -> None:
        self._pool = pool
        self._place = place
        self.sql = sql

    @classmethod
    async def open(cls, place: Place, *files: str) -> Self:
        """A pool of connections, all of them open, and the statements of `sql/common.sql` and of these files."""
        dsn, _ = split_url(place.database)
        pool = await asyncpg.create_pool(
            dsn,
            min_size=place.connections,
            max_size=place.connections,
            # Nothing of ours changes a session, so that nothing has to be put back at the price of a round trip.
            reset=_leave,
            server_settings=SETTINGS,
        )
        known = (statements(file) for file in ("common", *files))
        return cls(pool, place, {name: sql for file in known for name, sql in file.items()})

    async def close(self) -> None:
        """Let go of the connections."""
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Step]:
        """Statements that are each a transaction of their own."""
        async with self._pool.acquire() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Step]:
        """Statements that are kept together or not at all."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection

    async def pause(self) -> None:
        """Time that a race injects between a look and its write."""
        if self._place.pause_seconds:
            await asyncio.sleep(self._place.pause_seconds)

    async def hold(self, want: Want, attempt: Callable[[Want], Awaitable[UUID]]) -> UUID | None:
        """Attempt it until it is decided: what a driver, a guard of the schema or a lapsed hold may say in between."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return await attempt(want)
            except Earlier as earlier:
                return earlier.booking_id
            except Refused as refused:
                if not refused.stale:
                    return None
                await self.let_go(want)
            except (Moved, asyncpg.DeadlockDetectedError):
                pass
            except asyncpg.UniqueViolationError as twin:
                # The twin was quicker, and has committed: its answer is there to be read.
                if twin.constraint_name != KEY_USED:
                    raise
            except asyncpg.CheckViolationError:
                return None
        return None

    async def confirm(self, paid: Paid, attempt: Callable[[Paid], Awaitable[None]]) -> bool:
        """As `hold`: whether the booking is confirmed now, by this attempt or by an earlier one with its key."""
        for _ in range(ATTEMPTS_MAX):
            try:
                await attempt(paid)
            except Earlier:
                return True
            except (Refused, Refusal, asyncpg.CheckViolationError):
                return False
            except (Moved, asyncpg.DeadlockDetectedError):
                continue
            except asyncpg.UniqueViolationError as twin:
                if twin.constraint_name != KEY_USED:
                    return False
                continue
            return True
        return False

    async def open_hold(self, step: Step, want: Want) -> Sale:
        """The rules of the event, unless the key was answered before or nothing is on sale."""
        row = await step.fetchrow(self.sql["open_hold"], want.event_id, drafts.CALLER, want.key)
        return judge_opening(row, want)

    async def find_key(self, step: Step, key: str, request_hash: bytes) -> None:
        """Go no further if the key was answered before."""
        row = await step.fetchrow(self.sql["find_key"], drafts.CALLER, key)
        if row is not None:
            judge_key(row, request_hash)

    async def look_at_seats(self, step: Step, want: Want, statement: str = "look_at_seats") -> list[Any]:
        """The wanted seats, by a statement that locks them or does not."""
        if not want.seats:
            return []
        rows: list[Any] = await step.fetch(self.sql[statement], want.event_id, sorted(want.seats))
        return rows

    async def look_at_pools(self, step: Step, want: Want, statement: str = "look_at_pools") -> list[Any]:
        """The wanted pools, by a statement that locks them or does not."""
        if not want.pools:
            return []
        rows: list[Any] = await step.fetch(self.sql[statement], want.event_id, sorted(want.pools))
        return rows

    async def write_hold(
        self,
        step: Step,
        want: Want,
        sale: Sale,
        *,
        seats: Mapping[str, int],
        pools: Mapping[str, int],
        point: Write | None = None,
        take: Write | None = None,
    ) -> UUID:
        """One statement per table. `seats` and `pools` are the prices that were looked up.

        `point` and `take` are another way of writing the seats and the pools than to overwrite what was looked at.
        """
        booking = drafts.held(want, booking_id=uuid7(), sale=sale, seats=seats, pools=pools)
        total = await step.fetchval(self.sql["add_total"], want.event_id, want.buyer, drafts.units(want))
        judge_limit(total, sale)
        if want.pools:
            await (take or self.take_pools)(step, booking)
        await step.execute(self.sql["insert_booking"], *drafts.opened_row(booking))
        if want.seats:
            await (point or self.point_seats)(step, booking)
        entry = drafts.hold_entry(booking, key=want.key, request_hash=drafts.hash_of(want))
        await step.execute(self.sql["insert_entry"], *entry)
        return booking.id

    async def point_seats(self, step: Step, booking: Booking) -> None:
        """The seats belong to the booking, whatever was there."""
        ids = [line.id for line in booking.lines.seats]
        await step.execute(self.sql["point_seats"], booking.event_id, ids, booking.id)

    async def take_pools(self, step: Step, booking: Booking) -> None:
        """The units are held, however many there were."""
        await self.add_pools(step, booking, held=1, sold=0)

    async def add_pools(self, step: Step, booking: Booking, *, held: int, sold: int) -> None:
        """The booking's units, times these signs."""
        lines = booking.lines.pools
        counts = ([line.units * held for line in lines], [line.units * sold for line in lines])
        await step.execute(self.sql["add_pools"], booking.event_id, [line.id for line in lines], *counts)

    async def write_confirm(self, step: Step, row: Any, paid: Paid, *, mark: Write | None = None) -> None:
        """Judge the booking as it was read, then one statement per table; `mark` is another way of writing it."""
        if row is None:
            raise Refused
        before = drafts.booking(row)
        after = law.confirm(before, payment_id=paid.payment_id, payment_method=None, now=row["now"])
        if after is before:
            return
        await step.execute(self.sql["insert_payment"], paid.payment_id, after.id)
        if after.lines.pools:
            await self.add_pools(step, after, held=-1, sold=1)
        await (mark or self.mark_confirmed)(step, after)
        entry = drafts.confirm_entry(before, after, key=paid.key, request_hash=paid.request_hash)
        await step.execute(self.sql["insert_entry"], *entry)

    async def mark_confirmed(self, step: Step, after: Booking) -> None:
        """The hold becomes a sale, whatever it was."""
        await step.execute(self.sql["mark_confirmed"], after.id, after.confirmed_at, after.payment_id, after.version)

    async def let_go(self, want: Want) -> None:
        """End the lapsed holds that stand in the way, and free their seats: what others leave to a cron job.

        In a transaction of its own, judged on the locked booking: it is the same for all strategies, and right.
        """
        async with self.transaction() as step:
            for row in await step.fetch(self.sql["lock_stale"], want.event_id, list(want.seats)):
                before = drafts.booking(row)
                seats = [line.id for line in before.lines.seats]
                if before.is_due(row["now"]):
                    after = law.expire(before, now=row["now"])
                    await step.execute(self.sql["mark_expired"], after.id, after.ended_at, after.version)
                    await step.execute(self.sql["give_back"], before.event_id, before.buyer, before.lines.units)
                    if before.lines.pools:
                        await self.add_pools(step, before, held=-1, sold=0)
                    await step.execute(self.sql["insert_entry"], *drafts.expire_entry(before, after))
                elif before.is_live:
                    continue
                await step.execute(self.sql["clear_seats"], before.event_id, seats, before.id)


class Peer(ABC):
    """A strategy over this ground: its file says what one attempt at a hold and one at a confirm are."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    async def hold(self, want: Want) -> UUID | None:
        """The booking, or None: refused."""
        return await self.ground.hold(want, self.try_hold)

    async def confirm(self, booking_id: UUID, *, payment_id: str, key: str) -> bool:
        """Whether the paid hold is a sale now."""
        paid = Paid(booking_id=booking_id, payment_id=payment_id, key=key)
        return await self.ground.confirm(paid, self.try_confirm)

    async def close(self) -> None:
        """Let go of connections."""
        await self.ground.close()

    @abstractmethod
    async def try_hold(self, want: Want) -> UUID:
        """The new booking; raises `Refused`, `Earlier` or `Moved`."""

    @abstractmethod
    async def try_confirm(self, paid: Paid) -> None:
        """Make it a sale; raises the same."""


def judge_opening(row: Any, want: Want) -> Sale:
    """What `open_hold` read."""
    if row is None:
        raise LookupError(f"There is no event {want.event_id}.")
    if row["earlier"]:
        judge_key(row, drafts.hash_of(want))
    if not row["on_sale"]:
        raise Refused
    return drafts.Sale(
        now=row["now"],
        live=row["live"],
        currency=row["currency"],
        per_buyer_max=row["per_buyer_max"],
        on_sale=row["on_sale"],
    )


def judge_key(row: Any, request_hash: bytes) -> None:
    """A key that was used is answered as before, or refused when it was used for something else."""
    raise Earlier(row["earlier"]) if row["request_hash"] == request_hash else Refused


def judge_limit(total: int, sale: Sale) -> None:
    """No buyer has more than the event allows."""
    if sale.per_buyer_max is not None and total > sale.per_buyer_max:
        raise Refused


def judge_seats(wanted: Collection[str], rows: Sequence[Any]) -> dict[str, int]:
    """The prices of the seats, if all of them are there and free."""
    if len(rows) < len(wanted) or any(row["blocked"] for row in rows):
        raise Refused
    if taken := [row for row in rows if row["booking_id"] is not None]:
        # An owner that was not seen, for it came while the look waited, is alive.
        raise Refused(stale=all(row["stale"] for row in taken))
    return {row["id"]: row["price"] for row in rows}


def judge_pools(wanted: Mapping[str, int], rows: Sequence[Any]) -> dict[str, int]:
    """The prices of the pools, if all of them are there and have enough."""
    if len(rows) < len(wanted) or any(row["free"] < wanted[row["id"]] for row in rows):
        raise Refused
    return {row["id"]: row["price"] for row in rows}


async def _leave(connection: Any) -> None:
    """Leave a session as it is."""
