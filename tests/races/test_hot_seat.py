"""Five hundred buyers, one seat, two servers: as built, and with every guard taken away."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from earmark.engine.commands_and_results import Decided
from earmark.errors import SeatsTaken

from .commands import a_hold
from .shortcuts import TRUSTS_THE_LOOK
from .support import AS_BUILT

if TYPE_CHECKING:
    from .support import RaceDatabase, Shortcut

BUYERS = 500
OWNERS = """
SELECT count(*) FROM bookings WHERE state IN ('held', 'paying', 'confirmed') AND lines -> 'seats' @> $1::jsonb
"""


async def hold_all_at_once(
    database: RaceDatabase, shortcut: Shortcut = AS_BUILT, *, seat: str = "A1", through: str | None = None
) -> tuple[int, int, int]:
    """How many buyers were granted the seat, how many were refused, and how many own it."""
    servers = [await database.server(shortcut=shortcut, url=through) for _ in range(2)]
    asked = (servers[number % 2].engine.hold(a_hold(seat, buyer=f"buyer-{number}")) for number in range(BUYERS))
    told = await asyncio.gather(*asked, return_exceptions=True)
    won = sum(isinstance(answer, Decided) for answer in told)
    lost = sum(isinstance(answer, SeatsTaken) for answer in told)
    return won, lost, await database.observer.fetchval(OWNERS, json.dumps([{"id": seat}]))


async def test_a_seat_that_nothing_guards_has_several_owners(bare_database: RaceDatabase) -> None:
    """The control: without the comparison under the lock and without the schema's guards, two buyers get it.

    Where one server commits before the other looks, it does not: then there is a rush for the next seat.
    """
    owners = 0
    for number in range(1, 10):
        won, lost, owners = await hold_all_at_once(bare_database, TRUSTS_THE_LOOK, seat=f"A{number}")
        print(f"\nwithout a guard {owners} of {BUYERS} buyers own the one seat")  # noqa: T201
        assert won + lost == BUYERS
        assert won == owners
        if owners > 1:
            break
    assert owners > 1
    assert "no two active bookings list the same seat" in await bare_database.flaws()


async def test_of_five_hundred_buyers_one_gets_the_seat(either_database: RaceDatabase) -> None:
    """As built: one owner and every buyer answered, with the schema's guards and without."""
    assert await hold_all_at_once(either_database) == (1, BUYERS - 1, 1)
    assert not await either_database.flaws()
