"""Stock and limits are counted under a lock: of two buyers who see the last unit, one gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.errors import LimitExceeded, PoolExhausted, SeatsTaken

from . import shortcuts
from .commands import a_hold, a_limit, a_release
from .support import AS_BUILT, OVERSOLD, Shortcut, granted, refused_by

if TYPE_CHECKING:
    from .support import RaceDatabase


async def two_want_the_last_units(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """One has counted and not yet written; the other comes to count."""
    await database.held(units=8, buyer="dan")
    first = (await database.server("before write", shortcut=shortcut)).submit(a_hold(units=2, buyer="ann"))
    await first.reached("before write")
    second = (await database.server(shortcut=shortcut)).submit(a_hold(units=2, buyer="bob"))
    await second.waits_for_a_lock() if shortcut is AS_BUILT else await second.outcome()
    return await first.outcome(), await second.outcome()


async def test_counting_a_pool_unlocked_sells_units_twice(bare_database: RaceDatabase) -> None:
    """Both find two free units and take them."""
    for outcome in await two_want_the_last_units(bare_database, shortcuts.COUNTS_POOLS_UNLOCKED):
        granted(outcome)
    assert OVERSOLD in await bare_database.flaws()


async def test_the_schema_oversells_no_pool(database: RaceDatabase) -> None:
    """The schema's guard: held and sold stay within the capacity."""
    outcomes = await two_want_the_last_units(database, shortcuts.COUNTS_POOLS_UNLOCKED)
    assert refused_by(outcomes[0]) == "pool_never_oversold"
    granted(outcomes[1])
    assert not await database.flaws()


async def test_a_pool_is_counted_by_one_at_a_time(either_database: RaceDatabase) -> None:
    """The second waits, counts what the first has left, and is refused."""
    first, second = await two_want_the_last_units(either_database, AS_BUILT)
    granted(first)
    assert isinstance(second, PoolExhausted)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def a_buyer_sends_two_holds_at_once(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """One seat is allowed, and two servers get holds of different ones."""
    granted(await (await database.server()).submit(a_limit(1)).outcome())
    await database.done(a_release(await database.held("A9", buyer="ann")))
    first = (await database.server("before write", shortcut=shortcut)).submit(a_hold("A1", buyer="ann"))
    await first.reached("before write")
    second = (await database.server(shortcut=shortcut)).submit(a_hold("A2", buyer="ann"))
    await second.waits_for_a_lock() if shortcut is AS_BUILT else await second.outcome()
    return await first.outcome(), await second.outcome()


async def test_counting_a_buyers_total_unlocked_exceeds_the_limit(bare_database: RaceDatabase) -> None:
    """Both find that the buyer has nothing yet."""
    for outcome in await a_buyer_sends_two_holds_at_once(bare_database, shortcuts.COUNTS_TOTALS_UNLOCKED):
        granted(outcome)
    assert await bare_database.observer.fetchval("SELECT units FROM buyer_totals") == 2


async def test_the_schema_lets_no_total_grow_beyond_the_limit(database: RaceDatabase) -> None:
    """The schema's guard, for limits."""
    outcomes = await a_buyer_sends_two_holds_at_once(database, shortcuts.COUNTS_TOTALS_UNLOCKED)
    assert refused_by(outcomes[0]) == "buyer_stays_within_limit"
    granted(outcomes[1])
    assert not await database.flaws()


async def test_a_buyers_total_is_counted_by_one_at_a_time(either_database: RaceDatabase) -> None:
    """The second waits for the first, and is refused by the limit."""
    first, second = await a_buyer_sends_two_holds_at_once(either_database, AS_BUILT)
    granted(first)
    assert isinstance(second, LimitExceeded)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_a_buyers_first_two_requests_count_each_other(either_database: RaceDatabase) -> None:
    """There is no total to lock yet: the second waits for the insert, as for a lock."""
    granted(await (await either_database.server()).submit(a_limit(1)).outcome())
    first = (await either_database.server("before write")).submit(a_hold("A1", buyer="ann"))
    await first.reached("before write")
    second = (await either_database.server()).submit(a_hold("A2", buyer="ann"))
    await second.waits_for_a_lock()
    granted(await first.outcome())
    assert isinstance(await second.outcome(), LimitExceeded)
    assert not await either_database.flaws()


async def test_a_first_request_that_came_to_nothing_does_not_count(either_database: RaceDatabase) -> None:
    """The total it made goes with it, and the one that waited for it makes its own."""
    granted(await (await either_database.server()).submit(a_limit(1)).outcome())
    first = (await either_database.server("after lock_totals")).submit(a_hold("A1", "A2", buyer="ann"))
    await first.reached("after lock_totals")
    second = (await either_database.server()).submit(a_hold("A2", buyer="ann"))
    await second.waits_for_a_lock()
    refused = await first.outcome()
    assert isinstance(refused, LimitExceeded | SeatsTaken)
    assert granted(await second.outcome()).id == await either_database.owner("A2")
    assert not await either_database.flaws()
