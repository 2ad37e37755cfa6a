"""Whether the memory of a server grows with its work: a million holds over HTTP, measured on the way.

It is a real `earmark serve` with its workers and with Redis in front. Every hold has a buyer and a key that were never
used before; two hundred events are on sale at once, and an event that has had its share of holds is closed and replaced
by another. So memory that a server keeps for a buyer, a key, an event or a booking shows in the result.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from earmark.bench.booking.measure.server_memory_load_generator import EventCalendar, HoldTurn
from earmark.bench.child_process_protocol import line_process
from earmark.bench.free_ports import free_port
from earmark.bench.http.load_generator import CREATED, HttpAnswers
from earmark.bench.named_sql import named_sql
from earmark.bench.process_stats import PROC, process_tree, resident_bytes
from earmark.bench.server_command_host_and_key import EARMARK, HOST, TOKEN
from earmark.bench.wait_for_and_stop_servers import stop, wait_until_ready
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.bench.child_process_protocol import LineProcess
    from earmark.bench.prepare_and_count_rows import BenchDatabase

GROWTH_MAX = 1.5
"""Times the memory after the first part."""
LOAD = "earmark.bench.booking.measure.server_memory_load_generator"
PROGRAM = EARMARK[-1]
STOP_SECONDS = 20.0
TURN_HOLDS = 10_000
COUNT_SECONDS = 600
REPORT_EVERY = 50_000
GRANTED_MIN = 0.5
"""The share of a turn's holds that must be granted: a server that refuses most of them does too little work."""


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the server, by the number of holds that it had made by then."""

    holds: int
    """Counted in the database."""
    seconds: float
    megabytes: dict[int, float]
    events: int
    retired: int
    """The events that were closed on the way; counted in the database."""

    @property
    def growth(self) -> float:
        """The memory at the end over the memory after the first part."""
        first, *_, last = [self.megabytes[holds] for holds in sorted(self.megabytes) if holds]
        return last / first


async def measure(
    bench_database: BenchDatabase,
    *,
    redis: str,
    first: int,
    holds: int,
    clients: int,
    program: str = PROGRAM,
    progress: Callable[[int, float], object] = lambda _done, _megabytes: None,
) -> ServerMemory:
    """Make so many holds; measure the memory at the start, after `first` and at the end.

    The database is empty and used by nothing else. `program` is what the server's interpreter runs.
    """
    began = perf_counter()
    async with serving(bench_database.url, redis=redis, program=program) as server, line_process(LOAD) as generator:
        load = HoldLoad(bench_database, server, generator, calendar=EventCalendar.of(holds), clients=clients)
        megabytes = {0: server.megabytes()}
        for mark in (first, holds):
            while load.done < mark:
                before = load.done
                await load.turn(min(TURN_HOLDS, mark - load.done))
                if load.done // REPORT_EVERY > before // REPORT_EVERY:
                    progress(load.done, server.megabytes())
            megabytes[mark] = server.megabytes()
    seconds = perf_counter() - began
    made, retired = await _count(bench_database)
    if made != load.done:
        raise SetupError(problem=f"Buyers were told of {load.done:,} holds, and the database has {made:,}.")
    return ServerMemory(holds=made, seconds=seconds, megabytes=megabytes, events=len(load.opened), retired=retired)


class MeasuredServer:
    """A running server, seen from outside."""

    def __init__(self, process: asyncio.subprocess.Process, *, port: int) -> None:
        self._process = process
        self.port = port

    def megabytes(self) -> float:
        """The memory of the server and of the processes that it started."""
        if self._process.returncode is not None:
            raise SetupError(problem="The server ended while its memory was measured; its error output is above.")
        return sum(map(resident_bytes, process_tree(self._process.pid))) / 1e6


@asynccontextmanager
async def serving(database: str, *, redis: str, program: str = PROGRAM) -> AsyncIterator[MeasuredServer]:
    """`earmark serve` as an operator starts it: one process, with its workers, and Redis in front."""
    if not PROC.joinpath("self", "statm").exists():
        raise SetupError(problem="Memory is read from /proc, and this system has none.")
    port = free_port()
    options = ["--host", HOST, "--port", str(port), "--processes", "1", "--database", database, "--redis", redis]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "serve", *options),
        env={**os.environ, "EARMARK_ADMIN_KEY": TOKEN, "EARMARK_LOG": "warning"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await wait_until_ready(process, port)
        yield MeasuredServer(process, port=port)
    finally:
        await stop(process, seconds=STOP_SECONDS)


class HoldLoad:
    """The holds that were requested so far, and the events that are on sale."""

    def __init__(
        self,
        bench_database: BenchDatabase,
        server: MeasuredServer,
        load: LineProcess,
        *,
        calendar: EventCalendar,
        clients: int,
    ) -> None:
        self._database = bench_database
        self._server = server
        self._load = load
        self._calendar = calendar
        self._clients = clients
        self._requested = 0
        self._on_sale: set[str] = set()
        self.opened: set[str] = set()
        self.done = 0

    async def turn(self, holds: int) -> None:
        """Request so many more. Events that the turn before has finished are closed, others are opened."""
        on_sale = self._calendar.on_sale(self._requested, self._requested + holds)
        for event_id in sorted(on_sale - self.opened):
            await self._database.open_event(event_id, seats=self._calendar.each, units=self._calendar.each)
        turn = HoldTurn(
            port=self._server.port,
            token=TOKEN,
            connections=self._clients,
            calendar=self._calendar,
            first=self._requested,
            holds=holds,
            over=sorted(self._on_sale - on_sale),
        )
        answers = await self._load.ask(turn, HttpAnswers)
        made = answers.statuses.get(CREATED, 0)
        if answers.unanswered or made < holds * GRANTED_MIN:
            raise SetupError(
                problem=f"The server does not keep up: of {holds:,} holds it made {made:,}, "
                f"and {answers.unanswered:,} were not answered; statuses {answers.statuses}."
            )
        self.opened |= on_sale
        self._on_sale = on_sale
        self._requested += holds
        self.done += made


async def _count(bench_database: BenchDatabase) -> tuple[int, int]:
    """The holds that were made and the events that were closed, counted in the database."""
    connection = await asyncpg.connect(bench_database.dsn, timeout=10, command_timeout=COUNT_SECONDS)
    try:
        counts = named_sql(__package__, "count_holds_and_closed_events")
        return await connection.fetchval(counts["count_holds"]), await connection.fetchval(counts["count_retired"])
    finally:
        await connection.close()
