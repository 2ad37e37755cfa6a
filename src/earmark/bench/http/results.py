"""The results of the HTTP bench: rates, ratios and flaws, computed from measurements without any I/O."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from earmark.bench.http.load_generator import CREATED, SHED, HttpAnswers
from earmark.bench.http.measured_servers import EMPTY, OURS, PEER
from earmark.bench.prepare_and_count_rows import CountedRows
from earmark.bench.report.quantiles_and_ratios import median_ratio
from earmark.config import Settings

HOLD, GENERATOR = "hold_vs_fastapi_for_update", "generator_vs_best"
FLOORS = {HOLD: 5.0, GENERATOR: 1.5}
AIMS = {HOLD: 8.0}
MUST_BE_ZERO = ("oversold", "lost", "unanswered", "failed", "missing")
FLAW_TEXTS = {
    "oversold": "seats were sold more than once",
    "lost": "bookings that a client was told it has are not there",
    "unanswered": "requests got no answer",
    "failed": "requests got an answer that was neither yes nor `come again`",
    "missing": "bookings are there that no client was told of",
}


OVERLOAD_EACH = 6000
"""Connections for each process of a server: more than its queue accepts, however fast it is."""


class HttpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often each server is measured."""

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
    """More than any server can answer: each request has its own seats, and these must not run out."""
    warm_seconds: float = 1.0
    empty_share: float = 0.5
    """Of the seconds, for the endpoint that does nothing."""
    log_files: int = 128
    """Enough for a run of defaults, so that PostgreSQL creates no log file during a round."""


class HttpMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """One contender under one load: the answers to the clients, and the counted rows."""

    answers: HttpAnswers
    counted: CountedRows | None = None
    """None for the server without a database."""

    @property
    def granted(self) -> int:
        """Holds that were granted, by the answers."""
        return self.answers.statuses.get(CREATED, 0)

    @property
    def shed(self) -> int:
        """Requests that were refused because of overload."""
        return sum(number for status, number in self.answers.statuses.items() if status in SHED)

    @property
    def rate(self) -> float:
        """Holds per second, counted in the database where there is one."""
        return (self.granted if self.counted is None else self.counted.held) / self.answers.seconds

    @property
    def zeros(self) -> dict[str, int]:
        """The counts that must be zero."""
        rows = self.counted
        return {
            "oversold": rows.oversold if rows else 0,
            "lost": rows.lost if rows else 0,
            "unanswered": self.answers.unanswered,
            "failed": sum(self.answers.statuses.values()) - self.granted - self.shed,
            # A request without an answer may have made its booking: no client was told otherwise.
            "missing": max(rows.held - self.granted - self.answers.unanswered, 0) if rows else 0,
        }

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        return {
            "rate": self.rate,
            "p50_ms": self.answers.p50_ms,
            "p99_ms": self.answers.p99_ms,
            "statuses": self.answers.statuses,
            "seconds": self.answers.seconds,
            "client_us": self.answers.client_seconds / max(self.granted, 1) * 1e6,
            **({"held": self.counted.held} if self.counted else {}),
            **self.zeros,
        }


class HttpFigures(msgspec.Struct):
    """The measurements so far by contender, and the overload."""

    measurements: dict[str, list[HttpMeasurement]] = msgspec.field(default_factory=dict)
    overload: HttpMeasurement | None = None

    def add(self, contender: str, measurement: HttpMeasurement) -> None:
        """Add a round of one contender."""
        self.measurements.setdefault(contender, []).append(measurement)

    def rates(self, contender: str) -> list[float]:
        """The rates of the rounds."""
        return [measurement.rate for measurement in self.measurements.get(contender, [])]

    def middle(self, contender: str, figure: str) -> float | None:
        """The median over the rounds."""
        values = [getattr(measurement.answers, figure) for measurement in self.measurements.get(contender, [])]
        known = [value for value in values if value is not None]
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
        """The counts that must be zero, over all measurements. A refusal without overload counts as failed."""
        calm = [measurement for rounds in self.measurements.values() for measurement in rounds]
        every = [*calm, *([self.overload] if self.overload else [])]
        found = {name: sum(measurement.zeros[name] for measurement in every) for name in MUST_BE_ZERO}
        return found | {"failed": found["failed"] + sum(measurement.shed for measurement in calm)}

    def plain_overload(self) -> dict[str, Any] | None:
        """The figures of the overload."""
        measurement = self.overload
        if measurement is None:
            return None
        answers = sum(measurement.answers.statuses.values())
        return {
            **measurement.plain(),
            "shed": measurement.shed,
            "shed_share": measurement.shed / max(answers, 1),
            "shed_p50_ms": measurement.answers.shed_p50_ms,
            "shed_p99_ms": measurement.answers.shed_p99_ms,
            "without_retry_after": measurement.answers.no_retry_after,
            "unloaded_p99_ms": self.middle(OURS, "p99_ms"),
            "unloaded_rate": median(rates) if (rates := self.rates(OURS)) else None,
        }


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which our server refuses; its defaults, unless the operator has set them for this run."""

    queue_seconds_max: float = Settings().queue_seconds_max
    request_seconds_max: float = Settings().request_seconds_max
    queue_length_max: int = Settings().queue_length_max


class HttpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, and what it was measured with."""

    plan: HttpPlan
    figures: HttpFigures
    versions: dict[str, str]
    cores: int
    settings: dict[str, str] = {}
    """The settings of the database, as it reports them."""
    limits: ServerLimits = ServerLimits()

    @property
    def durable(self) -> bool:
        """Whether what was acknowledged was on the disk."""
        return all(self.settings.get(name) == "on" for name in ("fsync", "synchronous_commit"))

    @property
    def flaws(self) -> list[str]:
        """What is wrong: in the database, in the answers, or with the figures."""
        figures = self.figures
        found = [f"{number} {FLAW_TEXTS[name]}" for name, number in figures.zeros.items() if number]
        if not self.durable:
            found.append("the database did not wait for its disk: these figures do not apply to production")
        found += [
            f"{name} is {figures.ratios[name]:.2f}, and must be at least {FLOORS[name]:g}" for name in figures.short
        ]
        return found + (self._flaws_of(figures.overload) if figures.overload else [])

    def _flaws_of(self, overload: HttpMeasurement) -> list[str]:
        """Under overload the other requests must be refused in time."""
        answers, found = overload.answers, []
        if answers.no_retry_after:
            found.append(f"{answers.no_retry_after} were turned away without a Retry-After")
        if not overload.shed:
            found.append(
                f"no request was turned away: {self.plan.overload_connections} connections were no overload; "
                "ask for more (--overload), and allow as many open files (ulimit -n)"
            )
        if not overload.granted:
            found.append("no request was served under overload")
        longest = max(answers.p99_ms or 0.0, answers.shed_p99_ms or 0.0) / 1000
        if longest > self.limits.request_seconds_max:
            found.append(
                f"under overload one in a hundred waited for more than {longest:.1f} seconds, and a request may take "
                f"{self.limits.request_seconds_max:g}"
            )
        return found

    def _plain_overload(self) -> dict[str, Any] | None:
        """The overload with its number of connections and the settings of the server."""
        figures, plan = self.figures.plain_overload(), self.plan
        if figures is None:
            return None
        many = {"connections": plan.overload_connections, "times": plan.overload_connections / plan.connections}
        return {**figures, **many, "settings": self.limits}

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
                    "rounds": [measurement.plain() for measurement in measurements],
                }
                for name, measurements in figures.measurements.items()
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
