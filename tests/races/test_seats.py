"""Two buyers want one seat, or one wants it and the operator blocks it: the locked row is compared with the read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import BookingExpired, SeatsTaken

from . import shortcuts
from .commands import a_block, a_confirm, a_hold, a_release
from .support import AS_BUILT, BLOCKED_AND_OWNED, TWO_OWNERS, Shortcut, granted, refused_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.domain.booking import Booking

    from .support import RaceDatabase

    Before = Callable[[RaceDatabase], Awaitable[object]]


async def never_held(_: RaceDatabase) -> None:
    """No buyer had the seat before."""


async def released(database: RaceDatabase) -> None:
    """The seat points to a booking that has ended."""
    await database.done(a_release(await database.held("A1")))


async def lapsed(database: RaceDatabase) -> None:
    """The seat points to a hold that is past its time and that no transaction has ended yet."""
    database.pass_the_end(await database.held("A1"))


HISTORIES = pytest.mark.parametrize("before", [never_held, released, lapsed])


async def two_see_a_seat_free(database: RaceDatabase, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """Both look; the first takes the seat and commits; then the second comes to lock it."""
    await before(database)
    second = (await database.server("after read_seats", shortcut=shortcut)).submit(a_hold("A1", buyer="cid"))
    await second.reached("after read_seats")
    first = await (await database.server(shortcut=shortcut)).submit(a_hold("A1", buyer="bob")).outcome()
    return first, await second.outcome()


@HISTORIES
async def test_trusting_the_read_sells_the_seat_twice(bare_database: RaceDatabase, before: Before) -> None:
    """Between the read and the lock another buyer took the seat, and nothing is compared."""
    first, second = await two_see_a_seat_free(bare_database, shortcuts.TRUSTS_THE_LOOK, before)
    granted(first)
    granted(second)
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


@HISTORIES
async def test_the_schema_takes_no_seat_from_its_new_owner(database: RaceDatabase, before: Before) -> None:
    """The schema's guard: the seat points to a held booking by now, and stays with it."""
    first, second = await two_see_a_seat_free(database, shortcuts.TRUSTS_THE_LOOK, before)
    assert refused_by(second) == "seat_keeps_its_active_owner"
    assert await database.owner("A1") == granted(first).id
    assert not await database.flaws()


@HISTORIES
async def test_a_seat_that_changed_is_read_again(either_database: RaceDatabase, before: Before) -> None:
    """The second finds the pointer changed, reads again, and is refused."""
    first, second = await two_see_a_seat_free(either_database, AS_BUILT, before)
    assert isinstance(second, SeatsTaken)
    assert await either_database.owner("A1") == granted(first).id
    assert not await either_database.flaws()


async def the_second_waits_for_the_first(database: RaceDatabase, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """The first has locked the seat; the second has seen it free, and its lock statement waits."""
    await before(database)
    first = (await database.server("before write")).submit(a_hold("A1", buyer="bob"))
    await first.reached("before write")
    second = (await database.server(shortcut=shortcut)).submit(a_hold("A1", buyer="cid"))
    await second.waits_for_a_lock()
    return await first.outcome(), await second.outcome()


@pytest.mark.parametrize("before", [never_held, released])
async def test_judging_the_owner_inside_the_lock_statement_sells_the_seat_twice(
    bare_database: RaceDatabase, before: Before
) -> None:
    """After the wait PostgreSQL reads the seat again but keeps the owner it had joined: none, or one that ended."""
    first, second = await the_second_waits_for_the_first(bare_database, shortcuts.JUDGES_OWNERS_IN_THE_LOCK, before)
    granted(first)
    granted(second)
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


@pytest.mark.parametrize("before", [never_held, released])
async def test_the_schema_sees_the_owner_that_the_lock_statement_missed(database: RaceDatabase, before: Before) -> None:
    """The schema's guard: it looks when the pointer is written, after the wait."""
    first, second = await the_second_waits_for_the_first(database, shortcuts.JUDGES_OWNERS_IN_THE_LOCK, before)
    assert refused_by(second) == "seat_keeps_its_active_owner"
    assert await database.owner("A1") == granted(first).id


@HISTORIES
async def test_a_lock_statement_compares_only_the_row_it_locks(either_database: RaceDatabase, before: Before) -> None:
    """Pointer, fence and block are read again after the wait: the second finds them changed."""
    first, second = await the_second_waits_for_the_first(either_database, AS_BUILT, before)
    assert isinstance(second, SeatsTaken)
    assert await either_database.owner("A1") == granted(first).id
    assert not await either_database.flaws()


async def a_hold_commits_while_another_looks(database: RaceDatabase, shortcut: Shortcut, place: str) -> tuple[Any, Any]:
    """The look is halfway, or about to begin, or just over."""
    looking = (await database.server(place, shortcut=shortcut)).submit(a_hold("A1", buyer="cid"))
    await looking.reached(place)
    first = await database.tried(a_hold("A1", buyer="bob"))
    return first, await looking.outcome()


async def test_reading_bookings_before_seats_sells_the_seat_twice(bare_database: RaceDatabase) -> None:
    """The pointer is newer than the bookings, so its owner is not among them and the seat looks free."""
    first, second = await a_hold_commits_while_another_looks(
        bare_database, shortcuts.READS_BOOKINGS_BEFORE_SEATS, "between bookings and seats"
    )
    granted(first)
    granted(second)
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


async def test_the_schema_knows_the_owner_that_the_read_missed(database: RaceDatabase) -> None:
    """The schema's guard, for a read in two statements."""
    first, second = await a_hold_commits_while_another_looks(
        database, shortcuts.READS_BOOKINGS_BEFORE_SEATS, "between bookings and seats"
    )
    assert refused_by(second) == "seat_keeps_its_active_owner"
    assert await database.owner("A1") == granted(first).id


@pytest.mark.parametrize("place", ["before read_seats", "after read_seats"])
async def test_seats_and_owners_are_read_in_one_snapshot(either_database: RaceDatabase, place: str) -> None:
    """One statement has no middle: before it or after it, the other's booking is found."""
    first, second = await a_hold_commits_while_another_looks(either_database, AS_BUILT, place)
    assert isinstance(second, SeatsTaken)
    assert await either_database.owner("A1") == granted(first).id
    assert not await either_database.flaws()


async def a_seat_is_blocked_after_a_look(database: RaceDatabase, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """The hold saw the seat; the operator blocks it and commits; then the hold comes to lock it."""
    await before(database)
    holding = (await database.server("after read_seats", shortcut=shortcut)).submit(a_hold("A1"))
    await holding.reached("after read_seats")
    blocked = await (await database.server()).submit(a_block("A1")).outcome()
    return blocked, await holding.outcome()


@HISTORIES
async def test_a_lock_that_ignores_the_block_sells_a_blocked_seat(bare_database: RaceDatabase, before: Before) -> None:
    """Pointer and fence are as they were seen; only the block has changed."""
    _, taken = await a_seat_is_blocked_after_a_look(bare_database, shortcuts.IGNORES_THE_BLOCK, before)
    granted(taken)
    assert BLOCKED_AND_OWNED in await bare_database.flaws()


@HISTORIES
async def test_the_schema_gives_no_buyer_a_blocked_seat(database: RaceDatabase, before: Before) -> None:
    """The schema's guard: a blocked seat gets no new owner."""
    _, taken = await a_seat_is_blocked_after_a_look(database, shortcuts.IGNORES_THE_BLOCK, before)
    assert refused_by(taken) == "blocked_seat_is_not_taken"
    assert not await database.flaws()


@HISTORIES
async def test_a_seat_that_was_blocked_meanwhile_is_not_sold(either_database: RaceDatabase, before: Before) -> None:
    """The block is compared like the pointer; the hold reads again and is refused."""
    blocked, taken = await a_seat_is_blocked_after_a_look(either_database, AS_BUILT, before)
    granted(blocked)
    assert isinstance(taken, SeatsTaken)
    assert taken.why == "blocked"
    assert not await either_database.flaws()


async def confirm_begun_in_time_collides_with_a_block(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The hold lapses, the operator blocks its seat, and then the confirm comes to lock its booking."""
    old = await database.held("A1")
    confirming = (await database.server("after begin")).submit(a_confirm(old))
    await confirming.reached("after begin")
    database.pass_the_end(old)
    blocked = await (await database.server(shortcut=shortcut)).submit(a_block("A1")).outcome()
    return old, blocked, await confirming.outcome()


async def test_a_block_that_leaves_the_lapsed_hold_held_sells_a_blocked_seat(bare_database: RaceDatabase) -> None:
    """The hold was past its time, but its booking was not ended."""
    _, blocked, confirmed = await confirm_begun_in_time_collides_with_a_block(
        bare_database, shortcuts.BLOCKS_WITHOUT_ENDING_THE_OLD_HOLD
    )
    granted(blocked)
    granted(confirmed)
    assert BLOCKED_AND_OWNED in await bare_database.flaws()


async def test_the_schema_blocks_no_seat_of_an_active_booking(database: RaceDatabase) -> None:
    """The schema's guard: due or not, a held booking must end before its seat can be blocked."""
    old, blocked, confirmed = await confirm_begun_in_time_collides_with_a_block(
        database, shortcuts.BLOCKS_WITHOUT_ENDING_THE_OLD_HOLD
    )
    assert refused_by(blocked) == "seat_keeps_its_active_owner"
    assert granted(confirmed).id == old.id
    assert not await database.flaws()


async def test_a_block_ends_the_lapsed_hold_and_its_late_confirm_is_refused(either_database: RaceDatabase) -> None:
    """Blocking takes the seat from its lapsed owner in the same way as a hold does."""
    old, blocked, confirmed = await confirm_begun_in_time_collides_with_a_block(either_database, AS_BUILT)
    granted(blocked)
    assert isinstance(confirmed, BookingExpired)
    assert await either_database.state(old) == "expired"
    assert not await either_database.flaws()
