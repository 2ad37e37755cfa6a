"""The engine and its store: what is decided before it is written, and what becomes of a commit that was lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.conftest import NOW

from earmark.clock import MovableClock
from earmark.domain.bookable_event import Event
from earmark.domain.id_types import Buyer, EventId, PoolId, PoolRef, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import Pool
from earmark.domain.seat import Seat
from earmark.engine import engine as engine_module
from earmark.engine.commands_and_results import Actor, CreateEvent, Decided, Hold
from earmark.engine.engine import Engine
from earmark.errors import Outage, OutcomeUnknown, Refusal, StoreUnavailable
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.domain.id_types import EntryId
    from earmark.engine.ports.store import Transaction

SHOP = Actor(name="shop", mode=Mode.LIVE)
IDS = Uuid7Ids()


class WatchedStore(MemoryStore):
    """Counts the transactions that it had to break off."""

    def __init__(self) -> None:
        super().__init__(clock=MovableClock())
        self.broken = 0

    async def transact(self, work: Callable[[Transaction], Awaitable[Any]], *, within: float, **how: Any) -> Any:
        """As the memory store, and records its calls."""
        try:
            return await super().transact(work, within=within, **how)
        except Exception:
            self.broken += 1
            raise


class SilentStore(MemoryStore):
    """Commits or loses the next transaction, and answers either way that it does not know."""

    def __init__(self) -> None:
        super().__init__(clock=MovableClock())
        self.keeps: bool | None = None
        self.looks_fail = 0
        self.tried = 0

    async def transact(self, work: Callable[[Transaction], Awaitable[Any]], *, within: float, **how: Any) -> Any:
        """As the memory store, but without an answer."""
        if self.keeps is None:
            return await super().transact(work, within=within, **how)
        self.tried += 1

        async def work_and_be_lost(transaction: Transaction) -> None:
            await work(transaction)
            if not self.keeps:
                raise OutcomeUnknown

        await super().transact(work_and_be_lost, within=within, **how)
        raise OutcomeUnknown

    async def has_entry(self, entry_id: EntryId) -> bool:
        """May be silent too, for a while."""
        if self.looks_fail:
            self.looks_fail -= 1
            raise StoreUnavailable(because="still gone")
        return await super().has_entry(entry_id)


def hold(buyer: str, *seats: str, pools: dict[str, int] | None = None) -> Hold:
    return Hold(
        actor=SHOP,
        entry_id=IDS.entry_id(),
        booking_id=IDS.booking_id(),
        event_id=EventId("concert"),
        buyer=Buyer(buyer),
        seats=tuple(map(SeatId, seats)),
        pools={PoolId(pool): units for pool, units in (pools or {}).items()},
    )


async def open_concert(store: MemoryStore) -> None:
    event = Event(
        id=EventId("concert"), name="Concert", currency="EUR", mode=Mode.LIVE, created_at=NOW, per_buyer_max=2
    )
    await Engine(store, ids=IDS).create_event(
        CreateEvent(
            actor=SHOP,
            entry_id=IDS.entry_id(),
            event=event,
            seats=tuple(Seat(event_id=event.id, id=SeatId(seat), price=100) for seat in ("A1", "A2", "A3")),
            pools=(Pool(event_id=event.id, id=PoolId("GA"), capacity=3, price=100),),
        )
    )


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> SilentStore:
    """With one event; looking again takes no time."""
    monkeypatch.setattr(engine_module, "LOOKUP_SECONDS", 0)
    store = SilentStore()
    await open_concert(store)
    return store


@pytest.mark.parametrize(
    "commands, granted",
    [
        ([hold(f"buyer-{n}", pools={"GA": 1}) for n in range(5)], 3),
        ([hold(f"buyer-{n}", "A1") for n in range(5)], 1),
        ([hold("ada", seat) for seat in ("A1", "A2", "A3")], 2),
    ],
    ids=["units", "one seat", "one buyer"],
)
async def test_a_batch_is_decided_before_it_is_written(commands: list[Hold], granted: int) -> None:
    """A request that loses to another of its batch does so in the decision: the store aborts no transaction for it."""
    store = WatchedStore()
    await open_concert(store)
    engine = Engine(store, ids=IDS, connection_slots=1)
    answers = await asyncio.gather(*map(engine.hold, commands), return_exceptions=True)
    assert [isinstance(answer, Decided) for answer in answers] == [n < granted for n in range(len(commands))]
    assert all(isinstance(answer, Decided | Refusal) for answer in answers)
    assert store.broken == 0


async def test_a_lost_commit_that_took_place_is_answered(store: SilentStore) -> None:
    """The journal has it: the hold was kept, so its caller gets it."""
    store.keeps = True
    command = hold("ada", "A1")
    answer = await Engine(store, ids=IDS).hold(command)
    assert isinstance(answer, Decided)
    assert answer.value == (await store.read_booking(command.booking_id))[1]
    assert store.tried == 1


async def test_a_lost_commit_is_looked_up_until_the_store_answers(store: SilentStore) -> None:
    """A store that was gone a moment ago may be back: the look is repeated, the transaction is not."""
    store.keeps, store.looks_fail = True, 3
    answer = await Engine(store, ids=IDS).hold(hold("ada", "A1"))
    assert isinstance(answer, Decided)
    assert store.tried == 1


async def test_a_lost_commit_that_is_not_found_stays_unknown(store: SilentStore) -> None:
    """Not finding it proves nothing, for it may be on its way: the request is not refused, and not retried."""
    store.keeps = False
    command = hold("ada", "A1")
    with pytest.raises(OutcomeUnknown):
        await Engine(store, ids=IDS).hold(command)
    assert store.tried == 1
    assert (await store.read_booking(command.booking_id))[1] is None


async def test_room_that_could_not_be_made_is_an_outage(store: SilentStore) -> None:
    """The caller decides what that means: a hold is refused for now, late money is looked at again."""
    store.keeps = False
    with pytest.raises(Outage):
        await Engine(store, ids=IDS).make_room_in(PoolRef(EventId("concert"), PoolId("GA")), units=1)
    assert store.tried == 1
