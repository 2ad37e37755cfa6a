"""A run: attack after attack against one server, each beside harmless load of the same size.

    quiet ─▶ attack ─▶ quiet ─▶ attack ─▶ … ─▶ the bounds

Honest buyers hold at an even rate in every phase, and a prober asks `/healthz` every 5 ms. Attackers, honest buyers and
the prober are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import msgspec

from earmark.bench.attacks import callers, claims, connections, money, texts
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.prober import Probed
from earmark.bench.attacks.report import GRANTED, STALL_MS_MAX, Measured, Report, Result, phase
from earmark.bench.attacks.sender import Ask, Heard, Occupy, counted
from earmark.bench.attacks.site import POOL, standing
from earmark.bench.attacks.wire import request
from earmark.errors import EarmarkError, SetupError
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.bench.attacks.attack import Attack
    from earmark.bench.attacks.report import Phase, Plan
    from earmark.bench.attacks.site import Site

LINE_MAX = 256 * 1024 * 1024
HEAD_START_SECONDS = 0.1
"""By which honest buyers begin before an attack, so that they are connected."""
REST_SECONDS = 0.2
"""Between two phases, for what is left of the one before."""
CALM_SECONDS_MAX = 60.0
WARM_SECONDS = 1.0
HONEST_CONNECTIONS = 8


def all_attacks() -> dict[str, Attack]:
    """By name; new ones for each run, for they remember what they did."""
    modules = (texts, money, claims, connections, callers)
    return {attack.name: attack for module in modules for attack in module.attacks()}


async def run(plan: Plan, *, watch: Callable[[str], None]) -> Result:
    """All attacks of the plan, one after the other, on one server."""
    began = time.monotonic()
    watch("starting PostgreSQL, Valkey, a gateway, a worker and a server …")
    with tempfile.TemporaryDirectory(prefix="earmark-attacks-") as folder:
        try:
            async with standing(Path(folder), program=plan.earmark) as site, _crew(site) as field:
                await field.phase(_warm(site, plan), plan)
                known = all_attacks()
                reports = [await field.suffer(known[name], plan, watch=watch) for name in plan.attacks]
                watch("waiting for what takes longest …")
                reports = await _with_later(site, reports)
        except OSError as error:
            raise SetupError(problem=f"The run broke off: {type(error).__name__}: {error}") from error
    seconds = round(time.monotonic() - began, 1)
    return Result(plan=plan, reports=reports, seconds=seconds, versions={"earmark": __version__})


async def _with_later(site: Site, reports: list[Report]) -> list[Report]:
    """What was begun by an attack and could only be seen at the end."""
    for name, task in site.later:
        bound = await task
        reports = [
            msgspec.structs.replace(one, bounds=[*one.bounds, bound]) if one.attack == name else one for one in reports
        ]
    return reports


def _warm(site: Site, plan: Plan) -> Ask:
    rate = plan.honest_per_second
    return Ask(
        port=site.port,
        requests=[request("GET", "/missing", bearer=site.shop)] * round(rate * WARM_SECONDS),
        per_second=rate,
        connections=HONEST_CONNECTIONS,
    )


class Field:
    """The server, the clients and the prober."""

    def __init__(self, site: Site, *, honest: Talk, attacker: Talk, prober: Talk, event: str) -> None:
        self._site = site
        self._honest, self._attacker, self._prober = honest, attacker, prober
        self._event = event

    async def suffer(self, attack: Attack, plan: Plan, *, watch: Callable[[str], None]) -> Report:
        """One attack, measured and judged."""
        watch(f"{attack.name}: {attack.said} …")
        heard: list[Heard] = []
        try:
            measured = await self._measure(attack, plan, heard)
            bounds = [*expected(attack, heard), *await self._judged(attack, heard)]
        except (EarmarkError, httpx2.HTTPError) as error:
            raise SetupError(problem=f"{attack.name} broke off: {error!r}") from error
        return Report(
            attack=attack.name,
            said=attack.said,
            sent=sum(one.sent for one in heard),
            answers=counted(heard),
            bounds=[*bounds, *_others(measured, alive=self._site.is_alive)],
            measured=measured,
            load=round(os.getloadavg()[0], 1),
        )

    async def _judged(self, attack: Attack, heard: list[Heard]) -> list[Bound]:
        try:
            return await attack.judge(self._site, heard)
        except httpx2.HTTPError as error:
            return [Bound(said=f"the server did not answer a request after it: {error!r}", holds=False)]

    async def _measure(self, attack: Attack, plan: Plan, heard: list[Heard]) -> Measured:
        quiet, attacked = [], []
        for _ in range(plan.rounds):
            volley = await attack.prepare(self._site, plan.seconds)
            await self._calm()
            _, calm = await self.phase(volley.harmless, plan)
            said, hit = await self.phase(volley.attack, plan)
            heard.append(said)
            quiet.append(calm)
            attacked.append(hit)
        return Measured(quiet=quiet, attacked=attacked)

    async def _calm(self) -> None:
        """Wait until the server is done with what was sent before: it must not count as harmless load."""
        ends = time.monotonic() + CALM_SECONDS_MAX
        while time.monotonic() < ends:
            await self._prober.tell(b"take")
            await asyncio.sleep(REST_SECONDS)
            took = [
                seconds for _, seconds in msgspec.json.decode(await self._prober.tell(b"take"), type=Probed).samples
            ]
            if took and max(took) * 1000 < STALL_MS_MAX:
                return

    async def phase(self, job: Ask | Occupy, plan: Plan) -> tuple[Heard, Phase]:
        """Send, with honest buyers beside, and what the prober saw from the first request to the last answer."""
        await self._prober.tell(b"take")
        buyers = asyncio.create_task(self._honest.job(self._holds(job, plan)))
        await asyncio.sleep(HEAD_START_SECONDS)
        heard = await self._attacker.job(job)
        honest = await buyers
        probed = msgspec.json.decode(await self._prober.tell(b"take"), type=Probed)
        await asyncio.sleep(REST_SECONDS)
        return heard, phase(probed.samples, broken=probed.broken, honest=honest.answers)

    def _holds(self, job: Ask | Occupy, plan: Plan) -> Ask:
        """As many honest holds as the phase has room for, each of another buyer."""
        lasts = job.seconds if isinstance(job, Occupy) else len(job.requests) / job.per_second
        holds = [
            {"event_id": self._event, "buyer": f"honest-{secrets.token_hex(6)}", "pools": {POOL: 1}}
            for _ in range(max(4, round(plan.honest_per_second * (lasts + HEAD_START_SECONDS))))
        ]
        return Ask(
            port=self._site.port,
            requests=[
                request("POST", "/v1/bookings", bearer=self._site.shop, key=secrets.token_hex(8), json=body)
                for body in holds
            ],
            per_second=plan.honest_per_second,
            connections=HONEST_CONNECTIONS,
        )


def expected(attack: Attack, heard: list[Heard]) -> list[Bound]:
    """Every answer is one that the attack may have."""
    odd = {said: count for said, count in counted(heard).items() if not said.startswith(attack.allowed)}
    told = ", ".join(f"{count} x {said}" for said, count in odd.items())
    return [Bound(said=f"answers that are not expected: {told or 'none'}", holds=not odd)]


def _others(measured: Measured, *, alive: bool) -> list[Bound]:
    """What honest buyers and the prober met meanwhile."""
    phases = measured.attacked
    served = sum(one.honest.get(GRANTED, 0) for one in phases)
    asked = sum(sum(one.honest.values()) for one in phases)
    broken = sum(one.broken for one in phases)
    return [
        Bound(said=f"{served} of {asked} honest holds granted meanwhile", holds=served == asked),
        Bound(said=f"{broken} connections of the prober broken", holds=broken == 0),
        Bound(said="the server lives" if alive else "the server's process ended", holds=alive),
    ]


class Talk:
    """A process that answers each line with a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, said: bytes) -> bytes:
        """One line there, one line back."""
        assert self._process.stdin is not None
        self._process.stdin.write(said + b"\n")
        return await self.read()

    async def read(self) -> bytes:
        """The next line."""
        assert self._process.stdout is not None
        if not (line := await self._process.stdout.readline()):
            raise SetupError(problem="A process of the run ended in the middle; what it said is above.")
        return line

    async def job(self, job: Ask | Occupy) -> Heard:
        """Have the sender do it."""
        return msgspec.json.decode(await self.tell(msgspec.json.encode(job)), type=Heard)


@asynccontextmanager
async def _crew(site: Site) -> AsyncIterator[Field]:
    event = await site.create_event("honest")
    async with _talk("sender") as honest, _talk("sender") as attacker, _talk("prober", str(site.port)) as prober:
        await prober.read()
        yield Field(site, honest=honest, attacker=attacker, prober=prober, event=event)


@asynccontextmanager
async def _talk(module: str, *arguments: str) -> AsyncIterator[Talk]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"earmark.bench.attacks.{module}", *arguments), stdin=pipe, stdout=pipe, limit=LINE_MAX
    )
    try:
        yield Talk(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
