"""What is counted of the locks, that no thread's count is lost, and how Prometheus reads it."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from earmark.locks import LockBusy, Locks
from earmark.locks.circuit_breaker import Breaker
from earmark.locks.prometheus import LocksCollector, register
from earmark.locks.stats import (
    ACQUISITION_BOUNDS,
    HELD_BOUNDS,
    REFUSALS,
    CountsByThread,
    Stats,
    StatsSnapshot,
    ThreadCounts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

seconds = st.floats(min_value=0, max_value=20)


@pytest.fixture
def stats() -> Stats:
    return Stats()


def in_threads(count: int, act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_nothing_happened_yet(stats: Stats) -> None:
    """A panel over new locks shows zeros, not gaps."""
    seen = stats.snapshot()
    assert (seen.acquired, seen.released, seen.conflicts, seen.extended, seen.expired, seen.lost) == (0,) * 6
    assert (seen.waiters, seen.waiters_max) == (0, 0)
    assert seen.refusals == dict.fromkeys(REFUSALS, 0)
    assert seen.acquisition.quantile(0.5) is None


def test_each_event_has_its_counter(stats: Stats) -> None:
    """What happened is counted once and under its own name."""
    stats.acquired(0.002)
    stats.released(0.5)
    stats.extended()
    stats.expired()
    stats.expired(2)
    stats.lost()
    stats.lost(4)
    seen = stats.snapshot()
    assert (seen.acquired, seen.released, seen.extended, seen.expired, seen.lost) == (1, 1, 1, 3, 5)
    assert (seen.acquisition.sum_seconds, seen.held.sum_seconds) == (0.002, 0.5)


@pytest.mark.parametrize("outcome", REFUSALS)
def test_a_refusal_is_counted_by_how_it_ended(stats: Stats, outcome: str) -> None:
    """An operator must be able to distinguish a busy lock from a server that is down."""
    stats.refused(outcome)
    seen = stats.snapshot()
    assert seen.refusals == {**dict.fromkeys(REFUSALS, 0), outcome: 1}
    assert seen.acquired == 0


def test_a_busy_lock_counts_a_conflict_for_each_key(stats: Stats) -> None:
    """Contention is a matter of keys: a call for three taken seats met three conflicts, one without an answer none."""
    stats.refused("busy")
    stats.refused("busy", keys=3)
    stats.refused("timeout", keys=2)
    stats.refused("unavailable", keys=3)
    assert stats.snapshot().conflicts == 6


@pytest.mark.parametrize("wait, outcome", [(0.0, "busy"), (0.05, "timeout")])
async def test_a_wait_that_timed_out_is_counted_apart_from_a_refusal_at_once(wait: float, outcome: str) -> None:
    """The one is how a program was written, the other matters to an operator; for tasks and threads alike."""
    async with Locks.from_url("memory://") as locks:
        await locks.acquire("invoice:42", ttl=60)
        with pytest.raises(LockBusy):
            await locks.acquire("invoice:42", wait=wait)
        with pytest.raises(LockBusy):
            await asyncio.to_thread(locks.sync.acquire, "invoice:42", wait=wait)
        assert locks.stats.snapshot().refusals == dict.fromkeys(REFUSALS, 0) | {outcome: 2}


def test_an_unknown_outcome_is_a_bug_of_the_caller(stats: Stats) -> None:
    """A misspelt outcome would show in no panel."""
    with pytest.raises(KeyError, match="bussy"):
        stats.refused("bussy")


def test_waiters_come_and_go_and_their_peak_stays(stats: Stats) -> None:
    """A queue that was long for a moment is seen by a later reader too."""
    for change in (1, 1, 1, -1, -1, 1):
        stats.waiting(change)
    seen = stats.snapshot()
    assert (seen.waiters, seen.waiters_max) == (2, 3)


@pytest.mark.parametrize("bounds", [ACQUISITION_BOUNDS, HELD_BOUNDS])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    """A histogram is searched by halves."""
    assert list(bounds) == sorted(set(bounds))
    assert (ACQUISITION_BOUNDS[0], ACQUISITION_BOUNDS[-1]) == (0.0005, 10.0)
    assert (HELD_BOUNDS[0], HELD_BOUNDS[-1]) == (0.001, 3600.0)


@given(st.lists(seconds | st.sampled_from(ACQUISITION_BOUNDS), max_size=50))
def test_a_bucket_holds_what_was_within_its_bound(observed: list[float]) -> None:
    """The bound itself is within, as Prometheus has it; and the last bucket holds everything."""
    stats = Stats()
    for value in observed:
        stats.acquired(value)
    seen = stats.snapshot().acquisition
    expected = [sum(value <= bound for value in observed) for bound in (*ACQUISITION_BOUNDS, math.inf)]
    assert list(seen.cumulative) == expected
    assert seen.count == len(observed)
    assert seen.sum_seconds == pytest.approx(sum(observed))


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(min_value=0, max_value=1))
def test_a_quantile_is_right_up_to_the_bounds(observed: list[float], fraction: float) -> None:
    """The estimate lies in the same bucket as the true value; beyond the last bound it can only name that."""
    stats = Stats()
    for value in observed:
        stats.acquired(value)
    estimate = stats.snapshot().acquisition.quantile(fraction)
    assert estimate is not None
    true = sorted(observed)[max(0, math.ceil(fraction * len(observed)) - 1)]
    upper = next((bound for bound in ACQUISITION_BOUNDS if true <= bound), ACQUISITION_BOUNDS[-1])
    lower = max((bound for bound in (0.0, *ACQUISITION_BOUNDS) if bound < upper), default=0.0)
    assert lower <= estimate <= upper * (1 + 1e-9)


def test_a_quantile_is_interpolated(stats: Stats) -> None:
    """Half of those between 1 and 2.5 seconds are taken to be below the middle."""
    for _ in range(10):
        stats.acquired(2.0)
    assert stats.snapshot().acquisition.quantile(0.5) == pytest.approx(1.75)
    assert stats.snapshot().acquisition.quantile(0) == 1.0


def test_a_snapshot_stays_as_it_was_taken(stats: Stats) -> None:
    """What was read can be compared with what is read later, or sent away."""
    stats.acquired(0.1)
    first = stats.snapshot()
    stats.acquired(0.1)
    stats.refused("busy")
    assert (first.acquired, first.refusals["busy"], stats.snapshot().acquired) == (1, 0, 2)
    assert msgspec.json.decode(msgspec.json.encode(first), type=StatsSnapshot) == first


def test_threads_lose_no_count(stats: Stats) -> None:
    """Plain threads share one lock object, and what they report adds up exactly."""

    def work() -> None:
        for _ in range(2_000):
            stats.waiting(1)
            stats.acquired(0.25)
            stats.refused("busy", keys=2)
            stats.waiting(-1)
            stats.released(0.5)

    in_threads(8, work)
    seen = stats.snapshot()
    assert (seen.acquired, seen.released, seen.refusals["busy"], seen.conflicts) == (16_000, 16_000, 16_000, 32_000)
    assert (seen.acquisition.sum_seconds, seen.held.sum_seconds) == (4_000.0, 8_000.0)
    assert seen.waiters == 0
    assert 1 <= seen.waiters_max <= 8


class Hesitant(list[int]):
    """Counts that two threads read together before either writes."""

    meeting: threading.Barrier

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(timeout=30)
        return value


def hesitant() -> Callable[[], ThreadCounts]:
    """Makes cells whose counts are read by two threads before either writes."""
    meeting = threading.Barrier(2)

    def make() -> ThreadCounts:
        counts = ThreadCounts()
        counts.acquisition = Hesitant(counts.acquisition)
        counts.acquisition.meeting = meeting
        return counts

    return make


def test_with_one_cell_for_all_threads_a_count_is_lost(stats: Stats) -> None:
    """The control: an addition is a read and a write, and both threads read before either wrote."""
    shared = hesitant()()

    class OneForAll(CountsByThread):
        """The guard turned off: all threads share one set of counts."""

        def __getitem__(self, _: int) -> ThreadCounts:
            return shared

    stats._by_thread = OneForAll({0: shared})
    in_threads(2, lambda: stats.acquired(0.1))
    assert stats.snapshot().acquired == 1


def test_with_a_cell_for_each_thread_none_is_lost(stats: Stats) -> None:
    """The same meeting in the middle of an addition, and both count."""
    make = hesitant()

    class Own(CountsByThread):
        """The guard, on, with cells that hesitate."""

        def __missing__(self, ident: int) -> ThreadCounts:
            counts = self[ident] = make()
            return counts

    stats._by_thread = Own()
    in_threads(2, lambda: stats.acquired(0.1))
    assert stats.snapshot().acquired == 2


def test_threads_that_come_and_go_leave_no_pile(stats: Stats) -> None:
    """A server that starts a thread for each request would otherwise grow for ever; their counts stay."""
    for _ in range(500):
        in_threads(1, lambda: stats.acquired(0.1))
    assert stats.snapshot().acquired == 500
    assert len(stats._by_thread) < 50


class Opened:
    """What a collector needs of locks."""

    def __init__(self, stats: Stats, breaker: Breaker | None) -> None:
        self.stats = stats
        self.breaker = breaker


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus reads: values by name and labels."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_what_was_counted(stats: Stats) -> None:
    """The page that is scraped says the same as the stats."""
    registry = CollectorRegistry()
    register(stats, Breaker(), registry)
    stats.acquired(0.0004)
    stats.acquired(0.02)
    stats.released(7.0)
    stats.refused("busy", keys=2)
    stats.refused("queue_full")
    stats.extended()
    stats.expired()
    stats.lost(2)
    stats.waiting(1)
    page = scraped(registry)
    outcomes = {labels[0][1]: value for (name, labels), value in page.items() if name.endswith("acquisitions_total")}
    assert outcomes == dict.fromkeys(REFUSALS, 0) | {"acquired": 2, "busy": 1, "queue_full": 1}
    plain = {name.removeprefix("earmark_lock_"): value for (name, labels), value in page.items() if not labels}
    assert plain == {
        "acquisition_seconds_count": 2,
        "acquisition_seconds_sum": 0.0204,
        "held_seconds_count": 1,
        "held_seconds_sum": 7.0,
        "conflicts_total": 2,
        "extensions_total": 1,
        "expired_total": 1,
        "lost_total": 2,
        "waiters": 1,
        "waiters_max": 1,
        "stuck": 0,
        "breaker_opened_total": 0,
    }


def test_prometheus_reads_whole_histograms(stats: Stats) -> None:
    """Every bound has its bucket, they only grow, and the last is the count."""
    registry = CollectorRegistry()
    register(stats, None, registry)
    for value in (0.0005, 0.02, 100.0):
        stats.acquired(value)
    name = "earmark_lock_acquisition_seconds_bucket"
    buckets = {float(labels[0][1]): value for (found, labels), value in scraped(registry).items() if found == name}
    assert tuple(buckets) == (*ACQUISITION_BOUNDS, math.inf)
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets[0.0005], buckets[0.025], buckets[10.0], buckets[math.inf]) == (1, 2, 2, 3)


def test_prometheus_reads_the_breaker_as_it_is_when_scraped(stats: Stats) -> None:
    """An alarm on the open breaker needs the state of now, and exactly one state at a time."""
    registry = CollectorRegistry()
    breaker = Breaker(failures_max=1)
    register(Opened(stats, breaker), registry=registry)

    def states() -> dict[str, float]:
        name = "earmark_lock_breaker_state"
        return {labels[0][1]: value for (found, labels), value in scraped(registry).items() if found == name}

    assert states() == {"closed": 1, "open": 0, "half_open": 0}
    breaker.failed()
    assert states() == {"closed": 0, "open": 1, "half_open": 0}
    assert scraped(registry)["earmark_lock_breaker_opened_total", ()] == 1


def test_locks_without_a_breaker_show_none(stats: Stats) -> None:
    """In-process locks cannot be gone; a breaker that is always closed would claim to guard something."""
    registry = CollectorRegistry()
    register(Opened(stats, None), registry=registry)
    page = scraped(registry)
    assert not [name for name, _ in page if "breaker" in name]
    assert ("earmark_lock_waiters", ()) in page


def test_a_registry_takes_one_of_them(stats: Stats) -> None:
    """Two collectors of the same names would make a page that Prometheus rejects as a whole."""
    registry = CollectorRegistry()
    collector = register(stats, None, registry)
    with pytest.raises(ValueError, match="earmark_lock_"):
        register(Stats(), None, registry)
    registry.unregister(collector)
    register(Stats(), None, registry)


def test_without_names_a_registry_takes_two(stats: Stats) -> None:
    """The control: it is the described names that refuse the second one."""

    class Nameless(LocksCollector):
        """A collector that describes no metric."""

        def describe(self) -> Any:
            """No metric names, so that a registry cannot see a conflict."""
            return []

    registry = CollectorRegistry()
    registry.register(Nameless(stats))
    registry.register(Nameless(stats))
    assert generate_latest(registry).count(b"# TYPE earmark_lock_waiters gauge") == 2
