"""The journal as clients read it: entries get a number per event, and a client that follows an event reads by number.

Booking transactions give no numbers: a counter in them would make an event's buyers wait for each other, and numbers
taken early commit out of order. A relay gives them afterwards, so an event's numbers run 1, 2, 3 without a gap, and
a client that has seen number n has seen all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.domain.id_types import EventId
from earmark.domain.journal_entry import Entry

if TYPE_CHECKING:
    from collections.abc import Collection

UNSENT_COUNTED_MAX = 1000
START = EventId("")
"""Before the first event."""


class Numbered(msgspec.Struct, frozen=True, kw_only=True):
    """A journal entry with its number within its event."""

    sequence: int
    entry: Entry


class Numbering(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of a relay did."""

    count: int = 0
    """How many entries have a number now."""
    entries: Sequence[Numbered] = ()
    """Which ones, if the caller wanted them: event by event, each in order."""
    after: EventId = START
    """Where the next round goes on; the start when this one has come to the last event."""
    more: bool = False
    """Whether the round was full, so that something was left behind."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the relay is behind."""

    unsent: int
    """Entries without a number, counted up to a limit."""
    oldest_at: datetime | None
    """When the oldest of the counted ones was written."""


class Outbox(Protocol):
    """What the relay, and clients that follow events, need from a store."""

    async def number(self, *, after: EventId, limit: int, tell: bool = True, mail: bool = False) -> Numbering:
        """Number about `limit` unsent entries of the events after this one, in one transaction.

        The versions of one booking keep their order. An event that another relay is at is passed over. Without `tell`
        they are only counted, which is less work. With `mail`, the mails about them are queued too.
        """
        ...

    async def read_numbered(self, event_id: EventId, *, after: int, limit: int) -> list[Numbered]:
        """The entries of an event after this number, in order."""
        ...

    async def lag(self, *, limit: int) -> Lag:
        """What has no number yet, counted over at most `limit` entries."""
        ...

    async def count(self, ids: Collection[EventId]) -> dict[EventId, int | None]:
        """How many entries these events have, numbered or not, in one read.

        Numbers have no gap, so that is the newest number plus what has none yet: it grows with each commit and stays
        when a relay comes by. None where more than `UNSENT_COUNTED_MAX` have no number: that takes too long to count.
        """
        ...


def total(*, numbered: int, unsent: int) -> int | None:
    """The value that `count` returns for an event."""
    return numbered + unsent if unsent <= UNSENT_COUNTED_MAX else None
