"""An airline: one event for each flight number and date, with seats to choose and a pool for the bags it can carry.

Run it: `python examples/flight.py`. It sells in a database that it throws away, or where DATABASE_URL points to.
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
    """Set seats and bags aside together, then sell them. A refusal is an answer like any other."""
    try:
        held = await airline.hold(flight, buyer=buyer, seats=seats, pools={"bag": bags} if bags else None)
    except Refusal as refusal:
        return refusal.code
    return await pay(airline, held.id)


async def pay(airline: Earmark, booking_id: str) -> str:
    """Take the money here; if the buyer took too long and is refused, give the money back."""
    try:
        sold = await airline.confirm(booking_id, payment_id=f"card-{booking_id}")
    except Refusal as refusal:
        return refusal.code
    return str(sold.state)


def tally(told: Iterable[str]) -> str:
    """How many were told what."""
    return ", ".join(f"{count} {answer}" for answer, count in sorted(Counter(told).items()))


async def left(airline: Earmark, flight: str) -> str:
    """What anybody may still book, as the database has it."""
    cabin = await airline.map(flight)
    seats = sum(place.state == "available" for place in cabin.seats)
    return f"{seats} seats and {cabin.pools[0].available} bags left"


async def one_seat_on_three_flights(airline: Earmark) -> None:
    """12A exists once for each flight number and date."""
    told = await asyncio.gather(
        *(book(airline, flight, ["12A"], buyer="alice") for flight in (MORNING, NEXT_DAY, RETURN))
    )
    print(f"12A on three flights: {tally(told)}")


async def one_seat_on_one_flight(airline: Earmark) -> None:
    """1A on one morning, fifty buyers."""
    told = await asyncio.gather(*(book(airline, MORNING, ["1A"], buyer=f"buyer-{number}") for number in range(50)))
    print(f"1A on one flight, 50 buyers: {tally(told)}; {await left(airline, MORNING)}")


async def two_groups(airline: Earmark) -> None:
    """Two groups of six want rows that share 14F. One flies together, and the other holds nothing at all."""
    first = [f"14{letter}" for letter in "ABCDEF"]
    second = ["14F", *(f"15{letter}" for letter in "ABCDE")]
    told = await asyncio.gather(
        book(airline, MORNING, first, bags=4, buyer="group-1"),
        book(airline, MORNING, second, bags=4, buyer="group-2"),
    )
    print(f"two groups of six, both want 14F: {tally(told)}; {await left(airline, MORNING)}")


async def too_many_bags(airline: Earmark) -> None:
    """The seats are free and the bags do not fit: neither is set aside. With fewer bags both are."""
    seats = ["17A", "17B"]
    for bags in (7, 6):
        told = await book(airline, MORNING, seats, bags=bags, buyer="bob")
        print(f"two seats and {bags} bags: {told}; {await left(airline, MORNING)}")


async def somebody_stays_home(airline: Earmark) -> None:
    """Part of a sale is undone: that seat and that bag are for sale again, and the others stay sold."""
    held = await airline.hold(NEXT_DAY, buyer="group-3", seats=["14A", "14B", "14C"], pools={"bag": 2})
    sold = await airline.confirm(held.id, payment_id=f"card-{held.id}")
    kept = await airline.cancel(sold.id, seats=["14C"], pools={"bag": 1}, reason="one of three stays home")
    told = await book(airline, NEXT_DAY, ["14C"], bags=1, buyer="alice")
    print(f"three fly, then two: fare {sold.total}, then {kept.total}; 14C again: {told}")


async def nobody_pays(airline: Earmark, clock: MovableClock) -> None:
    """A hold that has run out gives back its seats and its bags, with no job in between."""
    seats = [f"20{letter}" for letter in "ABCDEF"]
    unpaid = await airline.hold(RETURN, buyer="group-4", seats=seats, pools={"bag": 10}, ttl_seconds=900)
    print(f"group-4 holds row 20 and every bag: bob is told {await book(airline, RETURN, ['2A'], bags=1, buyer='bob')}")
    clock.advance(900)
    bob, group = await book(airline, RETURN, seats, bags=10, buyer="bob"), await pay(airline, unpaid.id)
    print(f"a quarter of an hour later: bob, who wants the same, is told {bob}, and group-4, who pays now, {group}")


async def main() -> None:
    """One day's bookings."""
    clock = MovableClock()  # A clock to push, so that nobody waits for it. Leave it out in your shop.
    with tempfile.TemporaryDirectory() as folder:
        database_url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/flight.sqlite3"
        async with Earmark.open(database_url, clock=clock) as airline:
            for flight in (MORNING, NEXT_DAY, RETURN):
                await airline.create(flight, name=flight, currency="EUR", seats=CABIN, pools=BAGS)
            await one_seat_on_three_flights(airline)
            await one_seat_on_one_flight(airline)
            await two_groups(airline)
            await too_many_bags(airline)
            await somebody_stays_home(airline)
            await nobody_pays(airline, clock)


if __name__ == "__main__":
    asyncio.run(main())
