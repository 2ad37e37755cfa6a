"""A race, strategy by strategy: many buyers at once for one seat, for overlapping sets, and after unpaid holds.

The result of a strategy is counted in the database after its last request. Each scenario has its own event, so that no
strategy meets the rows of another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from earmark.bench.booking.race import postgres_and_redis_servers as race_servers
from earmark.bench.booking.race import results
from earmark.bench.booking.race.results import NAIVE, RaceFigures, RaceResult
from earmark.bench.booking.strategies import LEASES, STRATEGIES, WITH_REDIS
from earmark.bench.booking.strategy_protocol import StrategySettings, Want
from earmark.bench.named_sql import named_sql
from earmark.bench.report.quantiles_and_ratios import quantile_ms
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.bench.booking.race.postgres_and_redis_servers import RaceServers
    from earmark.bench.booking.strategy_protocol import Strategy

    Watch = Callable[["RaceTally", RaceFigures | None], None]
    """Called repeatedly while a strategy runs, and once with its figures."""

PAUSE_SECONDS = 0.05
EXPIRE_TTL_SECONDS = 0.5
EXPIRE_PAUSE_SECONDS = 1.5
"""Longer than the lock lives, so that its holder continues without it."""
EXPIRE_SECOND_SECONDS = 0.6
"""When the second buyer comes: the lock of the first has expired, and nothing is written yet."""
EXPIRE_OTHERS_SECONDS = 0.7
EXPIRE_ARRIVALS_PER_SECOND = 400
"""When the other buyers begin to come, and how many: they must not delay the second one."""
NO_SHOW_SECONDS = 1
"""The shortest time that a hold can have."""
WAVE_SECONDS_MAX = 300.0
LAPSE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05

ONE, SETS, NO_SHOWS = "one seat for all", "overlapping sets", "no-shows"
SCENARIOS = (ONE, SETS, NO_SHOWS)
EXPIRE_SCENARIOS = (ONE, SETS)
"""An expired lock shows nothing new about buyers who do not pay."""
ROW = ("A1", "A2", "A3")
PAIRS = (("A1", "A2"), ("A2", "A3"), ("A3", "A1"))


class RacePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The strategies, the number of buyers, and the disturbances."""

    strategies: Sequence[str] = tuple(STRATEGIES)
    buyers: int = 500
    pause_seconds: float = PAUSE_SECONDS
    expire: bool = False

    @property
    def with_redis(self) -> bool:
        """Whether a strategy needs Redis."""
        return bool(WITH_REDIS & set(self.strategies))

    @property
    def guarded(self) -> list[str]:
        """The strategies that race again with guards: those that sell a seat twice without them."""
        return [name for name in self.strategies if name == NAIVE or (self.expire and name in LEASES)]

    def settings(self, database: str, redis: tuple[str, ...]) -> StrategySettings:
        """The settings of a strategy."""
        if not self.expire:
            return StrategySettings(database=database, redis=redis, pause_seconds=self.pause_seconds)
        pause = max(self.pause_seconds, EXPIRE_PAUSE_SECONDS)
        return StrategySettings(
            database=database, redis=redis, pause_seconds=pause, lock_ttl_seconds=EXPIRE_TTL_SECONDS
        )


class RaceTally(msgspec.Struct):
    """The answers to the buyers of one strategy so far."""

    name: str
    guards: bool = False
    scenario: str = ""
    refused: int = 0
    held: int = 0
    errors: list[str] = msgspec.field(default_factory=list)
    waits: list[float] = msgspec.field(default_factory=list)
    events: list[str] = msgspec.field(default_factory=list)


async def run(where: RaceServers, plan: RacePlan, *, watch: Watch) -> RaceResult:
    """Race all strategies without the guards of the schema; then those that sell a seat twice again with guards."""
    found: dict[str, RaceFigures] = {}
    guards: dict[str, RaceFigures] = {}
    versions = await race_servers.versions(where)
    async with race_servers.race_databases(where.database) as databases:
        for name in plan.strategies:
            found[name] = await _race(name, plan, plan.settings(databases.bare, where.redis), watch=watch)
        for name in plan.guarded:
            settings = plan.settings(databases.guarded, where.redis)
            guards[name] = await _race(name, plan, settings, watch=watch, guards=True)
    return RaceResult(
        buyers=plan.buyers,
        pause_seconds=plan.settings("", ()).pause_seconds,
        expire=plan.expire,
        strategies=found,
        guards=guards,
        versions=versions,
    )


async def _race(
    name: str, plan: RacePlan, settings: StrategySettings, *, watch: Watch, guards: bool = False
) -> RaceFigures:
    tally = RaceTally(name=name, guards=guards)
    connection = await asyncpg.connect(split_url(settings.database)[0])
    strategy = await STRATEGIES[name].open(settings)
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


async def _keep_watching(watch: Watch, tally: RaceTally) -> None:
    while True:
        watch(tally, None)
        await asyncio.sleep(POLL_SECONDS * 2)


async def _one_seat(strategy: Strategy, plan: RacePlan, connection: Any, tally: RaceTally) -> None:
    """All buyers want A1."""
    event_id = await _event(connection, tally, seats=("A1",))
    await _wave(strategy, plan, tally, [_want(event_id, number, ("A1",)) for number in range(plan.buyers)])


async def _sets(strategy: Strategy, plan: RacePlan, connection: Any, tally: RaceTally) -> None:
    """A1+A2, A2+A3, A3+A1: only one of the three pairs can be sold, and each names its seats in its own order."""
    event_id = await _event(connection, tally, seats=ROW)
    wants = [_want(event_id, number, PAIRS[number % len(PAIRS)]) for number in range(plan.buyers)]
    await _wave(strategy, plan, tally, wants)


async def _no_shows(strategy: Strategy, plan: RacePlan, connection: Any, tally: RaceTally) -> None:
    """The first buyers win and do not pay. When their holds have expired, others come for the same seats."""
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


async def _event(connection: Any, tally: RaceTally, *, seats: tuple[str, ...]) -> str:
    sql = named_sql(__package__, "create_event_and_count_sales")
    event_id = f"race-{secrets.token_hex(6)}"
    await connection.execute(sql["make_event"], event_id)
    await connection.execute(sql["make_seats"], event_id, list(seats))
    tally.events.append(event_id)
    return event_id


async def _wave(
    strategy: Strategy, plan: RacePlan, tally: RaceTally, wants: Sequence[Want], *, pay: bool = True
) -> None:
    """All buyers at once; with locks that shall expire, one after the other."""

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
        except Exception as error:  # noqa: BLE001 (an error in settings of an answer is counted)
            tally.errors.append(f"{type(error).__name__}: {error}")

    try:
        async with asyncio.timeout(WAVE_SECONDS_MAX):
            await asyncio.gather(*(buyer(number, want) for number, want in enumerate(wants)))
    except TimeoutError as stuck:
        waited = f"{tally.name} did not answer all buyers within {WAVE_SECONDS_MAX:.0f} seconds ({tally.scenario})."
        raise SetupError(problem=waited) from stuck


def _arrival(number: int) -> float:
    """The first holds the lock and is paused; the second comes when the lock has expired; then the others."""
    if number <= 1:
        return number * EXPIRE_SECOND_SECONDS
    return EXPIRE_OTHERS_SECONDS + number / EXPIRE_ARRIVALS_PER_SECOND


async def _lapsed(connection: Any, event_id: str) -> None:
    """Wait until no hold of the event has time left."""
    sql = named_sql(__package__, "create_event_and_count_sales")
    deadline = perf_counter() + LAPSE_SECONDS_MAX
    while await connection.fetchval(sql["count_running"], event_id):
        assert perf_counter() < deadline, "a hold of a second has lasted for half a minute"
        await asyncio.sleep(POLL_SECONDS)


async def _count(connection: Any, tally: RaceTally, *, seconds: float) -> RaceFigures:
    sql = named_sql(__package__, "create_event_and_count_sales")
    sales = await connection.fetchrow(sql["count_sales"], tally.events)
    waits = sorted(tally.waits)
    return RaceFigures(
        claims_safe=results.claims_safe(tally.name),
        double_sold=sales["double_sold"],
        buyers_max=sales["buyers_max"],
        sold=await connection.fetchval(sql["count_confirmed"], tally.events),
        refused=tally.refused,
        stranded=await connection.fetchval(sql["count_stranded"], tally.events),
        errors=len(tally.errors),
        first_error=tally.errors[0] if tally.errors else None,
        seconds=seconds,
        p50_ms=quantile_ms(waits, 0.50) or 0.0,
        p99_ms=quantile_ms(waits, 0.99) or 0.0,
    )
