"""The verbs in this process: keys, payments and the checks of requests, without HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from earmark import Earmark, NewSeat, OnDecline, State, library
from earmark.domain.id_types import PaymentId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState
from earmark.errors import (
    BookingResolved,
    BookingUnknown,
    EarmarkError,
    EventUnknown,
    IdempotencyMismatch,
    InvalidRequest,
    PaymentDeclined,
    SeatsTaken,
    SeatUnknown,
)
from earmark.library import PAGE_SIZE
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.testing import open_in_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.domain.id_types import BookingId
    from earmark.domain.payment import Payment

CARD, DECLINED = "pm_card_visa", "pm_card_visa_chargeDeclined"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each of the databases in turn."""
    known = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/shop.sqlite3"}.get(request.param)
    return known or str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def shop(url: str, clock: MovableClock) -> AsyncIterator[Earmark]:
    """A play with three seats and a pool, for test money."""
    async with Earmark.open(url, clock=clock, mode=Mode.TEST) as earmark:
        seats = {"A1": 4500, "A2": 4500, "A3": 0}
        await earmark.create_event("play", name="A play", currency="EUR", seats=seats, pools={"GA": (5, 1000)})
        yield earmark


async def test_a_key_makes_a_repeat_the_same_request(shop: Earmark) -> None:
    """A program that was killed after its call retries and gets the same answer; nothing happens twice."""
    held = [await shop.hold("play", buyer="alice", pools={"GA": 2}, key="basket-7") for _ in range(3)]
    assert held[0] == held[1] == held[2]
    longer = [await shop.extend(held[0].id, seconds=60, key="more") for _ in range(2)]
    assert longer[0] == longer[1]
    assert longer[0].expires_at > held[0].expires_at
    paid = [await shop.pay(held[0].id, method=CARD, key="pay-7") for _ in range(2)]
    assert paid[0].payment == paid[1].payment
    for _ in range(2):
        await shop.refund(held[0].id, amount=300, key="sorry-7")
    (payment,) = await shop.payments(held[0].id)
    assert (payment.captured, payment.refunding) == (2000, 300)
    assert [booking.id async for booking in shop.bookings()] == [held[0].id]


async def test_a_key_belongs_to_one_request(shop: Earmark) -> None:
    """Another claim under the same key is refused as the caller's mistake; another order of the seats is not."""
    await shop.hold("play", buyer="alice", seats=["A1"], pools={"GA": 1}, key="basket-7")
    with pytest.raises(IdempotencyMismatch):
        await shop.hold("play", buyer="alice", seats=["A2"], pools={"GA": 1}, key="basket-7")
    with pytest.raises(InvalidRequest):
        await shop.hold("play", buyer="alice", seats=["A2"], key="two words")


async def test_without_a_key_every_call_is_its_own(shop: Earmark) -> None:
    """The control: the same call twice holds twice."""
    first, second = [await shop.hold("play", buyer="alice", pools={"GA": 2}) for _ in range(2)]
    assert first.id != second.id


async def test_a_declined_payment_stays_declined_under_its_key(shop: Earmark) -> None:
    """The repeat gets the same decline; another key is another attempt, and the hold is still there for it."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    for _ in range(2):
        with pytest.raises(PaymentDeclined) as declined:
            await shop.pay(held.id, method=DECLINED, key="first")
        assert declined.value.state == "held"
    assert len(await shop.payments(held.id)) == 1
    assert (await shop.pay(held.id, method=CARD, key="second")).state is State.CONFIRMED


async def test_what_costs_nothing_needs_no_gateway(shop: Earmark) -> None:
    """It is sold at once, and there is no payment."""
    held = await shop.hold("play", buyer="alice", seats=["A3"])
    paid = await shop.pay(held.id)
    assert (paid.state, paid.payment) == (State.CONFIRMED, None)


async def test_a_shop_without_a_gateway_still_sells_what_is_free(url: str, clock: MovableClock) -> None:
    """Live events have no gateway here. What costs something says what is missing, and stays held."""
    async with Earmark.open(url, clock=clock) as shop:
        await shop.create_event("talk", name="A talk", currency="EUR", seats={"A1": 0, "A2": 4500})
        free, paid = [await shop.hold("talk", buyer="alice", seats=[seat]) for seat in ("A1", "A2")]
        assert (await shop.pay(free.id)).state is State.CONFIRMED
        for method in (None, CARD):
            with pytest.raises(InvalidRequest) as refused:
                await shop.pay(paid.id, method=method)
            assert [error["path"] for error in refused.value.errors] == ["gateway"]
        assert (await shop.booking(paid.id)).state is State.HELD


async def test_live_events_are_never_paid_at_the_sandbox() -> None:
    """A shop without a gateway gets an error, and no live event is sold for test money."""
    async with open_in_memory() as live:
        await live.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
        held = await live.hold("play", buyer="alice", seats=["A1"])
        with pytest.raises(InvalidRequest, match="gateway"):
            await live.pay(held.id, method=CARD)
        assert (await live.booking(held.id)).state is State.HELD


async def test_test_and_live_do_not_see_each_other(tmp_path: Path) -> None:
    """Two kinds in one database: events, bookings and keys of the one do not exist for the other."""
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    async with Earmark.open(url) as live, Earmark.open(url, mode=Mode.TEST) as test:
        await live.create_event("play", name="A play", currency="EUR", pools={"GA": (5, 0)}, key="k")
        held = await live.hold("play", buyer="alice", pools={"GA": 1}, key="k1")
        for look in (test.event, test.map):
            with pytest.raises(EventUnknown):
                await look("play")
        with pytest.raises(BookingUnknown):
            await test.booking(held.id)
        assert [event.id async for event in test.events()] == []
        with pytest.raises(EventUnknown):
            await test.hold("play", buyer="alice", pools={"GA": 1}, key="k1")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda shop: shop.hold("play", buyer="", seats=["A1"]),
        lambda shop: shop.hold("play", buyer="alice", seats=["A1", "A1"]),
        lambda shop: shop.hold("play", buyer="alice", seats=["A{1}"]),
        lambda shop: shop.hold("play", buyer="alice", pools={"GA": 0}),
        lambda shop: shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=10**9),
        lambda shop: shop.create_event("a/b", name="A play", currency="EUR", seats={"A1": 1}),
        lambda shop: shop.create_event("b", name="A play", currency="eur", seats={"A1": 1}),
        lambda shop: shop.create_event("b", name="A play", currency="EUR"),
        lambda shop: shop.create_event("b", name="A play", currency="EUR", seats={"A1": -1}),
        lambda shop: shop.create_event("b", name="A play", currency="EUR", seats=[NewSeat(id="A1", price=-1)]),
        lambda shop: shop.create_event("b", name="B", currency="EUR", seats={"A1": 1}, starts_at=datetime(2030, 1, 1)),  # noqa: DTZ001
        lambda shop: shop.create_event("b", name="B", currency="EUR", seats={"A1": 1}, no_such_rule=1),
        lambda shop: shop.change_event("play", refund_fee_percent=101),
    ],
)
async def test_the_library_checks_what_the_api_checks(
    clock: MovableClock, wrong: Callable[[Any], Awaitable[Any]]
) -> None:
    """What the service would refuse is refused here too, and says where."""
    async with open_in_memory(clock=clock) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1}, pools={"GA": (1, 1)})
        with pytest.raises(InvalidRequest) as refused:
            await wrong(shop)
        assert refused.value.errors[0]["message"]


async def test_what_does_not_exist_is_named_in_the_error(shop: Earmark) -> None:
    """Whatever the id is; also text that no database can store."""
    asked: list[tuple[type[EarmarkError], Awaitable[Any]]] = [
        (EventUnknown, shop.event("nowhere\0")),
        (SeatUnknown, shop.seat("play", "Z9")),
        (SeatUnknown, shop.explain("play", "\0")),
        (BookingUnknown, shop.history("no-id")),
        (BookingUnknown, shop.payments("01900000-0000-7000-8000-000000000001")),
    ]
    for kind, asking in asked:
        with pytest.raises(kind):
            await asking
    with pytest.raises(InvalidRequest, match="held"):
        await anext(aiter(shop.bookings(state="gone")))


async def test_a_hold_past_its_time_reads_as_expired(shop: Earmark, clock: MovableClock) -> None:
    """No sweeper needs to run for a correct read; and the seat is free for the next buyer."""
    held = await shop.hold("play", buyer="alice", seats=["A1"], ttl_seconds=60)
    assert held.expires_in is not None
    assert 55 < held.expires_in <= 60
    told = await shop.explain("play", "A1")
    assert (told.state, told.booking_id) == ("held", held.id)
    clock.advance(60)
    late = await shop.booking(held.id)
    assert (late.state, late.expires_in) == (State.EXPIRED, None)
    assert [booking.id async for booking in shop.bookings(state="expired")] == [held.id]
    assert (await shop.seat("play", "A1")).state == "available"


async def test_an_event_is_changed_in_place(shop: Earmark) -> None:
    """None clears, what is not named stays, and a held seat cannot be blocked."""
    from earmark import PoolChange, SeatChange

    await shop.change_event("play", per_buyer_max=1, on_decline="release", pools=[PoolChange(id="GA", capacity=7)])
    changed = await shop.change_event("play", per_buyer_max=None, name="The play")
    assert (changed.per_buyer_max, changed.on_decline, changed.name) == (None, OnDecline.RELEASE, "The play")
    assert (await shop.map("play")).pools[0].capacity == 7
    await shop.hold("play", buyer="alice", seats=["A1"])
    with pytest.raises(SeatsTaken):
        await shop.change_event("play", seats=[SeatChange(id="A1", blocked=True)])


async def test_lists_go_on_past_a_page(clock: MovableClock) -> None:
    """The reader need not know how many there are."""
    async with open_in_memory(clock=clock) as shop:
        count = PAGE_SIZE + 1
        for number in range(count):
            await shop.create_event(f"e{number:04}", name="An event", currency="EUR", pools={"GA": (count, 0)})
            await shop.hold("e0000", buyer="alice", pools={"GA": 1})
        assert [event.id async for event in shop.events()] == [f"e{number:04}" for number in range(count)]
        assert len([one async for one in shop.bookings(buyer="alice")]) == count


async def test_pay_without_a_key_is_found_again_after_a_crash(url: str, clock: MovableClock) -> None:
    """The program was killed after the payment was opened: the same call again is the same payment, and one charge."""
    async with Earmark.open(url, clock=clock, mode=Mode.TEST) as shop:
        await shop.create_event("late", name="A late play", currency="EUR", seats={"A1": 4500})
        held = await shop.hold("late", buyer="alice", seats=["A1"])
        first = await shop.pay(held.id, method=CARD)
        again = await shop.pay(held.id, method=CARD)
        assert (first.state, again) == (State.CONFIRMED, first)
        assert len(await shop.payments(held.id)) == 1


async def test_pay_without_a_key_tries_again_after_a_decline(shop: Earmark) -> None:
    """Another card, or the same one once more: each is a try of its own."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    for number in (1, 2):
        with pytest.raises(PaymentDeclined):
            await shop.pay(held.id, method=DECLINED)
        assert len(await shop.payments(held.id)) == number
    assert (await shop.pay(held.id, method=CARD)).state is State.CONFIRMED


async def declined_and_voided(shop: Earmark) -> str:
    """A hold whose payment was declined; then its money was authorised all the same, and given up."""
    bank = shop.payment_service.gateways["sandbox"]
    assert isinstance(bank, SandboxGateway)
    bank.script.add(Fault.LATE_SUCCESS, "authorise")
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    with pytest.raises(PaymentDeclined):
        await shop.pay(held.id, method=CARD)
    bank.bank.land()
    (payment,) = await shop.payments(held.id)
    await shop.payment_service.driver.advance(PaymentId(UUID(payment.id)), ask_gateway=True)
    (payment,) = await shop.payments(held.id)
    assert payment.state is PaymentState.VOIDED
    return held.id


async def test_pay_without_a_key_tries_again_after_a_late_authorisation_was_voided(shop: Earmark) -> None:
    """A late authorisation that was voided is over: the next call is another try, and its repeat is the same."""
    held = await declined_and_voided(shop)
    paid, again = [await shop.pay(held, method=CARD) for _ in range(2)]
    assert (paid.state, again) == (State.CONFIRMED, paid)
    assert len(await shop.payments(held)) == 2


async def test_pay_without_a_key_beside_the_same_call_is_the_same_payment(
    shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other call pays while this one looks at the booking and its payments."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    read_booking, others = shop.engine.store.read_booking, list[Any]()

    async def read_and_let_the_other_pay(booking_id: BookingId) -> Any:
        seen = await read_booking(booking_id)
        if not others:
            others.append(None)
            others[0] = await shop.pay(held.id, method=CARD)
        return seen

    monkeypatch.setattr(shop.engine.store, "read_booking", read_and_let_the_other_pay)
    assert await shop.pay(held.id, method=CARD) == others[0]
    assert len(await shop.payments(held.id)) == 1


async def test_a_key_that_counts_what_goes_down_repeats_an_old_decline(
    shop: Earmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: counted over the payments that have failed now, which a late authorisation makes fewer."""

    def failed_now(_: object, payments: list[Payment]) -> int:
        return sum(payment.state is PaymentState.FAILED for payment in payments)

    monkeypatch.setattr(library, "_tries_that_are_over", failed_now)
    held = await declined_and_voided(shop)
    with pytest.raises(PaymentDeclined):
        await shop.pay(held, method=CARD)


async def test_pay_without_a_key_of_what_is_cancelled_is_refused(shop: Earmark) -> None:
    """It is no repeat of the payment that the sale was made with."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.pay(held.id, method=CARD)
    await shop.cancel(held.id)
    with pytest.raises(BookingResolved):
        await shop.pay(held.id, method=CARD)


async def test_refund_without_a_key_is_made_once(shop: Earmark) -> None:
    """The same amount for the same reason is the same refund; another amount, reason or key is another."""
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.pay(held.id, method=CARD)
    first, again = [await shop.refund(held.id, amount=300) for _ in range(2)]
    assert again == first
    for how in ({"amount": 200}, {"amount": 300, "reason": "rain"}, {"amount": 300, "key": "once-more"}):
        await shop.refund(held.id, **how)
    [payment] = await shop.payments(held.id)
    assert payment.refunding == 300 + 200 + 300 + 300
