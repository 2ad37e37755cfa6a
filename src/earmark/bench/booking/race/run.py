"""A race, strategy by strategy: buyers who come all at once, for one seat, for overlapping sets, and after no-shows.

Everything a strategy is blamed for is counted in the database when the last buyer has left. Each scenario has an event
of its own, so that no strategy meets what another has left behind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from earmark.bench.booking.ports import Place, Want
from earmark.bench.booking.race import figures as lab
from earmark.bench.booking.race import place as places
from earmark.bench.booking.race.figures import NAIVE, Figures, Result
from earmark.bench.booking.strategies import LEASES, STRATEGIES, WITH_REDIS
from earmark.bench.booking.strategies.ground import statements
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.bench.booking.ports import Strategy
    from earmark.bench.booking.race.place import Servers

    Watch = Callable[["Tally", Figures | None], None]
    """Told of a strategy that runs, again and again, and once of how it ended."""

PAUSE_SECONDS = 0.05
EXPIRE_TTL_SECONDS = 0.5
EXPIRE_PAUSE_SECONDS = 1.5
"""Longer than the lock lives, so that its holder wakes up without it."""
EXPIRE_SECOND_SECONDS = 0.6
"""When the second buyer comes: the lock of the first is over, and nothing is written yet."""
EXPIRE_CROWD_SECONDS = 0.7
EXPIRE_ARRIVALS_PER_SECOND = 400
"""When the others begin to come, and how many: a crowd must not keep the second from being served."""
NO_SHOW_SECONDS = 1
"""The shortest time that a hold can have."""
WAVE_SECONDS_MAX = 300.0
LAPSE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05

ONE, SETS, NO_SHOWS = "one seat for all", "overlapping sets", "no-shows"
SCENARIOS = (ONE, SETS, NO_SHOWS)
EXPIRE_SCENARIOS = (ONE, SETS)
"""A lock that runs out says nothing new about buyers who walk away."""
ROW = ("A1", "A2", "A3")
PAIRS = (("A1", "A2"), ("A2", "A3"), ("A3", "A1"))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who races, how many want the same, and what is done to them."""

    strategies: Sequence[str] = tuple(STRATEGIES)
    buyers: int = 500
    pause_seconds: float = PAUSE_SECONDS
    expire: bool = False

    @property
    def with_redis(self) -> bool:
        """Whether anybody needs one."""
        return bool(WITH_REDIS & set(self.strategies))

    @property
    def guarded(self) -> list[str]:
        """Who races once more on a database that guards itself: whoever sells twice on one that does not."""
        return [name for name in self.strategies if name == NAIVE or (self.expire and name in LEASES)]

    def place(self, database: str, redis: tuple[str, ...]) -> Place:
        """Where a strategy works."""
        if not self.expire:
            return Place(database=database, redis=redis, pause_seconds=self.pause_seconds)
        pause = max(self.pause_seconds, EXPIRE_PAUSE_SECONDS)
        return Place(database=database, redis=redis, pause_seconds=pause, lock_ttl_seconds=EXPIRE_TTL_SECONDS)


class Tally(msgspec.Struct):
    """What the buyers of one strategy were told so far."""

    name: str
    guards: bool = False
    scenario: str = ""
    refused: int = 0
    held: int = 0
    errors: list[str] = msgspec.field(default_factory=list)
    waits: list[float] = msgspec.field(default_factory=list)
    events: list[str] = msgspec.field(default_factory=list)


async def run(where: Servers, plan: Plan, *, watch: Watch) -> Result:
    """All strategies, one after the other, without the schema's guards; and those that break once more with them."""
    found: dict[str, Figures] = {}
    guards: dict[str, Figures] = {}
    versions = await places.versions(where)
    async with places.race_databases(where.database) as databases:
        for name in plan.strategies:
            found[name] = await _race(name, plan, plan.place(databases.bare, where.redis), watch=watch)
        for name in plan.guarded:
            place = plan.place(databases.guarded, where.redis)
            guards[name] = await _race(name, plan, place, watch=watch, guards=True)
    return Result(
        buyers=plan.buyers,
        pause_seconds=plan.place("", ()).pause_seconds,
        expire=plan.expire,
        strategies=found,
        guards=guards,
        versions=versions,
    )


async def _race(name: str, plan: Plan, place: Place, *, watch: Watch, guards: bool = False) -> Figures:
    tally = Tally(name=name, guards=guards)
    connection = await asyncpg.connect(split_url(place.database)[0])
    strategy = await STRATEGIES[name].open(place)
    watching = asyncio.create_task(_keep_watching(watch, tally))
    began = perf_counter()
    try:
        for scenario in EXPIRE_SCENARIOS if plan.expire else SCENARIOS:
            tally.scenario = scenario
            await _SCENARIOS[scenario](strategy, plan, connection, tally)
        figures = await _count(connection, tally, seconds=perf_counter() - began)
    finally:
        watching.cancel()
        await strategy.close()
        await connection.close()
    watch(tally, figures)
    return figures


async def _keep_watching(watch: Watch, tally: Tally) -> None:
    while True:
        watch(tally, None)
        await asyncio.sleep(POLL_SECONDS * 2)


async def _one_seat(strategy: Strategy, plan: Plan, connection: Any, tally: Tally) -> None:
    """Everybody wants A1."""
    event_id = await _event(connection, tally, seats=("A1",))
    await _wave(strategy, plan, tally, [_want(event_id, number, ("A1",)) for number in range(plan.buyers)])


async def _sets(strategy: Strategy, plan: Plan, connection: Any, tally: Tally) -> None:
    """A1+A2, A2+A3, A3+A1: nobody can have both of theirs if a neighbour has, and each asks in an order of its own."""
    event_id = await _event(connection, tally, seats=ROW)
    wants = [_want(event_id, number, PAIRS[number % len(PAIRS)]) for number in range(plan.buyers)]
    await _wave(strategy, plan, tally, wants)


async def _no_shows(strategy: Strategy, plan: Plan, connection: Any, tally: Tally) -> None:
    """The first ones win and walk away without paying. When their time is over, others come for the same seats."""
    event_id = await _event(connection, tally, seats=ROW)
    seats = [ROW[number % len(ROW)] for number in range(plan.buyers)]
    first = [_want(event_id, number, (seat,), ttl_seconds=NO_SHOW_SECONDS) for number, seat in enumerate(seats)]
    await _wave(strategy, plan, tally, first, pay=False)
    await _lapsed(connection, event_id)
    second = [_want(event_id, number, (seat,)) for number, seat in enumerate(seats, start=plan.buyers)]
    await _wave(strategy, plan, tally, second)


_SCENARIOS = {ONE: _one_seat, SETS: _sets, NO_SHOWS: _no_shows}


def _want(event_id: str, number: int, seats: tuple[str, ...], *, ttl_seconds: int = 600) -> Want:
    return Want(
        event_id=event_id,
        buyer=f"buyer-{number}",
        seats=seats,
        key=f"{event_id}-hold-{number}",
        ttl_seconds=ttl_seconds,
    )


async def _event(connection: Any, tally: Tally, *, seats: tuple[str, ...]) -> str:
    sql = statements("race", package=__package__)
    event_id = f"race-{secrets.token_hex(6)}"
    await connection.execute(sql["make_event"], event_id)
    await connection.execute(sql["make_seats"], event_id, list(seats))
    tally.events.append(event_id)
    return event_id


async def _wave(strategy: Strategy, plan: Plan, tally: Tally, wants: Sequence[Want], *, pay: bool = True) -> None:
    """All at once; with locks that shall run out, one after the other."""

    async def buyer(number: int, want: Want) -> None:
        if plan.expire:
            await asyncio.sleep(_arrival(number))
        began = perf_counter()
        try:
            booking_id = await strategy.hold(want)
            tally.waits.append(perf_counter() - began)
            if booking_id is None:
                tally.refused += 1
                return
            tally.held += 1
            if pay:
                await strategy.confirm(booking_id, payment_id=f"{want.key}-paid", key=f"{want.key}-confirm")
        except Exception as error:  # noqa: BLE001 (whatever a strategy says instead of an answer is its own fault, and counted)
            tally.errors.append(f"{type(error).__name__}: {error}")

    try:
        async with asyncio.timeout(WAVE_SECONDS_MAX):
            await asyncio.gather(*(buyer(number, want) for number, want in enumerate(wants)))
    except TimeoutError as stuck:
        waited = f"{tally.name} did not answer everybody within {WAVE_SECONDS_MAX:.0f} seconds ({tally.scenario})."
        raise SetupError(problem=waited) from stuck


def _arrival(number: int) -> float:
    """The first holds the lock and is paused; the second comes when the lock is over; then the crowd."""
    if number <= 1:
        return number * EXPIRE_SECOND_SECONDS
    return EXPIRE_CROWD_SECONDS + number / EXPIRE_ARRIVALS_PER_SECOND


async def _lapsed(connection: Any, event_id: str) -> None:
    """Wait for the fact: no hold of the event has time left."""
    sql = statements("race", package=__package__)
    deadline = perf_counter() + LAPSE_SECONDS_MAX
    while await connection.fetchval(sql["count_running"], event_id):
        assert perf_counter() < deadline, "a hold of a second has lasted for half a minute"
        await asyncio.sleep(POLL_SECONDS)


async def _count(connection: Any, tally: Tally, *, seconds: float) -> Figures:
    sql = statements("race", package=__package__)
    sales = await connection.fetchrow(sql["count_sales"], tally.events)
    waits = sorted(tally.waits)
    return Figures(
        claims_safe=lab.claims_safe(tally.name),
        double_sold=sales["double_sold"],
        buyers_max=sales["buyers_max"],
        sold=await connection.fetchval(sql["count_confirmed"], tally.events),
        refused=tally.refused,
        stranded=await connection.fetchval(sql["count_stranded"], tally.events),
        errors=len(tally.errors),
        first_error=tally.errors[0] if tally.errors else None,
        seconds=seconds,
        p50_ms=lab.quantile(waits, 0.50) * 1000,
        p99_ms=lab.quantile(waits, 0.99) * 1000,
    )
