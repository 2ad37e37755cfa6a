"""Closing the engine: whatever becomes of the requests that are left, the store is let go of."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from earmark.clock import MovableClock
from earmark.domain.id_types import Buyer, EventId, PoolId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.close_each_in_turn import close_each
from earmark.engine.commands_and_results import Actor, Hold
from earmark.engine.engine import Engine
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

IDS = Uuid7Ids()


class HangingStore(MemoryStore):
    """Begins a transaction and never ends it; records what was closed."""

    def __init__(self) -> None:
        super().__init__(clock=MovableClock())
        self.begun = asyncio.Event()
        self.closed: list[str] = []

    async def transact(self, *_: Any, **__: Any) -> Any:
        """Hang, as behind a network that is gone."""
        self.begun.set()
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Record it."""
        self.closed.append("store")
        await super().close()


class Admission:
    """Cannot be closed: Redis has gone."""

    def __init__(self, store: HangingStore) -> None:
        self._store = store

    async def close(self) -> None:
        """Record it, and fail."""
        self._store.closed.append("admission")
        raise ConnectionError("Redis has gone")


@pytest.fixture
async def store() -> HangingStore:
    """Nothing was begun yet."""
    return HangingStore()


@pytest.fixture
async def engine(store: HangingStore) -> AsyncIterator[Engine]:
    """What a test leaves running in it is ended with it."""
    engine = Engine(store, ids=IDS)
    yield engine
    left = engine._holds._running
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def cancel_close_while_a_batch_hangs(engine: Engine, store: HangingStore) -> None:
    """As a host does that gives a stop only so many seconds."""
    hold = Hold(
        actor=Actor(name="shop", mode=Mode.LIVE),
        entry_id=IDS.entry_id(),
        booking_id=IDS.booking_id(),
        event_id=EventId("fair"),
        buyer=Buyer("ann"),
        pools={PoolId("GA"): 1},
    )
    asked = asyncio.create_task(engine.hold(hold))
    await store.begun.wait()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    asked.cancel()


async def test_a_close_that_is_cancelled_closes_the_store(engine: Engine, store: HangingStore) -> None:
    """A batch that hangs would otherwise keep its connections open until the process ends."""
    await cancel_close_while_a_batch_hangs(engine, store)
    assert store.closed == ["store"]


async def test_control_closing_one_after_the_other_leaves_the_store_open(
    engine: Engine, store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the first part that does not end is the last."""

    async def close(engine: Engine) -> None:
        await asyncio.gather(*(queue.close() for queue in engine.queues.values()))
        await engine.store.close()

    monkeypatch.setattr(Engine, "close", close)
    await cancel_close_while_a_batch_hangs(engine, store)
    assert store.closed == []


async def test_an_admission_that_cannot_be_closed_leaves_no_store_open(engine: Engine, store: HangingStore) -> None:
    """Its error is raised once the store is closed."""
    engine.admission = Admission(store)  # type: ignore[assignment] # only closed here
    with pytest.raises(ConnectionError):
        await engine.close()
    assert store.closed == ["admission", "store"]


async def test_a_close_that_is_cancelled_says_so_though_an_admission_fails(
    engine: Engine, store: HangingStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that gave up waits for the cancellation; the admission's error is in the log."""
    engine.admission = Admission(store)  # type: ignore[assignment] # only closed here
    await cancel_close_while_a_batch_hangs(engine, store)
    assert store.closed == ["admission", "store"]
    assert "Redis has gone" in caplog.text


async def test_control_an_exit_stack_loses_the_cancellation(
    engine: Engine, store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the error of a later part took its place."""

    async def close(engine: Engine) -> None:
        async with contextlib.AsyncExitStack() as at_the_end:
            at_the_end.push_async_callback(engine.store.close)
            at_the_end.push_async_callback(engine.admission.close)  # type: ignore[union-attr] # the test has set it
            await asyncio.gather(*(queue.close() for queue in engine.queues.values()))

    monkeypatch.setattr(Engine, "close", close)
    engine.admission = Admission(store)  # type: ignore[assignment] # only closed here
    with pytest.raises(ConnectionError):
        await cancel_close_while_a_batch_hangs(engine, store)


async def test_a_cancellation_is_raised_before_an_earlier_error() -> None:
    """It may come while a later part is closed, and the error of an earlier one must not hide it."""

    async def fail() -> None:
        raise ConnectionError("Redis has gone")

    closing = asyncio.create_task(close_each(fail, asyncio.Event().wait))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_the_first_error_is_raised_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first is the cause, more often than not."""

    async def fail(why: str) -> None:
        raise ConnectionError(why)

    with pytest.raises(ConnectionError, match="the first"):
        await close_each(partial(fail, "the first"), partial(fail, "the second"))
    assert "the second" in caplog.text
    assert "the first" not in caplog.text
