"""The results of a race by strategy, and what they say about the claims of the strategies; without any I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.booking.strategies import LEASES, STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Sequence

NAIVE = "naive"


class RaceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy. Sales are counted in the database, answers by the buyers."""

    claims_safe: bool
    double_sold: int
    """Seats with more than one active booking."""
    buyers_max: int
    """How many buyers the worst of them was sold to."""
    sold: int
    """Confirmed bookings."""
    refused: int
    stranded: int
    """Seats that count as sold, and were never paid for."""
    errors: int
    first_error: str | None = None
    seconds: float
    p50_ms: float
    p99_ms: float
    """Of the answer to a hold."""

    @property
    def safe(self) -> bool:
        """Whether no seat had two owners in this race."""
        return not self.double_sold

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {"safe": self.safe, **fields}


class RaceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of every strategy in one race."""

    buyers: int
    pause_seconds: float
    expire: bool
    strategies: Mapping[str, RaceFigures]
    guards: Mapping[str, RaceFigures]
    """The strategies that raced again with the guards of the schema."""
    versions: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        return {
            "strategies": {name: figures.plain() for name, figures in self.strategies.items()},
            "guards": {name: figures.plain() for name, figures in self.guards.items()},
            "buyers": self.buyers,
            "pause_seconds": self.pause_seconds,
            "expire": self.expire,
            "versions": dict(self.versions),
        }

    @property
    def broken(self) -> list[str]:
        """Claims that this race has broken unexpectedly."""
        found = [
            f"{name} claims to be safe, and {_sold_twice(figures)}"
            for name, figures in self.strategies.items()
            if figures.claims_safe and not figures.safe and not (self.expire and name in LEASES)
        ]
        found += [
            f"{name} got {figures.errors} errors instead of answers, the first of them: {figures.first_error}"
            for name, figures in (*self.strategies.items(), *self.guards.items())
            if figures.errors
        ]
        if NAIVE in self.strategies and self.strategies[NAIVE].safe:
            found.append("naive sold nothing twice, so that this race was none and proves nothing about the others")
        if self.expire:
            found += [
                f"{name} kept its promise though its lock ran out, so that nothing was shown"
                for name, figures in self.strategies.items()
                if name in LEASES and figures.safe
            ]
        found += [
            f"with the guards on, {name} {_sold_twice(figures)}: the schema has let it"
            for name, figures in self.guards.items()
            if not figures.safe
        ]
        return found


def sentences(result: RaceResult) -> list[str]:
    """The result in sentences."""
    found = [f"{name} {_sold_twice(figures)}." for name, figures in result.strategies.items() if not figures.safe]
    if clean := [name for name, figures in result.strategies.items() if figures.safe]:
        found.append(f"{_and(clean)} sold no seat twice.")
    found += [
        f"{name} has {_seats(figures.stranded)} that count as sold and were never paid for."
        for name, figures in result.strategies.items()
        if figures.stranded
    ]
    found += [
        f"With the schema's guards on, {name} sold no seat twice: the database alone refused every second sale."
        for name, figures in result.guards.items()
        if figures.safe
    ]
    return found


def claims_safe(name: str) -> bool:
    """Whether a strategy claims to be safe."""
    return STRATEGIES[name].safe


def _sold_twice(figures: RaceFigures) -> str:
    return f"sold {_seats(figures.double_sold)} more than once, one of them to {figures.buyers_max} buyers"


def _seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
