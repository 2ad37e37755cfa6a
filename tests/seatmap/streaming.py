"""A page that follows an event: it keeps the last number it saw, and the state of the seats."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from earmark.domain.id_types import Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.schemas.render_seat_map import SeatMapRenderer
from earmark.seatmap.stream_hub import StreamHub

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.ports.store import Clock, Store
    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
    from earmark.seatmap.stream_hub import Reader

FACT_SECONDS_MAX = 30.0
"""Not a measurement: what has not happened by then will not."""


def hub_over(store: Store, *, clock: Clock, feed: EntryFeed, **options: Any) -> StreamHub:
    """As the server makes it."""
    return StreamHub(store, clock=clock, renderer=SeatMapRenderer(), feed=feed, **options)


def parse(data: bytes) -> dict[str, Any]:
    """One event of a stream."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line and not line.startswith(":"))
    return fields | ({"data": json.loads(fields["data"])} if "data" in fields else {})


class Page:
    """Shows what it received."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.seats: dict[str, dict[str, Any]] = {}
        self.pools: dict[str, dict[str, Any]] = {}
        self.number = 0
        self.kinds: list[str] = []
        self.told: list[dict[str, Any]] = []

    @property
    def states(self) -> dict[str, str]:
        """Seat by seat."""
        return {seat: told["state"] for seat, told in self.seats.items()}

    @property
    def mine(self) -> list[str]:
        """Seats that were sent as the reader's own."""
        return sorted(seat for seat, told in self.seats.items() if told["mine"])

    async def take(self) -> dict[str, Any]:
        """The next event."""
        event = parse(await asyncio.wait_for(anext(self.reader), timeout=FACT_SECONDS_MAX))
        self.number = int(event.get("id", self.number))
        if "event" not in event:
            return event
        self.kinds.append(event["event"])
        self.told.append(event["data"])
        if event["event"] == "end":
            return event
        if event["event"] == "snapshot":
            self.seats, self.pools = {}, {}
        self.seats |= {seat["id"]: seat for seat in event["data"]["seats"]}
        self.pools |= {pool["id"]: pool for pool in event["data"]["pools"]}
        return event

    async def until(self, so: Callable[[Page], bool]) -> None:
        """Read on until it is so."""
        async with asyncio.timeout(FACT_SECONDS_MAX):
            while not so(self):
                await self.take()


async def open_page(
    hub: StreamHub, buyer: str | None = None, *, after: int | None = None, event_id: str = "play"
) -> Page:
    """Connect, and have the first event."""
    whose = Buyer(buyer) if buyer else None
    reader = await hub.join(EventId(event_id), mode=Mode.LIVE, buyer=whose, after=after)
    assert reader is not None
    page = Page(reader)
    await page.take()
    return page


async def shut(*hubs: StreamHub) -> None:
    """Close it; nothing is left running."""
    for hub in hubs:
        await hub.close()
