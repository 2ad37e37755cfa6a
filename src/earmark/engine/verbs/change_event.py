"""change: an operator's change to an event: window, limits, prices, capacity, blocked seats.

Active bookings keep what they have: their price, their seats, their units. So a seat that is held or sold cannot be
blocked, and a pool cannot shrink below what is held and sold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain import journal_before_and_after_values
from earmark.domain.id_types import PoolRef, SeatRef
from earmark.domain.pool import PoolDelta
from earmark.domain.seat import SeatAvailability, SeatSeen, availability
from earmark.engine.batch_transaction import BatchDecisions
from earmark.engine.commands_and_results import TryAgain
from earmark.engine.ports.store import PoolUpdate, SeatUpdate
from earmark.engine.verbs.hold import MAKE_ROOM_ROUNDS_MAX, MOVED_ROUNDS_MAX
from earmark.errors import CapacityInUse, EventUnknown, InvalidRequest, PoolUnknown, Refusal, SeatsTaken, SeatUnknown

if TYPE_CHECKING:
    from earmark.domain.bookable_event import Event
    from earmark.domain.pool import Pool
    from earmark.engine.commands_and_results import ChangeEvent, Outcome
    from earmark.engine.ports.store import Ids, Transaction


async def change_event(transaction: Transaction, command: ChangeEvent, *, ids: Ids) -> Outcome:
    """Recorded response? → read → lock → decide → write."""
    decisions = await BatchDecisions.open(transaction, [command], ids=ids)
    if not decisions.waiting:
        return (await decisions.close())[0]
    try:
        return await _change(decisions, command)
    except Refusal as refusal:
        return refusal


async def _change(decisions: BatchDecisions[ChangeEvent], command: ChangeEvent) -> Outcome:
    event = await decisions.transaction.lock_event(command.event_id)
    if event is None or event.mode != command.actor.mode:
        raise EventUnknown(event_id=command.event_id)
    after = _changed(event, command)
    seen = await _read_seats(decisions, command)
    taken = await _expire_lapsed(decisions, command, seen)
    await decisions.transaction.lock_totals(decisions.writes.totals.keys())
    pools = await _check_pools(decisions, command)
    if isinstance(pools, TryAgain):
        return pools
    unmoved = await decisions.transaction.lock_seats(seen.values())
    if taken:
        raise SeatsTaken(seats=taken)
    if moved := sorted(ref.seat_id for ref in seen if ref not in unmoved):
        return TryAgain(refusal=SeatsTaken(seats=moved, transient=True), rounds_max=MOVED_ROUNDS_MAX)
    facts = {
        "fields": msgspec.to_builtins(dict(command.fields)),
        "seats": msgspec.to_builtins(command.seats),
        "pools": msgspec.to_builtins(command.pools),
        journal_before_and_after_values.WAS: {
            "fields": msgspec.to_builtins(journal_before_and_after_values.event_was(event, command.fields)),
            "seats": [{"id": seat.ref.seat_id, "blocked": seat.blocked, "price": seat.price} for seat in seen.values()],
            "pools": [{"id": pool.id, "capacity": pool.capacity, "price": pool.price} for pool in pools],
        },
    }
    record = decisions.record_response(command, after)
    decisions.writes.record_event("change_event", after, command=command, record=record, facts=facts)
    decisions.complete(command, after, record=record)
    outcomes = await decisions.close(
        event=after,
        seat_changes=[
            SeatUpdate(ref=SeatRef(event.id, seat.id), blocked=seat.blocked, price=seat.price) for seat in command.seats
        ],
        pool_changes=[
            PoolUpdate(ref=PoolRef(event.id, pool.id), capacity=pool.capacity, price=pool.price)
            for pool in command.pools
        ],
    )
    return outcomes[0]


def _changed(event: Event, command: ChangeEvent) -> Event:
    after = msgspec.structs.replace(event, **command.fields, version=event.version + 1)
    opens, closes = after.sale_opens_at, after.sale_closes_at
    if opens is not None and closes is not None and closes <= opens:
        raise InvalidRequest.at("sale_closes_at", "must be after sale_opens_at")
    return after


async def _read_seats(decisions: BatchDecisions[ChangeEvent], command: ChangeEvent) -> dict[SeatRef, SeatSeen]:
    wanted = {SeatRef(command.event_id, seat.id) for seat in command.seats}
    seen = await decisions.transaction.read_seats(wanted)
    if unknown := sorted(ref.seat_id for ref in wanted if ref not in seen):
        raise SeatUnknown(seats=unknown)
    return seen


async def _expire_lapsed(
    decisions: BatchDecisions[ChangeEvent], command: ChangeEvent, seen: dict[SeatRef, SeatSeen]
) -> list[str]:
    """End the lapsed holds on seats that are to be blocked; the seats that have an active owner."""
    blocking = [seen[SeatRef(command.event_id, seat.id)] for seat in command.seats if seat.blocked]
    taken = [seat.ref.seat_id for seat in blocking if availability(seat, now=decisions.now) is SeatAvailability.TAKEN]
    lapsed = {
        seat.pointer
        for seat in blocking
        if seat.pointer and availability(seat, now=decisions.now) is SeatAvailability.LAPSED
    }
    owners = await decisions.transaction.lock_bookings(lapsed)
    for owner in owners.values():
        if owner.is_due(decisions.now):
            decisions.writes.expire(owner, reason="seat blocked")
    alive = {owner.id for owner in owners.values() if owner.is_active and not owner.is_due(decisions.now)}
    return sorted({*taken, *(seat.ref.seat_id for seat in blocking if seat.pointer in alive)})


async def _check_pools(decisions: BatchDecisions[ChangeEvent], command: ChangeEvent) -> TryAgain | list[Pool]:
    """The pools as they are. One cannot shrink below what it has given; perhaps some of that has lapsed."""
    wanted = {PoolRef(command.event_id, pool.id): pool for pool in command.pools}
    pools = await decisions.transaction.lock_pools({*decisions.writes.pools, *wanted})
    if unknown := sorted(ref.pool_id for ref in wanted if ref not in pools):
        raise PoolUnknown(pools=unknown)
    for ref, asked in sorted(wanted.items()):
        given_back = decisions.writes.pools.get(ref, PoolDelta())
        in_use = pools[ref].held + pools[ref].sold + given_back.held + given_back.sold
        if asked.capacity is not None and asked.capacity < in_use:
            refusal = CapacityInUse(pool=ref.pool_id, capacity=asked.capacity, in_use=in_use)
            missing = in_use - asked.capacity
            return TryAgain(refusal=refusal, rounds_max=MAKE_ROOM_ROUNDS_MAX, full=ref, short=missing)
    return [pools[ref] for ref in wanted]
