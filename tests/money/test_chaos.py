"""Random buyers, bank faults and clock jumps, seed after seed: money in less money out is what is sold, and fees."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from tests.money.chaos import Chaos

from earmark.clock import MovableClock
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from earmark.store.postgres import PostgresStore

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SEEDS = 1000 if PROOF else 40
SEEDS_ON_POSTGRES = 100 if PROOF else 3
MUST_BE_SEEN = {
    "booking confirmed",
    "booking cancelled",
    "booking expired",
    "payment captured",
    "payment failed",
    "payment voided",
    "payment refunded",
    "first unknown",
    "first failed",
    "callback",
    "seats_taken",
    "refunds",
    "cancelled within_window",
    "cancelled within_window with a fee",
    "cancelled window_over with a fee",
}


async def test_the_books_agree_to_the_cent_whatever_happened() -> None:
    """On the memory store, and with each kind of thing that can happen seen to happen."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        clock = MovableClock()
        chaos = Chaos(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids(), seed=seed)
        assert await chaos.run() == [], f"seed {seed}"
        seen += chaos.seen
    assert {name for name in MUST_BE_SEEN if not seen[name]} == set(), seen


async def test_the_books_agree_on_postgresql_too(postgres_store: PostgresStore, clock: MovableClock) -> None:
    """The same stories, in one database after the other's bookings."""
    for seed in range(SEEDS_ON_POSTGRES):
        chaos = Chaos(postgres_store, clock=clock, ids=Uuid7Ids(), seed=seed)
        assert await chaos.run() == [], f"seed {seed}"
