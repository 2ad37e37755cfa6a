"""Counters and histograms as plain numbers: one addition per update, metric families when a page is rendered.

Those of `prometheus_client` take a lock and microseconds each time, and in several processes they write to a shared
file. These are for one event loop, and are rendered, or copied for other processes to read, about once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Labels = tuple[str, ...]


class LabelledCounter:
    """A counter by labels. The series named in `start` exist from the beginning, at zero."""

    def __init__(
        self, name: str, about: str, labels: Sequence[str] = (), *, start: Iterable[Labels | str] = ()
    ) -> None:
        self.name = name
        self._about = about
        self._labels = labels
        first: Iterable[Labels | str] = start if labels else ((),)
        self._values: dict[Labels, float] = {_labels(one): 0 for one in first}

    def add(self, *labels: str, by: float = 1) -> None:
        """Add to the series of these labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def family(self) -> CounterMetricFamily:
        """The values as a metric family of `prometheus_client`."""
        family = CounterMetricFamily(self.name, self._about, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class LabelledHistogram:
    """A histogram with fixed bounds, by labels."""

    def __init__(
        self,
        name: str,
        about: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float],
        start: Iterable[Labels | str] = (),
    ) -> None:
        self.name = name
        self._about = about
        self._labels = labels
        self._bounds = bounds
        self._cells: dict[Labels, tuple[list[int], list[float]]] = {}
        for one in start:
            self._cells[_labels(one)] = self._cell()

    def observe(self, value: float, *labels: str) -> None:
        """Count one value in the series of these labels."""
        cell = self._cells.get(labels)
        if cell is None:
            cell = self._cells[labels] = self._cell()
        cell[0][bisect_left(self._bounds, value)] += 1
        cell[1][0] += value

    def family(self) -> HistogramMetricFamily:
        """The values as a metric family of `prometheus_client`."""
        family = HistogramMetricFamily(self.name, self._about, labels=self._labels)
        bounds = (*map(floatToGoString, self._bounds), "+Inf")
        for labels, (counts, total) in self._cells.items():
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), sum_value=total[0])
        return family

    def _cell(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self._bounds) + 1), [0.0]


def gauge(name: str, about: str, values: float | Mapping[str, float], *, label: str | None = None) -> GaugeMetricFamily:
    """A gauge: one number, or one for each value of a label."""
    family = GaugeMetricFamily(name, about, labels=[label] if label else ())
    for one, value in values.items() if isinstance(values, Mapping) else (("", values),):
        family.add_metric([one] if label else [], value)
    return family


def _labels(one: Labels | str) -> Labels:
    return (one,) if isinstance(one, str) else one
