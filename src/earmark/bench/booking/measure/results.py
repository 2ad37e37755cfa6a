"""The results of the booking bench: medians and ratios, computed from measurements without any I/O."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.booking.measure.measurement_plan import ALL_OURS
from earmark.bench.booking.measure.ratios_and_required_floors import BESIDE, RATIOS
from earmark.bench.prepare_and_count_rows import CountedRows
from earmark.bench.report.quantiles_and_ratios import evenly_spread, median_ratio, quantile_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from earmark.bench.booking.measure.measurement_plan import Measurement
    from earmark.bench.booking.measure.ratios_and_required_floors import Ratio

SAMPLE = 4_000
"""Latencies that are kept of a measurement, for drawing: evenly spread from the shortest to the longest."""
CURVE = 120
"""Points of a curve."""


class MeasurementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Sales are counted in the database; only latencies are measured by the clients."""

    seconds: float
    rate: float
    """Per second, of what the workload counts."""
    sold_per_second: float | None = None
    """Seats, where that is not the same as the rate."""
    p50_ms: float | None = None
    """Of hold."""
    p99_ms: float | None = None
    database_us: float | None = None
    """CPU time of the database, for each of what the rate counts."""
    client_us: float | None = None
    """CPU time of the clients, for each of what the rate counts."""
    answered: int = 0
    refused: int = 0
    errors: dict[str, int] = {}
    deadlocks: int = 0
    """Deadlocks that the database ended, whether a client saw them or not."""
    counted: CountedRows = msgspec.field(default_factory=CountedRows)
    waits: list[float] = []
    """A sample of the seconds that holds took, in order of length."""
    curve: list[tuple[float, float]] = []
    """When which share was answered: seconds, and a share from 0 to 1."""


class BookingFigures(msgspec.Struct):
    """All results, by workload and contender, in the order of the rounds."""

    readings: dict[str, dict[str, list[MeasurementResult]]] = msgspec.field(default_factory=dict)

    def add(self, measurement: Measurement, reading: MeasurementResult) -> None:
        """Add one measurement to its contender and workload."""
        self.readings.setdefault(measurement.workload, {}).setdefault(measurement.contender, []).append(reading)

    def rounds(self, workload: str, figure: str = "rate") -> dict[str, list[float]]:
        """One number per contender and round; contenders without it are left out."""
        found = {
            contender: [getattr(reading, figure) for reading in readings]
            for contender, readings in self.readings.get(workload, {}).items()
        }
        return {contender: values for contender, values in found.items() if None not in values}

    def medians(self, workload: str, figure: str = "rate") -> dict[str, float]:
        """The medians of the rounds so far, by contender."""
        return {contender: median(values) for contender, values in self.rounds(workload, figure).items()}

    def ours(self) -> Iterable[tuple[str, str, MeasurementResult]]:
        """The results of all contenders that are Earmark."""
        for workload, contenders in self.readings.items():
            for contender, readings in contenders.items():
                for reading in readings if contender in ALL_OURS else ():
                    yield workload, contender, reading

    def ratio(self, ratio: Ratio) -> float | None:
        """None until both were measured."""
        rounds = self.rounds(ratio.workload, ratio.figure)
        ours, theirs = rounds.get(ratio.ours), rounds.get(ratio.theirs)
        return median_ratio(ours, theirs) if ours and theirs and all(theirs) else None

    def ratios(self) -> dict[str, float | None]:
        """The ratios that have a floor, by name."""
        return {ratio.name: self.ratio(ratio) for ratio in RATIOS}

    def beside(self) -> dict[str, float | None]:
        """The ratios without a floor, by name."""
        return {ratio.name: self.ratio(ratio) for ratio in BESIDE}

    def total(self, count: str) -> int:
        """A count that must be zero, over all measurements of ours."""
        return sum(getattr(reading.counted, count) for _, _, reading in self.ours())

    @property
    def errors_seen(self) -> Counter[str]:
        """Errors that clients of ours got in place of an answer, by kind."""
        return sum((Counter(reading.errors) for _, _, reading in self.ours()), Counter())

    def plain(self) -> dict[str, Any]:
        """Everything but the single waits, ready for JSON."""
        return {
            workload: {contender: _plain(readings) for contender, readings in contenders.items()}
            for workload, contenders in self.readings.items()
        }


def sample(waits: list[float]) -> list[float]:
    """Few enough to draw and to keep, in order, from the shortest to the longest."""
    return evenly_spread(sorted(waits), SAMPLE)


def curve(moments: list[float]) -> list[tuple[float, float]]:
    """When which share was answered."""
    ordered = sorted(moments)
    steps = [round(number * (len(ordered) - 1) / (CURVE - 1)) for number in range(CURVE)] if ordered else []
    return [(ordered[step], (step + 1) / len(ordered)) for step in steps]


def p50_p99(waits: list[float]) -> tuple[float | None, float | None]:
    """The median and the 99th percentile, in milliseconds."""
    ordered = sorted(waits)
    return quantile_ms(ordered, 0.5), quantile_ms(ordered, 0.99)


_MEDIANS = ("rate", "sold_per_second", "p50_ms", "p99_ms", "database_us", "client_us")


def _plain(readings: list[MeasurementResult]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for figure in _MEDIANS:
        values = [value for reading in readings if (value := getattr(reading, figure)) is not None]
        told[figure] = median(values) if values else None
    told["rounds"] = [msgspec.to_builtins(reading) for reading in readings]
    for reading in told["rounds"]:
        del reading["waits"], reading["curve"]
    return told
