"""A warehouse: one event, a pool of units for each article (SKU). Many orders arrive at once.

Run it: `python examples/inventory.py`. It uses a temporary database, or the one that DATABASE_URL names.
"""

import asyncio
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable

from earmark import Earmark, Refusal
from earmark.testing import MovableClock

# Stock belongs to a place: the same article in another warehouse is another event.
NORTH = "inventory:warehouse:north"
STOCK = {"mug": (100, 1200), "poster": (40, 1500), "shirt": (40, 2500), "lamp": (1, 9900)}  # units, price in cents


async def order(earmark: Earmark, buyer: str, **basket: int) -> str:
    """Set the whole basket aside, then sell it. A refusal is returned by its code."""
    try:
        held = await earmark.hold(NORTH, buyer=buyer, pools=basket)
    except Refusal as refusal:
        return refusal.code
    return await pay(earmark, held.id)


async def pay(earmark: Earmark, order_id: str) -> str:
    """Take the money here; if the order took too long and is refused, refund it."""
    try:
        sold = await earmark.confirm(order_id, payment_id=f"card-{order_id}")
    except Refusal as refusal:
        return refusal.code
    return str(sold.state)


def tally(results: Iterable[str]) -> str:
    """How many buyers got which result."""
    return ", ".join(f"{count} {result}" for result, count in sorted(Counter(results).items()))


async def free(earmark: Earmark) -> dict[str, int]:
    """What is still free, as the database has it."""
    return {pool.id: pool.available for pool in (await earmark.map(NORTH)).pools}


async def order_by_hand(shop: sqlite3.Connection, units: int, both_have_read: asyncio.Barrier) -> None:
    """How it goes wrong: read the stock, subtract, write the difference back."""
    (on_hand,) = shop.execute("SELECT on_hand FROM stock").fetchone()
    await both_have_read.wait()  # Before this order writes, the other one reads the same number.
    shop.execute("UPDATE stock SET on_hand = ?", (on_hand - units,))


async def the_lost_update() -> None:
    """Two orders take 15 mugs out of 100, and the table has only one of them."""
    shop = sqlite3.connect(":memory:", isolation_level=None)
    shop.execute("CREATE TABLE stock AS SELECT 100 AS on_hand")
    both_have_read = asyncio.Barrier(2)
    await asyncio.gather(order_by_hand(shop, 10, both_have_read), order_by_hand(shop, 5, both_have_read))
    (on_hand,) = shop.execute("SELECT on_hand FROM stock").fetchone()
    shop.close()
    print(f"by hand:       100 - 10 - 5 = {on_hand}")


async def ten_and_five(earmark: Earmark) -> None:
    """There is enough for both, so both go through, and neither waits for the other to be paid."""
    results = await asyncio.gather(order(earmark, "alice", mug=10), order(earmark, "bob", mug=5))
    print(f"with Earmark:  100 - 10 - 5 = {(await free(earmark))['mug']} ({tally(results)})")


async def different_articles(earmark: Earmark) -> None:
    """Orders for posters and orders for shirts do not affect each other."""
    posters = (order(earmark, f"buyer-{number}", poster=1) for number in range(20))
    shirts = (order(earmark, f"buyer-{number}", shirt=1) for number in range(20))
    results = await asyncio.gather(*posters, *shirts)
    left = await free(earmark)
    print(f"40 orders for two articles: {tally(results)}; {left['poster']} posters and {left['shirt']} shirts left")


async def the_last_lamp(earmark: Earmark) -> None:
    """One unit, fifty orders."""
    results = await asyncio.gather(*(order(earmark, f"buyer-{number}", lamp=1) for number in range(50)))
    print(f"50 orders for the last lamp: {tally(results)}; {(await free(earmark))['lamp']} left")


async def more_than_there_is(earmark: Earmark) -> None:
    """Forty orders of three mugs each want 120, and 85 are left: 28 orders get three, and no order gets fewer."""
    results = await asyncio.gather(*(order(earmark, f"buyer-{number}", mug=3) for number in range(40)))
    print(f"40 orders of 3 mugs each: {tally(results)}; {(await free(earmark))['mug']} left")


async def a_basket(earmark: Earmark) -> None:
    """One article of the basket is gone, so nothing of it is set aside."""
    result = await order(earmark, "alice", poster=2, lamp=1)
    print(f"2 posters and a lamp: {result}; {(await free(earmark))['poster']} posters left")


async def an_unpaid_hold_expires(earmark: Earmark, clock: MovableClock) -> None:
    """An unpaid order expires: the next buyer finds its units free, without a background job."""
    unpaid = await earmark.hold(NORTH, buyer="alice", pools={"shirt": 20}, ttl_seconds=300)
    print(f"alice holds 20 shirts: bob gets {await order(earmark, 'bob', shirt=5)}")
    clock.advance(300)
    bob, alice = await order(earmark, "bob", shirt=5), await pay(earmark, unpaid.id)
    print(f"five minutes later: bob gets {bob}, and alice, who pays now, {alice}")


async def main() -> None:
    """One morning."""
    clock = MovableClock()  # A clock that the program advances. Leave it out in your shop.
    with tempfile.TemporaryDirectory() as folder:
        database_url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/inventory.sqlite3"
        async with Earmark.open(database_url, clock=clock) as earmark:
            await earmark.create_event(NORTH, name="The northern warehouse", currency="EUR", pools=STOCK)
            await the_lost_update()
            await ten_and_five(earmark)
            await different_articles(earmark)
            await the_last_lamp(earmark)
            await more_than_there_is(earmark)
            await a_basket(earmark)
            await an_unpaid_hold_expires(earmark, clock)
            print("free at closing time:", await free(earmark))


if __name__ == "__main__":
    asyncio.run(main())
