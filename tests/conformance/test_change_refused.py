"""Why a hold is not changed, over every store, and that a refused change changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark.domain import booking as booking_rules
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Decided, KeyedRequest, Pay, Replayed
from earmark.engine.verbs.change import change
from earmark.errors import (
    BookingExpired,
    BookingResolved,
    BookingUnknown,
    IdempotencyMismatch,
    InvalidRequest,
    PaymentInProgress,
    PoolUnknown,
    SeatsTaken,
    SeatUnknown,
    TotalChanged,
)
from earmark.payments.open_and_conclude_payment import open_payment

from .conftest import OF_EACH_DATABASE, SHOP

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), OF_EACH_DATABASE]

Memos = Callable[..., KeyedRequest]
ASKED: dict[str, dict[str, Any]] = {
    "add": {"add": ["A3"]},
    "drop": {"drop": ["A1"]},
    "exchange": {"add": ["A3"], "drop": ["A1"]},
    "more units": {"pools": {"GA": 5}},
    "nothing new": {"add": ["A1"], "pools": {"GA": 2}},
}


async def begin_to_pay(shop: Shop, booking: Booking) -> None:
    """The payment is recorded; no gateway is called."""
    asked = Pay(
        actor=SHOP,
        entry_id=shop.ids.entry_id(),
        booking_id=booking.id,
        payment_id=shop.ids.payment_id(),
        gateway="sandbox",
        method="card",
    )
    assert isinstance(await open_payment(shop.engine, asked), Decided)


async def be_swept(shop: Shop, booking: Booking) -> None:
    """The sweeper has ended it: the test has let the time pass."""
    assert [ended.id for ended in await shop.engine.expire(limit=10)] == [booking.id]


async def be_sold(shop: Shop, booking: Booking) -> None:
    """Paid elsewhere."""
    await shop.confirm(booking)


async def be_cancelled(shop: Shop, booking: Booking) -> None:
    """Sold, and given back."""
    await shop.cancel(await shop.confirm(booking))


async def be_released(shop: Shop, booking: Booking) -> None:
    """The buyer let go."""
    await shop.release(booking)


@pytest.mark.parametrize(
    "end, refusal",
    [
        (begin_to_pay, PaymentInProgress),
        (be_sold, BookingResolved),
        (be_released, BookingResolved),
        (be_cancelled, BookingResolved),
        (be_swept, BookingExpired),
    ],
)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_only_a_hold_is_changed(
    shop: Shop,
    clock: MovableClock,
    end: Callable[[Shop, Booking], Awaitable[None]],
    refusal: type[Exception],
    asked: dict[str, Any],
) -> None:
    """Whatever is asked, even what is there already: not while it is paid for, not once it is sold or over."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2}, ttl=60)
    if end is be_swept:
        clock.advance(60)
    await end(shop, held)
    before = await shop.picture()
    with pytest.raises(refusal):
        await shop.change_lines(held, **asked)
    assert await shop.picture() == before


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_a_change_that_comes_too_late_ends_the_hold(
    shop: Shop, clock: MovableClock, asked: dict[str, Any]
) -> None:
    """As every verb that meets a due hold: it is over, what it had is free, and the journal says what met it."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2}, ttl=60)
    clock.advance(60)
    with pytest.raises(BookingExpired) as refused:
        await shop.change_lines(held, **asked)
    assert refused.value.expires_at == held.expires_at
    ended = await shop.read(held)
    assert (ended.state, ended.version, ended.lines) == (State.EXPIRED, 2, held.lines)
    assert (await shop.history(held))[-1].reason == "met by change"
    assert set((await shop.seats()).values()) == {"available"}
    assert await shop.pool() == (10, 0, 0)


@pytest.mark.parametrize(
    "actor",
    [
        Actor(name="bob", mode=Mode.LIVE, buyer=Buyer("bob")),
        Actor(name="tester", mode=Mode.TEST),
    ],
    ids=["another buyer", "the test mode"],
)
@pytest.mark.parametrize("asked", [*ASKED.values(), {"add": ["A4"]}, {"add": ["Z9"]}])
async def test_another_buyer_s_booking_is_unknown(shop: Shop, actor: Actor, asked: dict[str, Any]) -> None:
    """The refusal is that of a booking that does not exist, whatever was asked, and says nothing of its seats."""
    await shop.create()
    held = await shop.hold("ada", "A1", "A2", pools={"GA": 2})
    await shop.hold("eve", "A4")
    before = await shop.picture()
    with pytest.raises(BookingUnknown) as hidden:
        await shop.change_lines(held, actor=actor, **asked)
    assert hidden.value.facts() == {"booking_id": str(held.id)}
    nowhere = msgspec.structs.replace(held, id=shop.ids.booking_id())
    with pytest.raises(BookingUnknown):
        await shop.change_lines(nowhere, **asked)
    assert await shop.picture() == before


async def test_the_buyer_may_change_their_own_hold(shop: Shop) -> None:
    """With a buyer's token."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    ada = Actor(name="ada", mode=Mode.LIVE, buyer=Buyer("ada"))
    assert (await shop.change_lines(held, add=["A2"], actor=ada)).lines.units == 2
    assert (await shop.history(held))[-1].actor == "ada"


async def test_a_refused_change_changes_nothing(shop: Shop) -> None:
    """One of several seats is gone: the others are not taken, and what would be given back is kept."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 2})
    await shop.hold("bob", "A3")
    before = await shop.picture()
    with pytest.raises(SeatsTaken) as refused:
        await shop.change_lines(held, add=["A2", "A3"], drop=["A1"], pools={"GA": 4})
    assert (list(refused.value.seats), refused.value.yours, refused.value.why) == (["A3"], None, None)
    assert await shop.picture() == before


async def test_a_buyer_is_told_which_seats_are_in_another_booking_of_theirs(shop: Shop) -> None:
    """A change moves no seat from one booking to another."""
    await shop.create()
    other = await shop.hold("ada", "A2")
    held = await shop.hold("ada", "A1")
    await shop.hold("bob", "A3")
    before = await shop.picture()
    with pytest.raises(SeatsTaken) as refused:
        await shop.change_lines(held, add=["A3", "A2"])
    assert list(refused.value.seats) == ["A2", "A3"]
    assert refused.value.yours == {"A2": str(other.id)}
    assert await shop.picture() == before


@pytest.mark.parametrize("end", [be_sold, begin_to_pay])
async def test_a_sold_seat_is_taken(shop: Shop, end: Callable[[Shop, Booking], Awaitable[None]]) -> None:
    """Sold, or about to be."""
    await shop.create()
    await end(shop, await shop.hold("bob", "A2"))
    held = await shop.hold("ada", "A1")
    with pytest.raises(SeatsTaken):
        await shop.change_lines(held, add=["A2"], drop=["A1"])
    assert await shop.read(held) == held


async def test_a_blocked_seat_is_taken_and_says_why(shop: Shop) -> None:
    """No waiting helps."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    await shop.block("A2")
    before = await shop.picture()
    with pytest.raises(SeatsTaken) as refused:
        await shop.change_lines(held, add=["A2", "A3"])
    assert (list(refused.value.seats), refused.value.why, refused.value.transient) == (["A2"], "blocked", False)
    assert await shop.picture() == before


async def test_what_the_event_does_not_have_cannot_be_added(shop: Shop) -> None:
    """Unknown seats and pools are named."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    before = await shop.picture()
    with pytest.raises(SeatUnknown) as seats:
        await shop.change_lines(held, add=["Z8", "A2", "Z9"])
    assert list(seats.value.seats) == ["Z8", "Z9"]
    with pytest.raises(PoolUnknown) as pools:
        await shop.change_lines(held, add=["A2"], pools={"VIP": 1, "GA": 1})
    assert list(pools.value.pools) == ["VIP"]
    assert await shop.picture() == before


# idempotency


async def test_a_repeat_gets_the_recorded_response(shop: Shop, idempotency: Memos, clock: MovableClock) -> None:
    """Byte for byte, also when the hold has been changed, sold and cancelled since; and it changes nothing."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    ask: dict[str, Any] = {"add": ["A2"], "drop": ["A1"], "idempotency": idempotency("k")}
    first = await shop.engine.change(shop.ask_change_lines(held, **ask))
    assert isinstance(first, Decided)
    assert first.record is not None
    assert f"{held.id} v2 at".encode() in first.record.body
    for then in ("change", "confirm", "cancel"):
        await (shop.change_lines(held, add=["A1"]) if then == "change" else getattr(shop, then)(held))
        clock.advance(3)
        before = await shop.picture()
        again = await shop.engine.change(shop.ask_change_lines(held, **ask))
        assert isinstance(again, Replayed)
        assert again.record == first.record
        assert await shop.picture() == before


async def test_a_key_is_for_one_change(shop: Shop, idempotency: Memos) -> None:
    """The same key with another body is refused, and so is a change with the key of another verb."""
    await shop.create()
    held = await shop.hold("ada", "A1", idempotency=idempotency("held", request=b"hold"))
    await shop.change_lines(held, add=["A2"], idempotency=idempotency("k"))
    before = await shop.picture()
    for key in ("k", "held"):
        with pytest.raises(IdempotencyMismatch):
            await shop.change_lines(held, add=["A3"], idempotency=idempotency(key, request=b"another"))
    assert await shop.picture() == before


async def test_a_change_to_the_same_lines_is_remembered_by_its_key(shop: Shop, idempotency: Memos) -> None:
    """Nothing moved, so the booking has no new entry; but its response is that of the first time for good."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    ask: dict[str, Any] = {"add": ["A1"], "idempotency": idempotency("k")}
    first = await shop.engine.change(shop.ask_change_lines(held, **ask))
    assert isinstance(first, Decided)
    await shop.change_lines(held, add=["A2"])
    again = await shop.engine.change(shop.ask_change_lines(held, **ask))
    assert isinstance(again, Replayed)
    assert again.record == first.record
    assert [entry.verb for entry in await shop.history(held)] == ["hold", "change"]


async def test_a_refused_change_leaves_its_key_free(shop: Shop, idempotency: Memos) -> None:
    """The same request with the same key succeeds once there is reason to."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    bobs = await shop.hold("bob", "A2")
    with pytest.raises(SeatsTaken):
        await shop.change_lines(held, add=["A2"], idempotency=idempotency("k"))
    await shop.release(bobs)
    assert (await shop.change_lines(held, add=["A2"], idempotency=idempotency("k"))).lines.units == 2


async def test_a_payment_of_what_the_buyer_was_shown_is_refused_when_the_hold_costs_more(shop: Shop) -> None:
    """Another page of the same buyer may have changed the basket: the price shown is charged, or nothing."""
    await shop.create()
    held = await shop.hold("ann", "A1")
    changed = await shop.change_lines(held, add=("A2",))
    asked = Pay(
        actor=SHOP,
        entry_id=shop.ids.entry_id(),
        booking_id=held.id,
        payment_id=shop.ids.payment_id(),
        gateway="sandbox",
        method="pm_card_visa",
        amount=held.total,
    )
    with pytest.raises(TotalChanged) as refused:
        await open_payment(shop.engine, asked)
    assert refused.value.facts() == {"total": changed.total, "asked": held.total}
    assert await shop.read(held) == changed
    await open_payment(shop.engine, msgspec.structs.replace(asked, amount=changed.total))
    assert (await shop.read(held)).state is State.PAYING


async def test_a_hold_is_not_changed_for_ever(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is an entry of the journal, which is read as a whole; paying and releasing are always possible."""
    await shop.create()
    held = await shop.hold("ann", "A1")
    monkeypatch.setattr(booking_rules, "VERSIONS_OF_A_HOLD_MAX", 3)
    await shop.change_lines(held, add=("A2",))
    last = await shop.change_lines(held, drop=("A2",))
    with pytest.raises(InvalidRequest):
        await shop.change_lines(held, add=("A2",))
    assert await shop.read(held) == last
    assert (await shop.release(held)).state is State.RELEASED


async def test_dropping_seats_that_are_others_holds_up_no_change(shop: Shop) -> None:
    """In one batch: of those that name one seat only buyers who may get it, or have it, wait for each other."""
    await shop.create()
    ann, bob = await shop.hold("ann", "A1"), await shop.hold("bob", "A2")
    asked = [shop.ask_change_lines(ann, drop=("A3", "A4")), shop.ask_change_lines(bob, add=("A3",))]
    outcomes = await shop.engine.run(change, lambda: asked)
    assert [type(outcome) for outcome in outcomes] == [Decided, Decided]
