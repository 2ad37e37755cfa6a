"""Checks the invariants that `earmark verify` checks, and recounts what has drifted from the bookings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, fixed, ok, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.engine.ports.store import Flaw, Store

FLAWS_MAX = 20
RECOUNTS_MAX = 1000
COUNTS = frozenset(
    {
        "a pool's counts are the sum of its active bookings",
        "a buyer's total is the sum of the buyer's active bookings",
    }
)
"""The rules of `earmark verify` whose violations a recount corrects."""


async def counts(store: Store, *, fix: bool) -> AsyncIterator[Finding]:
    """What `earmark verify` finds: counts that drifted, which a recount corrects, and broken promises."""
    flaws = await store.find_flaws(limit=FLAWS_MAX)
    drifted = [flaw for flaw in flaws if flaw.rule in COUNTS]
    if drifted and fix:
        set_ = await store.upkeep.recount(limit=RECOUNTS_MAX)
        if set_:
            yield fixed("counts", f"{set_} counts were corrected to the sum of the bookings.")
        flaws = await store.find_flaws(limit=FLAWS_MAX)
        drifted = [flaw for flaw in flaws if flaw.rule in COUNTS]
    if drifted:
        said = f"{len(drifted)} counts are not the sum of the bookings: {drifted[0].row}"
        yield problem("counts", said, "`--fix` corrects them, each under its lock.", fixable=True)
    yield _promises([flaw for flaw in flaws if flaw.rule not in COUNTS])


def _promises(broken: list[Flaw]) -> Finding:
    if not broken:
        return ok("promises", "Every promise that `earmark verify` checks is kept.")
    said = f"{len(broken)} rows break a promise: {broken[0].rule}: {broken[0].row}"
    return problem("promises", said, "Keep a copy of the database, and see `earmark verify`.")
