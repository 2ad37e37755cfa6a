"""pgbench as a contender: the statements of `cte`, sent by a program in C that does nothing else.

It is the limit of this machine and this database for one transaction per request: no interpreter, no event loop,
prepared statements, and the number of clients that suits it best. It sends the statements of the strategy, with its own
variables for the arguments.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.booking.measure.results import MeasurementResult
from earmark.bench.booking.strategies.build_rows_all_strategies_write import CALLER
from earmark.bench.booking.strategies.shared_hold_and_confirm import SETTINGS
from earmark.bench.named_sql import named_sql
from earmark.bench.process_stats import spent
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.bench.prepare_and_count_rows import BenchDatabase
    from earmark.bench.process_stats import DatabaseCpu

CLIENTS = (8, 16, 32, 64)
"""Which numbers of clients are tried to find the best."""
THREADS = 2
WARM_SECONDS = 1
"""Connecting, preparing and choosing plans happen in the first second, which is not counted."""
UUID7_SINCE = 18
ATTEMPTS_MAX = 8
LARGER = 4
_PROGRESS = re.compile(r"^progress: [\d.]+ s, ([\d.]+) tps", re.MULTILINE)
_DONE = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_TPS = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


class PgbenchOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the program wrote, and whether it succeeded."""

    text: str
    ended_well: bool

    @property
    def flows(self) -> int:
        """How many flows it made."""
        found = _DONE.search(self.text)
        return int(found[1]) if found else 0

    def rate(self, seconds: int) -> float:
        """Flows per second, without the first second."""
        all_measurements = [float(tps) for tps in _PROGRESS.findall(self.text)]
        if counted := all_measurements[WARM_SECONDS:seconds]:
            return sum(counted) / len(counted)
        whole = _TPS.search(self.text)
        return float(whole[1]) if whole else 0.0


class Pgbench:
    """The program, on one database, with the number of clients that was found to be best."""

    def __init__(self, program: Path, database: BenchDatabase, *, database_cpu: DatabaseCpu, seats_each: int) -> None:
        self._program = program
        self._database = database
        self._database_cpu = database_cpu
        self._seats_each = seats_each
        self._clients: int | None = None
        """The best number, in this database."""
        self._larger = 1
        """How many times as many seats as usual it needs."""
        self.sweep: dict[int, float] = {}
        """The most flows per second that were seen, by the number of clients."""

    @property
    def database(self) -> BenchDatabase:
        """The database that it writes to."""
        return self._database

    def use_database(self, database: BenchDatabase) -> None:
        """Use another database. The best number of clients is found again, because the machine may be busier by now."""
        self._database = database
        self._clients = None

    async def measure(self, event_id: str, *, seconds: float, flows: int) -> MeasurementResult:
        """One measurement. The best number of clients is found before the first one in a database."""
        if self._clients is None:
            found: dict[int, float] = {}
            for clients in CLIENTS:
                name = f"{event_id}-sweep-{clients}"
                found[clients] = (await self._run(name, seconds=1, flows=flows, clients=clients)).rate
                self.sweep[clients] = max(found[clients], self.sweep.get(clients, 0.0))
            self._clients = max(found, key=found.__getitem__)
        return await self._run(event_id, seconds=seconds, flows=flows, clients=self._clients)

    async def _run(self, event_id: str, *, seconds: float, flows: int, clients: int) -> MeasurementResult:
        """Run it; where all seats are sold before the time is over, run it again with more seats."""
        whole = WARM_SECONDS + max(1, math.ceil(seconds))
        for attempt in range(ATTEMPTS_MAX):
            name, flows_each = f"{event_id}-{attempt}", max(flows * self._larger // clients, 1)
            await self.database.open_event(name, seats=flows_each * clients * self._seats_each)
            await self.database.tidy()
            before = self._database_cpu.read()
            output = await self._run_program(name, seconds=whole, clients=clients, flows_each=flows_each)
            cpu = spent(before, self._database_cpu.read())
            counted = await self.database.count([name])
            if output.ended_well or counted.confirmed < flows_each:
                break
            self._larger *= LARGER
        if not output.ended_well or counted.confirmed != output.flows:
            raise SetupError(problem=f"pgbench made {counted.confirmed} flows, and wrote: {output.text.strip()[:500]}")
        return MeasurementResult(
            seconds=float(whole - WARM_SECONDS),
            rate=output.rate(whole),
            database_us=None if cpu is None else cpu / max(counted.confirmed, 1) * 1e6,
            answered=counted.confirmed,
            counted=counted,
        )

    async def _run_program(self, event_id: str, *, seconds: int, clients: int, flows_each: int) -> PgbenchOutput:
        with tempfile.TemporaryDirectory(prefix="earmark-pgbench-") as folder:
            script = Path(folder, "flow.sql")
            text = flow(self._seats_each, flows_each=flows_each, uuid7=self.database.major >= UUID7_SINCE)
            script.write_text(text, encoding="utf-8")  # noqa: ASYNC240 -- nothing else runs, or is measured, meanwhile
            options = ("-n", "-M", "prepared", "-c", clients, "-j", THREADS, "-T", seconds, "-P", 1)
            variables = ("-D", f"event={event_id}", "-D", "n=-1")
            settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items() if name != "application_name")
            process = await asyncio.create_subprocess_exec(
                *(str(self._program), *map(str, options), *variables, "-f", str(script), self.database.dsn),
                env={**os.environ, "PGOPTIONS": settings},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
        return PgbenchOutput(text=output.decode(errors="replace"), ended_well=process.returncode == 0)


def flow(seats_each: int, *, flows_each: int, uuid7: bool) -> str:
    """The script: every client sells its own part of the seats, one after the other."""
    new_id = "uuidv7()" if uuid7 else "gen_random_uuid()"
    seats = range(seats_each)
    wanted = ", ".join(f"'S' || :s{seat}::text" for seat in seats)
    key = "(:event::text || '-' || :flow)"
    named = named_sql("earmark.bench.booking.strategies", "cte")
    hold = _with_arguments(
        named["hold"].replace("WITH ", f"WITH made AS MATERIALIZED (SELECT {new_id} AS booking_id), ", 1),
        {
            1: ":event::text",
            2: "('buyer-' || :flow::text)",
            3: f"ARRAY[{wanted}]",
            4: "'{}'::text[]",
            5: "'{}'::integer[]",
            6: named_sql(__package__, "reference_to_generated_booking_id")["made_id"],
            7: "600",
            8: new_id,
            9: f"'{CALLER}'::text",
            10: key,
            11: f"sha256({key}::bytea)",
        },
    )
    confirm = _with_arguments(
        named["confirm"],
        {
            1: ":booking_id::uuid",
            2: f"({key} || '-paid')",
            3: new_id,
            4: f"'{CALLER}'::text",
            5: f"({key} || '-confirm')",
            6: f"sha256({key}::bytea)",
        },
    )
    return "\n".join(
        [
            "\\set n :n + 1",
            f"\\set flow :client_id * {flows_each} + :n",
            *(f"\\set s{seat} :flow * {seats_each} + {seat}" for seat in seats),
            f"{hold} \\gset",
            f"{confirm};",
            "",
        ]
    )


def _with_arguments(statement: str, arguments: Mapping[int, str]) -> str:
    """The statement with an expression for each argument, without comments: pgbench would look for variables there."""
    bare = re.sub(r"--.*", "", statement)
    return re.sub(r"\$(\d+)", lambda match: arguments[int(match[1])], bare)
