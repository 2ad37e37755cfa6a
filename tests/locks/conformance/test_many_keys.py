"""Several keys at once: all of them or none."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from tests.locks.conftest import GROUPS, PROOF, TIMED, declaring

from earmark.locks import KeysApart, LockBusy, LockLost
from earmark.locks.backend_protocol import Group

from .support import BOUND, SEATS, soon_lost, until_nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.locks.conftest import Place

    from earmark.locks import Locks

ROUNDS = 200 if os.environ.get("EARMARK_PROOF") else 20


@pytest.fixture
def locks(many_place: Place, open_locks: Callable[..., Locks]) -> Locks:
    """Locks on each of the places that give several keys at once."""
    return open_locks(many_place)


async def held_keys(locks: Locks) -> list[str]:
    return [each.key for each in await locks.holdings()]


async def test_several_keys_are_held_and_released_together(locks: Locks) -> None:
    """One lock over all of them, whatever the order in which they were named, each of them once."""
    async with locks.lock(SEATS[2], SEATS[0], SEATS[2], SEATS[1]) as held:
        assert held.keys == SEATS[:3]
        assert await held_keys(locks) == list(SEATS[:3])
        for seat in SEATS[:3]:
            with pytest.raises(LockBusy):
                await locks.acquire(seat)
        async with locks.lock(SEATS[3]):
            assert len(await held_keys(locks)) == 4
    assert await held_keys(locks) == []


async def test_a_partial_failure_leaves_no_lock_behind_and_names_what_is_taken(locks: Locks) -> None:
    """All or nothing: the free ones stay free, and the refusal names the others."""
    async with locks.lock(SEATS[1], SEATS[3]):
        with pytest.raises(LockBusy) as refused:
            await locks.acquire(*SEATS)
        assert list(refused.value.keys) == [SEATS[1], SEATS[3]]
        assert await held_keys(locks) == [SEATS[1], SEATS[3]]
        async with locks.lock(SEATS[0], SEATS[2]) as rest:
            rest.check()


async def test_several_keys_are_extended_together_or_not_at_all(locks: Locks) -> None:
    """When one of them is lost, all of the work is: the others are not kept alive for it."""
    held = await locks.acquire(*SEATS[:2], ttl=5)
    await held.extend(ttl=60)
    assert all(each.ttl_seconds > 30 for each in await locks.holdings())
    await locks.evict(SEATS[0])
    with pytest.raises(LockLost):
        await held.extend(ttl=600)
    assert all(each.ttl_seconds <= 60 for each in await locks.holdings())
    assert await held.release() is False
    assert await held_keys(locks) == []


@pytest.mark.parametrize("many_place", [name for name in TIMED if Group.MANY in GROUPS[name]], indirect=True)
async def test_the_leases_of_a_crashed_holder_run_out_together(locks: Locks) -> None:
    """A caller that waits for all of them gets them all."""
    await soon_lost(locks, *SEATS[:3])
    async with locks.lock(*SEATS[:3], ttl=60, wait=BOUND) as held:
        assert held.keys == SEATS[:3]
        assert await held_keys(locks) == list(SEATS[:3])


async def test_a_waiter_for_several_keys_holds_none_of_them(locks: Locks) -> None:
    """Holding some while waiting for others is how deadlocks are made."""
    first, second = await locks.acquire(SEATS[0]), await locks.acquire(SEATS[2])
    waiter = asyncio.create_task(locks.acquire(*SEATS[:3], wait=BOUND))
    async with locks.lock(SEATS[1], wait=BOUND) as between:
        between.check()
    await first.release()
    async with locks.lock(SEATS[1], wait=BOUND) as between:
        between.check()
        assert not waiter.done()
    await second.release()
    held = await waiter
    assert held.keys == SEATS[:3]
    assert await held_keys(locks) == list(SEATS[:3])
    await held.release()
    await until_nothing_is_left(locks)


async def test_a_cancelled_waiter_for_several_keys_leaves_nothing(locks: Locks) -> None:
    """It stood in one line or another; it is in none of them now."""
    held = await locks.acquire(SEATS[1])
    waiter = asyncio.create_task(locks.acquire(*SEATS[:3], wait=BOUND))
    await asyncio.sleep(0.05)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await held.release()
    await until_nothing_is_left(locks)
    async with locks.lock(*SEATS[:3], wait=BOUND) as again:
        assert again.keys == SEATS[:3]


async def test_opposite_orders_never_hang(locks: Locks) -> None:
    """[1, 2] and [2, 1], and the single keys among them, again and again: every caller gets its turn."""
    served = []
    # With a queue every waiter is woken: none waits until it would try again by itself, after seconds.
    patience = BOUND / 8 if Group.FIFO in locks.groups else BOUND * 2
    inside = dict.fromkeys(SEATS, 0)

    async def come_and_go(*seats: str) -> None:
        for _ in range(ROUNDS):
            async with locks.lock(*seats, ttl=60, wait=patience):
                for seat in seats:
                    inside[seat] += 1
                    assert inside[seat] == 1
                await asyncio.sleep(0)
                for seat in seats:
                    inside[seat] -= 1
            served.append(seats)

    async with asyncio.timeout(BOUND * 3):
        await asyncio.gather(
            come_and_go(SEATS[0], SEATS[1]),
            come_and_go(SEATS[1], SEATS[0]),
            come_and_go(SEATS[1], SEATS[2], SEATS[0]),
            come_and_go(SEATS[0]),
        )
    assert len(served) == 4 * ROUNDS
    await until_nothing_is_left(locks)


@pytest.mark.parametrize(
    "many_place", [name for name in declaring(Group.MANY) if PROOF or name != "sentinel"], indirect=True
)
async def test_keys_of_different_tags_are_refused_on_a_cluster_only(many_place: Place, locks: Locks) -> None:
    """No script can touch two slots at once: the error names the keys, and elsewhere there is no such rule."""
    apart = ("event:{aida}:seat:A1", "event:{tosca}:seat:A1")
    if many_place.name != "cluster":
        async with locks.lock(*apart) as held:
            assert held.keys == apart
        return
    with pytest.raises(KeysApart) as refused:
        await locks.acquire(*apart)
    assert list(refused.value.keys) == list(apart)
    assert not refused.value.transient
    assert await held_keys(locks) == []
