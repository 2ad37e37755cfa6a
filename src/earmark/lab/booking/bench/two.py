"""Server processes on one database: each has an interpreter and an engine of its own, and the clients are shared out.

    python -m earmark.lab.booking.bench.two

A process reads its part from stdin, says `ready` when it is warmed up, begins when it is told `go`, and says what its
clients heard. Nine of ten flows are on seats of the client's own. Every tenth is on three of a hundred seats that the
clients of all processes want at that moment, in any order: there they meet, and a double sale or a deadlock would show.
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

from earmark.errors import SetupError
from earmark.lab.booking.bench import cells, workloads
from earmark.lab.booking.bench.plan import OURS, TWO_PROCESSES
from earmark.lab.booking.ports import Place, Want
from earmark.lab.booking.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.lab.booking.bench.cells import Site
    from earmark.lab.booking.bench.figures import Reading
    from earmark.lab.booking.bench.plan import Cell, Plan

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


async def measure(cell: Cell, plan: Plan, site: Site) -> Reading:
    """One cell: one process, or two with half of the clients each."""
    event_id, processes = cells.fresh_name(cell), 2 if cell.contender == TWO_PROCESSES else 1
    parts = await _prepare(event_id, plan, site, processes=processes)
    deadlocks = await site.house.deadlocks()
    crew = [await _start(part) for part in parts]
    try:
        for process in crew:
            await _expect(process, READY)
        before = site.meter.read()
        for process in crew:
            assert process.stdin is not None
            process.stdin.write(GO)
        told = [await _hear(process) for process in crew]
        after = site.meter.read()
    finally:
        for process in crew:
            if process.returncode is None:
                process.kill()
            await process.wait()
    tally = _together(told)
    cells.check(cell, tally)
    counted = await site.house.count([event_id], confirmed=tally.confirmed, held=tally.held)
    spent = None if before is None or after is None else after - before
    reading = cells.reading(cell.workload, tally, counted, database_seconds=spent)
    return msgspec.structs.replace(reading, deadlocks=await site.house.deadlocks() - deadlocks)


async def _prepare(event_id: str, plan: Plan, site: Site, *, processes: int) -> list[Part]:
    sizes = plan.sizes
    flows = max(int(sizes.flows_per_second_max * plan.seconds), plan.clients) // processes
    blocks = int(plan.seconds / SHARED_SECONDS) + 1
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
            seconds=plan.seconds,
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
        *(sys.executable, "-m", "earmark.lab.booking.bench.two"),
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


def wants(part: Part) -> Iterator[Want]:
    """Mostly seats of its own; every tenth time, seats that all want just now."""
    chance = random.Random(part.number)  # noqa: S311 -- lots, not secrets
    own = workloads.apart(part.event_id, flows=part.flows, seats_each=part.seats_each, first=part.first)
    began = perf_counter()
    for number, want in enumerate(own):
        yield want
        if number % SHARED_EVERY == SHARED_EVERY - 1:
            block = min(int((perf_counter() - began) / SHARED_SECONDS), part.shared_blocks - 1)
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
        workloads.put_away_rubbish()
        _say(READY)
        # Waiting for the word blocks this loop, which has nothing else to do.
        if sys.stdin.buffer.readline() != GO:
            return
        tally = await workloads.crowd(strategy, wants(part), clients=part.clients, seconds=part.seconds)
    finally:
        await strategy.close()
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
    _say(msgspec.json.encode(heard) + b"\n")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(sys.stdin.buffer.readline(), type=Part)))
