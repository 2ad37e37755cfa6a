"""Transactions that lock in one order never wait for each other in a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.errors import BookingExpired, SeatsTaken

from . import shortcuts
from .commands import a_block, a_cancel, a_confirm, a_hold, a_release, a_repricing
from .support import AS_BUILT, Shortcut, granted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.domain.booking import Booking

    from .support import RaceDatabase


async def assert_deadlocked(database: RaceDatabase, *outcomes: Any) -> None:
    """PostgreSQL found the circle and broke it by failing exactly one."""
    assert [type(outcome) for outcome in outcomes].count(asyncpg.DeadlockDetectedError) == 1, outcomes
    assert await database.deadlocks() == 1


async def release_and_sweeper_collide(
    database: RaceDatabase, shortcut: Shortcut, first_lock: str
) -> tuple[Booking, Any, Any]:
    """A release from before the end has its first lock; the sweeper finds the same booking due."""
    old = await database.held("A1", units=1)
    releasing = (await database.server(first_lock, shortcut=shortcut)).submit(a_release(old))
    await releasing.reached(first_lock)
    database.pass_the_end(old)
    sweeping = (await database.server("after lock_due")).sweep()
    await sweeping.reached("after lock_due")
    releasing.go()
    if shortcut is not AS_BUILT:
        await releasing.waits_for_a_lock()
    return old, await sweeping.outcome(), await releasing.outcome()


async def test_locking_totals_before_bookings_deadlocks_with_the_sweeper(bare_database: RaceDatabase) -> None:
    """The sweeper reads from the locked bookings which totals it needs: it cannot lock totals first."""
    _, swept, released = await release_and_sweeper_collide(
        bare_database, shortcuts.LOCKS_TOTALS_FIRST, "after its first lock"
    )
    await assert_deadlocked(bare_database, swept, released)


async def test_a_release_that_has_its_booking_is_passed_over_by_the_sweeper(either_database: RaceDatabase) -> None:
    """Bookings come first for both; the sweeper skips what another transaction is changing."""
    old, swept, released = await release_and_sweeper_collide(either_database, AS_BUILT, "after lock_bookings")
    assert swept == []
    assert granted(released).id == old.id
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_a_release_waits_for_a_sweeper_that_has_its_booking(either_database: RaceDatabase) -> None:
    """The other way round: the release is answered that its hold has expired."""
    old = await either_database.held("A1", units=1)
    releasing = (await either_database.server("after begin")).submit(a_release(old))
    await releasing.reached("after begin")
    either_database.pass_the_end(old)
    sweeping = (await either_database.server("after lock_due")).sweep()
    await sweeping.reached("after lock_due")
    releasing.go()
    await releasing.waits_for_a_lock()
    assert [booking.id for booking in await sweeping.outcome()] == [old.id]
    assert isinstance(await releasing.outcome(), BookingExpired)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def hold_and_block_collide(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """The block has locked the lapsed booking and will want the seat; the hold wants both."""
    database.pass_the_end(await database.held("A1"))
    blocking = (await database.server("after lock_bookings")).submit(a_block("A1"))
    await blocking.reached("after lock_bookings")
    holding = (await database.server(shortcut=shortcut)).submit(a_hold("A1"))
    await holding.waits_for_a_lock()
    return await blocking.outcome(), await holding.outcome()


async def test_locking_seats_before_bookings_deadlocks_with_a_block(bare_database: RaceDatabase) -> None:
    """One has the seat and wants its booking, the other has the booking and wants the seat."""
    outcomes = await hold_and_block_collide(bare_database, shortcuts.LOCKS_SEATS_FIRST)
    await assert_deadlocked(bare_database, *outcomes)


async def test_a_hold_waits_for_the_booking_before_it_locks_the_seat(either_database: RaceDatabase) -> None:
    """The block finishes, and the hold finds the seat blocked."""
    blocked, taken = await hold_and_block_collide(either_database, AS_BUILT)
    granted(blocked)
    assert isinstance(taken, SeatsTaken)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def a_seat_moves_and_lapses_under_a_hold(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """A hold saw the seat free; its next owner came and ran out; the sweeper has that owner and wants the pool."""
    holding = (await database.server("after read_seats", "before lock_seats", shortcut=shortcut)).submit(
        a_hold("A1", units=1)
    )
    await holding.reached("after read_seats")
    other = await database.held("A1", buyer="cid", units=1)
    database.pass_the_end(other)
    holding.go("after read_seats")
    await holding.reached("before lock_seats")
    sweeping = (await database.server()).sweep()
    await sweeping.waits_for_a_lock()
    return await holding.outcome(), await sweeping.outcome()


async def test_deciding_again_in_place_deadlocks_with_the_sweeper(bare_database: RaceDatabase) -> None:
    """The hold has the pool and wants a booking; the sweeper has the booking and wants the pool."""
    outcomes = await a_seat_moves_and_lapses_under_a_hold(bare_database, shortcuts.DECIDES_AGAIN_IN_PLACE)
    await assert_deadlocked(bare_database, *outcomes)


async def test_what_moved_is_decided_again_in_a_new_transaction(either_database: RaceDatabase) -> None:
    """The hold releases all its locks, and reads again: the seat is free."""
    taken, swept = await a_seat_moves_and_lapses_under_a_hold(either_database, AS_BUILT)
    assert await either_database.owner("A1") == granted(taken).id
    assert len(swept) == 1
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def two_batches_cross(
    database: RaceDatabase,
    *,
    blocker: str,
    first: Sequence[Any],
    second: Sequence[Any],
    shortcuts_: tuple[Shortcut, Shortcut],
) -> tuple[Any, Any]:
    """Each batch stops in the middle of its lock statement, at a row that a third has; then both go on."""
    third = await asyncpg.connect(database.url)
    in_the_way = third.transaction()
    await in_the_way.start()
    await third.fetch(blocker)
    one = (await database.server(shortcut=shortcuts_[0])).submit_batch(*first)
    await one.waits_for_a_lock()
    other = (await database.server(shortcut=shortcuts_[1])).submit_batch(*second)
    await other.waits_for_a_lock()
    await in_the_way.rollback()
    await third.close()
    return await one.outcome(), await other.outcome()


async def four_holds(database: RaceDatabase) -> list[Booking]:
    """In the order of their ids."""
    return [await database.held(f"A{n}", buyer=f"buyer-{n}") for n in range(1, 5)]


async def two_batches_of_releases_cross(database: RaceDatabase, *, as_built: bool) -> tuple[Any, Any]:
    """The second and the third booking are wanted by both, in opposite order."""
    b = await four_holds(database)
    orders = ([b[1], b[0], b[2]], [b[2], b[3], b[1]])
    cut = [AS_BUILT if as_built else shortcuts.locks_as_they_came([booking.id for booking in o]) for o in orders]
    return await two_batches_cross(
        database,
        blocker=f"SELECT FROM bookings WHERE id IN ('{b[0].id}', '{b[3].id}') FOR UPDATE",
        first=[a_release(booking) for booking in orders[0]],
        second=[a_release(booking) for booking in orders[1]],
        shortcuts_=(cut[0], cut[1]),
    )


async def test_batches_that_lock_bookings_as_they_came_deadlock(bare_database: RaceDatabase) -> None:
    """Requests arrive in any order; locks must not."""
    outcomes = await two_batches_of_releases_cross(bare_database, as_built=False)
    await assert_deadlocked(bare_database, *outcomes)


async def test_batches_lock_bookings_in_the_order_of_their_ids(either_database: RaceDatabase) -> None:
    """One waits for the other and then finds its work done."""
    one, other = await two_batches_of_releases_cross(either_database, as_built=True)
    assert {granted(outcome).state for outcome in (*one, *other)} == {"released"}
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def two_batches_of_payments_cross(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """Two batches confirm bookings of their own, with payments that both name, in opposite order."""
    sold = await database.held("B9", buyer="eve")
    mine = [await database.held(f"A{n}", buyer=f"buyer-{n}") for n in range(1, 4)]
    yours = [await database.held(f"B{n}", buyer=f"buyer-{n}") for n in range(1, 4)]
    return await two_batches_cross(
        database,
        blocker=f"INSERT INTO outside_payments VALUES ('p0', '{sold.id}', 'live'), ('p3', '{sold.id}', 'live')",
        first=[a_confirm(b, payment_id=p) for b, p in zip(mine, ("p1", "p0", "p2"), strict=True)],
        second=[a_confirm(b, payment_id=p) for b, p in zip(yours, ("p2", "p3", "p1"), strict=True)],
        shortcuts_=(shortcut, shortcut),
    )


async def test_batches_that_tie_payments_as_they_came_deadlock(bare_database: RaceDatabase) -> None:
    """A payment that another transaction is tying is waited for like a lock."""
    outcomes = await two_batches_of_payments_cross(bare_database, shortcuts.TIES_PAYMENTS_AS_THEY_CAME)
    await assert_deadlocked(bare_database, *outcomes)


async def test_batches_tie_payments_in_the_order_of_their_names(either_database: RaceDatabase) -> None:
    """Each payment confirms one booking, in any order, and every request is answered."""
    one, other = await two_batches_of_payments_cross(either_database, AS_BUILT)
    paid = [granted(outcome).payment_id for outcome in (*one, *other) if not isinstance(outcome, Exception)]
    assert sorted(map(str, paid)) == ["p0", "p1", "p2", "p3"]
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def a_partial_cancel_and_a_change_cross(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """Both want the first and the third seat; the cancel is halfway when the change comes."""
    sold = await database.held("A1", "A2", "A3", "A4")
    await database.done(a_confirm(sold))
    third = await asyncpg.connect(database.url)
    async with third.transaction():
        await third.fetch("SELECT FROM seats WHERE id = 'A2' FOR UPDATE")
        cancelling = (await database.server(shortcut=shortcut)).submit(a_cancel(sold, "A1", "A2", "A3"))
        await cancelling.waits_for_a_lock()
        changing = (await database.server()).submit(a_repricing("A1", "A3"))
        await changing.waits_for_a_lock()
    await third.close()
    return await cancelling.outcome(), await changing.outcome()


async def test_clearing_seats_as_they_lie_deadlocks_with_a_change(bare_database: RaceDatabase) -> None:
    """A plain update of several rows locks them in the order in which it visits them."""
    outcomes = await a_partial_cancel_and_a_change_cross(bare_database, shortcuts.CLEARS_SEATS_AS_THEY_LIE)
    await assert_deadlocked(bare_database, *outcomes)


async def test_a_partial_cancel_locks_its_seats_by_name(either_database: RaceDatabase) -> None:
    """One order for seats too, whatever the order in which they lie in their table."""
    cancelled, changed = await a_partial_cancel_and_a_change_cross(either_database, AS_BUILT)
    granted(cancelled)
    granted(changed)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0
