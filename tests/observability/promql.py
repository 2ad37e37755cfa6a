"""A small part of Prometheus's language, enough for our own alerts, so that tests evaluate them."""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Page = dict[str, Vector]

TOKEN = re.compile(r'\s*("[^"]*"|[A-Za-z_:][\w:]*|\d+(?:\.\d+)?[smhd]?|[=!]~|[<>=!]=|[-+*/(){}\[\],<>=])')
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: a / b if b else (math.nan if not a or math.isnan(a) else math.inf),
}  # fmt: skip
AGGREGATE: dict[str, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}


def read(text: str) -> Page:
    """A page as series."""
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            page.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
    return page


class Query:
    """One expression, over a page as it was a while ago, and as it is now."""

    def __init__(self, text: str, *, before: Page, after: Page, now: float) -> None:
        self._tokens = TOKEN.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s", "", text), f"not understood: {text}"
        self._before = before
        self._after = after
        self._now = now
        self.selected: list[tuple[str, list[tuple[str, str, str]]]] = []
        """Which series it reads."""

    def run(self) -> Vector:
        """What it yields: an alert fires for each series that is left."""
        found = self._or()
        assert not self._tokens, f"left over: {self._tokens}"
        return found if isinstance(found, dict) else {frozenset(): found}

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, wanted: str | None = None) -> str:
        token: str = self._tokens.pop(0)
        assert wanted is None or token == wanted, f"{token} instead of {wanted}"
        return token

    def _or(self) -> Any:
        left = self._and()
        while self._peek() == "or":
            self._take()
            left = {**self._and(), **left}
        return left

    def _and(self) -> Any:
        left = self._comparison()
        while self._peek() == "and":
            self._take()
            right = self._comparison()
            left = {labels: value for labels, value in left.items() if labels in right}
        return left

    def _comparison(self) -> Any:
        left = self._sum()
        if self._peek() not in COMPARE:
            return left
        holds, right = COMPARE[self._take()], self._sum()
        assert isinstance(right, float), "an alert compares with a number"
        return {labels: value for labels, value in left.items() if holds(value, right)}

    def _sum(self) -> Any:
        return self._chain(self._product, "+-")

    def _product(self) -> Any:
        return self._chain(self._atom, "*/")

    def _chain(self, part: Callable[[], Any], operators: str) -> Any:
        left = part()
        while self._peek() and self._peek() in operators:
            left = _apply(ARITHMETIC[self._take()], left, part())
        return left

    def _atom(self) -> Any:
        token = self._take()
        if token == "(":
            return self._closed()
        if token[0].isdigit():
            return float(token)
        if token in AGGREGATE:
            return self._aggregate(AGGREGATE[token])
        calls: dict[str, Callable[[], Any]] = {
            "time": self._time,
            "rate": lambda: self._grown(per_second=True),
            "increase": lambda: self._grown(per_second=False),
            "histogram_quantile": self._quantile,
        }
        return calls[token]() if token in calls else self._select(token)[1]

    def _closed(self) -> Any:
        inner = self._or()
        self._take(")")
        return inner

    def _time(self) -> float:
        self._take("(")
        self._take(")")
        return self._now

    def _quantile(self) -> Vector:
        self._take("(")
        fraction = float(self._take())
        self._take(",")
        return _quantile(fraction, self._closed())

    def _aggregate(self, function: Callable[[Iterable[float]], float]) -> Vector:
        by: set[str] = set()
        if self._peek() == "by":
            self._take()
            self._take("(")
            while (token := self._take()) != ")":
                by |= {token} - {","}
        self._take("(")
        inner = self._closed()
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(frozenset(one for one in labels if one[0] in by), []).append(value)
        return {labels: function(values) for labels, values in groups.items()}

    def _grown(self, *, per_second: bool) -> Vector:
        self._take("(")
        before, after = self._select(self._take())
        self._take("[")
        window = self._take()
        self._take("]")
        self._take(")")
        seconds = float(window[:-1]) * UNITS[window[-1]] if per_second else 1.0
        return {labels: (value - before.get(labels, 0.0)) / seconds for labels, value in after.items()}

    def _select(self, name: str) -> tuple[Vector, Vector]:
        wanted: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                wanted.append((self._take(), self._take(), self._take().strip('"')))
                if self._peek() == ",":
                    self._take()
            self._take()
        self.selected.append((name, wanted))
        return _fitting(self._before.get(name, {}), wanted), _fitting(self._after.get(name, {}), wanted)


def _fitting(series: Vector, wanted: list[tuple[str, str, str]]) -> Vector:
    def fits(labels: Mapping[str, str]) -> bool:
        return all(
            labels.get(name) == said if how == "=" else re.fullmatch(said, labels.get(name, "")) is not None
            for name, how, said in wanted
        )

    return {labels: value for labels, value in series.items() if fits(dict(labels))}


def _apply(function: Callable[[float, float], float], left: Any, right: Any) -> Any:
    if isinstance(left, float) and isinstance(right, float):
        return function(left, right)
    if isinstance(left, float):
        return {labels: function(left, value) for labels, value in right.items()}
    if isinstance(right, float):
        return {labels: function(value, right) for labels, value in left.items()}
    return {labels: function(value, right[labels]) for labels, value in left.items() if labels in right}


def _quantile(fraction: float, buckets: Vector) -> Vector:
    """Over one histogram: the upper bound of the bucket that the rank falls into is near enough for a threshold."""
    ordered = sorted((float(dict(labels)["le"]), count) for labels, count in buckets.items())
    if not ordered or not ordered[-1][1]:
        return {frozenset(): math.nan}
    rank = fraction * ordered[-1][1]
    return {frozenset(): next(bound for bound, count in ordered if count >= rank)}
