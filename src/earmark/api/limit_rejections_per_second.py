"""Rejections are answered immediately up to 2,000 per second; above that they queue.

One rejection costs little, but clients that retry the moment they are rejected would occupy the whole process, and
admitted requests would wait for it. A client that retries after a second, as `Retry-After` says, does not notice.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_SECOND = 2000
BURST = 200
TURN_SECONDS = 0.01


class RejectionThrottle:
    """A token bucket for rejections, in order of arrival, in one event loop."""

    def __init__(self, *, per_second: float = PER_SECOND, burst: int = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._counted_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Return when the caller may send its rejection: at once while the bucket has tokens."""
        self._refill()
        if self._left >= 1 and not self._waiting:
            self._left -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._start_timer()
        await turn

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._counted_at) * self._per_second, float(self._burst))
        self._counted_at = now

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self._release)

    def _release(self) -> None:
        self._timer = None
        self._refill()
        while self._waiting and self._left >= 1:
            turn = self._waiting.popleft()
            # A request that was cancelled while it waited takes no token.
            if not turn.done():
                self._left -= 1
                turn.set_result(None)
        if self._waiting:
            self._start_timer()
