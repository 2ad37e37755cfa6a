"""Callbacks on their way out: queued when something happens, sent on demand, and lost as the script wants it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.sandbox import signature, words
from earmark.sandbox.faults import Fault, Script
from earmark.sandbox.model import Event

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

Deliver = Callable[[Mapping[str, str], bytes], Awaitable[None]]
"""Hands a callback to the shop; whatever it raises means that it was not taken."""


class House(Protocol):
    """Whose letters they are. Its address may be learnt after the courier was hired."""

    clock: Clock
    secret: str
    base_url: str


class Post(StrEnum):
    """Where a callback is."""

    QUEUED = "queued"
    SENT = "sent"
    LOST = "lost"


class Letter(msgspec.Struct, kw_only=True):
    """One sending of an event; a duplicate is another letter about the same event."""

    event: Event
    state: Post
    due_at: datetime
    held_back: bool = False
    """Waits until one that was queued later has gone."""
    fault: Fault | None = None
    tries: int = 0
    problem: str | None = None
    """Why the last try was not taken."""


class Courier:
    """Sends letters in the order of their queueing, and again when they were not taken, a bounded number of times."""

    def __init__(
        self,
        house: House,
        script: Script,
        *,
        deliver: Deliver | None = None,
        tries_max: int = 5,
        retry_seconds: float = 1.0,
        log_max: int | None = None,
    ) -> None:
        self.letters: deque[Letter] = deque(maxlen=log_max)
        self.deliver = deliver
        self.by_hand = False
        """Nothing is sent but what a test asks for."""
        self.tries_max = tries_max
        self.retry_seconds = retry_seconds
        self._house = house
        self._script = script
        self._sending = asyncio.Lock()

    def queue(self, event: Event) -> None:
        """Something happened: a letter about it, or two, or one that never leaves."""
        now = self._house.clock.now()
        rule = self._script.for_callback(event.kind)
        fault = rule.fault if rule else None
        delay = (rule.seconds or 0) if rule and fault is Fault.DELAY else 0
        for _ in range(2 if fault is Fault.DUPLICATE else 1):
            letter = Letter(
                event=event,
                state=Post.LOST if fault is Fault.LOSE else Post.QUEUED,
                due_at=now + timedelta(seconds=delay),
                held_back=fault is Fault.REORDER,
                fault=fault,
            )
            self.letters.append(letter)

    def having(self, state: Post) -> list[Letter]:
        """The letters in this state, in the order of their queueing."""
        return [letter for letter in self.letters if letter.state is state]

    def lose(self, event_id: str) -> int:
        """What is queued about this event is never sent; how many letters that were."""
        lost = [letter for letter in self.having(Post.QUEUED) if letter.event.id == event_id]
        for letter in lost:
            letter.state = Post.LOST
        return len(lost)

    def redeliver(self, event_id: str) -> None:
        """Queue an event once more, whatever became of it."""
        known = next((letter.event for letter in self.letters if letter.event.id == event_id), None)
        if known is None:
            raise KeyError(event_id)
        self.letters.append(Letter(event=known, state=Post.QUEUED, due_at=self._house.clock.now()))

    def sealed(self, event: Event) -> tuple[dict[str, str], bytes]:
        """An event as it is sent now: its headers, with the signature, and its body."""
        body = msgspec.json.encode(words.event(event, base_url=self._house.base_url))
        value = signature.sign(body, secret=self._house.secret, now=self._house.clock.now())
        return {"Content-Type": "application/json; charset=utf-8", signature.HEADER: value}, body

    async def send_due(self, *, flush: bool = False) -> int:
        """Send what is due; with `flush` also what is held back until something else has gone. How many were taken."""
        taken = 0
        # One at a time, or a letter that is on its way would be sent once more.
        async with self._sending:
            while letter := self._next(flush=flush):
                taken += await self._send(letter)
        return taken

    def _next(self, *, flush: bool) -> Letter | None:
        now = self._house.clock.now()
        due = [letter for letter in self.having(Post.QUEUED) if letter.due_at <= now]
        free = [letter for letter in due if not letter.held_back]
        return next(iter(free or (due if flush else [])), None)

    async def _send(self, letter: Letter) -> bool:
        assert self.deliver is not None, "somebody must take the letters"
        headers, body = self.sealed(letter.event)
        letter.tries += 1
        try:
            await self.deliver(headers, body)
        except Exception as problem:  # noqa: BLE001 (whatever a shop does wrong, its letter was not taken)
            letter.problem = str(problem) or type(problem).__name__
            if letter.tries >= self.tries_max:
                letter.state = Post.LOST
            letter.due_at = self._house.clock.now() + timedelta(seconds=self.retry_seconds)
            return False
        letter.state, letter.problem = Post.SENT, None
        self._let_go_before(letter)
        return True

    def _let_go_before(self, sent: Letter) -> None:
        """One that was queued later has gone: what was held back before it may follow."""
        for letter in self.letters:
            if letter is sent:
                return
            letter.held_back = False
