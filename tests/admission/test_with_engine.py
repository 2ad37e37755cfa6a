"""The whole engine with admission: whatever happens to Redis in the middle of a rush, every seat has one owner."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self
from unittest.mock import patch

import pytest
from tests.locks.faulty_proxy import Proxy
from tests.locks.hazard_support import pause, resume
from tests.locks.topologies import ask
from tests.races.commands import EVENT, a_cancel, a_confirm, a_hold, a_play, a_release
from tests.sqlite_files import make_migrated

from earmark.admission import open_admission
from earmark.config import Settings
from earmark.domain.id_types import SeatId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Decided, KeyedRequest, Replayed
from earmark.engine.ports.seat_admission import Busy
from earmark.errors import SeatsTaken
from earmark.testservers.free_port import free_port
from earmark.wiring import redis_locks_and_admission as redis_parts
from earmark.wiring import runtime

from .support import PATIENCE, Inside, Liar, Slow, until, until_true

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from earmark.admission import SeatAdmission
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, SeatRef
    from earmark.engine.commands_and_results import Hold, Result
    from earmark.engine.engine import Engine
    from earmark.testservers import Valkey

SEATS = [f"{row}{number}" for row in "AB" for number in range(1, 10)]
BUYERS = 40
GRANTS = 25
"""How many holds are granted between one fault and the next."""


def patiently(url: str, **_: Any) -> SeatAdmission:
    return open_admission(url, timeout=PATIENCE)


class Seller(Protocol):
    """What grants holds: the engine, or a shop without a store."""

    async def hold(self, ask: Hold) -> Result:
        """Grant or refuse this hold."""
        ...


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of the test's own."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return address
    url = f"sqlite:///{tmp_path / 'earmark.sqlite3'}"
    asyncio.run(make_migrated(tmp_path / "earmark.sqlite3"))
    return url


@pytest.fixture
async def open_engine(clock: MovableClock) -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    """Opens engines, the first of them with a play on sale, and closes them after the test."""
    engines: list[Engine] = []

    async def opened(database_url: str, redis_url: str, *, patient: bool = False) -> Engine:
        """With patience Redis is heard out, however slow the machine is: for tests of what Redis says."""
        with patch.object(runtime, "open_admission", patiently if patient else redis_parts.open_admission):
            engine = await runtime.open_engine(Settings(database_url=database_url, redis_url=redis_url), clock=clock)
        if not engines:
            await engine.create_event(a_play())
        engines.append(engine)
        return engine

    yield opened
    for engine in engines:
        await engine.close()


class HotRun:
    """Many buyers after few seats, for as long as the test wants. Every grant is checked against what is owned."""

    def __init__(self, seller: Seller) -> None:
        self.seller = seller
        self.granted = 0
        self.refused = 0
        self.owned: dict[str, Booking] = {}
        self.doubles: list[str] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        self._buyers = [asyncio.create_task(self._buy(number)) for number in range(BUYERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        await asyncio.gather(*self._buyers)

    async def more_grants(self, count: int = GRANTS) -> None:
        """Until so many more were granted."""
        wanted = self.granted + count
        await until(lambda: self.granted >= wanted or any(buyer.done() for buyer in self._buyers), seconds=60)
        for buyer in self._buyers:
            if buyer.done():
                buyer.result()

    async def _buy(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311 -- the same each time
        while not self._ended:
            wanted = chance.sample(SEATS, k=chance.randint(1, 3))
            try:
                answer = await self.seller.hold(a_hold(*wanted, buyer=f"buyer-{number}"))
            except SeatsTaken:
                self.refused += 1
                await asyncio.sleep(0)
                continue
            assert isinstance(answer, Decided)
            self.granted += 1
            self.doubles += [seat for seat in wanted if seat in self.owned]
            self.owned |= dict.fromkeys(wanted, answer.value)
            await asyncio.sleep(chance.random() * 0.01)
            await self._give_back(answer.value, wanted, paid=chance.random() < 0.3)

    async def _give_back(self, booking: Booking, wanted: list[str], *, paid: bool) -> None:
        seller: Any = self.seller
        if paid:
            await seller.confirm(a_confirm(booking))
        # From here on another buyer may have them.
        for seat in wanted:
            self.owned.pop(seat, None)
        await (seller.cancel(a_cancel(booking)) if paid else seller.release(a_release(booking)))


async def test_bookings_stay_right_whatever_happens_to_redis(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], own_server: Valkey
) -> None:
    """Emptied, killed, stopped, slowed by half a second, cut off, lying: sales go on, and no seat has two owners."""
    with (
        Slow(own_server.port, seconds=0.0) as connection,
        Liar(b"*1\r\n*1\r\n:-5000\r\n") as all_taken,
        Liar(b"*1\r\n:0\r\n") as all_free,
    ):
        engine = await open_engine(database_url, connection.url)
        async with HotRun(engine) as run:
            await run.more_grants()
            for _ in range(3):
                ask(own_server, "FLUSHALL")
                await run.more_grants()
            pause(own_server.pid)
            await run.more_grants()
            resume(own_server.pid)
            await run.more_grants()
            own_server.kill()
            await run.more_grants()
            own_server.start()
            await run.more_grants()
            connection.seconds = 0.5
            await run.more_grants()
            connection.seconds = 0.0
            for liar in (all_taken, all_free):
                connection.target = liar.port
                connection.cut()
                await until(lambda asked=liar.asked, liar=liar: liar.asked > asked)  # type: ignore[misc]
                await run.more_grants()
            connection.target = own_server.port
            connection.cut()
            await run.more_grants()
        assert run.doubles == []
        assert run.refused > 0
        assert await engine.store.find_flaws(limit=10) == []


class Trusting:
    """What must never be built: a shop that sells what Redis admits, without a store."""

    def __init__(self, admission: SeatAdmission) -> None:
        self._admission = admission
        self._sold: dict[BookingId, tuple[SeatRef, ...]] = {}

    async def hold(self, ask: Hold) -> Result:
        """Grant whatever is admitted."""
        passed = await self._admission.admit(ask.event_id, ask.seats)
        if isinstance(passed, Busy):
            raise SeatsTaken(seats=passed.seats)
        self._admission.record_grant(passed, seconds=600)
        self._sold[ask.booking_id] = ask.seat_refs
        return Decided(value=SimpleNamespace(id=ask.booking_id), now=datetime.now(UTC))

    async def confirm(self, ask: Any) -> None:
        """Do nothing: the seat was sold by the hold."""

    async def release(self, ask: Any) -> None:
        """Let the next one have them."""
        self._admission.drop_hints(self._sold.pop(ask.booking_id))

    cancel = release


async def test_the_same_run_finds_two_owners_where_redis_decides(
    own_server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """The control: a seat that only Redis guards is sold twice when Redis forgets, and the run sees it."""
    async with HotRun(Trusting(open_seat_admission(own_server.url))) as run:
        await run.more_grants()
        assert run.doubles == []
        for _ in range(1000):
            ask(own_server, "FLUSHALL")
            await run.more_grants(1)
            if run.doubles:
                break
    assert run.doubles


async def test_a_sold_seat_is_refused_without_the_store(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """That is what it is for; and such a refusal says that it may be otherwise in a moment."""
    await empty(server)
    engine = await open_engine(database_url, server.url, patient=True)
    await engine.hold(a_hold("A1"))
    await until(lambda: inside(server).kind("A1") == "h")
    admitted = counts(engine).admitted
    with pytest.raises(SeatsTaken) as refused:
        await engine.hold(a_hold("A1", "A2", buyer="eve"))
    assert refused.value.seats == ["A1"]
    assert refused.value.transient
    assert counts(engine).admitted == admitted
    assert counts(engine).refused + counts(engine).remembered == 1


async def test_a_client_that_asks_again_and_again_leaves_the_event_loop_to_others(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """A refusal from memory needs no wait, and yet other requests get their turn."""
    await empty(server)
    engine = await open_engine(database_url, server.url, patient=True)
    await engine.hold(a_hold("A1"))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(200):
        with pytest.raises(SeatsTaken):
            await engine.hold(a_hold("A1", buyer="eve"))
    task.cancel()
    assert counts(engine).remembered > 0
    assert turns >= 200


async def test_a_seat_that_comes_back_sells_again_at_once(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey, clock: MovableClock
) -> None:
    """Released, cancelled, run out: no hint says otherwise."""
    await empty(server)
    engine = await open_engine(database_url, server.url, patient=True)
    held = granted(await engine.hold(a_hold("A1")))
    await engine.release(a_release(held))
    sold = granted(await engine.hold(a_hold("A1")))
    await engine.confirm(a_confirm(sold))
    await engine.cancel(a_cancel(sold))
    granted(await engine.hold(a_hold("A1", ttl_seconds=60)))
    clock.advance(61)
    assert len(await engine.expire(limit=10)) == 1
    granted(await engine.hold(a_hold("A1")))


async def test_a_seat_released_while_redis_is_cut_off_sells_again_within_five_seconds(
    postgres_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """The hint that no process could drop has at most so long to live, and another server sells the seat after it."""
    await empty(server)
    with Proxy(server.port) as connection:
        cut_off = await open_engine(postgres_url, connection.url, patient=True)
        elsewhere = await open_engine(postgres_url, server.url, patient=True)
        held = granted(await cut_off.hold(a_hold("A1")))
        await until(lambda: inside(server).kind("A1") == "h")
        connection.hold()
        await cut_off.release(a_release(held))
        with pytest.raises(SeatsTaken):
            await elsewhere.hold(a_hold("A1", buyer="eve"))
        assert 0 < inside(server).left_ms("A1") <= 5000
        await until_true(lambda: sells(elsewhere, "A1"))
        connection.flow()


async def test_a_program_sells_without_its_redis(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]]
) -> None:
    """There is no server at that address, from the first request on."""
    engine = await open_engine(database_url, f"redis://127.0.0.1:{free_port()}/0")
    answers = await asyncio.gather(*(engine.hold(a_hold(seat)) for seat in SEATS))
    assert {granted(answer).lines.seats[0].id for answer in answers} == set(map(SeatId, SEATS))
    with pytest.raises(SeatsTaken) as refused:
        await engine.hold(a_hold("A1"))
    assert not refused.value.transient, "the store said so itself"


async def test_a_repeat_gets_the_answer_of_the_first(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """The hint on a seat is no reason to report it as taken to its own buyer."""
    await empty(server)
    engine, other = [await open_engine(database_url, server.url, patient=True) for _ in range(2)]
    answers = await asyncio.gather(
        *(one.hold(a_hold("A1", idempotency=MEMO)) for one in (engine, other, engine, other))
    )

    async def hint_stands() -> bool:
        # The repeats share the mark of the first. One that leaves before the first settles takes the mark away, and the
        # first then makes no hint: the next refusal of another buyer does.
        return not await sells(other, "A1") and inside(server).kind("A1") == "h"

    await until_true(hint_stands)
    answers.append(await other.hold(a_hold("A1", idempotency=MEMO)))
    assert len({memory(answer) for answer in answers}) == 1


def render(booking: Booking, _: datetime) -> tuple[int, bytes]:
    return 201, str(booking.id).encode()


MEMO = KeyedRequest(key=IdempotencyKey("shop", "key-1"), request_hash=b"same", write=render)


def memory(answer: Result) -> bytes:
    assert isinstance(answer, Decided | Replayed)
    assert answer.record is not None
    return answer.record.body


def granted(answer: Result) -> Booking:
    assert isinstance(answer, Decided)
    booking: Booking = answer.value
    return booking


async def sells(engine: Engine, seat: str) -> bool:
    try:
        await engine.hold(a_hold(seat, buyer="eve"))
    except SeatsTaken:
        return False
    return True


def inside(server: Valkey) -> Inside:
    return Inside(server, prefix="earmark", event=EVENT)


async def empty(server: Valkey) -> None:
    """No hint of another test's is left; only what the engine names its keys is touched."""
    for seat in SEATS:
        ask(server, "DEL", inside(server).name(seat))


def counts(engine: Engine) -> Any:
    admission: Any = engine.admission
    return admission.counts


async def test_a_repeat_gets_its_answer_though_others_were_refused_meanwhile(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """The hint of the sale has ended, and there is one that another buyer's refusal made."""
    await empty(server)
    engine, other = [await open_engine(database_url, server.url, patient=True) for _ in range(2)]
    first = await engine.hold(a_hold("A1", idempotency=MEMO))
    await until(lambda: inside(server).kind("A1") == "h")
    await empty(server)
    with pytest.raises(SeatsTaken):
        await other.hold(a_hold("A1", buyer="eve"))
    await until(lambda: inside(server).kind("A1") == "h")
    assert memory(await engine.hold(a_hold("A1", idempotency=MEMO))) == memory(first)


async def test_a_repeat_gets_its_answer_at_a_server_whose_hint_is_older_than_the_sale(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """One server sold the seat to its first owner; another has sold it since, and the hint does not know."""
    await empty(server)
    here, there = [await open_engine(database_url, server.url, patient=True) for _ in range(2)]
    first = granted(await here.hold(a_hold("A1", buyer="ann")))
    await until(lambda: inside(server).kind("A1") == "h")
    hint = ask(server, "GET", inside(server).name("A1"))
    await there.release(a_release(first))
    sold = await there.hold(a_hold("A1", buyer="eve", idempotency=MEMO))
    await until(lambda: inside(server).kind("A1") == "h")
    inside(server).write("A1", hint, "PX", "5000")
    with pytest.raises(SeatsTaken):
        await here.hold(a_hold("A1", buyer="dan"))
    assert memory(await here.hold(a_hold("A1", buyer="eve", idempotency=MEMO))) == memory(sold)


async def test_a_repeat_gets_its_answer_though_the_seat_is_another_buyers_by_now(
    database_url: str, open_engine: Callable[..., Awaitable[Engine]], server: Valkey
) -> None:
    """What a key remembers is older than any hint."""
    await empty(server)
    engine = await open_engine(database_url, server.url, patient=True)
    first = await engine.hold(a_hold("A1", idempotency=MEMO))
    await engine.release(a_release(granted(first)))
    await engine.hold(a_hold("A1", buyer="eve"))
    assert memory(await engine.hold(a_hold("A1", idempotency=MEMO))) == memory(first)
