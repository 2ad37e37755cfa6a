"""A hold is changed while another verb has the same booking, or as its end comes: one after the other, both count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import BookingExpired, BookingResolved, PoolExhausted, SeatsTaken

from . import shortcuts
from .commands import TTL_SECONDS, a_change, a_confirm, a_hold, a_release, an_extend
from .optimistic_writes import decided_again, decided_without_locks, kept
from .support import AS_BUILT, POOL_DRIFT, Shortcut, granted, until
from .test_seat_cache import with_cached_event

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import Change

    from .support import RaceDatabase, Server

LONG = 10 * TTL_SECONDS


def seats_of(booking: Booking) -> list[str]:
    """By name."""
    return [line.id for line in booking.lines.seats]


async def changing_to(database: RaceDatabase, ask: Change, stop: str = "before write") -> Server:
    """A change that has come as far as this."""
    changing = (await database.server(stop)).submit(ask)
    await changing.reached(stop)
    return changing


# the end of the hold


async def test_the_sweeper_passes_over_a_hold_that_is_being_changed(either_database: RaceDatabase) -> None:
    """The change has the booking in time; what is swept afterwards is all that the booking has by then."""
    held = await either_database.held("A1", units=1)
    changing = await changing_to(either_database, a_change(held, add=["A2"], drop=["A1"], units=6))
    either_database.pass_the_end(held)
    assert await either_database.tried_sweep() == []
    granted(await changing.outcome())
    (swept,) = await either_database.tried_sweep()
    assert (swept.lines.units, swept.version) == (7, 3)
    assert not await either_database.flaws()
    granted(await either_database.tried(a_hold("A1", "A2", units=10)))


async def test_a_change_waits_for_a_sweeper_that_has_its_booking(either_database: RaceDatabase) -> None:
    """It began in time, and finds the hold expired."""
    held = await either_database.held("A1", units=1)
    changing = await changing_to(either_database, a_change(held, add=["A2"], units=6), "after begin")
    either_database.pass_the_end(held)
    sweeping = (await either_database.server("after lock_due")).sweep()
    await sweeping.reached("after lock_due")
    changing.go()
    await changing.waits_for_a_lock()
    assert [swept.id for swept in await sweeping.outcome()] == [held.id]
    assert isinstance(await changing.outcome(), BookingExpired)
    assert await either_database.owner("A2") is None
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


@pytest.mark.parametrize("seat", ["A1", "A2"], ids=["dropped", "kept"])
async def test_a_takeover_waits_for_a_change_of_the_lapsed_hold(either_database: RaceDatabase, seat: str) -> None:
    """It ends the booking with the lines that it has by then; a seat that was dropped has moved, and is free too."""
    old = await either_database.held("A1", "A2", units=1)
    changing = await changing_to(either_database, a_change(old, add=["A3"], drop=["A1"], units=4))
    either_database.pass_the_end(old)
    holding = (await either_database.server()).submit(a_hold(seat, units=10))
    await holding.waits_for_a_lock()
    granted(await changing.outcome())
    taken = granted(await holding.outcome())
    assert await either_database.owner(seat) == taken.id
    assert await either_database.state(old) == "expired"
    assert not await either_database.flaws()
    granted(await either_database.tried(a_hold("A3", buyer="cid")))


async def a_takeover_is_decided_and_its_lapsed_owner_is_changed(database: RaceDatabase, shortcut: Shortcut) -> Server:
    """An optimistic hold saw the owner lapsed; a change that began in time is written before it."""
    old = await database.held("A1", units=1, buyer="eve")
    changing = await changing_to(database, a_change(old, add=["A2"], units=4))
    database.pass_the_end(old)
    taking = await decided_without_locks(database, a_hold("A1"), shortcut=shortcut)
    granted(await changing.outcome())
    return taking


async def test_without_the_version_a_takeover_ends_lines_that_it_never_saw(bare_database: RaceDatabase) -> None:
    """It gives back what the booking had before the change."""
    taking = await a_takeover_is_decided_and_its_lapsed_owner_is_changed(bare_database, shortcuts.FORGETS_THE_VERSION)
    granted(await kept(taking))
    assert POOL_DRIFT in await bare_database.flaws()


async def test_a_takeover_ends_its_lapsed_owner_as_it_was_changed(either_database: RaceDatabase) -> None:
    """The booking has another version: the takeover is decided again under locks."""
    taking = await a_takeover_is_decided_and_its_lapsed_owner_is_changed(either_database, AS_BUILT)
    granted(await decided_again(taking))
    assert not await either_database.flaws()
    granted(await either_database.tried(a_hold("A2", units=10, buyer="cid")))


async def test_lapsed_units_are_given_back_as_they_were_changed(either_database: RaceDatabase) -> None:
    """A buyer who needs the units of a lapsed hold passes it over while it is changed, and is refused for now only."""
    old = await either_database.held(units=9, buyer="eve")
    changing = await changing_to(either_database, a_change(old, add=["A1"], units=2))
    either_database.pass_the_end(old)
    wanting = (await either_database.server()).submit(a_hold(units=10))
    await wanting.waits_for_a_lock()
    granted(await changing.outcome())
    outcome = await wanting.outcome()
    assert not isinstance(outcome, PoolExhausted), "eight are free at once, and the two others once the hold is ended"
    assert granted(outcome).lines.units == 10
    assert not await either_database.flaws()


# other verbs on the same booking


@pytest.mark.parametrize(
    "ask, state",
    [(a_confirm, "confirmed"), (a_release, "released"), (an_extend, "held")],
    ids=["confirm", "release", "extend"],
)
async def test_a_verb_finds_the_booking_as_it_was_changed(either_database: RaceDatabase, ask: Any, state: str) -> None:
    """What is sold, given back or held longer is what the booking has after the change."""
    held = await either_database.held("A1", units=1)
    changing = await changing_to(either_database, a_change(held, add=["A2"], drop=["A1"], units=3))
    moving = (await either_database.server()).submit(ask(held))
    await moving.waits_for_a_lock()
    granted(await changing.outcome())
    moved = granted(await moving.outcome())
    assert (moved.state, seats_of(moved), moved.lines.units, moved.total) == (state, ["A2"], 4, 2500)
    assert moved == await either_database.booking(held)
    assert await either_database.owner("A1") is None
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


@pytest.mark.parametrize(
    "ask, refusal, units",
    [(a_confirm, BookingResolved, 2), (a_release, BookingResolved, 2), (an_extend, None, 4)],
    ids=["confirm", "release", "extend"],
)
async def test_a_change_finds_the_booking_as_a_verb_left_it(
    either_database: RaceDatabase, ask: Any, refusal: type[Exception] | None, units: int
) -> None:
    """Sold or released it is changed no more; extended it is, and ends at its later end."""
    held = await either_database.held("A1", units=1)
    moving = (await either_database.server("before write")).submit(ask(held))
    await moving.reached("before write")
    changing = (await either_database.server()).submit(a_change(held, add=["A2"], drop=["A1"], units=3))
    await changing.waits_for_a_lock()
    moved = granted(await moving.outcome())
    outcome = await changing.outcome()
    assert isinstance(outcome, refusal) if refusal else granted(outcome).expires_at == moved.expires_at
    assert (await either_database.booking(held)).lines.units == units
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def a_verb_is_decided_and_the_booking_is_changed(
    database: RaceDatabase, ask: Any, shortcut: Shortcut
) -> tuple[Booking, Server]:
    """An optimistic write saw the booking before the change, and is written after it."""
    held = await database.held("A1", units=1)
    deciding = await decided_without_locks(database, ask(held), shortcut=shortcut)
    await database.done(a_change(held, add=["A2"], drop=["A1"], units=3))
    return held, deciding


async def test_without_the_version_a_sale_counts_the_old_lines(bare_database: RaceDatabase) -> None:
    """As many units are counted as sold as the booking had before the change."""
    _, deciding = await a_verb_is_decided_and_the_booking_is_changed(
        bare_database, a_confirm, shortcuts.FORGETS_THE_VERSION
    )
    granted(await kept(deciding))
    assert POOL_DRIFT in await bare_database.flaws()


@pytest.mark.parametrize("ask, state", [(a_confirm, "confirmed"), (a_release, "released"), (an_extend, "held")])
async def test_an_optimistic_verb_is_decided_again_about_a_changed_booking(
    either_database: RaceDatabase, ask: Any, state: str
) -> None:
    """The version is another: nothing is kept, and the locked row has the new lines."""
    _, deciding = await a_verb_is_decided_and_the_booking_is_changed(either_database, ask, AS_BUILT)
    moved = granted(await decided_again(deciding))
    assert (moved.state, seats_of(moved), moved.total) == (state, ["A2"], 2500)
    assert not await either_database.flaws()


# another change of the same booking


@pytest.mark.parametrize("place", ["after begin", "after read_bookings", "after read_seats"])
@pytest.mark.parametrize(
    "asked, seats, version",
    [
        (({"add": ["A2"]}, {"add": ["A3"]}), ["A1", "A2", "A3"], 3),
        (({"add": ["A2"]}, {"add": ["A2"]}), ["A1", "A2"], 2),
        (({"add": ["A2"], "drop": ["A1"]}, {"add": ["A3"], "drop": ["A1"]}), ["A2", "A3"], 3),
        (({"add": ["A2"]}, {"add": ["A3"], "drop": ["A2"]}), ["A1", "A3"], 3),
        (({"add": ["A2"], "drop": ["A1"]}, {"add": ["A1"], "drop": ["A2"]}), ["A1"], 3),
    ],
    ids=["two seats", "the same seat", "dropped twice", "added and dropped", "there and back"],
)
async def test_two_changes_of_one_booking_are_made_one_after_the_other(
    either_database: RaceDatabase, place: str, asked: tuple[Any, Any], seats: list[str], version: int
) -> None:
    """The second has read the booking and its seats before the first commits; what it makes is as if it came after."""
    held = await either_database.held("A1")
    first, second = asked
    changing = await changing_to(either_database, a_change(held, **second, units=2), place)
    await either_database.done(a_change(held, **first, units=2))
    after = granted(await changing.outcome())
    assert (seats_of(after), after.lines.units, after.version) == (seats, len(seats) + 2, version)
    for seat in ("A1", "A2", "A3"):
        assert await either_database.owner(seat) == (held.id if seat in seats else None)
    assert not await either_database.flaws()


async def test_a_change_waits_for_another_of_the_same_booking(either_database: RaceDatabase) -> None:
    """The first has locked it, and has its seats; each takes effect once."""
    held = await either_database.held("A1", units=1)
    first = await changing_to(either_database, a_change(held, add=["A2"], drop=["A1"], units=2))
    second = (await either_database.server()).submit(a_change(held, add=["A1", "A3"], drop=["A2"], units=3))
    await second.waits_for_a_lock()
    granted(await first.outcome())
    after = granted(await second.outcome())
    assert (seats_of(after), after.lines.units, after.version) == (["A1", "A3"], 5, 3)
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_in_one_transaction_two_changes_do_not_get_one_seat(either_database: RaceDatabase) -> None:
    """A batch, as the queue makes one: the seat goes to one of the two bookings, whatever becomes of the other."""
    ann, bob = await either_database.held("A1", buyer="ann"), await either_database.held("A2", buyer="bob")
    outcomes = (
        await (await either_database.server())
        .submit_batch(a_change(ann, add=["A3"]), a_change(bob, add=["A3"]))
        .outcome()
    )
    assert isinstance(outcomes, list), repr(outcomes)
    granted(outcomes[0])
    assert await either_database.live_owners("A3") == 1
    assert await either_database.owner("A3") == ann.id
    assert not await either_database.flaws()


async def test_in_one_transaction_two_changes_of_one_booking_lose_nothing(either_database: RaceDatabase) -> None:
    """A batch, as the queue makes one: what was granted is there, and the other is decided after it."""
    held = await either_database.held("A1", units=1)
    outcomes = (
        await (await either_database.server())
        .submit_batch(a_change(held, add=["A2"], units=2), a_change(held, add=["A3"], units=4))
        .outcome()
    )
    assert isinstance(outcomes, list), repr(outcomes)
    granted(outcomes[0])
    assert "A2" in seats_of(await either_database.booking(held))
    assert not await either_database.flaws()


# holds without locks, and from the seat cache


async def a_hold_is_decided_and_a_change_takes_its_seat(
    database: RaceDatabase, shortcut: Shortcut
) -> tuple[Booking, Server]:
    """The optimistic hold saw the seat free, and is written after the change."""
    held = await database.held("A2")
    holding = await decided_without_locks(database, a_hold("A1"), shortcut=shortcut)
    await database.done(a_change(held, add=["A1"]))
    return held, holding


async def test_without_the_pointer_an_optimistic_hold_takes_an_added_seat(bare_database: RaceDatabase) -> None:
    """It writes over the pointer that it never saw."""
    _, holding = await a_hold_is_decided_and_a_change_takes_its_seat(bare_database, shortcuts.FORGETS_THE_POINTER)
    granted(await kept(holding))
    assert await bare_database.live_owners("A1") == 2


async def test_an_optimistic_hold_finds_a_seat_added_to_another_booking(either_database: RaceDatabase) -> None:
    """Its write is dropped; under locks it is refused."""
    held, holding = await a_hold_is_decided_and_a_change_takes_its_seat(either_database, AS_BUILT)
    assert isinstance(await decided_again(holding), SeatsTaken)
    assert await either_database.owner("A1") == held.id
    assert not await either_database.flaws()


async def test_a_change_finds_a_seat_that_was_held_without_locks(either_database: RaceDatabase) -> None:
    """The hold is written in one call, between the change's read and its lock."""
    held = await either_database.held("A2")
    changing = await changing_to(either_database, a_change(held, add=["A1"], drop=["A2"]), "before lock_seats")
    holding = await either_database.server(drafts=True, connections_max=6)
    taken = granted(await holding.submit(a_hold("A1")).outcome())
    assert holding.store.ran == ["look"]
    assert isinstance(await changing.outcome(), SeatsTaken)
    assert await either_database.owner("A1") == taken.id
    assert await either_database.booking(held) == held
    assert not await either_database.flaws()


async def test_the_cache_sells_no_seat_that_was_added_to_a_booking(either_database: RaceDatabase) -> None:
    """Another process changed a hold: to this one the seat is fresh, until it writes."""
    server = await with_cached_event(either_database)
    held = await either_database.held("A2", buyer="ann")
    await either_database.done(a_change(held, add=["A1"], drop=["A2"]))
    assert isinstance(await server.submit(a_hold("A1", buyer="cid")).outcome(), SeatsTaken)
    assert server.store.ran[0] == "memory"
    assert granted(await server.submit(a_hold("A2", buyer="cid")).outcome()).version == 1
    assert await either_database.owner("A1") == held.id
    assert not await either_database.flaws()


async def test_the_cache_forgets_the_seats_of_a_change_of_its_own_process(either_database: RaceDatabase) -> None:
    """The seat that was added is no longer fresh, and the one that was dropped can be held again."""
    server = await with_cached_event(either_database)
    held = granted(await server.submit(a_hold("A2", buyer="ann")).outcome())
    granted(await server.submit(a_change(held, add=["A1"], drop=["A2"])).outcome())
    assert isinstance(await server.submit(a_hold("A1", buyer="cid")).outcome(), SeatsTaken)
    granted(await server.submit(a_hold("A2", buyer="cid")).outcome())
    sold = granted(await server.submit(a_confirm(held)).outcome())
    assert seats_of(sold) == ["A1"]
    assert not await either_database.flaws()


@pytest.mark.parametrize("ask, state", [(a_confirm, "confirmed"), (a_release, "released"), (an_extend, "held")])
async def test_a_cached_booking_that_another_process_changed_is_read_again(
    either_database: RaceDatabase, ask: Any, state: str
) -> None:
    """The process that made the hold knows it by heart, and finds another version as it writes."""
    server = await with_cached_event(either_database)
    held = granted(await server.submit(a_hold("A1", "A2", units=1, buyer="ann")).outcome())
    await until(lambda: held.id in server.store.seat_cache._bookings)
    await either_database.done(a_change(held, add=["A3"], drop=["A1"], units=4))
    moved = granted(await server.submit(ask(held)).outcome())
    assert (moved.state, seats_of(moved), moved.total) == (state, ["A2", "A3"], 4000)
    assert not await either_database.flaws()
