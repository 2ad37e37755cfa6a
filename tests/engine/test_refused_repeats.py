"""A hold that Redis refuses may be a repeat: then it gets the answer of the first, also while that is being decided."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.races.commands import EVENT, IDS, SHOP, a_hold, a_play
from tests.races.optimistic_writes import idempotency

from earmark.clock import MovableClock
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.id_types import SeatId
from earmark.engine.commands_and_results import ChangeEvent, Decided, Hold, Replayed, SeatPatch
from earmark.engine.engine import Engine
from earmark.engine.ports.seat_admission import Busy
from earmark.errors import IdempotencyMismatch, LimitExceeded, Refusal, SaleClosed, SeatsTaken, SeatUnknown
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Gate:
    """Admits the first request and refuses all others, and records what it is informed of."""

    def __init__(self) -> None:
        self.admitted = 0
        self.hopeless: list[bool] = []

    async def admit(self, *_: object, **__: object) -> Busy | str:
        """Once."""
        self.admitted += 1
        return "a pass" if self.admitted == 1 else Busy((SeatId("A1"),))

    def record_grant(self, *_: object, **__: object) -> None:
        """It was granted."""

    def withdraw(self, *_: object, hopeless: bool = False, **__: object) -> None:
        """It was not."""
        self.hopeless.append(hopeless)

    def drop_hints(self, *_: object) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def engine(gate: Gate) -> AsyncIterator[Engine]:
    """A play on sale, behind that gate."""
    engine = Engine(MemoryStore(clock=MovableClock()), ids=Uuid7Ids(), policy=Policy(per_buyer_max=2), admission=gate)
    await engine.create_event(a_play())
    yield engine
    await engine.close()


async def answers_to(engine: Engine, *commands: Hold) -> list[Any]:
    """What each of these requests is answered, sent at the same moment."""
    return list(await asyncio.gather(*(engine.hold(command) for command in commands), return_exceptions=True))


@pytest.fixture
def nothing_committed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store knows no key: it commits without a wait, and would else know that of a hold that is being decided."""

    async def none_yet(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(engine.store, "known_keys", none_yet)


@pytest.mark.usefixtures("nothing_committed")
async def test_a_duplicate_of_a_hold_that_is_being_decided_gets_its_answer(engine: Engine) -> None:
    """No record of the key is committed yet, and the seat that it is refused for is its own."""
    first, twin = await answers_to(
        engine, a_hold("A1", idempotency=idempotency("k")), a_hold("A1", idempotency=idempotency("k"))
    )
    assert isinstance(first, Decided)
    assert isinstance(twin, Replayed)
    assert twin.record == first.record


@pytest.mark.usefixtures("nothing_committed")
async def test_control_without_the_keys_being_decided_a_duplicate_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the keys that are being decided, the duplicate is refused."""
    monkeypatch.setattr(engine, "_deciding", _WithoutKeys())
    first, twin = await answers_to(
        engine, a_hold("A1", idempotency=idempotency("k")), a_hold("A1", idempotency=idempotency("k"))
    )
    assert isinstance(first, Decided)
    assert isinstance(twin, SeatsTaken)


class _WithoutKeys(set[object]):
    """Keeps nothing."""

    def add(self, _: object) -> None:
        """Not kept."""


async def test_a_repeat_gets_its_answer_and_another_request_its_refusal(engine: Engine) -> None:
    """Once the first is committed, its key is known; the same key with another request is refused as such."""
    first = await engine.hold(a_hold("A1", idempotency=idempotency("k")))
    again, stranger, unkeyed, misused = await answers_to(
        engine,
        a_hold("A1", idempotency=idempotency("k")),
        a_hold("A1", buyer="eve", idempotency=idempotency("another")),
        a_hold("A1", buyer="eve"),
        a_hold("A1", idempotency=msgspec.structs.replace(idempotency("k"), request_hash=b"another request")),
    )
    assert again.record == first.record
    assert [type(one) for one in (stranger, unkeyed, misused)] == [SeatsTaken, SeatsTaken, IdempotencyMismatch]
    assert not engine._deciding


@pytest.mark.parametrize("seats, error", [(("A1", "A2", "A3"), LimitExceeded), (("Z1",), SeatUnknown)])
async def test_admission_is_informed_that_a_hold_could_never_be_granted(
    engine: Engine, gate: Gate, seats: tuple[str, ...], error: type[Refusal]
) -> None:
    """More than the limit allows, or a seat that does not exist."""
    with pytest.raises(error):
        await engine.hold(a_hold(*seats))
    assert gate.hopeless == [True]


async def test_admission_is_informed_that_a_blocked_seat_was_requested(engine: Engine, gate: Gate) -> None:
    """It is refused as a taken one, and no hold's end brings it back: the seats beside it were marked in vain."""
    blocked = (SeatPatch(id=SeatId("A2"), blocked=True),)
    await engine.change_event(ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, seats=blocked))
    with pytest.raises(SeatsTaken):
        await engine.hold(a_hold("A1", "A2"))
    assert gate.hopeless == [True]


async def test_admission_is_informed_of_no_fault_where_the_refusal_is_transient(engine: Engine, gate: Gate) -> None:
    """The control: the sale opens later, and then the same request may be granted."""
    opens_at = datetime.now(UTC) + timedelta(hours=1)
    change = ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, fields={"sale_opens_at": opens_at})
    await engine.change_event(change)
    with pytest.raises(SaleClosed) as refused:
        await engine.hold(a_hold("A1"))
    assert refused.value.transient
    assert gate.hopeless == [False]


async def test_admission_is_informed_of_no_fault_where_the_seat_was_taken(engine: Engine, gate: Gate) -> None:
    """The control: a buyer who came too late requested nothing impossible."""
    await engine._holds.submit(a_hold("A1", buyer="eve"), within=5)
    with pytest.raises(SeatsTaken):
        await engine.hold(a_hold("A1"))
    assert gate.hopeless == [False]
