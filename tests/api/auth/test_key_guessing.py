"""Wrong keys from an address: they are bounded in what they cost, and never lock out a key that is good."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY
from tests.api.matrix import Ticks

from earmark.api.app import create_app
from earmark.api.auth import key_cache, read_all_keys_once_a_second
from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.api.middleware.rate_limits import FAILURES_BURST, RateLimits
from earmark.api.middleware.run_handler_within_deadline import Deadline
from earmark.domain.api_key import Scope
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.api_keys import LIST_MAX, Keys
from earmark.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from earmark.api.open_services_for_handlers import Services
    from earmark.domain.api_key import ApiKey
    from earmark.domain.id_types import KeyId


async def _open() -> None:
    """Nothing to wait for."""


class Counted(Keys):
    """The keys of a store, and how often the store was queried."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys._book)
        self.singles, self.pages = 0, 0
        self.takes: Callable[[], None] = lambda: None
        self.gate: Callable[[], Awaitable[object]] = _open
        self.find = self._find

    async def _find(self, secret_hash: bytes) -> ApiKey | None:
        self.singles += 1
        await self.gate()
        return await self._book.find(secret_hash)

    async def list_all(self, *, after: str = "", limit: int = LIST_MAX) -> list[ApiKey]:
        """One page, in as much time as `takes` says."""
        self.pages += 1
        self.takes()
        return await super().list_all(after=after, limit=limit)


class Guessed:
    """A server that an address has shown too many wrong keys."""

    def __init__(self, services: Services) -> None:
        self.ticks = Ticks()
        self.keys = Counted(services.engine.store.keys)
        authenticator = Authenticator(admin_key=KEY, keys=self.keys, timer=self.ticks)
        self.services = msgspec.structs.replace(
            services, authenticator=authenticator, limits=RateLimits(timer=self.ticks)
        )
        app = create_app(self.services)
        self._transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False, client=("192.0.2.1", 4000))

    async def key(self) -> tuple[KeyId, str]:
        """A good key, which this process has never seen."""
        key_id, secret = new_key_id(), new_key(mode=Mode.TEST)
        await self.keys.create(
            key_id, name="k", mode=Mode.TEST, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
        )
        return key_id, secret

    async def ask(self, secret: str) -> int:
        """What a request with this key is answered."""
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(transport=self._transport, base_url="http://shop", headers=headers) as client:
            return (await client.get("/v1/events")).status_code

    async def guess(self, count: int) -> list[int]:
        """As many wrong keys, one after another."""
        return [await self.ask(new_key(mode=Mode.TEST)) for _ in range(count)]


@pytest.fixture
async def guessed(services: Services) -> AsyncIterator[Guessed]:
    server = Guessed(services)
    assert await server.guess(FAILURES_BURST) == [401] * FAILURES_BURST
    yield server
    await server.services.authenticator.close()


async def test_a_good_key_is_answered_although_its_address_showed_too_many_wrong_ones(guessed: Guessed) -> None:
    """Behind one address there may be a shop and a guesser: the shop's new server is served all the same."""
    _, secret = await guessed.key()
    assert await guessed.ask("ek_test_wrong") == 429
    assert await guessed.ask(secret) == 200
    asked = guessed.keys.singles, guessed.keys.pages
    assert await guessed.ask(secret) == 200
    assert (guessed.keys.singles, guessed.keys.pages) == asked, "a key that was found good is remembered"


async def test_control_without_the_guard_a_good_key_is_locked_out(
    guessed: Guessed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the guard off: no look among all keys."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(guessed.services.authenticator, "look_up_in_snapshot", nothing)
    _, secret = await guessed.key()
    assert await guessed.ask(secret) == 429


async def test_many_wrong_keys_at_once_share_one_read(guessed: Guessed) -> None:
    """However many come, the store is queried once for all keys; the good one among them is answered."""
    _, secret = await guessed.key()
    singles = guessed.keys.singles
    wrong = [guessed.ask(new_key(mode=Mode.TEST)) for _ in range(500)]
    *refused, good = await asyncio.gather(*wrong, guessed.ask(secret))
    assert (set(refused), good) == ({429}, 200)
    assert guessed.keys.singles == singles
    assert guessed.keys.pages <= 2, "one for the first requests, and one for those during the read"


async def test_wrong_keys_that_waited_together_count_once_each(guessed: Guessed) -> None:
    """While they wait, their address may try once more: one of them does, and the others get 429."""
    singles = guessed.keys.singles

    def a_second() -> None:
        guessed.ticks.now += 1

    guessed.keys.takes = a_second
    told = await asyncio.gather(*(guessed.ask(new_key(mode=Mode.TEST)) for _ in range(50)))
    seconds = guessed.keys.pages
    assert sorted(told) == [401] * seconds + [429] * (50 - seconds)
    assert guessed.keys.singles == singles + seconds


async def test_the_control_is_an_address_without_wrong_keys(services: Services) -> None:
    """It is not made to wait for the others: each of its keys is looked up by itself."""
    server = Guessed(services)
    assert await server.guess(FAILURES_BURST) == [401] * FAILURES_BURST
    assert (server.keys.singles, server.keys.pages) == (FAILURES_BURST, 0)
    await server.services.authenticator.close()


async def test_a_key_that_was_made_a_moment_ago_is_found_too(guessed: Guessed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before a request came does not answer it with no."""
    monkeypatch.setattr(read_all_keys_once_a_second, "PAUSE_SECONDS", 0.0)
    assert await guessed.guess(1) == [429]
    _, secret = await guessed.key()
    assert await guessed.ask(secret) == 200


async def test_a_revoked_key_is_a_wrong_one(guessed: Guessed) -> None:
    """It is among all keys, and opens nothing."""
    key_id, secret = await guessed.key()
    await guessed.keys.revoke(key_id)
    assert await guessed.ask(secret) == 429


async def test_all_keys_are_read_page_by_page_up_to_a_bound(guessed: Guessed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more keys than are read at once, a key beyond them waits until its address may try again."""
    monkeypatch.setattr(read_all_keys_once_a_second, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(read_all_keys_once_a_second, "PAGE", 2)
    monkeypatch.setattr(read_all_keys_once_a_second, "KEYS_MAX", 4)
    made = sorted([await guessed.key() for _ in range(6)])
    assert [await guessed.ask(secret) for _, secret in made[:4]] == [200] * 4
    assert await guessed.ask(made[5][1]) == 429
    guessed.ticks.now += 1
    assert await guessed.ask(made[5][1]) == 200


async def test_a_burst_of_wrong_keys_refuses_no_good_one(services: Services) -> None:
    """More at once than may wait for a look of their own, from an address that has not been found out yet."""
    server = Guessed(services)
    _, secret = await server.key()
    shut = asyncio.Event()
    server.keys.gate = shut.wait
    wrong = [
        asyncio.create_task(server.ask(new_key(mode=Mode.TEST))) for _ in range(key_cache.UNKNOWN_WAITING_MAX + 50)
    ]
    for _ in range(10_000):
        if server.keys.singles == key_cache.UNKNOWN_AT_ONCE:
            break
        await asyncio.sleep(0)
    assert await server.ask(secret) == 200
    assert server.keys.singles <= key_cache.UNKNOWN_AT_ONCE, "the queue has not moved"
    shut.set()
    assert set(await asyncio.gather(*wrong)) <= {401, 429}
    await server.services.authenticator.close()


async def test_a_burst_is_counted_before_it_is_looked_up(services: Services) -> None:
    """Keys that come together count as much as keys that come one by one: the store is queried for no more."""
    server = Guessed(services)
    shut = asyncio.Event()
    server.keys.gate = shut.wait
    wrong = [asyncio.create_task(server.ask(new_key(mode=Mode.TEST))) for _ in range(5 * FAILURES_BURST)]
    for _ in range(10_000):
        if server.keys.singles == key_cache.UNKNOWN_AT_ONCE:
            break
        await asyncio.sleep(0)
    shut.set()
    told = await asyncio.gather(*wrong)
    assert sorted(told) == [401] * FAILURES_BURST + [429] * (4 * FAILURES_BURST)
    assert server.keys.singles == FAILURES_BURST
    await server.services.authenticator.close()


async def test_a_good_key_is_not_counted_as_wrong(services: Services) -> None:
    """However many new ones an address shows, it has all of its guesses left."""
    server = Guessed(services)
    good = [(await server.key())[1] for _ in range(2 * FAILURES_BURST)]
    assert [await server.ask(secret) for secret in good] == [200] * len(good)
    assert await server.guess(FAILURES_BURST) == [401] * FAILURES_BURST
    assert await server.guess(1) == [429]
    await server.services.authenticator.close()


async def most_at_once(work: Iterable[Coroutine[Any, Any, object]]) -> int:
    """Of all that wait together: how many are done in one turn of the event loop, at most."""
    tasks = [asyncio.create_task(one) for one in work]
    most, before = 0, 0
    while before < len(tasks):
        await asyncio.sleep(0)
        done = sum(task.done() for task in tasks)
        most, before = max(most, done - before), done
    return most


async def test_wrong_keys_that_waited_together_are_refused_in_portions(guessed: Guessed) -> None:
    """Other requests have their turns between them: to refuse thousands in one turn would stop all others."""
    assert (
        await most_at_once(
            guessed.ask(new_key(mode=Mode.TEST)) for _ in range(10 * read_all_keys_once_a_second.NOTIFIED_AT_ONCE)
        )
        <= read_all_keys_once_a_second.NOTIFIED_AT_ONCE
    )


async def test_the_control_refuses_them_all_at_once(guessed: Guessed, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard off."""
    count = 10 * read_all_keys_once_a_second.NOTIFIED_AT_ONCE
    monkeypatch.setattr(read_all_keys_once_a_second, "NOTIFIED_AT_ONCE", 100_000)
    assert await most_at_once(guessed.ask(new_key(mode=Mode.TEST)) for _ in range(count)) > count // 2


async def test_callers_that_wait_for_all_keys_share_one_read(services: Services) -> None:
    """A caller that disconnects does not stop the others; a failed read fails each of them; the next is a new one."""
    keys = Counted(services.engine.store.keys)
    told = read_all_keys_once_a_second.KeySnapshot(keys, timer=Ticks(), deadline=Deadline(60))
    gone, *stay = (asyncio.create_task(told.read()) for _ in range(2 * read_all_keys_once_a_second.NOTIFIED_AT_ONCE))
    await asyncio.sleep(0)
    gone.cancel()
    assert len({id(await one) for one in stay}) == 1
    assert gone.cancelled()

    def broken() -> None:
        raise StoreUnavailable(because="it is gone")

    keys.takes = broken
    told._read_at = -math.inf
    heard = await asyncio.gather(*(told.read() for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in heard] == [StoreUnavailable] * 3
    keys.takes = lambda: None
    told._read_at = -math.inf
    assert (await told.read()).whole
    waiting = asyncio.create_task(told.read())
    await asyncio.sleep(0)
    await told.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
