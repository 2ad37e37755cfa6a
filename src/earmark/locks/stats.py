"""What an operator watches of the locks: how long they take, how long they are held, and how they fail.

Every acquisition is observed, tens of thousands in a second. The counters and histograms of prometheus_client take a
lock and microseconds for each call, and a lock that is taken and given back needs several. Here an observation is an
addition to a plain list, a few times cheaper, and `earmark.locks.prometheus` makes metrics of the sums when somebody
asks for them.

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
"""Somebody else had it: at the moment of asking, or for as long as the caller would wait."""


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
    """Keys that somebody else had."""
    extended: int
    expired: int
    """A release or an extension found the lease gone."""
    lost: int
    """The holder was told, while it worked, that its lock is no longer its own."""
    waiters: int
    waiters_max: int
    """The most that waited at one time."""
    stuck: int
    """Locks that the last look found held for too long."""

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
        self._cells = Cells()
        self._lock = threading.Lock()
        self._waiters = 0
        self._waiters_max = 0
        self._stuck = 0

    def acquired(self, seconds: float) -> None:
        """A lock was granted, so long after it was asked for."""
        cell = self._cells[get_ident()]
        cell.acquisition[bisect_left(ACQUISITION_BOUNDS, seconds)] += 1
        cell.acquisition_seconds += seconds

    def refused(self, outcome: str, *, keys: int = 1) -> None:
        """An acquisition ended without a grant, as one of `REFUSALS`; so many keys somebody else had, if any."""
        cell = self._cells[get_ident()]
        cell.refusals[outcome] += 1
        if outcome in TAKEN:
            cell.conflicts += keys

    def released(self, held_seconds: float) -> None:
        """A lock was given back, so long after it was granted."""
        cell = self._cells[get_ident()]
        cell.held[bisect_left(HELD_BOUNDS, held_seconds)] += 1
        cell.held_seconds += held_seconds

    def extended(self) -> None:
        """A lease was made longer."""
        self._cells[get_ident()].extended += 1

    def expired(self, count: int = 1) -> None:
        """A release or an extension found the lease gone."""
        self._cells[get_ident()].expired += count

    def lost(self, count: int = 1) -> None:
        """A holder was told that its lock is no longer its own."""
        self._cells[get_ident()].lost += count

    def waiting(self, change: int) -> None:
        """Somebody joined the waiters (+1) or left them (-1). Waiting is slow by nature, so this may take a lock."""
        with self._lock:
            self._waiters += change
            self._waiters_max = max(self._waiters_max, self._waiters)

    def stuck(self, count: int) -> None:
        """So many locks were found held for too long, when somebody looked."""
        self._stuck = count

    def snapshot(self) -> StatsSnapshot:
        """The sums of what all threads have counted."""
        cells = list(self._cells.copy().values())
        with self._lock:
            waiters, waiters_max = self._waiters, self._waiters_max
        return StatsSnapshot(
            acquisition=_histogram(
                ACQUISITION_BOUNDS,
                counts=[cell.acquisition for cell in cells],
                sum_seconds=sum(cell.acquisition_seconds for cell in cells),
            ),
            held=_histogram(
                HELD_BOUNDS,
                counts=[cell.held for cell in cells],
                sum_seconds=sum(cell.held_seconds for cell in cells),
            ),
            refusals={outcome: sum(cell.refusals[outcome] for cell in cells) for outcome in REFUSALS},
            conflicts=sum(cell.conflicts for cell in cells),
            extended=sum(cell.extended for cell in cells),
            expired=sum(cell.expired for cell in cells),
            lost=sum(cell.lost for cell in cells),
            waiters=waiters,
            waiters_max=waiters_max,
            stuck=self._stuck,
        )


class Cell:
    """What one thread has counted. Only that thread writes to it, so that no addition meets another."""

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


class Cells(dict[int, Cell]):
    """A cell for each thread, made when it counts for the first time.

    A thread's number is its own while it lives and is given to another later, who then adds to the same cell: there
    are as many cells as there were threads at one time, however many come and go.
    """

    def __missing__(self, ident: int) -> Cell:
        cell = self[ident] = Cell()
        return cell


def _histogram(bounds: tuple[float, ...], *, counts: list[list[int]], sum_seconds: float) -> Histogram:
    # Every list is copied before it is summed: the last sum is the count, and must agree with the others.
    summed = [0] * (len(bounds) + 1)
    for cell in counts:
        summed = [total + count for total, count in zip(summed, tuple(cell), strict=True)]
    return Histogram(bounds=bounds, cumulative=tuple(accumulate(summed)), sum_seconds=sum_seconds)
