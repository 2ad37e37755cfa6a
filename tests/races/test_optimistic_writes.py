"""An optimistic write has read and decided without a lock; before it writes, another transaction changes what it saw.

Every guard of the call that writes runs twice: taken out, in a database without the schema's guards, where it must
break; and as built, where nothing of the optimistic write is kept and the request is decided again under locks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from earmark.engine.commands_and_results import ChangeEvent, Decided
from earmark.errors import (
    BookingExpired,
    InvalidRequest,
    LimitExceeded,
    PaymentUsed,
    PoolExhausted,
    SaleClosed,
    SeatsTaken,
)

from . import shortcuts
from .commands import EVENT, IDS, SHOP, a_block, a_cancel, a_confirm, a_hold, a_limit, a_repricing, an_extend
from .optimistic_writes import by_another, decided_again, decided_without_locks, idempotency, kept
from .support import (
    AS_BUILT,
    BLOCKED_AND_OWNED,
    LOST_ITS_SEAT,
    OVERSOLD,
    POOL_DRIFT,
    RESOLVED_TWICE,
    TWO_OWNERS,
    Shortcut,
    granted,
)

if TYPE_CHECKING:
    from earmark.domain.booking import Booking

    from .support import RaceDatabase, Server

# What late money does to an expired booking, for a database where no trigger raises the fence.
_COME_BACK = """
    UPDATE bookings SET state = 'confirmed', version = version + 1, confirmed_at = now() WHERE id = $1"""
_RAISE_FENCES = "UPDATE seats SET fence = fence + 1 WHERE booking_id = $1"


async def test_an_optimistic_write_without_contention_is_written_as_it_is(either_database: RaceDatabase) -> None:
    """One look and one call, for each of the verbs, and the counts agree."""
    old = await either_database.held("A1", units=1, buyer="dan")
    either_database.pass_the_end(old)
    server = await either_database.server(drafts=True, connections_max=6)
    held = granted(await server.submit(a_hold("A1", "A2", units=2, idempotency=idempotency())).outcome())
    granted(await server.submit(an_extend(held)).outcome())
    granted(await server.submit(a_confirm(held)).outcome())
    granted(await server.submit(a_cancel(held, "A1")).outcome())
    assert server.store.ran == ["look"] * 4
    assert await either_database.verbs(held) == ["hold", "extend", "confirm", "cancel"]
    assert await either_database.state(old) == "expired"
    assert (await either_database.owner("A1"), await either_database.owner("A2")) == (None, held.id)
    assert not await either_database.flaws()


async def test_without_the_pointer_two_optimistic_writes_sell_one_seat_twice(bare_database: RaceDatabase) -> None:
    """Both saw it free."""
    second = await decided_without_locks(bare_database, a_hold("A1"), shortcut=shortcuts.FORGETS_THE_POINTER)
    granted(await by_another(bare_database, a_hold("A1", buyer="cid")))
    granted(await kept(second))
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


@pytest.mark.parametrize("before", ["free", "swept", "lapsed"])
async def test_of_two_optimistic_writes_for_a_seat_one_gets_it(either_database: RaceDatabase, before: str) -> None:
    """The write compares the seat's pointer, whether it pointed to a booking or not."""
    if before != "free":
        old = await either_database.held("A1", buyer="dan", units=1)
        either_database.pass_the_end(old)
        if before == "swept":
            await either_database.tried_sweep()
    second = await decided_without_locks(either_database, a_hold("A1"))
    first = granted(await by_another(either_database, a_hold("A1", buyer="cid")))
    assert isinstance(await decided_again(second), SeatsTaken)
    assert await either_database.owner("A1") == first.id
    assert not await either_database.flaws()


async def test_an_optimistic_write_that_found_a_change_reads_again_before_it_locks(
    either_database: RaceDatabase,
) -> None:
    """The other transaction has committed by then: a second read shows it, and costs less than locks."""
    second = await either_database.server("before write", drafts=True, connections_max=6)
    second.store.tries_again = 1
    second.submit(a_hold("A1"))
    await second.reached("before write")
    first = granted(await by_another(either_database, a_hold("A1", buyer="cid")))
    assert isinstance(await second.outcome(), SeatsTaken)
    assert second.store.ran == ["look", "look"]
    assert await either_database.owner("A1") == first.id
    assert not await either_database.flaws()


async def an_optimistic_write_from_before_the_end_collides_with_a_takeover(
    database: RaceDatabase, ask: Any, shortcut: Shortcut
) -> tuple[Booking, Booking, Server]:
    """A confirm or extend was drafted in time; then the hold's time is over, and another takes its seat."""
    old = await database.held("A1", buyer="ann")
    late = await decided_without_locks(database, ask(old), shortcut=shortcut)
    database.pass_the_end(old)
    taken = granted(await by_another(database, a_hold("A1")))
    return old, taken, late


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_without_the_version_a_late_optimistic_write_revives_a_lost_hold(
    bare_database: RaceDatabase, ask: Any
) -> None:
    """What was drafted about is not what is there, and nothing is compared."""
    _, _, late = await an_optimistic_write_from_before_the_end_collides_with_a_takeover(
        bare_database, ask, shortcuts.FORGETS_THE_VERSION
    )
    granted(await kept(late))
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


@pytest.mark.parametrize("ask", [a_confirm, an_extend])
async def test_a_late_optimistic_write_finds_its_hold_taken_over(either_database: RaceDatabase, ask: Any) -> None:
    """The booking has another version: the write is dropped, and the locked row says that it expired."""
    old, taken, late = await an_optimistic_write_from_before_the_end_collides_with_a_takeover(
        either_database, ask, AS_BUILT
    )
    assert isinstance(await decided_again(late), BookingExpired)
    assert await either_database.state(old) == "expired"
    assert await either_database.owner("A1") == taken.id
    assert not await either_database.flaws()


async def a_takeover_is_decided_and_the_owner_moves(
    database: RaceDatabase, ask: Any, shortcut: Shortcut
) -> tuple[Booking, Booking, Server]:
    """The takeover saw the hold due; a confirm or extend that was drafted in time is written before it."""
    old = await database.held("A1", buyer="ann", units=1)
    in_time = await decided_without_locks(database, ask(old))
    database.pass_the_end(old)
    taking = await decided_without_locks(database, a_hold("A1"), shortcut=shortcut)
    return old, granted(await in_time.outcome()), taking


async def test_without_the_version_a_takeover_loses_a_sale(bare_database: RaceDatabase) -> None:
    """It ends what it saw due, and what it ends was sold meanwhile."""
    old, _, taking = await a_takeover_is_decided_and_the_owner_moves(
        bare_database, a_confirm, shortcuts.FORGETS_THE_VERSION
    )
    granted(await kept(taking))
    assert await bare_database.state(old) == "expired"
    assert {POOL_DRIFT, RESOLVED_TWICE} <= await bare_database.flaws()


@pytest.mark.parametrize("ask, state", [(a_confirm, "confirmed"), (an_extend, "held")])
async def test_a_takeover_leaves_an_owner_that_moved(either_database: RaceDatabase, ask: Any, state: str) -> None:
    """Sold or extended after the look: the seat is taken."""
    old, moved, taking = await a_takeover_is_decided_and_the_owner_moves(either_database, ask, AS_BUILT)
    assert isinstance(await decided_again(taking), SeatsTaken)
    assert (await either_database.booking(old)).version == moved.version
    assert await either_database.state(old) == state
    assert await either_database.owner("A1") == old.id
    assert not await either_database.flaws()


async def a_hold_is_decided_and_late_money_comes(database: RaceDatabase, shortcut: Shortcut) -> tuple[Booking, Server]:
    """The seat points to an expired booking, and still does when the hold is written; but that booking is sold."""
    old = await database.held("A1", buyer="ann")
    database.pass_the_end(old)
    assert await database.tried_sweep()
    holding = await decided_without_locks(database, a_hold("A1"), shortcut=shortcut)
    async with database.observer.transaction():
        await database.observer.execute(_COME_BACK, old.id)
        if await database.observer.fetchval("SELECT fence = 0 FROM seats WHERE id = 'A1'"):
            await database.observer.execute(_RAISE_FENCES, old.id)
    return old, holding


async def test_without_the_fence_an_optimistic_write_takes_a_seat_that_late_money_bought(
    bare_database: RaceDatabase,
) -> None:
    """The pointer alone does not show it: it is as it was."""
    _, holding = await a_hold_is_decided_and_late_money_comes(bare_database, shortcuts.FORGETS_THE_FENCE)
    granted(await kept(holding))
    assert await bare_database.live_owners("A1") == 2
    assert TWO_OWNERS in await bare_database.flaws()


async def test_a_raised_fence_stops_an_optimistic_write(either_database: RaceDatabase) -> None:
    """A request that saw the seat free reads again."""
    old, holding = await a_hold_is_decided_and_late_money_comes(either_database, AS_BUILT)
    assert isinstance(await decided_again(holding), SeatsTaken)
    assert await either_database.owner("A1") == old.id
    assert await either_database.live_owners("A1") == 1


async def test_without_the_block_an_optimistic_write_sells_a_blocked_seat(bare_database: RaceDatabase) -> None:
    """The operator took it off sale after the look."""
    holding = await decided_without_locks(bare_database, a_hold("A1"), shortcut=shortcuts.FORGETS_THE_BLOCK)
    await bare_database.tried(a_block("A1"))
    granted(await kept(holding))
    assert BLOCKED_AND_OWNED in await bare_database.flaws()


async def test_an_optimistic_write_sells_no_seat_that_was_blocked_meanwhile(either_database: RaceDatabase) -> None:
    """The block is compared as the seat is taken."""
    holding = await decided_without_locks(either_database, a_hold("A1"))
    await either_database.tried(a_block("A1"))
    assert isinstance(await decided_again(holding), SeatsTaken)
    assert await either_database.owner("A1") is None
    assert not await either_database.flaws()


async def test_without_the_price_an_optimistic_write_sells_for_yesterday_s(bare_database: RaceDatabase) -> None:
    """The price in the cache or an old read is not the operator's current one."""
    holding = await decided_without_locks(bare_database, a_hold("A1"), shortcut=shortcuts.FORGETS_THE_PRICE)
    await bare_database.tried(a_repricing("A1", price=99))
    assert granted(await kept(holding)).total == 1000


async def test_an_optimistic_write_sells_for_the_current_price(either_database: RaceDatabase) -> None:
    """Priced anew after the look: decided again, at the new price."""
    holding = await decided_without_locks(either_database, a_hold("A1"))
    await either_database.tried(a_repricing("A1", price=99))
    assert granted(await decided_again(holding)).total == 99
    assert not await either_database.flaws()


async def test_without_the_limit_two_optimistic_writes_give_a_buyer_too_much(bare_database: RaceDatabase) -> None:
    """Both were the buyer's first, and each alone is within the limit."""
    await bare_database.tried(a_limit(2))
    second = await decided_without_locks(bare_database, a_hold("A1", "A2"), shortcut=shortcuts.FORGETS_THE_LIMIT)
    granted(await by_another(bare_database, a_hold("A3", "A4")))
    granted(await kept(second))
    assert await bare_database.observer.fetchval("SELECT units FROM buyer_totals") == 4


async def test_two_first_holds_stay_within_a_buyer_s_limit(either_database: RaceDatabase) -> None:
    """There was no total to see, and now there is one: the write checks the limit on the row that it locks."""
    await either_database.tried(a_limit(2))
    second = await decided_without_locks(either_database, a_hold("A1", "A2"))
    granted(await by_another(either_database, a_hold("A3", "A4")))
    assert isinstance(await decided_again(second), LimitExceeded)
    assert await either_database.observer.fetchval("SELECT units FROM buyer_totals") == 2
    assert not await either_database.flaws()


async def test_a_limit_that_was_lowered_meanwhile_holds_for_an_optimistic_write(either_database: RaceDatabase) -> None:
    """The limit is the event's as it is at the write, not as it was at the look."""
    await either_database.held("B1", buyer="bob")
    second = await decided_without_locks(either_database, a_hold("A1"))
    await either_database.tried(a_limit(1))
    assert isinstance(await decided_again(second), LimitExceeded)
    assert not await either_database.flaws()


async def test_a_sale_that_was_closed_meanwhile_is_judged_by_one_rule_or_the_other(
    either_database: RaceDatabase,
) -> None:
    """As under locks: the hold began before the change, and is granted by the old rule or refused by the new."""
    holding = await decided_without_locks(either_database, a_hold("A1"))
    closing = {"sale_closes_at": datetime.now(UTC)}
    await either_database.tried(ChangeEvent(actor=SHOP, entry_id=IDS.entry_id(), event_id=EVENT, fields=closing))
    assert isinstance(await holding.outcome(), Decided | SaleClosed)
    assert isinstance(await by_another(either_database, a_hold("A2")), SaleClosed)
    assert not await either_database.flaws()


async def a_cancel_is_decided_and_its_seat_goes(database: RaceDatabase, shortcut: Shortcut) -> tuple[Booking, Server]:
    """Two cancel the same seat of a sale; the first is written, and another buyer takes the seat at once."""
    sold = await database.held("A1", "A2", buyer="ann")
    await database.done(a_confirm(sold))
    second = await decided_without_locks(database, a_cancel(sold, "A1"), shortcut=shortcut)
    granted(await by_another(database, a_cancel(sold, "A1")))
    return granted(await by_another(database, a_hold("A1"))), second


async def test_without_its_compares_a_cancel_takes_another_buyers_seat(bare_database: RaceDatabase) -> None:
    """It clears what it saw, and what it clears is another's by now."""
    _, second = await a_cancel_is_decided_and_its_seat_goes(bare_database, shortcuts.FORGETS_WHOSE_SEAT_IT_CLEARS)
    granted(await kept(second))
    assert LOST_ITS_SEAT in await bare_database.flaws()


async def test_a_cancel_clears_only_what_is_still_its_own(either_database: RaceDatabase) -> None:
    """The sale has another version, without that seat."""
    taken, second = await a_cancel_is_decided_and_its_seat_goes(either_database, AS_BUILT)
    assert isinstance(await decided_again(second), InvalidRequest)
    assert await either_database.owner("A1") == taken.id
    assert not await either_database.flaws()


async def test_without_the_capacity_two_optimistic_writes_oversell_a_pool(bare_database: RaceDatabase) -> None:
    """Each alone would fit."""
    await bare_database.held(buyer="dan", units=7)
    second = await decided_without_locks(bare_database, a_hold(units=2), shortcut=shortcuts.FORGETS_THE_CAPACITY)
    granted(await by_another(bare_database, a_hold(units=2, buyer="cid")))
    granted(await kept(second))
    assert OVERSOLD in await bare_database.flaws()


async def test_two_optimistic_writes_share_what_a_pool_has_left(either_database: RaceDatabase) -> None:
    """A rise is kept only within the capacity, judged on the row as it is."""
    await either_database.held(buyer="dan", units=7)
    second = await decided_without_locks(either_database, a_hold(units=2))
    granted(await by_another(either_database, a_hold(units=2, buyer="cid")))
    assert isinstance(await decided_again(second), PoolExhausted)
    assert not await either_database.flaws()


async def one_payment_is_named_twice(database: RaceDatabase, shortcut: Shortcut) -> tuple[Booking, Server]:
    mine, yours = await database.held("A1"), await database.held("A2", buyer="cid")
    second = await decided_without_locks(database, a_confirm(mine, payment_id="p1"), shortcut=shortcut)
    granted(await by_another(database, a_confirm(yours, payment_id="p1")))
    return mine, second


async def test_without_a_count_one_payment_confirms_two_bookings(bare_database: RaceDatabase) -> None:
    """The insert leaves out what is there, and the count of written rows is not checked."""
    mine, second = await one_payment_is_named_twice(bare_database, shortcuts.FORGETS_WHO_PAID)
    assert granted(await kept(second)).payment_id == "p1"
    assert await bare_database.state(mine) == "confirmed"


async def test_one_payment_confirms_one_booking(either_database: RaceDatabase) -> None:
    """Also when both optimistic writes took it to be free."""
    mine, second = await one_payment_is_named_twice(either_database, AS_BUILT)
    assert isinstance(await decided_again(second), PaymentUsed)
    assert await either_database.state(mine) == "held"
    assert not await either_database.flaws()
