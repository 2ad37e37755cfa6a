"""Buyers change their baskets on two servers beside holds, payments and expiries, and the books balance.

With EARMARK_PROOF it goes on for a minute. It fails unless each kind of answer was seen.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from typing import TYPE_CHECKING

from .support import Caller, Json, earmark

if TYPE_CHECKING:
    from .support import Service

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SECONDS = 60.0 if PROOF else 4.0
BUYERS = 16
ROWS, SEATS_PER_ROW = 5, 20
SEATS = [f"{row}{number}" for row in "ABCDE"[:ROWS] for number in range(1, SEATS_PER_ROW + 1)]
PAUSE_SECONDS = 0.05
CARDS = ("pm_card_visa", "pm_card_visa", "pm_card_visa_chargeDeclined")
_numbers = itertools.count()


class _Buyer:
    """Holds, changes its mind, and then pays, lets go or forgets; with the seats that it sold back on sale again."""

    def __init__(self, callers: list[Caller], *, event: str, seed: int, seen: Counter[str]) -> None:
        self._callers = callers
        self._event = event
        self._random = random.Random(seed)  # noqa: S311 (a seed, to repeat a run)
        self._seen = seen
        self._name = f"buyer-{seed}"

    async def shop(self, *, until: float) -> None:
        """Basket after basket."""
        while asyncio.get_running_loop().time() < until:
            await self._basket()

    async def _basket(self) -> None:
        choose, seen = self._random, self._seen
        lapses = choose.random() < 0.2
        held = await choose.choice(self._callers).hold(
            self._event,
            buyer=self._name,
            seats=choose.sample(SEATS, choose.randint(1, 2)),
            pools={"GA": 1} if choose.random() < 0.3 else None,
            ttl_seconds=1 if lapses else 30,
        )
        seen[f"hold {held.status_code}"] += 1
        if held.status_code != 201:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        booking = held.json()
        for _ in range(choose.randint(1, 4)):
            mine = [seat["id"] for seat in booking["seats"]]
            wish: dict[str, object] = {
                "add_seats": choose.sample([seat for seat in SEATS if seat not in mine], choose.randint(0, 2)),
                "drop_seats": choose.sample(mine, choose.randint(0, len(mine))),
                "pools": {"GA": choose.randint(0, 3)},
            }
            changed = await self._verb(booking["id"], "change", wish)
            booking = changed or booking
        await (self._forget(booking["id"]) if lapses else self._end(booking["id"]))

    async def _forget(self, booking_id: str) -> None:
        """Come back when the time is over."""
        await asyncio.sleep(1.1)
        await self._verb(booking_id, "change", {"pools": {"GA": 1}})

    async def _end(self, booking_id: str) -> None:
        match self._random.randint(0, 2):
            case 0:
                await self._verb(booking_id, "release", {})
            case _:
                card = self._random.choice(CARDS)
                # A change that comes while the payment is opened finds the booking paying, or is decided before it.
                paid, _ = await asyncio.gather(
                    self._verb(booking_id, "pay", {"method": card}),
                    self._verb(booking_id, "change", {"add_seats": [self._random.choice(SEATS)]}),
                )
                if paid and paid["state"] == "confirmed":
                    await self._verb(booking_id, "cancel", {"refund": "full"})
                else:
                    await self._verb(booking_id, "release", {})

    async def _verb(self, booking_id: str, verb: str, body: Json) -> Json | None:
        caller = self._random.choice(self._callers)
        response = await caller.verb(booking_id, verb, body, idempotency_key=f"{verb}-{next(_numbers)}")
        told = response.json()
        self._seen[f"{verb} {told.get('code', response.status_code)}"] += 1
        return told if response.status_code < 300 else None


async def test_baskets_change_on_two_servers_and_the_books_balance(
    services: tuple[Service, ...], two_callers: list[Caller]
) -> None:
    """No seat has two owners, no count drifts and no money is kept without its booking, whatever was changed when."""
    event = await two_callers[0].theatre(
        rows=ROWS, seats_per_row=SEATS_PER_ROW, pools=[{"id": "GA", "capacity": 20, "price": 2500}], per_buyer_max=6
    )
    seen: Counter[str] = Counter()
    until = asyncio.get_running_loop().time() + SECONDS
    buyers = [_Buyer(two_callers, event=event, seed=seed, seen=seen) for seed in range(BUYERS)]
    await asyncio.gather(*(buyer.shop(until=until) for buyer in buyers))
    verified = await asyncio.to_thread(earmark, "verify", "--database", services[0].database)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    print("\n" + "\n".join(f"{number:7,} {what}" for what, number in sorted(seen.items())))  # noqa: T201 (shown by `pytest -s`)
    for needed in (
        "hold 201",
        "hold 409",
        "change 200",
        "change seats_taken",
        "change booking_expired",
        "change payment_in_progress",
        "pay 200",
        "pay payment_declined",
        "release 200",
        "cancel 200",
    ):
        assert seen[needed], f"never seen: {needed}; {dict(seen)}"
    unknown = {what: number for what, number in seen.items() if what.split()[1] in {"internal", "outcome_unknown"}}
    assert not unknown
