"""kill -9 before and after every await of the saga: for pay, refund, cancel, late money and callbacks.

In the end our books, the booking and the bank's ledger agree.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.money.crash_points import Fate
from tests.money.crash_scenarios import STORIES, TOTAL, Stage, Story, end_of, pays
from tests.money.virtual_time_loop import StillClock, run

from earmark.domain.state_machine import State
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    "read_dossier",
    "claim_payments",
    "authorise",
    "capture",
    "void",
    "refund",
    "refund_status",
    "status",
}
"""All that the saga awaits of its store and its gateway, beside what it does within transactions."""
EACH_IN_MEMORY = 1 if PROOF else 23
EACH_BESIDE = 1 if PROOF else 5
"""In addition, each so many of the moments that are not within a transaction."""
EACH_ON_SQLITE = 1 if PROOF else 179
EACH_ON_POSTGRES = 7 if PROOF else 13
"""Each so many of the moments, which is no divisor of anything."""
PAIRED = ("paid", "cancelled", "late money, and a seat is gone") if PROOF else ("paid",)
pytestmark = pytest.mark.timeout(900 if PROOF else 120)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Counter[str]]:
    """What the tests of this file have gone through, told in a line when they are over."""
    counted: Counter[str] = Counter()
    yield counted
    for where in ("memory", "sqlite", "postgres"):
        if counted[f"points on {where}"]:
            told = f"{counted[f'points on {where}']} in {counted[f'stories on {where}']} stories on {where}"
            print(f"\ncrash points: {told}, {counted[f'violations on {where}']} violations")  # noqa: T201 (for -s)


def in_memory() -> Stage:
    """An empty one: a store that is full of other stories is slow."""
    clock = StillClock()
    return Stage(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())


async def moments_of(story: Story, stage: Stage, *, within: bool = True) -> list[str]:
    """When a process could die in this story, which ends as it should where none does."""
    whole = Fate(within=within)
    world, held = await stage.tell(story, whole)
    assert await world.disagreements() == []
    assert await end_of(world, held) == (story.booking, story.payment, story.net)
    return whole.moments


def beside(moments: list[str]) -> list[int]:
    """Those that are not within a transaction."""
    return [number for number, moment in enumerate(moments) if moment.split()[1] in AWAITED]


async def die_everywhere(
    story: Story, stage: Callable[[], Stage], *, recorder: Counter[str], where: str, beside_too: bool = False, each: int
) -> None:
    """One death at each so many of the moments; the next process goes on from what is stored."""
    moments = await moments_of(story, stage())
    place = STORIES.index(story)
    chosen = set(range(place % each, len(moments), each))
    if beside_too:
        chosen.update(beside(moments)[place % EACH_BESIDE :: EACH_BESIDE])
    recorder[f"stories on {where}"] += 1
    for moment in sorted(chosen):
        fate = Fate(moment)
        world, _ = await stage().tell(story, fate)
        wrong = await world.disagreements()
        recorder[f"points on {where}"] += 1
        recorder[f"violations on {where}"] += bool(wrong)
        assert wrong == [], f"died {moments[moment]}, which is moment {moment}"
        assert fate.struck


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_whoever_dies_anywhere_leaves_a_story_that_ends_well(story: Story, recorder: Counter[str]) -> None:
    """One death at some of the moments of the story, and in a proof at every one; another process ends it."""
    run(die_everywhere(story, in_memory, recorder=recorder, where="memory", beside_too=True, each=EACH_IN_MEMORY))
    assert recorder["points on memory"] >= 4


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_every_story_ends_well_on_sqlite_too(
    story: Story, sqlite_store: SqliteStore, clock: MovableClock, ids: Uuid7Ids, recorder: Counter[str]
) -> None:
    """Some deaths of each, and in a proof every one."""
    stage = Stage(sqlite_store, clock=clock, ids=ids)
    await die_everywhere(story, lambda: stage, recorder=recorder, where="sqlite", each=EACH_ON_SQLITE)
    assert recorder["stories on sqlite"] > 0


@pytest.mark.parametrize("story", STORIES if PROOF else STORIES[:1], ids=lambda story: story.name)
async def test_every_story_ends_well_on_postgresql_too(
    story: Story, postgres_store: PostgresStore, clock: MovableClock, ids: Uuid7Ids, recorder: Counter[str]
) -> None:
    """Some deaths of each."""
    stage = Stage(postgres_store, clock=clock, ids=ids)
    await die_everywhere(story, lambda: stage, recorder=recorder, where="postgres", each=EACH_ON_POSTGRES)
    assert recorder["points on postgres"] > 0


def test_no_story_and_no_moment_is_lost() -> None:
    """Whoever takes a call out of the saga, or out of what is watched, has to say so here."""
    moments = {story.name: run(moments_of(story, in_memory())) for story in STORIES}
    assert len(moments) >= STORIES_MIN
    assert sum(map(len, moments.values())) >= POINTS_MIN
    assert sum(len(beside(told)) for told in moments.values()) >= POINTS_BESIDE_MIN
    seen = {moment for story in STORIES for moment in run(moments_of(story, in_memory(), within=False))}
    assert seen == {f"{when} {name}" for when in ("before", "after") for name in AWAITED}


@pytest.mark.parametrize("name", PAIRED)
def test_the_next_process_may_die_too(name: str) -> None:
    """At every moment of seeing through what another death has left."""
    [story] = [story for story in STORIES if story.name == name]
    assert run(_die_twice(story)) > 100


async def _die_twice(story: Story) -> int:
    pairs = 0
    moments = await moments_of(story, in_memory(), within=False)
    for moment in range(len(moments)):
        rest = Fate(within=False)
        await in_memory().tell(story, Fate(moment, within=False), rest)
        for later in range(len(rest.moments)):
            world, _ = await in_memory().tell(story, Fate(moment, within=False), Fate(later, within=False))
            assert await world.disagreements() == [], f"died {moments[moment]}, then {rest.moments[later]}"
            pairs += 1
    return pairs


def test_a_buyer_who_pays_again_after_a_death_is_charged_once() -> None:
    """With the payment that was opened before, or with a new one if the death came first."""
    assert run(_pay_again()) >= 10


async def _pay_again() -> int:
    async def pays_again(world: World, held: Booking) -> None:
        if (await world.booking(held)).state is State.HELD:
            await pays()(world, held)

    [story, *_] = STORIES
    moments = await moments_of(story, in_memory())
    for moment, where in enumerate(moments):
        world, _ = await in_memory().tell(story, Fate(moment), then=[pays_again])
        assert await world.disagreements() == [], where
        assert [line.amount for line in world.bank.ledger if line.move == "captured"] == [TOTAL], where
    return len(moments)


def test_without_a_reconciler_deaths_leave_orphans() -> None:
    """The control: these very deaths break the books if nobody looks after them."""
    points, orphans = run(_die_alone())
    print(f"\nwithout a reconciler: {len(orphans)} of {points} crash points leave orphans")  # noqa: T201 (for -s)
    assert len(orphans) > points // 4
    for sign in ("is set aside for ever", "is paying for ever", "the bank says", "is voiding for ever"):
        assert any(sign in line for wrong in orphans for line in wrong), sign


async def _die_alone() -> tuple[int, list[list[str]]]:
    points, orphans = 0, []
    for story in STORIES:
        moments = await moments_of(story, in_memory(), within=False)
        for moment in range(STORIES.index(story) % EACH_BESIDE, len(moments), EACH_BESIDE):
            world, _ = await in_memory().tell(story, Fate(moment, within=False), reconciled=False)
            points += 1
            if wrong := await world.disagreements():
                orphans.append(wrong)
    return points, orphans
