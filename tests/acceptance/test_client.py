"""The client at a real server: the library's values and errors, and one effect however often the answer is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark import Earmark, Layout, Map, PoolChange, SeatChange, State
from earmark.client import AsyncClient, Client
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import (
    BookingUnknown,
    EventUnknown,
    Forbidden,
    InvalidRequest,
    PaymentDeclined,
    PoolExhausted,
    Refusal,
    SeatsTaken,
    Unauthorized,
    Unreachable,
)
from earmark.testing import open_in_memory

from .lossy_proxy import lossy_proxy
from .support import Service, become_guest, calling, timeless, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Shop = Earmark | AsyncClient

CARD, DECLINED = "pm_card_visa", "pm_card_visa_chargeDeclined"
OWN = {"id", "booking_id", "payment_id", "event_id", "version", "actor", "facts", "changes", "at", "gateway_id"}
"""What two runs of `use_every_verb` name differently."""


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.url, key=service.key) as client:
        yield client


async def refusal_of(asked: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await asked
    return refused.value


async def use_every_verb(shop: Shop, event_id: str) -> list[Any]:
    """Call every verb once or more; what each step returned or raised."""
    results: list[Any] = [
        await shop.create_event(
            event_id,
            name="A play",
            currency="EUR",
            layout=Layout(rows=2, seats_per_row=3, price=4500),
            pools={"GA": (4, 1200)},
            per_buyer_max=5,
            refund_fee_percent=10,
        )
    ]
    held = await shop.hold(event_id, buyer="alice", seats=["A1", "A2"], pools={"GA": 1}, ttl_seconds=300)
    results += [held, await shop.extend(held.id, seconds=60), await shop.explain(event_id, "A1")]
    results += [await refusal_of(shop.hold(event_id, buyer="bob", seats=["A2", "A3"]))]
    results += [await refusal_of(shop.hold(event_id, buyer="bob", pools={"GA": 4}))]
    results += [await refusal_of(shop.hold(event_id, buyer="bob", seats=["Z9"]))]
    results += [await refusal_of(shop.hold(event_id, buyer="bob"))]
    results += [await refusal_of(shop.hold(event_id, buyer="bob", seats=["A3"], ttl_seconds=0))]
    results += [await refusal_of(shop.pay(held.id, method=DECLINED))]
    results += [await shop.pay(held.id, method=CARD), *(await shop.payments(held.id))]
    results += [await shop.cancel(held.id, seats=["A2"]), await shop.refund(held.id, amount=100, reason="sorry")]
    results += [await refusal_of(shop.refund(held.id, amount=10_000_000))]
    other = await shop.hold(event_id, buyer="bob", seats=["B1"])
    results += [await shop.confirm(other.id, payment_id=f"till-{event_id}", payment_method="cash")]
    results += [await refusal_of(shop.release(other.id)), await shop.release((await last(shop, event_id)).id)]
    changes = {"seats": [SeatChange(id="B3", blocked=True)], "pools": [PoolChange(id="GA", capacity=9)]}
    results += [await shop.change_event(event_id, per_buyer_max=None, **changes)]  # type: ignore[arg-type]
    results += [await shop.event(event_id), await shop.map(event_id), await shop.seat(event_id, "B3")]
    results += [await shop.booking(other.id), *(await shop.history(held.id))[:4]]
    results += [booking async for booking in shop.bookings(event_id=event_id)]
    results += [booking async for booking in shop.bookings(event_id=event_id, state="confirmed", buyer="bob")]
    results += [await refusal_of(shop.booking("no-id")), await refusal_of(shop.map("nowhere"))]
    return results


async def last(shop: Shop, event_id: str) -> Any:
    """A hold to release."""
    return await shop.hold(event_id, buyer="carol", seats=["B2"])


def without_ids(results: Any) -> Any:
    """Types and values, without ids and moments."""
    if isinstance(results, Refusal):
        return type(results), sorted(results.facts())
    values = timeless(msgspec.to_builtins(results))
    plain = {name: value for name, value in values.items() if name not in OWN and not name.endswith("_at")}
    if isinstance(values.get("payment"), dict):  # refunds go on behind the answer
        plain["payment"] = {name: plain["payment"][name] for name in ("gateway", "method", "captured", "amount")}
    return type(results), plain


async def test_the_library_and_the_client_return_the_same_values(client: AsyncClient) -> None:
    """Code moves from the library to the service by changing one line: same types, same values, same errors."""
    event_id = unique("use_every_verb")
    async with open_in_memory(mode=Mode.TEST) as here:
        results_here = await use_every_verb(here, event_id)
        listed = [event.id async for event in here.events()]
    results_there = await use_every_verb(client, event_id)
    assert [without_ids(each) for each in results_there] == [without_ids(each) for each in results_here]
    assert {type(each) for each in results_here} >= {SeatsTaken, PoolExhausted, PaymentDeclined, InvalidRequest}
    assert isinstance(results_there[-1], EventUnknown)
    assert isinstance(results_there[-2], BookingUnknown)
    assert listed == [event_id]
    assert event_id in [event.id async for event in client.events()]
    both = (results_here, results_there)
    (mine,), (theirs,) = ([each for each in results if isinstance(each, Map)] for results in both)
    assert mine.version == theirs.version, "a map has one name, in the library and over HTTP"


def test_the_synchronous_client_returns_the_same_values(service: Service) -> None:
    """For scripts, shells and threaded frameworks."""
    event_id = unique("plain")
    with Client(service.url, key=service.key) as earmark:
        earmark.create_event(event_id, name="A play", currency="EUR", seats={"A1": 4500, "A2": 4500})
        held = earmark.hold(event_id, buyer="alice", seats=["A1"])
        assert earmark.extend(held.id, seconds=60).expires_at > held.expires_at
        assert earmark.confirm(held.id, payment_id=f"till-{held.id}").state is State.CONFIRMED
        with pytest.raises(SeatsTaken) as refused:
            earmark.hold(event_id, buyer="bob", seats=["A1"])
        assert refused.value.seats == ["A1"]
        assert earmark.cancel(held.id).state is State.CANCELLED
        assert [booking.id for booking in earmark.bookings(event_id=event_id)] == [held.id]


async def test_long_lists_are_read_page_by_page(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops early has read no more pages than it needed."""
    monkeypatch.setattr("earmark.client.http_messages.PAGE_SIZE", "2")
    event_id = unique("pages")
    await client.create_event(event_id, name="A play", currency="EUR", pools={"GA": (9, 0)})
    held = [(await client.hold(event_id, buyer=f"b{number}", pools={"GA": 1})).id for number in range(5)]
    assert [booking.id async for booking in client.bookings(event_id=event_id)] == held


async def test_a_buyers_token_is_a_key_with_fewer_rights(service: Service) -> None:
    """The same client, and the server's own error for what the token may not do."""
    event_id = unique("guest")
    async with calling(service, token="") as anonymous, AsyncClient(service.url, key=service.key) as shop:
        await shop.create_event(event_id, name="A play", currency="EUR", seats={"A1": 4500})
        buyer, token = await become_guest(anonymous)
        async with AsyncClient(service.url, key=token) as guest, AsyncClient(service.url) as stranger:
            held = await guest.hold(event_id, buyer=buyer, seats=["A1"])
            with pytest.raises(Forbidden):
                await guest.confirm(held.id, payment_id="mine")
            with pytest.raises(Unauthorized):
                await stranger.event(event_id)


async def test_a_client_retries_a_lost_answer_and_nothing_happens_twice(service: Service) -> None:
    """Hold, pay, cancel and refund, each with its first two answers lost: one effect each."""
    event_id = unique("lossy")
    async with lossy_proxy(service.port) as line, AsyncClient(line.url, key=service.key) as earmark:
        for number, step in enumerate(("create", "hold", "pay", "refund", "cancel"), start=1):
            line.lose(2 * number)
            if step == "create":
                await earmark.create_event(event_id, name="A play", currency="EUR", pools={"GA": (10, 1000)})
            elif step == "hold":
                held = await earmark.hold(event_id, buyer="alice", pools={"GA": 3})
            elif step == "pay":
                assert (await earmark.pay(held.id, method=CARD)).state is State.CONFIRMED
            elif step == "refund":
                await earmark.refund(held.id, amount=500)
            else:
                assert (await earmark.cancel(held.id, pools={"GA": 1})).state is State.CONFIRMED
            assert line.lost == 2 * number, step
        (pool,) = (await earmark.map(event_id)).pools
        assert (pool.held, pool.sold) == (0, 2)
        assert [booking.id async for booking in earmark.bookings(event_id=event_id)] == [held.id]
        (payment,) = await earmark.payments(held.id)
        assert (payment.captured, payment.refunding) == (3000, 1500)


async def test_without_retries_the_answer_stays_lost(service: Service) -> None:
    """The control: the server did it, and the caller does not know; with the key it can still be found out."""
    event_id = unique("lossy")
    async with lossy_proxy(service.port) as line, AsyncClient(line.url, key=service.key, retries=0) as earmark:
        await earmark.create_event(event_id, name="A play", currency="EUR", pools={"GA": (10, 1000)})
        line.lose(1)
        with pytest.raises(Unreachable) as lost:
            await earmark.hold(event_id, buyer="alice", pools={"GA": 3})
        (pool,) = (await earmark.map(event_id)).pools
        assert pool.held == 3
        again = await earmark.hold(event_id, buyer="alice", pools={"GA": 3}, key=lost.value.key)
        assert [booking.id async for booking in earmark.bookings(event_id=event_id)] == [again.id]


async def test_many_buyers_over_a_lossy_connection_buy_each_seat_once(service: Service) -> None:
    """Ten buyers, five seats, thirty lost answers."""
    event_id = unique("crowd")
    seats = [f"A{number}" for number in range(1, 6)]
    async with lossy_proxy(service.port) as line, AsyncClient(line.url, key=service.key, retries=20) as earmark:
        await earmark.create_event(event_id, name="A play", currency="EUR", seats=dict.fromkeys(seats, 1))

        async def buy(number: int) -> str:
            try:
                held = await earmark.hold(event_id, buyer=f"b{number}", seats=[seats[number % 5]])
                return (await earmark.confirm(held.id, payment_id=f"{event_id}-{number}")).state
            except SeatsTaken as refused:
                return refused.code

        line.lose(30)
        outcomes = await asyncio.gather(*(buy(number) for number in range(10)))
        assert sorted(outcomes) == ["confirmed"] * 5 + ["seats_taken"] * 5
        assert len([one async for one in earmark.bookings(event_id=event_id)]) == 5


async def test_a_key_says_what_became_of_its_request(client: AsyncClient) -> None:
    """For a client that lost an answer and does not want to send the request again."""
    play, key = unique("play"), unique("key")
    await client.create_event(play, name="A play", currency="EUR", seats={"A1": 100})
    held = await client.hold(play, buyer="alice", seats=["A1"], key=key)
    recalled = await client.idempotency(key)
    assert (recalled.state, recalled.status, recalled.booking_id) == ("done", 201, held.id)
    assert (await client.idempotency(unique("key"))).state == "unknown"


async def test_a_token_is_valid_for_its_buyer_alone(service: Service, client: AsyncClient) -> None:
    """A shop gives such a token to a browser."""
    play = unique("play")
    await client.create_event(play, name="A play", currency="EUR", seats={"A1": 100, "A2": 100})
    theirs = await client.hold(play, buyer="bob", seats=["A1"])
    token = await client.token("alice", seconds=600)
    async with AsyncClient(service.url, key=token.token) as alice:
        assert (await alice.hold(play, buyer="alice", seats=["A2"])).buyer == "alice"
        with pytest.raises(BookingUnknown):
            await alice.booking(theirs.id)


async def test_an_event_is_followed_from_its_map_on(client: AsyncClient) -> None:
    """The whole map first, and then the changes of other buyers."""
    play = unique("play")
    await client.create_event(play, name="A play", currency="EUR", seats={"A1": 100, "A2": 100})
    async with asyncio.timeout(120):
        async for update in client.stream(play):
            if isinstance(update, Map):
                assert {seat.id: seat.state for seat in update.seats} == {"A1": "available", "A2": "available"}
                await client.hold(play, buyer="alice", best_available={"count": 2})
            elif {seat.state for seat in update.seats} == {"held"}:
                break
    assert {seat.id for seat in update.seats} <= {"A1", "A2"}
