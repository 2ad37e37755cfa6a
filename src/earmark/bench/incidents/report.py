"""One incident as a report, the floors that it must meet, and all of them as the result of a run."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.bench.incidents import figures
from earmark.bench.incidents.figures import AFTER, ALL, BEFORE, DURING, HOT, OTHERS, Effects, Phase, Recovery, Second

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.bench.incidents.clients import Answer
    from earmark.bench.incidents.figures import Marks, Sample

PHASES = (BEFORE, DURING, AFTER)
P99_RATIO_MAX = 3.0
"""Of the events whose row is not locked, during over before."""
OTHERS_SHARE_MIN = 0.5
"""Of their throughput before, that they have during: quick refusals alone would make a fine p99."""
FIRST_OK_SECONDS_MAX = 5.0
BACK_SECONDS_MAX = 10
OVERLOADED_SHARE_LATE_MAX = 0.01
SERVER_FAULTS = frozenset({"internal", "status 500"})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which incidents, and how long each phase is; what is None is as the incident has it."""

    incidents: tuple[str, ...]
    seconds: float | None = None
    """How long an incident lasts."""
    clients: int | None = None
    warm_seconds: float = 3.0
    before_seconds: float = 10.0
    after_seconds: float = 15.0
    timeout_seconds: float = 25.0
    """How long a client waits for an answer: longer than most incidents last, so that it hears how they end."""
    rest_seconds: float = 0.1
    """How long a client rests that was granted nothing."""
    events: int = 5
    earmark: tuple[str, ...] = ()
    """The command that serves and migrates; else this program."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one incident came to."""

    incident: str
    said: str
    clients: int
    groups: tuple[str, ...]
    phases: dict[str, dict[str, Phase]]
    """By group, then by phase."""
    seconds: list[Second]
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
    """Whether the server's process was there in the end."""

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


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    plan: Plan
    reports: list[Report]
    versions: dict[str, str]

    @property
    def flaws(self) -> list[str]:
        """Of all incidents."""
        return [flaw for report in self.reports for flaw in report.flaws]

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
        return {"machine": machine, **msgspec.to_builtins(self), "flaws": self.flaws}


def report(
    *,
    incident: str,
    said: str,
    hot: bool,
    clients: int,
    answers: Sequence[Answer],
    samples: Sequence[Sample],
    marks: Marks,
    buyers: Collection[str],
    tracebacks: int,
    survived: bool,
) -> Report:
    """Everything that the answers, the samples and the database say of one incident."""
    groups = (HOT, OTHERS) if hot else (ALL,)
    phases = {name: figures.phases(figures.group(answers, name), marks) for name in dict.fromkeys((ALL, *groups))}
    return Report(
        incident=incident,
        said=said,
        clients=clients,
        groups=groups,
        phases=phases,
        seconds=figures.second_by_second(answers, samples, marks, groups=groups),
        effects=figures.effects(answers, buyers),
        recovery=figures.recovery(answers, marks, stopped=HOT if hot else ALL),
        p99_ratio=_ratio(phases[OTHERS]) if hot else None,
        others_share=_share(phases[OTHERS]) if hot else None,
        backends_max=max((sample.backends for sample in samples), default=0),
        sockets_max=max((sample.sockets for sample in samples), default=0),
        tracebacks=tracebacks,
        survived=survived,
    )


def _ratio(phases: dict[str, Phase]) -> float | None:
    """By the slower of two: of those who were granted something, and of all. Quick refusals do not make it better."""
    during, before = phases[DURING], phases[BEFORE]
    if during.p99_ms is None or not before.p99_ms:
        return None
    return round(max(during.p99_ms, during.p99_all_ms or 0.0) / before.p99_ms, 2)


def _share(phases: dict[str, Phase]) -> float | None:
    before = phases[BEFORE].ok_per_second
    return round(phases[DURING].ok_per_second / before, 3) if before else None


def _within(found: float | None, most: float) -> bool:
    return found is not None and found <= most


def _shown(seconds: float | None) -> str:
    return "longer than was measured" if seconds is None else f"{seconds:g} s"
