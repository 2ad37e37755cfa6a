"""The workload of two processes on one database: each has its own engine, and the clients are divided among them.

    python -m earmark.bench.booking.measure.two_engines_one_database

A process reads its job from stdin, writes `ready` when it is warmed up, and runs its clients for one turn for each line
`go`; then it writes their answers. Nine of ten flows are on seats of the client's own. Every tenth is on three of a
hundred seats that the clients of all processes want at that moment, in any order, so that a double sale or a deadlock
would show.

One process and two processes take turns of half a second: on few cores they differ by less than the speed of a machine
changes within a minute.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.bench.booking.measure import concurrent_client_workloads as workloads
from earmark.bench.booking.measure import one_measurement
from earmark.bench.booking.measure.measurement_plan import ONE_PROCESS, OURS, TWO, TWO_PROCESSES, WORKLOADS, Measurement
from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.booking.strategy_protocol import StrategySettings, Want
from earmark.bench.child_process_protocol import READY, line_process, write_line
from earmark.bench.process_stats import spent
from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.bench.booking.measure.measurement_plan import BookingPlan
    from earmark.bench.booking.measure.one_measurement import MeasurementSetup
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.bench.child_process_protocol import LineProcess

TURN_SECONDS = 0.5
SHARED_EVERY = 10
SHARED_BLOCK = 100
SHARED_SECONDS = 0.05
"""How long all clients want the same block of seats."""
GO = b"go"
MODULE = "earmark.bench.booking.measure.two_engines_one_database"


class ProcessJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of one process."""

    number: int
    database: str
    event_id: str
    clients: int
    seconds: float
    """The length of one turn."""
    seats_each: int
    warm_flows: int
    first: int
    """The number of its first own flow."""
    flows: int
    shared_from: int
    """The first of the seats that all clients want."""
    shared_blocks: int


class ProcessAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to the clients of one process in one turn."""

    seconds: float
    client_seconds: float
    waits: list[float]
    held: list[UUID]
    confirmed: list[UUID]
    refused: int
    errors: dict[str, int]
    first_error: str | None


async def measure(plan: BookingPlan, setup: MeasurementSetup) -> dict[str, MeasurementResult]:
    """Both measurements: one process, and two with half of the clients each."""
    turns = max(round(plan.seconds * WORKLOADS[TWO].share / TURN_SECONDS), 1)
    async with AsyncExitStack() as stack:
        groups = [ProcessGroup(name, setup) for name in (ONE_PROCESS, TWO_PROCESSES)]
        for group in groups:
            await group.start(plan, stack, turns=turns)
        for group in groups:
            await group.wait_until_warm()
        for turn in range(turns):
            for group in groups if turn % 2 else reversed(groups):
                await group.work()
    return {group.name: await group.reading() for group in groups}


class ProcessGroup:
    """The processes of one measurement."""

    def __init__(self, name: str, setup: MeasurementSetup) -> None:
        self.name = name
        self._measurement = Measurement(round=0, workload=TWO, contender=name)
        self._event_id = one_measurement.fresh_name(self._measurement)
        self._setup = setup
        self._processes: list[LineProcess] = []
        self._tallies: list[workloads.ClientTally] = []
        self._spent: list[float | None] = []
        self._deadlocks = 0

    async def start(self, plan: BookingPlan, stack: AsyncExitStack, *, turns: int) -> None:
        """Start the processes, with an event of their own; the stack ends them."""
        count = 2 if self.name == TWO_PROCESSES else 1
        for part in await _prepare(self._event_id, plan, self._setup, processes=count, turns=turns):
            process = await stack.enter_async_context(line_process(MODULE))
            process.send(msgspec.json.encode(part))
            self._processes.append(process)

    async def wait_until_warm(self) -> None:
        """Wait until each process has run its warm-up."""
        for process in self._processes:
            await process.expect_ready()

    async def work(self) -> None:
        """Run one turn on all processes."""
        deadlocks = await self._setup.database.deadlocks()
        before = self._setup.database_cpu.read()
        for process in self._processes:
            process.send(GO)
        answers = [msgspec.json.decode(await process.read(), type=ProcessAnswers) for process in self._processes]
        self._spent.append(spent(before, self._setup.database_cpu.read()))
        self._tallies.append(_merge_parallel(answers))
        self._deadlocks += await self._setup.database.deadlocks() - deadlocks

    async def reading(self) -> MeasurementResult:
        """The result of all turns together."""
        tally = one_measurement.merged(self._tallies)
        one_measurement.check(self._measurement, tally)
        counted = await self._setup.database.count([self._event_id], confirmed=tally.confirmed, held=tally.held)
        known = [seconds for seconds in self._spent if seconds is not None]
        reading = one_measurement.reading(TWO, tally, counted, database_seconds=sum(known) if known else None)
        return msgspec.structs.replace(reading, deadlocks=self._deadlocks)


async def _prepare(
    event_id: str, plan: BookingPlan, setup: MeasurementSetup, *, processes: int, turns: int
) -> list[ProcessJob]:
    sizes = plan.sizes
    seconds = plan.seconds * WORKLOADS[TWO].share
    flows = max(int(sizes.flows_per_second_max * seconds), plan.clients) // processes
    blocks = int(seconds / SHARED_SECONDS) + turns
    own = flows * processes * sizes.seats_each
    await setup.database.open_event(event_id, seats=own + blocks * SHARED_BLOCK)
    clients = plan.clients // processes
    warm = sizes.warm(clients)
    for number in range(processes):
        await setup.database.open_event(f"{event_id}-warm-{number}", seats=warm * sizes.seats_each)
    await setup.database.tidy()
    return [
        ProcessJob(
            number=number,
            database=setup.database.url,
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


def _merge_parallel(parts: list[ProcessAnswers]) -> workloads.ClientTally:
    """The answers of processes that ran in parallel, as one tally: the time is that of the slowest."""
    tally = workloads.ClientTally()
    for part in parts:
        tally.seconds = max(tally.seconds, part.seconds)
        tally.client_seconds += part.client_seconds
        tally.waits += part.waits
        tally.held += part.held
        tally.confirmed += part.confirmed
        tally.refused += part.refused
        tally.errors += Counter(part.errors)
        if part.first_error and tally.first_error is None:
            tally.first_error = RuntimeError(part.first_error)
    return tally


class WorkedTime:
    """The seconds that a process has spent in its turns."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began = perf_counter()

    def begin(self) -> None:
        """Let the other process begin its turn."""
        self._began = perf_counter()

    def end(self) -> None:
        """Wait until the other process has ended its turn."""
        self._before = self.seconds

    @property
    def seconds(self) -> float:
        """The time so far, including the current turn."""
        return self._before + perf_counter() - self._began


def wants(part: ProcessJob, clock: WorkedTime) -> Iterator[Want]:
    """Mostly seats of its own; every tenth time, seats that all clients want at this moment."""
    chance = random.Random(part.number)  # noqa: S311 -- no secret
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


async def _serve(part: ProcessJob) -> None:
    strategy = await STRATEGIES[OURS].open(StrategySettings(database=part.database))
    try:
        warm = workloads.apart(f"{part.event_id}-warm-{part.number}", flows=part.warm_flows, seats_each=part.seats_each)
        await workloads.run_clients(strategy, warm, clients=part.clients, seconds=None)
        gc_tuning.freeze_startup_objects()
        write_line(READY)
        clock = WorkedTime()
        wanted = wants(part, clock)
        # Reading stdin blocks this loop, which has nothing else to do.
        while sys.stdin.buffer.readline().rstrip() == GO:
            clock.begin()
            tally = await workloads.run_clients(strategy, wanted, clients=part.clients, seconds=part.seconds)
            clock.end()
            write_line(_encode(tally))
    finally:
        await strategy.close()


def _encode(tally: workloads.ClientTally) -> bytes:
    answers = ProcessAnswers(
        seconds=tally.seconds,
        client_seconds=tally.client_seconds,
        waits=tally.waits,
        held=tally.held,
        confirmed=tally.confirmed,
        refused=tally.refused,
        errors=dict(tally.errors),
        first_error=repr(tally.first_error) if tally.first_error else None,
    )
    return msgspec.json.encode(answers)


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(sys.stdin.buffer.readline(), type=ProcessJob)))
