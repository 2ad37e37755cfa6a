"""A lapsed hold is taken over while its owner still confirms or extends: one of the two gets the seat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import BookingExpired, SeatsTaken

from . import shortcuts
from .commands import a_cancel, a_confirm, a_hold, an_extend
from .support import (
    AS_BUILT,
    PINNED,
    POOL_DRIFT,
    RESOLVED_TWICE,
    TOTAL_DRIFT,
    TWO_OWNERS,
    Shortcut,
    granted,
    refused_by,
)

if TYPE_CHECKING:
    from earmark.domain.booking import Booking

    from .support import RaceDatabase


async def confirm_begun_in_time_collides_with_a_finished_takeover(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The confirm's moment is before the end, and when it comes to lock its booking the seat has a new owner."""
    old = await database.held("A1", units=1)
    confirming = (await database.server("after begin")).submit(a_confirm(old))
    await confirming.reached("after begin")
    database.pass_the_end(old)
    holding = (await database.server(shortcut=shortcut)).submit(a_hold("A1"))
    taken = await holding.outcome()
    return old, taken, await confirming.outcome()


async def test_a_takeover_that_leaves_the_old_hold_held_sells_the_seat_twice(bare_database: RaceDatabase) -> None:
    """Taking the seat is not enough: the old booking still says that it is held, and its confirm succeeds."""
    old, taken, confirmed = await confirm_begun_in_time_collides_with_a_finished_takeover(
        bare_database, shortcuts.TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
    )
    granted(taken)
    assert granted(confirmed).id == old.id
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


async def test_the_schema_lets_no_seat_leave_an_active_booking(database: RaceDatabase) -> None:
    """The schema's guard: the seat's pointer does not move away from a held booking, due or not."""
    old, taken, confirmed = await confirm_begun_in_time_collides_with_a_finished_takeover(
        database, shortcuts.TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
    )
    assert refused_by(taken) == "seat_keeps_its_active_owner"
    assert granted(confirmed).id == old.id
    assert not await database.flaws()


async def test_a_takeover_ends_the_old_hold_and_its_late_confirm_is_refused(either_database: RaceDatabase) -> None:
    """The old hold ends in the transaction that gives its seat away; a confirm that comes after finds it ended."""
    old, taken, confirmed = await confirm_begun_in_time_collides_with_a_finished_takeover(either_database, AS_BUILT)
    assert await either_database.owner("A1") == granted(taken).id
    assert isinstance(confirmed, BookingExpired)
    assert await either_database.state(old) == "expired"
    assert not await either_database.flaws()


async def extend_in_flight_collides_with_a_takeover(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The takeover looks when the hold's time is over, and waits for an extend that was in time."""
    old = await database.held("A1")
    await database.observer.execute(shortcut.prepare)
    extending = (await database.server("before write", shortcut=shortcut)).submit(an_extend(old))
    await extending.reached("before write")
    database.pass_the_end(old)
    holding = (await database.server(shortcut=shortcut)).submit(a_hold("A1"))
    await holding.waits_for_a_lock()
    extended = await extending.outcome()
    return old, extended, await holding.outcome()


@pytest.mark.parametrize(
    "shortcut",
    [
        pytest.param(shortcuts.JUDGES_BY_THE_SEATS_COPY, id="copy"),
        pytest.param(shortcuts.JUDGES_BY_A_COPY_KEPT_UP_TO_DATE, id="copy-kept-up-to-date"),
    ],
)
async def test_judging_by_an_end_copied_to_the_seat_ends_an_extended_hold(
    bare_database: RaceDatabase, shortcut: Shortcut
) -> None:
    """A copy that was read before the wait is old after it, however faithfully the extend renews it."""
    old, extended, taken = await extend_in_flight_collides_with_a_takeover(bare_database, shortcut)
    assert granted(extended).expires_at > bare_database.clock.now()
    granted(taken)
    assert await bare_database.state(old) == "expired"


async def test_an_extended_hold_keeps_its_seat(either_database: RaceDatabase) -> None:
    """After the wait the locked row is judged: it has time left, so the seat is taken."""
    old, extended, taken = await extend_in_flight_collides_with_a_takeover(either_database, AS_BUILT)
    assert granted(extended).expires_at > either_database.clock.now()
    assert isinstance(taken, SeatsTaken)
    assert await either_database.state(old) == "held"
    assert await either_database.owner("A1") == old.id
    assert not await either_database.flaws()


async def confirm_in_flight_collides_with_a_takeover(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The confirm has locked its booking in time; the takeover sees it due, waits, and gets the lock after it."""
    old = await database.held("A1", units=1)
    confirming = (await database.server("before write")).submit(a_confirm(old))
    await confirming.reached("before write")
    database.pass_the_end(old)
    holding = (await database.server(shortcut=shortcut)).submit(a_hold("A1"))
    await holding.waits_for_a_lock()
    confirmed = await confirming.outcome()
    return old, confirmed, await holding.outcome()


@pytest.mark.parametrize(
    "shortcut",
    [
        pytest.param(shortcuts.FLIPS_WHATEVER_IT_FINDS, id="flips-whatever-it-finds"),
        pytest.param(shortcuts.LOCKS_AND_READS_AT_ONCE, id="locks-and-reads-at-once"),
    ],
)
async def test_ending_what_looked_due_before_the_wait_loses_a_sale(
    bare_database: RaceDatabase, shortcut: Shortcut
) -> None:
    """An acknowledged confirm is lost, and the counts with it: after a wait the locked row must be judged again."""
    old, confirmed, taken = await confirm_in_flight_collides_with_a_takeover(bare_database, shortcut)
    assert granted(confirmed).id == old.id
    granted(taken)
    assert await bare_database.state(old) == "expired"
    assert {POOL_DRIFT, RESOLVED_TWICE} <= await bare_database.flaws()


@pytest.mark.parametrize(
    "shortcut",
    [
        pytest.param(shortcuts.FLIPS_WHATEVER_IT_FINDS, id="flips-whatever-it-finds"),
        pytest.param(shortcuts.LOCKS_AND_READS_AT_ONCE, id="locks-and-reads-at-once"),
    ],
)
async def test_the_schema_lets_no_sale_expire(database: RaceDatabase, shortcut: Shortcut) -> None:
    """The schema's guard: from confirmed, no move leads to expired."""
    old, confirmed, taken = await confirm_in_flight_collides_with_a_takeover(database, shortcut)
    assert granted(confirmed).id == old.id
    assert refused_by(taken) == "booking_moves_along_an_edge"
    assert await database.state(old) == "confirmed"
    assert not await database.flaws()


async def test_a_confirm_that_locked_first_keeps_its_seat(either_database: RaceDatabase) -> None:
    """The takeover judges the locked row after the wait, finds it sold, and is refused."""
    old, confirmed, taken = await confirm_in_flight_collides_with_a_takeover(either_database, AS_BUILT)
    assert granted(confirmed).id == old.id
    assert isinstance(taken, SeatsTaken)
    assert await either_database.state(old) == "confirmed"
    assert await either_database.owner("A1") == old.id
    assert not await either_database.flaws()


async def takeover_in_flight_collides_with_a_confirm(
    database: RaceDatabase, shortcut: Shortcut, ask: Any
) -> tuple[Booking, Any, Any]:
    """The takeover has ended the hold and not committed; a confirm or extend from before the end comes to it."""
    old = await database.held("A1")
    late = (await database.server("after begin", shortcut=shortcut)).submit(ask(old))
    await late.reached("after begin")
    database.pass_the_end(old)
    holding = (await database.server("after write")).submit(a_hold("A1"))
    await holding.reached("after write")
    late.go()
    await late.waits_for_a_lock()
    taken = await holding.outcome()
    return old, taken, await late.outcome()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_deciding_on_an_unlocked_read_sells_the_seat_twice(bare_database: RaceDatabase, ask: Any) -> None:
    """The read shows the hold as it was before the takeover, and the write makes it active again without its seat."""
    old, taken, late = await takeover_in_flight_collides_with_a_confirm(bare_database, shortcuts.DECIDES_UNLOCKED, ask)
    granted(taken)
    assert granted(late).id == old.id
    assert await bare_database.live_owners("A1") == 2
    assert {TWO_OWNERS, TOTAL_DRIFT} <= await bare_database.flaws()


@pytest.mark.parametrize(
    "ask, guard",
    [(a_confirm, "booking_reclaims_every_seat"), (an_extend, "booking_moves_along_an_edge")],
)
async def test_the_schema_re_claims_no_booking_without_its_seats(database: RaceDatabase, ask: Any, guard: str) -> None:
    """The schema's guard: an expired booking is not held again, and is confirmed only with every seat it lists."""
    old, taken, late = await takeover_in_flight_collides_with_a_confirm(database, shortcuts.DECIDES_UNLOCKED, ask)
    granted(taken)
    assert refused_by(late) == guard
    assert await database.state(old) == "expired"
    assert not await database.flaws()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_a_takeover_that_locked_first_keeps_the_seat(either_database: RaceDatabase, ask: Any) -> None:
    """Confirm and extend lock, wait, and judge what the takeover has made of the booking."""
    old, taken, late = await takeover_in_flight_collides_with_a_confirm(either_database, AS_BUILT, ask)
    assert await either_database.owner("A1") == granted(taken).id
    assert isinstance(late, BookingExpired)
    assert await either_database.state(old) == "expired"
    assert not await either_database.flaws()


async def a_lapsed_hold_is_taken_over(database: RaceDatabase, shortcut: Shortcut) -> None:
    """No race: one takeover, of a booking with a seat and units."""
    old = await database.held("A1", units=2)
    database.pass_the_end(old)
    granted(await (await database.server(shortcut=shortcut)).submit(a_hold("A1")).outcome())


async def test_a_takeover_that_frees_only_the_seats_loses_stock(bare_database: RaceDatabase) -> None:
    """What the old hold had besides is counted for ever, and no guard of the schema can know."""
    await a_lapsed_hold_is_taken_over(bare_database, shortcuts.GIVES_BACK_SEATS_ONLY)
    assert {POOL_DRIFT, TOTAL_DRIFT} <= await bare_database.flaws()


async def test_a_takeover_frees_everything_the_old_hold_had(either_database: RaceDatabase) -> None:
    """Units and the buyer's total return with the seat, in one transaction."""
    await a_lapsed_hold_is_taken_over(either_database, AS_BUILT)
    assert not await either_database.flaws()


async def one_seat_of_a_sale_is_cancelled(database: RaceDatabase, shortcut: Shortcut) -> tuple[Booking, Any]:
    """No race: two seats sold, one cancelled, and a buyer who wants it."""
    sold = await database.held("A1", "A2")
    await database.done(a_confirm(sold))
    granted(await (await database.server(shortcut=shortcut)).submit(a_cancel(sold, "A1")).outcome())
    return sold, await database.tried(a_hold("A1"))


async def test_a_partial_cancel_that_keeps_the_pointer_pins_the_seat_for_good(bare_database: RaceDatabase) -> None:
    """A pointer to an ended booking is free, but this booking is active: no buyer can ever have the seat again."""
    _, taken = await one_seat_of_a_sale_is_cancelled(bare_database, shortcuts.KEEPS_THE_POINTER)
    assert isinstance(taken, SeatsTaken)
    assert PINNED in await bare_database.flaws()


async def test_a_cancelled_seat_is_free_and_the_other_stays_sold(either_database: RaceDatabase) -> None:
    """A partial cancel clears the pointers of the cancelled seats."""
    sold, taken = await one_seat_of_a_sale_is_cancelled(either_database, AS_BUILT)
    assert await either_database.owner("A1") == granted(taken).id
    assert await either_database.owner("A2") == sold.id
    assert not await either_database.flaws()
