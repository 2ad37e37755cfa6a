"""The control of `test_synchronous.py`: without a synchronous commit a failover loses what was acknowledged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.ha.failover import ASYNCHRONOUS, ASYNCHRONOUS_PAUSED, LOCAL_PAUSED, LOST_MIN, measure, table

if TYPE_CHECKING:
    from tests.ha.failover import Mode
    from tests.ha.patroni_programs import Programs

PROOF = bool(os.environ.get("EARMARK_PROOF"))
KILLS = {ASYNCHRONOUS_PAUSED: 20, LOCAL_PAUSED: 5, ASYNCHRONOUS: 5} if PROOF else {ASYNCHRONOUS_PAUSED: 1}


@pytest.mark.timeout(300 + 90 * max(KILLS.values()))
@pytest.mark.parametrize("mode", KILLS, ids=lambda mode: mode.name)
def test_a_failover_loses_what_its_standby_never_received(programs: Programs, mode: Mode) -> None:
    """Acknowledged bookings are lost, and what is left is without a contradiction: `verify` finds nothing.

    A standby that is not paused may have received everything by chance, so there the count is not checked.
    """
    outcomes = measure(programs, mode, kills=KILLS[mode])
    print(f"\n{table(outcomes)}")  # noqa: T201 -- what a proof counted
    if mode.paused:
        assert all(outcome.lost >= LOST_MIN for outcome in outcomes)
    assert all(outcome.acknowledged > outcome.lost for outcome in outcomes)
    assert not [flaw for outcome in outcomes for flaw in outcome.flaws]
