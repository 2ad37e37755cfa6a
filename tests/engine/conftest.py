"""Fixtures of the engine tests: commands, and a store whose answers the test gives."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from earmark.domain.id_types import EntryId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Command, Decided, Row
from earmark.engine.group_commit import BatchQueue
from earmark.engine.verbs.expire import Room
from earmark.engine.wait_for_one_locked_row import LockedRowWaits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from earmark.engine.commands_and_results import Outcome

NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)


class Numbered(Command, frozen=True, kw_only=True):
    """A command that needs rows by name."""

    needs: str = ""

    @property
    def rows(self) -> Collection[Row]:
        """One for each letter."""
        return tuple(("rows", letter) for letter in self.needs)


def ask_number(number: int, *, needs: str = "") -> Command:
    """A command that can be distinguished from the others."""
    return Numbered(actor=Actor(name="shop", mode=Mode.LIVE), entry_id=EntryId(UUID(int=number)), needs=needs)


def number_of(command: Command) -> int:
    """Which one it is."""
    return command.entry_id.int


class Batch:
    """One batch that has reached the store, and waits there for what the test decides."""

    def __init__(self, commands: Sequence[Command], *, lock_seconds: float) -> None:
        self.commands = tuple(commands)
        self.lock_seconds = lock_seconds
        self.numbers = tuple(map(number_of, commands))
        self._end: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def commit(self, *outcomes: Outcome) -> None:
        """The transaction is certain. Without outcomes of the test's own, each command gets its number."""
        decided: list[Outcome] = [Decided(value=number, now=NOW) for number in self.numbers]
        self._end.set_result(list(outcomes) or decided)

    def break_(self, error: Exception) -> None:
        """The transaction fails."""
        self._end.set_exception(error)

    async def end(self) -> list[Outcome]:
        """What the batcher waits for."""
        return await self._end


class RowWait:
    """One transaction that wants nothing but this row, and waits for what the test decides."""

    def __init__(self, row: Row, *, lock_seconds: float) -> None:
        self.row = row
        self.lock_seconds = lock_seconds
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def have(self) -> None:
        """The row is free."""
        self.end.set_result(None)

    def break_(self, error: Exception) -> None:
        """The transaction fails."""
        self.end.set_exception(error)


class ManualStore:
    """A `run` whose batches arrive one by one and end when the test says so."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Batch] = asyncio.Queue()
        self.batches: list[Batch] = []
        self._row_waits: asyncio.Queue[RowWait] = asyncio.Queue()
        self.row_waits: list[RowWait] = []
        self.transactions: set[asyncio.Task[object]] = set()
        self.times_room_was_made: list[object] = []
        self.reads: list[tuple[object, ...]] = []
        """Of what was asked whether a lapsed hold is left, each time."""
        self.due: set[object] = set()
        """What has one."""
        self.room = Room(ended=0, units=0, passed_over=False)
        """What making room brings."""
        self.connections: asyncio.Semaphore | None = None
        """Where a test wants batches to wait for one."""

    async def run(self, begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        """One batch, one transaction."""
        task = asyncio.current_task()
        assert task is not None
        self.transactions.add(task)
        if self.connections is not None:
            await self.connections.acquire()
        batch = Batch(begin(), lock_seconds=lock_seconds)
        self.batches.append(batch)
        self._arrived.put_nowait(batch)
        return await batch.end()

    async def lock_row(self, row: Row, *, lock_seconds: float) -> None:
        """One row alone."""
        wait = RowWait(row, lock_seconds=lock_seconds)
        self.row_waits.append(wait)
        self._row_waits.put_nowait(wait)
        await wait.end

    async def next_row_wait(self) -> RowWait:
        """The next transaction for one row alone."""
        return await asyncio.wait_for(self._row_waits.get(), timeout=5)

    async def make_room_in(self, full: object, *, units: int, lock_seconds: float, **_: Any) -> Room:
        """Make room."""
        assert lock_seconds > 0
        self.times_room_was_made.append((full, units))
        return self.room

    async def have_due(self, refs: Sequence[object], *, lock_seconds: float) -> list[bool]:
        """Whether room can be made."""
        assert lock_seconds > 0
        self.reads.append(tuple(refs))
        return [full in self.due for full in refs]

    async def next(self) -> Batch:
        """The next batch to arrive."""
        return await asyncio.wait_for(self._arrived.get(), timeout=5)

    @property
    def carried(self) -> list[tuple[int, ...]]:
        """The batches so far, by the numbers of their commands."""
        return [batch.numbers for batch in self.batches]


class QueueUnderTest:
    """A batcher over a manual store, and its queued requests."""

    def __init__(
        self,
        *,
        connection_slots: int = 1,
        next_slot_min: int = 1,
        size_max: int = 100,
        waiting_max: int = 5000,
        waiting_seconds_max: float = 15.0,
        wants: Mapping[int, str] = MappingProxyType({}),
        needs: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._needs = needs
        self.store = ManualStore()
        self.batcher: BatchQueue[Command] = BatchQueue(
            self.store.run,
            make_room_in=self.store.make_room_in,
            have_due=self.store.have_due,
            row_waits=LockedRowWaits(self.store.lock_row),
            claims=lambda command: tuple(wants.get(number_of(command), "")),
            connection_slots=connection_slots,
            next_slot_min=next_slot_min,
            size_max=size_max,
            waiting_max=waiting_max,
            waiting_seconds_max=waiting_seconds_max,
        )
        self.requests: list[asyncio.Task[object]] = []

    def submit(self, number: int, *, within: float = 60) -> asyncio.Task[object]:
        """A request, queued once the loop has turned."""
        request: asyncio.Task[object] = asyncio.create_task(self._submit(number, within=within))
        self.requests.append(request)
        return request

    async def _submit(self, number: int, *, within: float) -> object:
        answer = await self.batcher.submit(ask_number(number, needs=self._needs.get(number, "")), within=within)
        assert isinstance(answer, Decided)
        return answer.value


@pytest.fixture
async def queue_of() -> AsyncIterator[Callable[..., QueueUnderTest]]:
    """Makes queues; requests that a test leaves waiting in one are ended with it."""
    queues: list[QueueUnderTest] = []

    def make(**settings: Any) -> QueueUnderTest:
        queue = QueueUnderTest(**settings)
        queues.append(queue)
        return queue

    yield make
    left = {
        task
        for queue in queues
        for task in (
            *queue.requests,
            *queue.batcher._running,
            *queue.batcher._without_row.tasks,
            *queue.batcher._repeats.tasks,
            *queue.batcher._without_room.tasks,
            *queue.store.transactions,
        )
    }
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
async def queue(queue_of: Callable[..., QueueUnderTest]) -> QueueUnderTest:
    """One slot, so that what comes while it is busy waits."""
    return queue_of()


@pytest.fixture
async def turn() -> Callable[[], object]:
    """Lets everything run that can run: the loop turns until nothing new is ready."""

    async def turn_until_quiet() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    return turn_until_quiet


@pytest.fixture
async def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the loop's own clock, so that a deadline passes without a real wait."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead[0])

    def move(seconds: float) -> None:
        ahead[0] += seconds

    return move
