"""The engine and a store that falls silent: what was committed is found, and nothing is tried again blindly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.clock import MovableClock
from earmark.domain.event import Event
from earmark.domain.ids import Buyer, EventId, PoolId, PoolRef, SeatId
from earmark.domain.seat import Seat
from earmark.engine import engine as engine_module
from earmark.engine.asks import Actor, Create, Decided, Hold
from earmark.engine.engine import Engine
from earmark.errors import OutcomeUnknown, StoreUnavailable
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids

from .conftest import NOW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.domain.ids import EntryId
    from earmark.engine.ports import Transaction

SHOP = Actor(name="shop", live=True)
IDS = Uuid7Ids()


class SilentStore(MemoryStore):
    """Commits or loses the next transaction, and answers either way that it does not know."""

    def __init__(self) -> None:
        super().__init__(clock=MovableClock())
        self.keeps: bool | None = None
        self.looks_fail = 0
        self.tried = 0

    async def transact(self, work: Callable[[Transaction], Awaitable[Any]], *, within: float) -> Any:
        """As the memory store, but for the silence."""
        if self.keeps is None:
            return await super().transact(work, within=within)
        self.tried += 1
        before = self._tables
        await super().transact(work, within=within)
        if not self.keeps:
            self._tables = before
        raise OutcomeUnknown

    async def has_entry(self, entry_id: EntryId) -> bool:
        """May be silent too, for a while."""
        if self.looks_fail:
            self.looks_fail -= 1
            raise StoreUnavailable(because="still gone")
        return await super().has_entry(entry_id)


def hold(buyer: str, seat: str) -> Hold:
    return Hold(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=IDS.booking_id(),
        event_id=EventId("concert"),
        buyer=Buyer(buyer),
        seats=(SeatId(seat),),
    )


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> SilentStore:
    """With one event of two seats; looking again takes no time."""
    monkeypatch.setattr(engine_module, "LOOKUP_SECONDS", 0)
    store = SilentStore()
    event = Event(id=EventId("concert"), name="Concert", currency="EUR", live=True, created_at=NOW)
    seats = tuple(Seat(event_id=event.id, id=SeatId(seat), price=100) for seat in ("A1", "A2"))
    await Engine(store, ids=IDS).create(Create(actor=SHOP, entry_id=IDS.entry_id(), event=event, seats=seats))
    return store


async def test_a_lost_commit_that_took_place_is_answered(store: SilentStore) -> None:
    """The journal knows: the hold stands, so its caller gets it."""
    store.keeps = True
    ask = hold("ada", "A1")
    answer = await Engine(store, ids=IDS).hold(ask)
    assert isinstance(answer, Decided)
    assert answer.value == (await store.read_booking(ask.booking_id))[1]
    assert store.tried == 1


async def test_a_lost_commit_is_looked_up_until_the_store_answers(store: SilentStore) -> None:
    """A store that was gone a moment ago may be back: the look is repeated, the transaction is not."""
    store.keeps, store.looks_fail = True, 3
    answer = await Engine(store, ids=IDS).hold(hold("ada", "A1"))
    assert isinstance(answer, Decided)
    assert store.tried == 1


async def test_a_lost_commit_that_is_not_found_stays_unknown(store: SilentStore) -> None:
    """Not finding it proves nothing, for it may be on its way: nobody is told no, and nobody tries again."""
    store.keeps = False
    ask = hold("ada", "A1")
    with pytest.raises(OutcomeUnknown):
        await Engine(store, ids=IDS).hold(ask)
    assert store.tried == 1
    assert (await store.read_booking(ask.booking_id))[1] is None


async def test_relief_that_finds_no_store_is_no_error(store: SilentStore) -> None:
    """Making room is a courtesy; the asker is then simply refused."""
    store.keeps = False
    await Engine(store, ids=IDS).relieve(PoolRef(EventId("concert"), PoolId("GA")))
    assert store.tried == 1
