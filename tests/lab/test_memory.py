from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from earmark import wiring
from earmark.engine.engine import Engine
from earmark.lab.booking.bench import memory
from earmark.lab.booking.bench.house import House
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from earmark.engine.asks import Answer, Hold

PROOF = bool(os.environ.get("EARMARK_PROOF"))
HOLDS = 1_000_000 if PROOF else 4_000
CLIENTS = 200


class Hoarder(Engine):
    """An engine that cannot let go."""

    async def hold(self, ask: Hold) -> Answer:
        """As any engine does, and something of it stays."""
        self.__dict__.setdefault("kept", []).append(b"%d" % id(ask) * 5_000)
        return await super().hold(ask)


async def _weigh(url: str, kind: type[Engine], *, holds: int) -> memory.Weighed:
    house = await House.open(url)
    await house.open_event("house", seats=CLIENTS)
    await house.tidy()
    await house.close()
    engine = kind(await wiring.open_store(url), ids=Uuid7Ids())
    try:
        return await memory.measure(engine, "house", first=holds // 10, holds=holds, clients=CLIENTS)
    finally:
        await engine.close()


@pytest.mark.proof
@pytest.mark.timeout(3600 if PROOF else 120)
async def test_a_server_does_not_grow_with_what_it_has_done(postgres_url: str) -> None:
    """A million holds and releases weigh at most 1.5 times what a hundred thousand do; else, a sample of them."""
    weighed = await _weigh(postgres_url, Engine, holds=HOLDS)
    assert weighed.holds == HOLDS
    assert set(weighed.megabytes) == {0, HOLDS // 10, HOLDS}
    assert weighed.growth <= memory.GROWTH_MAX


async def test_a_server_that_hoards_is_noticed(postgres_url: str) -> None:
    """The control: what is kept of each hold shows on the scales."""
    weighed = await _weigh(postgres_url, Hoarder, holds=4_000)
    assert weighed.growth > memory.GROWTH_MAX
