from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks.backend_protocol import Claim, Group
from earmark.locks.errors import LockBusy, LockLost, LocksUnavailable
from earmark.locks.fencing_tokens_from_postgres import DatabaseFences, FencedLeases
from earmark.locks.local import LocalLeases, LocalTable
from earmark.locks.postgres import PostgresLeases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from earmark.locks.backend_protocol import Backend, Grant
    from earmark.locks.fencing_tokens_from_postgres import Fences
    from earmark.testservers import Postgres

SECONDS_MAX = 20.0


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The moment at which it stands."""
        return self.now


class CountingFences:
    """Counts for all keys together, and does before each answer what a test wants."""

    name = "counting"

    def __init__(self) -> None:
        self.count = 0
        self.gone = False
        self.slow: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def next(self, keys: Sequence[str]) -> int:
        """The next number, late or never if the test says so."""
        assert keys
        self.asked.set()
        if self.slow is not None:
            await self.slow.wait()
        await self.ping()
        self.count += 1
        return self.count

    async def last(self, keys: Sequence[str]) -> Mapping[str, int]:
        """The same for all."""
        await self.ping()
        return dict.fromkeys(keys, self.count)

    async def ping(self) -> None:
        """Whether it is there."""
        if self.gone:
            raise LocksUnavailable(because="no count today")

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class Resource:
    """Something that is written to, and may check numbers."""

    def __init__(self, *, checks: bool) -> None:
        self.checks = checks
        self.highest = 0
        self.written: list[str] = []

    def write(self, text: str, *, fence: int | None) -> None:
        """Refuses a smaller number than it has seen, if it checks."""
        assert fence is not None
        if self.checks and fence < self.highest:
            return
        self.highest = max(self.highest, fence)
        self.written.append(text)


def claim(*keys: str, token: str, ttl: float = 60.0) -> Claim:
    return Claim(tuple(sorted(keys)), token, ttl, 0.0, f"holder of {token}")


@pytest.fixture
def clock() -> Any:
    """The clock of the leases."""
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> LocalLeases:
    """Leases that live elsewhere than their numbers."""
    return LocalLeases(LocalTable(clock=clock))


@pytest.fixture
async def fences() -> CountingFences:
    """Fences that count from 1."""
    return CountingFences()


@pytest.fixture
def fenced(leases: LocalLeases, fences: CountingFences, clock: Clock) -> FencedLeases:
    """The leases with the fences that count from 1."""
    return FencedLeases(leases, fences, clock=clock)


@pytest.fixture(scope="module")
def url(postgres_server: Postgres) -> Iterator[str]:
    """A database for the tests of this file."""
    name = f"earmark_fences_{os.getpid()}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
async def rows(url: str) -> AsyncIterator[PostgresLeases]:
    """The table that leases and numbers share."""
    leases = PostgresLeases(url, timeout=SECONDS_MAX)
    yield leases
    await leases.close()


async def test_it_stands_behind_the_ports(leases: LocalLeases, fences: CountingFences, rows: PostgresLeases) -> None:
    """Any backend can be numbered from the database, and then declares a fence."""
    backend: Backend = FencedLeases(leases, fences)
    counted: Fences = DatabaseFences(rows)
    assert Group.FENCE in backend.groups
    assert "fenced by" in backend.name
    await backend.ping()
    await counted.ping()


async def test_a_backend_without_a_fence_has_one_when_it_is_fenced(leases: LocalLeases, fences: CountingFences) -> None:
    """Redlock counts nothing of its own; that is what this is for."""
    plain: Any = leases
    plain.groups = frozenset({Group.MANY})
    assert FencedLeases(plain, fences).groups == {Group.MANY, Group.FENCE}


async def test_a_grant_has_the_number_of_the_database(fenced: FencedLeases, leases: LocalLeases) -> None:
    """The number that the backend counted by itself is replaced; the lease and its giver stay."""
    grant = await fenced.acquire(claim("a:1", token="A"))
    assert grant.fence == 1
    assert grant.backend is leases
    assert await fenced.extend(grant, ttl=100)
    assert await fenced.release(grant)
    assert (await fenced.acquire(claim("a:1", token="B"))).fence == 2


async def test_a_refusal_costs_no_number(fenced: FencedLeases, fences: CountingFences) -> None:
    """The number is fetched only after the lease is won."""
    await fenced.acquire(claim("a:1", token="A"))
    with pytest.raises(LockBusy):
        await fenced.acquire(claim("a:1", token="B"))
    assert fences.count == 1


async def test_without_a_number_nothing_is_locked(
    fenced: FencedLeases, fences: CountingFences, leases: LocalLeases
) -> None:
    """The lease is given back at once, for no caller may work without a number."""
    fences.gone = True
    with pytest.raises(LocksUnavailable):
        await fenced.acquire(claim("a:1", token="A"))
    assert await leases.find("a:1") is None
    with pytest.raises(LocksUnavailable):
        await fenced.ping()


async def test_one_cancelled_while_it_waits_for_its_number_leaves_nothing(
    fenced: FencedLeases, fences: CountingFences, leases: LocalLeases
) -> None:
    """The lease is given back in the background, and closing waits for that."""
    fences.slow = asyncio.Event()
    asking = asyncio.create_task(fenced.acquire(claim("a:1", token="A")))
    await fences.asked.wait()
    assert await leases.find("a:1") is not None
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await fenced.close()
    assert await leases.find("a:1") is None


async def test_a_lease_that_cannot_be_given_back_is_left_to_run_out(
    fenced: FencedLeases, fences: CountingFences, leases: LocalLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets the first error, not the second."""

    async def gone(_: Grant) -> bool:
        raise LocksUnavailable(because="gone too")

    monkeypatch.setattr(leases, "release", gone)
    fences.gone = True
    with pytest.raises(LocksUnavailable, match="no count today"):
        await fenced.acquire(claim("a:1", token="A"))


async def late_number(fenced: FencedLeases, fences: CountingFences, clock: Clock) -> tuple[Any, Grant]:
    """A's number is on its way while A's lease runs out and B is granted: A's answer, and B's grant."""
    fences.slow = slow = asyncio.Event()
    first = asyncio.create_task(fenced.acquire(claim("a:1", token="A", ttl=10)))
    await fences.asked.wait()
    clock.now += 10
    fences.slow = None
    second = await fenced.acquire(claim("a:1", token="B", ttl=10))
    slow.set()
    (answer,) = await asyncio.gather(first, return_exceptions=True)
    return answer, second


async def test_a_number_that_comes_after_the_lease_ran_out_is_not_used(
    fenced: FencedLeases, fences: CountingFences, leases: LocalLeases, clock: Clock
) -> None:
    """It would be greater than that of the next holder, which has the lock by then; and that lease stays."""
    answer, second = await late_number(fenced, fences, clock)
    assert isinstance(answer, LockLost)
    assert fences.count > (second.fence or 0)
    found = await leases.find("a:1")
    assert found
    assert found.token == "B"


async def test_used_all_the_same_it_would_outrank_the_next_holder(
    leases: LocalLeases, fences: CountingFences, clock: Clock
) -> None:
    """The control: without the check of the time the resource takes the late one and turns the holder away."""
    unchecked = FencedLeases(leases, fences, clock=lambda: 0.0)
    late, second = await late_number(unchecked, fences, clock)
    resource = Resource(checks=True)
    resource.write("late", fence=late.fence)
    resource.write("right", fence=second.fence)
    assert resource.written == ["late"]


@pytest.mark.parametrize("checks", [False, True])
async def test_a_resource_that_checks_numbers_refuses_a_late_holder(
    fenced: FencedLeases, clock: Clock, *, checks: bool
) -> None:
    """A was paused past its time, B worked, A resumes and writes: only the number shows that A is late."""
    resource = Resource(checks=checks)
    late = await fenced.acquire(claim("a:1", token="A", ttl=10))
    clock.now += 10
    right = await fenced.acquire(claim("a:1", token="B", ttl=10))
    resource.write("right", fence=right.fence)
    resource.write("late", fence=late.fence)
    assert resource.written == (["right"] if checks else ["right", "late"])


async def test_an_inspector_sees_the_number_that_was_given(fenced: FencedLeases, fences: CountingFences) -> None:
    """And no number where it cannot be read, rather than one that means something else."""
    await fenced.acquire(claim("a:1", token="A"))
    assert [found.fence for found in await fenced.holdings()] == [1]
    found = await fenced.find("a:1")
    assert found
    assert found.fence == 1
    assert await fenced.find("a:2") is None
    fences.gone = True
    assert [found.fence for found in await fenced.holdings()] == [None]
    assert await fenced.evict("a:1")


async def test_the_database_counts_for_leases_that_live_elsewhere(rows: PostgresLeases, clock: Clock) -> None:
    """The backend lost everything and its clock was set back: the numbers go on growing."""
    numbers = []
    for token in "ABC":
        fresh = LocalLeases(LocalTable(clock=clock, wall_ns=lambda: 0))
        fenced = FencedLeases(fresh, DatabaseFences(rows), clock=clock)
        numbers.append((await fenced.acquire(claim("a:1", "a:2", token=token))).fence or 0)
    assert numbers == sorted(set(numbers))
    assert set((await DatabaseFences(rows).last(["a:1", "a:2"])).values()) == {numbers[-1]}


async def test_the_backend_alone_would_count_from_the_start_again(clock: Clock) -> None:
    """The control: what lost everything, clock and all, gives the same number twice."""
    fences = [
        (await LocalLeases(LocalTable(clock=clock, wall_ns=lambda: 0)).acquire(claim("a:1", token=token))).fence
        for token in "AB"
    ]
    assert fences[0] == fences[1]


async def test_many_at_once_have_different_numbers(rows: PostgresLeases) -> None:
    """Several keys have one common number, and no two grants of a key the same."""
    fences = DatabaseFences(rows)
    pairs = [["b:1", "b:2"], ["b:2", "b:3"], ["b:1", "b:3"]]
    numbers = await asyncio.gather(*(fences.next(pairs[turn % 3]) for turn in range(60)))
    for key in ("b:1", "b:2", "b:3"):
        given = [number for turn, number in enumerate(numbers) if key in pairs[turn % 3]]
        assert len(given) == len(set(given))
        assert max(given) <= (await fences.last([key]))[key]


async def test_a_lease_and_a_number_for_the_same_key_leave_each_other_alone(rows: PostgresLeases) -> None:
    """A key is leased in the database by one, and elsewhere by another that is numbered from the same row."""
    here = await rows.acquire(claim("c:1", token="here"))
    there = await FencedLeases(LocalLeases(), DatabaseFences(rows)).acquire(claim("c:1", token="there"))
    assert (there.fence or 0) > (here.fence or 0)
    found = await rows.find("c:1")
    assert found
    assert (found.token, found.fence) == ("here", here.fence)
    assert await rows.extend(here, ttl=100)
    assert await rows.release(here)
    assert ((await rows.acquire(claim("c:1", token="next"))).fence or 0) > (there.fence or 0)


async def test_leases_of_the_database_can_be_fenced_by_it_too(rows: PostgresLeases) -> None:
    """Pointless but harmless: closing what both share closes it once."""
    fenced = FencedLeases(rows, DatabaseFences(rows))
    grant = await fenced.acquire(claim("d:1", token="A"))
    assert (await rows.last_fences(["d:1"]))["d:1"] == grant.fence
    assert await fenced.release(grant)
    await fenced.close()
    with pytest.raises(LocksUnavailable):
        await fenced.ping()
