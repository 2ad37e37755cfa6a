"""The feed: numbered entries, handed to whoever in this process follows events.

It is quick and forgets; the journal is slow to ask and does not. A follower keeps the last number it saw of an event. A
number that is not the next one, because another process's relay told the ones between, or this follower was too slow,
is the sign to read on from the store (`Outbox.read_numbered`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from earmark.engine.ports.outbox import Numbered

WAITING_MAX = 10_000


class EntryFeed:
    """One per process. Publishing never waits for anybody."""

    def __init__(self) -> None:
        self._followers: set[FeedFollower] = set()

    @property
    def has_followers(self) -> bool:
        """Whether anybody would hear."""
        return bool(self._followers)

    def publish(self, news: Sequence[Numbered]) -> None:
        """To everybody who follows at this moment."""
        for follower in self._followers:
            follower.tell(news)

    def subscribe(self, *, waiting_max: int = WAITING_MAX) -> FeedFollower:
        """`async with feed.subscribe() as follower: async for numbered in follower: …`."""
        return FeedFollower(self._followers, waiting_max=waiting_max)


class FeedFollower:
    """Entries as they are published, from entering the block to leaving it.

    Whoever takes them too slowly loses the oldest, never the newest: so the gap shows in the numbers.
    """

    def __init__(self, followers: set[FeedFollower], *, waiting_max: int) -> None:
        self._followers = followers
        self._waiting: deque[Numbered] = deque(maxlen=waiting_max)
        self._told = asyncio.Event()

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
            self._told.clear()
            await self._told.wait()
        return self._waiting.popleft()

    def taken(self) -> list[Numbered]:
        """All that waits at this moment."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def tell(self, news: Sequence[Numbered]) -> None:
        """The feed's side."""
        self._waiting.extend(news)
        self._told.set()
