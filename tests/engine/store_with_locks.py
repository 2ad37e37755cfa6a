"""A store of nothing but locked rows, for queues on a virtual clock: who waits for whom, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.engine.conftest import NOW

from earmark.domain.id_types import EntryId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Command, Decided, Row
from earmark.engine.group_commit import BatchQueue
from earmark.engine.wait_for_one_locked_row import LOCK_ORDER, LockedRowWaits
from earmark.errors import RowBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence

    from earmark.engine.commands_and_results import Outcome

BEGIN_SECONDS, COMMIT_SECONDS = 0.002, 0.003


class NeedsRows(Command, frozen=True, kw_only=True):
    """A command that names these rows."""

    needs: tuple[Row, ...]

    @property
    def rows(self) -> Collection[Row]:
        """Those."""
        return self.needs


class StoreWithLocks:
    """Transactions that lock the rows of their commands, one after the other, and keep them until they end."""

    def __init__(self) -> None:
        self.locks: dict[Row, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.behind: dict[Row, Row] = {}
        """For a row that commands name, another row that they need with it and do not name."""
        self.busy: list[float] = []
        """When a transaction waited for a row in vain."""

    async def run(self, begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        """One batch."""
        commands = begin()
        await self._transact({row for command in commands for row in command.rows}, lock_seconds=lock_seconds)
        return [Decided(value=1, now=NOW) for _ in commands]

    async def lock_row(self, row: Row, *, lock_seconds: float) -> None:
        """This row alone."""
        await self._transact([row], lock_seconds=lock_seconds)

    async def _transact(self, rows: Iterable[Row], *, lock_seconds: float) -> None:
        named = set(rows)
        wanted = sorted(named | {self.behind[row] for row in named if row in self.behind}, key=place)
        got: list[Row] = []
        try:
            await asyncio.sleep(BEGIN_SECONDS)
            for row in wanted:
                await asyncio.wait_for(self.locks[row].acquire(), lock_seconds)
                got.append(row)
            await asyncio.sleep(COMMIT_SECONDS)
        except TimeoutError:
            while got:
                self.locks[got.pop()].release()
            raise await self._row_busy(wanted) from None
        finally:
            for row in got:
                self.locks[row].release()

    async def _row_busy(self, wanted: Sequence[Row]) -> RowBusy:
        """What is locked a moment later: also what others have locked for themselves since."""
        self.busy.append(asyncio.get_running_loop().time())
        await asyncio.sleep(BEGIN_SECONDS)
        leads = {row: row for row in wanted if self.locks[row].locked()}
        leads |= {named: row for named, row in self.behind.items() if row in leads and named in wanted}
        return RowBusy(because="lock timeout", rows=leads)


def place(row: Row) -> tuple[int, str]:
    """Where a transaction locks it."""
    return LOCK_ORDER.index(row[0]), str(row[1])


class Clients:
    """Sends requests to a queue over such a store, and counts what becomes of them."""

    def __init__(self) -> None:
        self.store = StoreWithLocks()
        self.queue: BatchQueue[Command] = BatchQueue(
            self.store.run,
            make_room_in=unused,
            have_due=unused,
            row_waits=LockedRowWaits(self.store.lock_row),
            waiting_seconds_max=3.0,
        )
        self.told: Counter[tuple[str, str]] = Counter()
        """How many of each kind of client got what."""
        self.seconds: dict[str, list[float]] = defaultdict(list)
        """How long each request of this kind took that was decided."""
        self._asked: set[asyncio.Task[None]] = set()

    def ask(self, kind: str, *rows: Row) -> None:
        """One request that names these rows."""
        self._asked.add(asyncio.create_task(self._ask(kind, rows)))

    async def _ask(self, kind: str, rows: tuple[Row, ...]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        number = EntryId(UUID(int=len(self._asked)))
        command = NeedsRows(actor=Actor(name="shop", mode=Mode.LIVE), entry_id=number, needs=rows)
        try:
            await self.queue.submit(command, within=15)
        except Exception as refused:  # noqa: BLE001 (counted)
            self.told[kind, type(refused).__name__] += 1
        else:
            self.told[kind, "decided"] += 1
            self.seconds[kind].append(loop.time() - began)

    async def ask_every(self, seconds: float, kind: str, *rows: Row, until: float) -> None:
        """One after the other, whatever becomes of those before."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            self.ask(kind, *rows)
            await asyncio.sleep(seconds)

    async def all_told(self) -> None:
        """Every request has its result."""
        await asyncio.gather(*self._asked)
        await self.queue.close()

    def median(self, kind: str) -> float:
        """Of the seconds that requests of this kind took."""
        return sorted(self.seconds[kind])[len(self.seconds[kind]) // 2]


async def unused(*_: Any, **__: Any) -> Any:
    """No request needs room."""
    raise AssertionError("no request needs room")


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """All of these."""
    await asyncio.gather(*work)
