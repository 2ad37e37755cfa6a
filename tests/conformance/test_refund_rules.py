"""What a cancelled sale gives back by the rules of its event, on each of the stores, from the verb to the gateway."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.money.conftest import PRICE, Shop
from tests.money.scripted_gateway import CAPTURED, PROCESSING

from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState, ReportedState
from earmark.domain.refund_rules import Reason, Ruling
from earmark.engine.commands_and_results import Cancel, Confirm, Decided, Full, Replayed
from earmark.engine.ports.gateway import GatewaySilent, Report
from earmark.engine.ports.store import BookingFilter
from earmark.errors import PaymentInProgress, RefundRefused

from .payment_support import REFUSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import KeyedRequest
    from earmark.engine.ports.store import Store, Transaction
    from earmark.uuids import Uuid7Ids

DAY = 86_400
SEATS = ("A1", "A2", "A3", "A4")
CONCERT = EventId("concert")


@pytest.fixture
async def shop(store: Store, ids: Uuid7Ids, clock: MovableClock) -> AsyncIterator[Shop]:
    """A shop; after the test, what was taken and not given back is the price of what is sold, and the fees."""
    shop = Shop(store, ids=ids, clock=clock)
    yield shop
    await shop.reconcile(seconds=600)
    assert await store.find_flaws(limit=10) == []
    _, bookings = await store.list_bookings(BookingFilter(mode=Mode.LIVE, limit=100))
    for booking in bookings:
        if not any(
            refund.reason == BY_HAND for _, refunds in await store.list_payments(booking.id) for refund in refunds
        ):
            assert await kept(shop, booking) == await price_and_fees(shop, booking), booking
    await shop.driver.close()


BY_HAND = None
"""Why a shop gives money back, as it says in these tests; a cancel always has a reason."""


async def kept(shop: Shop, booking: Booking) -> int:
    """Money in less money out, by the payments."""
    return sum(payment.captured - payment.refunding for payment, _ in await shop.store.list_payments(booking.id))


async def price_and_fees(shop: Shop, booking: Booking) -> int:
    """What may be kept, by the booking and its journal."""
    told = [entry.facts.get("payment", {}) for entry in await shop.store.read_history(booking.id)]
    sold = booking.total if booking.state is State.CONFIRMED else 0
    fees: int = sum(money.get("fee", 0) for money in told)
    return sold + fees


async def open_with(shop: Shop, *, starts_in: float | None = 7 * DAY, **rules: Any) -> None:
    """A concert with these rules, which starts in so many seconds."""
    starts_at = None if starts_in is None else shop.clock.now() + timedelta(seconds=starts_in)
    await shop.open_another(CONCERT, starts_at=starts_at, **rules)


async def sale(shop: Shop, *seats: str) -> Booking:
    """Sold, and its money taken."""
    paid = await shop.pay(await shop.hold(*(seats or ("A1",))))
    assert paid.booking.state is State.CONFIRMED
    return paid.booking


async def test_every_store_keeps_the_rules_of_an_event(shop: Shop) -> None:
    """As they were said, as they were changed, and gone when they are cleared."""
    rules = {"refund_until_seconds": DAY, "refund_fee_percent": 7, "refund_fee_fixed": 10**12}
    await open_with(shop, **rules)
    await shop.open_another("plain")

    async def known(event: str) -> dict[str, Any]:
        read = await shop.store.read_event(EventId(event))
        assert read is not None
        assert read in await shop.store.list_events(mode=Mode.LIVE, after=None, limit=9)
        return {name: getattr(read, name) for name in rules}

    assert await known("concert") == rules
    assert await known("plain") == {"refund_until_seconds": None, "refund_fee_percent": 0, "refund_fee_fixed": 0}
    await shop.change(refund_until_seconds=None, refund_fee_percent=8)
    assert await known("concert") == rules | {"refund_until_seconds": None, "refund_fee_percent": 8}


@pytest.mark.parametrize(
    "starts_in, until",
    [(DAY + 36_000, DAY), (36_000, 0), (-DAY, None), (None, DAY)],
    ids=["before the window ends", "before the start", "no window", "no start"],
)
async def test_a_buyer_who_cancels_in_time_gets_everything_back(
    shop: Shop, starts_in: float | None, until: int | None
) -> None:
    """Without a fee that is the whole price."""
    await open_with(shop, starts_in=starts_in, refund_until_seconds=until)
    undone = await shop.cancel(await sale(shop))
    assert shop.undone.money == Ruling(refund=PRICE, fee=0, reason=Reason.WITHIN_WINDOW)
    await shop.reconcile(seconds=600)
    assert (await shop.payment(undone)).state is PaymentState.REFUNDED


@pytest.mark.parametrize("starts_in, until", [(DAY, DAY), (DAY - 1, DAY), (-1, DAY), (0, 0)])
async def test_a_buyer_who_cancels_at_the_end_of_the_window_or_later_gets_nothing(
    shop: Shop, starts_in: float, until: int
) -> None:
    """The seat is free again all the same, and the gateway is not asked for anything."""
    await open_with(shop, starts_in=starts_in, refund_until_seconds=until, refund_fee_percent=10)
    undone = await shop.cancel(await sale(shop))
    assert undone.state is State.CANCELLED
    assert shop.undone.money == Ruling(refund=0, fee=PRICE, reason=Reason.WINDOW_OVER)
    await shop.reconcile(seconds=600)
    payment = await shop.payment(undone)
    assert (payment.state, payment.refunding) == (PaymentState.CAPTURED, 0)
    assert shop.gateway.calls == ["authorise", "capture"]
    assert (await shop.hold("A1", buyer="bob")).state is State.HELD


async def test_the_moment_of_the_transaction_decides_at_the_edge(shop: Shop) -> None:
    """Whichever side of it a cancel falls on, its answer and the moment that it names agree."""
    for number in range(10):
        starts_at = shop.clock.now() + timedelta(seconds=DAY, milliseconds=10 * number)
        await shop.open_another(f"edge-{number}", starts_at=starts_at, refund_until_seconds=DAY)
        sold = (await shop.pay(await shop.hold("A1", event=f"edge-{number}"))).booking
        answer = await shop.engine.cancel(Cancel(**shop.about(sold)))
        assert isinstance(answer, Decided)
        over = starts_at - answer.now <= timedelta(seconds=DAY)
        assert answer.value.money.reason is (Reason.WINDOW_OVER if over else Reason.WITHIN_WINDOW)


async def test_a_fee_is_kept_of_a_whole_sale(shop: Shop) -> None:
    """Ten percent and one fifty, once."""
    await open_with(shop, refund_fee_percent=10, refund_fee_fixed=150)
    undone = await shop.cancel(await sale(shop, "A1", "A2"))
    assert shop.undone.money == Ruling(refund=2 * PRICE - 1050, fee=1050, reason=Reason.WITHIN_WINDOW)
    await shop.reconcile(seconds=600)
    payment = await shop.payment(undone)
    assert (payment.state, payment.refunded) == (PaymentState.PARTIALLY_REFUNDED, 2 * PRICE - 1050)
    assert [call for call in shop.gateway.calls if call.startswith("refund")] == [f"refund {2 * PRICE - 1050}"]


async def test_one_seat_of_four_goes_back_with_its_share_less_the_fee(shop: Shop) -> None:
    """And then the others, each for its own fee: never more in all than was taken."""
    await open_with(shop, refund_fee_percent=10, refund_fee_fixed=150)
    sold = await sale(shop, *SEATS)
    for number, seat in enumerate(SEATS, start=1):
        left = await shop.cancel(sold, seats=frozenset({seat}))
        assert shop.undone.money == Ruling(refund=PRICE - 600, fee=600, reason=Reason.WITHIN_WINDOW)
        assert (await shop.payment(sold)).refunding == number * (PRICE - 600)
        assert await kept(shop, left) == (4 - number) * PRICE + number * 600
    assert left.state is State.CANCELLED


@pytest.mark.parametrize("rules", [{"refund_fee_fixed": PRICE + 1}, {"refund_fee_percent": 100}])
async def test_a_fee_is_never_more_than_the_share(shop: Shop, rules: dict[str, int]) -> None:
    """It takes all of this seat's money, and nothing of the others'."""
    await open_with(shop, **rules)
    left = await shop.cancel(await sale(shop, "A1", "A2"), seats=frozenset({"A1"}))
    assert shop.undone.money == Ruling(refund=0, fee=PRICE, reason=Reason.WITHIN_WINDOW)
    assert (left.state, left.total) == (State.CONFIRMED, PRICE)
    [(_, refunds)] = await shop.store.list_payments(left.id)
    assert refunds == []


async def test_the_rules_at_the_moment_of_the_cancel_count(shop: Shop) -> None:
    """A shop that postpones an event, or drops its fee, does so for earlier buyers too."""
    await open_with(shop, starts_in=-1, refund_until_seconds=DAY, refund_fee_percent=50)
    sold = await sale(shop, "A1", "A2")
    await shop.change(starts_at=shop.clock.now() + timedelta(days=30), refund_fee_percent=0)
    await shop.cancel(sold)
    assert shop.undone.money == Ruling(refund=2 * PRICE, fee=0, reason=Reason.WITHIN_WINDOW)


@pytest.mark.parametrize(
    "asked, refund, fee",
    [(Full.FULL, PRICE, 0), (1000, 1000, PRICE - 1000), (0, 0, PRICE), (PRICE + 500, PRICE + 500, 0)],
)
async def test_a_shop_that_says_how_much_is_under_no_rule(shop: Shop, asked: int | Full, refund: int, fee: int) -> None:
    """Its own decision, up to what was taken."""
    await open_with(shop, starts_in=-1, refund_until_seconds=DAY, refund_fee_percent=100)
    sold = await sale(shop, "A1", "A2")
    await shop.cancel(sold, seats=frozenset({"A1"}), refund=asked)
    assert shop.undone.money == Ruling(refund=refund, fee=fee, reason=Reason.ASKED)
    left = 2 * PRICE - refund
    with pytest.raises(RefundRefused) as refused:
        await shop.cancel(sold, refund=left + 1)
    assert (refused.value.available, refused.value.asked) == (left, left + 1)
    await shop.cancel(sold, refund=Full.FULL)
    assert (await shop.payment(sold)).refunding == min(refund + PRICE, 2 * PRICE)


async def test_a_shop_may_give_back_what_a_cancel_kept(shop: Shop) -> None:
    """Up to what was taken, and not a cent more."""
    await open_with(shop, refund_fee_fixed=500)
    undone = await shop.cancel(await sale(shop))
    await shop.refund(undone, 500)
    with pytest.raises(RefundRefused):
        await shop.refund(undone, 1)
    assert await kept(shop, undone) == 0


async def test_a_fee_is_of_what_goes_back(shop: Shop) -> None:
    """Money that a shop gave back before is not paid for twice."""
    await open_with(shop, refund_fee_percent=10)
    sold = await sale(shop)
    await shop.refund(sold, 4000)
    await shop.cancel(sold)
    assert shop.undone.money == Ruling(refund=450, fee=50, reason=Reason.WITHIN_WINDOW)


async def test_late_money_goes_back_whole_whatever_the_rules(shop: Shop) -> None:
    """The buyer got nothing for it: no window, no fee."""
    await open_with(shop, starts_in=-1, refund_until_seconds=DAY, refund_fee_percent=100)
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING, "void": GatewaySilent("no answer")}
    await shop.pay(held)
    for _ in range(10):
        await shop.reconcile(seconds=600)
    shop.gateway.says["void"] = CAPTURED
    await shop.reconcile(seconds=600)
    payment = await shop.payment(held)
    assert (payment.state, payment.refunded) == (PaymentState.REFUNDED, PRICE)


async def test_a_sale_whose_capture_was_refused_is_undone_without_a_fee(shop: Shop) -> None:
    """There is no money to keep anything of."""
    await open_with(shop, refund_fee_percent=100)
    shop.gateway.says["capture"] = Report(state=ReportedState.DECLINED, gateway_id="pi_1", code="expired_card")
    held = await shop.hold("A1")
    assert (await shop.pay(held)).booking.state is State.CANCELLED
    assert await price_and_fees(shop, await shop.booking(held)) == 0


async def test_money_that_is_only_set_aside_is_not_let_go_where_a_fee_is_kept(shop: Shop) -> None:
    """A moment later it is taken, and the rules can be kept; a shop that gives all of it back need not wait."""
    await open_with(shop, refund_fee_percent=10)
    shop.gateway.says["capture"] = GatewaySilent("no answer")
    patient, generous = await sale(shop, "A1"), await sale(shop, "A2")
    with pytest.raises(PaymentInProgress):
        await shop.cancel(patient)
    await shop.cancel(generous, refund=Full.FULL)
    assert shop.undone.money is None
    shop.gateway.says["capture"] = CAPTURED
    await shop.reconcile(seconds=600)
    assert (await shop.payment(generous)).state is PaymentState.VOIDED
    await shop.cancel(patient)
    assert shop.undone.money == Ruling(refund=PRICE - 450, fee=450, reason=Reason.WITHIN_WINDOW)


async def test_money_that_was_taken_elsewhere_is_under_no_rule(shop: Shop) -> None:
    """It goes back elsewhere, or does not."""
    await open_with(shop, refund_fee_percent=10)
    held = await shop.hold("A1")
    await shop.engine.confirm(Confirm(**shop.about(held), payment_id="till-1"))
    undone = await shop.cancel(held)
    assert (undone.state, shop.undone.money) == (State.CANCELLED, None)


async def test_the_journal_tells_what_was_kept_and_why(shop: Shop) -> None:
    """In the entry of the cancel, beside the payment that it is of; a repeat finds nothing to say."""
    await open_with(shop, refund_fee_percent=10)
    sold = await sale(shop)
    await shop.cancel(sold, reason="ill")
    [told] = [entry for entry in await shop.store.read_history(sold.id) if entry.verb == "cancel"]
    said = {"refund": PRICE - 450, "fee": 450, "reason": "within_window"}
    assert told.facts["payment"] | said | {"id": sold.payment_id} == told.facts["payment"]
    assert told.reason == "ill"
    await shop.cancel(sold)
    assert shop.undone.money is None


async def test_a_key_remembers_what_went_back(shop: Shop, idempotency: Callable[..., KeyedRequest]) -> None:
    """The answer is worded from the same ruling that was written."""
    await open_with(shop, refund_fee_percent=10)
    sold = await sale(shop)
    told = msgspec.structs.replace(idempotency("k"), write=lambda undone, _: (200, str(undone.money.fee).encode()))
    first = await shop.engine.cancel(Cancel(**shop.about(sold), idempotency=told))
    again = await shop.engine.cancel(Cancel(**shop.about(sold), idempotency=told))
    assert isinstance(first, Decided)
    assert isinstance(again, Replayed)
    assert again.record == first.record
    assert again.record.body == b"450"


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize(
    "rules, refused",
    [
        ({"refund_until_seconds": -1}, True),
        ({"refund_fee_percent": -1}, True),
        ({"refund_fee_percent": 101}, True),
        ({"refund_fee_fixed": -1}, True),
        ({"refund_until_seconds": 0, "refund_fee_percent": 100, "refund_fee_fixed": 10**12}, False),
    ],
)
async def test_the_schema_has_the_bounds_too(
    store: Store, clock: MovableClock, rules: dict[str, int], *, refused: bool
) -> None:
    """Hand-written SQL is refused by the table; rules at their bounds pass."""
    event = Event(id=CONCERT, name="A concert", currency="EUR", mode=Mode.LIVE, created_at=clock.now(), **rules)  # type: ignore[arg-type]

    async def insert(transaction: Transaction) -> None:
        await transaction.begin([])
        await transaction.insert_event(event, seats=(), pools=())

    write = partial(store.transact, insert, within=10)
    if refused:
        with pytest.raises(REFUSED, match="refund_"):
            await write()
    else:
        await write()
    assert (await store.read_event(CONCERT) is None) is refused
