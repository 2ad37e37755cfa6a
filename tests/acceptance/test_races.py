"""Many buyers at once, over one server process or two: nobody is sold what another has."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from .support import Caller, Service, answered, eventually, refused, unique

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

CROWD = 500


async def in_crowd(
    tills: list[Caller], count: int, ask: Callable[[Caller, int], Awaitable[httpx2.Response]]
) -> list[httpx2.Response]:
    """The same question from many at once, spread over the servers, all set off by one signal."""
    gate = asyncio.Event()

    async def one(n: int) -> httpx2.Response:
        await gate.wait()
        return await ask(tills[n % len(tills)], n)

    tasks = [asyncio.create_task(one(n)) for n in range(count)]
    gate.set()
    return await asyncio.gather(*tasks)


async def test_of_five_hundred_buyers_one_gets_the_seat(tills: list[Caller]) -> None:
    """One 201 and 499 refusals that name the seat; everybody is answered."""
    event = await tills[0].theatre(rows=1, seats_per_row=2)
    responses = await in_crowd(tills, CROWD, lambda till, n: till.hold(event, buyer=f"buyer-{n}", seats=["A1"]))
    assert Counter(response.status_code for response in responses) == {201: 1, 409: CROWD - 1}
    winner = next(response.json() for response in responses if response.status_code == 201)
    for response in responses:
        if response.status_code == 409:
            assert refused(response, 409, "seats_taken")["seats"] == ["A1"]
    found = await tills[-1].bookings(event_id=event)
    assert [booking["id"] for booking in found] == [winner["id"]]
    assert await tills[-1].states(event) == {"A1": "held", "A2": "available"}


async def test_a_lapsed_seat_goes_to_one_of_the_crowd(tills: list[Caller]) -> None:
    """The moment of expiry is contended too: one new owner, and the old one cannot come back."""
    event = await tills[0].theatre(rows=1, seats_per_row=1)
    old = await tills[0].held(event, buyer="old", seats=["A1"], ttl_seconds=1)
    won: list[str] = []

    async def chase(n: int) -> None:
        till = tills[n % len(tills)]

        async def attempt() -> httpx2.Response:
            return await till.hold(event, buyer=f"buyer-{n}", seats=["A1"])

        response = await eventually(attempt, lambda response: response.status_code == 201 or bool(won))
        if response.status_code == 201:
            won.append(response.json()["id"])

    await asyncio.gather(*(chase(n) for n in range(20)))
    assert len(won) == 1
    assert await tills[0].state(old["id"]) == "expired"
    assert await tills[0].state(won[0]) == "held"
    refused(await tills[0].confirm(old["id"]), 410, "booking_expired")


async def test_one_server_holds_and_the_other_confirms(two_tills: list[Caller]) -> None:
    """The two phases may run on different servers; all see the same booking and the same map."""
    first, second = two_tills
    event = await first.theatre()
    booking = await first.held(event, seats=["A1", "A2"])
    assert await second.state(booking["id"]) == "held"
    refused(await second.hold(event, buyer="bob", seats=["A2"]), 409, "seats_taken")
    answered(await second.extend(booking["id"]), 200)
    answered(await second.confirm(booking["id"]), 200)
    assert await first.state(booking["id"]) == "confirmed"
    assert (await first.states(event))["A1"] == "booked"
    answered(await first.cancel(booking["id"]), 200)
    await second.held_again(event, buyer="bob", seats=["A1", "A2"])


async def test_a_buyers_limit_holds_against_fifty_requests_at_once(two_tills: list[Caller]) -> None:
    """Whatever one buyer sends at once, to whichever server, they have exactly what the limit allows."""
    event = await two_tills[0].theatre(
        rows=5, seats_per_row=5, per_buyer_max=4, pools=[{"id": "GA", "capacity": 100, "price": 2500}]
    )
    names = sorted(await two_tills[0].states(event))

    def ask(till: Caller, n: int) -> Awaitable[httpx2.Response]:
        if n < 25:
            return till.hold(event, buyer="ann", seats=[names[n]])
        return till.hold(event, buyer="ann", pools={"GA": 1})

    responses = await in_crowd(two_tills, 50, ask)
    assert Counter(response.status_code for response in responses) == {201: 4, 409: 46}
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "limit_exceeded")
    live = await two_tills[1].bookings(event_id=event, buyer="ann", state="held")
    units = sum(len(booking["seats"]) + sum(line["units"] for line in booking["pools"]) for booking in live)
    assert units == 4


async def test_one_key_from_twenty_requests_makes_one_booking(tills: list[Caller]) -> None:
    """The first is carried out and the rest replay it; one that is told to wait replays when it comes back."""
    event = await tills[0].theatre(rows=2, seats_per_row=10)
    key = unique("key")

    async def ask(till: Caller, _: int) -> httpx2.Response:
        return await eventually(
            lambda: till.hold(event, buyer="ann", seats=["A1", "A2"], idempotency_key=key),
            lambda response: response.status_code != 409 or refused(response, 409)["code"] != "idempotency_in_progress",
        )

    responses = await in_crowd(tills, 20, ask)
    assert {response.status_code for response in responses} == {201}
    assert len({response.content for response in responses}) == 1
    marks = Counter(response.headers.get("idempotency-replayed") for response in responses)
    assert marks == {None: 1, "true": 19}
    assert len(await tills[-1].bookings(event_id=event)) == 1


async def test_a_double_click_on_confirm_sells_once(tills: list[Caller]) -> None:
    """Twenty equal confirms at once are one sale and twenty equal answers."""
    event = await tills[0].theatre()
    booking = await tills[0].held(event, seats=["A1"])
    responses = await in_crowd(tills, 20, lambda till, _: till.confirm(booking["id"]))
    assert {answered(response, 200)["state"] for response in responses} == {"confirmed"}
    assert len({response.json()["confirmed_at"] for response in responses}) == 1
    assert [entry["verb"] for entry in await tills[-1].history(booking["id"])] == ["hold", "confirm"]


async def test_two_payments_for_one_booking_have_one_winner(tills: list[Caller]) -> None:
    """Of twenty confirms with different payments one makes the sale, and the others hear that it is made."""
    event = await tills[0].theatre()
    booking = await tills[0].held(event, seats=["A1"])
    payment = unique("pay")
    responses = await in_crowd(tills, 20, lambda till, n: till.confirm(booking["id"], payment_id=f"{payment}-{n}"))
    assert Counter(response.status_code for response in responses) == {200: 1, 409: 19}
    winner = next(response.json() for response in responses if response.status_code == 200)
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "booking_resolved")
    assert (await tills[-1].booking(booking["id"]))["payment_id"] == winner["payment_id"]


async def test_one_payment_for_many_bookings_has_one_winner(tills: list[Caller]) -> None:
    """The same money shown to ten bookings at once buys one of them."""
    event = await tills[0].theatre()
    held = [
        await tills[0].held(event, buyer=f"buyer-{n}", seats=[seat])
        for n, seat in enumerate(sorted(await tills[0].states(event)))
    ]
    payment = unique("pay")
    responses = await in_crowd(tills, len(held), lambda till, n: till.confirm(held[n]["id"], payment_id=payment))
    assert Counter(response.status_code for response in responses) == {200: 1, 409: len(held) - 1}
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "payment_used")
    assert Counter((await tills[-1].states(event)).values()) == {"booked": 1, "held": len(held) - 1}


async def test_confirm_and_release_at_once_have_one_winner(tills: list[Caller]) -> None:
    """A booking resolves once: one of the two is carried out, and the state is the one acknowledged."""
    event = await tills[0].theatre(rows=2, seats_per_row=10)
    outcomes = Counter[str]()
    for n, seat in enumerate(sorted(await tills[0].states(event))):
        booking = (await tills[0].held(event, buyer=f"buyer-{n}", seats=[seat]))["id"]
        confirm, release = tills[0].confirm(booking), tills[-1].release(booking)
        if n % 2:
            confirmed, released = await asyncio.gather(confirm, release)
        else:
            released, confirmed = await asyncio.gather(release, confirm)
        assert {confirmed.status_code, released.status_code} == {200, 409}
        refused(confirmed if confirmed.status_code == 409 else released, 409, "booking_resolved")
        state = await tills[0].state(booking)
        assert state == ("confirmed" if confirmed.status_code == 200 else "released")
        outcomes[state] += 1
    assert outcomes.total() == 20


async def test_opposite_orders_do_not_lock_each_other_out(tills: list[Caller]) -> None:
    """Buyers who name the same seats in opposite orders are all answered, and one of them has them all."""
    event = await tills[0].theatre(rows=1, seats_per_row=4)
    names = ["A1", "A2", "A3", "A4"]
    responses = await in_crowd(
        tills, 60, lambda till, n: till.hold(event, buyer=f"buyer-{n}", seats=names if n % 2 else names[::-1])
    )
    assert Counter(response.status_code for response in responses) == {201: 1, 409: 59}
    assert set((await tills[-1].states(event)).values()) == {"held"}


@pytest.mark.parametrize("refused_by", ["seats_taken", "pool_exhausted"])
async def test_of_a_crowd_that_is_refused_nothing_remains(tills: list[Caller], refused_by: str) -> None:
    """Refused requests leave no booking and no unit behind, however many there are."""
    event = await tills[0].theatre(rows=1, seats_per_row=2, pools=[{"id": "GA", "capacity": 3, "price": 2500}])
    await tills[0].held(event, buyer="first", seats=["A1"], pools={"GA": 2})
    before = await tills[0].picture(event)
    claim = {"seats": ["A1", "A2"], "pools": {"GA": 1}} if refused_by == "seats_taken" else {"pools": {"GA": 2}}
    responses = await in_crowd(tills, 60, lambda till, n: till.hold(event, buyer=f"buyer-{n}", **claim))
    for response in responses:
        refused(response, 409, refused_by)
    assert await tills[-1].picture(event) == before


async def test_the_servers_counted_what_they_did(services: tuple[Service, ...], two_tills: list[Caller]) -> None:
    """The metrics of each server speak Prometheus and name the verbs."""
    for service, till in zip(services, two_tills, strict=True):
        response = await till.http.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(("text/plain", "application/openmetrics-text"))
        assert re.search(r"^earmark_\w+(\{.*\})? [0-9.e+]+$", response.text, re.MULTILINE), service.url
