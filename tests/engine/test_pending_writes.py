"""The one rule of pending writes: what totals and pools gain or lose follows from the two states, for every verb."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from tests.engine.conftest import NOW

from earmark.domain import booking as booking_rules
from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import MOVES, State, Verb
from earmark.domain.id_types import BookingId, Buyer, EntryId, EventId, PoolId, PoolRef, SeatId, SeatRef, TotalRef
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.pool import PoolDelta
from earmark.engine.commands_and_results import Actor, Command, KeyedRequest
from earmark.engine.pending_writes import PendingWrites
from earmark.uuids import Uuid7Ids

ADA = TotalRef(EventId("concert"), Buyer("ada"))
GA = PoolRef(EventId("concert"), PoolId("GA"))
A1, A2 = SeatRef(EventId("concert"), SeatId("A1")), SeatRef(EventId("concert"), SeatId("A2"))

COUNTED_BY_HAND = {
    # from, to: what the buyer's total, the held units and the sold units gain, for two seats and three units
    (None, "held"): (5, 3, 0),
    ("held", "held"): (0, 0, 0),
    ("held", "paying"): (0, 0, 0),
    ("held", "confirmed"): (0, -3, 3),
    ("held", "released"): (-5, -3, 0),
    ("held", "expired"): (-5, -3, 0),
    ("paying", "confirmed"): (0, -3, 3),
    ("paying", "held"): (0, 0, 0),
    ("paying", "expired"): (-5, -3, 0),
    ("paying", "failed"): (-5, -3, 0),
    ("confirmed", "cancelled"): (-5, 0, -3),
    ("confirmed", "confirmed"): (0, 0, 0),
    ("cancelled", "cancelled"): (0, 0, 0),
    ("expired", "confirmed"): (5, 0, 3),
}

STEPS = [(verb, source, target) for (source, verb), targets in MOVES.items() for target in sorted(targets)]


def booking_in(state: State, *, number: int = 7) -> Booking:
    lines = Lines(
        seats=(SeatLine(id=SeatId("A1"), price=4500), SeatLine(id=SeatId("A2"), price=4500)),
        pools=(PoolLine(id=PoolId("GA"), units=3, price=2500),),
    )
    return Booking(
        id=BookingId(UUID(int=number)),
        event_id=EventId("concert"),
        buyer=Buyer("ada"),
        mode=Mode.LIVE,
        state=state,
        lines=lines,
        total=lines.total,
        currency="EUR",
        created_at=NOW - timedelta(seconds=600),
        expires_at=NOW,
    )


def ask_of(*, number: int = 1, key: str | None = None) -> Command:
    idempotency = key and KeyedRequest(
        key=IdempotencyKey("shop", key),
        request_hash=b"hash",
        write=lambda decided, _: (200, str(decided.version).encode()),
    )
    return Command(
        actor=Actor(name="the shop", mode=Mode.LIVE),
        entry_id=EntryId(UUID(int=number)),
        idempotency=idempotency or None,
    )


def record_of(command: Command, booking: Booking) -> IdempotencyRecord | None:
    return command.idempotency.record(booking, NOW) if command.idempotency else None


@pytest.fixture
def writes() -> PendingWrites:
    """Empty, at NOW."""
    return PendingWrites(now=NOW, ids=Uuid7Ids())


def test_every_step_along_the_moves_is_listed() -> None:
    """The table below misses no step, and has none that MOVES does not have."""
    assert {(source, target) for _, source, target in STEPS} == set(COUNTED_BY_HAND)


@pytest.mark.parametrize("verb, source, target", STEPS)
def test_counts_follow_from_the_two_states(
    writes: PendingWrites, verb: Verb, source: State | None, target: State
) -> None:
    """An active booking counts towards its buyer; held and paying units are held, confirmed units are sold."""
    after = booking_in(target)
    if source is None:
        writes.open(after, command=ask_of(), record=None)
    else:
        writes.move(verb, booking_in(source), after, command=ask_of())
    total, held, sold = COUNTED_BY_HAND[source, target]
    assert writes.totals.get(ADA, 0) == total
    assert writes.pools.get(GA, PoolDelta()) == PoolDelta(held=held, sold=sold)
    written = writes.changes()
    assert written.totals == ({ADA: total} if total else {})
    assert written.pools == ({GA: PoolDelta(held=held, sold=sold)} if (held, sold) != (0, 0) else {})


def test_a_sale_cancelled_in_part_frees_that_part(writes: PendingWrites) -> None:
    """One seat and two units of five go: the total, the sold units and the one seat's pointer follow."""
    sale = booking_in(State.CONFIRMED)
    kept, _ = booking_rules.cancel_lines(sale, seats={SeatId("A2")}, pools={PoolId("GA"): 2}, now=NOW)
    writes.move(Verb.CANCEL, sale, kept, command=ask_of())
    written = writes.changes()
    assert written.totals == {ADA: -3}
    assert written.pools == {GA: PoolDelta(sold=-2)}
    assert written.cleared == {A2: sale.id}


def test_a_whole_cancelled_pool_line_is_freed_too(writes: PendingWrites) -> None:
    """A pool that the booking no longer names still gets its units."""
    sale = booking_in(State.CONFIRMED)
    kept, _ = booking_rules.cancel_lines(sale, seats=(), pools={PoolId("GA"): 3}, now=NOW)
    writes.move(Verb.CANCEL, sale, kept, command=ask_of())
    assert writes.changes().pools == {GA: PoolDelta(sold=-3)}


def test_only_a_hold_and_a_partial_cancel_write_seats(writes: PendingWrites) -> None:
    """Ending a booking writes no seat: a pointer to an ended booking is free."""
    for number, (verb, source, target) in enumerate(STEPS):
        if source is not None:
            before, after = booking_in(source, number=number), booking_in(target, number=number)
            writes.move(verb, before, after, command=ask_of(number=number))
    written = writes.changes()
    assert (written.seats, written.cleared) == ({}, {})


def test_a_hold_points_its_seats_to_itself(writes: PendingWrites) -> None:
    """Every seat of the claim, and no other."""
    held = booking_in(State.HELD)
    writes.open(held, command=ask_of(), record=None)
    assert writes.changes().seats == {A1: held.id, A2: held.id}


def test_two_steps_of_one_booking_are_counted_one_after_the_other(writes: PendingWrites) -> None:
    """Within a transaction the second step starts where the first one ended, and both are recorded."""
    sale = booking_in(State.CONFIRMED)
    less, _ = booking_rules.cancel_lines(sale, seats={SeatId("A1")}, pools={}, now=NOW)
    writes.move(Verb.CANCEL, sale, less, command=ask_of(number=1))
    assert writes.current(sale) is less
    gone = booking_rules.cancel(writes.current(sale), now=NOW)
    writes.move(Verb.CANCEL, less, gone, command=ask_of(number=2))
    written = writes.changes()
    assert written.totals == {ADA: -5}
    assert written.pools == {GA: PoolDelta(sold=-3)}
    assert list(written.moved) == [gone]
    assert [(entry.version, entry.before, entry.after) for entry in written.entries] == [
        (2, "confirmed", "confirmed"),
        (3, "confirmed", "cancelled"),
    ]


def test_freeing_and_holding_in_one_transaction_cancel_out(writes: PendingWrites) -> None:
    """A takeover that ends one hold and opens another changes no count, so none is written."""
    old, new = booking_in(State.HELD, number=1), booking_in(State.HELD, number=2)
    writes.expire(old, reason="taken over")
    writes.open(new, command=ask_of(), record=None)
    written = writes.changes()
    assert (written.totals, written.pools) == ({}, {})
    assert [booking.state for booking in written.expired] == [State.EXPIRED]
    assert list(written.opened) == [new]


def test_entries_of_the_clock_name_the_clock(writes: PendingWrites) -> None:
    """What no caller did is recorded as the clock's, with the reason why it looked."""
    writes.expire(booking_in(State.HELD), reason="swept")
    (entry,) = writes.changes().entries
    assert (entry.actor, entry.verb, entry.reason) == ("clock", "expire", "swept")
    assert (entry.before, entry.after) == ("held", "expired")
    assert (entry.at, entry.version, entry.booking_id) == (NOW, 2, BookingId(UUID(int=7)))


def test_an_entry_has_the_actor_the_verb_and_what_changed(writes: PendingWrites) -> None:
    """Before, after, actor, reason, and exactly the facts that are other than they were, new and old."""
    sale = booking_in(State.CONFIRMED)
    kept, _ = booking_rules.cancel_lines(sale, seats={SeatId("A2")}, pools={}, now=NOW)
    writes.move(Verb.CANCEL, sale, kept, command=ask_of(number=9), reason="ill")
    (entry,) = writes.changes().entries
    assert (entry.id.int, entry.actor, entry.reason) == (9, "the shop", "ill")
    was = {"lines": sale.lines, "total": sale.total}
    assert entry.facts == {"lines": kept.lines, "total": 12_000, "was": was}


def test_a_key_keeps_the_answer_as_it_was_given(writes: PendingWrites) -> None:
    """The entry, the key and the answer are one row, and the answer is worded once."""
    held = booking_in(State.HELD)
    command = ask_of(number=1, key="k")
    writes.open(held, command=command, record=record_of(command, held))
    (entry,) = writes.changes().entries
    assert entry.key == IdempotencyKey("shop", "k")
    assert entry.memory is not None
    assert (entry.memory.request_hash, entry.memory.status, entry.memory.body) == (b"hash", 200, b"1")


def test_without_a_step_nothing_is_written(writes: PendingWrites) -> None:
    """Refusals alone leave it empty."""
    assert not writes
    event = Event(id=EventId("concert"), name="Concert", currency="EUR", mode=Mode.LIVE, created_at=NOW)
    writes.record_event("change_event", event, command=ask_of(), record=None, facts={})
    assert writes
