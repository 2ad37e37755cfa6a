"""Sell with the code of release 0.1 on the database that is named, and print what was sold as JSON.

Run with that release's sources, in a process of its own. It leaves a hold that another release has to confirm.
"""

from __future__ import annotations

import asyncio
import json
import sys

from earmark import Earmark


async def sell(url: str) -> dict[str, str]:
    """One booking in each state that needs no clock, with seats and units, paid and unpaid."""
    sold: dict[str, str] = {}
    async with Earmark.open(url, mode="test") as shop:
        seats = {f"A{number}": 4500 for number in range(1, 9)}
        await shop.create_event(
            "play", name="A play", currency="EUR", seats=seats, pools={"GA": (9, 2500)}, per_buyer_max=8
        )
        for state in ("held", "released", "confirmed", "paid", "cancelled", "refunded"):
            booking = await shop.hold("play", buyer=state, seats=[f"A{len(sold) + 1}"], pools={"GA": 1}, key=state)
            if state == "released":
                await shop.release(booking.id)
            elif state in {"confirmed", "cancelled"}:
                await shop.confirm(booking.id, payment_id=f"till-{state}")
            elif state != "held":
                await shop.pay(booking.id, method="pm_card_visa", key=f"pay-{state}")
            if state in {"cancelled", "refunded"}:
                await shop.cancel(booking.id)
            sold[booking.id] = (await shop.booking(booking.id)).state.value
    return sold


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(sell(sys.argv[1]))))
