"""The relay: numbers committed journal entries, event by event, and publishes them to the followers in this process.

No booking waits for it, and none depends on it. Any number of relays may run: each skips the events that another one is
numbering. The number is committed before it is published, so a relay that dies between the two loses nothing: a
follower reads on from the last number it saw.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from earmark.engine.ports.number_and_read_journal import START
from earmark.observability import logs

if TYPE_CHECKING:
    from earmark.engine.ports.number_and_read_journal import Outbox
    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed

BATCH_SIZE_MAX = 500
"""Small enough that a request that waits behind it for SQLite's one writer waits for tens of milliseconds."""

FOLLOWED_SECONDS_MAX = 0.1
"""How long until the next round while entries arrive and this process has followers."""

log = logs.get()


class OutboxRelay:
    """A worker that numbers and publishes what is in the outbox."""

    name = "relay"

    def __init__(
        self,
        outbox: Outbox,
        feed: EntryFeed,
        *,
        batch_size_max: int = BATCH_SIZE_MAX,
        interval_seconds_max: float = 0.25,
        mail: bool = False,
    ) -> None:
        self._outbox = outbox
        self._feed = feed
        self._batch_size_max = batch_size_max
        self._interval_seconds_max = interval_seconds_max
        self._mail = mail
        self._after = START
        self._behind = False

    async def act(self) -> float:
        """Number one batch. While there is more, run again soon, but at most half of the time: bookings come first."""
        began = time.monotonic()
        numbering = await self._outbox.number(
            after=self._after, limit=self._batch_size_max, tell=self._feed.has_followers, mail=self._mail
        )
        self._feed.publish(numbering.entries)
        if numbering.count:
            log.debug("relay", outcome="ok", count=numbering.count)
        self._after = numbering.after
        self._behind = self._behind or numbering.more
        came_round = self._after == START
        # A batch that numbered nothing means that another relay has these events: no hurry.
        soon = self._behind and bool(numbering.count or came_round)
        self._behind = self._behind and not came_round
        # Jitter keeps relays apart.
        hurry = bool(numbering.count) and self._feed.has_followers
        interval = min(self._interval_seconds_max, FOLLOWED_SECONDS_MAX) if hurry else self._interval_seconds_max
        longest = interval * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        return min(time.monotonic() - began, longest) if soon else longest
