"""A cinema: one event for each show, so that a seat is a seat *of a show*. Two channels sell the same seats at once.

Run it: `python examples/cinema.py`. It uses a temporary database, or the one that DATABASE_URL names.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from earmark import Earmark, Refusal
from earmark.errors import SeatsTaken
from earmark.testing import MovableClock

MATINEE, EVENING = "cinema:show:matinee", "cinema:show:evening"
HALL = {f"{row}{number}": 1100 for row in "ABCDEF" for number in range(1, 9)}  # prices in cents


async def buy(shop: Earmark, show: str, *seats: str, buyer: str) -> str:
    """Set all the seats aside, then sell them. A refusal is returned by its code."""
    try:
        held = await shop.hold(show, buyer=buyer, seats=seats)
    except Refusal as refusal:
        return refusal.code
    return await pay(shop, held.id)


async def pay(shop: Earmark, booking_id: str) -> str:
    """Take the money here; if the buyer took too long and is refused, refund it."""
    try:
        sold = await shop.confirm(booking_id, payment_id=f"card-{booking_id}")
    except Refusal as refusal:
        return refusal.code
    return str(sold.state)


def tally(results: Iterable[str]) -> str:
    """How many buyers got which result."""
    return ", ".join(f"{count} {result}" for result, count in sorted(Counter(results).items()))


async def one_seat_in_two_shows(website: Earmark, box_office: Earmark) -> None:
    """C5 in the afternoon and C5 in the evening are two things to sell."""
    results = await asyncio.gather(
        buy(website, MATINEE, "C5", buyer="alice"),
        buy(box_office, EVENING, "C5", buyer="bob"),
    )
    print(f"C5 in two shows: {tally(results)}")


async def one_seat_in_one_show(website: Earmark, box_office: Earmark) -> None:
    """D5 tonight is one seat, whichever channel the fifty buyers use."""
    channels = [website, box_office] * 25
    buying = (buy(channel, EVENING, "D5", buyer=f"buyer-{number}") for number, channel in enumerate(channels, start=1))
    print(f"D5 in one show, 50 buyers through two channels: {tally(await asyncio.gather(*buying))}")


async def two_families(website: Earmark, box_office: Earmark) -> None:
    """Both want E4, and name their seats in opposite orders. One family gets its seats, the other is refused."""

    async def seat(shop: Earmark, family: str, *seats: str) -> None:
        try:
            held = await shop.hold(EVENING, buyer=family, seats=seats)
        except SeatsTaken as refusal:
            # Nothing was held, not even the three seats that are free, so there is nothing to release.
            print(f"{family} wants {' '.join(seats)}, but {' '.join(refusal.seats)} is gone: row F instead")
            held = await shop.hold(EVENING, buyer=family, seats=["F1", "F2", "F3", "F4"])
        await pay(shop, held.id)

    await asyncio.gather(
        seat(website, "family-1", "E1", "E2", "E3", "E4"),
        seat(box_office, "family-2", "E7", "E6", "E5", "E4"),
    )


async def an_unpaid_hold_expires(website: Earmark, box_office: Earmark, clock: MovableClock) -> None:
    """A hold that has run out is free for the next buyer, without a background job."""
    unpaid = await website.hold(EVENING, buyer="alice", seats=["A1", "A2"], ttl_seconds=300)
    print(f"alice holds A1 A2: bob gets {await buy(box_office, EVENING, 'A2', buyer='bob')}")
    clock.advance(300)
    bob, alice = await buy(box_office, EVENING, "A2", buyer="bob"), await pay(website, unpaid.id)
    print(f"five minutes later: bob gets {bob}, and alice, who pays now, {alice}")


async def show_hall(shop: Earmark, show: str) -> None:
    """The hall as the database has it: `#` is sold, `.` is not."""
    print(show)
    places = (await shop.map(show)).seats
    for row, seats in groupby(places, key=lambda place: place.id[0]):
        print(" ", row, " ".join("#" if place.state == "booked" else "." for place in seats))


async def main() -> None:
    """One day."""
    clock = MovableClock()  # A clock that the program advances. Leave it out in your shop.
    with tempfile.TemporaryDirectory() as folder:
        database_url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/cinema.sqlite3"
        # Each has its own connections, as two servers would. The database decides.
        async with (
            Earmark.open(database_url, clock=clock) as website,
            Earmark.open(database_url, clock=clock) as box_office,
        ):
            await box_office.create_event(MATINEE, name="The matinee", currency="EUR", seats=HALL)
            await box_office.create_event(EVENING, name="The evening show", currency="EUR", seats=HALL)
            await one_seat_in_two_shows(website, box_office)
            await one_seat_in_one_show(website, box_office)
            await two_families(website, box_office)
            await an_unpaid_hold_expires(website, box_office, clock)
            await show_hall(box_office, MATINEE)
            await show_hall(box_office, EVENING)


if __name__ == "__main__":
    asyncio.run(main())
