"""What a run showed, and what follows from it: medians, ratios and fairness. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.locks.peers import OURS, YARDSTICK
from earmark.bench.locks.workloads import Line
from earmark.bench.medians import median_ratio, quantile

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


class Figures(msgspec.Struct):
    """Everything that was measured, by workload and contender, round by round."""

    rates: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """Acquire and release, per second."""
    latencies: dict[str, dict[str, list[list[float]]]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    """The seconds that acquire and release took, each time."""
    lines: dict[str, list[Line]] = msgspec.field(default_factory=dict)
    """Of the hand-over: who waited how long."""

    def add_rate(self, workload: str, contender: str, rate: float) -> None:
        """A round of many at once."""
        self.rates[workload].setdefault(contender, []).append(rate)

    def add_latencies(self, workload: str, contender: str, seconds: list[float]) -> None:
        """A round of one alone."""
        self.latencies[workload].setdefault(contender, []).append(seconds)

    def add_line(self, contender: str, line: Line) -> None:
        """A round of many who want one lock.

        Whoever takes the lock again at once, before those who wait could ask, hands nothing over: only a turn of
        another waiter counts. Where there was none at all, one is counted, for nothing can be compared with none.
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
        """Over the rounds so far."""
        return {contender: median(rounds) for contender, rounds in self.rounds(workload).items()}

    @property
    def overlaps(self) -> dict[str, int]:
        """Per contender, how often two were inside one lock."""
        return {contender: sum(line.overlaps for line in lines) for contender, lines in self.lines.items()}


def contenders(names: Iterable[str]) -> list[str]:
    """In the order they are shown: ours, redis-py's, then whoever else there is."""
    order = {OURS: 0, YARDSTICK: 1}
    return sorted(set(names), key=lambda name: (order.get(name, 2), name))


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all have the same, 1/n when one has it all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def rival(figures: Figures, workload: str) -> str:
    """Who ours is compared with: redis-py's where many act at once, the quickest peer where one is alone."""
    if workload in RATES:
        return YARDSTICK
    peers = {contender: value for contender, value in figures.medians(workload).items() if contender != OURS}
    return min(peers, key=peers.__getitem__)


def ratio(figures: Figures, workload: str) -> float | None:
    """How many times as quick ours is as its rival. None until both were measured."""
    rounds = figures.rounds(workload)
    if OURS not in rounds or len(rounds) == 1 or (other := rival(figures, workload)) not in rounds:
        return None
    if workload in RATES:
        return median_ratio(rounds[OURS], rounds[other])
    return median_ratio(rounds[other], rounds[OURS])


def ratios(figures: Figures) -> dict[str, float | None]:
    """How many times as quick ours is; fairness, and how long the unluckiest waited, besides."""
    found = {workload: ratio(figures, workload) for workload in WORKLOADS}
    ours, theirs = figures.lines.get(OURS), figures.lines.get(YARDSTICK)
    found["jain"] = fairness(ours) if ours else None
    found["worst_wait"] = (
        median_ratio([line.longest_wait for line in ours], [line.longest_wait for line in theirs])
        if ours and theirs
        else None
    )
    return found


def fairness(lines: Sequence[Line]) -> float:
    """Jain's index of the passes per waiter, median of the rounds."""
    return median(jain(line.passes) for line in lines)


def longest_wait(lines: Sequence[Line]) -> float:
    """In seconds, median of the rounds."""
    return median(line.longest_wait for line in lines)


def plain(figures: Figures) -> dict[str, Any]:
    """Everything but the single passes, ready for JSON."""
    told: dict[str, Any] = {}
    for workload in WORKLOADS:
        told[workload] = {}
        for contender, rounds in figures.rounds(workload).items():
            name = "rate" if workload in RATES else "p50_us"
            told[workload][contender] = {name: median(rounds), "rounds": rounds}
    for workload in LATENCIES:
        for contender, passes in figures.latencies[workload].items():
            everything = sorted(seconds for seconds_of_round in passes for seconds in seconds_of_round)
            told[workload][contender] |= {"p99_us": quantile(everything, 0.99) * 1e6, "passes": len(everything)}
    for contender, lines in figures.lines.items():
        told[HANDOVER][contender] |= {
            "turns_per_second": median(sum(line.passes) / line.seconds for line in lines),
            "jain": fairness(lines),
            "jain_rounds": [jain(line.passes) for line in lines],
            "longest_wait_ms": longest_wait(lines) * 1000,
            "longest_wait_ms_rounds": [line.longest_wait * 1000 for line in lines],
            "passes_per_waiter": lines[-1].passes,
            "overlaps": sum(line.overlaps for line in lines),
        }
    return told
