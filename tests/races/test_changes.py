"""A hold is changed while another transaction wants the same booking or the same seat: each interleaving is forced.

The tempting shortcuts come first, each with the harm it does where the schema has no guards, and with what the built
verb does in the same interleaving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import BookingExpired, SeatsTaken

from . import shortcuts
from .commands import TTL_SECONDS, a_block, a_change, a_confirm, a_hold, a_release, an_extend
from .support import (
    AS_BUILT,
    BLOCKED_AND_OWNED,
    PINNED,
    POOL_DRIFT,
    TOTAL_DRIFT,
    TWO_OWNERS,
    Shortcut,
    granted,
    refused_by,
)
from .test_deadlocks import assert_deadlocked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.domain.booking import Booking

    from .support import RaceDatabase

    Before = Callable[[RaceDatabase], Awaitable[object]]

LONG = 10 * TTL_SECONDS


async def never_held(_: RaceDatabase) -> None:
    """No buyer had the seat before."""


async def released(database: RaceDatabase) -> None:
    """The seat points to a booking that has ended."""
    await database.done(a_release(await database.held("A1", buyer="eve")))


async def lapsed(database: RaceDatabase) -> None:
    """The seat points to a hold that is past its time and that no transaction has ended yet."""
    database.pass_the_end(await database.held("A1", buyer="eve"))


async def dropped(database: RaceDatabase) -> None:
    """Another booking, which is held still, gave the seat back."""
    other = await database.held("A1", "A9", buyer="eve", ttl_seconds=LONG)
    await database.done(a_change(other, drop=["A1"]))


HISTORIES = pytest.mark.parametrize("before", [never_held, released, lapsed, dropped])


def seats_of(booking: Booking) -> list[str]:
    """By name."""
    return [line.id for line in booking.lines.seats]


# V28: the booking is judged on an unlocked read


async def the_hold_ends_under_a_change(
    database: RaceDatabase, shortcut: Shortcut, place: str
) -> tuple[Booking, Any, Any]:
    """The change is under way in time; then the end comes, and a confirm that is too late ends the hold."""
    held = await database.held("A1", units=1)
    changing = (await database.server(place, shortcut=shortcut)).submit(a_change(held, add=["A2"], units=3))
    await changing.reached(place)
    database.pass_the_end(held)
    late = await database.tried(a_confirm(held))
    return held, late, await changing.outcome()


async def test_judging_the_booking_unlocked_revives_an_expired_hold(bare_database: RaceDatabase) -> None:
    """It was held when it was read; what is written over the expired booking is held again, and counted nowhere."""
    held, late, changed = await the_hold_ends_under_a_change(
        bare_database, shortcuts.DECIDES_UNLOCKED, "after lock_bookings"
    )
    assert isinstance(late, BookingExpired)
    granted(changed)
    assert await bare_database.state(held) == "held"
    assert {POOL_DRIFT, TOTAL_DRIFT} <= await bare_database.flaws()


async def test_the_schema_holds_no_expired_booking_again(database: RaceDatabase) -> None:
    """The schema's guard: only a hold that is held gets other lines, and from expired no move leads to held."""
    held, _, changed = await the_hold_ends_under_a_change(database, shortcuts.DECIDES_UNLOCKED, "after lock_bookings")
    assert refused_by(changed) in {"booking_lines_only_shrink", "booking_moves_along_an_edge"}
    assert await database.state(held) == "expired"
    assert not await database.flaws()


@pytest.mark.parametrize("place", ["after begin", "after read_bookings", "after read_seats"])
async def test_a_change_judges_the_locked_booking(either_database: RaceDatabase, place: str) -> None:
    """However far its reads have come: after the lock it finds the booking expired, and is refused."""
    held, late, changed = await the_hold_ends_under_a_change(either_database, AS_BUILT, place)
    assert isinstance(late, BookingExpired)
    assert isinstance(changed, BookingExpired)
    now = await either_database.booking(held)
    assert (now.state, now.lines) == ("expired", held.lines)
    assert await either_database.owner("A2") is None
    assert not await either_database.flaws()


# V29: seats are locked before bookings


async def a_change_and_a_hold_want_a_lapsed_seat(database: RaceDatabase, shortcut: Shortcut) -> tuple[Any, Any]:
    """The hold has locked the lapsed booking and will want its seat; the change wants both."""
    held = await database.held("A2", ttl_seconds=LONG)
    database.pass_the_end(await database.held("A1", buyer="eve"))
    holding = (await database.server("after lock_bookings")).submit(a_hold("A1"))
    await holding.reached("after lock_bookings")
    changing = (await database.server(shortcut=shortcut)).submit(a_change(held, add=["A1"]))
    await changing.waits_for_a_lock()
    return await holding.outcome(), await changing.outcome()


async def test_locking_seats_before_bookings_deadlocks_with_a_hold(bare_database: RaceDatabase) -> None:
    """One has the seat and wants its lapsed booking, the other has the booking and wants the seat."""
    outcomes = await a_change_and_a_hold_want_a_lapsed_seat(bare_database, shortcuts.LOCKS_SEATS_FIRST)
    await assert_deadlocked(bare_database, *outcomes)


async def test_a_change_waits_for_the_lapsed_booking_before_it_locks_the_seat(either_database: RaceDatabase) -> None:
    """The hold finishes, and the change finds the seat taken."""
    taken, changed = await a_change_and_a_hold_want_a_lapsed_seat(either_database, AS_BUILT)
    granted(taken)
    assert isinstance(changed, SeatsTaken)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


# V30: the added seat is not compared


async def a_hold_takes_the_seat_that_a_change_saw_free(
    database: RaceDatabase, shortcut: Shortcut, before: Before
) -> tuple[Booking, Any, Any]:
    """The change looks; a hold takes the seat and commits; then the change comes to lock it."""
    held = await database.held("A2", units=1, ttl_seconds=LONG)
    await before(database)
    changing = (await database.server("after read_seats", shortcut=shortcut)).submit(
        a_change(held, add=["A1"], drop=["A2"], units=5)
    )
    await changing.reached("after read_seats")
    taken = await database.tried(a_hold("A1"))
    return held, taken, await changing.outcome()


@HISTORIES
async def test_a_change_that_trusts_its_read_sells_the_seat_twice(bare_database: RaceDatabase, before: Before) -> None:
    """Nothing is compared between the read and the lock."""
    _, taken, changed = await a_hold_takes_the_seat_that_a_change_saw_free(
        bare_database, shortcuts.TRUSTS_THE_LOOK, before
    )
    granted(taken)
    granted(changed)
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


@HISTORIES
async def test_the_schema_takes_no_seat_from_its_new_owner(database: RaceDatabase, before: Before) -> None:
    """The schema's guard: the seat points to a held booking by now, and stays with it."""
    held, taken, changed = await a_hold_takes_the_seat_that_a_change_saw_free(
        database, shortcuts.TRUSTS_THE_LOOK, before
    )
    assert refused_by(changed) == "seat_keeps_its_active_owner"
    assert await database.owner("A1") == granted(taken).id
    assert await database.booking(held) == held
    assert not await database.flaws()


@HISTORIES
async def test_a_change_finds_that_the_seat_was_taken(either_database: RaceDatabase, before: Before) -> None:
    """The pointer has changed: it reads again, is refused, and keeps all that it had."""
    held, taken, changed = await a_hold_takes_the_seat_that_a_change_saw_free(either_database, AS_BUILT, before)
    assert isinstance(changed, SeatsTaken)
    assert not changed.transient
    assert await either_database.owner("A1") == granted(taken).id
    assert await either_database.booking(held) == held
    assert await either_database.owner("A2") == held.id
    assert not await either_database.flaws()


@HISTORIES
async def test_a_change_waits_for_a_hold_that_has_the_seat(either_database: RaceDatabase, before: Before) -> None:
    """The hold has locked the seat and not written; the change saw it free, waits, looks again, and is refused."""
    held = await either_database.held("A2", ttl_seconds=LONG)
    await before(either_database)
    holding = (await either_database.server("before write")).submit(a_hold("A1"))
    await holding.reached("before write")
    changing = (await either_database.server()).submit(a_change(held, add=["A1"], drop=["A2"]))
    await changing.waits_for_a_lock()
    taken = granted(await holding.outcome())
    assert isinstance(await changing.outcome(), SeatsTaken)
    assert await either_database.owner("A1") == taken.id
    assert await either_database.booking(held) == held
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


@HISTORIES
async def test_a_hold_waits_for_a_change_that_has_the_seat(either_database: RaceDatabase, before: Before) -> None:
    """The other way round: the hold finds the seat in a booking that was made before."""
    held = await either_database.held("A2", ttl_seconds=LONG)
    await before(either_database)
    changing = (await either_database.server("before write")).submit(a_change(held, add=["A1"], drop=["A2"]))
    await changing.reached("before write")
    holding = (await either_database.server()).submit(a_hold("A1"))
    await holding.waits_for_a_lock()
    assert seats_of(granted(await changing.outcome())) == ["A1"]
    assert isinstance(await holding.outcome(), SeatsTaken)
    assert await either_database.owner("A1") == held.id
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


# V31: a dropped seat keeps its pointer


async def a_seat_is_dropped(database: RaceDatabase, shortcut: Shortcut) -> tuple[Booking, Any]:
    """No race: a hold of two seats gives one back, and another buyer wants it."""
    held = await database.held("A1", "A2")
    granted(await (await database.server(shortcut=shortcut)).submit(a_change(held, drop=["A1"])).outcome())
    return held, await database.tried(a_hold("A1"))


async def test_a_change_that_keeps_the_pointer_pins_the_seat_for_good(bare_database: RaceDatabase) -> None:
    """A pointer to an ended booking is free, but this one is held, and may be sold: no buyer can have the seat."""
    held, taken = await a_seat_is_dropped(bare_database, shortcuts.KEEPS_THE_POINTER)
    assert isinstance(taken, SeatsTaken)
    assert PINNED in await bare_database.flaws()
    await bare_database.done(a_confirm(held))
    assert isinstance(await bare_database.tried(a_hold("A1")), SeatsTaken)


async def test_a_dropped_seat_is_free_and_the_other_stays_held(either_database: RaceDatabase) -> None:
    """A change clears the pointers of the seats that it gives back."""
    held, taken = await a_seat_is_dropped(either_database, AS_BUILT)
    assert await either_database.owner("A1") == granted(taken).id
    assert await either_database.owner("A2") == held.id
    assert not await either_database.flaws()


async def test_a_change_that_ends_no_lapsed_owner_sells_its_seat_twice(bare_database: RaceDatabase) -> None:
    """A confirm from before the end finds its booking held, and sells what the change has taken."""
    _, changed, confirmed = await a_change_takes_a_lapsed_seat_under_a_confirm(
        bare_database, shortcuts.TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
    )
    granted(changed)
    granted(confirmed)
    assert TWO_OWNERS in await bare_database.flaws()


async def test_a_change_ends_the_lapsed_owner_of_the_seat_it_takes(either_database: RaceDatabase) -> None:
    """In its own transaction, with all that the old hold had; the late confirm is refused."""
    old, changed, confirmed = await a_change_takes_a_lapsed_seat_under_a_confirm(either_database, AS_BUILT)
    assert await either_database.owner("A1") == granted(changed).id
    assert isinstance(confirmed, BookingExpired)
    assert await either_database.state(old) == "expired"
    assert not await either_database.flaws()


async def a_change_takes_a_lapsed_seat_under_a_confirm(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The confirm began in time, and comes to lock its booking when its seat has a new owner."""
    held = await database.held("A2", ttl_seconds=LONG)
    old = await database.held("A1", units=1, buyer="eve")
    confirming = (await database.server("after begin")).submit(a_confirm(old))
    await confirming.reached("after begin")
    database.pass_the_end(old)
    changed = await (await database.server(shortcut=shortcut)).submit(a_change(held, add=["A1"])).outcome()
    return old, changed, await confirming.outcome()


async def a_change_meets_an_owner_that_was_sold_in_time(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The confirm has locked its booking in time; the change sees it lapsed, and waits for it."""
    held = await database.held("A2", ttl_seconds=LONG)
    old = await database.held("A1", units=1, buyer="eve")
    confirming = (await database.server("before write")).submit(a_confirm(old))
    await confirming.reached("before write")
    database.pass_the_end(old)
    changing = (await database.server(shortcut=shortcut)).submit(a_change(held, add=["A1"]))
    await changing.waits_for_a_lock()
    return old, await confirming.outcome(), await changing.outcome()


async def test_a_change_that_ends_what_looked_lapsed_loses_a_sale(bare_database: RaceDatabase) -> None:
    """The row that was waited for was sold meanwhile."""
    old, confirmed, changed = await a_change_meets_an_owner_that_was_sold_in_time(
        bare_database, shortcuts.LOCKS_AND_READS_AT_ONCE
    )
    granted(confirmed)
    granted(changed)
    assert await bare_database.state(old) == "expired"
    assert POOL_DRIFT in await bare_database.flaws()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_an_owner_that_lives_after_all_keeps_its_seat(either_database: RaceDatabase, ask: Any) -> None:
    """Sold or extended in time: the change judges the locked row, and is refused."""
    held = await either_database.held("A2", ttl_seconds=LONG)
    old = await either_database.held("A1", units=1, buyer="eve")
    moving = (await either_database.server("before write")).submit(ask(old))
    await moving.reached("before write")
    either_database.pass_the_end(old)
    changing = (await either_database.server()).submit(a_change(held, add=["A1"], drop=["A2"]))
    await changing.waits_for_a_lock()
    granted(await moving.outcome())
    assert isinstance(await changing.outcome(), SeatsTaken)
    assert await either_database.owner("A1") == old.id
    assert await either_database.booking(held) == held
    assert not await either_database.flaws()


# like V24: its own booking and the lapsed owner are locked in two steps


async def two_changes_cross(database: RaceDatabase, *, own_first: bool) -> tuple[list[Booking], Any, Any]:
    """Two holds that lapsed want each other's seats: each change needs both bookings."""
    ann, bob = await database.held("A1", buyer="ann"), await database.held("A2", buyer="bob")
    database.pass_the_end(bob)
    stop = "after its first lock" if own_first else "after lock_bookings"
    cuts = [shortcuts.locks_its_booking_first(one.id) if own_first else AS_BUILT for one in (ann, bob)]
    first = (await database.server(stop, shortcut=cuts[0])).submit(a_change(ann, add=["A2"]))
    await first.reached(stop)
    second = (await database.server(shortcut=cuts[1])).submit(a_change(bob, add=["A1"]))
    await second.waits_for_a_lock()
    return [ann, bob], await first.outcome(), await second.outcome()


async def test_changes_that_lock_their_own_booking_first_deadlock(bare_database: RaceDatabase) -> None:
    """Each has its own, and wants the other's."""
    _, *outcomes = await two_changes_cross(bare_database, own_first=True)
    await assert_deadlocked(bare_database, *outcomes)


async def test_a_change_locks_its_booking_and_the_lapsed_owner_by_id(either_database: RaceDatabase) -> None:
    """The second waits for the first, and finds that both have expired: once."""
    both, *outcomes = await two_changes_cross(either_database, own_first=False)
    assert [type(outcome) for outcome in outcomes] == [BookingExpired, BookingExpired]
    for booking in both:
        assert await either_database.verbs(booking) == ["hold", "expire"]
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def change_and_batch_collide(database: RaceDatabase, *, own_first: bool) -> tuple[Booking, Any, Any]:
    """The lapsed owner is older, by its id, than the booking that is changed. A batch names both."""
    owner = await database.held("A1", buyer="eve")
    held = await database.held("A2", ttl_seconds=LONG)
    assert owner.id < held.id
    database.pass_the_end(owner)
    stop = "after its first lock" if own_first else "after lock_bookings"
    shortcut = shortcuts.locks_its_booking_first(held.id) if own_first else AS_BUILT
    changing = (await database.server(stop, shortcut=shortcut)).submit(a_change(held, add=["A1"]))
    await changing.reached(stop)
    batch = (await database.server()).submit_batch(a_confirm(owner), a_confirm(held))
    await batch.waits_for_a_lock()
    return held, await changing.outcome(), await batch.outcome()


async def test_a_change_that_locks_its_booking_and_then_the_owner_deadlocks(bare_database: RaceDatabase) -> None:
    """The batch locks by id: it has the owner and wants the booking."""
    _, *outcomes = await change_and_batch_collide(bare_database, own_first=True)
    await assert_deadlocked(bare_database, *outcomes)


async def test_a_batch_waits_for_a_change_that_has_both(either_database: RaceDatabase) -> None:
    """It finds one ended, and sells the other as it was changed."""
    held, changed, (of_owner, of_held) = await change_and_batch_collide(either_database, own_first=False)
    granted(changed)
    assert isinstance(of_owner, BookingExpired)
    assert seats_of(granted(of_held)) == ["A1", "A2"]
    assert await either_database.owner("A1") == held.id
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


# an operator


async def an_operator_blocks_the_added_seat(
    database: RaceDatabase, shortcut: Shortcut, before: Before
) -> tuple[Booking, Any]:
    """The change saw the seat on sale; the block commits before the seat is locked."""
    held = await database.held("A2", ttl_seconds=LONG)
    await before(database)
    changing = (await database.server("after read_seats", shortcut=shortcut)).submit(
        a_change(held, add=["A1"], drop=["A2"])
    )
    await changing.reached("after read_seats")
    granted(await (await database.server()).submit(a_block("A1")).outcome())
    return held, await changing.outcome()


@HISTORIES
async def test_a_change_that_ignores_the_block_takes_a_blocked_seat(
    bare_database: RaceDatabase, before: Before
) -> None:
    """Neither pointer nor fence shows a block."""
    _, changed = await an_operator_blocks_the_added_seat(bare_database, shortcuts.IGNORES_THE_BLOCK, before)
    granted(changed)
    assert BLOCKED_AND_OWNED in await bare_database.flaws()


@HISTORIES
async def test_a_seat_that_was_blocked_meanwhile_is_not_added(either_database: RaceDatabase, before: Before) -> None:
    """The block is compared; the change reads again, and is refused."""
    held, changed = await an_operator_blocks_the_added_seat(either_database, AS_BUILT, before)
    assert isinstance(changed, SeatsTaken)
    assert changed.why == "blocked"
    assert await either_database.booking(held) == held
    assert not await either_database.flaws()


@HISTORIES
async def test_a_seat_that_is_being_added_is_not_blocked(either_database: RaceDatabase, before: Before) -> None:
    """The other way round: the operator saw it free, waits, looks again, and is refused."""
    held = await either_database.held("A2", ttl_seconds=LONG)
    await before(either_database)
    changing = (await either_database.server("before write")).submit(a_change(held, add=["A1"]))
    await changing.reached("before write")
    blocking = (await either_database.server()).submit(a_block("A1"))
    await blocking.waits_for_a_lock()
    granted(await changing.outcome())
    assert isinstance(await blocking.outcome(), SeatsTaken)
    assert not await either_database.flaws()


async def test_a_dropped_seat_is_the_operators_once_the_change_is_committed(either_database: RaceDatabase) -> None:
    """An operator who asked before is refused, for the seat was held then; after that it can be blocked."""
    held = await either_database.held("A1", "A2")
    changing = (await either_database.server("before write")).submit(a_change(held, drop=["A1"]))
    await changing.reached("before write")
    blocking = (await either_database.server()).submit(a_block("A1"))
    await blocking.waits_for_a_lock()
    granted(await changing.outcome())
    assert isinstance(await blocking.outcome(), SeatsTaken)
    granted(await blocking.submit(a_block("A1")).outcome())
    assert isinstance(await either_database.tried(a_hold("A1")), SeatsTaken)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0
