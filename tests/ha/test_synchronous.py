"""A synchronous standby: what was acknowledged survives the loss of the primary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.ha.failover import ACKNOWLEDGED_BEFORE, REMOTE_WRITE, SYNCHRONOUS, SYNCHRONOUS_PAUSED, measure, table

if TYPE_CHECKING:
    from tests.ha.failover import Mode
    from tests.ha.patroni_programs import Programs

PROOF = bool(os.environ.get("EARMARK_PROOF"))
KILLS = {SYNCHRONOUS: 20, SYNCHRONOUS_PAUSED: 5, REMOTE_WRITE: 5} if PROOF else {SYNCHRONOUS: 1}


@pytest.mark.timeout(300 + 90 * max(KILLS.values()))
@pytest.mark.parametrize("mode", KILLS, ids=lambda mode: mode.name)
def test_a_failover_to_a_synchronous_standby_loses_nothing(programs: Programs, mode: Mode) -> None:
    """Every acknowledged booking is on the promoted standby, in that state or in a later one."""
    outcomes = measure(programs, mode, kills=KILLS[mode])
    print(f"\n{table(outcomes)}")  # noqa: T201 -- what a proof counted
    assert all(outcome.acknowledged > ACKNOWLEDGED_BEFORE for outcome in outcomes)
    assert sum(outcome.lost for outcome in outcomes) == 0
    assert not [flaw for outcome in outcomes for flaw in outcome.flaws]
