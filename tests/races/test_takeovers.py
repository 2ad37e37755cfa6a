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

    from .support import House


async def confirm_begun_in_time_meets_a_finished_takeover(
    services: House, shortcut: Shortcut
) -> tuple[Booking, Any, Any]:
    """The confirm's moment is before the end, and when it comes to lock its booking the seat has a new owner."""
    old = await services.held("A1", units=1)
    confirming = (await services.payments("after begin")).ask(a_confirm(old))
    await confirming.reached("after begin")
    services.pass_the_end(old)
    holding = (await services.payments(shortcut=shortcut)).ask(a_hold("A1"))
    taken = await holding.outcome()
    return old, taken, await confirming.outcome()


async def test_a_takeover_that_leaves_the_old_hold_held_sells_the_seat_twice(bare_house: House) -> None:
    """Taking the seat is not enough: the old booking still says that it is held, and its confirm believes it."""
    old, taken, confirmed = await confirm_begun_in_time_meets_a_finished_takeover(
        bare_house, shortcuts.TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
    )
    granted(taken)
    assert granted(confirmed).id == old.id
    assert await bare_house.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_house.flaws()


async def test_the_schema_lets_no_seat_leave_a_booking_that_still_lives(services: House) -> None:
    """The last line: the seat's pointer does not move away from a held booking, due or not."""
    old, taken, confirmed = await confirm_begun_in_time_meets_a_finished_takeover(
        services, shortcuts.TAKES_OVER_WITHOUT_ENDING_THE_OLD_HOLD
    )
    assert refused_by(taken) == "seat_keeps_its_live_owner"
    assert granted(confirmed).id == old.id
    assert not await services.flaws()


async def test_a_takeover_ends_the_old_hold_and_its_late_confirm_is_told(either_house: House) -> None:
    """The old hold ends in the transaction that gives its seat away; a confirm that comes after finds it ended."""
    old, taken, confirmed = await confirm_begun_in_time_meets_a_finished_takeover(either_house, AS_BUILT)
    assert await either_house.owner("A1") == granted(taken).id
    assert isinstance(confirmed, BookingExpired)
    assert await either_house.state(old) == "expired"
    assert not await either_house.flaws()


async def extend_in_flight_meets_a_takeover(services: House, shortcut: Shortcut) -> tuple[Booking, Any, Any]:
    """The takeover looks when the hold's time is over, and waits for an extend that was in time."""
    old = await services.held("A1")
    await services.observer.execute(shortcut.prepare)
    extending = (await services.payments("before write", shortcut=shortcut)).ask(an_extend(old))
    await extending.reached("before write")
    services.pass_the_end(old)
    holding = (await services.payments(shortcut=shortcut)).ask(a_hold("A1"))
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
    bare_house: House, shortcut: Shortcut
) -> None:
    """A copy that was read before the wait is old after it, however faithfully the extend renews it."""
    old, extended, taken = await extend_in_flight_meets_a_takeover(bare_house, shortcut)
    assert granted(extended).expires_at > bare_house.clock.now()
    granted(taken)
    assert await bare_house.state(old) == "expired"


async def test_an_extended_hold_keeps_its_seat(either_house: House) -> None:
    """After the wait the locked row is judged: it has time left, so the seat is taken."""
    old, extended, taken = await extend_in_flight_meets_a_takeover(either_house, AS_BUILT)
    assert granted(extended).expires_at > either_house.clock.now()
    assert isinstance(taken, SeatsTaken)
    assert await either_house.state(old) == "held"
    assert await either_house.owner("A1") == old.id
    assert not await either_house.flaws()


async def confirm_in_flight_meets_a_takeover(services: House, shortcut: Shortcut) -> tuple[Booking, Any, Any]:
    """The confirm has locked its booking in time; the takeover sees it due, waits, and gets the lock after it."""
    old = await services.held("A1", units=1)
    confirming = (await services.payments("before write")).ask(a_confirm(old))
    await confirming.reached("before write")
    services.pass_the_end(old)
    holding = (await services.payments(shortcut=shortcut)).ask(a_hold("A1"))
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
async def test_ending_what_looked_due_before_the_wait_loses_a_sale(bare_house: House, shortcut: Shortcut) -> None:
    """An acknowledged confirm is gone, and the counts with it: whoever waited must judge what is there now."""
    old, confirmed, taken = await confirm_in_flight_meets_a_takeover(bare_house, shortcut)
    assert granted(confirmed).id == old.id
    granted(taken)
    assert await bare_house.state(old) == "expired"
    assert {POOL_DRIFT, RESOLVED_TWICE} <= await bare_house.flaws()


@pytest.mark.parametrize(
    "shortcut",
    [
        pytest.param(shortcuts.FLIPS_WHATEVER_IT_FINDS, id="flips-whatever-it-finds"),
        pytest.param(shortcuts.LOCKS_AND_READS_AT_ONCE, id="locks-and-reads-at-once"),
    ],
)
async def test_the_schema_lets_no_sale_expire(services: House, shortcut: Shortcut) -> None:
    """The last line: from confirmed, no move leads to expired."""
    old, confirmed, taken = await confirm_in_flight_meets_a_takeover(services, shortcut)
    assert granted(confirmed).id == old.id
    assert refused_by(taken) == "booking_moves_along_an_edge"
    assert await services.state(old) == "confirmed"
    assert not await services.flaws()


async def test_a_confirm_that_locked_first_keeps_its_seat(either_house: House) -> None:
    """The takeover judges the locked row after the wait, finds it sold, and is refused."""
    old, confirmed, taken = await confirm_in_flight_meets_a_takeover(either_house, AS_BUILT)
    assert granted(confirmed).id == old.id
    assert isinstance(taken, SeatsTaken)
    assert await either_house.state(old) == "confirmed"
    assert await either_house.owner("A1") == old.id
    assert not await either_house.flaws()


async def takeover_in_flight_meets_a_confirm(services: House, shortcut: Shortcut, ask: Any) -> tuple[Booking, Any, Any]:
    """The takeover has ended the hold and not committed; a confirm or extend from before the end comes to it."""
    old = await services.held("A1")
    late = (await services.payments("after begin", shortcut=shortcut)).ask(ask(old))
    await late.reached("after begin")
    services.pass_the_end(old)
    holding = (await services.payments("after write")).ask(a_hold("A1"))
    await holding.reached("after write")
    late.go()
    await late.waits_for_a_lock()
    taken = await holding.outcome()
    return old, taken, await late.outcome()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_deciding_on_an_unlocked_read_sells_the_seat_twice(bare_house: House, ask: Any) -> None:
    """The read shows the hold as it was before the takeover, and the write brings it back to life without its seat."""
    old, taken, late = await takeover_in_flight_meets_a_confirm(bare_house, shortcuts.DECIDES_UNLOCKED, ask)
    granted(taken)
    assert granted(late).id == old.id
    assert await bare_house.live_owners("A1") == 2
    assert {TWO_OWNERS, TOTAL_DRIFT} <= await bare_house.flaws()


@pytest.mark.parametrize(
    "ask, guard",
    [(a_confirm, "booking_reclaims_every_seat"), (an_extend, "booking_moves_along_an_edge")],
)
async def test_the_schema_brings_no_booking_back_without_its_seats(services: House, ask: Any, guard: str) -> None:
    """The last line: an expired booking is not held again, and is confirmed only with every seat it lists."""
    old, taken, late = await takeover_in_flight_meets_a_confirm(services, shortcuts.DECIDES_UNLOCKED, ask)
    granted(taken)
    assert refused_by(late) == guard
    assert await services.state(old) == "expired"
    assert not await services.flaws()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_a_takeover_that_locked_first_keeps_the_seat(either_house: House, ask: Any) -> None:
    """Confirm and extend lock, wait, and judge what the takeover has made of the booking."""
    old, taken, late = await takeover_in_flight_meets_a_confirm(either_house, AS_BUILT, ask)
    assert await either_house.owner("A1") == granted(taken).id
    assert isinstance(late, BookingExpired)
    assert await either_house.state(old) == "expired"
    assert not await either_house.flaws()


async def a_lapsed_hold_is_taken_over(services: House, shortcut: Shortcut) -> None:
    """No race: one takeover, of a booking with a seat and units."""
    old = await services.held("A1", units=2)
    services.pass_the_end(old)
    granted(await (await services.payments(shortcut=shortcut)).ask(a_hold("A1")).outcome())


async def test_a_takeover_that_gives_back_only_the_seats_loses_stock(bare_house: House) -> None:
    """What the old hold had besides is counted for ever, and no guard of the schema can know."""
    await a_lapsed_hold_is_taken_over(bare_house, shortcuts.GIVES_BACK_SEATS_ONLY)
    assert {POOL_DRIFT, TOTAL_DRIFT} <= await bare_house.flaws()


async def test_a_takeover_gives_back_everything_the_old_hold_had(either_house: House) -> None:
    """Units and the buyer's total return with the seat, in one transaction."""
    await a_lapsed_hold_is_taken_over(either_house, AS_BUILT)
    assert not await either_house.flaws()


async def one_seat_of_a_sale_is_cancelled(services: House, shortcut: Shortcut) -> tuple[Booking, Any]:
    """No race: two seats sold, one cancelled, and somebody who wants it."""
    sold = await services.held("A1", "A2")
    await services.done(a_confirm(sold))
    granted(await (await services.payments(shortcut=shortcut)).ask(a_cancel(sold, "A1")).outcome())
    return sold, await services.tried(a_hold("A1"))


async def test_a_partial_cancel_that_keeps_the_pointer_pins_the_seat_for_good(bare_house: House) -> None:
    """A pointer to an ended booking is free, but this booking lives on: nobody can ever have the seat again."""
    _, taken = await one_seat_of_a_sale_is_cancelled(bare_house, shortcuts.KEEPS_THE_POINTER)
    assert isinstance(taken, SeatsTaken)
    assert PINNED in await bare_house.flaws()


async def test_a_cancelled_seat_is_free_and_the_other_stays_sold(either_house: House) -> None:
    """A partial cancel clears the pointers of what goes back."""
    sold, taken = await one_seat_of_a_sale_is_cancelled(either_house, AS_BUILT)
    assert await either_house.owner("A1") == granted(taken).id
    assert await either_house.owner("A2") == sold.id
    assert not await either_house.flaws()
