"""Server processes on one database: each has an interpreter and an engine of its own, and the clients are shared out.

    python -m earmark.bench.booking.bench.two

A process reads its part from stdin, says `ready` when it is warmed up, works for a moment whenever it is told `go`, and
says each time what its clients heard. Nine of ten flows are on seats of the client's own. Every tenth is on three of a
hundred seats that the clients of all processes want at that moment, in any order: there they meet, and a double sale or
a deadlock would show.

One process and two of them take turns of half a second: on few cores they differ by less than what a machine's speed
does within a minute.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.bench.booking.bench import cells, workloads
from earmark.bench.booking.bench.plan import CONTESTS, ONE_PROCESS, OURS, TWO, TWO_PROCESSES, Cell
from earmark.bench.booking.ports import Place, Want
from earmark.bench.booking.strategies import STRATEGIES
from earmark.errors import SetupError
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from earmark.bench.booking.bench.cells import Site
    from earmark.bench.booking.bench.figures import Reading
    from earmark.bench.booking.bench.plan import Plan

TURN_SECONDS = 0.5
SHARED_EVERY = 10
SHARED_BLOCK = 100
SHARED_SECONDS = 0.05
"""How long a block of seats is wanted by all, before the next is."""
READY, GO = b"ready\n", b"go\n"
LINE_MAX = 64 * 1024 * 1024


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do."""

    number: int
    database: str
    event_id: str
    clients: int
    seconds: float
    """Of one turn."""
    seats_each: int
    warm_flows: int
    first: int
    """Its own flows begin with this one."""
    flows: int
    shared_from: int
    """The first seat of those that all want."""
    shared_blocks: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients of one process heard."""

    seconds: float
    client_seconds: float
    waits: list[float]
    held: list[UUID]
    confirmed: list[UUID]
    refused: int
    errors: dict[str, int]
    first_error: str | None


async def measure(plan: Plan, site: Site) -> dict[str, Reading]:
    """Both cells: one process, and two with half of the clients each."""
    turns = max(round(plan.seconds * CONTESTS[TWO].share / TURN_SECONDS), 1)
    crews = [await Crew.start(name, plan, site, turns=turns) for name in (ONE_PROCESS, TWO_PROCESSES)]
    try:
        for crew in crews:
            await crew.warmed_up()
        for turn in range(turns):
            for crew in crews if turn % 2 else reversed(crews):
                await crew.work()
    finally:
        for crew in crews:
            await crew.dismiss()
    return {crew.name: await crew.reading() for crew in crews}


class Crew:
    """The processes of one cell."""

    def __init__(self, name: str, event_id: str, site: Site, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self.name = name
        self._event_id = event_id
        self._site = site
        self._processes = processes
        self._tallies: list[workloads.Tally] = []
        self._spent: list[float | None] = []
        self._deadlocks = 0

    @classmethod
    async def start(cls, name: str, plan: Plan, site: Site, *, turns: int) -> Crew:
        """In an event of their own."""
        cell = Cell(round=0, workload=TWO, contender=name)
        event_id, processes = cells.fresh_name(cell), 2 if name == TWO_PROCESSES else 1
        parts = await _prepare(event_id, plan, site, processes=processes, turns=turns)
        return cls(name, event_id, site, [await _start(part) for part in parts])

    async def warmed_up(self) -> None:
        """All of them are."""
        for process in self._processes:
            await _expect(process, READY)

    async def work(self) -> None:
        """One turn."""
        deadlocks = await self._site.house.deadlocks()
        before = self._site.meter.read()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(GO)
        told = [await _hear(process) for process in self._processes]
        after = self._site.meter.read()
        self._spent.append(None if before is None or after is None else after - before)
        self._tallies.append(_together(told))
        self._deadlocks += await self._site.house.deadlocks() - deadlocks

    async def dismiss(self) -> None:
        """Whether they are done or not."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def reading(self) -> Reading:
        """All turns together."""
        cell, tally = Cell(round=0, workload=TWO, contender=self.name), cells.merged(self._tallies)
        cells.check(cell, tally)
        counted = await self._site.house.count([self._event_id], confirmed=tally.confirmed, held=tally.held)
        spent = [seconds for seconds in self._spent if seconds is not None]
        reading = cells.reading(TWO, tally, counted, database_seconds=sum(spent) if spent else None)
        return msgspec.structs.replace(reading, deadlocks=self._deadlocks)


async def _prepare(event_id: str, plan: Plan, site: Site, *, processes: int, turns: int) -> list[Part]:
    sizes = plan.sizes
    seconds = plan.seconds * CONTESTS[TWO].share
    flows = max(int(sizes.flows_per_second_max * seconds), plan.clients) // processes
    blocks = int(seconds / SHARED_SECONDS) + turns
    own = flows * processes * sizes.seats_each
    await site.house.open_event(event_id, seats=own + blocks * SHARED_BLOCK)
    clients = plan.clients // processes
    warm = sizes.warm(clients)
    for number in range(processes):
        await site.house.open_event(f"{event_id}-warm-{number}", seats=warm * sizes.seats_each)
    await site.house.tidy()
    return [
        Part(
            number=number,
            database=site.house.url,
            event_id=event_id,
            clients=clients,
            seconds=seconds / turns,
            seats_each=sizes.seats_each,
            warm_flows=warm,
            first=number * flows,
            flows=flows,
            shared_from=own,
            shared_blocks=blocks,
        )
        for number in range(processes)
    ]


async def _start(part: Part) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "earmark.bench.booking.bench.two"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(part) + b"\n")
    return process


async def _expect(process: asyncio.subprocess.Process, word: bytes) -> None:
    assert process.stdout is not None
    if (said := await process.stdout.readline()) != word:
        raise SetupError(problem=f"A server process ended before it began: it said {said[:200]!r}.")


async def _hear(process: asyncio.subprocess.Process) -> Heard:
    assert process.stdout is not None
    said = await process.stdout.readline()
    if not said:
        raise SetupError(problem="A server process ended in the middle of a cell; what it said is above.")
    return msgspec.json.decode(said, type=Heard)


def _together(told: list[Heard]) -> workloads.Tally:
    """Side by side: the longest of them is how long it took."""
    tally = workloads.Tally()
    for heard in told:
        tally.seconds = max(tally.seconds, heard.seconds)
        tally.client_seconds += heard.client_seconds
        tally.waits += heard.waits
        tally.held += heard.held
        tally.confirmed += heard.confirmed
        tally.refused += heard.refused
        tally.errors += Counter(heard.errors)
        if heard.first_error and tally.first_error is None:
            tally.first_error = RuntimeError(heard.first_error)
    return tally


class Clock:
    """The seconds that a process has worked, whatever lay between its turns."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began = perf_counter()

    def begin(self) -> None:
        """A turn."""
        self._began = perf_counter()

    def end(self) -> None:
        """As above."""
        self._before = self.seconds

    @property
    def seconds(self) -> float:
        """So far, in the middle of a turn."""
        return self._before + perf_counter() - self._began


def wants(part: Part, clock: Clock) -> Iterator[Want]:
    """Mostly seats of its own; every tenth time, seats that all want just now."""
    chance = random.Random(part.number)  # noqa: S311 -- lots, not secrets
    own = workloads.apart(part.event_id, flows=part.flows, seats_each=part.seats_each, first=part.first)
    for number, want in enumerate(own):
        yield want
        if number % SHARED_EVERY == SHARED_EVERY - 1:
            block = min(int(clock.seconds / SHARED_SECONDS), part.shared_blocks - 1)
            first = part.shared_from + block * SHARED_BLOCK
            seats = chance.sample(range(first, first + SHARED_BLOCK), part.seats_each)
            name = f"shared-{part.number}-{number}"
            yield Want(
                event_id=part.event_id,
                buyer=name,
                seats=tuple(f"S{seat}" for seat in seats),
                key=f"{part.event_id}-{name}",
            )


async def _serve(part: Part) -> None:
    strategy = await STRATEGIES[OURS].open(Place(database=part.database))
    try:
        warm = workloads.apart(f"{part.event_id}-warm-{part.number}", flows=part.warm_flows, seats_each=part.seats_each)
        await workloads.crowd(strategy, warm, clients=part.clients, seconds=None)
        gc_tuning.put_away()
        _say(READY)
        clock = Clock()
        wanted = wants(part, clock)
        # Waiting for the word blocks this loop, which has nothing else to do.
        while sys.stdin.buffer.readline() == GO:
            clock.begin()
            tally = await workloads.crowd(strategy, wanted, clients=part.clients, seconds=part.seconds)
            clock.end()
            _say(_said(tally))
    finally:
        await strategy.close()


def _said(tally: workloads.Tally) -> bytes:
    heard = Heard(
        seconds=tally.seconds,
        client_seconds=tally.client_seconds,
        waits=tally.waits,
        held=tally.held,
        confirmed=tally.confirmed,
        refused=tally.refused,
        errors=dict(tally.errors),
        first_error=repr(tally.first_error) if tally.first_error else None,
    )
    return msgspec.json.encode(heard) + b"\n"


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(sys.stdin.buffer.readline(), type=Part)))
