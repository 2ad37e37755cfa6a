"""The memory bench: a server does not grow with its work, and one that keeps memory for each hold is noticed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from earmark.bench.booking.measure import server_memory_growth
from earmark.bench.booking.measure.server_memory_load_generator import EventCalendar, HoldTurn, requests
from earmark.bench.prepare_and_count_rows import BenchDatabase
from earmark.bench.process_stats import process_tree
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROOF = bool(os.environ.get("EARMARK_PROOF"))
HOLDS = 1_000_000 if PROOF else 1_000
CLIENTS = 200 if PROOF else 50
FEW = 1_000

ODD = """
import itertools
from earmark.cli import main
from earmark.engine.engine import Engine
from earmark.errors import StoreUnavailable

hold, kept, asked = Engine.hold, [], itertools.count()

async def odd(self, ask):
    {does}

Engine.hold = odd
main()
"""
KEEPER = ODD.format(does="kept.append(bytearray(100_000)); return await hold(self, ask)")
PARENT = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {KEEPER!r}, *sys.argv[1:]])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""
"""The same in a child process: a server may be more than one process."""
BY_ITSELF, BY_A_CHILD = pytest.param(KEEPER, id="by-itself"), pytest.param(PARENT, id="by-a-child")
REFUSER = ODD.format(does="raise StoreUnavailable(because='of a whim')")
LIAR = ODD.format(
    does="""if next(asked) % 2 and kept:
        return kept[-1]
    kept.append(await hold(self, ask))
    return kept[-1]"""
)
"""Every other time it returns the hold before, once there is one."""


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[BenchDatabase]:
    """A migrated database."""
    opened = await BenchDatabase.open(postgres_url)
    yield opened
    await opened.close()


async def measure_memory(
    database: BenchDatabase, redis: str, *, holds: int, program: str = server_memory_growth.PROGRAM
) -> server_memory_growth.ServerMemory:
    return await server_memory_growth.measure(
        database,
        redis=redis,
        first=holds // 10,
        holds=holds,
        clients=CLIENTS if holds == HOLDS else 50,
        program=program,
    )


@pytest.mark.proof
@pytest.mark.timeout(3600 if PROOF else 120)
async def test_a_server_does_not_grow_with_its_work(database: BenchDatabase, redis_url: str) -> None:
    """After a million holds over HTTP the memory is at most 1.5 times that after a hundred thousand."""
    measured = await measure_memory(database, redis_url, holds=HOLDS)
    assert measured.holds == HOLDS
    assert set(measured.megabytes) == {0, HOLDS // 10, HOLDS}
    assert measured.growth <= server_memory_growth.GROWTH_MAX
    assert measured.events > measured.retired > 0


@pytest.mark.parametrize("program", [*([BY_ITSELF] if PROOF else []), BY_A_CHILD])
async def test_a_server_that_keeps_memory_is_noticed(database: BenchDatabase, redis_url: str, program: str) -> None:
    """The control: memory that is kept for each hold is measured, in all processes of the server."""
    measured = await measure_memory(database, redis_url, holds=FEW, program=program)
    assert measured.growth > server_memory_growth.GROWTH_MAX


async def test_a_server_that_refuses_most_holds_is_not_measured(database: BenchDatabase, redis_url: str) -> None:
    """A server that does little work would keep little: its memory says nothing."""
    with pytest.raises(SetupError, match="does not keep up"):
        await measure_memory(database, redis_url, holds=100, program=REFUSER)


async def test_a_server_that_reports_holds_it_did_not_make_is_not_measured(
    database: BenchDatabase, redis_url: str
) -> None:
    """Holds are counted in the database, not by the answers."""
    with pytest.raises(SetupError, match=r"told of 100 holds, and the database has \d\d\."):
        await measure_memory(database, redis_url, holds=100, program=LIAR)


def test_every_hold_is_a_new_buyer_with_a_new_key_and_a_place_of_its_own() -> None:
    """No key and no seat is used twice, and no event is ever full."""
    calendar = EventCalendar.of(4_000)
    places = [calendar.place(number) for number in range(4_000)]
    assert len(set(places)) == 4_000
    assert max(nth for _, nth in places) < calendar.each
    turn = HoldTurn(port=1, token="t", connections=1, calendar=calendar, first=0, holds=4_000)
    asked = list(requests(turn))
    assert len(set(asked)) == 4_000
    assert len({line.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0] for line in asked}) == 4_000
    assert len({line.partition(b'"buyer":"')[2].partition(b'"')[0] for line in asked}) == 4_000


def test_events_come_and_go_all_the_time() -> None:
    """Two hundred are on sale at once, and they do not all change at the same moment."""
    calendar = EventCalendar.of(1_000_000)
    assert calendar.at_once == 200
    windows = [calendar.on_sale(first, first + 2_000) for first in range(0, 1_000_000, 20_000)]
    assert all(200 <= len(window) <= 210 for window in windows)
    assert len(set().union(*windows)) > 700
    assert all(before != after for before, after in itertools.pairwise(windows))


def test_a_process_tree_is_a_process_and_all_its_descendants() -> None:
    """Children and their children, and no other process."""
    sleeper = "import sys; sys.stdin.read()"
    parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleeper!r}]).pid, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{parent}; {sleeper}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        assert started.stdin
        assert started.stdout
        grandchild = int(started.stdout.readline())
        assert process_tree(started.pid) == {started.pid, grandchild}
        assert process_tree(os.getpid()) >= {os.getpid(), started.pid, grandchild}
        started.stdin.close()
