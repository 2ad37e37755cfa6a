"""The scales: a server at work weighs what it weighed before, and one that keeps something of each hold is noticed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from earmark.bench.booking.bench import memory, served
from earmark.bench.booking.bench.holders import Calendar, Turn, requests
from earmark.bench.booking.bench.house import House
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROOF = bool(os.environ.get("EARMARK_PROOF"))
HOLDS = 1_000_000 if PROOF else 2_000
CLIENTS = 200 if PROOF else 50
FEW = 2_000

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
HOARDER = ODD.format(does="kept.append(bytearray(50_000)); return await hold(self, ask)")
PARENT = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {HOARDER!r}, *sys.argv[1:]])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""
"""The same, and it is a child that hoards: a server may be more than one process."""
BY_ITSELF, BY_A_CHILD = pytest.param(HOARDER, id="by-itself"), pytest.param(PARENT, id="by-a-child")
REFUSER = ODD.format(does="raise StoreUnavailable(because='of a whim')")
LIAR = ODD.format(
    does="""if next(asked) % 2 and kept:
        return kept[-1]
    kept.append(await hold(self, ask))
    return kept[-1]"""
)
"""Every other time it tells of the hold before, once there is one."""


@pytest.fixture
async def house(postgres_url: str) -> AsyncIterator[House]:
    """A migrated database, seen from the outside."""
    opened = await House.open(postgres_url)
    yield opened
    await opened.close()


async def weigh(house: House, redis: str, *, holds: int, program: str = served.PROGRAM) -> memory.Weighed:
    return await memory.measure(
        house, redis=redis, first=holds // 10, holds=holds, clients=CLIENTS if holds == HOLDS else 50, program=program
    )


@pytest.mark.proof
@pytest.mark.timeout(3600 if PROOF else 120)
async def test_a_server_does_not_grow_with_what_it_has_done(house: House, redis_url: str) -> None:
    """A million holds over HTTP weigh at most 1.5 times what a hundred thousand do; else, a sample of them."""
    weighed = await weigh(house, redis_url, holds=HOLDS)
    assert weighed.holds == HOLDS
    assert set(weighed.megabytes) == {0, HOLDS // 10, HOLDS}
    assert weighed.growth <= memory.GROWTH_MAX
    assert weighed.events > weighed.retired > 0


@pytest.mark.parametrize("program", [*([BY_ITSELF] if PROOF else []), BY_A_CHILD])
async def test_a_server_that_hoards_is_noticed(house: House, redis_url: str, program: str) -> None:
    """The control: what is kept of each hold shows on the scales, and the whole family of processes is weighed."""
    weighed = await weigh(house, redis_url, holds=FEW, program=program)
    assert weighed.growth > memory.GROWTH_MAX


async def test_a_server_that_turns_buyers_away_is_not_weighed(house: House, redis_url: str) -> None:
    """One that does little work would keep little: its weight says nothing."""
    with pytest.raises(SetupError, match="does not keep up"):
        await weigh(house, redis_url, holds=100, program=REFUSER)


async def test_a_server_that_tells_of_holds_it_did_not_make_is_not_weighed(house: House, redis_url: str) -> None:
    """How many there were is counted in the database, and not by what buyers were told."""
    with pytest.raises(SetupError, match=r"told of 100 holds, and the database has \d\d\."):
        await weigh(house, redis_url, holds=100, program=LIAR)


def test_every_hold_is_a_new_buyer_with_a_new_key_and_a_place_of_its_own() -> None:
    """Nothing that a server remembers is asked for twice, and no house is ever full."""
    calendar = Calendar.of(4_000)
    places = [calendar.place(number) for number in range(4_000)]
    assert len(set(places)) == 4_000
    assert max(nth for _, nth in places) < calendar.each
    turn = Turn(port=1, token="t", connections=1, calendar=calendar, first=0, holds=4_000)
    asked = list(requests(turn))
    assert len(set(asked)) == 4_000
    assert len({line.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0] for line in asked}) == 4_000
    assert len({line.partition(b'"buyer":"')[2].partition(b'"')[0] for line in asked}) == 4_000


def test_events_come_and_go_all_the_time() -> None:
    """Two hundred are on sale at once, and they do not all change at the same moment."""
    calendar = Calendar.of(1_000_000)
    assert calendar.at_once == 200
    windows = [calendar.on_sale(first, first + 2_000) for first in range(0, 1_000_000, 20_000)]
    assert all(200 <= len(window) <= 210 for window in windows)
    assert len(set().union(*windows)) > 700
    assert all(before != after for before, after in itertools.pairwise(windows))


def test_a_family_is_a_process_and_all_that_come_from_it() -> None:
    """Children and theirs, and nobody else."""
    sleeper = "import sys; sys.stdin.read()"
    parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleeper!r}]).pid, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{parent}; {sleeper}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        assert started.stdin
        assert started.stdout
        grandchild = int(started.stdout.readline())
        assert served.family(started.pid) == {started.pid, grandchild}
        assert served.family(os.getpid()) >= {os.getpid(), started.pid, grandchild}
        started.stdin.close()
