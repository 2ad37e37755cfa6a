"""Races over HTTP for the same seats, at two servers, while their Redis is emptied, killed, stopped or slow.

The answers that buyers got are compared with what the database has in the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests import skip_summary
from tests.admission.support import Slow
from tests.locks.hazard_support import pause, resume
from tests.locks.topologies import ask, start_private

from earmark.testservers import ServerUnavailable

from .support import Caller, Service, answered, calling, earmark, eventually, exchange, refused, serve, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from earmark.testservers import Valkey

PROOF = bool(os.environ.get("EARMARK_PROOF"))
ROUNDS = 5 if PROOF else 1
SEATS = 12
BUYERS = 16
SOLD_BEFORE_THE_FAULT = 3
SOLD_IN_THE_FAULT = 4


@dataclass(kw_only=True)
class Shop:
    """Two servers on one PostgreSQL, the one Redis of both, and the connection to it."""

    servers: tuple[Service, ...]
    redis: Valkey
    line: Slow


@pytest.fixture(scope="module")
def shop(new_database: Callable[[str], str], log_directory: Path) -> Iterator[Shop]:
    """Servers as they are shipped, but for the connection to Redis, which can be made slow."""
    try:
        redis = start_private()
    except ServerUnavailable as error:
        skip_summary.missing("NOTHING IS ACCEPTED WITH REDIS HERE", error)
    url = new_database("postgres")
    with redis, Slow(redis.nodes[0].port, seconds=0.0) as line, ExitStack() as stack:
        servers: list[Service] = []
        for _ in range(2):
            key = servers[0].key if servers else None
            servers.append(serve(database=url, directory=log_directory, key=key, EARMARK_REDIS_URL=line.url))
            stack.callback(servers[-1].stop)
        yield Shop(servers=tuple(servers), redis=redis.nodes[0], line=line)


@pytest.fixture
async def callers(shop: Shop) -> AsyncIterator[list[Caller]]:
    """The shop's back end at each server."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(calling(one, connections=BUYERS)) for one in shop.servers]


# ------------------------------------------------------------------------------------------------------- the faults


@contextmanager
def emptied(shop: Shop) -> Iterator[None]:
    """Redis loses all keys, and goes on."""
    ask(shop.redis, "FLUSHALL")
    yield
    ask(shop.redis, "FLUSHALL")


@contextmanager
def killed(shop: Shop) -> Iterator[None]:
    """Redis is killed at once, and later started empty."""
    shop.redis.kill()
    try:
        yield
    finally:
        shop.redis.start()


@contextmanager
def stopped(shop: Shop) -> Iterator[None]:
    """It takes requests and answers none, then answers all of them."""
    pause(shop.redis.pid)
    try:
        yield
    finally:
        resume(shop.redis.pid)


@contextmanager
def slowed(shop: Shop) -> Iterator[None]:
    """Every answer comes after the servers have given up on it."""
    shop.line.seconds = 0.5
    try:
        yield
    finally:
        shop.line.seconds = 0.0


@contextmanager
def cut(shop: Shop) -> Iterator[None]:
    """Connections break again and again, with calls under way."""
    shop.line.cut()
    yield
    shop.line.cut()


FAULTS = [emptied, killed, stopped, slowed, cut]
SAMPLE = [emptied, killed]


# --------------------------------------------------------------------------------------------------------- the race


@dataclass(kw_only=True)
class Race:
    """Buyers that request the same seats until all are sold, and the answers that they got."""

    callers: list[Caller]
    event: str
    seats: list[str]
    owned: dict[str, str] = field(default_factory=dict)
    """Which booking has each seat, by what was acknowledged and not released since."""
    state: dict[str, str] = field(default_factory=dict)
    """Each booking's state, as it was acknowledged last."""
    sold: dict[str, str] = field(default_factory=dict)
    doubles: list[str] = field(default_factory=list)
    refusals: int = 0

    async def run(self) -> None:
        """All buyers at once."""
        await asyncio.gather(*(self._buy(number) for number in range(BUYERS)))

    async def until_sold(self, count: int) -> None:
        """So many seats are sold, or all of them."""
        count = min(count, len(self.seats))
        await eventually(self._count, lambda sold: sold >= count)

    async def _count(self) -> int:
        return len(self.sold)

    async def _buy(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311 -- the same each time
        while left := [seat for seat in self.seats if seat not in self.sold]:
            wanted = sorted(chance.sample(left, k=min(len(left), chance.randint(1, 2))))
            here, there = chance.sample(self.callers, k=2)
            request: dict[str, Any] = {"buyer": f"buyer-{number}", "seats": wanted, "idempotency_key": unique("key")}
            response = await here.hold(self.event, **request)
            if response.status_code == 409:
                assert "yours" not in refused(response, 409, "seats_taken"), exchange(response)
                self.refusals += 1
                await asyncio.sleep(chance.random() * 0.02)
                continue
            booking: str = answered(response, 201)["id"]
            self._granted(booking, wanted)
            if chance.random() < 0.4:
                repeated = await there.hold(self.event, **request)
                assert answered(repeated, 201)["id"] == booking, "a repeat is answered as the first"
            if chance.random() < 0.4:
                await self._give_back(there, booking, wanted)
            else:
                answered(await there.confirm(booking), 200)
                self.state[booking] = "confirmed"
                self.sold |= dict.fromkeys(wanted, booking)

    def _granted(self, booking: str, wanted: list[str]) -> None:
        self.state[booking] = "held"
        self.doubles += [seat for seat in wanted if seat in self.owned]
        self.owned |= dict.fromkeys(wanted, booking)

    async def _give_back(self, caller: Caller, booking: str, wanted: list[str]) -> None:
        # From here on another buyer may have them.
        for seat in wanted:
            del self.owned[seat]
        answered(await caller.release(booking), 200)
        self.state[booking] = "released"


async def race(callers: list[Caller]) -> Race:
    event = await callers[0].theatre(rows=1, seats_per_row=SEATS)
    return Race(callers=callers, event=event, seats=[f"A{number}" for number in range(1, SEATS + 1)])


async def owners_in(database: str, event: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """From the database: the state of each booking, and the active bookings that name each seat."""
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch(
            "SELECT id::text, state, line->>'id' AS seat FROM bookings, jsonb_array_elements(lines->'seats') AS line "
            "WHERE event_id = $1",
            event,
        )
    finally:
        await connection.close()
    active: dict[str, list[str]] = {}
    for row in rows:
        if row["state"] in ("held", "paying", "confirmed"):
            active.setdefault(row["seat"], []).append(row["id"])
    return {row["id"]: row["state"] for row in rows}, active


@pytest.mark.parametrize("fault", FAULTS if PROOF else SAMPLE, ids=lambda fault: fault.__name__)
async def test_every_seat_is_sold_once_and_every_answer_holds_whatever_redis_does(
    shop: Shop, callers: list[Caller], fault: Any
) -> None:
    """No double sale, no lost acknowledgement, no error; and when the fault is over all is as before."""
    for _ in range(ROUNDS):
        running = await race(callers)
        async with asyncio.TaskGroup() as group:
            group.create_task(running.run())
            await running.until_sold(SOLD_BEFORE_THE_FAULT)
            with fault(shop):
                await running.until_sold(SOLD_BEFORE_THE_FAULT + SOLD_IN_THE_FAULT)
        assert running.refusals > 0, "no two buyers raced"
        assert await contradictions(shop, running) == set()
        await redis_refuses_again(shop, callers)
    verified = earmark("verify", "--database", shop.servers[0].database)
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def contradictions(shop: Shop, running: Race) -> set[str]:
    """What the database and the answers have against each other, once everything is sold."""
    states, active = await owners_in(shop.servers[0].database, running.event)
    found = {"double sale" for owners in active.values() if len(owners) > 1} | {"double grant" for _ in running.doubles}
    found |= {"lost acknowledgement" for booking, said in running.state.items() if states.get(booking) != said}
    found |= {"unacknowledged" for booking in states if booking not in running.state}
    found |= {"unsold" for seat in running.seats if active.get(seat) != [running.sold[seat]]} - {"double sale"}
    return found


async def test_control_a_double_sale_and_a_lost_acknowledgement_are_seen(shop: Shop, callers: list[Caller]) -> None:
    """Planted into the database after a race that was right."""
    running = await race(callers)
    await running.run()
    assert await contradictions(shop, running) == set()
    connection = await asyncpg.connect(shop.servers[0].database)
    try:
        # As a replica no guard of the schema is checked.
        await connection.execute("SET session_replication_role = replica")
        sold = next(iter(running.sold.values()))
        await connection.execute(f"CREATE TEMP TABLE copy AS SELECT * FROM bookings WHERE id = '{sold}'")
        await connection.execute("UPDATE copy SET id = gen_random_uuid()")
        await connection.execute("INSERT INTO bookings SELECT * FROM copy")
        assert {"double sale", "unacknowledged"} <= await contradictions(shop, running)
        await connection.execute("DELETE FROM bookings WHERE id = (SELECT id FROM copy)")
        assert await contradictions(shop, running) == set()
        await connection.execute("DELETE FROM bookings WHERE id = $1::text::uuid", sold)
        assert {"lost acknowledgement", "unsold"} <= await contradictions(shop, running)
        # `verify` looks at the same database in the other tests.
        await connection.execute("UPDATE seats SET booking_id = NULL WHERE event_id = $1", running.event)
    finally:
        await connection.close()


async def redis_refuses_again(shop: Shop, callers: list[Caller]) -> None:
    """Each server uses Redis again; a taken seat is refused, the owner gets `yours`, and a free seat sells."""
    for number, caller in enumerate(callers):
        other = callers[1 - number]
        before = (await admitted(caller))[1]

        async def refusing(caller: Caller = caller, other: Caller = other) -> int:
            event = await other.theatre(rows=1, seats_per_row=2)
            mine = await other.held(event, buyer="ann", seats=["A1"])
            assert "yours" not in refused(await caller.hold(event, buyer="bob", seats=["A1"]), 409, "seats_taken")
            own = refused(await caller.hold(event, buyer="ann", seats=["A1"]), 409, "seats_taken")
            assert own["yours"] == {"A1": mine["id"]}
            await caller.held(event, buyer="bob", seats=["A2"])
            return (await admitted(caller))[1]

        await eventually(refusing, lambda found, before=before: found > before)  # type: ignore[misc]
    assert ask(shop.redis, "PING") == "PONG"


async def admitted(caller: Caller) -> tuple[int, int]:
    """How many holds this server's Redis let pass, and how many it refused."""
    page = (await caller.http.get("/metrics")).text
    found = dict(re.findall(r'^earmark_admission_total\{outcome="(\w+)"\} (\S+)$', page, re.MULTILINE))
    return int(float(found["admitted"])), int(float(found["refused"])) + int(float(found["remembered"]))
