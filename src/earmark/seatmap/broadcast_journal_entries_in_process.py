"""The feed: hands numbered journal entries to the followers in this process.

It is fast and keeps nothing; the journal is slower and keeps everything. A follower remembers the last number it saw of
an event. When the next number is missing, because another process's relay published it or this follower was too slow,
the follower reads on from the store (`Outbox.read_numbered`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from earmark.engine.ports.number_and_read_journal import Numbered

WAITING_MAX = 10_000


class EntryFeed:
    """One per process. Publishing never waits for a follower."""

    def __init__(self) -> None:
        self._followers: set[FeedFollower] = set()

    @property
    def has_followers(self) -> bool:
        """Whether this process has any follower."""
        return bool(self._followers)

    def publish(self, entries: Sequence[Numbered]) -> None:
        """Hand the entries to every current follower."""
        for follower in self._followers:
            follower.receive(entries)

    def subscribe(self, *, waiting_max: int = WAITING_MAX) -> FeedFollower:
        """`async with feed.subscribe() as follower: async for numbered in follower: …`."""
        return FeedFollower(self._followers, waiting_max=waiting_max)


class FeedFollower:
    """Entries as they are published, from entering the block to leaving it.

    A follower that takes them too slowly loses the oldest, never the newest: so the gap shows in the numbers.
    """

    def __init__(self, followers: set[FeedFollower], *, waiting_max: int) -> None:
        self._followers = followers
        self._waiting: deque[Numbered] = deque(maxlen=waiting_max)
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._followers.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._followers.discard(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Numbered:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def take_all(self) -> list[Numbered]:
        """Take every entry that waits, without waiting for another."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def receive(self, entries: Sequence[Numbered]) -> None:
        """Queue entries for this follower; called by the feed."""
        self._waiting.extend(entries)
        self._arrived.set()
