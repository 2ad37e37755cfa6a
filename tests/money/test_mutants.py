"""The control of the seeds: mistakes that are built in are noticed, and by what they do to the money."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.money.chaos import Chaos
from tests.money.mutants import MUTANTS
from tests.money.virtual_time_loop import ManualClock, run

from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from tests.money.mutants import Mutant

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SEEDS_MAX = 100
FIRST_SEEDS: dict[str, int] = {} if PROOF else {"a_timeout_is_a_no": 40}
"""The mistake that the first forty seeds do not show: only a proof goes through them again."""


def wrong_with(seed: int) -> list[str]:
    """What does not agree after one seed's worth of chaos."""
    clock = ManualClock()
    return run(Chaos(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids(), seed=seed).run())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_with_money_is_noticed_within_a_few_seeds(mutant: Mutant) -> None:
    """And without it the very seed that noticed it is right."""
    first = FIRST_SEEDS.get(mutant.__name__, 0)
    for seed in range(first, first + SEEDS_MAX):
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            wrong = wrong_with(seed)
        if wrong:
            print(f"\n{mutant.__name__}: noticed by seed {seed}: {wrong[0]}")  # noqa: T201 (shown with -s)
            break
    assert wrong, f"not noticed by {SEEDS_MAX} seeds"
    assert wrong_with(seed) == []
