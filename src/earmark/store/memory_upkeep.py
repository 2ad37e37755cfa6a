"""Heartbeats and upkeep in memory: nobody else is about, so everything is done at once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from earmark.domain.ids import BookingId, EntryId, PoolRef, TotalRef
from earmark.domain.payment import UNDECIDED
from earmark.domain.pool import PoolDelta
from earmark.domain.state_machine import State
from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
from earmark.engine.ports.maintenance import BACKLOG_COUNTED_MAX, Backlog, Forgetting, Holds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import Payer, PayerRef
    from earmark.domain.ids import PaymentId
    from earmark.domain.journal import Entry, IdempotencyKey, IdempotencyRecord
    from earmark.domain.payment import Payment, PaymentKey
    from earmark.domain.pool import Pool
    from earmark.engine.ports.heartbeats import HeartbeatReport, Process
    from earmark.engine.ports.store import Clock

FIRST = EntryId(UUID(int=0))


class Tables(Protocol):
    """What upkeep looks at."""

    bookings: dict[BookingId, Booking]
    pools: dict[PoolRef, Pool]
    totals: dict[TotalRef, int]
    entries: dict[EntryId, Entry]
    memories: dict[IdempotencyKey, IdempotencyRecord]
    numbers: dict[EntryId, int]
    payments: dict[PaymentId, Payment]
    payment_keys: dict[IdempotencyKey, PaymentKey]
    payers: dict[PayerRef, Payer]


class MemoryBeats:
    """Rows by process and role."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[tuple[UUID, str], HeartbeatRow] = {}

    async def write(self, process: Process, reports: Collection[HeartbeatReport]) -> None:
        """At once."""
        now = self._clock.now()
        for report in reports:
            key = (process.id, report.role)
            began = self._rows[key].started_at if key in self._rows else now
            said: dict[str, Any] = {"role": report.role, "outcome": report.written, "rounds": report.rounds}
            self._rows[key] = HeartbeatRow(
                process_id=process.id,
                host=process.host,
                version=process.version,
                started_at=began,
                beat_at=now,
                **said,
            )

    async def leave(self, process_id: UUID) -> None:
        """At once."""
        self._rows = {key: beat for key, beat in self._rows.items() if beat.process_id != process_id}

    async def read(self, *, limit: int) -> HeartbeatList:
        """By role, the latest first."""
        latest = sorted(self._rows.values(), key=lambda beat: beat.beat_at, reverse=True)
        return HeartbeatList(now=self._clock.now(), heartbeats=sorted(latest, key=lambda beat: beat.role)[:limit])

    async def clear(self, *, seconds: float, limit: int) -> int:
        """The oldest first."""
        before = self._clock.now() - timedelta(seconds=seconds)
        rows = sorted(self._rows.items(), key=lambda row: row[1].beat_at)
        old = [key for key, beat in rows if beat.beat_at <= before][:limit]
        for key in old:
            del self._rows[key]
        return len(old)


class MemoryUpkeep:
    """Over all rows: there are few."""

    def __init__(self, tables: Callable[[], Tables], *, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._mark = FIRST

    async def forget_keys(self, *, seconds: float, limit: int, from_start: bool = False) -> Forgetting:
        """By id, from the mark on, up to the first entry whose time is not over."""
        tables, before = self._tables(), self._clock.now() - timedelta(seconds=seconds)
        mark = FIRST if from_start else self._mark
        walked = sorted(entry_id for entry_id in tables.entries if entry_id > mark)[:limit]
        cleared = passed = 0
        for entry_id in walked:
            entry = tables.entries[entry_id]
            if entry.at > before:
                break
            passed += 1
            self._mark = max(self._mark, entry_id)
            if entry.key is not None:
                del tables.memories[entry.key]
                tables.entries[entry_id] = msgspec.structs.replace(entry, key=None, memory=None)
                cleared += 1
        return Forgetting(cleared=cleared, more=passed == limit)

    async def forget_payment_keys(self, *, seconds: float, limit: int) -> int:
        """Over all of them."""
        tables, before = self._tables(), self._clock.now() - timedelta(seconds=seconds)
        over = [
            one.key
            for one in sorted(tables.payment_keys.values(), key=lambda one: one.opened_at)
            if one.opened_at <= before and tables.payments[one.payment_id].state not in UNDECIDED
        ]
        for key in over[:limit]:
            del tables.payment_keys[key]
        return len(over[:limit])

    async def forget_payers(self, *, seconds: float, limit: int) -> int:
        """Over all of them."""
        tables, before = self._tables(), self._clock.now() - timedelta(seconds=seconds)
        over = [one.ref for one in tables.payers.values() if one.tried_at <= before]
        for ref in over[:limit]:
            del tables.payers[ref]
        return len(over[:limit])

    async def backlog(self) -> Backlog:
        """From all bookings and entries."""
        tables, now = self._tables(), self._clock.now()
        due = sorted(booking.expires_at for booking in tables.bookings.values() if booking.is_due(now))
        unsent = sorted(entry.at for entry in tables.entries.values() if entry.id not in tables.numbers)
        return Backlog(
            now=now,
            due=min(len(due), BACKLOG_COUNTED_MAX),
            due_since=due[0] if due else None,
            unsent=min(len(unsent), BACKLOG_COUNTED_MAX),
            unsent_since=unsent[0] if unsent else None,
        )

    async def holds(self, *, live: bool, limit: int) -> Holds:
        """From all bookings."""
        now, bookings = self._clock.now(), self._tables().bookings.values()
        ends = sorted(one.expires_at for one in bookings if one.state is State.HELD and one.live is live)[:limit]
        due = [at for at in ends if at <= now]
        left = ends[len(due) :]
        return Holds(
            now=now,
            held=len(left),
            next_at=left[0] if left else None,
            due=len(due),
            due_since=due[0] if due else None,
        )

    async def recount(self, *, limit: int) -> int:
        """What the live bookings say, where the tables say something else."""
        tables = self._tables()
        live = [booking for booking in tables.bookings.values() if booking.is_live]
        units: Counter[TotalRef] = Counter()
        for booking in live:
            units[booking.total_ref] += booking.lines.units
        set_ = 0
        for ref in sorted(units.keys() | tables.totals.keys()):
            if tables.totals.get(ref, 0) != units[ref] and set_ < limit:
                tables.totals[ref] = units[ref]
                set_ += 1
        for pool in list(_counted(tables, live)):
            if tables.pools[pool.ref] != pool and pool.free >= 0 and set_ < limit:
                tables.pools[pool.ref] = pool
                set_ += 1
        return set_


def _counted(tables: Tables, live: list[Booking]) -> Iterator[Pool]:
    """The pools as the bookings have them."""
    for ref, pool in tables.pools.items():
        nothing = PoolDelta()
        held = [booking.pool_deltas(held=1).get(ref, nothing).held for booking in live if booking.state in WAITING]
        sold = [booking.pool_deltas(sold=1).get(ref, nothing).sold for booking in live if booking.state not in WAITING]
        yield msgspec.structs.replace(pool, held=sum(held), sold=sum(sold))


WAITING = {State.HELD, State.PAYING}
