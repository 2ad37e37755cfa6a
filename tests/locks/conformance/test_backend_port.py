"""The port itself: what a backend answers when it is asked directly, as the verbs on top of it rely on."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.locks.conftest import BOUNCER_ABSENT, GROUPS, PLACES, TIMED, unavailable

from earmark.locks import LockBusy
from earmark.locks.backend_protocol import Claim, Group
from earmark.testservers import ServerUnavailable

from .support import BOUND, KEY, SEATS, SHORT, eventually, until_nothing_is_left

if TYPE_CHECKING:
    from tests.locks.conftest import Place

    from earmark.locks import Locks
    from earmark.locks.backend_protocol import Backend

TTL_RESOLUTION_SECONDS = 0.001
"""Redis reports the time that a key has left in whole milliseconds, rounded down."""


@pytest.fixture
async def backend(locks: Locks) -> Backend:
    """The backend of each place in turn."""
    return locks.backend()


def claim(*keys: str, ttl: float = 60.0, wait: float = 0.0) -> Claim:
    return Claim(keys or (KEY,), secrets.token_hex(16), ttl, wait, "a caller")


def test_every_place_is_tested() -> None:
    """One that is left out silently would be believed to conform; PgBouncer is the machine's own, if it has it."""
    assert {group for groups in GROUPS.values() for group in groups} == set(Group)
    if BOUNCER_ABSENT:
        assert set(GROUPS) - set(PLACES) == {"pgbouncer"}
        unavailable(ServerUnavailable("this machine has no pgbouncer."))
    assert set(PLACES) == set(GROUPS)


async def test_a_backend_declares_what_is_expected_of_it(place: Place, locks: Locks, backend: Backend) -> None:
    """A group that is taken back silently would take its tests along."""
    assert backend.groups == GROUPS[place.name]
    assert locks.groups == GROUPS[place.name]
    assert backend.name


async def test_a_grant_ends_no_later_here_than_there(backend: Backend) -> None:
    """By this process's clock a lease ends before the server grants it to another caller."""
    asked = claim(ttl=5)
    before = time.monotonic()
    grant = await backend.acquire(asked)
    (seen,) = await backend.holdings()
    assert grant.claim == asked
    assert before < grant.until <= time.monotonic() + seen.ttl_seconds + TTL_RESOLUTION_SECONDS
    assert grant.until <= before + 5 + (time.monotonic() - before)
    assert await backend.release(grant) is True


async def test_a_repeat_with_the_same_token_is_granted_again(backend: Backend) -> None:
    """The answer to the first may have been lost: asking again neither refuses nor outranks oneself."""
    asked = claim()
    first = await backend.acquire(asked)
    again = await backend.acquire(asked)
    assert first.fence == again.fence
    with pytest.raises(LockBusy):
        await backend.acquire(claim())
    assert await backend.release(again) is True
    assert await backend.release(first) is False


async def test_only_the_token_decides_the_owner_of_a_lease(backend: Backend) -> None:
    """Not the name of the holder, and not the key: a stranger extends nothing and gives nothing back."""
    grant = await backend.acquire(claim(ttl=5))
    strange = msgspec.structs.replace(grant, claim=claim(ttl=5))
    assert await backend.extend(strange, ttl=60) is False
    assert await backend.release(strange) is False
    (seen,) = await backend.holdings()
    assert seen.ttl_seconds <= 5
    with pytest.raises(LockBusy):
        await backend.acquire(claim())
    assert await backend.extend(grant, ttl=60) is True
    assert await backend.release(grant) is True


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_a_lease_that_is_gone_is_an_answer_not_an_error(backend: Backend) -> None:
    """Released, run out or never there: `extend` and `release` say False."""
    grant = await backend.acquire(claim())
    assert await backend.release(grant) is True
    assert await backend.extend(grant, ttl=5) is False
    assert await backend.release(grant) is False
    short = await backend.acquire(claim(ttl=SHORT))

    async def gone() -> bool:
        return await backend.holdings() == []

    await eventually(gone)
    assert await backend.extend(short, ttl=60) is False
    assert await backend.release(short) is False
    assert await backend.holdings() == []


async def test_an_extension_moves_the_end_and_never_back(backend: Backend) -> None:
    """The grant knows its new end, and less than there is changes nothing."""
    grant = await backend.acquire(claim(ttl=5))
    before = grant.until
    assert await backend.extend(grant, ttl=60) is True
    after = grant.until
    assert after > before + 30
    assert await backend.extend(grant, ttl=1) is True
    assert grant.until >= after
    assert await backend.release(grant) is True


async def test_one_key_is_found_without_looking_at_the_others(backend: Backend) -> None:
    """What `find` reports of a key is what `holdings` reports of it, and None where it is free."""
    grant = await backend.acquire(claim(SEATS[0]))
    other = await backend.acquire(claim(SEATS[1]))
    found = await backend.find(SEATS[0])
    assert found is not None
    assert (found.key, found.token, found.holder) == (SEATS[0], grant.claim.token, "a caller")
    assert found.ttl_seconds > 30
    assert await backend.find(SEATS[2]) is None
    assert await backend.release(grant) is True
    assert await backend.find(SEATS[0]) is None
    assert await backend.release(other) is True


async def test_of_many_requests_at_once_one_is_admitted(backend: Backend) -> None:
    """Many in one tick travel together; they are decided one by one all the same."""
    claims = [claim(ttl=60) for _ in range(100)]
    answers = await asyncio.gather(*(backend.acquire(each) for each in claims), return_exceptions=True)
    granted = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(granted) == 1
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {LockBusy}
    assert await backend.release(granted[0]) is True


async def test_a_crowd_with_keys_of_their_own_is_granted_at_once(backend: Backend) -> None:
    """What travels together does not share its fate: each has its own key, and only its own."""
    claims = [claim(f"order:{number % 60}") for number in range(100)]
    answers = await asyncio.gather(*(backend.acquire(each) for each in claims), return_exceptions=True)
    granted = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert sorted(grant.claim.keys for grant in granted) == sorted({each.keys for each in claims})
    assert {tuple(answer.keys) for answer in answers if isinstance(answer, LockBusy)} == {
        (f"order:{number}",) for number in range(40)
    }
    assert await asyncio.gather(*(backend.release(grant) for grant in granted)) == [True] * 60


@pytest.mark.parametrize("place", TIMED, indirect=True)
async def test_a_handed_over_lease_lives_its_full_time(backend: Backend) -> None:
    """Time in the queue is not taken from the lease: it begins with the grant."""
    held = await backend.acquire(claim())
    waiting = asyncio.create_task(backend.acquire(claim(ttl=0.8, wait=BOUND)))
    await asyncio.sleep(1)
    released = time.monotonic()
    assert await backend.release(held) is True
    grant = await waiting
    assert grant.until > released + 0.4
    await backend.release(grant)


async def test_a_backend_answers_a_ping_and_may_be_closed_twice(place: Place) -> None:
    """Closing lets go of connections, and the leases stay."""
    locks = place.open()
    backend = locks.backend()
    await backend.ping()
    grant = await backend.acquire(claim(SEATS[0]))
    await backend.close()
    await backend.close()
    await locks.close()
    if place.name == "memory":
        return
    async with place.open() as later:
        with pytest.raises(LockBusy):
            await later.acquire(SEATS[0])
        assert await later.evict(grant.claim.keys[0]) is True
        await until_nothing_is_left(later)
