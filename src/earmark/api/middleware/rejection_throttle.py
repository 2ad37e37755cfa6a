"""The turnstile: whoever must be turned away is told so at once, but only so many of them in a second.

To say no costs little, and a crowd that comes again the moment it hears no costs everything: the program would do
nothing else, and those who were let in would wait for it. So a no is given at once while there are few, and in turn
when there are many. Nobody who comes again politely, a second later, ever notices.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_SECOND = 2000
BURST = 200
TURN_SECONDS = 0.01


class RejectionThrottle:
    """Lets a bounded number pass, first come, first served, in one event loop."""

    def __init__(self, *, per_second: float = PER_SECOND, burst: int = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._counted_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait for one's turn, if there is anything to wait for."""
        self._count()
        if self._left >= 1 and not self._waiting:
            self._left -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wind()
        await turn

    def _count(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._counted_at) * self._per_second, float(self._burst))
        self._counted_at = now

    def _wind(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self._let)

    def _let(self) -> None:
        self._timer = None
        self._count()
        while self._waiting and self._left >= 1:
            turn = self._waiting.popleft()
            # Whoever went away meanwhile takes nobody's turn.
            if not turn.done():
                self._left -= 1
                turn.set_result(None)
        if self._waiting:
            self._wind()
