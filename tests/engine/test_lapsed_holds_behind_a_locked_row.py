"""Lapsed holds of one event need a row that stays locked: room is made for the buyers of the others all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.engine.conftest import NOW
from tests.engine.store_with_locks import unused
from tests.engine.virtual_clock import run_virtually

from earmark.domain.id_types import Buyer, EntryId, EventId, TotalRef
from earmark.domain.live_or_test_mode import Mode
from earmark.engine import requests_waiting_for_room
from earmark.engine.commands_and_results import Actor, Command, Decided, TryAgain
from earmark.engine.group_commit import BatchQueue
from earmark.engine.requests_waiting_for_room import TOGETHER_SECONDS, RequestsWaitingForRoom
from earmark.engine.verbs.expire import Room
from earmark.engine.wait_for_one_locked_row import LockedRowWaits
from earmark.errors import LimitExceeded, RowBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from earmark.engine.commands_and_results import Outcome

SHUT, OPEN = EventId("shut"), EventId("open")
HALF_A_MINUTE = 30.0
TRIES = 2
"""How often a locked row is waited for before it is given up."""


class LapsedBuyers:
    """Each buyer's hold has lapsed, and is to be ended before the next; in one event a locked row is in the way."""

    def __init__(self) -> None:
        self.queue: BatchQueue[Command] = BatchQueue(
            self._run, make_room_in=self._make_room, have_due=self._have_due, row_waits=LockedRowWaits(unused)
        )
        self.told: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        """How long each buyer of the open event waited."""
        self._totals: dict[int, TotalRef] = {}
        self._ended: set[TotalRef] = set()
        self._asked: list[asyncio.Task[None]] = []

    async def _run(self, begin: Callable[[], Sequence[Command]], *, lock_seconds: float) -> list[Outcome]:
        assert lock_seconds > 0
        totals = [self._totals[command.entry_id.int] for command in begin()]
        await asyncio.sleep(0.005)
        over = LimitExceeded(limit=1, have=1, asked=1)
        return [
            Decided(value=1, now=NOW)
            if total in self._ended
            else TryAgain(refusal=over, rounds_max=20, full=total, short=1)
            for total in totals
        ]

    async def _make_room(self, total: TotalRef, *, lock_seconds: float, **_: Any) -> Room:
        if total.event_id == SHUT:
            await asyncio.sleep(TRIES * lock_seconds)
            raise RowBusy(because="lock timeout")
        await asyncio.sleep(0.003)
        self._ended.add(total)
        return Room(ended=1, units=1, passed_over=False)

    async def _have_due(self, refs: Sequence[object], **_: Any) -> list[bool]:
        await asyncio.sleep(0.002)
        return [True for _ in refs]

    async def ask_every(self, seconds: float, event: EventId) -> None:
        """Another buyer each time."""
        loop = asyncio.get_running_loop()
        while loop.time() < HALF_A_MINUTE:
            number = len(self._totals)
            self._totals[number] = TotalRef(event, Buyer(f"b{number}"))
            self._asked.append(asyncio.create_task(self._ask(number, event)))
            await asyncio.sleep(seconds)

    async def _ask(self, number: int, event: EventId) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        command = Command(actor=Actor(name="shop", mode=Mode.LIVE), entry_id=EntryId(UUID(int=number)))
        try:
            await self.queue.submit(command, within=15)
        except LimitExceeded as refused:
            self.told[event, "for now" if refused.transient else "for good"] += 1
        else:
            self.told[event, "granted"] += 1
            self.seconds.append(loop.time() - began)

    async def all_told(self) -> None:
        """Every request has its result."""
        await asyncio.gather(*self._asked)
        await self.queue.close()


async def both_events() -> LapsedBuyers:
    """Twenty buyers a second of the one event, ten of the other."""
    buyers = LapsedBuyers()
    await asyncio.gather(buyers.ask_every(0.05, SHUT), buyers.ask_every(0.1, OPEN))
    await buyers.all_told()
    return buyers


def test_buyers_of_another_event_do_not_wait_for_the_locked_row() -> None:
    """One task at most tries the event that is shut; and those for whom room was made wait for no others for long."""
    buyers = run_virtually(both_events())
    assert {event: told for event, told in buyers.told if event == OPEN} == {OPEN: "granted"}
    assert sorted(buyers.seconds)[len(buyers.seconds) // 2] < 2 * TOGETHER_SECONDS
    assert {told for event, told in buyers.told if event == SHUT} == {"for now"}


def test_control_where_all_tasks_try_it_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the three tasks were busy with the one event, and each buyer of the other waited behind its buyers."""
    monkeypatch.setattr(RequestsWaitingForRoom, "_events_shut", lambda _: ())
    buyers = run_virtually(both_events())
    assert sorted(buyers.seconds)[len(buyers.seconds) // 2] > 1


def test_control_without_a_timer_they_wait_for_the_buyers_of_the_shut_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: those for whom room was made were queued again when a task had ended with another buyer."""
    monkeypatch.setattr(requests_waiting_for_room, "TOGETHER_SECONDS", HALF_A_MINUTE)
    buyers = run_virtually(both_events())
    assert buyers.told[OPEN, "for now"] > 0
