"""What a server caches of the stored keys, and for how long."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from tests.api.conftest import FixedClock
from tests.api.matrix import Ticks

from earmark.api.auth import key_cache, read_all_keys_once_a_second
from earmark.api.auth.key_cache import KeyCache
from earmark.api.auth.keys_and_tokens import (
    Authenticator,
    Principal,
    UnverifiedCredential,
    hash_of,
    new_key,
    new_key_id,
)
from earmark.api.middleware.run_handler_within_deadline import Deadline
from earmark.domain.api_key import ApiKey, Scope
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.api_keys import Keys
from earmark.errors import Outage, Overloaded, StoreUnavailable
from earmark.store.both_databases.api_keys import StoredKeys
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.clock import MovableClock
    from earmark.domain.id_types import KeyId

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class SlowKeyStore(StoredKeys):
    """A store that counts its queries, and answers when a test lets it."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__(MemoryStore(clock=clock))
        self.asked = 0
        self.at_once = 0
        self.at_once_max = 0
        self.open = asyncio.Event()
        self.open.set()
        self.silent = False

    async def find(self, secret_hash: bytes) -> ApiKey | None:
        """As every store, and counted."""
        async with self._counted():
            return await super().find(secret_hash)

    async def read(self, key_id: KeyId) -> ApiKey | None:
        """The same by the id."""
        async with self._counted():
            return await super().read(key_id)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await self.open.wait()
            if self.silent:
                raise StoreUnavailable(because="a test says so")
            yield
        finally:
            self.at_once -= 1


@pytest.fixture
def key_store(clock: MovableClock) -> SlowKeyStore:
    return SlowKeyStore(clock)


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def authenticator(key_store: SlowKeyStore, ticks: Ticks) -> Authenticator:
    return Authenticator(admin_key="ek_test_of-the-keyring-0", keys=Keys(key_store), timer=ticks)


async def made(key_store: SlowKeyStore, *, mode: Mode = Mode.TEST) -> tuple[KeyId, str]:
    secret, key_id = new_key(mode=mode), new_key_id()
    await Keys(key_store).create(
        key_id, name="k", mode=mode, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
    )
    return key_id, secret


async def until(fact: Callable[[], bool]) -> None:
    """Let others go on until it is so."""
    for _ in range(10_000):
        if fact():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came to be")


async def shown(authenticator: Authenticator, secret: str) -> Principal | None:
    """The principal: at once where it is cached, else by a read."""
    found = authenticator.authenticate(secret, FixedClock(datetime.now(UTC)))
    return (
        await authenticator.look_up(found, now=datetime.now(UTC)) if isinstance(found, UnverifiedCredential) else found
    )


async def test_a_key_that_is_in_use_is_recognised_without_a_wait(
    authenticator: Authenticator, key_store: SlowKeyStore, ticks: Ticks
) -> None:
    """It is read again in the background, before the cached value is too old."""
    _, secret = await made(key_store)
    assert await shown(authenticator, secret)
    assert key_store.asked == 1
    for _ in range(20):
        ticks.now += 0.4
        assert isinstance(authenticator.authenticate(secret, FixedClock(NOW)), Principal)
        await until(lambda: authenticator._cache is not None and not authenticator._cache._lookups)
    assert 5 <= key_store.asked <= 12


async def test_a_principal_says_which_key_it_is(authenticator: Authenticator, key_store: SlowKeyStore) -> None:
    """The journal names the key by its id, which a rotation does not change; `sell` includes to buy."""
    key_id, secret = await made(key_store, mode=Mode.LIVE)
    new = new_key(mode=Mode.LIVE)
    await Keys(key_store).rotate(key_id, secret_hash=hash_of(new), grace_seconds=60)
    for one in (secret, new):
        principal = await shown(authenticator, one)
        assert principal is not None
        assert (principal.actor.name, principal.actor.mode, principal.actor.buyer) == (f"key:{key_id}", Mode.LIVE, None)
        assert principal.scopes == {Scope.BUY, Scope.SELL}


@pytest.mark.parametrize("what", ["unknown", "revoked"])
async def test_a_wrong_key_is_queried_once_a_second(
    authenticator: Authenticator, key_store: SlowKeyStore, ticks: Ticks, what: str
) -> None:
    """However often it is shown."""
    key_id, secret = await made(key_store)
    if what == "revoked":
        await Keys(key_store).revoke(key_id)
    else:
        secret = new_key(mode=Mode.TEST)
    for _ in range(30):
        assert await shown(authenticator, secret) is None
        ticks.now += 0.1
    assert 3 <= key_store.asked <= 4


async def test_a_revocation_takes_effect_within_a_second(
    authenticator: Authenticator, key_store: SlowKeyStore, ticks: Ticks
) -> None:
    """Counted from before the last query: what was read while it was being revoked does not count longer."""
    key_id, secret = await made(key_store)
    key_store.open.clear()
    look = asyncio.create_task(shown(authenticator, secret))
    await until(lambda: key_store.asked > 0)
    ticks.now += 0.9
    key_store.open.set()
    assert await look
    await Keys(key_store).revoke(key_id)
    ticks.now += 0.1
    assert await shown(authenticator, secret) is None


async def test_many_requests_with_one_key_cost_one_read(authenticator: Authenticator, key_store: SlowKeyStore) -> None:
    """They wait for the same answer."""
    _, secret = await made(key_store)
    key_store.open.clear()
    looks = [asyncio.create_task(shown(authenticator, secret)) for _ in range(50)]
    await until(lambda: key_store.asked > 0)
    key_store.open.set()
    assert all(await asyncio.gather(*looks))
    assert key_store.asked == 1


async def test_many_wrong_keys_fill_neither_the_memory_nor_the_database(key_store: SlowKeyStore, ticks: Ticks) -> None:
    """Few are looked up at a time, few wait, the others share one look; a known key gets through."""
    cache = KeyCache(Keys(key_store), timer=ticks, kept_max=100)
    _, secret = await made(key_store)
    assert await cache.look_up(hash_of(secret))
    key_store.open.clear()
    strangers = [hashlib.sha256(b"%d" % n).digest() for n in range(5000)]
    looks = [asyncio.create_task(cache.look_up(stranger)) for stranger in strangers]
    await until(lambda: key_store.at_once == key_cache.UNKNOWN_AT_ONCE)
    assert len(cache._lookups) == key_cache.UNKNOWN_WAITING_MAX
    ticks.now += 5
    own = asyncio.create_task(cache.look_up(hash_of(secret)))
    await until(lambda: key_store.at_once == key_cache.UNKNOWN_AT_ONCE + 1)
    key_store.open.set()
    assert await own, "a key that was good before does not wait behind unknown keys"
    told = await asyncio.gather(*looks, return_exceptions=True)
    assert {type(answer) for answer in told} == {type(None), Overloaded}
    assert told.count(None) == key_cache.UNKNOWN_WAITING_MAX + read_all_keys_once_a_second.WAITING_MAX, (
        "so many wait, and no more"
    )
    assert key_store.asked <= key_cache.UNKNOWN_WAITING_MAX + 2, "all others shared one read of all keys"
    assert key_store.at_once_max <= key_cache.UNKNOWN_AT_ONCE + 1
    for stranger in strangers[:500]:
        await cache.look_up(stranger)
    assert len(cache._missing) == 100
    assert cache.knows(hash_of(secret))
    await cache.close()


async def test_many_requests_get_429_where_not_all_keys_can_be_read(
    key_store: SlowKeyStore, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key beyond those that were read is not called wrong."""
    monkeypatch.setattr(read_all_keys_once_a_second, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(read_all_keys_once_a_second, "PAGE", 1)
    monkeypatch.setattr(read_all_keys_once_a_second, "KEYS_MAX", 1)
    cache = KeyCache(Keys(key_store), timer=ticks)
    first, second = sorted([await made(key_store), await made(key_store)])
    key_store.open.clear()
    strangers = [hashlib.sha256(b"%d" % n).digest() for n in range(key_cache.UNKNOWN_WAITING_MAX)]
    looks = [asyncio.create_task(cache.look_up(stranger)) for stranger in strangers]
    await until(lambda: len(cache._lookups) == key_cache.UNKNOWN_WAITING_MAX)
    assert await cache.look_up(hash_of(first[1])), "it is among those that were read"
    with pytest.raises(Overloaded):
        await cache.look_up(hash_of(second[1]))
    key_store.open.set()
    await asyncio.gather(*looks)
    await cache.close()


async def test_the_key_behind_a_token_does_not_count_as_wrong(key_store: SlowKeyStore, ticks: Ticks) -> None:
    """Only this service signs tokens: however many wrong keys wait, the key that a token names is looked up."""
    cache = KeyCache(Keys(key_store), timer=ticks)
    key_id, _ = await made(key_store)
    key_store.open.clear()
    strangers = [hashlib.sha256(b"%d" % n).digest() for n in range(2 * key_cache.UNKNOWN_WAITING_MAX)]
    looks = [asyncio.create_task(cache.look_up(stranger)) for stranger in strangers]
    await until(lambda: key_store.at_once == key_cache.UNKNOWN_AT_ONCE)
    own = asyncio.create_task(cache.look_up(key_id))
    await until(lambda: key_store.at_once == key_cache.UNKNOWN_AT_ONCE + 1)
    key_store.open.set()
    assert await own
    await asyncio.gather(*looks)
    await cache.close()


async def test_waiting_requests_are_answered_in_groups(key_store: SlowKeyStore, ticks: Ticks) -> None:
    """Another request has its turn after each group, whatever number waits."""
    snapshot = read_all_keys_once_a_second.KeySnapshot(Keys(key_store), timer=ticks, deadline=Deadline(3.0))
    told = 0

    async def wait() -> None:
        nonlocal told
        await snapshot.read()
        told += 1

    waits = [asyncio.create_task(wait()) for _ in range(read_all_keys_once_a_second.WAITING_MAX)]
    await until(lambda: snapshot._waiting_count == read_all_keys_once_a_second.WAITING_MAX)
    steps, before = [], 0
    while not all(one.done() for one in waits):
        await asyncio.sleep(0)
        steps.append(told - before)
        before = told
    assert told == read_all_keys_once_a_second.WAITING_MAX
    assert max(steps) <= read_all_keys_once_a_second.NOTIFIED_AT_ONCE
    await snapshot.close()


async def test_a_caller_that_comes_when_the_last_was_answered_is_answered_too(key_store: SlowKeyStore) -> None:
    """The task that reads has nothing left to do then, and is not done yet."""
    snapshot = read_all_keys_once_a_second.KeySnapshot(
        Keys(key_store), timer=lambda: next(seconds), deadline=Deadline(3.0)
    )
    seconds = itertools.count(0.0, 2.0)
    first = asyncio.create_task(snapshot.read())
    for turns in range(12):
        late = asyncio.create_task(_after(turns, snapshot))
        assert (await late).whole, turns
    assert (await first).whole
    await snapshot.close()


async def _after(turns: int, snapshot: read_all_keys_once_a_second.KeySnapshot) -> read_all_keys_once_a_second.AllKeys:
    first = asyncio.create_task(snapshot.read())
    for _ in range(turns):
        await asyncio.sleep(0)
    found = await snapshot.read()
    await first
    return found


async def test_callers_wait_no_longer_for_all_keys_once_the_reader_is_closed(
    key_store: SlowKeyStore, ticks: Ticks
) -> None:
    """Also where the reading has not begun."""
    snapshot = read_all_keys_once_a_second.KeySnapshot(Keys(key_store), timer=ticks, deadline=Deadline(3.0))
    wait = asyncio.create_task(snapshot.read())
    await asyncio.sleep(0)
    await snapshot.close()
    with pytest.raises(asyncio.CancelledError):
        await wait


async def test_a_key_that_was_read_lately_does_not_wait_for_the_next_reading(
    key_store: SlowKeyStore, ticks: Ticks
) -> None:
    """Good keys of a suspicious address are served at once while its wrong ones wait, also where too many wait."""
    cache = KeyCache(Keys(key_store), timer=ticks)
    (_, first), (_, second) = await made(key_store), await made(key_store)
    assert await cache.look_up_in_snapshot(hash_of(first))
    wrong = [
        asyncio.create_task(cache.look_up_in_snapshot(hash_of(new_key(mode=Mode.TEST))))
        for _ in range(read_all_keys_once_a_second.WAITING_MAX)
    ]
    await until(lambda: cache._snapshot._waiting_count == read_all_keys_once_a_second.WAITING_MAX)
    assert await cache.look_up_in_snapshot(hash_of(second))
    with pytest.raises(Overloaded):
        await cache.look_up_in_snapshot(hash_of(new_key(mode=Mode.TEST)))
    ticks.now += key_cache.FRESH_SECONDS
    assert cache._snapshot.find_recent(hash_of(second), seconds=key_cache.FRESH_SECONDS) is None, "a revocation is felt"
    for one in wrong:
        one.cancel()
    await asyncio.gather(*wrong, return_exceptions=True)
    await cache.close()


async def test_a_silent_store_makes_no_key_wrong(
    authenticator: Authenticator, key_store: SlowKeyStore, ticks: Ticks
) -> None:
    """A key that was seen within the last second still works; after that it is unknown."""
    _, secret = await made(key_store)
    assert await shown(authenticator, secret)
    key_store.silent = True
    ticks.now += 0.9
    assert await shown(authenticator, secret)
    await asyncio.sleep(0)
    ticks.now += 0.1
    for one in (secret, new_key(mode=Mode.TEST)):
        with pytest.raises(Outage):
            await shown(authenticator, one)
    key_store.silent = False
    assert await shown(authenticator, secret)


async def test_what_no_key_looks_like_is_not_looked_up(authenticator: Authenticator, key_store: SlowKeyStore) -> None:
    """A query costs the database something, and the form of a key is known."""
    for one in ("", "x" * 10_000, "ek_test_short", "ek_live_" + "g" * 64, "et_x.y"):
        assert await shown(authenticator, one) is None
    assert key_store.asked == 0


async def test_closing_leaves_nothing_behind(authenticator: Authenticator, key_store: SlowKeyStore) -> None:
    """A look that is under way when a server stops is not waited for."""
    key_store.open.clear()
    look = asyncio.create_task(shown(authenticator, new_key(mode=Mode.TEST)))
    await until(lambda: key_store.asked > 0)
    await authenticator.close()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert key_store.at_once == 0
