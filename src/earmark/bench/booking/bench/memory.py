"""Whether a server grows with what it has done: a million holds over HTTP, and what it weighs on the way.

It is a real `earmark serve` with its workers and with Redis in front. Every hold has a buyer and a key that were never
seen before; two hundred events are on sale at once, and those that have taken their share are closed and followed by
others. So whatever a server keeps of a buyer, a key, an event or a booking shows on the scales.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from earmark.bench.booking.bench.holders import Calendar, Turn, holding
from earmark.bench.booking.bench.queries import sql
from earmark.bench.booking.bench.served import PROGRAM, TOKEN, serving
from earmark.bench.http.load import CREATED
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.bench.booking.bench.holders import Ask
    from earmark.bench.booking.bench.house import House
    from earmark.bench.booking.bench.served import Served

GROWTH_MAX = 1.5
"""Times what it weighed after the first part."""
TURN_HOLDS = 10_000
COUNT_SECONDS = 600
TOLD_EVERY = 50_000
HEARD_MIN = 0.5
"""The share of a turn's holds that must be made: a server that turns most of them away is not weighed at its work."""


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """What the server weighed, by how many holds it had made by then."""

    holds: int
    """Counted in the database."""
    seconds: float
    megabytes: dict[int, float]
    events: int
    retired: int
    """Of the events, those that were closed on the way; counted in the database."""

    @property
    def growth(self) -> float:
        """At the end, over what it was after the first part."""
        first, *_, last = [self.megabytes[holds] for holds in sorted(self.megabytes) if holds]
        return last / first


async def measure(
    house: House,
    *,
    redis: str,
    first: int,
    holds: int,
    clients: int,
    program: str = PROGRAM,
    told: Callable[[int, float], object] = lambda _done, _megabytes: None,
) -> Weighed:
    """Hold until there were so many; weigh the server at the start, after `first` and at the end.

    The house is empty, and nobody else's. `program` is what the server's interpreter runs.
    """
    began = perf_counter()
    async with serving(house.url, redis=redis, program=program) as server, holding() as ask:
        rush = Rush(house, server, ask, calendar=Calendar.of(holds), clients=clients)
        megabytes = {0: server.megabytes()}
        for mark in (first, holds):
            while rush.done < mark:
                before = rush.done
                await rush.turn(min(TURN_HOLDS, mark - rush.done))
                if rush.done // TOLD_EVERY > before // TOLD_EVERY:
                    told(rush.done, server.megabytes())
            megabytes[mark] = server.megabytes()
    seconds = perf_counter() - began
    made, retired = await _count(house)
    if made != rush.done:
        raise SetupError(problem=f"Buyers were told of {rush.done:,} holds, and the database has {made:,}.")
    return Weighed(holds=made, seconds=seconds, megabytes=megabytes, events=len(rush.opened), retired=retired)


class Rush:
    """How far it has come."""

    def __init__(self, house: House, server: Served, ask: Ask, *, calendar: Calendar, clients: int) -> None:
        self._house = house
        self._server = server
        self._ask = ask
        self._calendar = calendar
        self._clients = clients
        self._asked = 0
        self._on_sale: set[str] = set()
        self.opened: set[str] = set()
        self.done = 0

    async def turn(self, holds: int) -> None:
        """So many more are asked for. Events that the last turn was done with are closed, others are opened."""
        on_sale = self._calendar.on_sale(self._asked, self._asked + holds)
        for event_id in sorted(on_sale - self.opened):
            await self._house.open_event(event_id, seats=self._calendar.each, units=self._calendar.each)
        turn = Turn(
            port=self._server.port,
            token=TOKEN,
            connections=self._clients,
            calendar=self._calendar,
            first=self._asked,
            holds=holds,
            over=sorted(self._on_sale - on_sale),
        )
        heard = await self._ask(turn)
        made = heard.statuses.get(CREATED, 0)
        if heard.unanswered or made < holds * HEARD_MIN:
            raise SetupError(
                problem=f"The server that is weighed does not keep up: of {holds:,} holds it made {made:,}, "
                f"and {heard.unanswered:,} were not answered; statuses {heard.statuses}."
            )
        self.opened |= on_sale
        self._on_sale = on_sale
        self._asked += holds
        self.done += made


async def _count(house: House) -> tuple[int, int]:
    """The holds that were made and the events that were closed, as the tables have them."""
    connection = await asyncpg.connect(house.dsn, timeout=10, command_timeout=COUNT_SECONDS)
    try:
        counts = sql("memory.sql")
        return await connection.fetchval(counts["count_holds"]), await connection.fetchval(counts["count_retired"])
    finally:
        await connection.close()
