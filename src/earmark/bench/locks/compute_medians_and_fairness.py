"""The results of the lock bench: medians, ratios and fairness, computed from measurements without any I/O."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.locks.lock_libraries import OURS, YARDSTICK
from earmark.bench.locks.measure_rates_and_waits import HandoverWaits
from earmark.bench.report.quantiles_and_ratios import median_ratio, quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SINGLE = "single_key_50"
THREE = "three_keys_50"
LONE = "lone"
HANDOVER = "handover"
SYNC = "sync"
WORKLOADS: Mapping[str, str] = {
    SINGLE: "50 tasks, a key each",
    THREE: "50 tasks, three keys each",
    LONE: "one task alone",
    HANDOVER: "50 tasks, one key for all",
    SYNC: "one thread alone",
}
"""What is measured, in the order it is shown."""
RATES = (SINGLE, THREE, HANDOVER)
LATENCIES = (LONE, SYNC)


class LockFigures(msgspec.Struct):
    """All measurements, by workload and contender, round by round."""

    rates: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """Acquire and release, per second."""
    latencies: dict[str, dict[str, list[list[float]]]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """The seconds that acquire and release took, each time."""
    lines: dict[str, list[HandoverWaits]] = msgspec.field(default_factory=dict)
    """The waits of the hand-over workload."""

    def add_rate(self, workload: str, contender: str, rate: float) -> None:
        """Add a round of many tasks at once."""
        self.rates[workload].setdefault(contender, []).append(rate)

    def add_latencies(self, workload: str, contender: str, seconds: list[float]) -> None:
        """Add a round of one task or thread alone."""
        self.latencies[workload].setdefault(contender, []).append(seconds)

    def add_line(self, contender: str, line: HandoverWaits) -> None:
        """Add a round of many tasks that want one lock.

        A waiter that takes the lock again before the others can hands nothing over: only a turn of another waiter
        counts. Where there was none at all, one is counted, because a ratio needs a number above zero.
        """
        self.lines.setdefault(contender, []).append(line)
        self.add_rate(HANDOVER, contender, max(line.changes, 1) / line.seconds)

    def rounds(self, workload: str) -> dict[str, list[float]]:
        """One number per contender and round: passes per second, or the median latency in microseconds."""
        if workload in RATES:
            return dict(self.rates[workload])
        return {
            contender: [median(seconds) * 1e6 for seconds in rounds]
            for contender, rounds in self.latencies[workload].items()
        }

    def medians(self, workload: str) -> dict[str, float]:
        """The medians of the rounds so far, by contender."""
        return {contender: median(rounds) for contender, rounds in self.rounds(workload).items()}

    @property
    def overlaps(self) -> dict[str, int]:
        """Per contender, how often a lock had two holders."""
        return {contender: sum(line.overlaps for line in lines) for contender, lines in self.lines.items()}


def contenders(names: Iterable[str]) -> list[str]:
    """In the order in which they are shown: ours, redis-py's, then the others."""
    order = {OURS: 0, YARDSTICK: 1}
    return sorted(set(names), key=lambda name: (order.get(name, 2), name))


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all have the same, 1/n when one has it all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def rival(figures: LockFigures, workload: str) -> str:
    """The lock that ours is compared with: redis-py's for many tasks, the fastest other one for a single task."""
    if workload in RATES:
        return YARDSTICK
    peers = {contender: value for contender, value in figures.medians(workload).items() if contender != OURS}
    return min(peers, key=peers.__getitem__)


def ratio(figures: LockFigures, workload: str) -> float | None:
    """How many times as fast as its rival ours is. None until both were measured."""
    rounds = figures.rounds(workload)
    if OURS not in rounds or len(rounds) == 1 or (other := rival(figures, workload)) not in rounds:
        return None
    if workload in RATES:
        return median_ratio(rounds[OURS], rounds[other])
    return median_ratio(rounds[other], rounds[OURS])


def ratios(figures: LockFigures) -> dict[str, float | None]:
    """How many times as fast ours is; also fairness and the longest wait."""
    found = {workload: ratio(figures, workload) for workload in WORKLOADS}
    ours, theirs = figures.lines.get(OURS), figures.lines.get(YARDSTICK)
    found["jain"] = fairness(ours) if ours else None
    found["worst_wait"] = (
        median_ratio([line.longest_wait for line in ours], [line.longest_wait for line in theirs])
        if ours and theirs
        else None
    )
    return found


def fairness(lines: Sequence[HandoverWaits]) -> float:
    """Jain's index of the passes per waiter, median of the rounds."""
    return median(jain(line.passes) for line in lines)


def longest_wait(lines: Sequence[HandoverWaits]) -> float:
    """In seconds, median of the rounds."""
    return median(line.longest_wait for line in lines)


def plain(figures: LockFigures) -> dict[str, Any]:
    """All figures but the single passes, ready for JSON."""
    plain_figures: dict[str, Any] = {}
    for workload in WORKLOADS:
        plain_figures[workload] = {}
        for contender, rounds in figures.rounds(workload).items():
            name = "rate" if workload in RATES else "p50_us"
            plain_figures[workload][contender] = {name: median(rounds), "rounds": rounds}
    for workload in LATENCIES:
        for contender, passes in figures.latencies[workload].items():
            everything = sorted(seconds for seconds_of_round in passes for seconds in seconds_of_round)
            plain_figures[workload][contender] |= {
                "p99_us": quantile(everything, 0.99) * 1e6,
                "passes": len(everything),
            }
    for contender, lines in figures.lines.items():
        plain_figures[HANDOVER][contender] |= {
            "turns_per_second": median(sum(line.passes) / line.seconds for line in lines),
            "jain": fairness(lines),
            "jain_rounds": [jain(line.passes) for line in lines],
            "longest_wait_ms": longest_wait(lines) * 1000,
            "longest_wait_ms_rounds": [line.longest_wait * 1000 for line in lines],
            "passes_per_waiter": lines[-1].passes,
            "overlaps": sum(line.overlaps for line in lines),
        }
    return plain_figures
