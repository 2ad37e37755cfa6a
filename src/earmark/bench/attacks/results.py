"""The results of the attacks: answers, bounds, and the effect on `/healthz` and on honest buyers."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.report.machine import describe_machine
from earmark.bench.report.quantiles_and_ratios import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

STALL_MS_MAX = 50.0
"""How much longer the longest stall of `/healthz` may be with an attack than with harmless load."""
GRANTED = "201"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A statement about the server that must be true, with its figures."""

    said: str
    holds: bool | None
    """None where the attacked version has no such bound: reported, and not judged."""


class AttackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which attacks, and how long and how often each is measured."""

    attacks: tuple[str, ...]
    rounds: int = 2
    seconds: float = 1.5
    """Of a phase; each round has one without and one with the attack."""
    honest_per_second: float = 40.0
    judged_by_time: bool = True
    """Whether a stall is a flaw."""
    earmark: tuple[str, ...] = ()
    """The command that migrates and serves; else this program."""


class AttackPhase(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe and the honest buyers measured in one phase."""

    longest_ms: float
    p50_ms: float
    p99_ms: float
    probes: int
    broken: int
    """Connections of the probe that ended."""
    honest: dict[str, int]
    """Answers to honest holds, and how often."""
    honest_p99_ms: float


def phase(samples: Sequence[tuple[float, float]], *, broken: int, honest: Sequence[tuple[str, float]]) -> AttackPhase:
    """The figures of one phase."""
    took = sorted(seconds * 1000 for _, seconds in samples) or [0.0]
    held = sorted(seconds * 1000 for _, seconds in honest) or [0.0]
    counts: dict[str, int] = {}
    for said, _ in honest:
        counts[said] = counts.get(said, 0) + 1
    return AttackPhase(
        longest_ms=round(took[-1], 1),
        p50_ms=round(quantile(took, 0.5), 2),
        p99_ms=round(quantile(took, 0.99), 1),
        probes=len(samples),
        broken=broken,
        honest=counts,
        honest_p99_ms=round(quantile(held, 0.99), 1),
    )


class StallFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Phases in pairs: harmless load, then the attack."""

    quiet: list[AttackPhase]
    attacked: list[AttackPhase]

    @property
    def quiet_ms(self) -> float:
        """The longest stall without the attack."""
        return max(one.longest_ms for one in self.quiet)

    @property
    def attacked_ms(self) -> float:
        """The longest stall with it."""
        return max(one.longest_ms for one in self.attacked)

    @property
    def difference_ms(self) -> float:
        """How much longer the longest stall was with the attack."""
        return round(self.attacked_ms - self.quiet_ms, 1)

    @property
    def middle_ms(self) -> float:
        """The median over the rounds of the same difference: one stray stall does not move it."""
        pairs = zip(self.attacked, self.quiet, strict=True)
        return round(median(one.longest_ms - other.longest_ms for one, other in pairs), 1)


class AttackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one attack."""

    attack: str
    said: str
    sent: int
    answers: dict[str, int]
    bounds: list[Bound]
    measured: StallFigures
    load: float
    """The load average of the last minute: a busy machine causes stalls of its own."""

    @property
    def stalls(self) -> bool:
        """Whether the longest stall was over the limit, in any round."""
        return self.measured.difference_ms > STALL_MS_MAX

    def flaws(self, *, timed: bool) -> list[str]:
        """Bounds that do not hold."""
        found = [bound.said for bound in self.bounds if bound.holds is False]
        if timed and self.stalls:
            last = self.measured
            found.append(
                f"/healthz stalled for {last.attacked_ms:g} ms, {last.difference_ms:g} more than without the attack"
            )
        return [f"{self.attack}: {flaw}" for flaw in found]


class AttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of all attacks."""

    plan: AttackPlan
    reports: list[AttackReport]
    seconds: float
    versions: dict[str, str]

    @property
    def flaws(self) -> list[str]:
        """The flaws of all attacks."""
        return [flaw for one in self.reports for flaw in one.flaws(timed=self.plan.judged_by_time)]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        reports = [
            msgspec.to_builtins(one)
            | {
                "quiet_longest_ms": one.measured.quiet_ms,
                "longest_ms": one.measured.attacked_ms,
                "difference_ms": one.measured.difference_ms,
                "median_difference_ms": one.measured.middle_ms,
            }
            for one in self.reports
        ]
        return {"machine": describe_machine(), **msgspec.to_builtins(self), "reports": reports, "flaws": self.flaws}
