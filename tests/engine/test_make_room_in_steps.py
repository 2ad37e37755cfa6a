"""Ending lapsed holds step by step: what one step has freed is not lost where a later one fails."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from earmark.clock import MovableClock
from earmark.domain.id_types import Buyer, EventId, PoolId, PoolRef, TotalRef
from earmark.engine.engine import Engine
from earmark.engine.make_room_in_steps import FEWER_HOLDS, MAKE_ROOM_HOLDS_MAX
from earmark.engine.verbs.expire import Room, make_room
from earmark.errors import PoolExhausted, RowBusy
from earmark.library import Earmark
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.commands_and_results import Row

GA = PoolRef(EventId("play"), PoolId("GA"))
BUYER = TotalRef(EventId("play"), Buyer("b1"))
HELD, ASKED = 120, 80
TTL_SECONDS = 60


class LockedRows(MemoryStore):
    """From some transaction that makes room on, each meets a row that stays locked."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__(clock=clock)
        self.times_room_was_made = 0
        self.is_busy: Callable[[int], bool] = lambda _: False
        """Gets how often room was made, this time included."""
        self.locked: dict[Row, Row] = {}
        """What the error names."""

    async def transact(self, work: Any, **options: Any) -> Any:
        """Batches are optimistic, making room is not."""
        if not options.get("optimistic"):
            self.times_room_was_made += 1
            if self.is_busy(self.times_room_was_made):
                raise RowBusy(because="canceling statement due to lock timeout", rows=self.locked)
        return await super().transact(work, **options)


@pytest.fixture
async def store() -> LockedRows:
    """All units of the pool are in holds that have lapsed."""
    clock = MovableClock()
    store = LockedRows(clock)
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    await shop.create_event("play", name="Play", currency="EUR", pools={"GA": (HELD, 1)}, hold_ttl_seconds=TTL_SECONDS)
    for number in range(HELD):
        await shop.hold("play", buyer=f"b{number}", pools={"GA": 1})
    clock.advance(TTL_SECONDS + 1)
    store.times_room_was_made = 0
    return store


async def ask(store: LockedRows) -> list[Any]:
    """So many ask for one unit each."""
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    holds = (shop.hold("play", buyer=f"n{number}", pools={"GA": 1}) for number in range(ASKED))
    return await asyncio.gather(*holds, return_exceptions=True)


def granted(told: list[Any]) -> int:
    """How many got a hold; all others are refused for now."""
    refused = [one for one in told if isinstance(one, Exception)]
    assert all(isinstance(one, PoolExhausted) and one.transient for one in refused)
    return len(told) - len(refused)


async def test_what_the_first_step_freed_is_granted_though_the_second_fails(store: LockedRows) -> None:
    """A step ends fifty holds; the rest is asked for again, and refused only because it fails from the start."""
    store.is_busy = lambda times: times > 1
    assert granted(await ask(store)) == MAKE_ROOM_HOLDS_MAX


async def test_control_making_room_that_forgets_its_first_step_refuses_all(
    store: LockedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: its error was the answer for all, though fifty units were free."""

    async def make_room_in(
        engine: Engine, full: PoolRef | TotalRef, *, units: int, lock_seconds: float, **_: Any
    ) -> Room:
        ended = freed = 0
        while True:
            work = partial(make_room, limit=MAKE_ROOM_HOLDS_MAX, ids=engine.ids, within=full)
            room = await engine._transact(work, lock_seconds=lock_seconds)
            ended, freed = ended + room.ended, freed + room.units
            if room.ended < MAKE_ROOM_HOLDS_MAX or freed >= units:
                return Room(ended=ended, units=freed, passed_over=room.passed_over)

    monkeypatch.setattr(Engine, "make_room_in", make_room_in)
    store.is_busy = lambda times: times == 2
    assert granted(await ask(store)) == 0


async def test_a_locked_row_lets_fewer_holds_be_ended(store: LockedRows) -> None:
    """Among fifty holds one may need a row that stays locked: a seventh of them is tried, and at last a single one."""
    store.is_busy = lambda times: times <= 1
    room = await Engine(store, ids=Uuid7Ids()).make_room_in(GA, units=1)
    few = MAKE_ROOM_HOLDS_MAX // FEWER_HOLDS
    assert (room.ended, room.units, store.times_room_was_made) == (few, few, 2)


async def test_a_row_that_one_hold_needs_is_raised(store: LockedRows) -> None:
    """Nothing was ended, and nothing smaller can be tried. A buyer has few holds: those are tried one by one."""
    store.is_busy = lambda _: True
    with pytest.raises(RowBusy):
        await Engine(store, ids=Uuid7Ids()).make_room_in(GA, units=1)
    assert store.times_room_was_made == 3
    with pytest.raises(RowBusy):
        await Engine(store, ids=Uuid7Ids()).make_room_in(BUYER, units=1)
    assert store.times_room_was_made == 3 + 2


@pytest.mark.parametrize("ref, table", [(GA, "pools"), (BUYER, "totals")])
async def test_a_row_that_all_holds_need_is_waited_for_once(store: LockedRows, ref: Any, table: str) -> None:
    """With fewer holds, it would only be waited for again."""
    store.is_busy = lambda _: True
    store.locked = {(table, ref): (table, ref)}
    with pytest.raises(RowBusy):
        await Engine(store, ids=Uuid7Ids()).make_room_in(ref, units=1)
    assert store.times_room_was_made == 1
