"""Counted stock: what is free, held and sold always adds up to the capacity."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from .support import Caller, Json, answered, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

STOCK = [{"id": "GA", "capacity": 100, "price": 2500}]


def added_up(pool: Json) -> Json:
    """The pool, when its parts make its capacity and none is negative."""
    assert pool["available"] + pool["held"] + pool["sold"] == pool["capacity"], pool
    assert min(pool["available"], pool["held"], pool["sold"]) >= 0, pool
    return pool


async def test_a_hundred_less_ten_less_five_is_eighty_five(shop: Caller) -> None:
    """Two buyers at once lose no update."""
    event = (await shop.create_event(pools=STOCK))["id"]
    ten, five = await asyncio.gather(
        shop.held(event, buyer="ann", pools={"GA": 10}), shop.held(event, buyer="bob", pools={"GA": 5})
    )
    assert [line["units"] for line in (ten["pools"][0], five["pools"][0])] == [10, 5]
    assert ten["pools"][0]["id"] == "GA"
    assert (ten["total"]["amount"], five["total"]["amount"]) == (25_000, 12_500)
    assert (await shop.pool(event))["available"] == 85


async def test_the_last_unit_goes_to_one_buyer(callers: list[Caller]) -> None:
    """Fifty buyers request the last one; one has it and the others are refused."""
    event = (await callers[0].create_event(pools=[{"id": "GA", "capacity": 1, "price": 2500}]))["id"]
    responses = await asyncio.gather(
        *(callers[n % len(callers)].hold(event, buyer=f"buyer-{n}", pools={"GA": 1}) for n in range(50))
    )
    assert [response.status_code for response in responses].count(201) == 1
    for response in responses:
        if response.status_code != 201:
            refused(response, 409, "pool_exhausted")
    assert (await callers[-1].pool(event))["available"] == 0


async def test_too_many_units_are_refused_whole(shop: Caller) -> None:
    """No buyer gets a part of the requested units."""
    event = (await shop.create_event(pools=[{"id": "GA", "capacity": 5, "price": 2500}]))["id"]
    await shop.held(event, buyer="ann", pools={"GA": 3})
    refused(await shop.hold(event, buyer="bob", pools={"GA": 3}), 409, "pool_exhausted")
    assert (await shop.pool(event))["available"] == 2
    await shop.held(event, buyer="bob", pools={"GA": 2})


async def test_seats_and_units_are_had_together_or_not_at_all(shop: Caller) -> None:
    """A taken seat keeps the units free, an empty pool keeps the seat free."""
    pools = [{"id": "GA", "capacity": 2, "price": 2500}, {"id": "VIP", "capacity": 1, "price": 9000}]
    event = await shop.theatre(pools=pools)
    whole = await shop.held(event, buyer="ann", seats=["A1"], pools={"VIP": 1})
    assert whole["total"]["amount"] == 4500 + 9000
    refused(await shop.hold(event, buyer="bob", seats=["A1"], pools={"GA": 2}), 409, "seats_taken")
    assert (await shop.pool(event, "GA"))["available"] == 2
    refused(await shop.hold(event, buyer="bob", seats=["A2"], pools={"GA": 1, "VIP": 1}), 409, "pool_exhausted")
    assert (await shop.pool(event, "GA"))["available"] == 2
    assert (await shop.states(event))["A2"] == "available"


async def test_every_verb_moves_units_between_free_held_and_sold(shop: Caller) -> None:
    """Hold, confirm, cancel and release each move units and lose none."""
    event = (await shop.create_event(pools=STOCK))["id"]

    async def parts() -> tuple[int, int, int]:
        pool = added_up(await shop.pool(event))
        return (pool["available"], pool["held"], pool["sold"])

    assert await parts() == (100, 0, 0)
    first = await shop.held(event, buyer="ann", pools={"GA": 10})
    second = await shop.held(event, buyer="bob", pools={"GA": 5})
    assert await parts() == (85, 15, 0)
    answered(await shop.confirm(first["id"]), 200)
    assert await parts() == (85, 5, 10)
    answered(await shop.release(second["id"]), 200)
    assert await parts() == (90, 0, 10)
    answered(await shop.cancel(first["id"]), 200)
    assert await parts() == (100, 0, 0)
    for again in (await shop.release(second["id"]), await shop.cancel(first["id"])):
        answered(again, 200)
    assert await parts() == (100, 0, 0)


async def test_the_parts_add_up_while_many_buyers_buy(callers: list[Caller]) -> None:
    """At every read: free + held + sold = capacity, and in the end it matches what each buyer was answered."""
    event = (await callers[0].create_event(pools=[{"id": "GA", "capacity": 40, "price": 2500}]))["id"]
    # In turn, by order of success, so that every kind of end takes place.
    ends = itertools.cycle([["confirm"], ["release"], ["confirm", "cancel"], []])
    said: dict[str, str] = {}
    buying = True
    looked = 0

    async def buyer(n: int) -> None:
        caller = callers[n % len(callers)]
        response = await caller.hold(event, buyer=f"buyer-{n}", pools={"GA": 1 + n % 3})
        if response.status_code == 409:
            refused(response, 409, "pool_exhausted")
            return
        booking = answered(response, 201)["id"]
        said[booking] = "held"
        verbs: dict[str, Callable[[str], Awaitable[httpx2.Response]]] = {
            "confirm": caller.confirm,
            "release": caller.release,
            "cancel": caller.cancel,
        }
        for verb in next(ends):
            said[booking] = answered(await verbs[verb](booking), 200)["state"]

    async def look() -> None:
        nonlocal looked
        while buying:
            added_up(await callers[-1].pool(event))
            looked += 1

    async def buy_all() -> None:
        nonlocal buying
        try:
            await asyncio.gather(*(buyer(n) for n in range(80)))
        finally:
            buying = False

    await asyncio.gather(buy_all(), look())
    assert looked > 0
    found = await callers[0].bookings(event_id=event)
    assert {booking["id"]: booking["state"] for booking in found} == said
    assert set(said.values()) == {"held", "confirmed", "released", "cancelled"}
    units = {
        state: sum(booking["pools"][0]["units"] for booking in found if booking["state"] == state)
        for state in ("held", "confirmed")
    }
    pool = added_up(await callers[0].pool(event))
    assert (pool["held"], pool["sold"]) == (units["held"], units["confirmed"])


async def test_units_of_lapsed_holds_are_sold_at_once(shop: Caller) -> None:
    """A pool that only looks empty sells with the first request after the lapse; no buyer waits for a sweeper."""
    event = (await shop.create_event(pools=[{"id": "GA", "capacity": 4, "price": 2500}]))["id"]
    first = await shop.held(event, buyer="ann", pools={"GA": 3}, ttl_seconds=1)
    await shop.lapsed(event, buyer="bob", pools={"GA": 1})
    assert await shop.state(first["id"]) == "expired"
    theirs = await shop.held(event, buyer="eve", pools={"GA": 4})
    assert theirs["state"] == "held"
    pool = added_up(await shop.pool(event))
    assert (pool["available"], pool["held"]) == (0, 4)
    refused(await shop.hold(event, buyer="dan", pools={"GA": 1}), 409, "pool_exhausted")


async def test_a_buyers_lapsed_units_no_longer_count_against_the_limit(shop: Caller) -> None:
    """A limit counts what the buyer has, not what has lapsed."""
    event = (await shop.create_event(pools=STOCK, per_buyer_max=2))["id"]
    await shop.lapsed(event, buyer="ann", pools={"GA": 2})
    assert (await shop.held(event, buyer="ann", pools={"GA": 2}))["state"] == "held"
    assert refused(await shop.hold(event, buyer="ann", pools={"GA": 1}), 409)["code"] == "limit_exceeded"
