"""Two want one seat, or one wants it and the operator blocks it: what was seen is compared with what is locked."""

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

    from .support import House

    Before = Callable[[House], Awaitable[object]]


async def never_held(_: House) -> None:
    """Nobody had the seat before."""


async def let_go(services: House) -> None:
    """The seat points to a booking that has ended."""
    await services.done(a_release(await services.held("A1")))


async def lapsed(services: House) -> None:
    """The seat points to a hold whose time is over and that nobody has ended yet."""
    services.pass_the_end(await services.held("A1"))


HISTORIES = pytest.mark.parametrize("before", [never_held, let_go, lapsed])


async def two_see_a_seat_free(services: House, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """Both look; the first takes the seat and commits; then the second comes to lock it."""
    await before(services)
    second = (await services.payments("after read_seats", shortcut=shortcut)).ask(a_hold("A1", buyer="cid"))
    await second.reached("after read_seats")
    first = await (await services.payments(shortcut=shortcut)).ask(a_hold("A1", buyer="bob")).outcome()
    return first, await second.outcome()


@HISTORIES
async def test_trusting_the_look_sells_the_seat_twice(bare_house: House, before: Before) -> None:
    """Between the look and the lock somebody else took the seat, and nothing is compared."""
    first, second = await two_see_a_seat_free(bare_house, shortcuts.TRUSTS_THE_LOOK, before)
    granted(first)
    granted(second)
    assert await bare_house.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_house.flaws()


@HISTORIES
async def test_the_schema_lets_nobody_take_a_seat_from_its_new_owner(services: House, before: Before) -> None:
    """The last line: the seat points to a held booking by now, and stays with it."""
    first, second = await two_see_a_seat_free(services, shortcuts.TRUSTS_THE_LOOK, before)
    assert refused_by(second) == "seat_keeps_its_live_owner"
    assert await services.owner("A1") == granted(first).id
    assert not await services.flaws()


@HISTORIES
async def test_a_seat_that_moved_is_looked_at_again(either_house: House, before: Before) -> None:
    """The second finds the pointer changed, looks anew, and is told that the seat is taken."""
    first, second = await two_see_a_seat_free(either_house, AS_BUILT, before)
    assert isinstance(second, SeatsTaken)
    assert await either_house.owner("A1") == granted(first).id
    assert not await either_house.flaws()


async def the_second_waits_for_the_first(services: House, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """The first has locked the seat; the second has seen it free, and its lock statement waits."""
    await before(services)
    first = (await services.payments("before write")).ask(a_hold("A1", buyer="bob"))
    await first.reached("before write")
    second = (await services.payments(shortcut=shortcut)).ask(a_hold("A1", buyer="cid"))
    await second.waits_for_a_lock()
    return await first.outcome(), await second.outcome()


@pytest.mark.parametrize("before", [never_held, let_go])
async def test_judging_the_owner_inside_the_lock_statement_sells_the_seat_twice(
    bare_house: House, before: Before
) -> None:
    """After the wait PostgreSQL reads the seat again but keeps the owner it had joined: none, or one that ended."""
    first, second = await the_second_waits_for_the_first(bare_house, shortcuts.JUDGES_OWNERS_IN_THE_LOCK, before)
    granted(first)
    granted(second)
    assert await bare_house.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_house.flaws()


@pytest.mark.parametrize("before", [never_held, let_go])
async def test_the_schema_sees_the_owner_that_the_lock_statement_missed(services: House, before: Before) -> None:
    """The last line: the guard looks when the pointer is written, after the wait."""
    first, second = await the_second_waits_for_the_first(services, shortcuts.JUDGES_OWNERS_IN_THE_LOCK, before)
    assert refused_by(second) == "seat_keeps_its_live_owner"
    assert await services.owner("A1") == granted(first).id


@HISTORIES
async def test_a_lock_statement_compares_only_the_row_it_locks(either_house: House, before: Before) -> None:
    """Pointer, fence and block are read again after the wait: the second finds them changed."""
    first, second = await the_second_waits_for_the_first(either_house, AS_BUILT, before)
    assert isinstance(second, SeatsTaken)
    assert await either_house.owner("A1") == granted(first).id
    assert not await either_house.flaws()


async def a_hold_commits_while_another_looks(services: House, shortcut: Shortcut, place: str) -> tuple[Any, Any]:
    """The look is halfway, or about to begin, or just over."""
    looking = (await services.payments(place, shortcut=shortcut)).ask(a_hold("A1", buyer="cid"))
    await looking.reached(place)
    first = await services.tried(a_hold("A1", buyer="bob"))
    return first, await looking.outcome()


async def test_reading_bookings_before_seats_sells_the_seat_twice(bare_house: House) -> None:
    """The pointer is newer than the bookings, so its owner is not among them and the seat looks free."""
    first, second = await a_hold_commits_while_another_looks(
        bare_house, shortcuts.READS_BOOKINGS_BEFORE_SEATS, "between bookings and seats"
    )
    granted(first)
    granted(second)
    assert await bare_house.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_house.flaws()


async def test_the_schema_knows_the_owner_that_the_look_missed(services: House) -> None:
    """The last line, for a look in two statements."""
    first, second = await a_hold_commits_while_another_looks(
        services, shortcuts.READS_BOOKINGS_BEFORE_SEATS, "between bookings and seats"
    )
    assert refused_by(second) == "seat_keeps_its_live_owner"
    assert await services.owner("A1") == granted(first).id


@pytest.mark.parametrize("place", ["before read_seats", "after read_seats"])
async def test_seats_and_owners_are_read_in_one_snapshot(either_house: House, place: str) -> None:
    """One statement has no middle: before it or after it, the other's booking is found."""
    first, second = await a_hold_commits_while_another_looks(either_house, AS_BUILT, place)
    assert isinstance(second, SeatsTaken)
    assert await either_house.owner("A1") == granted(first).id
    assert not await either_house.flaws()


async def a_seat_is_blocked_after_a_look(services: House, shortcut: Shortcut, before: Before) -> tuple[Any, Any]:
    """The hold saw the seat; the operator blocks it and commits; then the hold comes to lock it."""
    await before(services)
    holding = (await services.payments("after read_seats", shortcut=shortcut)).ask(a_hold("A1"))
    await holding.reached("after read_seats")
    blocked = await (await services.payments()).ask(a_block("A1")).outcome()
    return blocked, await holding.outcome()


@HISTORIES
async def test_a_lock_that_ignores_the_block_sells_a_blocked_seat(bare_house: House, before: Before) -> None:
    """Pointer and fence are as they were seen; only the block has changed."""
    _, taken = await a_seat_is_blocked_after_a_look(bare_house, shortcuts.IGNORES_THE_BLOCK, before)
    granted(taken)
    assert BLOCKED_AND_OWNED in await bare_house.flaws()


@HISTORIES
async def test_the_schema_gives_nobody_a_blocked_seat(services: House, before: Before) -> None:
    """The last line: a blocked seat gets no new owner."""
    _, taken = await a_seat_is_blocked_after_a_look(services, shortcuts.IGNORES_THE_BLOCK, before)
    assert refused_by(taken) == "blocked_seat_is_not_taken"
    assert not await services.flaws()


@HISTORIES
async def test_a_seat_that_was_blocked_meanwhile_is_not_sold(either_house: House, before: Before) -> None:
    """The block is compared like the pointer; the hold looks again and is told."""
    blocked, taken = await a_seat_is_blocked_after_a_look(either_house, AS_BUILT, before)
    granted(blocked)
    assert isinstance(taken, SeatsTaken)
    assert taken.why == "blocked"
    assert not await either_house.flaws()


async def confirm_begun_in_time_meets_a_block(services: House, shortcut: Shortcut) -> tuple[Booking, Any, Any]:
    """The hold lapses, the operator blocks its seat, and then the confirm comes to lock its booking."""
    old = await services.held("A1")
    confirming = (await services.payments("after begin")).ask(a_confirm(old))
    await confirming.reached("after begin")
    services.pass_the_end(old)
    blocked = await (await services.payments(shortcut=shortcut)).ask(a_block("A1")).outcome()
    return old, blocked, await confirming.outcome()


async def test_a_block_that_leaves_the_lapsed_hold_held_sells_a_blocked_seat(bare_house: House) -> None:
    """The hold that was in the way was over, but nobody told its booking."""
    _, blocked, confirmed = await confirm_begun_in_time_meets_a_block(
        bare_house, shortcuts.BLOCKS_WITHOUT_ENDING_THE_OLD_HOLD
    )
    granted(blocked)
    granted(confirmed)
    assert BLOCKED_AND_OWNED in await bare_house.flaws()


async def test_the_schema_blocks_no_seat_under_a_live_booking(services: House) -> None:
    """The last line: due or not, a held booking must end before its seat can be blocked."""
    old, blocked, confirmed = await confirm_begun_in_time_meets_a_block(
        services, shortcuts.BLOCKS_WITHOUT_ENDING_THE_OLD_HOLD
    )
    assert refused_by(blocked) == "seat_keeps_its_live_owner"
    assert granted(confirmed).id == old.id
    assert not await services.flaws()


async def test_a_block_ends_the_lapsed_hold_and_its_late_confirm_is_told(either_house: House) -> None:
    """Blocking takes the seat from its lapsed owner in the same way as a hold does."""
    old, blocked, confirmed = await confirm_begun_in_time_meets_a_block(either_house, AS_BUILT)
    granted(blocked)
    assert isinstance(confirmed, BookingExpired)
    assert await either_house.state(old) == "expired"
    assert not await either_house.flaws()
