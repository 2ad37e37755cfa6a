"""A run: attack after attack against one server, each beside harmless load of the same size.

    quiet ─▶ attack ─▶ quiet ─▶ attack ─▶ … ─▶ the bounds

Honest buyers hold at an even rate in every phase, and a probe requests `/healthz` every 5 ms. Attackers, honest buyers
and the probe are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import msgspec

from earmark.bench.attacks.attacked_server import POOL, running_server
from earmark.bench.attacks.health_probe import ProbeSamples
from earmark.bench.attacks.kinds import (
    bad_payment_requests,
    connections,
    holds,
    keys_in_cookies_and_guessed_keys,
    malformed_requests,
)
from earmark.bench.attacks.kinds.card_testing_and_guessed_codes import CardTesting, GuessedAccountCodes
from earmark.bench.attacks.kinds.idempotency_keys_of_refused_holds import RefusedKeys
from earmark.bench.attacks.kinds.payments_while_gateway_refuses_key import DeniedGateway
from earmark.bench.attacks.kinds.requests_for_public_pages import PublicPages
from earmark.bench.attacks.kinds.webhooks_to_internal_addresses import InwardWebhooks
from earmark.bench.attacks.request_sender import ConnectionJob, JobAnswers, RequestJob, counted
from earmark.bench.attacks.results import GRANTED, STALL_MS_MAX, AttackReport, AttackResult, Bound, StallFigures, phase
from earmark.bench.child_process_protocol import line_process
from earmark.bench.http_bytes import request
from earmark.errors import EarmarkError, SetupError
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from earmark.bench.attacks.attack import Attack
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.results import AttackPhase, AttackPlan
    from earmark.bench.child_process_protocol import LineProcess

REQUEST_SENDER, HEALTH_PROBE = "earmark.bench.attacks.request_sender", "earmark.bench.attacks.health_probe"
HEAD_START_SECONDS = 0.1
"""Honest buyers begin this much before an attack, so that they are connected."""
REST_SECONDS = 0.2
"""Between two phases, so that the server can finish what the first one left."""
CALM_SECONDS_MAX = 60.0
WARM_SECONDS = 1.0
HONEST_CONNECTIONS = 8


def all_attacks() -> dict[str, Attack]:
    """By name; new instances for each run, because they keep what they have sent."""
    kinds: Sequence[type[Attack]] = (
        *(*malformed_requests.ATTACKS, RefusedKeys),
        *(CardTesting, DeniedGateway, *bad_payment_requests.ATTACKS, GuessedAccountCodes),
        *(*holds.ATTACKS, *connections.ATTACKS),
        *(*keys_in_cookies_and_guessed_keys.ATTACKS, PublicPages, InwardWebhooks),
    )
    return {kind.name: kind() for kind in kinds}


async def run(plan: AttackPlan, *, watch: Callable[[str], None]) -> AttackResult:
    """All attacks of the plan, one after the other, on one server."""
    began = time.monotonic()
    watch("starting PostgreSQL, Valkey, a gateway, a worker and a server …")
    with tempfile.TemporaryDirectory(prefix="earmark-attacks-") as folder:
        try:
            async with running_server(Path(folder), program=plan.earmark) as server, _attack_run(server) as attack_run:
                await attack_run.phase(_warm(server, plan), plan)
                known = all_attacks()
                reports = [await attack_run.measure(known[name], plan, watch=watch) for name in plan.attacks]
                watch("waiting for the slowest bounds …")
                reports = await _with_later(server, reports)
        except OSError as error:
            raise SetupError(problem=f"The run broke off: {type(error).__name__}: {error}") from error
    seconds = round(time.monotonic() - began, 1)
    return AttackResult(plan=plan, reports=reports, seconds=seconds, versions={"earmark": __version__})


async def _with_later(server: AttackedServer, reports: list[AttackReport]) -> list[AttackReport]:
    """The reports with the bounds that were only known at the end of the run."""
    for name, task in server.later:
        bound = await task
        reports = [
            msgspec.structs.replace(one, bounds=[*one.bounds, bound]) if one.attack == name else one for one in reports
        ]
    return reports


def _warm(server: AttackedServer, plan: AttackPlan) -> RequestJob:
    rate = plan.honest_per_second
    return RequestJob(
        port=server.port,
        requests=[request("GET", "/missing", bearer=server.shop_key)] * round(rate * WARM_SECONDS),
        per_second=rate,
        connections=HONEST_CONNECTIONS,
    )


class AttackRun:
    """The server, the senders and the probe."""

    def __init__(
        self, server: AttackedServer, *, honest: LineProcess, attacker: LineProcess, prober: LineProcess, event: str
    ) -> None:
        self._server = server
        self._honest, self._attacker, self._prober = honest, attacker, prober
        self._event = event

    async def measure(self, attack: Attack, plan: AttackPlan, *, watch: Callable[[str], None]) -> AttackReport:
        """Run one attack, and judge it."""
        watch(f"{attack.name}: {attack.description} …")
        answers: list[JobAnswers] = []
        try:
            measured = await self._measure(attack, plan, answers)
            bounds = [*expected(attack, answers), *await self._judged(attack, answers)]
        except (EarmarkError, httpx2.HTTPError) as error:
            raise SetupError(problem=f"{attack.name} broke off: {error!r}") from error
        return AttackReport(
            attack=attack.name,
            said=attack.description,
            sent=sum(one.sent for one in answers),
            answers=counted(answers),
            bounds=[*bounds, *_others(measured, alive=self._server.is_alive)],
            measured=measured,
            load=round(os.getloadavg()[0], 1),
        )

    async def _judged(self, attack: Attack, answers: list[JobAnswers]) -> list[Bound]:
        try:
            return await attack.judge(self._server, answers)
        except httpx2.HTTPError as error:
            return [Bound(said=f"the server did not answer a request after it: {error!r}", holds=False)]

    async def _measure(self, attack: Attack, plan: AttackPlan, answers: list[JobAnswers]) -> StallFigures:
        quiet, attacked = [], []
        for _ in range(plan.rounds):
            attack_load = await attack.prepare(self._server, plan.seconds)
            await self._calm()
            _, calm = await self.phase(attack_load.harmless, plan)
            reply, hit = await self.phase(attack_load.attack, plan)
            answers.append(reply)
            quiet.append(calm)
            attacked.append(hit)
        return StallFigures(quiet=quiet, attacked=attacked)

    async def _calm(self) -> None:
        """Wait until the server has finished what was sent before, so that it does not slow the harmless load."""
        ends = time.monotonic() + CALM_SECONDS_MAX
        while time.monotonic() < ends:
            await self._probed()
            await asyncio.sleep(REST_SECONDS)
            took = [seconds for _, seconds in (await self._probed()).samples]
            if took and max(took) * 1000 < STALL_MS_MAX:
                return

    async def phase(self, job: RequestJob | ConnectionJob, plan: AttackPlan) -> tuple[JobAnswers, AttackPhase]:
        """Run a job beside honest buyers; what the probe measured from the first request to the last answer."""
        await self._probed()
        buyers = asyncio.create_task(self._honest.ask(self._honest_holds(job, plan), JobAnswers))
        await asyncio.sleep(HEAD_START_SECONDS)
        answers = await self._attacker.ask(job, JobAnswers)
        honest = await buyers
        probed = await self._probed()
        await asyncio.sleep(REST_SECONDS)
        return answers, phase(probed.samples, broken=probed.broken, honest=honest.answers)

    async def _probed(self) -> ProbeSamples:
        """What the probe has measured since this was last called."""
        return await self._prober.ask("take", ProbeSamples)

    def _honest_holds(self, job: RequestJob | ConnectionJob, plan: AttackPlan) -> RequestJob:
        """As many honest holds as fit into the phase, each of another buyer."""
        lasts = job.seconds if isinstance(job, ConnectionJob) else len(job.requests) / job.per_second
        bodies = [
            {"event_id": self._event, "buyer": f"honest-{secrets.token_hex(6)}", "pools": {POOL: 1}}
            for _ in range(max(4, round(plan.honest_per_second * (lasts + HEAD_START_SECONDS))))
        ]
        return RequestJob(
            port=self._server.port,
            requests=[
                request("POST", "/v1/bookings", bearer=self._server.shop_key, key=secrets.token_hex(8), json=body)
                for body in bodies
            ],
            per_second=plan.honest_per_second,
            connections=HONEST_CONNECTIONS,
        )


def expected(attack: Attack, answers: list[JobAnswers]) -> list[Bound]:
    """Every answer is one that the attack allows."""
    odd = {reply: count for reply, count in counted(answers).items() if not reply.startswith(attack.allowed)}
    listed = ", ".join(f"{count} x {reply}" for reply, count in odd.items())
    return [Bound(said=f"answers that are not expected: {listed or 'none'}", holds=not odd)]


def _others(measured: StallFigures, *, alive: bool) -> list[Bound]:
    """What happened to honest buyers and the probe meanwhile."""
    phases = measured.attacked
    served = sum(one.honest.get(GRANTED, 0) for one in phases)
    asked = sum(sum(one.honest.values()) for one in phases)
    broken = sum(one.broken for one in phases)
    return [
        Bound(said=f"{served} of {asked} honest holds granted meanwhile", holds=served == asked),
        Bound(said=f"{broken} connections of the prober broken", holds=broken == 0),
        Bound(said="the server lives" if alive else "the server's process ended", holds=alive),
    ]


@asynccontextmanager
async def _attack_run(server: AttackedServer) -> AsyncIterator[AttackRun]:
    event = await server.create_event("honest")
    async with (
        line_process(REQUEST_SENDER) as honest,
        line_process(REQUEST_SENDER) as attacker,
        line_process(HEALTH_PROBE, str(server.port)) as prober,
    ):
        await prober.expect_ready()
        yield AttackRun(server, honest=honest, attacker=attacker, prober=prober, event=event)
