"""One hold alone, judged from memory, is one statement: whatever moved meanwhile, it keeps nothing, and locks decide.

Each case comes twice: as it is built, and with the one comparison taken out that the case is about.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from earmark.domain.journal import IdempotencyKey
from earmark.engine.commands import Decided, KeyedRequest
from earmark.errors import IdempotencyMismatch, LimitExceeded, SaleClosed, SeatsTaken

from . import shortcuts
from .commands import a_hold, a_limit
from .support import AS_BUILT, granted
from .test_seat_cache import a_window, by_another, in_an_hour, remembering, wrong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.commands import Hold

    from .support import House, Till

MEMO = KeyedRequest(
    key=IdempotencyKey("shop", "k"), request_hash=b"one", write=lambda booking, _: (201, str(booking.id).encode())
)
OTHER = KeyedRequest(key=IdempotencyKey("shop", "k"), request_hash=b"two", write=MEMO.write)


class Case:
    """What is asked for, what happens before it is written, and what the asker is told."""

    def __init__(
        self,
        meddle: Callable[[House, Till], Awaitable[object]],
        *,
        ask: Callable[[], Hold] = lambda: a_hold("A1", "A2"),
        told: type[Exception] | None = None,
    ) -> None:
        self.meddle = meddle
        self.ask = ask
        self.told = told


def by_hand(statement: str) -> Callable[[House, Till], Awaitable[object]]:
    """Somebody changes the database, past everything."""
    return lambda services, _till: services.observer.execute(statement)


async def _move_the_clock(_house: House, payments: Till) -> None:
    wrong(payments, seconds=3600)


CASES = {
    "the pointer": Case(lambda services, _: by_another(services, a_hold("A1", buyer="cid")), told=SeatsTaken),
    "to count seats": Case(lambda services, _: by_another(services, a_hold("A1", buyer="cid")), told=SeatsTaken),
    "the fence": Case(by_hand("UPDATE seats SET fence = fence + 1 WHERE id = 'A1'")),
    "the price": Case(by_hand("UPDATE seats SET price = 99 WHERE id = 'A1'")),
    "the block": Case(by_hand("UPDATE seats SET blocked = true WHERE id = 'A1'"), told=SeatsTaken),
    "the rules": Case(lambda services, _: by_another(services, a_window(sale_opens_at=in_an_hour())), told=SaleClosed),
    "the hour": Case(_move_the_clock),
    "the key": Case(
        lambda services, _: by_another(services, a_hold("A3", idempotency=MEMO)),
        ask=lambda: a_hold("A1", idempotency=OTHER),
        told=IdempotencyMismatch,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_what_moved_is_noticed(bare_house: House, case: Case) -> None:
    """Nothing is kept of what memory believed."""
    payments = await remembering(bare_house)
    await case.meddle(bare_house, payments)
    outcome = await payments.ask(case.ask()).outcome()
    assert payments.store.ran[0] == "memory"
    assert len(payments.store.ran) > 1
    if case.told:
        assert isinstance(outcome, case.told)
    else:
        assert isinstance(outcome, Decided)
        assert abs(granted(outcome).created_at - bare_house.clock.now()) < timedelta(seconds=60)
    assert not await bare_house.flaws()


@pytest.mark.parametrize("name", CASES)
async def test_without_the_comparison_it_is_not(bare_house: House, name: str) -> None:
    """The control: what memory believed is sold."""
    payments = await remembering(bare_house, shortcut=shortcuts.ALONE_FORGETS[name])
    await CASES[name].meddle(bare_house, payments)
    granted(await payments.ask(CASES[name].ask()).outcome())
    assert payments.store.ran == ["memory"]


@pytest.mark.parametrize("forgets", [None, "the limit"])
async def test_a_limit_is_judged_on_the_total_as_it_is(bare_house: House, forgets: str | None) -> None:
    """The same buyer buys elsewhere between the look at the total and the write; the control sells too much."""
    await by_another(bare_house, a_limit(2))
    shortcut = shortcuts.ALONE_FORGETS[forgets] if forgets else AS_BUILT
    payments = await remembering(bare_house, "before write", shortcut=shortcut)
    payments.ask(a_hold("A1", "A2"))
    await payments.reached("before write")
    granted(await by_another(bare_house, a_hold("A3")))
    outcome = await payments.outcome()
    if forgets:
        granted(outcome)
    else:
        assert isinstance(outcome, LimitExceeded)


async def test_it_is_written_as_any_other(either_house: House) -> None:
    """Row by row the same as a hold in company, but for the ids."""
    payments = await remembering(either_house)
    alone = granted(await payments.ask(a_hold("A1", "A2", idempotency=MEMO)).outcome())
    both = await payments.ask_together(a_hold("A3", "A4", buyer="cid"), a_hold("A5", buyer="dan")).outcome()
    company = granted(both[0])
    assert payments.store.ran == ["memory", "memory"]
    rows = {
        held.id: await either_house.observer.fetchrow(
            "SELECT b.state, b.total, b.currency, b.version, b.live, b.expires_at - b.created_at AS lasts,"
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
    key = await either_house.observer.fetchrow(
        "SELECT caller, key, request_hash, answer_status, answer_body FROM journal WHERE booking_id = $1", alone.id
    )
    assert tuple(key) == ("shop", "k", b"one", 201, str(alone.id).encode())
    assert not await either_house.flaws()
