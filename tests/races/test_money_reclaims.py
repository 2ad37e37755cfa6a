"""Late money re-claims an expired booking, while other buyers want its seats: the second transaction notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.domain.payment import PaymentState
from earmark.errors import BookingExpired, SeatsTaken

from . import shortcuts
from .commands import a_block, a_cancel, a_confirm, a_hold
from .support import AS_BUILT, BLOCKED_AND_OWNED, TOTAL_DRIFT, TWO_OWNERS, Shortcut, granted, refused_by

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment

    from .bank import Shop
    from .support import RaceDatabase


async def assert_sold(shop: Shop, booking: Booking, payment: Payment) -> None:
    """It was re-claimed with its seats, and its money stays."""
    assert await shop.database.state(booking) == "confirmed"
    assert await shop.refunds(payment) == []
    await shop.settle_down()
    await shop.assert_books_agree()


async def assert_refunded(shop: Shop, booking: Booking, payment: Payment) -> None:
    """It was not re-claimed, and its money is refunded, once."""
    await shop.settle_down()
    assert await shop.database.state(booking) == "expired"
    assert (await shop.payment(payment)).state is PaymentState.REFUNDED
    assert len(await shop.refunds(payment)) == 1
    await shop.assert_books_agree()


async def a_hold_saw_the_seat_before_it_was_reclaimed(
    shop: Shop, *, hold: Shortcut = AS_BUILT, reclaim: Shortcut = AS_BUILT
) -> tuple[Booking, Payment, Any]:
    """The hold looks; the re-claim has the seat; the hold waits for it; the re-claim commits."""
    booking, payment = await shop.taken_late("A1")
    holding = (await shop.database.server("before lock_seats", shortcut=hold)).submit(a_hold("A1"))
    await holding.reached("before lock_seats")
    coming_back = (await shop.payment_process("after write", shortcut=reclaim)).drive(payment)
    await coming_back.reached("after write")
    holding.go()
    await holding.waits_for_a_lock()
    heard = await coming_back.outcome()
    assert heard.state is PaymentState.CAPTURED, repr(heard)
    return booking, payment, await holding.outcome()


async def test_a_hold_that_compares_the_pointer_only_takes_a_sold_seat(bare_shop: Shop) -> None:
    """The pointer is as it was, for the re-claimed booking is the one that it pointed to."""
    booking, _, taken = await a_hold_saw_the_seat_before_it_was_reclaimed(
        bare_shop, hold=shortcuts.COMPARES_THE_POINTER_ONLY
    )
    granted(taken)
    assert await bare_shop.database.state(booking) == "confirmed"
    assert TWO_OWNERS in await bare_shop.database.flaws()


async def test_a_reclaim_that_raises_no_fence_loses_its_seat(bare_shop: Shop) -> None:
    """A lock is not enough: the transaction that waited for it finds the seat as it read it."""
    booking, _, taken = await a_hold_saw_the_seat_before_it_was_reclaimed(
        bare_shop, reclaim=shortcuts.RECLAIMS_WITHOUT_RAISING_THE_FENCE
    )
    granted(taken)
    assert await bare_shop.database.state(booking) == "confirmed"
    assert TWO_OWNERS in await bare_shop.database.flaws()


async def test_the_schema_lets_no_hold_take_a_re_claimed_seat(shop: Shop) -> None:
    """The last line: the seat stays with its active owner."""
    booking, payment, taken = await a_hold_saw_the_seat_before_it_was_reclaimed(
        shop, hold=shortcuts.COMPARES_THE_POINTER_ONLY
    )
    assert refused_by(taken) == "seat_keeps_its_active_owner"
    await assert_sold(shop, booking, payment)


async def test_the_schema_raises_the_fence_of_a_re_claimed_seat(shop: Shop) -> None:
    """The schema's guard of the other side: a confirm of an expired booking raises its seats' fences."""
    booking, payment, taken = await a_hold_saw_the_seat_before_it_was_reclaimed(
        shop, reclaim=shortcuts.RECLAIMS_WITHOUT_RAISING_THE_FENCE
    )
    assert isinstance(taken, SeatsTaken)
    await assert_sold(shop, booking, payment)


async def test_a_hold_finds_that_the_seat_was_re_claimed(either_shop: Shop) -> None:
    """The fence has risen: it reads again, and is refused."""
    booking, payment, taken = await a_hold_saw_the_seat_before_it_was_reclaimed(either_shop)
    assert isinstance(taken, SeatsTaken)
    await assert_sold(either_shop, booking, payment)


async def a_hold_has_the_seat_when_money_comes(shop: Shop, reclaim: Shortcut) -> tuple[Booking, Payment, Any, Any]:
    """The hold has locked the seat and not written; the re-claim saw its own pointer there, and goes on."""
    booking, payment = await shop.taken_late("A1")
    holding = (await shop.database.server("before write")).submit(a_hold("A1"))
    await holding.reached("before write")
    coming_back = (await shop.payment_process(shortcut=reclaim)).drive(payment)
    if reclaim is AS_BUILT or await _has_guards(shop.database):
        await coming_back.waits_for_a_lock()
        taken = await holding.outcome()
        return booking, payment, taken, await coming_back.outcome()
    heard = await coming_back.outcome()
    return booking, payment, await holding.outcome(), heard


async def _has_guards(database: RaceDatabase) -> bool:
    found = await database.observer.fetchval(
        "SELECT count(*) FROM pg_trigger WHERE tgname = 'booking_reclaims_every_seat'"
    )
    return bool(found)


async def test_a_reclaim_that_leaves_the_seats_alone_sells_one_twice(bare_shop: Shop) -> None:
    """They point to the booking already; but a hold that has read one of them would take it."""
    booking, _, taken, heard = await a_hold_has_the_seat_when_money_comes(
        bare_shop, shortcuts.RECLAIMS_WITHOUT_TOUCHING_THE_SEATS
    )
    granted(taken)
    assert heard.state is PaymentState.CAPTURED
    assert await bare_shop.database.state(booking) == "confirmed"
    assert TWO_OWNERS in await bare_shop.database.flaws()


async def test_the_schema_re_claims_no_booking_without_its_seats(shop: Shop) -> None:
    """The schema's guard: it locks the seats itself, and finds that one is taken."""
    booking, _, taken, heard = await a_hold_has_the_seat_when_money_comes(
        shop, shortcuts.RECLAIMS_WITHOUT_TOUCHING_THE_SEATS
    )
    granted(taken)
    assert refused_by(heard) == "booking_reclaims_every_seat"
    assert await shop.database.state(booking) == "expired"
    assert not await shop.database.flaws()


async def test_a_hold_that_locked_the_seat_keeps_it_and_the_money_is_refunded(either_shop: Shop) -> None:
    """The re-claim waits, finds that the seat has moved, looks again, and finds it taken."""
    booking, payment, taken, _ = await a_hold_has_the_seat_when_money_comes(either_shop, AS_BUILT)
    assert await either_shop.database.owner("A1") == granted(taken).id
    await assert_refunded(either_shop, booking, payment)


async def two_lost_bookings_of_one_seat(
    shop: Shop, shortcut: Shortcut
) -> tuple[tuple[Booking, Payment], tuple[Booking, Payment]]:
    """The seat points to the younger, which is being re-claimed; the elder, which saw it expired, waits for it."""
    elder = await shop.taken_late("A1")
    younger = await shop.taken_late("A1", buyer="bob")
    second = (await shop.payment_process("before lock_seats", shortcut=shortcut)).drive(elder[1])
    await second.reached("before lock_seats")
    first = (await shop.payment_process("after write", shortcut=shortcut)).drive(younger[1])
    await first.reached("after write")
    second.go()
    await second.waits_for_a_lock()
    await first.outcome()
    await second.outcome()
    return elder, younger


async def test_two_reclaims_that_raise_no_fence_sell_the_seat_twice(bare_shop: Shop) -> None:
    """The pointer is the same before and after the younger was re-claimed, and the elder takes the seat from it."""
    elder, younger = await two_lost_bookings_of_one_seat(bare_shop, shortcuts.RECLAIMS_WITHOUT_RAISING_THE_FENCE)
    assert await bare_shop.database.state(elder[0]) == await bare_shop.database.state(younger[0]) == "confirmed"
    assert TWO_OWNERS in await bare_shop.database.flaws()


async def test_of_two_reclaims_of_one_seat_one_gets_it_and_the_other_its_money(either_shop: Shop) -> None:
    """The second finds the fence raised, and then the seat taken."""
    elder, younger = await two_lost_bookings_of_one_seat(either_shop, AS_BUILT)
    assert await either_shop.database.state(younger[0]) == "confirmed"
    await assert_refunded(either_shop, *elder)


async def reclaim_and_batch_collide(shop: Shop, *, own_first: bool) -> tuple[Booking, Payment, Any, Any]:
    """The seat's lapsed owner is older, by its id, than the re-claimed booking. A batch names both."""
    early = a_hold("A1", buyer="bob")
    booking, payment = await shop.taken_late("A1")
    owner = await shop.database.done(early)
    assert owner.id < booking.id
    shop.database.pass_the_end(owner)
    stop = "after its first lock" if own_first else "after lock_bookings"
    shortcut = shortcuts.locks_its_booking_first(booking.id) if own_first else AS_BUILT
    coming_back = (await shop.payment_process(stop, shortcut=shortcut)).drive(payment)
    await coming_back.reached(stop)
    batch = (await shop.database.server()).submit_batch(a_confirm(owner), a_confirm(booking))
    await batch.waits_for_a_lock()
    return booking, payment, await coming_back.outcome(), await batch.outcome()


async def test_a_reclaim_that_locks_its_booking_and_then_the_owner_deadlocks(bare_shop: Shop) -> None:
    """The batch locks by id: it has the owner and wants the booking."""
    _, _, *outcomes = await reclaim_and_batch_collide(bare_shop, own_first=True)
    assert [type(outcome) for outcome in outcomes].count(asyncpg.DeadlockDetectedError) == 1, outcomes
    assert await bare_shop.database.deadlocks() == 1


async def test_a_reclaim_locks_its_booking_and_the_owner_by_id(either_shop: Shop) -> None:
    """The batch waits for the first of them, and finds one ended and the other sold."""
    booking, payment, _, (of_owner, of_booking) = await reclaim_and_batch_collide(either_shop, own_first=False)
    assert isinstance(of_owner, BookingExpired)
    assert of_booking.code == "booking_resolved"
    await assert_sold(either_shop, booking, payment)
    assert await either_shop.database.deadlocks() == 0


async def an_operator_blocks_what_is_being_re_claimed(shop: Shop, shortcut: Shortcut) -> tuple[Booking, Payment]:
    """The re-claim saw the seat on sale; the block commits before the seat is locked."""
    booking, payment = await shop.taken_late("A1")
    coming_back = (await shop.payment_process("before lock_seats", shortcut=shortcut)).drive(payment)
    await coming_back.reached("before lock_seats")
    granted(await (await shop.database.server()).submit(a_block("A1")).outcome())
    await coming_back.outcome()
    return booking, payment


async def test_a_reclaim_that_ignores_the_block_sells_a_blocked_seat(bare_shop: Shop) -> None:
    """Neither pointer nor fence shows a block."""
    booking, _ = await an_operator_blocks_what_is_being_re_claimed(bare_shop, shortcuts.IGNORES_THE_BLOCK)
    assert await bare_shop.database.state(booking) == "confirmed"
    assert BLOCKED_AND_OWNED in await bare_shop.database.flaws()


async def test_a_seat_that_is_blocked_meanwhile_is_not_re_claimed(either_shop: Shop) -> None:
    """It has moved; the next look shows it blocked."""
    booking, payment = await an_operator_blocks_what_is_being_re_claimed(either_shop, AS_BUILT)
    await assert_refunded(either_shop, booking, payment)


async def test_a_re_claimed_seat_is_not_blocked(either_shop: Shop) -> None:
    """The other way round: the operator saw it free, waits, looks again, and is refused."""
    booking, payment = await either_shop.taken_late("A1")
    blocking = (await either_shop.database.server("before lock_seats")).submit(a_block("A1"))
    await blocking.reached("before lock_seats")
    coming_back = (await either_shop.payment_process("after write")).drive(payment)
    await coming_back.reached("after write")
    blocking.go()
    await blocking.waits_for_a_lock()
    await coming_back.outcome()
    assert isinstance(await blocking.outcome(), SeatsTaken)
    await assert_sold(either_shop, booking, payment)


async def test_a_seat_whose_cancel_is_not_committed_is_still_taken(either_shop: Shop) -> None:
    """A partial cancel that has not committed has freed nothing: late money does not wait for it."""
    booking, payment = await either_shop.taken_late("A1")
    other, _ = await either_shop.sold("A1", "A2", buyer="bob")
    undoing = (await either_shop.database.server("after write")).submit(a_cancel(other, "A1"))
    await undoing.reached("after write")
    await either_shop.first.drive(payment).outcome()
    granted(await undoing.outcome())
    await assert_refunded(either_shop, booking, payment)


async def test_a_re_claimed_booking_is_cancelled_in_part_only_afterwards(either_shop: Shop) -> None:
    """The cancel waits for the booking, finds it sold and paid, and refunds the part."""
    booking, payment = await either_shop.taken_late("A1", "A2")
    coming_back = (await either_shop.payment_process("after write")).drive(payment)
    await coming_back.reached("after write")
    undoing = (await either_shop.database.server()).submit(a_cancel(booking, "A1"))
    await undoing.waits_for_a_lock()
    await coming_back.outcome()
    assert granted(await undoing.outcome()).total == 1000
    await either_shop.settle_down()
    assert [refund.amount for refund in await either_shop.refunds(payment)] == [1000]
    await either_shop.assert_books_agree()


async def a_sweeper_ends_the_lapsed_owner(shop: Shop, shortcut: Shortcut) -> tuple[Booking, Payment, Booking]:
    """The sweeper has the lapsed owner of the seat; the re-claim wants to end it too, and waits."""
    booking, payment = await shop.taken_late("A1", units=1)
    owner = await shop.database.held("A1", buyer="bob", units=1)
    shop.database.pass_the_end(owner)
    sweeping = (await shop.database.server("after lock_due")).sweep()
    await sweeping.reached("after lock_due")
    coming_back = (await shop.payment_process(shortcut=shortcut)).drive(payment)
    await coming_back.waits_for_a_lock()
    assert [swept.id for swept in await sweeping.outcome()] == [owner.id]
    await coming_back.outcome()
    return booking, payment, owner


async def test_a_reclaim_that_ends_an_expired_owner_again_frees_too_much(bare_shop: Shop) -> None:
    """What looked lapsed before the wait is ended twice, and its units and its buyer's total return twice."""
    *_, owner = await a_sweeper_ends_the_lapsed_owner(bare_shop, shortcuts.FLIPS_WHICHEVER_OWNER_IT_FINDS)
    assert (await bare_shop.database.verbs(owner)).count("expire") == 2
    assert TOTAL_DRIFT in await bare_shop.database.flaws()


async def test_a_reclaim_takes_the_seat_of_an_expired_owner(either_shop: Shop) -> None:
    """After the wait it is ended already, and its seat is free."""
    booking, payment, owner = await a_sweeper_ends_the_lapsed_owner(either_shop, AS_BUILT)
    assert (await either_shop.database.verbs(owner)).count("expire") == 1
    await assert_sold(either_shop, booking, payment)
