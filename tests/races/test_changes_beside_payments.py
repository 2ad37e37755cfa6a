"""A hold is changed while it is paid for, or while late money comes for one of the seats that it is to get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import PaymentInProgress, SeatsTaken

from . import shortcuts
from .bank import a_pay, opened
from .commands import a_change
from .support import AS_BUILT, PINNED, POOL_DRIFT, TWO_OWNERS, Shortcut, granted
from .test_changes_of_one_booking import changing_to, seats_of

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.payment import Payment

    from .bank import Shop
    from .support import Server


async def pay_and_change_collide(shop: Shop, *, pay_first: bool) -> tuple[Booking, Any, Any]:
    """One of the two has the booking and has not written; the other comes, and waits for it."""
    held = await shop.database.held("A1", units=1)
    changing = await shop.database.server("before write")
    paying = (await shop.payment_process("before write")).server

    def begin(server: Server) -> None:
        if server is changing:
            server.submit(a_change(held, add=["A2", "A3"], units=0))
        else:
            server._begin(opened(server.engine, a_pay(held)))

    ahead, behind = (paying, changing) if pay_first else (changing, paying)
    begin(ahead)
    await ahead.reached("before write")
    begin(behind)
    await behind.waits_for_a_lock()
    await ahead.outcome()
    await behind.outcome()
    return held, await changing.outcome(), await paying.outcome()


async def assert_paid_what_is_sold(shop: Shop, booking: Booking, payment: Payment, *, seats: list[str]) -> None:
    """To its end: the bank has the total of the lines that are sold, and the seats point to their booking."""
    await shop.settle_down()
    sold = await shop.database.booking(booking)
    assert (sold.state, seats_of(sold)) == ("confirmed", seats)
    assert sold.total == sold.lines.total == shop.bank.accounts[payment.id].kept
    await shop.assert_books_agree()


async def test_a_payment_that_is_opened_on_an_unlocked_read_is_not_for_what_is_held(bare_shop: Shop) -> None:
    """It is for the lines of before the change, and writes them back over the new ones."""
    held = await bare_shop.database.held("A1", units=1)
    place = "after lock_bookings"
    paying = (await bare_shop.payment_process(place, shortcut=shortcuts.DECIDES_UNLOCKED)).server
    paying._begin(opened(paying.engine, a_pay(held)))
    await paying.reached(place)
    changed = await bare_shop.database.done(a_change(held, add=["A2", "A3"], units=0))
    payment = await paying.outcome()
    assert payment.amount == held.total < changed.total
    assert {POOL_DRIFT, PINNED} <= await bare_shop.database.flaws()


async def test_a_payment_that_comes_during_a_change_is_for_the_new_total(either_shop: Shop) -> None:
    """It waits for the booking, and finds it with other lines: those are paid for and sold."""
    held, changed, payment = await pay_and_change_collide(either_shop, pay_first=False)
    assert payment.amount == granted(changed).total == 3000
    await assert_paid_what_is_sold(either_shop, held, payment, seats=["A1", "A2", "A3"])
    assert await either_shop.database.deadlocks() == 0


async def test_a_change_that_comes_while_a_payment_is_opened_is_refused(either_shop: Shop) -> None:
    """The booking is being paid for, as it is, and sold so."""
    held, changed, payment = await pay_and_change_collide(either_shop, pay_first=True)
    assert isinstance(changed, PaymentInProgress)
    assert payment.amount == held.total
    await assert_paid_what_is_sold(either_shop, held, payment, seats=["A1"])
    assert await either_shop.database.deadlocks() == 0


@pytest.mark.parametrize("place", ["after begin", "after read_bookings", "after read_seats"])
async def test_a_change_that_read_the_hold_before_it_was_paid_for_is_refused(either_shop: Shop, place: str) -> None:
    """The payment is opened between its reads and its lock."""
    held = await either_shop.database.held("A1")
    changing = await changing_to(either_shop.database, a_change(held, add=["A2"]), place)
    payment = await either_shop.opened(held)
    assert isinstance(await changing.outcome(), PaymentInProgress)
    await assert_paid_what_is_sold(either_shop, held, payment, seats=["A1"])


async def a_change_saw_the_seat_before_it_was_reclaimed(
    shop: Shop, *, change: Shortcut = AS_BUILT
) -> tuple[Booking, Booking, Payment, Any]:
    """The change looks; late money has the expired booking's seat; the change waits for it; the money is committed."""
    lost, payment = await shop.taken_late("A1")
    held = await shop.database.held("A2", buyer="bob")
    changing = (await shop.database.server("before lock_seats", shortcut=change)).submit(
        a_change(held, add=["A1"], drop=["A2"])
    )
    await changing.reached("before lock_seats")
    coming_back = (await shop.payment_process("after write")).drive(payment)
    await coming_back.reached("after write")
    changing.go()
    await changing.waits_for_a_lock()
    await coming_back.outcome()
    return held, lost, payment, await changing.outcome()


async def test_a_change_that_compares_the_pointer_only_takes_a_sold_seat(bare_shop: Shop) -> None:
    """The pointer is as it was, for the re-claimed booking is the one that it pointed to."""
    _, lost, _, changed = await a_change_saw_the_seat_before_it_was_reclaimed(
        bare_shop, change=shortcuts.COMPARES_THE_POINTER_ONLY
    )
    granted(changed)
    assert await bare_shop.database.state(lost) == "confirmed"
    assert TWO_OWNERS in await bare_shop.database.flaws()


async def test_a_change_finds_that_the_seat_was_re_claimed(either_shop: Shop) -> None:
    """The fence has risen: it reads again, is refused, and keeps its own seat."""
    held, lost, payment, changed = await a_change_saw_the_seat_before_it_was_reclaimed(either_shop)
    assert isinstance(changed, SeatsTaken)
    assert await either_shop.database.booking(held) == held
    assert await either_shop.database.state(lost) == "confirmed"
    assert await either_shop.refunds(payment) == []
    await either_shop.settle_down()
    await either_shop.assert_books_agree()


async def test_late_money_waits_for_a_change_that_has_its_seat_and_goes_back(either_shop: Shop) -> None:
    """The other way round: the seat has moved, and then it is taken."""
    lost, payment = await either_shop.taken_late("A1")
    held = await either_shop.database.held("A2", buyer="bob")
    changing = await changing_to(either_shop.database, a_change(held, add=["A1"], drop=["A2"]))
    coming_back = (await either_shop.payment_process()).drive(payment)
    await coming_back.waits_for_a_lock()
    granted(await changing.outcome())
    await coming_back.outcome()
    await either_shop.settle_down()
    assert await either_shop.database.state(lost) == "expired"
    assert await either_shop.database.owner("A1") == held.id
    assert len(await either_shop.refunds(payment)) == 1
    await either_shop.assert_books_agree()
