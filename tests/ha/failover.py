"""Buyers who hold and confirm while the primary is killed, and a count of the acknowledged bookings that are lost.

python -m tests.ha.failover --kills 5        prints the table of what each mode lost
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
from tests.ha.cluster import Cluster
from tests.ha.patroni_programs import find

from earmark.errors import EarmarkError
from earmark.library import Earmark
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tests.ha.cluster import Node
    from tests.ha.patroni_programs import Programs

DATABASE = "shop"
BUYERS = 8
ACKNOWLEDGED_BEFORE = 1000
"""How many bookings are acknowledged before the fault."""
LOST_MIN = 100
"""How many more are acknowledged while nothing reaches the standby, where commits do not wait for it."""
SECONDS_MAX = 90.0
_POLL_SECONDS = 0.01
_PAUSE_AFTER_ERROR_SECONDS = 0.1
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a cluster is set up, and what is done to it before its primary is killed."""

    name: str
    synchronous: bool
    commit: str = "on"
    paused: bool = False
    """Whether nothing more reaches the standby from some moment before the kill."""

    @property
    def waits(self) -> bool:
        """Whether a commit waits for the standby."""
        return self.synchronous and self.commit != "local"


SYNCHRONOUS = Mode(name="synchronous standby", synchronous=True)
SYNCHRONOUS_PAUSED = Mode(name="synchronous standby, replication paused", synchronous=True, paused=True)
REMOTE_WRITE = Mode(name="synchronous standby, remote_write", synchronous=True, commit="remote_write")
LOCAL_PAUSED = Mode(
    name="synchronous standby, local, replication paused", synchronous=True, commit="local", paused=True
)
ASYNCHRONOUS = Mode(name="asynchronous standby", synchronous=False)
ASYNCHRONOUS_PAUSED = Mode(name="asynchronous standby, replication paused", synchronous=False, paused=True)
MODES = (SYNCHRONOUS, SYNCHRONOUS_PAUSED, REMOTE_WRITE, LOCAL_PAUSED, ASYNCHRONOUS, ASYNCHRONOUS_PAUSED)


@dataclass(kw_only=True)
class Outcome:
    """What one kill did."""

    mode: Mode
    acknowledged: int
    """Acknowledged bookings, held or confirmed; the last few of them by the promoted node."""
    lost: int
    """Those of them that the promoted node does not have, or has in an earlier state."""
    gap_seconds: float
    """The longest time without an acknowledgement."""
    flaws: list[str]
    """What `earmark verify` finds on the promoted node."""


@dataclass
class BuyerLoad:
    """Buyers who hold one unit and confirm it, over and over, and record what was acknowledged."""

    shop: Earmark
    event: str
    acknowledged_states: dict[str, str] = field(default_factory=dict)
    """The last acknowledged state, by booking."""
    times: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    async def run(self) -> None:
        """All of them at once, until the test stops them."""
        await asyncio.gather(*(self._buyer(number) for number in range(BUYERS)))

    async def _buyer(self, number: int) -> None:
        while not self.stopping:
            try:
                held = await self.shop.hold(self.event, buyer=f"buyer-{number}", pools={"GA": 1})
                self._note(held)
                self._note(await self.shop.confirm(held.id, payment_id=f"till-{uuid4()}"))
            except EarmarkError as error:
                self.errors[error.code] += 1
                await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS)

    def _note(self, booking: Any) -> None:
        self.acknowledged_states[booking.id] = booking.state
        self.times.append(time.monotonic())


async def fail_over(cluster: Cluster, mode: Mode) -> Outcome:
    """Sell, kill the primary, wait until the promoted node sells, and count."""
    primary, _ = await asyncio.to_thread(cluster.wait_for_standby)
    event = f"event-{uuid4().hex}"
    async with AsyncExitStack() as stack:
        shop = await _open_shop(stack, cluster.url(DATABASE))
        await shop.create_event(event, name="A concert", currency="EUR", pools={"GA": (1_000_000, 2500)})
        buyers = BuyerLoad(shop, event)
        running = asyncio.create_task(buyers.run())
        try:
            await until(lambda: len(buyers.acknowledged_states) >= ACKNOWLEDGED_BEFORE)
            if mode.paused:
                await _pause(cluster, primary, buyers, mode)
            await asyncio.to_thread(primary.kill)
            promoted = await asyncio.to_thread(cluster.wait_for_primary, other_than=primary)
            count = len(buyers.acknowledged_states) + BUYERS
            await until(lambda: len(buyers.acknowledged_states) >= count)
        finally:
            buyers.stopping = True
            await running
    url = cluster.url_of(promoted, DATABASE)
    lost, flaws = await missing(url, buyers.acknowledged_states), await find_flaws(url)
    return Outcome(
        mode=mode,
        acknowledged=len(buyers.acknowledged_states),
        lost=lost,
        gap_seconds=_longest(buyers.times),
        flaws=flaws,
    )


async def _open_shop(stack: AsyncExitStack, url: str) -> Earmark:
    """A node that has just restarted may be restarted by Patroni once more: then the shop is opened again."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await stack.enter_async_context(Earmark.open(url))
            except EarmarkError:
                await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS)


async def _pause(cluster: Cluster, primary: Node, buyers: BuyerLoad, mode: Mode) -> None:
    """Let nothing more reach the standby, and go on selling until that shows."""
    assert primary.pause_replication() == 1
    if not mode.waits:
        enough = len(buyers.acknowledged_states) + LOST_MIN
        await until(lambda: len(buyers.acknowledged_states) >= enough)
        return
    connection = await asyncpg.connect(cluster.url_of(primary, DATABASE))
    try:
        await until_true(lambda: connection.fetchval(_WAITING))
    finally:
        await connection.close()


async def missing(url: str, acknowledged_states: dict[str, str]) -> int:
    """How many acknowledged bookings this database does not have in that state, or in a later one."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT id, state FROM bookings WHERE id = ANY($1)", [UUID(one) for one in acknowledged_states]
        )
    finally:
        await connection.close()
    kept = {str(row["id"]): row["state"] for row in rows}
    return sum(kept.get(one) not in {state, "confirmed"} for one, state in acknowledged_states.items())


async def find_flaws(url: str) -> list[str]:
    """What `earmark verify` would name."""
    store = await open_and_maintain_databases.open_store(url)
    try:
        return [f"{flaw.rule}: {flaw.row}" for flaw in await store.find_flaws(limit=20)]
    finally:
        await store.close()


async def until(fact: Callable[[], object]) -> None:
    """Wait for a fact."""

    async def asked() -> object:
        return fact()

    await until_true(asked)


async def until_true(fact: Callable[[], Awaitable[object]]) -> None:
    """Wait for a fact that has to be queried."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await fact():  # noqa: ASYNC110 -- a server has to be asked
            await asyncio.sleep(_POLL_SECONDS)


def _longest(times: list[float]) -> float:
    return max(after - before for before, after in pairwise(times))


def cluster_for(programs: Programs, mode: Mode) -> Cluster:
    """A cluster in this mode, with an empty database."""
    cluster = Cluster(programs, synchronous=mode.synchronous, settings={"synchronous_commit": mode.commit})
    try:
        primary, _ = cluster.wait_for_standby()
        asyncio.run(_create_database(cluster.url_of(primary, "postgres")))
    except BaseException:
        cluster.close()
        raise
    return cluster


async def _create_database(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()


def measure(programs: Programs, mode: Mode, *, kills: int) -> list[Outcome]:
    """So many kills in one cluster; each killed node restarts as the standby."""
    outcomes = list[Outcome]()
    with cluster_for(programs, mode) as cluster:
        for _ in range(kills):
            outcomes.append(asyncio.run(fail_over(cluster, mode)))
            for node in cluster.nodes:
                if not node.runs:
                    node.start()
    return outcomes


def table(outcomes: Iterable[Outcome]) -> str:
    """What each mode lost."""
    by_mode: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_mode.setdefault(outcome.mode.name, []).append(outcome)
    lines = ["| mode | kills | acknowledged | lost | seconds without success | verify |", "|---|---|---|---|---|---|"]
    for name, some in by_mode.items():
        gaps = [one.gap_seconds for one in some]
        clean = "clean" if not any(one.flaws for one in some) else "BROKEN"
        acknowledged, lost = sum(one.acknowledged for one in some), sum(one.lost for one in some)
        lines.append(
            f"| {name} | {len(some)} | {acknowledged:,} | {lost:,} | {min(gaps):.1f} to {max(gaps):.1f} | {clean} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--kills", type=int, default=5)
    given.add_argument("--mode", choices=[mode.name for mode in MODES], action="append")
    asked = given.parse_args()
    logging.disable(logging.CRITICAL)
    outcomes = list[Outcome]()
    for mode in MODES:
        if asked.mode is None or mode.name in asked.mode:
            outcomes += measure(find(), mode, kills=asked.kills)
            sys.stderr.write(f"{table(outcomes[-asked.kills :]).splitlines()[-1]}\n")
    sys.stdout.write(f"{table(outcomes)}\n")


if __name__ == "__main__":
    main()
