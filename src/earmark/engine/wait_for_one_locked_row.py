"""Waits for one row that another transaction keeps locked, and for nothing else meanwhile.

A verb locks several rows, one after the other. If it waited long for the last, the others would stay locked with it,
and every request that needs one of those would wait too. So the row is waited for in a transaction of its own, which
ends as soon as it had the row; then the verb is run with its short wait.

Few connections wait long. A row for which none is left at present is tried briefly every now and then: it may be free.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.errors import RowBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from earmark.engine.commands_and_results import Row
    from earmark.engine.ports.store import Transaction

T = TypeVar("T")

LONG_WAITS_MAX = 2
"""How many connections may wait long for locked rows at once: the others stay free for requests that can be decided."""
BRIEF_WAITS_MAX = 2
"""How many more may try rows briefly at once."""
TRY_AGAIN_SECONDS = 0.25
"""How often a row is tried briefly while the long waits are all for other rows."""
LOCK_ORDER = ("bookings", "totals", "pools", "seats")
"""In which order every verb locks its rows."""


class InVain(msgspec.Struct, frozen=True):
    """The row stayed locked for the whole of a long wait."""

    since: float
    """When that wait began."""
    busy: RowBusy


class LockedRowWaits:
    """The waits of one engine for rows that other transactions keep locked."""

    def __init__(self, lock_row: Callable[..., Awaitable[None]]) -> None:
        self._lock_row = lock_row
        """`lock_row(row, lock_seconds=…)` locks this row alone and lets go of it, or raises `RowBusy`."""
        self._long = asyncio.Semaphore(LONG_WAITS_MAX)
        self._brief = asyncio.Semaphore(BRIEF_WAITS_MAX)

    async def have(self, row: Row, *, lock_seconds: float) -> InVain | None:
        """None as soon as the row was had; otherwise it stayed locked for as long as rows are waited for."""
        if await self._have_briefly(row, lock_seconds=lock_seconds):
            return None
        turn = asyncio.create_task(self._long.acquire())
        try:
            while not turn.done():
                await asyncio.wait((turn,), timeout=TRY_AGAIN_SECONDS)
                if not turn.done() and await self._have_briefly(row, lock_seconds=lock_seconds):
                    return None
            began = asyncio.get_running_loop().time()
            busy = await self._try(row, lock_seconds=LOCK_SECONDS_MAX)
            return InVain(began, busy) if busy else None
        finally:
            if not turn.cancel():
                self._long.release()

    async def in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        """Work that waits long itself, for it is not known for which row, as one of the long waits."""
        async with self._long:
            return await work()

    async def run(self, work: Callable[..., Awaitable[T]], *, lock_seconds: float, within: float) -> T:
        """`work(lock_seconds=…)` with the short wait, and again each time that the row which it met was had."""
        until = asyncio.get_running_loop().time() + within
        while True:
            try:
                return await work(lock_seconds=lock_seconds)
            except RowBusy as met:
                busy = met
            row = locked_last(busy.rows.values())
            try:
                async with asyncio.timeout_at(until):
                    if row is None:
                        await self._long.acquire()
                        break
                    if in_vain := await self.have(row, lock_seconds=lock_seconds):
                        raise in_vain.busy
            except TimeoutError:
                raise busy from None
        try:
            return await work(lock_seconds=LOCK_SECONDS_MAX)
        finally:
            self._long.release()

    async def _have_briefly(self, row: Row, *, lock_seconds: float) -> bool:
        async with self._brief:
            return await self._try(row, lock_seconds=lock_seconds) is None

    async def _try(self, row: Row, *, lock_seconds: float) -> RowBusy | None:
        """What is wrong with the store is for the requests to meet: their own transaction is next."""
        try:
            await self._lock_row(row, lock_seconds=lock_seconds)
        except RowBusy as busy:
            return busy
        except Exception:  # noqa: BLE001 (no request waits for this transaction's result)
            return None
        return None


def locked_last(rows: Iterable[Row]) -> Row | None:
    """Of several locked rows, the one to wait for: a verb that meets it has locked all that come before it.

    So the verb is not run before this one is free, and keeps those from others at most once.
    """
    return max(rows, key=_place_in_lock_order, default=None)


def _place_in_lock_order(row: Row) -> int:
    return LOCK_ORDER.index(row[0]) if row[0] in LOCK_ORDER else len(LOCK_ORDER)


async def lock_row(transaction: Transaction, row: Row) -> None:
    """Lock this row, and no other."""
    table, key = row[0], cast("Any", row[1])
    await transaction.begin([])
    match table:
        case "bookings":
            await transaction.lock_bookings([key])
        case "totals":
            await transaction.lock_totals([key])
        case "pools":
            await transaction.lock_pools([key])
        case "seats":
            seen = await transaction.read_seats([key])
            await transaction.lock_seats(seen.values())
