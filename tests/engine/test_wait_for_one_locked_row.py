"""Transactions outside the batches meet a locked row: what they do until it is free, and what they keep locked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.engine.store_with_locks import StoreWithLocks
from tests.engine.virtual_clock import run_virtually

from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.engine.wait_for_one_locked_row import LONG_WAITS_MAX, InVain, LockedRowWaits, locked_last
from earmark.errors import RowBusy

if TYPE_CHECKING:
    from earmark.engine.commands_and_results import Row

POOL: Row = ("pools", "GA")
SEAT: Row = ("seats", "Z9")
BRIEFLY = 0.1
WITHIN = 10.0


class Work:
    """A transaction that needs a pool and a seat, and for how long it was ready to wait each time."""

    def __init__(self, store: StoreWithLocks) -> None:
        self._store = store
        self.lock_seconds: list[float] = []

    async def run(self, *, lock_seconds: float) -> str:
        """Lock both."""
        self.lock_seconds.append(lock_seconds)
        await self._store._transact([POOL, SEAT], lock_seconds=lock_seconds)
        return "done"


async def seat_is_locked(seconds: float) -> tuple[object, list[float], float]:
    """How the work ends, how long it was ready to wait, and how long the pool's lock was asked for in between."""
    store = StoreWithLocks()
    work = Work(store)
    waits = LockedRowWaits(store.lock_row)
    await store.locks[SEAT].acquire()
    asyncio.get_running_loop().call_later(seconds, store.locks[SEAT].release)
    running = asyncio.create_task(waits.run(work.run, lock_seconds=BRIEFLY, within=WITHIN))
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    async with store.locks[POOL]:
        waited = asyncio.get_running_loop().time() - began
    (told,) = await asyncio.gather(running, return_exceptions=True)
    return type(told) if isinstance(told, BaseException) else told, work.lock_seconds, waited


def test_a_transaction_is_run_again_once_the_row_was_had() -> None:
    """It never waits long itself, so the pool that it locks first stays free."""
    assert run_virtually(seat_is_locked(3)) == ("done", [BRIEFLY, BRIEFLY], 0)


def test_a_row_that_stays_locked_is_waited_for_once() -> None:
    """The transaction is not run again for that."""
    assert run_virtually(seat_is_locked(60)) == (RowBusy, [BRIEFLY], 0)


async def no_row_is_named() -> list[float]:
    """As where a whole table is locked."""
    waits = LockedRowWaits(StoreWithLocks().lock_row)
    tried: list[float] = []

    async def work(*, lock_seconds: float) -> None:
        tried.append(lock_seconds)
        if len(tried) == 1:
            raise RowBusy(because="lock timeout")

    await waits.run(work, lock_seconds=BRIEFLY, within=WITHIN)
    return tried


def test_where_no_row_can_be_named_the_transaction_itself_waits_long() -> None:
    """As one of the few that may."""
    assert run_virtually(no_row_is_named()) == [BRIEFLY, LOCK_SECONDS_MAX]


async def wait_for_many_rows(*, let_go: bool) -> tuple[list[object], int]:
    """Ten rows are locked; some waits are cancelled. What the others bring, and how many long waits are left then."""
    store = StoreWithLocks()
    waits = LockedRowWaits(store.lock_row)
    rows: list[Row] = [("seats", f"A{number}") for number in range(10)]
    for row in rows:
        await store.locks[row].acquire()
    waiting = [asyncio.create_task(waits.have(row, lock_seconds=BRIEFLY)) for row in rows]
    await asyncio.sleep(1)
    for cancelled in waiting[::3]:
        cancelled.cancel()
    if let_go:
        for row in rows:
            store.locks[row].release()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    return [one for one in told if not isinstance(one, asyncio.CancelledError)], waits._long._value


@pytest.mark.parametrize("let_go", [True, False])
def test_every_long_wait_is_given_back(*, let_go: bool) -> None:
    """Whether the row was had, stayed locked, or the wait was cancelled: before its turn, or in it."""
    told, left = run_virtually(wait_for_many_rows(let_go=let_go))
    assert len(told) == 6
    assert all(one is None if let_go else isinstance(one, InVain) for one in told)
    assert left == LONG_WAITS_MAX


def test_the_row_that_is_locked_last_is_waited_for() -> None:
    """In the order in which every verb locks them."""
    assert locked_last([SEAT, POOL]) == SEAT
    assert locked_last([POOL, ("totals", "ada"), ("bookings", "b1")]) == POOL
    assert locked_last([]) is None
