"""Many buyers at once, over one server process or two: no seat is sold to two buyers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .support import Caller, answered, eventually, refused, unique

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

CLIENTS = 500


async def at_once(
    callers: list[Caller], count: int, ask: Callable[[Caller, int], Awaitable[httpx2.Response]]
) -> list[httpx2.Response]:
    """The same request from many clients at once, spread over the servers, all started by one signal."""
    gate = asyncio.Event()

    async def one(n: int) -> httpx2.Response:
        await gate.wait()
        return await ask(callers[n % len(callers)], n)

    tasks = [asyncio.create_task(one(n)) for n in range(count)]
    gate.set()
    return await asyncio.gather(*tasks)


async def test_of_five_hundred_buyers_one_gets_the_seat(callers: list[Caller]) -> None:
    """One 201 and 499 refusals that name the seat; every request is answered."""
    event = await callers[0].theatre(rows=1, seats_per_row=2)
    responses = await at_once(callers, CLIENTS, lambda caller, n: caller.hold(event, buyer=f"buyer-{n}", seats=["A1"]))
    assert Counter(response.status_code for response in responses) == {201: 1, 409: CLIENTS - 1}
    winner = next(response.json() for response in responses if response.status_code == 201)
    for response in responses:
        if response.status_code == 409:
            assert refused(response, 409, "seats_taken")["seats"] == ["A1"]
    found = await callers[-1].bookings(event_id=event)
    assert [booking["id"] for booking in found] == [winner["id"]]
    assert await callers[-1].states(event) == {"A1": "held", "A2": "available"}


async def chased(hold: Callable[[int], Awaitable[str | None]], *, count: int) -> list[str]:
    """The bookings of buyers that got the seat. Each retries until it has it, or is refused after another got it."""
    won: list[str] = []

    async def chase(n: int) -> None:
        async def attempt() -> bool:
            is_sold = bool(won)
            if booking := await hold(n):
                won.append(booking)
            return bool(booking) or is_sold

        await eventually(attempt, lambda over: over)

    await asyncio.gather(*(chase(n) for n in range(count)))
    return won


async def test_retrying_buyers_notice_a_second_sale_after_the_first() -> None:
    """The control: a seat that is sold again a moment later. Clients that stop at the first winner miss that."""
    asked: list[int] = []

    async def hold(n: int) -> str | None:
        asked.append(n)
        turn = len(asked)
        await asyncio.sleep(0)
        return f"booking of {n}" if turn in {7, 30} else None

    assert await chased(hold, count=20) == ["booking of 6", f"booking of {asked[29]}"]


async def test_a_lapsed_seat_goes_to_one_of_many_buyers(callers: list[Caller]) -> None:
    """The moment of expiry is contended too: one new owner, and the old one cannot get the seat back."""
    event = await callers[0].theatre(rows=1, seats_per_row=1)
    old = await callers[0].held(event, buyer="old", seats=["A1"], ttl_seconds=1)

    async def hold(n: int) -> str | None:
        response = await callers[n % len(callers)].hold(event, buyer=f"buyer-{n}", seats=["A1"])
        if response.status_code == 201:
            return str(response.json()["id"])
        refused(response, 409, "seats_taken")
        return None

    won = await chased(hold, count=20)
    assert len(won) == 1
    assert await callers[0].state(old["id"]) == "expired"
    assert await callers[0].state(won[0]) == "held"
    refused(await callers[0].confirm(old["id"]), 410, "booking_expired")


async def test_one_server_holds_and_the_other_confirms(two_callers: list[Caller]) -> None:
    """The two phases may run on different servers; all see the same booking and the same map."""
    first, second = two_callers
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


async def test_a_buyers_limit_holds_against_fifty_requests_at_once(two_callers: list[Caller]) -> None:
    """Whatever one buyer sends at once, to whichever server, they have exactly what the limit allows."""
    event = await two_callers[0].theatre(
        rows=5, seats_per_row=5, per_buyer_max=4, pools=[{"id": "GA", "capacity": 100, "price": 2500}]
    )
    names = sorted(await two_callers[0].states(event))

    def ask(caller: Caller, n: int) -> Awaitable[httpx2.Response]:
        if n < 25:
            return caller.hold(event, buyer="ann", seats=[names[n]])
        return caller.hold(event, buyer="ann", pools={"GA": 1})

    responses = await at_once(two_callers, 50, ask)
    assert Counter(response.status_code for response in responses) == {201: 4, 409: 46}
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "limit_exceeded")
    live = await two_callers[1].bookings(event_id=event, buyer="ann", state="held")
    units = sum(len(booking["seats"]) + sum(line["units"] for line in booking["pools"]) for booking in live)
    assert units == 4


async def test_one_key_from_twenty_requests_makes_one_booking(callers: list[Caller]) -> None:
    """The first is carried out and the rest replay it; a request answered "in progress" replays on its retry."""
    event = await callers[0].theatre(rows=2, seats_per_row=10)
    key = unique("key")

    async def ask(caller: Caller, _: int) -> httpx2.Response:
        return await eventually(
            lambda: caller.hold(event, buyer="ann", seats=["A1", "A2"], idempotency_key=key),
            lambda response: response.status_code != 409 or refused(response, 409)["code"] != "idempotency_in_progress",
        )

    responses = await at_once(callers, 20, ask)
    assert {response.status_code for response in responses} == {201}
    assert len({response.content for response in responses}) == 1
    marks = Counter(response.headers.get("idempotency-replayed") for response in responses)
    assert marks == {None: 1, "true": 19}
    assert len(await callers[-1].bookings(event_id=event)) == 1


async def test_a_double_click_on_confirm_sells_once(callers: list[Caller]) -> None:
    """Twenty equal confirms at once are one sale and twenty equal answers."""
    event = await callers[0].theatre()
    booking = await callers[0].held(event, seats=["A1"])
    responses = await at_once(callers, 20, lambda caller, _: caller.confirm(booking["id"]))
    assert {answered(response, 200)["state"] for response in responses} == {"confirmed"}
    assert len({response.json()["confirmed_at"] for response in responses}) == 1
    assert [entry["verb"] for entry in await callers[-1].history(booking["id"])] == ["hold", "confirm"]


async def test_two_payments_for_one_booking_have_one_winner(callers: list[Caller]) -> None:
    """Of twenty confirms with different payments one makes the sale, and the others are refused."""
    event = await callers[0].theatre()
    booking = await callers[0].held(event, seats=["A1"])
    payment = unique("pay")
    responses = await at_once(callers, 20, lambda caller, n: caller.confirm(booking["id"], payment_id=f"{payment}-{n}"))
    assert Counter(response.status_code for response in responses) == {200: 1, 409: 19}
    winner = next(response.json() for response in responses if response.status_code == 200)
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "booking_resolved")
    assert (await callers[-1].booking(booking["id"]))["payment_id"] == winner["payment_id"]


async def test_one_payment_for_many_bookings_has_one_winner(callers: list[Caller]) -> None:
    """The same money shown to ten bookings at once buys one of them."""
    event = await callers[0].theatre()
    held = [
        await callers[0].held(event, buyer=f"buyer-{n}", seats=[seat])
        for n, seat in enumerate(sorted(await callers[0].states(event)))
    ]
    payment = unique("pay")
    responses = await at_once(callers, len(held), lambda caller, n: caller.confirm(held[n]["id"], payment_id=payment))
    assert Counter(response.status_code for response in responses) == {200: 1, 409: len(held) - 1}
    for response in responses:
        if response.status_code == 409:
            refused(response, 409, "payment_used")
    assert Counter((await callers[-1].states(event)).values()) == {"booked": 1, "held": len(held) - 1}


async def test_confirm_and_release_at_once_have_one_winner(callers: list[Caller]) -> None:
    """A booking resolves once: one of the two is carried out, and the state is the one acknowledged."""
    event = await callers[0].theatre(rows=2, seats_per_row=10)
    outcomes = Counter[str]()
    for n, seat in enumerate(sorted(await callers[0].states(event))):
        booking = (await callers[0].held(event, buyer=f"buyer-{n}", seats=[seat]))["id"]
        confirm, release = callers[0].confirm(booking), callers[-1].release(booking)
        if n % 2:
            confirmed, released = await asyncio.gather(confirm, release)
        else:
            released, confirmed = await asyncio.gather(release, confirm)
        assert {confirmed.status_code, released.status_code} == {200, 409}
        refused(confirmed if confirmed.status_code == 409 else released, 409, "booking_resolved")
        state = await callers[0].state(booking)
        assert state == ("confirmed" if confirmed.status_code == 200 else "released")
        outcomes[state] += 1
    assert outcomes.total() == 20


async def test_opposite_orders_do_not_deadlock(callers: list[Caller]) -> None:
    """Buyers who name the same seats in opposite orders are all answered, and one of them has them all."""
    event = await callers[0].theatre(rows=1, seats_per_row=4)
    names = ["A1", "A2", "A3", "A4"]
    responses = await at_once(
        callers, 60, lambda caller, n: caller.hold(event, buyer=f"buyer-{n}", seats=names if n % 2 else names[::-1])
    )
    assert Counter(response.status_code for response in responses) == {201: 1, 409: 59}
    assert set((await callers[-1].states(event)).values()) == {"held"}


@pytest.mark.parametrize("refused_by", ["seats_taken", "pool_exhausted"])
async def test_many_refused_requests_leave_nothing_behind(callers: list[Caller], refused_by: str) -> None:
    """Refused requests leave no booking and no unit behind, however many there are."""
    event = await callers[0].theatre(rows=1, seats_per_row=2, pools=[{"id": "GA", "capacity": 3, "price": 2500}])
    await callers[0].held(event, buyer="first", seats=["A1"], pools={"GA": 2})
    before = await callers[0].picture(event)
    claim = {"seats": ["A1", "A2"], "pools": {"GA": 1}} if refused_by == "seats_taken" else {"pools": {"GA": 2}}
    responses = await at_once(callers, 60, lambda caller, n: caller.hold(event, buyer=f"buyer-{n}", **claim))
    for response in responses:
        refused(response, 409, refused_by)
    assert await callers[-1].picture(event) == before


Counts = dict[tuple[str, str], float]
"""By the metric's name and its labels' values."""
COUNTERS = {
    "earmark_verbs_total": ("verb", "outcome"),
    "earmark_conflicts_total": ("reason",),
    "earmark_idempotency_total": ("outcome",),
    "earmark_responses_total": ("status",),
}


def counted(page: str) -> Counts:
    """What a page of metrics says of calls."""
    return {
        (sample.name, " ".join(sample.labels[label] for label in COUNTERS[sample.name])): float(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in COUNTERS
    }


async def counted_by_now(caller: Caller) -> Counts:
    """All that was answered so far. Pages of one second are one; each answer is counted, so a newer page says more."""

    async def read() -> Counts:
        response = await caller.http.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(("text/plain", "application/openmetrics-text"))
        return counted(response.text)

    first = await read()
    return await eventually(read, lambda seen: seen != first)


def grown(before: Counts, after: Counts) -> Counts:
    """By how much each has grown, without the pages themselves."""
    grew = {name: value - before.get(name, 0.0) for name, value in after.items()}
    grew["earmark_responses_total", "200"] -= grew.pop(("earmark_verbs_total", "metrics ok"))
    return {name: by for name, by in grew.items() if by}


async def test_the_servers_counted_what_they_did(two_callers: list[Caller]) -> None:
    """Each server the calls that it answered: by verb and outcome, by status and by reason, and not one more."""
    first, second = two_callers
    event = await first.theatre(rows=1, seats_per_row=2)
    before = await asyncio.gather(*map(counted_by_now, two_callers))
    key = unique("key")
    booking = answered(await first.hold(event, buyer="ann", seats=["A1"], idempotency_key=key), 201)
    answered(await first.hold(event, buyer="ann", seats=["A1"], idempotency_key=key), 201)
    refused(await first.hold(event, buyer="bob", seats=["A1"]), 409, "seats_taken")
    refused(await second.hold(event, buyer="bob", seats=["A1", "A2"]), 409, "seats_taken")
    refused(await second.hold(event, buyer="bob", seats=["Z9"]), 404, "seat_unknown")
    answered(await second.confirm(booking["id"]), 200)
    after = await asyncio.gather(*map(counted_by_now, two_callers))
    assert [grown(*both) for both in zip(before, after, strict=True)] == [
        {
            ("earmark_verbs_total", "hold ok"): 2,
            ("earmark_verbs_total", "hold seats_taken"): 1,
            ("earmark_conflicts_total", "seats_taken"): 1,
            ("earmark_idempotency_total", "first"): 1,
            ("earmark_idempotency_total", "replay"): 1,
            ("earmark_responses_total", "201"): 2,
            ("earmark_responses_total", "409"): 1,
        },
        {
            ("earmark_verbs_total", "hold seats_taken"): 1,
            ("earmark_verbs_total", "hold seat_unknown"): 1,
            ("earmark_verbs_total", "confirm ok"): 1,
            ("earmark_conflicts_total", "seats_taken"): 1,
            ("earmark_responses_total", "200"): 1,
            ("earmark_responses_total", "409"): 1,
            ("earmark_responses_total", "404"): 1,
        },
    ]
