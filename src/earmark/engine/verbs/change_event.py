"""change: an operator's change to an event: window, limits, prices, capacity, blocked seats.

Live bookings keep what they have: their price, their seats, their units. So a seat that is held or sold cannot be
blocked, and a pool cannot shrink below what is held and sold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain import journal_changes
from earmark.domain.ids import PoolRef, SeatRef
from earmark.domain.pool import PoolDelta
from earmark.domain.seat import SeatSeen, Verdict, verdict
from earmark.engine.batch_transaction import Desk
from earmark.engine.commands import Again
from earmark.engine.ports.store import PoolChange, SeatChange
from earmark.engine.verbs.hold import MOVED_ROUNDS_MAX, RELIEF_ROUNDS_MAX
from earmark.errors import CapacityInUse, EventUnknown, InvalidRequest, PoolUnknown, Refusal, SeatsTaken, SeatUnknown

if TYPE_CHECKING:
    from earmark.domain.event import Event
    from earmark.domain.pool import Pool
    from earmark.engine.commands import Change, Outcome
    from earmark.engine.ports.store import Ids, Transaction


async def change(transaction: Transaction, ask: Change, *, ids: Ids) -> Outcome:
    """Earlier answer? → look → lock → judge → write."""
    desk = await Desk.open(transaction, [ask], ids=ids)
    if not desk.waiting:
        return (await desk.close())[0]
    try:
        return await _change(desk, ask)
    except Refusal as refusal:
        return refusal


async def _change(desk: Desk[Change], ask: Change) -> Outcome:
    event = await desk.transaction.lock_event(ask.event_id)
    if event is None or event.live != ask.actor.live:
        raise EventUnknown(event_id=ask.event_id)
    after = _changed(event, ask)
    seen = await _look(desk, ask)
    taken = await _expire_lapsed(desk, ask, seen)
    await desk.transaction.lock_totals(desk.ledger.totals.keys())
    pools = await _check_pools(desk, ask)
    if isinstance(pools, Again):
        return pools
    unmoved = await desk.transaction.lock_seats(seen.values())
    if taken:
        raise SeatsTaken(seats=taken)
    if moved := sorted(ref.seat_id for ref in seen if ref not in unmoved):
        return Again(refusal=SeatsTaken(seats=moved, transient=True), rounds_max=MOVED_ROUNDS_MAX)
    facts = {
        "fields": msgspec.to_builtins(dict(ask.fields)),
        "seats": msgspec.to_builtins(ask.seats),
        "pools": msgspec.to_builtins(ask.pools),
        journal_changes.WAS: {
            "fields": msgspec.to_builtins(journal_changes.event_was(event, ask.fields)),
            "seats": [{"id": seat.ref.seat_id, "blocked": seat.blocked, "price": seat.price} for seat in seen.values()],
            "pools": [{"id": pool.id, "capacity": pool.capacity, "price": pool.price} for pool in pools],
        },
    }
    desk.ledger.tell_of_event("change", after, ask=ask, facts=facts)
    desk.answer(ask, after)
    outcomes = await desk.close(
        event=after,
        seat_changes=[
            SeatChange(ref=SeatRef(event.id, seat.id), blocked=seat.blocked, price=seat.price) for seat in ask.seats
        ],
        pool_changes=[
            PoolChange(ref=PoolRef(event.id, pool.id), capacity=pool.capacity, price=pool.price) for pool in ask.pools
        ],
    )
    return outcomes[0]


def _changed(event: Event, ask: Change) -> Event:
    after = msgspec.structs.replace(event, **ask.fields, version=event.version + 1)
    opens, closes = after.sale_opens_at, after.sale_closes_at
    if opens is not None and closes is not None and closes <= opens:
        raise InvalidRequest.at("sale_closes_at", "must be after sale_opens_at")
    return after


async def _look(desk: Desk[Change], ask: Change) -> dict[SeatRef, SeatSeen]:
    wanted = {SeatRef(ask.event_id, seat.id) for seat in ask.seats}
    seen = await desk.transaction.read_seats(wanted)
    if unknown := sorted(ref.seat_id for ref in wanted if ref not in seen):
        raise SeatUnknown(seats=unknown)
    return seen


async def _expire_lapsed(desk: Desk[Change], ask: Change, seen: dict[SeatRef, SeatSeen]) -> list[str]:
    """End the lapsed holds on seats that are to be blocked; the seats that have a live owner."""
    blocking = [seen[SeatRef(ask.event_id, seat.id)] for seat in ask.seats if seat.blocked]
    taken = [seat.ref.seat_id for seat in blocking if verdict(seat, now=desk.now) is Verdict.TAKEN]
    lapsed = {seat.pointer for seat in blocking if seat.pointer and verdict(seat, now=desk.now) is Verdict.LAPSED}
    owners = await desk.transaction.lock_bookings(lapsed)
    for owner in owners.values():
        if owner.is_due(desk.now):
            desk.ledger.expire(owner, reason="seat blocked")
    alive = {owner.id for owner in owners.values() if owner.is_live and not owner.is_due(desk.now)}
    return sorted({*taken, *(seat.ref.seat_id for seat in blocking if seat.pointer in alive)})


async def _check_pools(desk: Desk[Change], ask: Change) -> Again | list[Pool]:
    """The pools as they are. One cannot shrink below what it has given; perhaps some of that has lapsed."""
    wanted = {PoolRef(ask.event_id, pool.id): pool for pool in ask.pools}
    pools = await desk.transaction.lock_pools({*desk.ledger.pools, *wanted})
    if unknown := sorted(ref.pool_id for ref in wanted if ref not in pools):
        raise PoolUnknown(pools=unknown)
    for ref, asked in sorted(wanted.items()):
        given_back = desk.ledger.pools.get(ref, PoolDelta())
        in_use = pools[ref].held + pools[ref].sold + given_back.held + given_back.sold
        if asked.capacity is not None and asked.capacity < in_use:
            refusal = CapacityInUse(pool=ref.pool_id, capacity=asked.capacity, in_use=in_use)
            missing = in_use - asked.capacity
            return Again(refusal=refusal, rounds_max=RELIEF_ROUNDS_MAX, relief=ref, short=missing)
    return [pools[ref] for ref in wanted]
