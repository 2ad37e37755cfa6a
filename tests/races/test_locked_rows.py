"""One row stays locked: the requests that need it wait for it, and no others do."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from earmark.clock import MovableClock
from earmark.domain.id_types import BookingId, Buyer, EventId, PoolId, PoolRef, SeatId, SeatRef, TotalRef
from earmark.engine.engine import Engine
from earmark.engine.wait_for_one_locked_row import BRIEF_WAITS_MAX, LONG_WAITS_MAX
from earmark.errors import Overloaded, PoolExhausted, RowBusy
from earmark.library import Earmark
from earmark.store.postgres import PostgresStore
from earmark.uuids import Uuid7Ids
from earmark.workers.due_hold_sweeper import Sweeper
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

EVENTS = ("e1", "e2", "e3", "e4", "e5")
SLOW_COMMITS = """
CREATE FUNCTION sleep_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('tests.slept', true) IS DISTINCT FROM 'yes' THEN
        PERFORM set_config('tests.slept', 'yes', true), pg_sleep(0.05);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION sleep_once();
"""
ONE_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
LET_GO_SECONDS = 4.0
"""Less than a row is waited for: what is decided by then was not decided because that wait was over."""


@pytest.fixture
async def clock() -> MovableClock:
    """Time that a test can push forward."""
    return MovableClock()


@pytest.fixture
async def shop(postgres_url: str, clock: MovableClock) -> AsyncIterator[Earmark]:
    """Five events, each with seats and a pool."""
    store = await PostgresStore.connect(postgres_url, clock=clock)
    earmark = Earmark(Engine(store, ids=Uuid7Ids()))
    for event in EVENTS:
        seats = {f"A{n}": 1 for n in range(1, 41)}
        await earmark.create_event(event, name=event, currency="EUR", seats=seats, pools={"GA": (1000, 1)})
    yield earmark
    await earmark.engine.close()


@asynccontextmanager
async def locked(url: str, statement: str, *arguments: object) -> AsyncIterator[Any]:
    """A foreign transaction has this row, for the length of a `with`."""
    foreign = await asyncpg.connect(url)
    try:
        await foreign.execute("BEGIN")
        assert await foreign.fetch(f"{statement} FOR UPDATE", *arguments), "there is such a row"
        yield foreign
    finally:
        await foreign.close()


async def a_pool(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """The pool that a hold draws on."""
    return "SELECT 1 FROM pools WHERE event_id = 'e1'", [], shop.hold("e1", buyer="ada", pools={"GA": 1})


async def a_seat(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """The seat that a hold takes."""
    return "SELECT 1 FROM seats WHERE event_id = 'e1' AND id = 'A1'", [], shop.hold("e1", buyer="ada", seats=["A1"])


async def a_total(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """What the buyer has of the event already."""
    await shop.hold("e1", buyer="ada", seats=["A2"])
    return "SELECT 1 FROM buyer_totals WHERE buyer = 'ada'", [], shop.hold("e1", buyer="ada", seats=["A1"])


async def a_lapsed_owner(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """The expired hold that a seat still points to: the buyer who wants the seat never named it."""
    old = await shop.hold("e1", buyer="old", seats=["A1"], ttl_seconds=60)
    clock = shop.engine.store._clock  # type: ignore[attr-defined] # the fixture's
    clock.advance(61)
    return "SELECT 1 FROM bookings WHERE id = $1", [old.id], shop.hold("e1", buyer="ada", seats=["A1"])


async def a_booking(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """The hold that is confirmed."""
    held = await shop.hold("e1", buyer="ada", seats=["A1"])
    return "SELECT 1 FROM bookings WHERE id = $1", [held.id], shop.confirm(held.id, payment_id="p1")


async def a_pool_of_a_booking(shop: Earmark) -> tuple[str, list[Any], Awaitable[Any]]:
    """The pool whose units a confirm moves from held to sold."""
    held = await shop.hold("e1", buyer="ada", pools={"GA": 1})
    return "SELECT 1 FROM pools WHERE event_id = 'e1'", [], shop.confirm(held.id, payment_id="p1")


ROWS = [a_pool, a_seat, a_total, a_lapsed_owner, a_booking, a_pool_of_a_booking]


async def other_requests(shop: Earmark, number: int) -> list[Awaitable[Any]]:
    """Holds and confirms at the other events."""
    held = await asyncio.gather(*(shop.hold("e5", buyer=f"c{n}", pools={"GA": 1}) for n in range(number)))
    holds = [
        shop.hold(event, buyer=f"s{n}", seats=[f"A{n}"], pools={"GA": 1})
        for n in range(1, number + 1)
        for event in EVENTS[1:]
    ]
    return [*holds, *(shop.confirm(one.id, payment_id=f"s-{one.id}") for one in held)]


@pytest.mark.parametrize("row", ROWS, ids=[row.__name__ for row in ROWS])
async def test_the_others_are_decided_while_a_row_is_locked(
    shop: Earmark, postgres_url: str, row: Callable[[Earmark], Awaitable[tuple[str, list[Any], Awaitable[Any]]]]
) -> None:
    """Whatever row it is, and however the request came to need it; and then the request itself is decided."""
    statement, arguments, asked = await row(shop)
    others = await other_requests(shop, 10)
    async with locked(postgres_url, statement, *arguments):
        needs_it = asyncio.ensure_future(asked)
        told = await asyncio.wait_for(asyncio.gather(*others), timeout=LET_GO_SECONDS)
        assert {one.state for one in told} == {"held", "confirmed"}
        assert not needs_it.done()
    assert (await asyncio.wait_for(needs_it, timeout=10)).state in {"held", "confirmed"}
    assert not await shop.engine.store.find_flaws(limit=10)


async def test_one_row_is_waited_for_alone(shop: Earmark, postgres_url: str) -> None:
    """A row of each table: while it is locked it is not to be had, and the same row of another event or buyer is."""
    here = await shop.hold("e1", buyer="ada", seats=["A1"])
    there = await shop.hold("e2", buyer="ada", seats=["A1"])
    one = {
        "bookings": ("WHERE id = $1", [here.id], BookingId(UUID(here.id)), BookingId(UUID(there.id))),
        "buyer_totals": ("WHERE event_id = $1", ["e1"], total("e1"), total("e2")),
        "pools": ("WHERE event_id = $1", ["e1"], pool("e1"), pool("e2")),
        "seats": ("WHERE event_id = $1 AND id = $2", ["e1", "A1"], seat("e1"), seat("e2")),
    }
    for table, (where, arguments, locked_key, free_key) in one.items():
        name = table.removeprefix("buyer_")
        async with locked(postgres_url, f"SELECT 1 FROM {table} {where}", *arguments):
            with pytest.raises(RowBusy):
                await shop.engine._lock_row((name, locked_key), lock_seconds=0.1)
            await shop.engine._lock_row((name, free_key), lock_seconds=0.1)
        await shop.engine._lock_row((name, locked_key), lock_seconds=0.1)


def total(event: str) -> TotalRef:
    """What ada has of an event."""
    return TotalRef(EventId(event), Buyer("ada"))


def pool(event: str) -> PoolRef:
    """The event's one pool."""
    return PoolRef(EventId(event), PoolId("GA"))


def seat(event: str) -> SeatRef:
    """The event's first seat."""
    return SeatRef(EventId(event), SeatId("A1"))


async def test_other_requests_of_a_batch_are_decided_while_a_row_is_locked(shop: Earmark, postgres_url: str) -> None:
    """A hundred at once, of the same event too: those that need the row leave the batch, and the others go on."""
    async with locked(postgres_url, "SELECT 1 FROM pools WHERE event_id = 'e1'"):
        hot = [asyncio.ensure_future(shop.hold("e1", buyer=f"h{n}", pools={"GA": 1})) for n in range(50)]
        mates = [shop.hold("e1", buyer=f"m{n}", seats=[f"A{n}"]) for n in range(1, 41)]
        told = await asyncio.wait_for(asyncio.gather(*mates), timeout=LET_GO_SECONDS)
        assert {one.state for one in told} == {"held"}
        assert not any(one.done() for one in hot)
    held = await asyncio.gather(*hot)
    assert {one.state for one in held} == {"held"}
    assert not await shop.engine.store.find_flaws(limit=10)


async def test_few_connections_wait_for_rows(shop: Earmark, postgres_url: str) -> None:
    """Ten rows are locked, for holds and confirms alike: two connections wait long, two briefly, and no others."""
    held = [await shop.hold("e2", buyer=f"b{n}", seats=[f"A{n}"]) for n in range(1, 11)]
    seats = "SELECT 1 FROM seats WHERE event_id = 'e1' AND id = ANY ($1::text[])"
    observer = await asyncpg.connect(postgres_url)
    async with (
        locked(postgres_url, seats, [f"A{n}" for n in range(1, 11)]),
        locked(postgres_url, "SELECT 1 FROM bookings WHERE id = ANY ($1::uuid[])", [one.id for one in held]),
    ):
        asked = [asyncio.ensure_future(shop.hold("e1", buyer="ada", seats=[f"A{n}"])) for n in range(1, 11)]
        asked += [asyncio.ensure_future(shop.confirm(one.id, payment_id=str(one.id))) for one in held]
        for n in range(20):
            await asyncio.wait_for(shop.hold("e3", buyer=f"s{n}", seats=[f"A{n + 1}"]), timeout=LET_GO_SECONDS)
        assert await so_many_wait(LONG_WAITS_MAX + BRIEF_WAITS_MAX, observer), "once each row was met"
        assert not any(one.done() for one in asked)
        assert await observer.fetchval(ONE_WAITS) >= 1
    await asyncio.gather(*asked, return_exceptions=True)
    await observer.close()


async def test_confirms_that_lead_to_one_locked_pool_wait_as_one(shop: Earmark, postgres_url: str) -> None:
    """Each names a booking of its own, and what is locked is the pool behind them: one connection waits for it."""
    held = [await shop.hold("e1", buyer=f"b{n}", pools={"GA": 1}) for n in range(20)]
    observer = await asyncpg.connect(postgres_url)
    async with locked(postgres_url, "SELECT 1 FROM pools WHERE event_id = 'e1'"):
        confirming = [asyncio.ensure_future(shop.confirm(one.id, payment_id=str(one.id))) for one in held]
        await until_one_waits(observer)
        assert await so_many_wait(1, observer)
        told = await asyncio.wait_for(asyncio.gather(*await other_requests(shop, 5)), timeout=LET_GO_SECONDS)
        assert {one.state for one in told} == {"held", "confirmed"}
        assert shop.engine.row_waits._long._value >= 1, "one of the two turns is free for others"
    assert {one.state for one in await asyncio.gather(*confirming)} == {"confirmed"}
    await observer.close()


async def test_a_locked_pool_keeps_the_sweeper_from_no_other_event(
    shop: Earmark, postgres_url: str, clock: MovableClock
) -> None:
    """Due holds of one event cannot be ended while its pool is locked; those of the others are."""
    for event in ("e1", "e2", "e3"):
        for n in range(3):
            await shop.hold(event, buyer=f"b{n}", pools={"GA": 1}, ttl_seconds=60)
    clock.advance(61)
    sweeper = Sweeper(shop.engine)
    observer = await asyncpg.connect(postgres_url)
    async with locked(postgres_url, "SELECT 1 FROM pools WHERE event_id = 'e1'"):
        for _ in range(20):
            with contextlib.suppress(RoundFailed):
                await sweeper.act()
            left = {row[0] for row in await observer.fetch("SELECT event_id FROM bookings WHERE state = 'held'")}
            if left == {"e1"}:
                break
        assert left == {"e1"}
    await observer.close()


async def test_many_due_holds_of_a_locked_pool_keep_the_sweeper_from_no_other_event(
    shop: Earmark, postgres_url: str, clock: MovableClock
) -> None:
    """They are the oldest, and more than it would step over one by one; once the lock is gone they are ended, too."""
    await asyncio.gather(*(shop.hold("e1", buyer=f"b{n}", pools={"GA": 1}, ttl_seconds=60) for n in range(200)))
    clock.advance(1)
    await shop.hold("e2", buyer="ada", pools={"GA": 1}, ttl_seconds=60)
    clock.advance(61)
    sweeper = Sweeper(shop.engine)
    observer = await asyncpg.connect(postgres_url)

    async def sweep_until(left: set[str], *, rounds: int) -> None:
        for _ in range(rounds):
            pause = 0.0
            try:
                pause = await sweeper.act()
            except RoundFailed as failed:
                pause = failed.seconds or 0.0
            held = {row[0] for row in await observer.fetch("SELECT event_id FROM bookings WHERE state = 'held'")}
            if held == left:
                return
            await asyncio.sleep(pause)
        raise AssertionError(f"holds of {held} are left")

    async with locked(postgres_url, "SELECT 1 FROM pools WHERE event_id = 'e1'"):
        await sweep_until({"e1"}, rounds=12)
    async with asyncio.timeout(10):
        await sweep_until(set(), rounds=100)
    await observer.close()


async def test_payments_that_need_a_locked_row_leave_connections_to_the_others(
    shop: Earmark, postgres_url: str
) -> None:
    """More of them than there are connections: few wait for rows, and other requests are served."""
    held = [await shop.hold("e1", buyer=f"b{n}", pools={"GA": 1}) for n in range(20)]
    observer = await asyncpg.connect(postgres_url)
    async with locked(postgres_url, "SELECT 1 FROM bookings WHERE event_id = 'e1'"):
        paying = [asyncio.ensure_future(shop.pay(one.id, method="card_ok", key=str(one.id))) for one in held]
        await until_one_waits(observer)
        told = await asyncio.wait_for(asyncio.gather(*await other_requests(shop, 5)), timeout=LET_GO_SECONDS)
        assert {one.state for one in told} == {"held", "confirmed"}
        assert await so_many_wait(LONG_WAITS_MAX + BRIEF_WAITS_MAX, observer), "once each row was met"
    await observer.close()
    await every(paying)


async def test_what_was_refused_while_a_row_was_locked_is_never_done(postgres_url: str, clock: MovableClock) -> None:
    """They are refused with `overloaded`, and the lock is released: no booking appears."""
    store = await PostgresStore.connect(postgres_url, clock=clock)
    shop = Earmark(Engine(store, ids=Uuid7Ids(), request_seconds_max=0.9))
    await shop.create_event("e1", name="e1", currency="EUR", pools={"GA": (1000, 1)})
    async with locked(postgres_url, "SELECT 1 FROM pools WHERE event_id = 'e1'"):
        asked = [shop.hold("e1", buyer=f"h{n}", pools={"GA": 1}) for n in range(150)]
        told = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in told} <= {Overloaded, RowBusy}, "none is unknown, for none was begun"
    assert (await shop.hold("e1", buyer="late", pools={"GA": 1})).state == "held"
    await shop.engine.close()
    observer = await asyncpg.connect(postgres_url)
    assert await observer.fetchval("SELECT count(*) FROM bookings") == 1
    await observer.close()


async def test_two_servers_on_one_hot_pool_wait_for_each_other(postgres_url: str, clock: MovableClock) -> None:
    """A row that is always locked by another server's commit, for 50 ms each time, is no reason to refuse a request."""
    hand = await asyncpg.connect(postgres_url)
    await hand.execute(SLOW_COMMITS)
    shops = []
    try:
        for _ in range(2):
            store = await PostgresStore.connect(postgres_url, clock=clock)
            shops.append(Earmark(Engine(store, ids=Uuid7Ids(), batch_size_max=20)))
        await shops[0].create_event("e1", name="e1", currency="EUR", pools={"GA": (400, 1)})
        asked = (shop.hold("e1", buyer=f"{n}", pools={"GA": 1}) for n in range(200) for shop in shops)
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [one for one in told if isinstance(one, BaseException)] == []
        assert await hand.fetchval("SELECT held FROM pools") == 400
    finally:
        for shop in shops:
            await shop.engine.close()
        await hand.execute("DROP TRIGGER slow_commit ON journal; DROP FUNCTION sleep_once")
        await hand.close()


async def test_lapsed_units_that_another_transaction_is_changing_are_refused_for_now(
    shop: Earmark, postgres_url: str, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be free in a moment: to call the pool exhausted for good would be wrong."""
    monkeypatch.setattr("earmark.engine.verbs.hold.MAKE_ROOM_ROUNDS_MAX", 3)
    await shop.create_event("small", name="small", currency="EUR", pools={"GA": (2, 1)})
    await asyncio.gather(*(shop.hold("small", buyer=f"b{n}", pools={"GA": 1}, ttl_seconds=60) for n in range(2)))
    clock.advance(61)
    async with locked(postgres_url, "SELECT 1 FROM bookings WHERE event_id = 'small'"):
        with pytest.raises(PoolExhausted) as refused:
            await shop.hold("small", buyer="ada", pools={"GA": 1})
        assert refused.value.transient
    assert (await shop.hold("small", buyer="ada", pools={"GA": 2})).state == "held"
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("small", buyer="bob", pools={"GA": 1})
    assert not refused.value.transient


async def until_one_waits(observer: Any) -> None:
    """A request has come as far as the lock."""
    for _ in range(2000):
        if await observer.fetchval(ONE_WAITS):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("no request waits for a lock")


async def so_many_wait(number: int, observer: Any) -> bool:
    """Whether so many connections wait for locks in the end, and no more."""
    for _ in range(400):
        if await observer.fetchval(ONE_WAITS) <= number:
            return True
        await asyncio.sleep(0.01)
    return False


async def every(asked: Iterable[Awaitable[Any]]) -> list[Any]:
    """Answers and errors."""
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_table_that_is_locked_stops_all_and_loses_none(
    shop: Earmark, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row can be named, as when a migration has the table: all wait, and are decided once it is free."""
    foreign = await asyncpg.connect(postgres_url)
    await foreign.execute("BEGIN")
    await foreign.execute("LOCK TABLE pools IN ACCESS EXCLUSIVE MODE")
    met = asyncio.Event()
    monkeypatch.setattr(shop.engine._holds._observer, "blocked", lambda _: met.set(), raising=False)
    asked = [asyncio.ensure_future(shop.hold("e1", buyer=f"b{n}", pools={"GA": 1})) for n in range(20)]
    await asyncio.wait_for(met.wait(), timeout=10)
    await until_one_waits(foreign)
    await foreign.execute("ROLLBACK")
    await foreign.close()
    told = await every(asked)
    assert {getattr(one, "state", one) for one in told} == {"held"}
