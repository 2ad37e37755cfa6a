"""kill -9 before and after every await of the saga: for pay, refund, cancel, late money and callbacks.

In the end our books, the booking and the bank's ledger agree.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.money.crash_points import CrashPoints
from tests.money.crash_scenarios import SCENARIOS, TOTAL, Scenario, ScenarioRunner, end_of, pays
from tests.money.virtual_time_loop import ManualClock, run

from earmark.domain.booking_state_machine import State
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.money.shop_and_bank import World

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore

PROOF = bool(os.environ.get("EARMARK_PROOF"))
STORIES_MIN = 26
POINTS_MIN = 3400
POINTS_BESIDE_MIN = 1040
"""Of these, how many are not within a transaction."""
AWAITED = {
    "transact",
    "read_payment_snapshot",
    "claim_payments",
    "authorise",
    "capture",
    "void",
    "refund",
    "refund_status",
    "status",
}
"""All that the saga awaits of its store and its gateway, beside what it does within transactions."""
EACH_IN_MEMORY = 1 if PROOF else 43
EACH_BESIDE = 1 if PROOF else 19
"""In addition, each so many of the moments that are not within a transaction."""
EACH_ON_SQLITE = 1 if PROOF else 89
EACH_ON_POSTGRES = 7 if PROOF else 13
"""Each so many of the moments, which is no divisor of anything."""
EACH_LATER = 1 if PROOF else 5
"""Each so many of the moments at which the next process is killed too, or the buyer pays again."""
PAIRS_MIN = 100 if PROOF else 40
EACH_WITHOUT_RECONCILER = 1 if PROOF else 17
PAIRED = ("paid", "cancelled", "late money, and a seat is gone") if PROOF else ("paid",)
pytestmark = pytest.mark.timeout(900 if PROOF else 120)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Counter[str]]:
    """What the tests of this file have gone through, printed in one line when they are over."""
    counted: Counter[str] = Counter()
    yield counted
    for where in ("memory", "sqlite", "postgres"):
        if counted[f"points on {where}"]:
            told = f"{counted[f'points on {where}']} in {counted[f'stories on {where}']} stories on {where}"
            print(f"\ncrash points: {told}, {counted[f'violations on {where}']} violations")  # noqa: T201 (for -s)


def in_memory() -> ScenarioRunner:
    """An empty one: a store that is full of other scenarios is slow."""
    clock = ManualClock()
    return ScenarioRunner(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())


@functools.cache
def moments_in_memory(name: str, *, within: bool = True) -> list[str]:
    """The same at every run, so each scenario is run for them once."""
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    return run(moments_of(scenario, in_memory(), within=within))


async def moments_of(scenario: Scenario, runner: ScenarioRunner, *, within: bool = True) -> list[str]:
    """When a process could be killed in this scenario, which ends as it should without a kill."""
    whole = CrashPoints(within=within)
    world, held = await runner.play(scenario, whole)
    assert await world.disagreements() == []
    assert await end_of(world, held) == (scenario.booking, scenario.payment, scenario.net)
    return whole.moments


def outside_transactions(moments: list[str]) -> list[int]:
    """Those that are not within a transaction."""
    return [number for number, moment in enumerate(moments) if moment.split()[1] in AWAITED]


async def kill_at_every_moment(
    scenario: Scenario,
    runner: Callable[[], ScenarioRunner],
    *,
    moments: list[str],
    recorder: Counter[str],
    where: str,
    beside_too: bool = False,
    each: int,
) -> int:
    """One kill at each so many of the moments, which are counted; the next process goes on from what is stored."""
    place = SCENARIOS.index(scenario)
    chosen = set(range(place % each, len(moments), each))
    if beside_too:
        chosen.update(outside_transactions(moments)[place % EACH_BESIDE :: EACH_BESIDE])
    recorder[f"stories on {where}"] += 1
    for moment in sorted(chosen):
        crash_points = CrashPoints(moment)
        world, _ = await runner().play(scenario, crash_points)
        wrong = await world.disagreements()
        recorder[f"points on {where}"] += 1
        recorder[f"violations on {where}"] += bool(wrong)
        assert wrong == [], f"killed {moments[moment]}, which is moment {moment}"
        assert crash_points.is_killed
    return len(chosen)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_kill_anywhere_leaves_a_scenario_that_ends_well(scenario: Scenario, recorder: Counter[str]) -> None:
    """One kill at some of the moments of the scenario, and in a proof at every one; another process ends it."""
    moments = moments_in_memory(scenario.name)
    each = EACH_IN_MEMORY
    points = run(
        kill_at_every_moment(
            scenario, in_memory, moments=moments, recorder=recorder, where="memory", beside_too=True, each=each
        )
    )
    assert points >= 2


@pytest.mark.parametrize("scenario", SCENARIOS if PROOF else SCENARIOS[::5], ids=lambda scenario: scenario.name)
async def test_every_scenario_ends_well_on_sqlite_too(
    scenario: Scenario, sqlite_store: SqliteStore, clock: MovableClock, ids: Uuid7Ids, recorder: Counter[str]
) -> None:
    """Some deaths of some, and in a proof every one of each: the store in memory runs the same statements."""
    runner = ScenarioRunner(sqlite_store, clock=clock, ids=ids)
    moments = await moments_of(scenario, runner)
    await kill_at_every_moment(
        scenario, lambda: runner, moments=moments, recorder=recorder, where="sqlite", each=EACH_ON_SQLITE
    )
    assert recorder["stories on sqlite"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS if PROOF else SCENARIOS[:1], ids=lambda scenario: scenario.name)
async def test_every_scenario_ends_well_on_postgresql_too(
    scenario: Scenario, postgres_store: PostgresStore, clock: MovableClock, ids: Uuid7Ids, recorder: Counter[str]
) -> None:
    """Some deaths of each."""
    runner = ScenarioRunner(postgres_store, clock=clock, ids=ids)
    moments = await moments_of(scenario, runner)
    await kill_at_every_moment(
        scenario, lambda: runner, moments=moments, recorder=recorder, where="postgres", each=EACH_ON_POSTGRES
    )
    assert recorder["points on postgres"] > 0


def test_no_scenario_and_no_moment_is_lost() -> None:
    """A change that takes a call out of the saga, or out of what is watched, has to change this test."""
    moments = {scenario.name: moments_in_memory(scenario.name) for scenario in SCENARIOS}
    assert len(moments) >= STORIES_MIN
    assert sum(map(len, moments.values())) >= POINTS_MIN
    assert sum(len(outside_transactions(told)) for told in moments.values()) >= POINTS_BESIDE_MIN
    seen = {moment for scenario in SCENARIOS for moment in moments_in_memory(scenario.name, within=False)}
    assert seen == {f"{when} {name}" for when in ("before", "after") for name in AWAITED}


@pytest.mark.parametrize("name", PAIRED)
def test_the_next_process_may_be_killed_too(name: str) -> None:
    """At some of the moments while it finishes what another kill has left, and in a proof at every one."""
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    assert run(_kill_twice(scenario, moments_in_memory(name, within=False))) > PAIRS_MIN


async def _kill_twice(scenario: Scenario, moments: list[str]) -> int:
    pairs = 0
    for moment in range(len(moments)):
        rest = CrashPoints(within=False)
        await in_memory().play(scenario, CrashPoints(moment, within=False), rest)
        for later in range(moment % EACH_LATER, len(rest.moments), EACH_LATER):
            world, _ = await in_memory().play(
                scenario, CrashPoints(moment, within=False), CrashPoints(later, within=False)
            )
            assert await world.disagreements() == [], f"killed {moments[moment]}, then {rest.moments[later]}"
            pairs += 1
    return pairs


def test_a_buyer_who_pays_again_after_a_kill_is_charged_once() -> None:
    """With the payment that was opened before, or with a new one if the kill came first."""
    [scenario, *_] = SCENARIOS
    assert run(_pay_again(scenario, moments_in_memory(scenario.name))) >= 10


async def _pay_again(scenario: Scenario, moments: list[str]) -> int:
    async def pays_again(world: World, held: Booking) -> None:
        if (await world.booking(held)).state is State.HELD:
            await pays()(world, held)

    chosen = range(0, len(moments), EACH_LATER)
    for moment in chosen:
        world, _ = await in_memory().play(scenario, CrashPoints(moment), then=[pays_again])
        assert await world.disagreements() == [], moments[moment]
        captured = [line.amount for line in world.bank.ledger if line.move == "captured"]
        assert captured == [TOTAL], moments[moment]
    return len(chosen)


def test_without_a_reconciler_kills_leave_orphans() -> None:
    """The control: the same kills break the books if no reconciler runs."""
    moments = {scenario.name: moments_in_memory(scenario.name, within=False) for scenario in SCENARIOS}
    points, orphans = run(_kill_without_reconciler(moments))
    print(f"\nwithout a reconciler: {len(orphans)} of {points} crash points leave orphans")  # noqa: T201 (for -s)
    assert len(orphans) > points // 4
    for sign in ("is set aside for ever", "is paying for ever", "the bank says", "is voiding for ever"):
        assert any(sign in line for wrong in orphans for line in wrong), sign


async def _kill_without_reconciler(moments: Mapping[str, list[str]]) -> tuple[int, list[list[str]]]:
    points, orphans = 0, []
    for place, scenario in enumerate(SCENARIOS):
        each = EACH_WITHOUT_RECONCILER
        for moment in range(place % each, len(moments[scenario.name]), each):
            world, _ = await in_memory().play(scenario, CrashPoints(moment, within=False), reconciled=False)
            points += 1
            if wrong := await world.disagreements():
                orphans.append(wrong)
    return points, orphans
