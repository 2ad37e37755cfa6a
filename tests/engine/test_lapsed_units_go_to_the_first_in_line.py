"""Ending many lapsed holds takes several commits: what each frees is for the requests that came first."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.engine.virtual_clock import run_virtually

from earmark.clock import MovableClock
from earmark.engine.engine import Engine
from earmark.engine.requests_waiting_for_room import RequestsWaitingForRoom
from earmark.errors import PoolExhausted
from earmark.library import Earmark
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    import pytest

LAPSED, FIRST, LATER = 80, 80, 30
TTL_SECONDS = 60
BATCH_SECONDS, STEP_SECONDS = 0.005, 0.02


class SlowStore(MemoryStore):
    """Each transaction takes time, those that end lapsed holds most."""

    is_slow = False

    async def transact(self, work: Any, **options: Any) -> Any:
        """The time passes before it begins."""
        if self.is_slow:
            await asyncio.sleep(BATCH_SECONDS if options.get("optimistic") else STEP_SECONDS)
        return await super().transact(work, **options)


async def ask_for_lapsed_units() -> tuple[Counter[object], Counter[object]]:
    """As many requests as units are in lapsed holds, and some that come after the first fifty holds were ended."""
    clock = MovableClock()
    store = SlowStore(clock=clock)
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    await shop.create_event(
        "play", name="Play", currency="EUR", pools={"GA": (LAPSED, 1)}, hold_ttl_seconds=TTL_SECONDS
    )
    await asyncio.gather(*(shop.hold("play", buyer=f"b{n}", pools={"GA": 1}) for n in range(LAPSED)))
    clock.advance(TTL_SECONDS + 1)
    store.is_slow = True
    ended = asyncio.Event()
    shop.engine.listen(lambda changes: ended.set() if changes.expired else None)

    async def ask(buyer: str) -> object:
        try:
            return (await shop.hold("play", buyer=buyer, pools={"GA": 1})).state
        except PoolExhausted as refused:
            return "for now" if refused.transient else "for good"

    first = [asyncio.create_task(ask(f"first{n}")) for n in range(FIRST)]
    await ended.wait()
    await asyncio.sleep(BATCH_SECONDS / 2)
    later = [asyncio.create_task(ask(f"later{n}")) for n in range(LATER)]
    told = Counter(await asyncio.gather(*first)), Counter(await asyncio.gather(*later))
    await shop.engine.close()
    return told


def test_the_units_of_a_step_go_to_the_requests_that_came_first() -> None:
    """They are queued again as soon as those units are free; the later ones find none, and are told so for good."""
    assert run_virtually(ask_for_lapsed_units()) == ({"held": FIRST}, {"for good": LATER})


def test_control_queued_again_after_the_last_step_they_lose_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the later requests took what the first step had freed, and as many were refused for good."""
    monkeypatch.setattr(RequestsWaitingForRoom, "_serve_first", lambda *_: lambda _: None)
    first, later = run_virtually(ask_for_lapsed_units())
    assert later == {"held": LATER}
    assert first == {"held": FIRST - LATER, "for good": LATER}
