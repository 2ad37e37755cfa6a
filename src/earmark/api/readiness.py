"""Whether the store lets this server take bookings, asked at most once in a second, however many probes come.

`/readyz` needs no key and has no limit, and the store answers it with several statements on the connections that reads
share. So probes share an answer for a second, and those that come together wait for one question.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    Ask = Callable[[], Coroutine[Any, Any, None]]

AGE_SECONDS_MAX = 1.0
"""How long an answer is shared, counted from when the store was asked."""
WAIT_SECONDS_MAX = 3.0
"""How old a question without an answer may be to be waited for. It may hang on a dead connection: the next probe asks
again, and hears at once when the database is back."""


class Readiness:
    """The last answer of the store, for all probes of this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._question: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._under_way: set[asyncio.Task[None]] = set()

    async def check(self, command: Ask) -> None:
        """Return or raise what `command` did, if that was a moment ago; else ask."""
        question = self._shared() or self._start(command)
        if not question.done():
            # Not awaited itself: a probe that goes away must not end the question of the others.
            await asyncio.wait([question])
        question.result()

    async def close(self) -> None:
        """Leave the questions that are under way."""
        for question in self._under_way:
            question.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _shared(self) -> asyncio.Task[None] | None:
        if self._question is None:
            return None
        age_max = AGE_SECONDS_MAX if self._question.done() else WAIT_SECONDS_MAX
        return self._question if self._clock() - self._asked_at < age_max else None

    def _start(self, command: Ask) -> asyncio.Task[None]:
        self._asked_at = self._clock()
        self._question = asyncio.create_task(command())
        self._under_way.add(self._question)
        self._question.add_done_callback(self._ended)
        return self._question

    def _ended(self, question: asyncio.Task[None]) -> None:
        self._under_way.discard(question)
        # If every probe has gone away, no probe reads its error; asyncio would log it as one that was never retrieved.
        if not question.cancelled():
            question.exception()
