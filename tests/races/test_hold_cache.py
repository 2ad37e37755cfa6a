"""The cache of a process's own holds is advisory: it saves a read, and never overwrites another process's change."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Decided, Replayed
from earmark.engine.engine import Engine
from earmark.engine.verbs.confirm import confirm
from earmark.errors import BookingExpired, BookingResolved, BookingUnknown, PaymentUsed

from . import shortcuts
from .commands import IDS, SHOP, a_cancel, a_confirm, a_hold, a_release, an_extend
from .optimistic_writes import idempotency
from .support import AS_BUILT, Shortcut, granted

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import Command

    from .support import RaceDatabase, Server


async def holding(
    database: RaceDatabase, *seats: str, units: int = 0, shortcut: Shortcut = AS_BUILT
) -> tuple[Server, Booking]:
    """A server that has just written a hold."""
    await database.observer.execute(shortcut.prepare)
    server = await database.server(drafts=True, memory=True, connections_max=6, shortcut=shortcut)
    held = granted(await server.submit(a_hold(*seats, units=units)).outcome())
    server.store.ran.clear()
    return server, held


async def state_of(database: RaceDatabase, booking: Booking) -> str:
    return str(await database.observer.fetchval("SELECT state FROM bookings WHERE id = $1", booking.id))


@pytest.mark.parametrize("ask, state", [(a_confirm, "confirmed"), (a_release, "released"), (an_extend, "held")])
async def test_a_verb_after_a_hold_needs_no_read(
    either_database: RaceDatabase, ask: Callable[[Booking], Command], state: str
) -> None:
    """One call; and seats, units and totals come out as they should."""
    server, held = await holding(either_database, "A1", "A2", units=2)
    moved = granted(await server.submit(ask(held)).outcome())
    assert server.store.ran == ["memory"]
    assert (moved.version, await state_of(either_database, held)) == (2, state)
    assert not await either_database.flaws()


async def test_what_has_changed_is_read(database: RaceDatabase) -> None:
    """A sale is not cached: later verbs on it are rare."""
    server, held = await holding(database, "A1")
    sold = granted(await server.submit(a_confirm(held)).outcome())
    assert granted(await server.submit(a_cancel(sold)).outcome()).state is State.CANCELLED
    assert server.store.ran == ["memory", "look"]
    assert not await database.flaws()


@pytest.mark.parametrize(
    "change, told",
    [
        pytest.param(a_release, BookingResolved, id="released"),
        pytest.param(lambda held: a_confirm(held, payment_id="other"), BookingResolved, id="sold"),
    ],
)
async def test_the_cache_overwrites_no_change_of_another_process(
    either_database: RaceDatabase, change: Callable[[Booking], Command], told: type[Exception]
) -> None:
    """The cache has the booking as held; the write compares, and locks decide."""
    server, held = await holding(either_database, "A1")
    await either_database.tried(change(held))
    assert isinstance(await server.submit(a_confirm(held)).outcome(), told)
    assert server.store.ran[:2] == ["memory", "locks"]
    assert not await either_database.flaws()


async def test_without_the_version_check_the_cache_undoes_another_processs_change(bare_database: RaceDatabase) -> None:
    """The control: a hold that was released, and whose seat another buyer has by now, is sold."""
    server, held = await holding(bare_database, "A1", shortcut=shortcuts.FORGETS_THE_VERSION)
    await bare_database.tried(a_release(held))
    granted(await bare_database.tried(a_hold("A1", buyer="cid")))
    granted(await server.submit(a_confirm(held)).outcome())
    assert server.store.ran == ["memory"]
    assert await bare_database.flaws()


async def test_an_extension_elsewhere_is_kept(either_database: RaceDatabase) -> None:
    """The cache has the old time; the journal of the sale has the new one."""
    server, held = await holding(either_database, "A1")
    longer = granted(await either_database.tried(an_extend(held)))
    sold = granted(await server.submit(a_confirm(held)).outcome())
    assert (sold.version, sold.expires_at) == (3, longer.expires_at)
    assert not await either_database.flaws()


async def test_a_manually_changed_expiry_is_noticed(database: RaceDatabase) -> None:
    """It changed no version, and ended the hold."""
    server, held = await holding(database, "A1")
    await database.observer.execute("UPDATE bookings SET expires_at = created_at WHERE id = $1", held.id)
    assert isinstance(await server.submit(a_confirm(held)).outcome(), BookingExpired)
    assert not await database.flaws()


async def test_without_the_expiry_check_the_cache_sells_a_manually_ended_hold(bare_database: RaceDatabase) -> None:
    """The control."""
    server, held = await holding(bare_database, "A1", shortcut=shortcuts.FORGETS_THE_TIME)
    await bare_database.observer.execute("UPDATE bookings SET expires_at = created_at WHERE id = $1", held.id)
    granted(await server.submit(a_confirm(held)).outcome())


async def test_the_cache_alone_refuses_no_request(database: RaceDatabase) -> None:
    """The cache has the hold as expired; another process extended it."""
    server, held = await holding(database, "A1")
    granted(await database.tried(an_extend(held, seconds=600)))
    database.clock.advance(61)
    assert granted(await server.submit(a_confirm(held)).outcome()).state is State.CONFIRMED
    assert not await database.flaws()


async def test_a_hold_that_ran_out_is_not_sold(database: RaceDatabase) -> None:
    """By the clock of the database, with or without a cached hold."""
    server, held = await holding(database, "A1")
    database.clock.advance(61)
    assert isinstance(await server.submit(a_confirm(held)).outcome(), BookingExpired)
    assert await state_of(database, held) == "expired"
    assert not await database.flaws()


async def test_a_clock_that_is_wrong_sells_nothing_late(database: RaceDatabase) -> None:
    """The time that the cache computes is compared with the database's own."""
    server, held = await holding(database, "A1")
    database.clock.advance(61)
    clock = server.store.seat_cache._clock
    assert clock is not None
    server.store.seat_cache._clock = (clock[0] - timedelta(seconds=30), clock[1])
    assert isinstance(await server.submit(a_confirm(held)).outcome(), BookingExpired)
    assert not await database.flaws()


async def test_a_key_has_one_effect_and_one_answer(either_database: RaceDatabase) -> None:
    """Another process answered the duplicate; this process's cache does not have it."""
    server, held = await holding(either_database, "A1")
    ask = msgspec.structs.replace(a_confirm(held), idempotency=idempotency())
    first = await either_database.tried(ask)
    again = await server.submit(msgspec.structs.replace(ask, entry_id=IDS.entry_id())).outcome()
    assert isinstance(again, Replayed)
    assert isinstance(first, Decided)
    assert again.record == first.record
    assert not await either_database.flaws()


async def test_a_payment_that_is_used_elsewhere_is_refused(either_database: RaceDatabase) -> None:
    """The cache assumes every payment to be free; the write checks it."""
    server, held = await holding(either_database, "A1")
    other = granted(await either_database.tried(a_hold("A2", buyer="cid")))
    granted(await either_database.tried(a_confirm(other, payment_id="paid-1")))
    assert isinstance(await server.submit(a_confirm(held, payment_id="paid-1")).outcome(), PaymentUsed)
    assert await state_of(either_database, held) == "held"
    assert not await either_database.flaws()


async def test_another_caller_learns_nothing_from_the_cache(database: RaceDatabase) -> None:
    """The cache decides who may see a booking; a refusal is decided on a read."""
    server, held = await holding(database, "A1")
    stranger = msgspec.structs.replace(a_confirm(held), actor=msgspec.structs.replace(SHOP, mode=Mode.TEST))
    assert isinstance(await server.submit(stranger).outcome(), BookingUnknown)
    assert server.store.ran == ["memory", "look"]


async def test_two_requests_for_one_booking_see_each_other(database: RaceDatabase) -> None:
    """In one batch: the second finds its work done, which is looked at."""
    server, held = await holding(database, "A1")
    engine = Engine(server.store, ids=IDS, connection_slots=1)
    asks = [a_confirm(held), a_confirm(held)]
    outcomes = await engine.run(confirm, lambda: asks, optimistic=True)
    assert [granted(outcome).version for outcome in outcomes] == [2, 2]
    assert server.store.ran == ["memory", "look"]
    assert not await database.flaws()


async def test_only_the_newest_holds_are_cached(database: RaceDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process does not grow with what it sells."""
    server, oldest = await holding(database, "A1")
    cache = server.store.seat_cache
    monkeypatch.setattr(cache, "_bookings_max", 2)
    newer = [granted(await server.submit(a_hold(seat, buyer=seat)).outcome()) for seat in ("A2", "A3")]
    assert list(cache._bookings) == [held.id for held in newer]
    granted(await server.submit(a_confirm(oldest)).outcome())
    assert server.store.ran[-1] == "look"
