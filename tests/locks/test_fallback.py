from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from earmark.locks.backend_protocol import Claim, Group
from earmark.locks.errors import KeysApart, LockBusy, LocksUnavailable
from earmark.locks.fallback import FallbackLeases
from earmark.locks.fencing_tokens_from_postgres import DatabaseFences, FencedLeases
from earmark.locks.local import LocalLeases
from earmark.locks.postgres import PostgresLeases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.locks.backend_protocol import Backend, Grant, Holding
    from earmark.testservers import Postgres

SECONDS_MAX = 20.0


class Breakable(LocalLeases):
    """Leases that are gone when a test says so."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.gone = False
        self.waits: list[float] = []
        self.closed = False

    def there(self) -> None:
        """Raise `LocksUnavailable` while the test has taken the backend down."""
        if self.gone:
            raise LocksUnavailable(because=f"no {self.name} today")

    async def acquire(self, claim: Claim) -> Grant:
        """As it should be, if it is there."""
        self.waits.append(claim.wait)
        self.there()
        return await super().acquire(claim)

    async def release(self, grant: Grant) -> bool:
        """As it should be, if it is there."""
        self.there()
        return await super().release(grant)

    async def holdings(self, *, match: str = "*", limit: int = 1000) -> list[Holding]:
        """As it should be, if it is there."""
        self.there()
        return await super().holdings(match=match, limit=limit)

    async def find(self, key: str) -> Holding | None:
        """As it should be, if it is there."""
        self.there()
        return await super().find(key)

    async def evict(self, key: str) -> bool:
        """As it should be, if it is there."""
        self.there()
        return await super().evict(key)

    async def ping(self) -> None:
        """Whether it is there."""
        self.there()

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


def claim(*keys: str, token: str, ttl: float = 60.0, wait: float = 0.0) -> Claim:
    return Claim(tuple(sorted(keys)), token, ttl, wait, f"holder of {token}")


@pytest.fixture
def primary() -> Breakable:
    """The one that should guard."""
    return Breakable("primary")


@pytest.fixture
def database() -> Breakable:
    """The one that guards meanwhile."""
    return Breakable("database")


@pytest.fixture
def both(primary: Breakable, database: Breakable) -> FallbackLeases:
    """The two as one."""
    return FallbackLeases(primary, database)


async def test_it_stands_behind_the_port(both: FallbackLeases, database: Breakable, primary: Breakable) -> None:
    """What is promised is only what both keep."""
    backend: Backend = both
    assert backend.groups == primary.groups
    few: Any = database
    few.groups = frozenset({Group.FENCE})
    assert FallbackLeases(primary, few).groups == {Group.FENCE}


async def test_while_the_primary_answers_the_database_is_not_asked(both: FallbackLeases, database: Breakable) -> None:
    """A refusal is an answer: the database is not asked for the same lock."""
    await both.acquire(claim("a:1", token="A"))
    with pytest.raises(LockBusy):
        await both.acquire(claim("a:1", token="B"))
    assert database.waits == []


async def test_when_the_primary_is_gone_the_database_guards(
    both: FallbackLeases, primary: Breakable, database: Breakable
) -> None:
    """The database guards the lock: the second caller is refused there too."""
    primary.gone = True
    grant = await both.acquire(claim("a:1", token="A"))
    assert grant.backend is database
    with pytest.raises(LockBusy):
        await both.acquire(claim("a:1", token="B"))
    assert await both.extend(grant, ttl=100)
    assert await both.release(grant)


async def test_when_neither_backend_answers_every_caller_is_refused(
    both: FallbackLeases, primary: Breakable, database: Breakable
) -> None:
    """Never unguarded, and the refusal names both reasons."""
    primary.gone = database.gone = True
    with pytest.raises(LocksUnavailable, match=r"no primary today.*no database today"):
        await both.acquire(claim("a:1", token="A"))
    for asked in (both.holdings(), both.find("a:1"), both.evict("a:1"), both.ping()):
        with pytest.raises(LocksUnavailable):
            await asked


async def test_a_question_that_makes_no_sense_is_not_asked_again(
    both: FallbackLeases, primary: Breakable, database: Breakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only silence leads to the database."""

    async def refuse(_: Claim) -> Grant:
        raise KeysApart(keys=("a:1", "b:1"))

    monkeypatch.setattr(primary, "acquire", refuse)
    with pytest.raises(KeysApart):
        await both.acquire(claim("a:1", "b:1", token="A"))
    assert database.waits == []


async def test_a_lock_is_released_in_the_backend_that_granted_it(
    both: FallbackLeases, primary: Breakable, database: Breakable
) -> None:
    """Whatever has happened since."""
    first = await both.acquire(claim("a:1", token="A"))
    primary.gone = True
    second = await both.acquire(claim("a:2", token="B"))
    with pytest.raises(LocksUnavailable):
        await both.release(first)
    primary.gone = False
    assert await both.release(second)
    assert await both.release(first)
    assert await primary.holdings() == await database.holdings() == []


async def test_what_was_waited_for_the_primary_is_not_waited_again(
    both: FallbackLeases, primary: Breakable, database: Breakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One deadline for both, and the grant has the caller's claim as it was."""

    async def slow(_: Claim) -> Grant:
        await asyncio.sleep(0.02)
        raise LocksUnavailable(because="gone in the middle")

    monkeypatch.setattr(primary, "acquire", slow)
    for wait in (60.0, 0.01):
        wanted = claim("a:1", token="A", wait=wait)
        assert (await both.acquire(wanted)).claim is wanted
    assert 50 < database.waits[0] <= 60 - 0.02
    assert database.waits[1] == 0.0


async def test_switching_is_said_once_each_way(
    both: FallbackLeases, primary: Breakable, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning when it starts and a log line when it ends, not one for each call."""
    caplog.set_level(logging.INFO, logger="earmark.locks")
    for gone in (False, True, True, False, False, True):
        primary.gone = gone
        grant = await both.acquire(claim("a:1", token="A"))
        await both.release(grant)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert "no primary today" in caplog.text


async def test_a_refusal_of_the_primary_shows_that_it_is_back(
    both: FallbackLeases, primary: Breakable, caplog: pytest.LogCaptureFixture
) -> None:
    """Any answer ends the outage."""
    caplog.set_level(logging.INFO, logger="earmark.locks")
    await both.acquire(claim("a:1", token="A"))
    primary.gone = True
    await both.acquire(claim("a:1", token="B"))
    primary.gone = False
    with pytest.raises(LockBusy):
        await both.acquire(claim("a:1", token="C"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_an_inspector_sees_both(both: FallbackLeases, primary: Breakable) -> None:
    """A key held in both, as it may be at a switch, is there twice; evicting takes it from both."""
    await both.acquire(claim("a:2", token="A"))
    primary.gone = True
    await both.acquire(claim("a:1", token="B"))
    await both.acquire(claim("a:2", token="C"))
    assert [found.token for found in await both.holdings()] == ["B", "C"]
    primary.gone = False
    assert [found.token for found in await both.holdings()] == ["B", "A", "C"]
    assert [found.token for found in await both.holdings(limit=2)] == ["B", "A"]
    found = await both.find("a:1")
    assert found
    assert found.token == "B"
    assert await both.evict("a:2") is True
    assert await both.evict("a:2") is False
    assert await both.find("a:2") is None
    primary.gone = True
    await both.ping()
    assert await both.evict("a:1") is True
    with pytest.raises(LocksUnavailable):
        await both.evict("a:1")


async def test_an_error_of_ours_is_not_taken_for_silence(
    both: FallbackLeases, primary: Breakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug is raised, in whichever backend it is."""

    async def broken(**_: Any) -> list[Holding]:
        raise ZeroDivisionError

    monkeypatch.setattr(primary, "holdings", broken)
    with pytest.raises(ZeroDivisionError):
        await both.holdings()


async def test_closing_closes_both(
    both: FallbackLeases, primary: Breakable, database: Breakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first cannot be closed."""

    async def broken() -> None:
        raise OSError("stuck")

    monkeypatch.setattr(primary, "close", broken)
    with pytest.raises(OSError, match="stuck"):
        await both.close()
    assert database.closed


@pytest.fixture(scope="module")
def url(postgres_server: Postgres) -> Iterator[str]:
    """A database for the tests of this file."""
    name = f"earmark_fallback_{os.getpid()}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


async def test_at_a_switch_there_may_be_two_holders_and_the_number_distinguishes_them(
    primary: Breakable, url: str
) -> None:
    """Said honestly: two hold one key at once. Numbered by one count, the later one has the greater number."""
    rows = PostgresLeases(url, timeout=SECONDS_MAX)
    both = FallbackLeases(FencedLeases(primary, DatabaseFences(rows)), rows)
    before = await both.acquire(claim("a:1", token="A"))
    primary.gone = True
    during = await both.acquire(claim("a:1", token="B"))
    primary.gone = False
    await primary.release(before)
    after = await both.acquire(claim("a:1", token="C"))
    assert during.backend is rows
    numbers = [grant.fence or 0 for grant in (before, during, after)]
    assert numbers == sorted(set(numbers))
    assert len(await both.holdings()) == 2
    await both.close()


async def test_numbered_by_two_counts_the_earlier_holder_may_have_the_greater_number(url: str) -> None:
    """The control: the primary's clock is ahead, and a resource would let the late one in."""
    rows = PostgresLeases(url, timeout=SECONDS_MAX)
    ahead = Breakable("primary")
    ahead.table._last_fence = 2 * 10**15
    both = FallbackLeases(ahead, rows)
    before = await both.acquire(claim("b:1", token="A"))
    ahead.gone = True
    during = await both.acquire(claim("b:1", token="B"))
    assert (before.fence or 0) > (during.fence or 0)
    await both.close()
