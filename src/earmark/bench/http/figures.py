"""What a run showed, and what follows from it. Pure: numbers in, numbers out."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from earmark.bench.booking.bench.house import Counted
from earmark.bench.http.contenders import EMPTY, OURS, PEER
from earmark.bench.http.load import CREATED, SHED, Heard
from earmark.bench.medians import median_ratio
from earmark.config import Settings

HOLD, GENERATOR = "hold_vs_fastapi_for_update", "generator_vs_best"
FLOORS = {HOLD: 5.0, GENERATOR: 1.5}
AIMS = {HOLD: 8.0}
MUST_BE_ZERO = ("oversold", "lost", "unanswered", "failed", "missing")
SAID = {
    "oversold": "seats were sold more than once",
    "lost": "bookings that a client was told it has are not there",
    "unanswered": "requests got no answer",
    "failed": "requests got an answer that was neither yes nor `come again`",
    "missing": "bookings are there that nobody was told of",
}


OVERLOAD_EACH = 6000
"""Connections for each process of a server: more than its line takes in, however quick it is."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and for how long."""

    rounds: int = 5
    seconds: float = 4.0
    """Per contender and round."""
    connections: int = 64
    overload_connections: int = 2 * OVERLOAD_EACH
    workers: int = 2
    seats_each: int = 3
    requests_per_second_max: dict[str, int] = msgspec.field(
        default_factory=lambda: {OURS: 15_000, PEER: 4_000, EMPTY: 60_000}
    )
    """More than can be asked: each has seats of its own, and they must not run out."""
    warm_seconds: float = 1.0
    empty_share: float = 0.5
    """Of the seconds, for the endpoint that does nothing."""
    log_files: int = 128
    """Enough for a run of defaults, so that PostgreSQL creates no log file during a round."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contender under one load: what the clients heard, and what the tables say."""

    heard: Heard
    counted: Counted | None = None
    """None where there is nothing to count."""

    @property
    def granted(self) -> int:
        """As the clients heard."""
        return self.heard.statuses.get(CREATED, 0)

    @property
    def shed(self) -> int:
        """Who was told to come again."""
        return sum(number for status, number in self.heard.statuses.items() if status in SHED)

    @property
    def rate(self) -> float:
        """Holds per second: rows in the database, where there is one."""
        return (self.granted if self.counted is None else self.counted.held) / self.heard.seconds

    @property
    def zeros(self) -> dict[str, int]:
        """What must not be."""
        rows = self.counted
        return {
            "oversold": rows.oversold if rows else 0,
            "lost": rows.lost if rows else 0,
            "unanswered": self.heard.unanswered,
            "failed": sum(self.heard.statuses.values()) - self.granted - self.shed,
            # What was cut off in the middle may be there all the same: nobody was told that it is not.
            "missing": max(rows.held - self.granted - self.heard.unanswered, 0) if rows else 0,
        }

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "rate": self.rate,
            "p50_ms": self.heard.p50_ms,
            "p99_ms": self.heard.p99_ms,
            "statuses": self.heard.statuses,
            "seconds": self.heard.seconds,
            "client_us": self.heard.client_seconds / max(self.granted, 1) * 1e6,
            **({"held": self.counted.held} if self.counted else {}),
            **self.zeros,
        }


class Figures(msgspec.Struct):
    """Everything so far: cells by contender, round by round, and the overload."""

    cells: dict[str, list[Cell]] = msgspec.field(default_factory=dict)
    overload: Cell | None = None

    def add(self, contender: str, cell: Cell) -> None:
        """A round of one contender."""
        self.cells.setdefault(contender, []).append(cell)

    def rates(self, contender: str) -> list[float]:
        """Round by round."""
        return [cell.rate for cell in self.cells.get(contender, [])]

    def middle(self, contender: str, figure: str) -> float | None:
        """The median over the rounds."""
        told = [getattr(cell.heard, figure) for cell in self.cells.get(contender, [])]
        known = [value for value in told if value is not None]
        return median(known) if known else None

    @property
    def ratios(self) -> dict[str, float | None]:
        """Each the median of the rounds' own ratios; None until both sides were measured."""
        ours, peer, empty = (self.rates(name) for name in (OURS, PEER, EMPTY))
        return {
            HOLD: median_ratio(ours, peer) if ours and peer and all(peer) else None,
            GENERATOR: median_ratio(empty, ours) if ours and empty and all(ours) else None,
        }

    @property
    def short(self) -> list[str]:
        """The ratios that are not what they must at least be."""
        return [name for name, found in self.ratios.items() if found is not None and found < FLOORS[name]]

    @property
    def zeros(self) -> dict[str, int]:
        """What must be zero, over all cells. Who is turned away where nobody need be was failed too."""
        calm = [cell for told in self.cells.values() for cell in told]
        every = [*calm, *([self.overload] if self.overload else [])]
        found = {name: sum(cell.zeros[name] for cell in every) for name in MUST_BE_ZERO}
        return found | {"failed": found["failed"] + sum(cell.shed for cell in calm)}

    def plain_overload(self) -> dict[str, Any] | None:
        """How it was with far more who ask than can be answered."""
        cell = self.overload
        if cell is None:
            return None
        answers = sum(cell.heard.statuses.values())
        return {
            **cell.plain(),
            "shed": cell.shed,
            "shed_share": cell.shed / max(answers, 1),
            "shed_p50_ms": cell.heard.shed_p50_ms,
            "shed_p99_ms": cell.heard.shed_p99_ms,
            "without_retry_after": cell.heard.no_retry_after,
            "unloaded_p99_ms": self.middle(OURS, "p99_ms"),
            "unloaded_rate": median(rates) if (rates := self.rates(OURS)) else None,
        }


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """By which settings our server says no; as it comes, unless somebody set them for this run."""

    line_seconds_max: float = Settings().line_seconds_max
    request_seconds_max: float = Settings().request_seconds_max
    batch_waiting_max: int = Settings().batch_waiting_max


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed, and where."""

    plan: Plan
    figures: Figures
    versions: dict[str, str]
    cores: int
    settings: dict[str, str] = {}
    """Of the database, as it says itself."""
    limits: Limits = Limits()

    @property
    def durable(self) -> bool:
        """Whether what was acknowledged was on the disk."""
        return all(self.settings.get(name) == "on" for name in ("fsync", "synchronous_commit"))

    @property
    def flaws(self) -> list[str]:
        """What is wrong: in the database, in the answers, or with the figures."""
        figures = self.figures
        found = [f"{number} {SAID[name]}" for name, number in figures.zeros.items() if number]
        if not self.durable:
            found.append("the database did not wait for its disk: these figures are not of a shop")
        found += [
            f"{name} is {figures.ratios[name]:.2f}, and must be at least {FLOORS[name]:g}" for name in figures.short
        ]
        return found + (self._flaws_of(figures.overload) if figures.overload else [])

    def _flaws_of(self, overload: Cell) -> list[str]:
        """More came than could be served: the rest must hear so, all of them in time."""
        heard, found = overload.heard, []
        if heard.no_retry_after:
            found.append(f"{heard.no_retry_after} were turned away without a Retry-After")
        if not overload.shed:
            found.append(
                f"nobody was turned away: {self.plan.overload_connections} connections were no overload; "
                "ask for more (--overload), and allow as many open files (ulimit -n)"
            )
        if not overload.granted:
            found.append("nobody was served under overload")
        longest = max(heard.p99_ms or 0.0, heard.shed_p99_ms or 0.0) / 1000
        if longest > self.limits.request_seconds_max:
            found.append(
                f"under overload one in a hundred waited for more than {longest:.1f} seconds, and a request may take "
                f"{self.limits.request_seconds_max:g}"
            )
        return found

    def _plain_overload(self) -> dict[str, Any] | None:
        """With how many there were, and what the server was set to."""
        told, plan = self.figures.plain_overload(), self.plan
        if told is None:
            return None
        many = {"connections": plan.overload_connections, "times": plan.overload_connections / plan.connections}
        return {**told, **many, "settings": self.limits}

    def plain(self) -> dict[str, Any]:
        """The whole, ready for JSON."""
        figures = self.figures
        return {
            "ratios": figures.ratios,
            "floors": FLOORS,
            "short": figures.short,
            **figures.zeros,
            "contenders": {
                name: {
                    "rate": median(figures.rates(name)),
                    "rates": figures.rates(name),
                    "p50_ms": figures.middle(name, "p50_ms"),
                    "p99_ms": figures.middle(name, "p99_ms"),
                    "rounds": [cell.plain() for cell in cells],
                }
                for name, cells in figures.cells.items()
            },
            "overload": self._plain_overload(),
            "durable": self.durable,
            "settings": self.settings,
            "versions": self.versions,
            "machine": {"cores": self.cores},
            "plan": self.plan,
            "rounds": self.plan.rounds,
            "seconds": self.plan.seconds,
        }
