"""One hold alone, decided from the cache, is one statement: if anything changed, it keeps nothing, and locks decide.

Each case comes twice: as it is built, and with the one comparison taken out that the case is about.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Decided, KeyedRequest
from earmark.errors import IdempotencyMismatch, LimitExceeded, SaleClosed, SeatsTaken

from . import shortcuts
from .commands import a_hold, a_limit
from .support import AS_BUILT, granted
from .test_seat_cache import a_window, by_another, in_an_hour, with_cached_event, wrong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.commands_and_results import Hold

    from .support import RaceDatabase, Server

MEMO = KeyedRequest(
    key=IdempotencyKey("shop", "k"), request_hash=b"one", write=lambda booking, _: (201, str(booking.id).encode())
)
OTHER = KeyedRequest(key=IdempotencyKey("shop", "k"), request_hash=b"two", write=MEMO.write)


class Case:
    """The command, what happens before it is written, and its result."""

    def __init__(
        self,
        meddle: Callable[[RaceDatabase, Server], Awaitable[object]],
        *,
        ask: Callable[[], Hold] = lambda: a_hold("A1", "A2"),
        told: type[Exception] | None = None,
    ) -> None:
        self.meddle = meddle
        self.ask = ask
        self.told = told


def by_manual_sql(statement: str) -> Callable[[RaceDatabase, Server], Awaitable[object]]:
    """An operator changes the database directly."""
    return lambda database, _till: database.observer.execute(statement)


async def _move_the_clock(_house: RaceDatabase, server: Server) -> None:
    wrong(server, seconds=3600)


CASES = {
    "the pointer": Case(lambda database, _: by_another(database, a_hold("A1", buyer="cid")), told=SeatsTaken),
    "to count seats": Case(lambda database, _: by_another(database, a_hold("A1", buyer="cid")), told=SeatsTaken),
    "the fence": Case(by_manual_sql("UPDATE seats SET fence = fence + 1 WHERE id = 'A1'")),
    "the price": Case(by_manual_sql("UPDATE seats SET price = 99 WHERE id = 'A1'")),
    "the block": Case(by_manual_sql("UPDATE seats SET blocked = true WHERE id = 'A1'"), told=SeatsTaken),
    "the rules": Case(lambda database, _: by_another(database, a_window(sale_opens_at=in_an_hour())), told=SaleClosed),
    "the hour": Case(_move_the_clock),
    "the key": Case(
        lambda database, _: by_another(database, a_hold("A3", idempotency=MEMO)),
        ask=lambda: a_hold("A1", idempotency=OTHER),
        told=IdempotencyMismatch,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_a_change_is_noticed(bare_database: RaceDatabase, case: Case) -> None:
    """Nothing is kept of what the cache assumed."""
    server = await with_cached_event(bare_database)
    await case.meddle(bare_database, server)
    outcome = await server.submit(case.ask()).outcome()
    assert server.store.ran[0] == "memory"
    assert len(server.store.ran) > 1
    if case.told:
        assert isinstance(outcome, case.told)
    else:
        assert isinstance(outcome, Decided)
        assert abs(granted(outcome).created_at - bare_database.clock.now()) < timedelta(seconds=60)
    assert not await bare_database.flaws()


@pytest.mark.parametrize("name", CASES)
async def test_without_the_comparison_a_change_is_not_noticed(bare_database: RaceDatabase, name: str) -> None:
    """The control: what the cache assumed is sold."""
    server = await with_cached_event(bare_database, shortcut=shortcuts.ALONE_FORGETS[name])
    await CASES[name].meddle(bare_database, server)
    granted(await server.submit(CASES[name].ask()).outcome())
    assert server.store.ran == ["memory"]


@pytest.mark.parametrize("forgets", [None, "the limit"])
async def test_a_limit_is_judged_on_the_total_as_it_is(bare_database: RaceDatabase, forgets: str | None) -> None:
    """The same buyer buys elsewhere between the look at the total and the write; the control sells too much."""
    await by_another(bare_database, a_limit(2))
    shortcut = shortcuts.ALONE_FORGETS[forgets] if forgets else AS_BUILT
    server = await with_cached_event(bare_database, "before write", shortcut=shortcut)
    server.submit(a_hold("A1", "A2"))
    await server.reached("before write")
    granted(await by_another(bare_database, a_hold("A3")))
    outcome = await server.outcome()
    if forgets:
        granted(outcome)
    else:
        assert isinstance(outcome, LimitExceeded)


async def test_a_single_hold_is_written_as_any_other(either_database: RaceDatabase) -> None:
    """Row by row the same as a hold in a batch, but for the ids."""
    server = await with_cached_event(either_database)
    alone = granted(await server.submit(a_hold("A1", "A2", idempotency=MEMO)).outcome())
    both = await server.submit_batch(a_hold("A3", "A4", buyer="cid"), a_hold("A5", buyer="dan")).outcome()
    company = granted(both[0])
    assert server.store.ran == ["memory", "memory"]
    rows = {
        held.id: await either_database.observer.fetchrow(
            "SELECT b.state, b.total, b.currency, b.version, b.mode, b.expires_at - b.created_at AS lasts,"
            "       j.verb, j.before, j.after, j.actor, j.reason, j.version AS entry_version, j.event_id,"
            "       j.at = b.created_at AS at_once, j.facts - 'lines' - 'buyer' - 'expires_at' AS facts, t.units,"
            "       (SELECT count(*) FROM seats s WHERE s.booking_id = b.id) AS seats"
            "  FROM bookings b JOIN journal j ON j.booking_id = b.id"
            "  JOIN buyer_totals t ON t.event_id = b.event_id AND t.buyer = b.buyer WHERE b.id = $1",
            held.id,
        )
        for held in (alone, company)
    }
    assert rows[alone.id] == rows[company.id]
    assert rows[alone.id]["seats"] == rows[alone.id]["units"] == 2
    key = await either_database.observer.fetchrow(
        "SELECT caller, key, request_hash, answer_status, answer_body FROM journal WHERE booking_id = $1", alone.id
    )
    assert tuple(key) == ("shop", "k", b"one", 201, str(alone.id).encode())
    assert not await either_database.flaws()
