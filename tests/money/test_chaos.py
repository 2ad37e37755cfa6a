"""Random buyers, bank faults and clock jumps, seed after seed, in two currencies.

Money in less money out is what is sold, and fees: in each currency, to the cent, in our books and in the bank's.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.money.chaos import Chaos
from tests.money.shop_and_bank import PRICE, PRICES, World
from tests.money.virtual_time_loop import ManualClock, run

from earmark.sandbox.faults import Fault
from earmark.sandbox.model import LedgerLine, LedgerMove
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.store.postgres import PostgresStore

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SEEDS = 1000 if PROOF else 12
SEEDS_ON_POSTGRES = 100 if PROOF else 2
MUST_BE_SEEN = {
    "booking confirmed",
    "booking cancelled",
    "booking expired",
    "sold in EUR",
    "sold in JPY",
    "payment captured",
    "payment failed",
    "payment voided",
    "payment partially_refunded",
    "payment refunded",
    "payment needs_attention",
    "first unknown",
    "first failed",
    "callback",
    "seats_taken",
    "pool_exhausted",
    "refund_refused",
    "refunds",
    "refund done",
    "refund refused",
    "re-claims",
    "late refunds",
    "given back by hand",
    "cancelled a seat",
    "cancelled a unit",
    "cancelled within_window",
    "cancelled within_window with a fee",
    "cancelled window_over with a fee",
    *(f"fault {fault}" for fault in Fault),
}
pytestmark = pytest.mark.timeout(900 if PROOF else 120)


def print_summary(seen: Counter[str], *, where: str) -> None:
    """One line, shown with -s."""
    fired = sum(seen[f"fault {fault}"] for fault in Fault)
    kinds = sum(seen[f"fault {fault}"] > 0 for fault in Fault)
    counts = ("seeds", "acts", "booking confirmed", "refund done", "refund refused", "re-claims", "late refunds")
    told = ", ".join(f"{seen[name]} {name.removeprefix('booking ')}" for name in counts)
    print(f"\nchaos on {where}: {told}, {fired} faults fired of {kinds} kinds, 0 violations")  # noqa: T201 (shown with -s)


def test_the_books_agree_to_the_cent_whatever_happened() -> None:
    """On the memory store, and with each kind of thing that can happen seen to happen."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        clock = ManualClock()
        chaos = Chaos(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids(), seed=seed)
        assert run(chaos.run()) == [], f"seed {seed}"
        seen += chaos.seen
    assert {name for name in MUST_BE_SEEN if not seen[name]} == set(), seen
    print_summary(seen, where="memory")


async def test_the_books_agree_on_postgresql_too(postgres_store: PostgresStore, clock: MovableClock) -> None:
    """The same seeds, one after the other in one database; with enough of them, every kind of thing happens."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS_ON_POSTGRES):
        chaos = Chaos(postgres_store, clock=clock, ids=Uuid7Ids(), seed=seed)
        assert await chaos.run() == [], f"seed {seed}"
        seen += chaos.seen
    assert {name for name in MUST_BE_SEEN if not seen[name]} == set() or not PROOF, seen
    assert seen["booking confirmed"] > 0
    assert sum(seen[f"fault {fault}"] for fault in Fault) > 0
    print_summary(seen, where="PostgreSQL")


async def test_what_is_right_in_the_sum_and_wrong_in_each_currency_is_found() -> None:
    """The control: one unit more in one currency and one less in the other."""
    clock = ManualClock()
    world = World(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())
    await world.open(*PRICES)
    for currency in PRICES:
        await world.pay(world.ask_to_pay(await world.hold("A1", currency=currency)))
    await world.settle()
    assert await world.disagreements() == []
    for currency, move in (("EUR", LedgerMove.REFUNDED), ("JPY", LedgerMove.CAPTURED)):
        line = LedgerLine(move=move, amount=1, currency=currency, at=clock.now(), intent_id="pi_none", payment_id=None)
        world.bank._records.ledger.append(line)
    assert world.bank.total(LedgerMove.CAPTURED) - world.bank.total(LedgerMove.REFUNDED) == sum(PRICES.values())
    wrong = await world.disagreements()
    assert wrong == [
        f"EUR: the bank has {PRICE - 1}, we have {PRICE}, and {PRICE} is right",
        f"JPY: the bank has {PRICES['JPY'] + 1}, we have {PRICES['JPY']}, and {PRICES['JPY']} is right",
    ]
