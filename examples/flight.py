"""An airline: one event for each flight number and date, with seats to choose and a pool for the bags it can carry.

Run it: `python examples/flight.py`. It uses a temporary database, or the one that DATABASE_URL names.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence

from earmark import Earmark, Refusal
from earmark.testing import MovableClock

# The number alone would sell 12A once for ever, and the date alone once for all flights of that day.
MORNING, NEXT_DAY, RETURN = (
    "flight:XY101:date:2031-03-01",
    "flight:XY101:date:2031-03-02",
    "flight:XY102:date:2031-03-01",
)
CABIN = {f"{row}{letter}": 8900 for row in range(1, 21) for letter in "ABCDEF"}  # prices in cents
BAGS = {"bag": (10, 2500)}  # how many the plane can carry, and the price of each


async def book(airline: Earmark, flight: str, seats: Sequence[str], *, bags: int = 0, buyer: str) -> str:
    """Set seats and bags aside together, then sell them. A refusal is returned by its code."""
    try:
        held = await airline.hold(flight, buyer=buyer, seats=seats, pools={"bag": bags} if bags else None)
    except Refusal as refusal:
        return refusal.code
    return await pay(airline, held.id)


async def pay(airline: Earmark, booking_id: str) -> str:
    """Take the money here; if the buyer took too long and is refused, refund it."""
    try:
        sold = await airline.confirm(booking_id, payment_id=f"card-{booking_id}")
    except Refusal as refusal:
        return refusal.code
    return str(sold.state)


def tally(results: Iterable[str]) -> str:
    """How many buyers got which result."""
    return ", ".join(f"{count} {result}" for result, count in sorted(Counter(results).items()))


async def left(airline: Earmark, flight: str) -> str:
    """What is still free, as the database has it."""
    cabin = await airline.map(flight)
    seats = sum(place.state == "available" for place in cabin.seats)
    return f"{seats} seats and {cabin.pools[0].available} bags left"


async def one_seat_on_three_flights(airline: Earmark) -> None:
    """12A exists once for each flight number and date."""
    results = await asyncio.gather(
        *(book(airline, flight, ["12A"], buyer="alice") for flight in (MORNING, NEXT_DAY, RETURN))
    )
    print(f"12A on three flights: {tally(results)}")


async def one_seat_on_one_flight(airline: Earmark) -> None:
    """1A on one morning, fifty buyers."""
    results = await asyncio.gather(*(book(airline, MORNING, ["1A"], buyer=f"buyer-{number}") for number in range(50)))
    print(f"1A on one flight, 50 buyers: {tally(results)}; {await left(airline, MORNING)}")


async def two_groups(airline: Earmark) -> None:
    """Two groups of six want rows that share 14F. One gets all its seats, the other none."""
    first = [f"14{letter}" for letter in "ABCDEF"]
    second = ["14F", *(f"15{letter}" for letter in "ABCDE")]
    results = await asyncio.gather(
        book(airline, MORNING, first, bags=4, buyer="group-1"),
        book(airline, MORNING, second, bags=4, buyer="group-2"),
    )
    print(f"two groups of six, both want 14F: {tally(results)}; {await left(airline, MORNING)}")


async def too_many_bags(airline: Earmark) -> None:
    """The seats are free and there are too few bags: nothing is held. With fewer bags both are."""
    seats = ["17A", "17B"]
    for bags in (7, 6):
        result = await book(airline, MORNING, seats, bags=bags, buyer="bob")
        print(f"two seats and {bags} bags: {result}; {await left(airline, MORNING)}")


async def one_passenger_cancels(airline: Earmark) -> None:
    """Part of a sale is undone: that seat and that bag are for sale again, and the others stay sold."""
    held = await airline.hold(NEXT_DAY, buyer="group-3", seats=["14A", "14B", "14C"], pools={"bag": 2})
    sold = await airline.confirm(held.id, payment_id=f"card-{held.id}")
    kept = await airline.cancel(sold.id, seats=["14C"], pools={"bag": 1}, reason="one of three stays home")
    result = await book(airline, NEXT_DAY, ["14C"], bags=1, buyer="alice")
    print(f"three fly, then two: fare {sold.total}, then {kept.total}; 14C again: {result}")


async def an_unpaid_hold_expires(airline: Earmark, clock: MovableClock) -> None:
    """A hold that has run out gives back its seats and its bags, without a background job."""
    seats = [f"20{letter}" for letter in "ABCDEF"]
    unpaid = await airline.hold(RETURN, buyer="group-4", seats=seats, pools={"bag": 10}, ttl_seconds=900)
    print(f"group-4 holds row 20 and every bag: bob gets {await book(airline, RETURN, ['2A'], bags=1, buyer='bob')}")
    clock.advance(900)
    bob, group = await book(airline, RETURN, seats, bags=10, buyer="bob"), await pay(airline, unpaid.id)
    print(f"a quarter of an hour later: bob, who wants the same, gets {bob}, and group-4, who pays now, {group}")


async def main() -> None:
    """One day's bookings."""
    clock = MovableClock()  # A clock that the program advances. Leave it out in your shop.
    with tempfile.TemporaryDirectory() as folder:
        database_url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/flight.sqlite3"
        async with Earmark.open(database_url, clock=clock) as airline:
            for flight in (MORNING, NEXT_DAY, RETURN):
                await airline.create_event(flight, name=flight, currency="EUR", seats=CABIN, pools=BAGS)
            await one_seat_on_three_flights(airline)
            await one_seat_on_one_flight(airline)
            await two_groups(airline)
            await too_many_bags(airline)
            await one_passenger_cancels(airline)
            await an_unpaid_hold_expires(airline, clock)


if __name__ == "__main__":
    asyncio.run(main())
