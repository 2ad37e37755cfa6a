"""Counts what an operator monitors of the locks: how long they take, how long they are held, and how they fail.

Every acquisition is observed, tens of thousands in a second. The counters and histograms of prometheus_client take a
lock and microseconds for each call, and a lock that is taken and given back needs several. Here an observation is an
addition to a plain list, a few times cheaper, and `earmark.locks.prometheus` makes metrics of the sums when they are
scraped.

Nothing is lost between threads: each adds to numbers of its own, and a snapshot sums them up. It reads while others
write, so that of an observation under way it may see the count and not yet the seconds; the next one sees both.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from threading import get_ident

import msgspec

ACQUISITION_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HELD_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
REFUSALS = ("busy", "timeout", "queue_full", "unavailable", "cancelled", "lost")
"""How an acquisition ends that was not granted."""
TAKEN = frozenset({"busy", "timeout"})
"""Another caller held it: at the moment of the call, or for as long as the caller would wait."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How observations spread over fixed bounds."""

    bounds: tuple[float, ...]
    """Seconds, ascending; a value on a bound counts as within it."""
    cumulative: tuple[int, ...]
    """How many were within each bound, and last how many there were."""
    sum_seconds: float

    @property
    def count(self) -> int:
        """How many were observed."""
        return self.cumulative[-1]

    def quantile(self, fraction: float) -> float | None:
        """The seconds that this fraction of the observations stayed within, as well as the bounds can tell.

        Interpolated within the bound it falls into, as Prometheus does; beyond the last bound it is that bound.
        """
        assert 0 <= fraction <= 1, "a fraction lies between 0 and 1"
        if not self.count:
            return None
        rank = fraction * self.count
        place = bisect_left(self.cumulative, rank)
        # The first bound that holds any, for the rank 0.
        place = max(place, bisect_left(self.cumulative, 1))
        if place == len(self.bounds):
            return self.bounds[-1]
        lower, below = (self.bounds[place - 1], self.cumulative[place - 1]) if place else (0.0, 0)
        return lower + (self.bounds[place] - lower) * (rank - below) / (self.cumulative[place] - below)


class StatsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was counted since the locks were opened."""

    acquisition: Histogram
    """Of the acquisitions that were granted: from the call to the grant, waiting included."""
    held: Histogram
    """Of the locks that were released: from the grant to the release."""
    refusals: dict[str, int]
    """The acquisitions that were not granted, by how they ended."""
    conflicts: int
    """Keys that another caller held."""
    extended: int
    expired: int
    """A release or an extension found the lease gone."""
    lost: int
    """Losses that were reported to the holder while it worked."""
    waiters: int
    waiters_max: int
    """The most that waited at one time."""
    stuck: int
    """Locks that the last check found held for too long."""

    @property
    def acquired(self) -> int:
        """How many acquisitions were granted."""
        return self.acquisition.count

    @property
    def released(self) -> int:
        """How many locks were given back, also those that were gone by then."""
        return self.held.count


class Stats:
    """Counts what happens to locks. Any thread and any event loop may call it."""

    def __init__(self) -> None:
        self._by_thread = CountsByThread()
        self._lock = threading.Lock()
        self._waiters = 0
        self._waiters_max = 0
        self._stuck = 0

    def acquired(self, seconds: float) -> None:
        """A lock was granted, so many seconds after the call."""
        counts = self._by_thread[get_ident()]
        counts.acquisition[bisect_left(ACQUISITION_BOUNDS, seconds)] += 1
        counts.acquisition_seconds += seconds

    def refused(self, outcome: str, *, keys: int = 1) -> None:
        """An acquisition ended without a grant, as one of `REFUSALS`; another caller held so many `keys`, if any."""
        counts = self._by_thread[get_ident()]
        counts.refusals[outcome] += 1
        if outcome in TAKEN:
            counts.conflicts += keys

    def released(self, held_seconds: float) -> None:
        """A lock was given back, so long after it was granted."""
        counts = self._by_thread[get_ident()]
        counts.held[bisect_left(HELD_BOUNDS, held_seconds)] += 1
        counts.held_seconds += held_seconds

    def extended(self) -> None:
        """A lease was made longer."""
        self._by_thread[get_ident()].extended += 1

    def expired(self, count: int = 1) -> None:
        """A release or an extension found the lease gone."""
        self._by_thread[get_ident()].expired += count

    def lost(self, count: int = 1) -> None:
        """The loss of a lock was reported to its holder."""
        self._by_thread[get_ident()].lost += count

    def waiting(self, change: int) -> None:
        """A caller began (+1) or ended (-1) to wait. Waiting is slow by nature, so this may take a lock."""
        with self._lock:
            self._waiters += change
            self._waiters_max = max(self._waiters_max, self._waiters)

    def stuck(self, count: int) -> None:
        """A check found so many locks held for too long."""
        self._stuck = count

    def snapshot(self) -> StatsSnapshot:
        """The sums of what all threads have counted."""
        all_counts = list(self._by_thread.copy().values())
        with self._lock:
            waiters, waiters_max = self._waiters, self._waiters_max
        return StatsSnapshot(
            acquisition=_histogram(
                ACQUISITION_BOUNDS,
                counts=[counts.acquisition for counts in all_counts],
                sum_seconds=sum(counts.acquisition_seconds for counts in all_counts),
            ),
            held=_histogram(
                HELD_BOUNDS,
                counts=[counts.held for counts in all_counts],
                sum_seconds=sum(counts.held_seconds for counts in all_counts),
            ),
            refusals={outcome: sum(counts.refusals[outcome] for counts in all_counts) for outcome in REFUSALS},
            conflicts=sum(counts.conflicts for counts in all_counts),
            extended=sum(counts.extended for counts in all_counts),
            expired=sum(counts.expired for counts in all_counts),
            lost=sum(counts.lost for counts in all_counts),
            waiters=waiters,
            waiters_max=waiters_max,
            stuck=self._stuck,
        )


class ThreadCounts:
    """The counts of one thread. Only that thread writes to them, so that no addition is lost."""

    __slots__ = (
        "acquisition",
        "acquisition_seconds",
        "conflicts",
        "expired",
        "extended",
        "held",
        "held_seconds",
        "lost",
        "refusals",
    )

    def __init__(self) -> None:
        self.acquisition = [0] * (len(ACQUISITION_BOUNDS) + 1)
        self.acquisition_seconds = 0.0
        self.held = [0] * (len(HELD_BOUNDS) + 1)
        self.held_seconds = 0.0
        self.refusals = dict.fromkeys(REFUSALS, 0)
        self.conflicts = 0
        self.extended = 0
        self.expired = 0
        self.lost = 0


class CountsByThread(dict[int, ThreadCounts]):
    """The counts of each thread, made when it counts for the first time.

    A thread's number is its own while it lives and is given to another thread later, which then adds to the same
    counts: there are as many of them as there were threads at one time, however many start and end.
    """

    def __missing__(self, ident: int) -> ThreadCounts:
        counts = self[ident] = ThreadCounts()
        return counts


def _histogram(bounds: tuple[float, ...], *, counts: list[list[int]], sum_seconds: float) -> Histogram:
    # Every list is copied before it is summed: the last sum is the count, and must agree with the others.
    summed = [0] * (len(bounds) + 1)
    for one in counts:
        summed = [total + count for total, count in zip(summed, tuple(one), strict=True)]
    return Histogram(bounds=bounds, cumulative=tuple(accumulate(summed)), sum_seconds=sum_seconds)
