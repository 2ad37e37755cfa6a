"""The fence: a number that grows with every grant of a key, whatever became of the grants before."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.locks.conftest import GROUPS, TIMED
from tests.locks.topologies import ask, start_private

from earmark.locks import FenceUnavailable
from earmark.locks.backend_protocol import Group

from .support import BOUND, KEY, SEATS, soon_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.conftest import Place

    from earmark.locks import Locks


@pytest.fixture
def locks(fence_place: Place, open_locks: Callable[..., Locks]) -> Locks:
    """Locks on each of the places that count a fence."""
    return open_locks(fence_place)


async def next_fence(locks: Locks, *keys: str) -> int:
    async with locks.lock(*(keys or (KEY,)), wait=BOUND) as held:
        return held.fence


def assert_grows(fences: list[int]) -> None:
    assert all(isinstance(fence, int) for fence in fences)
    assert all(earlier < later for earlier, later in itertools.pairwise(fences)), fences


async def test_it_grows_with_every_grant(locks: Locks) -> None:
    """Released and taken again: each holder outranks those before it."""
    assert_grows([await next_fence(locks) for _ in range(20)])


@pytest.mark.parametrize("fence_place", [name for name in TIMED if Group.FENCE in GROUPS[name]], indirect=True)
async def test_it_grows_after_a_lease_ran_out(locks: Locks) -> None:
    """The holder that was paused past its lease has a smaller fence than the one that took over."""
    late = await soon_lost(locks, KEY)
    assert_grows([late.fence, await next_fence(locks), await next_fence(locks)])


async def test_it_grows_after_an_operator_took_the_lock_away(locks: Locks) -> None:
    """A holder that lost the lock to an operator has the smaller fence too."""
    held = await locks.acquire(KEY)
    await locks.evict(KEY)
    assert_grows([held.fence, await next_fence(locks)])


async def test_it_grows_over_many_keys_together(locks: Locks) -> None:
    """One number for all keys of a lock, above the last of each of them."""
    fences = [await next_fence(locks, SEATS[0]), await next_fence(locks, SEATS[1]), await next_fence(locks, *SEATS[:2])]
    assert fences[2] > max(fences[:2])
    assert await next_fence(locks, SEATS[0]) > fences[2]
    assert await next_fence(locks, SEATS[1]) > fences[2]


async def test_it_stays_the_same_while_the_lock_is_held(locks: Locks) -> None:
    """An extension is not a new grant."""
    async with locks.lock(KEY, ttl=5) as held:
        before = held.fence
        await held.extend(ttl=60)
        (seen,) = await locks.holdings()
        assert held.fence == before == seen.fence


async def test_it_survives_the_loss_of_all_data(request: pytest.FixtureRequest) -> None:
    """FLUSHALL forgets the counter, and time is its floor: the next holder still outranks the last."""
    request.getfixturevalue("one_redis")  # Where no server can be had, this says so.
    from earmark.locks import Locks

    with start_private() as topology:
        async with Locks.from_url(topology.url) as locks:
            fences = [await next_fence(locks) for _ in range(3)]
            held = await locks.acquire(KEY)
            ask(topology.nodes[0], "FLUSHALL")
            assert_grows([*fences, held.fence, await next_fence(locks), await next_fence(locks)])
            assert await held.release() is False


async def test_a_place_without_a_fence_says_so(place: Place, open_locks: Callable[..., Locks]) -> None:
    """No number is better than one that does not grow: the error says where to get one."""
    locks = open_locks(place)
    async with locks.lock(KEY) as held:
        if Group.FENCE in locks.groups:
            assert held.fence > 0
        else:
            with pytest.raises(FenceUnavailable):
                assert held.fence


async def test_the_database_counts_for_backends_without_a_fence(
    place: Place, locks_database: str, open_locks: Callable[..., Locks]
) -> None:
    """With fence="database" every place has a fence that no loss of Redis can turn back."""
    locks = open_locks(place, fence="database", database=locks_database)
    assert_grows([await next_fence(locks) for _ in range(3)])
    taken = await locks.acquire(KEY)
    await locks.evict(KEY)
    assert taken.fence < await next_fence(locks)
    fences = [await next_fence(locks, SEATS[0]), await next_fence(locks, *SEATS[:2]), await next_fence(locks, SEATS[1])]
    assert_grows(fences)
