"""How often a card is tried: a few times for a hold, a few times an hour for a buyer, on each of the stores."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest
from tests.money.scripted_gateway import AUTHORISED, DECLINED, PROCESSING

from earmark.domain.booking_state_machine import State
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Release
from earmark.engine.ports.gateway import GatewayDenied, GatewayInvalid, Report
from earmark.errors import GatewayUnavailable, InvalidRequest, TooManyDeclines
from earmark.library import Earmark

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.booking import Booking

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SECONDS, TRIES_MAX = (300, 30) if PROOF else (100, 20)
"""How long a client retries each second, and how many payments it may open by then."""
SEATS = tuple(f"S{number}" for number in range(10))


async def holds(shop: Shop, number: int = 10, *, buyer: str = "alice") -> list[Booking]:
    """So many holds of one buyer, in an event of their own."""
    await shop.open_another("hall", seats=dict.fromkeys(SEATS, 4500))
    return [await shop.hold(seat, event="hall", buyer=buyer) for seat in SEATS[:number]]


async def tried(shop: Shop, booking: Booking, **how: Any) -> str:
    """What became of one try: declined, sold, or refused before a gateway was called."""
    try:
        paid = await shop.pay(booking, **how)
    except TooManyDeclines as refused:
        return refused.per
    return paid.booking.state.value


async def test_a_hold_is_declined_three_times_at_most(shop: Shop) -> None:
    """Then no gateway is called any more; the hold stays until its time is over, and can be released."""
    [held] = await holds(shop, 1)
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, held) for _ in range(5)] == ["held"] * 3 + ["hold"] * 2
    assert shop.gateway.calls.count("authorise") == 3
    shop.gateway.says["authorise"] = AUTHORISED
    with pytest.raises(TooManyDeclines) as refused:
        await shop.pay(held)
    assert (refused.value.limit, refused.value.retry_in, refused.value.transient) == (3, None, False)
    assert (await shop.booking(held)).state is State.HELD
    await shop.engine.release(Release(**shop.about(held)))
    assert (await shop.booking(held)).state is State.RELEASED


async def test_a_buyer_is_declined_five_times_an_hour_at_most(shop: Shop) -> None:
    """Over all holds; when the hour is over, the buyer may try again. Another buyer is not concerned."""
    mine = await holds(shop, 8)
    other = await shop.hold("S9", event="hall", buyer="bob")
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, one) for one in mine] == ["held"] * 5 + ["buyer"] * 3
    with pytest.raises(TooManyDeclines) as refused:
        await shop.pay(mine[7])
    assert (refused.value.limit, refused.value.transient) == (5, True)
    assert refused.value.retry_in is not None
    assert 0 < refused.value.retry_in <= 3600
    shop.gateway.says["authorise"] = AUTHORISED
    assert await tried(shop, other) == "confirmed"
    shop.clock.advance(refused.value.retry_in)
    assert await tried(shop, await shop.hold("S7", event="hall", buyer="alice")) == "confirmed"


async def test_ten_holds_that_pay_at_once_have_five_tries(shop: Shop) -> None:
    """A payment that is open counts as if it were declined, until it is decided."""
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    mine = await holds(shop)
    said = await asyncio.gather(*(tried(shop, one) for one in mine))
    assert sorted(said) == ["buyer"] * 5 + ["paying"] * 5
    assert shop.gateway.calls.count("authorise") == 5


async def test_tries_that_are_not_reserved_are_as_many_as_there_are_holds(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where only declines count, and not the payments that are open, ten holds have ten tries."""
    monkeypatch.setattr("earmark.domain.decline_limits.UNDECIDED", frozenset())
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    said = await asyncio.gather(*(tried(shop, one) for one in await holds(shop)))
    assert said == ["paying"] * 10


async def test_payments_that_succeed_do_not_count(shop: Shop) -> None:
    """However many: a buyer who buys is not limited."""
    assert [await tried(shop, one) for one in await holds(shop)] == ["confirmed"] * 10


async def test_what_was_the_shops_fault_does_not_count(shop: Shop) -> None:
    """No card was tried."""
    [held] = await holds(shop, 1)
    shop.gateway.says["authorise"] = GatewayDenied("not_permitted")
    for _ in range(4):
        with pytest.raises(GatewayUnavailable):
            await shop.pay(held)
    shop.gateway.says["authorise"] = AUTHORISED
    assert await tried(shop, held) == "confirmed"


async def test_a_bank_that_is_too_busy_has_declined_no_buyer(shop: Shop) -> None:
    """Buyers get 503: neither the hold nor the buyer is refused for it when the bank answers again."""
    mine = await holds(shop, 3)
    shop.gateway.says["authorise"] = msgspec.structs.replace(DECLINED, code="issuer_not_available")
    assert [await tried(shop, one) for one in mine for _ in range(4)] == ["held"] * 12
    shop.gateway.says["authorise"] = AUTHORISED
    assert [await tried(shop, one) for one in mine] == ["confirmed"] * 3


FAULTS: dict[str, Report | Exception] = {
    "the shop's": GatewayDenied("not_permitted"),
    "the request's": GatewayInvalid("resource_missing", "No such PaymentMethod", field="method"),
    "a busy bank's": msgspec.structs.replace(DECLINED, code="try_again_later"),
}


async def tried_each_second(shop: Shop, held: Booking, *, seconds: int) -> int:
    """A client retries again and again; how many payments were opened."""
    for _ in range(seconds):
        with contextlib.suppress(GatewayUnavailable, InvalidRequest):
            await tried(shop, held)
        shop.clock.advance(1)
    return len(await shop.store.list_payments(held.id))


@pytest.mark.parametrize("fault", FAULTS)
async def test_tries_without_an_answer_of_the_bank_have_ever_longer_pauses(shop: Shop, fault: str) -> None:
    """Each leaves rows behind. A few go at once, and when the fault is over, the hold is paid within a minute."""
    [held] = await holds(shop, 1)
    shop.gateway.says["authorise"] = FAULTS[fault]
    assert await tried_each_second(shop, held, seconds=SECONDS) <= TRIES_MAX
    with pytest.raises(TooManyDeclines) as refused:
        await shop.pay(held)
    assert refused.value.transient
    assert refused.value.retry_in is not None
    assert 0 < refused.value.retry_in <= 60
    shop.gateway.says["authorise"] = AUTHORISED
    shop.clock.advance(refused.value.retry_in)
    assert await tried(shop, held) == "confirmed"


async def test_without_the_pauses_each_try_leaves_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("earmark.domain.decline_limits.UNJUDGED_AT_ONCE", 1000)
    [held] = await holds(shop, 1)
    shop.gateway.says["authorise"] = FAULTS["the shop's"]
    assert await tried_each_second(shop, held, seconds=30) == 30


async def test_open_payments_have_a_retry_after_of_seconds(shop: Shop) -> None:
    """They are most often decided soon, and are no declines: no buyer is sent away for an hour because of them."""
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    mine = await holds(shop)
    assert [await tried(shop, one) for one in mine[:5]] == ["paying"] * 5
    with pytest.raises(TooManyDeclines) as refused:
        await shop.pay(mine[5])
    assert (refused.value.per, refused.value.retry_in, refused.value.transient) == ("buyer", 5.0, True)


async def test_live_and_test_are_counted_apart(shop: Shop) -> None:
    """A buyer's name means another person there."""
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, one) for one in await holds(shop, 6)][-1] == "buyer"
    library = Earmark(shop.engine, mode=Mode.TEST)
    await library.create_event("rehearsal", name="A rehearsal", currency="EUR", seats={"A1": 4500})
    held = await library.hold("rehearsal", buyer="alice", seats=["A1"])
    _, booking = await shop.store.read_booking(BookingId(UUID(held.id)))
    assert booking is not None
    shop.actor = Actor(name="test", mode=Mode.TEST)
    shop.gateway.says["authorise"] = AUTHORISED
    assert await tried(shop, booking) == "confirmed"


@pytest.mark.parametrize("policy", [Policy(declines_per_hold_max=None, declines_per_buyer_max=None)])
async def test_without_limits_nothing_is_counted(shop: Shop, policy: Policy) -> None:
    """For shops whose gateway limits declines itself."""
    shop.engine.policy = policy
    [held] = await holds(shop, 1)
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, held) for _ in range(7)] == ["held"] * 7


async def buyers_at_one_address(shop: Shop, number: int, *, first: int = 0) -> list[Booking]:
    """So many holds, each of another buyer."""
    held = range(first, first + number)
    await shop.open_another(f"hall-{first}", seats={f"S{seat}": 4500 for seat in held})
    return [await shop.hold(f"S{seat}", event=f"hall-{first}", buyer=f"guest-{seat}") for seat in held]


async def test_the_buyers_at_an_address_are_declined_twenty_times_an_hour_at_most(shop: Shop) -> None:
    """A guest is made in a moment, an address is not. Other addresses, and buyers without one, are not limited."""
    mine = await buyers_at_one_address(shop, 25)
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, one, address="here") for one in mine] == ["held"] * 20 + ["address"] * 5
    assert shop.gateway.calls.count("authorise") == 20
    with pytest.raises(TooManyDeclines) as refused:
        await shop.pay(mine[24], address="here")
    assert (refused.value.limit, refused.value.transient) == (20, True)
    assert refused.value.retry_in is not None
    assert 0 < refused.value.retry_in <= 3600
    shop.gateway.says["authorise"] = AUTHORISED
    assert await tried(shop, mine[22], address="there") == "confirmed"
    assert await tried(shop, mine[23]) == "confirmed"
    shop.clock.advance(refused.value.retry_in)
    assert await tried(shop, (await buyers_at_one_address(shop, 1, first=30))[0], address="here") == "confirmed"


async def test_an_address_of_many_paying_buyers_is_not_bounded(shop: Shop) -> None:
    """What succeeds does not count, and what is open counts for a third."""
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    shop.engine.policy = Policy(declines_per_address_max=3)
    said = [await tried(shop, one, address="office") for one in await buyers_at_one_address(shop, 10)]
    assert said == ["paying"] * 9 + ["address"]
    shop.gateway.says |= {"authorise": AUTHORISED, "status": AUTHORISED}
    await shop.reconcile(seconds=60)
    said = [await tried(shop, one, address="office") for one in await buyers_at_one_address(shop, 10, first=50)]
    assert said == ["confirmed"] * 10


async def test_a_buyers_name_is_never_an_address(shop: Shop) -> None:
    """Each has a row of its own, and no buyer the limit of an address."""
    shop.gateway.says["authorise"] = DECLINED
    mine = await holds(shop, 8, buyer="address:here")
    assert [await tried(shop, one, address="here") for one in mine] == ["held"] * 5 + ["buyer"] * 3


async def test_without_the_limit_no_address_is_counted(shop: Shop) -> None:
    """The control: as many guests, as many tries."""
    shop.engine.policy = Policy(declines_per_address_max=None)
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, one, address="here") for one in await buyers_at_one_address(shop, 25)] == ["held"] * 25
