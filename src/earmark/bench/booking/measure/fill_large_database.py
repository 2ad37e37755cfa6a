"""A database that has grown: a million seats in a hundred events, and a million bookings of the past, by COPY.

Every event has sold about a third of its seats. Of the rest, every other group of seats was held before by buyers whose
holds expired, and points to the last of them; the other groups were never held. All rows are as Earmark writes them,
with journal, counts and idempotency records: `earmark verify` finds no flaw in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.booking.strategy_protocol import Want
from earmark.bench.prepare_and_count_rows import BenchDatabase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from earmark.bench.booking.measure.measurement_plan import Sizes

CHUNK = 2_000
SOLD_SHARE = 0.3
PRICE = 4500
TTL_SECONDS = 600
BEGAN = datetime(2025, 1, 1, tzinfo=UTC)
NOTHING = "\\N"


class PastBooking(msgspec.Struct, frozen=True, kw_only=True):
    """A booking of the past."""

    number: int
    event: str
    id: str
    hold_id: str
    """Of the journal's entry."""
    end_id: str
    """Of the journal's entry for its end."""
    is_sale: bool
    """A booking that is no sale has expired."""
    lines: str
    began: str
    until: str


class PastBookings:
    """The bookings of the past. All fields of a booking follow from its number.

    In each turn every event has one booking, so that the bookings of all events alternate.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.events = sizes.many_events
        self.seats_each = sizes.seats_each
        self.seats = sizes.many_seats_each
        self.turns = sizes.many_bookings // sizes.many_events
        self.groups = self.seats // self.seats_each
        """Groups of seats that are always booked together, per event."""
        self.sold = min(int(self.groups * SOLD_SHARE), self.turns)
        """Groups that are sold, per event: one in each of the first turns."""
        self.asked = (self.groups - self.sold + 1) // 2
        """Groups that were held and expired, per event: every other one of the rest, again and again."""

    @property
    def bookings(self) -> int:
        """How many bookings there are."""
        return self.turns * self.events

    def booked(self) -> Iterator[PastBooking]:
        """All bookings, in the order of time."""
        for turn in range(self.turns):
            is_sale = turn < self.sold
            group = turn if is_sale else self.sold + 2 * ((turn - self.sold) % self.asked)
            began = BEGAN + timedelta(seconds=turn)
            common = (_lines(group, self.seats_each), began.isoformat(), _until(began))
            for event in range(self.events):
                yield PastBooking(
                    number=turn * self.events + event,
                    event=f"past-{event}",
                    id=_identity(turn, event, kind=0),
                    hold_id=_identity(turn, event, kind=1),
                    end_id=_identity(turn, event, kind=2),
                    is_sale=is_sale,
                    lines=common[0],
                    began=common[1],
                    until=common[2],
                )

    def owner(self, event: int, group: int) -> str | None:
        """The last booking of this group of seats, if there is one."""
        if group < self.sold:
            return _identity(group, event, kind=0)
        place, odd = divmod(group - self.sold, 2)
        first = self.sold + place
        if odd or group >= self.groups or first >= self.turns:
            return None
        return _identity(first + (self.turns - 1 - first) // self.asked * self.asked, event, kind=0)

    def free(self) -> Iterator[Want]:
        """The seats that can still be sold, each group once, alternating between events."""
        number = 0
        for group in range(self.sold, self.groups):
            start = group * self.seats_each
            seats = tuple(f"S{seat}" for seat in range(start, start + self.seats_each))
            for event in range(self.events):
                number += 1
                yield Want(event_id=f"past-{event}", buyer=f"late-{number}", seats=seats, key=f"late-{number}")


class CopyTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table's rows, as COPY reads them."""

    name: str
    columns: str
    rows: Iterator[str]


async def load(database: BenchDatabase, sizes: Sizes) -> PastBookings:
    """Load all tables, the journal in parallel because it is as large as the rest; then update statistics."""
    past = PastBookings(sizes)
    second = await BenchDatabase.open(database.url)
    try:
        rest = [_events(past), _bookings(past), _seats(past), _totals(past), _payments(past)]
        await asyncio.gather(_copy(database, rest), _copy(second, [_journal(past)]))
    finally:
        await second.close()
    await database.tidy()
    return past


async def _copy(database: BenchDatabase, tables: Sequence[CopyTable]) -> None:
    async with database.guards_off():
        for table in tables:
            await database.copy(table.name, table.columns.split(), _chunks(table.rows))


async def _chunks(rows: Iterator[str]) -> AsyncIterator[bytes]:
    chunk: list[str] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield "".join(chunk).encode()
            chunk.clear()
    yield "".join(chunk).encode()


def _events(past: PastBookings) -> CopyTable:
    rows = (f"past-{event}\tA past event\tEUR\ttest\t{BEGAN.isoformat()}\n" for event in range(past.events))
    return CopyTable(name="events", columns="id name currency mode created_at", rows=rows)


def _seats(past: PastBookings) -> CopyTable:
    def rows() -> Iterator[str]:
        for event in range(past.events):
            for group in range(past.groups + 1):
                pointer = past.owner(event, group) or NOTHING
                first = group * past.seats_each
                for seat in range(first, min(first + past.seats_each, past.seats)):
                    yield f"past-{event}\tS{seat}\t{PRICE}\t{pointer}\t{seat}\n"

    return CopyTable(name="seats", columns="event_id id price booking_id position", rows=rows())


def _bookings(past: PastBookings) -> CopyTable:
    def rows() -> Iterator[str]:
        total = PRICE * past.seats_each
        for b in past.booked():
            if b.is_sale:
                state, end = "confirmed", f"{b.began}\t{NOTHING}\tpast-{b.number}"
            else:
                state, end = "expired", f"{NOTHING}\t{b.until}\t{NOTHING}"
            yield (
                f"{b.id}\t{b.event}\tbuyer-{b.number}\ttest\t{state}\t{b.lines}\t{total}\tEUR\t{b.began}\t{b.until}"
                f"\t{end}\t2\n"
            )

    columns = (
        "id event_id buyer mode state lines total currency created_at expires_at "
        "confirmed_at ended_at payment_id version"
    )
    return CopyTable(name="bookings", columns=columns, rows=rows())


def _totals(past: PastBookings) -> CopyTable:
    rows = (f"{b.event}\tbuyer-{b.number}\t{past.seats_each if b.is_sale else 0}\n" for b in past.booked())
    return CopyTable(name="buyer_totals", columns="event_id buyer units", rows=rows)


def _payments(past: PastBookings) -> CopyTable:
    rows = (f"past-{b.number}\t{b.id}\ttest\n" for b in past.booked() if b.is_sale)
    return CopyTable(name="outside_payments", columns="payment_id booking_id mode", rows=rows)


def _journal(past: PastBookings) -> CopyTable:
    def rows() -> Iterator[str]:
        total = PRICE * past.seats_each
        for b in past.booked():
            facts = (
                f'"buyer": "buyer-{b.number}", "lines": {b.lines}, "total": {total}, "currency": "EUR", '
                f'"expires_at": "{b.until}"'
            )
            answer = f'{{"id": "{b.id}", "event_id": "{b.event}", "state": "held", {facts}, "version": 1}}'
            about, key = f"{b.event}\t{b.id}", f"bench\tpast-{b.number}"
            digest = f"\\\\x{b.number:064x}"
            yield (
                f"{b.hold_id}\t{about}\t1\thold\t{NOTHING}\theld\tbench\t{NOTHING}\t{b.began}\t{{{facts}}}"
                f"\t{key}\t{digest}\t201\t{answer}\n"
            )
            if b.is_sale:
                told = f'{{"confirmed_at": "{b.began}", "payment_id": "past-{b.number}"}}'
                yield (
                    f"{b.end_id}\t{about}\t2\tconfirm\theld\tconfirmed\tbench\t{NOTHING}\t{b.began}\t{told}"
                    f"\t{key}-confirm\t{digest}\t200\t{answer}\n"
                )
            else:
                yield f"{b.end_id}\t{about}\t2\texpire\theld\texpired\tclock\tswept\t{b.until}\t{{}}{_NO_MEMORY}\n"

    columns = (
        "id event_id booking_id version verb before after actor reason at facts "
        "caller key request_hash answer_status answer_body"
    )
    return CopyTable(name="journal", columns=columns, rows=rows())


_NO_MEMORY = f"\t{NOTHING}" * 5


def _lines(group: int, seats_each: int) -> str:
    start = group * seats_each
    seats = ", ".join(f'{{"id": "S{seat}", "price": {PRICE}}}' for seat in range(start, start + seats_each))
    return f'{{"seats": [{seats}], "pools": []}}'


def _until(began: datetime) -> str:
    return (began + timedelta(seconds=TTL_SECONDS)).isoformat()


def _identity(turn: int, event: int, *, kind: int) -> str:
    """An id like a UUIDv7: ordered by time, with endings that are far apart."""
    milliseconds = int(BEGAN.timestamp() + turn) * 1000 + event
    # An odd multiplier permutes, so that every booking has a different ending.
    ending = ((turn * 1000 + event) * 0x9E3779B97F4A7C15 + kind) % (1 << 60)
    return f"{milliseconds:012x}7{kind:03x}8{ending:015x}"
