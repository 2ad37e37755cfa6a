"""Two servers behind a balancer, buyers who do not stop, and an operator who replaces the servers one by one."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shutil
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
from tests.acceptance.support import NO_TLS, Service, earmark, readiness, serve

import earmark as package
from earmark.client import AsyncClient
from earmark.errors import EarmarkError, Unreachable
from earmark.store.both_databases.pending_migrations import migrations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

T = TypeVar("T")
EVENT = "upgrade"
FACT_SECONDS_MAX = 60.0
PROBE_SECONDS = 0.05
SEATS = 2000
NUMBER = len(migrations("postgres")) + 1
EXPAND = "\n".join(
    [
        "-- expand",
        *(f"ALTER TABLE {table} ADD COLUMN note text;" for table in ("events", "bookings", "payments", "buyer_totals")),
        *(f"ALTER TABLE {table} ADD COLUMN note text NOT NULL DEFAULT '';" for table in ("pools", "seats", "journal")),
        "CREATE INDEX bookings_by_note ON bookings (note) WHERE note IS NOT NULL;",
        "CREATE TABLE notes (id integer PRIMARY KEY);\n",
    ]
)
"""Needs the strongest lock on every table that a hold or a confirm touches."""


def older_code() -> Path:
    """What is under test."""
    return Path(package.__file__).parent.parent


def newer_code(folder: Path, *, migration: str = EXPAND) -> Path:
    """The same with one more migration; all but the migrations are links, so that nothing is compiled anew."""
    here = older_code() / "earmark"
    for place in (Path(), Path("store"), Path("store/sql")):
        (folder / "earmark" / place).mkdir(parents=True, exist_ok=True)
        for entry in (here / place).iterdir():
            if place / entry.name not in (Path("store"), Path("store/sql"), Path("store/sql/postgres")):
                (folder / "earmark" / place / entry.name).symlink_to(entry)
    shutil.copytree(here / "store/sql/postgres", folder / "earmark/store/sql/postgres")
    (folder / "earmark/store/sql/postgres" / f"{NUMBER:04}_tomorrow.sql").write_text(migration)
    return folder


def path_of(code: Path) -> str:
    """Where a command finds this code; what is under test is found without a path."""
    return "" if code == older_code() else str(code)


@dataclass(slots=True, kw_only=True)
class Phase:
    """What was counted while nothing changed, or while one thing did."""

    name: str
    flows: Counter[int] = field(default_factory=Counter)
    """A hold and its confirm, by the server that answered the confirm."""
    answers: Counter[str] = field(default_factory=Counter)
    ready: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True, eq=False)
class Upgrade:
    """The whole of it; `failed` and `unready` must stay empty."""

    database: str
    folder: Path
    services: list[Service] = field(default_factory=list)
    clients: list[AsyncClient] = field(default_factory=list)
    up: set[int] = field(default_factory=lambda: {0, 1})
    """Where the balancer sends requests: not to a server that refused one, until it is ready again."""
    restarting: int | None = None
    restarts: Counter[int] = field(default_factory=Counter)
    phases: list[Phase] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    confirmed: set[str] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    stopping: bool = False

    async def start(self, code: Path) -> None:
        """Two servers that share the database and a key."""
        key = f"ek_test_{secrets.token_hex(16)}"
        self.services += await asyncio.gather(*(self._serve(code, key=key) for _ in range(2)))

    @asynccontextmanager
    async def load(self, *, buyers: int) -> AsyncIterator[None]:
        """Buyers and a balancer that looks, from here to the end."""
        async with AsyncExitStack() as stack:
            for service in self.services:
                transport = httpx2.AsyncHTTPTransport(verify=NO_TLS, limits=httpx2.Limits(max_connections=buyers))
                client = AsyncClient(
                    service.url, key=service.key, retries=0, timeout=FACT_SECONDS_MAX, transport=transport
                )
                self.clients.append(await stack.enter_async_context(client))
            pools = {"GA": (1_000_000, 100)}
            seats = {f"S{number}": 100 for number in range(SEATS)}
            await self.clients[0].create_event(EVENT, name="Upgrade", currency="EUR", pools=pools, seats=seats)
            async with asyncio.TaskGroup() as group:
                for _ in range(buyers):
                    group.create_task(self._buy())
                for number in range(len(self.services)):
                    group.create_task(self._probe(number))
                try:
                    yield
                finally:
                    self.stopping = True

    async def phase(self, name: str, work: Awaitable[T] | None = None, *, enough: int) -> T | None:
        """Do something under load, and then wait until both servers have sold enough."""
        self.phases.append(Phase(name=name))
        done = await work if work is not None else None
        flows = self.phases[-1].flows
        goals = [(number, flows[number] + enough) for number in (0, 1)]
        async with asyncio.timeout(FACT_SECONDS_MAX):
            while not self.failed and any(flows[number] < goal for number, goal in goals):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return done

    async def migrate(self, code: Path) -> str:
        """As a deployment does it."""
        done = await asyncio.to_thread(earmark, "migrate", "--database", self.database, PYTHONPATH=path_of(code))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def restart(self, number: int, code: Path) -> None:
        """On other code, at the same address."""
        old = self.services[number]
        self.restarting = number
        self.restarts[number] += 1
        old.signal(signal.SIGTERM)
        assert await asyncio.to_thread(old.gone, within=FACT_SECONDS_MAX) == 0, old.log()
        self.services[number] = await self._serve(code, key=old.key, port=old.port)
        self.restarting = None
        self.up.add(number)

    async def _serve(self, code: Path, **settings: Any) -> Service:
        where: dict[str, Any] = {"database": self.database, "directory": self.folder, "PYTHONPATH": path_of(code)}
        return await asyncio.to_thread(partial(serve, **where, **settings))

    def table(self) -> str:
        """For people."""
        lines = [f"{'phase':34} {'holds':>6} {'confirms':>8} {'cut':>4} {'failed':>6}  flows by server  /readyz"]
        for phase in self.phases:
            answers, flows = phase.answers, " + ".join(str(phase.flows[number]) for number in (0, 1))
            ready = " ".join(f"{what}:{count}" for what, count in sorted(phase.ready.items()))
            counts = f"{answers['hold']:6} {answers['confirm']:8} {answers['cut']:4} {answers['failed']:6}"
            lines.append(f"{phase.name:34} {counts}  {flows:15}  {ready}")
        return "\n".join(lines)

    async def _buy(self) -> None:
        """Hold at one server, confirm at the next, and again."""
        while not self.stopping:
            number = next(self.numbers)
            held = await self._ask("hold", number, f"buyer-{number}")
            if held is not None:
                await self._ask("confirm", number + 1, held)

    async def _ask(self, verb: str, number: int, what: str) -> str | None:
        """One request, never repeated: what it made, or nothing."""
        server = number % 2 if number % 2 in self.up else min(self.up)
        client = self.clients[server]
        began = self.restarting, self.restarts[server]
        try:
            if verb == "hold":
                # Each seat once; the pool is for the others.
                seat = number // 2 if number % 2 == 0 and number // 2 < SEATS else None
                seats, pools = ([], {"GA": 1}) if seat is None else ([f"S{seat}"], {})
                made = (await client.hold(EVENT, buyer=what, seats=seats, pools=pools)).id
            else:
                made = (await client.confirm(what, payment_id=f"pay-{what}")).id
        except EarmarkError as error:
            self._count_failure(verb, server, error, cut=server == began[0] or self.restarts[server] > began[1])
            return None
        self.phases[-1].answers[verb] += 1
        if verb == "confirm":
            self.phases[-1].flows[server] += 1
            self.confirmed.add(made)
        return made

    def _count_failure(self, verb: str, server: int, error: EarmarkError, *, cut: bool) -> None:
        if isinstance(error, Unreachable) and cut:
            self.phases[-1].answers["cut"] += 1
            self.up.discard(server)
            return
        self.phases[-1].answers["failed"] += 1
        self.failed.append(f"{self.phases[-1].name}: {verb} at server {server}: {error!r}")

    async def _probe(self, number: int) -> None:
        """What `/readyz` says, but for the time in which the server is replaced."""
        while not self.stopping:
            began = self.restarting, self.restarts[number]
            status = await asyncio.to_thread(readiness, self.services[number].port)
            # No answer at all is a slow machine's: it is the wrong one that takes a server out of rotation.
            if began == (self.restarting, self.restarts[number]) and number != self.restarting and status is not None:
                self.phases[-1].ready[str(status)] += 1
                if status != 200:
                    self.unready.append(f"{self.phases[-1].name}: server {number} answered {status}")
            await asyncio.sleep(PROBE_SECONDS)
