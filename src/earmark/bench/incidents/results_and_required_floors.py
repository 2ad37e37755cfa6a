"""The report of one incident with the floors that it must meet, and the result of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.incidents import analysis
from earmark.bench.incidents.analysis import (
    AFTER,
    ALL,
    BEFORE,
    DURING,
    HOT,
    OTHERS,
    Effects,
    IncidentPhase,
    Recovery,
    SecondFigures,
)
from earmark.bench.report.machine import describe_machine

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.bench.incidents.analysis import PhaseTimes, SystemSample
    from earmark.bench.incidents.clients import ClientAnswer

PHASES = (BEFORE, DURING, AFTER)
P99_RATIO_MAX = 3.0
"""Of the events whose row is not locked, during over before."""
OTHERS_SHARE_MIN = 0.5
"""Of their throughput before the incident: quick refusals alone would make a good p99."""
FIRST_OK_SECONDS_MAX = 5.0
BACK_SECONDS_MAX = 10
OVERLOADED_SHARE_LATE_MAX = 0.01
SERVER_FAULTS = frozenset({"internal", "status 500"})


class IncidentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which incidents, and how long each phase is; None stands for the default of the incident."""

    incidents: tuple[str, ...]
    seconds: float | None = None
    """How long an incident lasts."""
    clients: int | None = None
    warm_seconds: float = 3.0
    before_seconds: float = 10.0
    after_seconds: float = 15.0
    timeout_seconds: float = 25.0
    """How long a client waits for an answer: longer than most incidents, so that it gets their last answers."""
    rest_seconds: float = 0.1
    """How long a client pauses after a refusal."""
    events: int = 5
    earmark: tuple[str, ...] = ()
    """The command that serves and migrates; else this program."""


class IncidentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one incident."""

    incident: str
    said: str
    clients: int
    groups: tuple[str, ...]
    phases: dict[str, dict[str, IncidentPhase]]
    """By group, then by phase."""
    seconds: list[SecondFigures]
    effects: Effects
    recovery: Recovery
    p99_ratio: float | None
    """Of the other events, during over before; None where no event is hot."""
    others_share: float | None
    """Of their throughput before, that the other events had during."""
    backends_max: int
    sockets_max: int
    tracebacks: int
    """In the server's log."""
    survived: bool
    """Whether the server's process still ran in the end."""

    @property
    def flaws(self) -> list[str]:
        """Floors that were missed."""
        told, back = self.effects, self.recovery
        codes = self.phases[ALL]
        faults = sum(phase.codes.get(code, 0) for phase in codes.values() for code in SERVER_FAULTS)
        checks = {
            "the server's process ended": self.survived,
            f"{told.lost} acknowledged bookings are not in the database": told.lost == 0,
            f"{told.told_no_kept} requests were told no and carried out all the same": told.told_no_kept == 0,
            f"{faults} requests were answered with an internal error": faults == 0,
            f"the first hold after it took {_shown(back.first_ok_seconds)}": _within(
                back.first_ok_seconds, FIRST_OK_SECONDS_MAX
            ),
            f"70 % of the throughput before took {_shown(back.back_70_seconds)}": _within(
                back.back_70_seconds, BACK_SECONDS_MAX
            ),
            f"{back.overloaded_share_late:.1%} were told overloaded after it had passed": (
                back.overloaded_share_late <= OVERLOADED_SHARE_LATE_MAX
            ),
        }
        if OTHERS in self.groups:
            ratio = "none was served" if self.p99_ratio is None else f"{self.p99_ratio:g} times that before"
            checks[f"the p99 of the other events was {ratio}"] = _within(self.p99_ratio, P99_RATIO_MAX)
            share = self.others_share or 0.0
            checks[f"the other events had {share:.0%} of their throughput"] = share >= OTHERS_SHARE_MIN
        return [f"{self.incident}: {flaw}" for flaw, holds in checks.items() if not holds]


class IncidentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of all incidents."""

    plan: IncidentPlan
    reports: list[IncidentReport]
    versions: dict[str, str]

    @property
    def flaws(self) -> list[str]:
        """The flaws of all incidents."""
        return [flaw for report in self.reports for flaw in report.flaws]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        return {"machine": describe_machine(), **msgspec.to_builtins(self), "flaws": self.flaws}


def report(
    *,
    incident: str,
    said: str,
    hot: bool,
    clients: int,
    answers: Sequence[ClientAnswer],
    samples: Sequence[SystemSample],
    marks: PhaseTimes,
    buyers: Collection[str],
    tracebacks: int,
    survived: bool,
) -> IncidentReport:
    """The report of one incident, from the answers, the samples and the database."""
    groups = (HOT, OTHERS) if hot else (ALL,)
    phases = {name: analysis.phases(analysis.group(answers, name), marks) for name in dict.fromkeys((ALL, *groups))}
    return IncidentReport(
        incident=incident,
        said=said,
        clients=clients,
        groups=groups,
        phases=phases,
        seconds=analysis.second_by_second(answers, samples, marks, groups=groups),
        effects=analysis.effects(answers, buyers),
        recovery=analysis.recovery(answers, marks, stopped=HOT if hot else ALL),
        p99_ratio=_ratio(phases[OTHERS]) if hot else None,
        others_share=_share(phases[OTHERS]) if hot else None,
        backends_max=max((sample.backends for sample in samples), default=0),
        sockets_max=max((sample.sockets for sample in samples), default=0),
        tracebacks=tracebacks,
        survived=survived,
    )


def _ratio(phases: dict[str, IncidentPhase]) -> float | None:
    """By the slower of two: granted requests, and all requests. So quick refusals do not improve it."""
    during, before = phases[DURING], phases[BEFORE]
    if during.p99_ms is None or not before.p99_ms:
        return None
    return round(max(during.p99_ms, during.p99_all_ms or 0.0) / before.p99_ms, 2)


def _share(phases: dict[str, IncidentPhase]) -> float | None:
    before = phases[BEFORE].ok_per_second
    return round(phases[DURING].ok_per_second / before, 3) if before else None


def _within(found: float | None, most: float) -> bool:
    return found is not None and found <= most


def _shown(seconds: float | None) -> str:
    return "longer than was measured" if seconds is None else f"{seconds:g} s"
