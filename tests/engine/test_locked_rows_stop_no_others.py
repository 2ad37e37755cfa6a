"""A minute with a row that a foreign transaction keeps locked: what it does to the requests that do not need it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.store_with_locks import Clients, together
from tests.engine.virtual_clock import run_virtually

from earmark.engine import requests_waiting_for_locked_rows, wait_for_one_locked_row
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.engine.requests_waiting_for_locked_rows import RequestsWaitingForLockedRows
from earmark.engine.wait_for_one_locked_row import LockedRowWaits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from earmark.engine.commands_and_results import Row

MINUTE = 60.0
POOL: Row = ("pools", "GA")
SEAT: Row = ("seats", "Z9")
AT_ONCE_SECONDS = 0.02
"""About what a request takes that waits for nothing."""
BRIEFLY_SECONDS = 0.3


async def both(every: float, *, other_server: bool = False) -> Clients:
    """Buyers of the pool's units, and every so often a buyer who wants one and the seat that is locked."""
    clients = Clients()
    await clients.store.locks[SEAT].acquire()

    async def sell_elsewhere() -> None:
        while other_server and asyncio.get_running_loop().time() < MINUTE:
            async with clients.store.locks[POOL]:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)

    await together(
        sell_elsewhere(),
        clients.ask_every(0.02, "honest", POOL, until=MINUTE),
        clients.ask_every(every, "hostile", POOL, SEAT, until=MINUTE),
    )
    await clients.all_told()
    return clients


@pytest.mark.parametrize("every", [5, 1, 0.1])
def test_a_buyer_who_waits_for_a_seat_keeps_no_pool_locked(every: float) -> None:
    """The seat is waited for alone: however often it is asked for, the pool's other buyers do not notice."""
    clients = run_virtually(both(every))
    assert set(clients.told) == {("honest", "decided"), ("hostile", "RowBusy")}
    assert clients.median("honest") < AT_ONCE_SECONDS
    assert max(clients.seconds["honest"]) < BRIEFLY_SECONDS


def test_control_a_verb_that_waits_long_itself_keeps_the_pool_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the pool is locked before the seat is waited for, and is waited for by all its buyers."""

    async def have_at_once(*_: Any, **__: Any) -> None:
        """The row is not waited for alone."""

    monkeypatch.setattr(LockedRowWaits, "have", have_at_once)
    monkeypatch.setattr(RequestsWaitingForLockedRows, "_patience", lambda *_: LOCK_SECONDS_MAX)
    clients = run_virtually(both(5))
    assert clients.told["honest", "Overloaded"] or clients.median("honest") > 1


def test_of_several_locked_rows_the_one_that_is_locked_last_is_waited_for() -> None:
    """The pool is often locked by another server, too. It is soon had, and then the seat would still be locked."""
    clients = run_virtually(both(1, other_server=True))
    assert set(clients.told) == {("honest", "decided"), ("hostile", "RowBusy")}
    assert max(clients.seconds["honest"]) < BRIEFLY_SECONDS


def test_control_requests_that_wait_for_the_row_locked_first_stop_its_buyers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: they had the pool again and again, and each time kept it locked while they met the seat."""

    def locked_first(rows: Iterable[Row]) -> Row | None:
        return next(iter(rows), None)

    monkeypatch.setattr(requests_waiting_for_locked_rows, "locked_last", locked_first)
    clients = run_virtually(both(1, other_server=True))
    assert clients.told["honest", "Overloaded"] > clients.told["honest", "decided"]


async def many_seats_and_a_pool(seats: int) -> Clients:
    """So many seats stay locked and are asked for every five seconds; the pool is locked once, for half a second."""
    clients = Clients()
    locked: list[Row] = [("seats", f"Z{number}") for number in range(seats)]
    for seat in locked:
        await clients.store.locks[seat].acquire()

    async def lock_pool() -> None:
        await asyncio.sleep(6)
        async with clients.store.locks[POOL]:
            await asyncio.sleep(0.5)

    await together(
        *(clients.ask_every(5, "seat", seat, until=MINUTE) for seat in locked),
        clients.ask_every(0.1, "pool", POOL, until=MINUTE),
        lock_pool(),
    )
    await clients.all_told()
    return clients


def test_a_row_that_is_free_again_is_had_while_others_are_waited_for() -> None:
    """It is tried every now and then, though the long waits are all for rows that stay locked."""
    clients = run_virtually(many_seats_and_a_pool(10))
    assert max(clients.seconds["pool"]) < 1
    assert clients.told["pool", "Overloaded"] == 0


def test_control_a_row_that_waits_for_a_turn_stays_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: locked for half a second, it was shut for as long as the turns of the others took."""
    monkeypatch.setattr(wait_for_one_locked_row, "TRY_AGAIN_SECONDS", MINUTE)
    clients = run_virtually(many_seats_and_a_pool(10))
    assert max(clients.seconds["pool"]) > LOCK_SECONDS_MAX or clients.told["pool", "Overloaded"] > 0


async def a_seat_of_a_locked_booking() -> Clients:
    """Fifty each second want a seat whose lapsed owner is locked, which they do not name; others want other seats."""
    clients = Clients()
    owner: Row = ("bookings", "lapsed")
    clients.store.behind[SEAT] = owner
    await clients.store.locks[owner].acquire()

    async def others() -> None:
        for number in range(1000):
            clients.ask("other", ("seats", f"A{number}"))
            await asyncio.sleep(0.01)

    await together(others(), clients.ask_every(0.02, "hot", SEAT, until=10))
    await clients.all_told()
    assert set(clients.told) == {("other", "decided"), ("hot", "RowBusy")}
    assert not clients.queue._blocked._leads, "nothing is remembered of a row for which no request waits"
    return clients


def test_requests_that_lead_to_a_locked_row_are_known_when_they_come() -> None:
    """Like those that name it: they wait for it at once, and no batch meets it through them."""
    clients = run_virtually(a_seat_of_a_locked_booking())
    assert clients.median("other") < AT_ONCE_SECONDS
    assert len(clients.store.busy) < 20


def test_control_where_no_lead_is_remembered_each_batch_meets_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: every batch waited a tenth of a second for it, and all that were in it."""
    monkeypatch.setattr(requests_waiting_for_locked_rows, "LEADS_MAX", 0)
    clients = run_virtually(a_seat_of_a_locked_booking())
    assert clients.median("other") > 0.1
    assert len(clients.store.busy) > 50
