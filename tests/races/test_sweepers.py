"""The sweeper ends what is over, once, and never what another transaction has just kept."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from earmark.workers.due_hold_sweeper import BATCH_SIZE_MAX

from . import shortcuts
from .commands import a_confirm, a_hold, a_release, an_extend
from .support import Shortcut, granted, refused_by

if TYPE_CHECKING:
    from earmark.domain.booking import Booking

    from .support import RaceDatabase, Server

PROOF = bool(os.environ.get("EARMARK_PROOF"))
STATEMENTS = pytest.mark.parametrize(
    "statement",
    [
        pytest.param(shortcuts.SWEEPS_WHERE_ID_IN, id="where-id-in"),
        pytest.param(shortcuts.SWEEPS_FROM_SUBSELECT, id="from-subselect"),
    ],
)
ASKS = pytest.mark.parametrize("ask", [a_confirm, an_extend, a_release])


async def sweeper_collides_with_a_verb(
    database: RaceDatabase, ask: Any, statement: str | None
) -> tuple[Booking, Any, Any]:
    """A verb that was in time has the booking; the sweeper finds it due."""
    old = await database.held("A1", units=1)
    keeping = (await database.server("before write")).submit(ask(old))
    await keeping.reached("before write")
    database.pass_the_end(old)
    sweeping = await start_sweep(database, statement)
    kept = await keeping.outcome()
    return old, kept, await sweeping.outcome()


async def start_sweep(database: RaceDatabase, statement: str | None) -> Server:
    """As built it passes over what is locked and is done; as one statement it waits."""
    if statement is None:
        sweeping = (await database.server()).sweep()
        await sweeping.outcome()
        return sweeping
    server = await database.server(shortcut=Shortcut(warp=shortcuts.OneStatement))
    sweeping = server.sweep(partial(shortcuts.sweep_in_one_statement, statement=statement))
    await sweeping.waits_for_a_lock()
    return sweeping


@ASKS
@STATEMENTS
async def test_a_sweeper_in_one_statement_ends_what_was_just_kept(
    bare_database: RaceDatabase, ask: Any, statement: str
) -> None:
    """What is due was found before the wait and is not checked again after it."""
    old, kept, swept = await sweeper_collides_with_a_verb(bare_database, ask, statement)
    granted(kept)
    assert [booking.id for booking in swept] == [old.id]
    assert await bare_database.state(old) == "expired"
    if ask is not an_extend:
        assert await bare_database.flaws()


@STATEMENTS
@pytest.mark.parametrize("ask", [a_confirm, a_release])
async def test_the_schema_lets_nothing_expire_twice_or_after_a_sale(
    database: RaceDatabase, ask: Any, statement: str
) -> None:
    """The schema's guard: only what is held or paying expires. It has no clock: an extended hold it cannot save."""
    old, kept, swept = await sweeper_collides_with_a_verb(database, ask, statement)
    assert refused_by(swept) == "booking_moves_along_an_edge"
    assert await database.state(old) == granted(kept).state
    assert not await database.flaws()


@ASKS
async def test_the_sweeper_skips_what_another_transaction_is_changing(either_database: RaceDatabase, ask: Any) -> None:
    """Guard and lock stand at the same level, and a locked row is left for the next round."""
    old, kept, swept = await sweeper_collides_with_a_verb(either_database, ask, None)
    assert swept == []
    assert await either_database.state(old) == granted(kept).state
    assert await either_database.tried_sweep() == []
    assert not await either_database.flaws()


async def test_a_booking_confirmed_while_the_sweeper_waits_stays_confirmed(either_database: RaceDatabase) -> None:
    """The sweeper has one due hold and waits for its pool; what a confirm meanwhile keeps of the others, stays."""
    due = await either_database.held("A1", buyer="ann", units=1)
    old = await either_database.held("A2", buyer="bob", units=1)
    confirming = (await either_database.server("before write")).submit(a_confirm(old))
    await confirming.reached("before write")
    either_database.pass_the_end(old)
    sweeping = (await either_database.server()).sweep()
    await sweeping.waits_for_a_lock()
    assert granted(await confirming.outcome()).id == old.id
    assert [booking.id for booking in await sweeping.outcome()] == [due.id]
    assert await either_database.tried_sweep() == []
    assert await either_database.state(old) == "confirmed"
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_two_sweepers_share_the_work(either_database: RaceDatabase) -> None:
    """The second skips what the first has and takes the others: each hold is ended by one, once."""
    holds = [await either_database.held(f"A{n}", buyer=f"buyer-{n}", units=1) for n in range(1, 7)]
    either_database.pass_the_end(holds[-1])
    first = (await either_database.server("after lock_due")).sweep(limit=3)
    await first.reached("after lock_due")
    second = (await either_database.server("before write")).sweep()
    await second.reached("before write")
    first.go()
    await first.waits_for_a_lock()
    swept = [await second.outcome(), await first.outcome()]
    assert [len(part) for part in swept] == [3, 3]
    assert {booking.id for part in swept for booking in part} == {booking.id for booking in holds}
    for booking in holds:
        assert await either_database.verbs(booking) == ["hold", "expire"]
    assert not await either_database.flaws()
    assert await either_database.deadlocks() == 0


async def test_a_sweep_behind_others_locks_only_what_it_ends(either_database: RaceDatabase) -> None:
    """Those that it skips are free for takeovers and for other sweepers meanwhile."""
    holds = [await either_database.held(f"A{n}", buyer=f"buyer-{n}", units=1) for n in range(1, 5)]
    either_database.pass_the_end(holds[-1])
    behind = (await either_database.server("after lock_due")).sweep(limit=2, skip=2)
    await behind.reached("after lock_due")
    assert [booking.id for booking in await (await either_database.server()).sweep(limit=4).outcome()] == [
        booking.id for booking in holds[:2]
    ]
    assert {booking.id for booking in await behind.outcome()} == {booking.id for booking in holds[2:]}
    assert not await either_database.flaws()


async def test_a_sweeper_and_a_takeover_end_a_hold_once(either_database: RaceDatabase) -> None:
    """The first to lock ends it; the other finds it ended, and the seat changes its owner once."""
    holds = [await either_database.held(f"A{n}", units=1) for n in (1, 2)]
    either_database.pass_the_end(holds[-1])
    sweeping = (await either_database.server("before write")).sweep(limit=1)
    await sweeping.reached("before write")
    taking = (await either_database.server()).submit(a_hold("A1", buyer="bob"))
    await taking.waits_for_a_lock()
    assert len(await sweeping.outcome()) == 1
    assert granted(await taking.outcome()).id == await either_database.owner("A1")
    taking = (await either_database.server("before write")).submit(a_hold("A2", buyer="bob"))
    await taking.reached("before write")
    assert await either_database.tried_sweep() == []
    assert granted(await taking.outcome()).id == await either_database.owner("A2")
    for booking in holds:
        assert await either_database.verbs(booking) == ["hold", "expire"]
    assert not await either_database.flaws()


DUE = 10_000 if PROOF else 3000
_MANY_DUE = f"""
    INSERT INTO seats (event_id, id, price, position)
    SELECT 'play', 'D' || n, 1000, 100 + n FROM generate_series(1, {DUE}) n;
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at)
    SELECT gen_random_uuid(), 'play', 'buyer-' || n % 100, 'live', 'held',
           jsonb_build_object('seats', jsonb_build_array(jsonb_build_object('id', 'D' || n, 'price', 1000)),
                              'pools', jsonb_build_array()),
           1000, 'EUR', now() - interval '2 minutes', now() - interval '1 minute'
      FROM generate_series(1, {DUE}) n;
    UPDATE seats s SET booking_id = b.id FROM bookings b WHERE s.id = b.lines -> 'seats' -> 0 ->> 'id';
    INSERT INTO buyer_totals SELECT event_id, buyer, count(*) FROM bookings GROUP BY 1, 2;
    INSERT INTO journal (id, event_id, booking_id, version, verb, after, actor, at, facts)
    SELECT gen_random_uuid(), event_id, id, 1, 'hold', 'held', 'shop', created_at, '{{}}' FROM bookings;
    ANALYZE bookings, seats, buyer_totals, journal"""


async def test_thousands_of_due_holds_are_freed_while_others_hold(database: RaceDatabase) -> None:
    """The sweepers go in small steps, so that no buyer waits for all of it."""
    await database.observer.execute(_MANY_DUE)
    sweepers = [await database.server(), await database.server()]
    counter = await database.server()
    seconds: list[float] = []

    async def sweep(server: Server) -> int:
        swept = 0
        while ended := await server.engine.expire(limit=BATCH_SIZE_MAX):
            swept += len(ended)
        return swept

    async def hold_and_release(seat: str) -> None:
        # By the same buyers as the holds that are being ended: their totals are what both sides lock.
        while not sweeping.done():
            before = asyncio.get_running_loop().time()
            answer = await counter.engine.hold(a_hold(seat, units=1, buyer=f"buyer-{len(seconds) % 100}"))
            seconds.append(asyncio.get_running_loop().time() - before)
            await counter.engine.release(a_release(granted(answer)))

    sweeping = asyncio.gather(*(sweep(server) for server in sweepers))
    await asyncio.gather(*(hold_and_release(seat) for seat in ("A1", "A2", "A3")))
    print(f"\n{DUE} due holds swept beside {len(seconds)} holds, the slowest in {max(seconds) * 1000:.0f} ms")  # noqa: T201
    assert sum(await sweeping) == DUE
    expired = "SELECT count(*) = $1 AND count(DISTINCT booking_id) = $1 FROM journal WHERE verb = 'expire'"
    assert await database.observer.fetchval(expired, DUE)
    assert max(seconds) < 5
    assert not await database.flaws()
    assert await database.deadlocks() == 0
