"""The SQLite workload, with every commit on the disk: batches against one transaction per request."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from earmark.bench.booking.measure import concurrent_client_workloads, one_measurement
from earmark.bench.booking.measure.measurement_plan import SINGLE
from earmark.bench.booking.strategies.earmark_engine import EarmarkStrategy
from earmark.bench.prepare_and_count_rows import CountedRows
from earmark.config import Settings
from earmark.domain.bookable_event import Event
from earmark.domain.booking_state_machine import ACTIVE_STATES, State
from earmark.domain.id_types import EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.seat import Seat
from earmark.engine.commands_and_results import Actor, CreateEvent
from earmark.engine.engine import Engine
from earmark.engine.ports.store import BookingFilter
from earmark.server import gc_tuning
from earmark.uuids import Uuid7Ids
from earmark.wiring import open_and_maintain_databases, runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.bench.booking.measure.concurrent_client_workloads import ClientTally
    from earmark.bench.booking.measure.measurement_plan import BookingPlan, Measurement
    from earmark.bench.booking.measure.results import MeasurementResult
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store

PRICE = 4500
PAGE = 1_000
DISK = "/var/tmp"  # noqa: S108 -- unlike /tmp it is on a disk everywhere, and a commit to memory would cost nothing


async def measure(measurement: Measurement, plan: BookingPlan) -> MeasurementResult:
    """One measurement, in a new file."""
    disk = DISK if os.access(DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="earmark-bench-", dir=disk) as folder:
        url = f"sqlite:////{Path(folder, 'bench.sqlite3').as_posix().lstrip('/')}"
        await open_and_maintain_databases.migrate(url)
        engine = await _open(url, single=measurement.contender == SINGLE)
        try:
            return await _measure(measurement, plan, engine)
        finally:
            await engine.close()


async def _open(url: str, *, single: bool) -> Engine:
    if not single:
        return await runtime.open_engine(Settings(database_url=url))
    return Engine(
        await open_and_maintain_databases.open_store(url), ids=Uuid7Ids(), connection_slots=1, batch_size_max=1
    )


async def _measure(measurement: Measurement, plan: BookingPlan, engine: Engine) -> MeasurementResult:
    sizes, event_id = plan.sizes, one_measurement.fresh_name(measurement)
    warm = f"{event_id}-warm"
    flows = max(int(sizes.flows_per_second_max * plan.seconds), plan.clients)
    await open_event(engine, warm, seats=sizes.warm(plan.clients) * sizes.seats_each)
    await open_event(engine, event_id, seats=flows * sizes.seats_each)
    strategy = EarmarkStrategy(engine)
    warming = concurrent_client_workloads.apart(warm, flows=sizes.warm(plan.clients), seats_each=sizes.seats_each)
    await concurrent_client_workloads.run_clients(strategy, warming, clients=plan.clients, seconds=None)
    gc_tuning.freeze_startup_objects()
    wants = concurrent_client_workloads.apart(event_id, flows=flows, seats_each=sizes.seats_each)
    tally = await concurrent_client_workloads.run_clients(strategy, wants, clients=plan.clients, seconds=plan.seconds)
    one_measurement.check(measurement, tally)
    counted = await count(engine.store, event_id, tally)
    return one_measurement.reading(measurement.workload, tally, counted, database_seconds=None)


async def open_event(engine: Engine, event_id: str, *, seats: int) -> None:
    """Create an event with seats S0, S1, … by the engine's own verb."""
    name = EventId(event_id)
    now = (await engine.store.read_map(name)).now
    event = Event(id=name, name="A benchmark", currency="EUR", mode=Mode.TEST, created_at=now)
    database = tuple(Seat(event_id=name, id=SeatId(f"S{number}"), price=PRICE) for number in range(seats))
    actor = Actor(name="bench", mode=Mode.TEST)
    await engine.create_event(CreateEvent(actor=actor, entry_id=engine.ids.entry_id(), event=event, seats=database))


async def count(store: Store, event_id: str, tally: ClientTally) -> CountedRows:
    """Count through the store's port, so that no SQL is needed."""
    bookings = [booking async for booking in _bookings(store, EventId(event_id))]
    sales = {booking.id for booking in bookings if booking.state is State.CONFIRMED}
    active = {booking.id for booking in bookings if booking.state in ACTIVE_STATES}
    owners = Counter(ref for booking in bookings if booking.state in ACTIVE_STATES for ref in booking.seat_refs)
    payments = Counter(booking.payment_id for booking in bookings if booking.payment_id)
    pointers = {seat.seat.id: seat.owner_id for seat in (await store.read_map(EventId(event_id))).seats}
    owned = Counter(owner for owner in pointers.values() if owner is not None)
    incomplete = {b.id for b in bookings if b.id in active and owned[b.id] < len(b.seat_refs)}
    return CountedRows(
        confirmed=len(sales),
        held=len(active) - len(sales),
        seats=sum(owner in sales for owner in pointers.values()),
        oversold=sum(number - 1 for number in owners.values()),
        double_charged=sum(number > 1 for number in payments.values()),
        lost=sum(one not in sales or one in incomplete for one in tally.confirmed)
        + sum(one not in active or one in incomplete for one in tally.held),
    )


async def _bookings(store: Store, event_id: EventId) -> AsyncIterator[Booking]:
    after = None
    while True:
        _, found = await store.list_bookings(BookingFilter(mode=Mode.TEST, limit=PAGE, after=after, event_id=event_id))
        for booking in found:
            yield booking
        if len(found) < PAGE:
            return
        after = found[-1].id
