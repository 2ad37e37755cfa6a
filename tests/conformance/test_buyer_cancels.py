"""A buyer's own cancel on each of the stores: by the event's rules, on locked rows, by the transaction's moment."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.money.conftest import PRICE, Shop

from earmark.domain import buyer_cancel_rules
from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.refund_rules import Reason, Ruling
from earmark.engine.commands_and_results import Actor, Cancel, Confirm, Decided, Full
from earmark.engine.tickets import ScanRequest
from earmark.errors import BookingNotConfirmed, BookingUnknown, CancelRefused, InvalidRequest
from earmark.tickets.new_ticket_secrets import NEW_SECRETS
from earmark.uuids import uuid7

from .payment_support import REFUSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store, Transaction
    from earmark.uuids import Uuid7Ids

DAY = 86_400
CONCERT = EventId("concert")


@pytest.fixture
async def shop(store: Store, ids: Uuid7Ids, clock: MovableClock) -> AsyncIterator[Shop]:
    """A shop whose rows keep every promise after the test."""
    shop = Shop(store, ids=ids, clock=clock)
    yield shop
    await shop.reconcile(seconds=600)
    assert await store.find_flaws(limit=10) == []
    await shop.driver.close()


async def open_with(shop: Shop, *, starts_in: float | None = 7 * DAY, until: int | None = DAY, **rules: Any) -> None:
    """A concert that lets buyers cancel until a day before it starts."""
    starts_at = None if starts_in is None else shop.clock.now() + timedelta(seconds=starts_in)
    given: dict[str, Any] = {} if until is None else {"buyer_cancel_until_seconds": until}
    await shop.open_another(CONCERT, starts_at=starts_at, **given, **rules)


async def sale(shop: Shop, *seats: str) -> Booking:
    """Sold to alice, and its money taken."""
    paid = await shop.pay(await shop.hold(*(seats or ("A1",))))
    assert paid.booking.state is State.CONFIRMED
    return paid.booking


def as_buyer(shop: Shop, booking: Booking, *, buyer: str = "alice", **how: Any) -> Cancel:
    """What the bearer of a buyer's token asks for."""
    actor = Actor(name=f"buyer:{buyer}", mode=Mode.LIVE, buyer=Buyer(buyer))
    return Cancel(actor=actor, entry_id=shop.engine.ids.entry_id(), booking_id=booking.id, **how)


async def cancelled(shop: Shop, booking: Booking, **how: Any) -> tuple[Booking, Ruling | None]:
    """The booking afterwards, and what became of its money."""
    answer = await shop.engine.cancel(as_buyer(shop, booking, **how))
    assert isinstance(answer, Decided)
    return answer.value.booking, answer.value.money


async def why_refused(shop: Shop, booking: Booking, **how: Any) -> str:
    """The rule that keeps the buyer from cancelling; nothing has moved."""
    before = await shop.booking(booking)
    with pytest.raises(CancelRefused) as refused:
        await shop.engine.cancel(as_buyer(shop, booking, **how))
    assert await shop.booking(booking) == before
    return refused.value.why


async def test_every_store_keeps_the_limit_of_an_event(shop: Shop) -> None:
    """As it was said, as it was changed, and gone when it is cleared; the journal has both values."""
    await open_with(shop)
    await shop.open_another("plain")
    known = await shop.store.read_events({CONCERT, EventId("plain"), EventId("unknown")})
    assert {event_id: event.buyer_cancel_until_seconds for event_id, event in known.items()} == {
        "concert": DAY,
        "plain": None,
    }
    assert known[CONCERT] in await shop.store.list_events(mode=Mode.LIVE, after=None, limit=9)
    for changed in (3600, None):
        await shop.change(buyer_cancel_until_seconds=changed)
        read = await shop.store.read_event(CONCERT)
        assert read is not None
        assert read.buyer_cancel_until_seconds == changed
    assert await shop.store.read_events(()) == {}


async def test_a_buyer_cancels_for_what_the_rules_give(shop: Shop) -> None:
    """A seat, and then the rest: each less the fee. The seats are free at once, and a repeat moves nothing."""
    await open_with(shop, refund_fee_percent=10)
    sold = await sale(shop, "A1", "A2")
    ruling = Ruling(refund=PRICE - 450, fee=450, reason=Reason.WITHIN_WINDOW)
    left, money = await cancelled(shop, sold, seats=frozenset({"A1"}))
    assert ((left.state, left.total), money) == ((State.CONFIRMED, PRICE), ruling)
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD
    gone, money = await cancelled(shop, sold, reason="ill")
    assert (gone.state, money) == (State.CANCELLED, ruling)
    assert await cancelled(shop, sold) == (gone, None)
    entry = (await shop.store.read_history(sold.id))[-1]
    assert (entry.verb, entry.actor, entry.reason) == ("cancel", "buyer:alice", "ill")
    await shop.reconcile(seconds=600)
    assert (await shop.payment(sold)).refunded == 2 * (PRICE - 450)


async def test_the_money_window_may_end_before_the_buyer_s(shop: Shop) -> None:
    """The buyer gives the seat back for nothing: two rules, two limits."""
    await open_with(shop, starts_in=2 * DAY, until=0, refund_until_seconds=3 * DAY)
    gone, money = await cancelled(shop, await sale(shop))
    assert gone.state is State.CANCELLED
    assert money == Ruling(refund=0, fee=PRICE, reason=Reason.WINDOW_OVER)


@pytest.mark.parametrize(
    "rules, why",
    [
        ({"until": None}, "not_offered"),
        ({"starts_in": None}, "no_start"),
        ({"starts_in": DAY}, "too_late"),
        ({"starts_in": -1, "until": 0}, "too_late"),
    ],
)
async def test_a_buyer_is_refused_where_the_rules_do_not_allow_it(shop: Shop, rules: dict[str, Any], why: str) -> None:
    """Whole or in part; the shop's own key cancels all the same."""
    await open_with(shop, **rules)
    sold = await sale(shop, "A1", "A2")
    assert await why_refused(shop, sold) == why
    assert await why_refused(shop, sold, seats=frozenset({"A1"})) == why
    assert (await shop.cancel(sold)).state is State.CANCELLED


@pytest.mark.parametrize("reference", ["till-1", "0190f5a0-0000-7000-8000-000000000001"])
async def test_a_sale_that_was_paid_elsewhere_is_the_shop_s_to_undo(shop: Shop, reference: str) -> None:
    """Also where the shop's own reference looks like an id of ours."""
    await open_with(shop)
    held, paid = await shop.hold("A1"), await sale(shop, "A2")
    await shop.engine.confirm(Confirm(**shop.about(held), payment_id=reference))
    assert await shop.store.list_paid_here({held.id, paid.id}) == {paid.id}
    assert await shop.store.list_paid_here(()) == frozenset()
    assert await why_refused(shop, held) == "paid_elsewhere"
    assert (await cancelled(shop, paid))[0].state is State.CANCELLED, "the control"


async def scan(shop: Shop, code: str, nonce: str) -> None:
    """A door lets the visitor with this ticket in."""
    request = ScanRequest(id=uuid7(), caller="key:k_door", mode=Mode.LIVE, code=code, nonce=nonce)
    assert (await shop.store.tickets.check(request)).reason is None


async def test_a_booking_of_which_a_ticket_was_let_in_is_not_cancelled_by_its_buyer(shop: Shop) -> None:
    """One seat is enough, for the whole booking, until the door undoes it; another booking is not concerned."""
    await open_with(shop)
    inside, outside = await sale(shop, "A1", "A2"), await sale(shop, "A3")
    shop_key = Actor(name="key:k_shop", mode=Mode.LIVE)
    tickets = (await shop.store.tickets.of_booking(inside.id, actor=shop_key, new=NEW_SECRETS)).tickets
    assert await shop.store.list_checked_in({inside.id, outside.id}) == frozenset(), "a ticket that was only shown"
    await scan(shop, tickets[0].ticket.secret, "n1")
    assert await shop.store.list_checked_in({inside.id, outside.id}) == {inside.id}
    assert await why_refused(shop, inside) == "checked_in"
    assert await why_refused(shop, inside, seats=frozenset({"A2"})) == "checked_in"
    assert (await cancelled(shop, outside))[0].state is State.CANCELLED, "the control"
    await shop.store.tickets.undo(caller="key:k_door", nonce="n1")
    assert (await cancelled(shop, inside))[0].state is State.CANCELLED


async def test_what_cost_nothing_is_given_back_without_a_payment(shop: Shop) -> None:
    """No gateway was asked, so none is asked now."""
    await open_with(shop)
    starts_at = shop.clock.now() + timedelta(days=7)
    await shop.open_another("free", seats={"F1": 0}, starts_at=starts_at, buyer_cancel_until_seconds=DAY)
    sold = (await shop.pay(await shop.hold("F1", event="free"))).booking
    assert (sold.state, sold.payment_id) == (State.CONFIRMED, None)
    gone, money = await cancelled(shop, sold)
    assert (gone.state, money, shop.gateway.calls) == (State.CANCELLED, None, [])


@pytest.mark.parametrize("refund", [Full.FULL, 0, 1, PRICE])
async def test_a_buyer_names_no_amount(shop: Shop, refund: Full | int) -> None:
    """Neither more than the rules give nor less."""
    await open_with(shop, refund_fee_percent=10)
    sold = await sale(shop)
    with pytest.raises(InvalidRequest) as refused:
        await shop.engine.cancel(as_buyer(shop, sold, refund=refund))
    assert refused.value.errors[0]["path"] == "refund"
    assert (await shop.booking(sold)).state is State.CONFIRMED


async def test_a_buyer_cancels_no_other_buyer_s_sale_and_no_hold(shop: Shop) -> None:
    """Another's does not exist, and a hold is released."""
    await open_with(shop)
    sold, held = await sale(shop), await shop.hold("A2")
    with pytest.raises(BookingUnknown):
        await shop.engine.cancel(as_buyer(shop, sold, buyer="eve"))
    with pytest.raises(BookingNotConfirmed):
        await shop.engine.cancel(as_buyer(shop, held))


async def test_the_moment_of_the_transaction_decides_at_the_limit(shop: Shop) -> None:
    """Whichever side of it a cancel falls on, its answer and the moment that it names agree."""
    for number in range(10):
        starts_at = shop.clock.now() + timedelta(seconds=DAY, milliseconds=20 * number)
        await shop.open_another(f"edge-{number}", starts_at=starts_at, buyer_cancel_until_seconds=DAY)
        sold = (await shop.pay(await shop.hold("A1", event=f"edge-{number}"))).booking
        limit = starts_at - timedelta(seconds=DAY)
        answer: Any = (await asyncio.gather(shop.engine.cancel(as_buyer(shop, sold)), return_exceptions=True))[0]
        if isinstance(answer, CancelRefused):
            assert (answer.why, answer.until) == ("too_late", limit)
            assert (await shop.store.read_booking(sold.id))[0] >= limit
        else:
            assert isinstance(answer, Decided)
            assert answer.now < limit


async def test_the_limit_at_the_moment_of_the_cancel_counts(shop: Shop) -> None:
    """A shop that stops or allows cancelling does so for what is sold already."""
    await open_with(shop, until=None)
    sold = await sale(shop)
    assert await why_refused(shop, sold) == "not_offered"
    await shop.change(buyer_cancel_until_seconds=DAY)
    await shop.change(starts_at=shop.clock.now() + timedelta(seconds=DAY - 1))
    assert await why_refused(shop, sold) == "too_late"
    await shop.change(starts_at=shop.clock.now() + timedelta(days=2))
    assert (await cancelled(shop, sold))[0].state is State.CANCELLED


async def test_many_cancels_at_once_undo_a_sale_once(shop: Shop) -> None:
    """The buyer's and the shop's together: one refund, and every answer is of the same booking."""
    await open_with(shop)
    sold = await sale(shop)
    asked = [as_buyer(shop, sold) for _ in range(4)] + [Cancel(**shop.about(sold)) for _ in range(2)]
    answers = await asyncio.gather(*map(shop.engine.cancel, asked))
    rulings = [answer.value.money for answer in answers if isinstance(answer, Decided)]
    assert (len(rulings), len([one for one in rulings if one is not None])) == (6, 1)
    assert (await shop.payment(sold)).refunding == PRICE


async def test_control_without_the_rule_a_buyer_cancels_at_any_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the guard off: a buyer has seen the concert, and gets the money back."""
    await open_with(shop, starts_in=-3600)
    sold = await sale(shop)
    monkeypatch.setattr(buyer_cancel_rules, "buyer_may_cancel", lambda *_, **__: None)
    gone, money = await cancelled(shop, sold)
    assert (gone.state, money) == (State.CANCELLED, Ruling(refund=PRICE, fee=0, reason=Reason.WITHIN_WINDOW))


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("limit, refused", [(-1, True), (0, False), (None, False)])
async def test_the_schema_has_the_bound_too(
    store: Store, clock: MovableClock, limit: int | None, *, refused: bool
) -> None:
    """Hand-written SQL is refused by the table."""
    event = Event(id=CONCERT, name="A concert", currency="EUR", mode=Mode.LIVE, created_at=clock.now())
    event = msgspec.structs.replace(event, buyer_cancel_until_seconds=limit)

    async def insert(transaction: Transaction) -> None:
        await transaction.begin([])
        await transaction.insert_event(event, seats=(), pools=())

    write = partial(store.transact, insert, within=10)
    if refused:
        with pytest.raises(REFUSED, match="buyer_cancel_limit_not_negative"):
            await write()
    else:
        await write()
    assert (await store.read_event(CONCERT) is None) is refused
