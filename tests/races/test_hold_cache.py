"""What a process remembers of its own holds is only a guess as well: it spares a look, and moves nothing that moved."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.state_machine import State
from earmark.engine.commands import Decided, Replayed
from earmark.engine.engine import Engine
from earmark.engine.verbs.confirm import confirm
from earmark.errors import BookingExpired, BookingResolved, BookingUnknown, PaymentUsed

from . import shortcuts
from .commands import IDS, SHOP, a_cancel, a_confirm, a_hold, a_release, an_extend
from .optimistic_writes import idempotency
from .support import AS_BUILT, Shortcut, granted

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.booking import Booking
    from earmark.engine.commands import Command

    from .support import House, Till


async def holding(services: House, *seats: str, units: int = 0, shortcut: Shortcut = AS_BUILT) -> tuple[Till, Booking]:
    """A till that has just written a hold."""
    await services.observer.execute(shortcut.prepare)
    payments = await services.payments(drafts=True, memory=True, connections_max=6, shortcut=shortcut)
    held = granted(await payments.ask(a_hold(*seats, units=units)).outcome())
    payments.store.ran.clear()
    return payments, held


async def state_of(services: House, booking: Booking) -> str:
    return str(await services.observer.fetchval("SELECT state FROM bookings WHERE id = $1", booking.id))


@pytest.mark.parametrize("ask, state", [(a_confirm, "confirmed"), (a_release, "released"), (an_extend, "held")])
async def test_what_follows_on_a_hold_needs_no_look(
    either_house: House, ask: Callable[[Booking], Command], state: str
) -> None:
    """One call; and seats, units and totals come out as they should."""
    payments, held = await holding(either_house, "A1", "A2", units=2)
    moved = granted(await payments.ask(ask(held)).outcome())
    assert payments.store.ran == ["memory"]
    assert (moved.version, await state_of(either_house, held)) == (2, state)
    assert not await either_house.flaws()


async def test_what_has_moved_is_looked_at(services: House) -> None:
    """A sale is not remembered: what follows on it is rare."""
    payments, held = await holding(services, "A1")
    sold = granted(await payments.ask(a_confirm(held)).outcome())
    assert granted(await payments.ask(a_cancel(sold)).outcome()).state is State.CANCELLED
    assert payments.store.ran == ["memory", "look"]
    assert not await services.flaws()


@pytest.mark.parametrize(
    "change, told",
    [
        pytest.param(a_release, BookingResolved, id="released"),
        pytest.param(lambda held: a_confirm(held, payment_id="other"), BookingResolved, id="sold"),
    ],
)
async def test_memory_moves_nothing_that_another_process_has_moved(
    either_house: House, change: Callable[[Booking], Command], told: type[Exception]
) -> None:
    """It believes the booking to be held; the write compares, and locks decide."""
    payments, held = await holding(either_house, "A1")
    await either_house.tried(change(held))
    assert isinstance(await payments.ask(a_confirm(held)).outcome(), told)
    assert payments.store.ran[:2] == ["memory", "locks"]
    assert not await either_house.flaws()


async def test_without_the_version_memory_takes_back_what_another_did(bare_house: House) -> None:
    """The control: a hold that was let go, and whose seat is another's by now, is sold."""
    payments, held = await holding(bare_house, "A1", shortcut=shortcuts.FORGETS_THE_VERSION)
    await bare_house.tried(a_release(held))
    granted(await bare_house.tried(a_hold("A1", buyer="cid")))
    granted(await payments.ask(a_confirm(held)).outcome())
    assert payments.store.ran == ["memory"]
    assert await bare_house.flaws()


async def test_an_extension_elsewhere_is_kept(either_house: House) -> None:
    """Memory has the old time; what is sold has the new one in its story."""
    payments, held = await holding(either_house, "A1")
    longer = granted(await either_house.tried(an_extend(held)))
    sold = granted(await payments.ask(a_confirm(held)).outcome())
    assert (sold.version, sold.expires_at) == (3, longer.expires_at)
    assert not await either_house.flaws()


async def test_a_time_that_a_hand_has_changed_is_noticed(services: House) -> None:
    """It changed no version, and ended the hold."""
    payments, held = await holding(services, "A1")
    await services.observer.execute("UPDATE bookings SET expires_at = created_at WHERE id = $1", held.id)
    assert isinstance(await payments.ask(a_confirm(held)).outcome(), BookingExpired)
    assert not await services.flaws()


async def test_without_the_time_memory_sells_what_a_hand_has_ended(bare_house: House) -> None:
    """The control."""
    payments, held = await holding(bare_house, "A1", shortcut=shortcuts.FORGETS_THE_TIME)
    await bare_house.observer.execute("UPDATE bookings SET expires_at = created_at WHERE id = $1", held.id)
    granted(await payments.ask(a_confirm(held)).outcome())


async def test_memory_refuses_nobody(services: House) -> None:
    """It believes that the hold has run out; another process gave it more time."""
    payments, held = await holding(services, "A1")
    granted(await services.tried(an_extend(held, seconds=600)))
    services.clock.advance(61)
    assert granted(await payments.ask(a_confirm(held)).outcome()).state is State.CONFIRMED
    assert not await services.flaws()


async def test_a_hold_that_ran_out_is_not_sold(services: House) -> None:
    """By the clock of the server, with or without a memory of it."""
    payments, held = await holding(services, "A1")
    services.clock.advance(61)
    assert isinstance(await payments.ask(a_confirm(held)).outcome(), BookingExpired)
    assert await state_of(services, held) == "expired"
    assert not await services.flaws()


async def test_a_clock_that_is_wrong_sells_nothing_late(services: House) -> None:
    """The moment that memory reckons is compared with the server's own."""
    payments, held = await holding(services, "A1")
    services.clock.advance(61)
    clock = payments.store._recall._clock
    assert clock is not None
    payments.store._recall._clock = (clock[0] - timedelta(seconds=30), clock[1])
    assert isinstance(await payments.ask(a_confirm(held)).outcome(), BookingExpired)
    assert not await services.flaws()


async def test_a_key_has_one_effect_and_one_answer(either_house: House) -> None:
    """The twin was answered by another process; memory knows nothing of it."""
    payments, held = await holding(either_house, "A1")
    ask = msgspec.structs.replace(a_confirm(held), idempotency=idempotency())
    first = await either_house.tried(ask)
    again = await payments.ask(msgspec.structs.replace(ask, entry_id=IDS.entry_id())).outcome()
    assert isinstance(again, Replayed)
    assert isinstance(first, Decided)
    assert again.record == first.record
    assert not await either_house.flaws()


async def test_a_payment_that_is_used_elsewhere_is_refused(either_house: House) -> None:
    """Memory takes every payment to be free; the write does not."""
    payments, held = await holding(either_house, "A1")
    other = granted(await either_house.tried(a_hold("A2", buyer="cid")))
    granted(await either_house.tried(a_confirm(other, payment_id="paid-1")))
    assert isinstance(await payments.ask(a_confirm(held, payment_id="paid-1")).outcome(), PaymentUsed)
    assert await state_of(either_house, held) == "held"
    assert not await either_house.flaws()


async def test_a_stranger_is_told_nothing(services: House) -> None:
    """Who may see a booking is judged on what is remembered, and refused on a look."""
    payments, held = await holding(services, "A1")
    stranger = msgspec.structs.replace(a_confirm(held), actor=msgspec.structs.replace(SHOP, live=False))
    assert isinstance(await payments.ask(stranger).outcome(), BookingUnknown)
    assert payments.store.ran == ["memory", "look"]


async def test_two_who_want_the_same_booking_are_told_of_each_other(services: House) -> None:
    """In one batch: the second finds its work done, which is looked at."""
    payments, held = await holding(services, "A1")
    engine = Engine(payments.store, ids=IDS, lanes=1)
    asks = [a_confirm(held), a_confirm(held)]
    outcomes = await engine.run(confirm, lambda: asks, draft=True)
    assert [granted(outcome).version for outcome in outcomes] == [2, 2]
    assert payments.store.ran == ["memory", "look"]
    assert not await services.flaws()


async def test_only_the_newest_holds_are_remembered(services: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process does not grow with what it sells."""
    payments, oldest = await holding(services, "A1")
    recall = payments.store._recall
    monkeypatch.setattr(recall, "_bookings_max", 2)
    newer = [granted(await payments.ask(a_hold(seat, buyer=seat)).outcome()) for seat in ("A2", "A3")]
    assert list(recall._bookings) == [held.id for held in newer]
    granted(await payments.ask(a_confirm(oldest)).outcome())
    assert payments.store.ran[-1] == "look"
