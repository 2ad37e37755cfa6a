"""The figures of one incident: by second, by phase, and the answers compared with the database."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.incidents.clients import CLOSED, OK, REFUSED, TIMEOUT, ClientAnswer
from earmark.bench.report.quantiles_and_ratios import quantile_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

ALL, HOT, OTHERS = "all", "hot", "others"
"""Groups of clients: all, those of the event whose row is locked, and those of the other events."""
BEFORE, DURING, AFTER = "before", "during", "after"
OVERLOADED = "overloaded"
UNKNOWN = frozenset({"outcome_unknown"})
"""Answers that leave the outcome open."""
NO_ANSWER = frozenset({TIMEOUT, CLOSED, REFUSED})
SMOOTHED_SECONDS = 3
"""Throughput counts as recovered when the median of so many seconds has."""
AT_ONCE_SECONDS = 5.0
LATE_SECONDS = 2.0
"""So long after the end of an incident, no request should be refused any more."""


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the phases begin and end, by the monotonic clock."""

    measured: float
    """The warm-up is over."""
    struck: float
    """The incident begins."""
    healed: float
    """Its cause has ended."""
    ended: float
    """The clients were stopped."""


class SystemSample(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the system at one moment, seen from outside."""

    at: float
    backends: int
    """Processes of PostgreSQL that serve a client of the server."""
    sockets: int
    """Connections to PostgreSQL that the server's process has open or is opening."""
    ready: str
    """What `/readyz` answered: a status, or `timeout`."""


class SecondFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one second."""

    second: int
    """From the beginning of the incident; before it, negative."""
    codes: dict[str, dict[str, int]]
    """How often each answer came, by group."""
    p50_ms: dict[str, float | None]
    """Of the holds that were granted."""
    backends: int | None
    sockets: int | None
    ready: str | None


class IncidentPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One group of clients in one phase."""

    seconds: float
    ok_per_second: float
    p50_ms: float | None
    """Of the holds that were granted. A request that overlaps the incident belongs to it."""
    p99_ms: float | None
    p99_all_ms: float | None
    """Of all requests, whatever the answer."""
    codes: dict[str, int]


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to the clients, compared with the database in the end."""

    acknowledged: int
    lost: int
    """Of these, not in the database."""
    told_no: int
    """Refusals."""
    told_no_kept: int
    """Of these, requests that are in the database all the same."""
    unknown: int
    """Answers that leave the outcome open."""
    unknown_kept: int
    no_answer: int
    no_answer_kept: int
    kept_by_code: dict[str, int]
    """Requests that took effect, by their answer; those without an effect are left out."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How soon the system has recovered, in seconds after the cause has ended; None where it has not."""

    first_ok_seconds: float | None
    """Until the first hold was granted to a client that the incident had stopped."""
    back_70_seconds: int | None
    """Until 70 % of the throughput before was reached."""
    back_90_seconds: int | None
    overloaded_share: float
    """Of all answers in the five seconds after."""
    overloaded_share_late: float
    """Of all answers from two seconds after to the end."""


def effects(answers: Iterable[ClientAnswer], buyers: Collection[str]) -> Effects:
    """Compare every answer with the buyers that have a booking."""
    told: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for answer in answers:
        told[answer.code] += 1
        kept[answer.code] += answer.buyer in buyers
    no = {code for code in told if code != OK and code not in UNKNOWN | NO_ANSWER}

    def count(counter: Counter[str], codes: Collection[str]) -> int:
        return sum(counter[code] for code in codes)

    return Effects(
        acknowledged=told[OK],
        lost=told[OK] - kept[OK],
        told_no=count(told, no),
        told_no_kept=count(kept, no),
        unknown=count(told, UNKNOWN),
        unknown_kept=count(kept, UNKNOWN),
        no_answer=count(told, NO_ANSWER),
        no_answer_kept=count(kept, NO_ANSWER),
        kept_by_code={code: number for code, number in sorted(kept.items()) if number},
    )


def phases(answers: Sequence[ClientAnswer], marks: PhaseTimes) -> dict[str, IncidentPhase]:
    """The three phases. An answer counts where it arrives; a latency that overlaps the incident belongs to it."""
    bounds = {
        BEFORE: (marks.measured, marks.struck),
        DURING: (marks.struck, marks.healed),
        AFTER: (marks.healed, marks.ended),
    }
    belongs: dict[str, Callable[[ClientAnswer], bool]] = {
        BEFORE: lambda one: one.sent >= marks.measured and one.heard < marks.struck,
        DURING: lambda one: one.heard >= marks.struck and one.sent < marks.healed,
        AFTER: lambda one: marks.healed <= one.sent < marks.ended,
    }
    return {
        name: _phase(
            heard=[one for one in answers if begins <= one.heard < ends],
            timed=[one for one in answers if belongs[name](one)],
            seconds=ends - begins,
        )
        for name, (begins, ends) in bounds.items()
    }


def _phase(*, heard: Sequence[ClientAnswer], timed: Sequence[ClientAnswer], seconds: float) -> IncidentPhase:
    codes = Counter(one.code for one in heard)
    granted = sorted(one.heard - one.sent for one in timed if one.code == OK)
    return IncidentPhase(
        seconds=round(seconds, 2),
        ok_per_second=round(codes[OK] / seconds, 1) if seconds > 0 else 0.0,
        p50_ms=milliseconds(granted, 0.5),
        p99_ms=milliseconds(granted, 0.99),
        p99_all_ms=milliseconds(sorted(one.heard - one.sent for one in timed), 0.99),
        codes=dict(codes.most_common()),
    )


def milliseconds(ordered: Sequence[float], share: float) -> float | None:
    """A quantile of seconds in milliseconds; None of an empty sequence."""
    found = quantile_ms(ordered, share)
    return None if found is None else round(found, 1)


def second_by_second(
    answers: Sequence[ClientAnswer], samples: Sequence[SystemSample], marks: PhaseTimes, *, groups: Sequence[str]
) -> list[SecondFigures]:
    """The figures of each second, from the end of the warm-up on."""
    seen = {math.floor(sample.at - marks.struck): sample for sample in samples}
    heard: dict[int, list[ClientAnswer]] = {}
    for one in answers:
        heard.setdefault(math.floor(one.heard - marks.struck), []).append(one)
    first, last = math.ceil(marks.measured - marks.struck), math.floor(marks.ended - marks.struck)
    return [_second(number, heard.get(number, ()), seen.get(number), groups=groups) for number in range(first, last)]


def _second(
    number: int, heard: Sequence[ClientAnswer], sample: SystemSample | None, *, groups: Sequence[str]
) -> SecondFigures:
    of = {name: group(heard, name) for name in groups}
    return SecondFigures(
        second=number,
        codes={name: dict(Counter(one.code for one in these).most_common()) for name, these in of.items()},
        p50_ms={
            name: milliseconds(sorted(one.heard - one.sent for one in these if one.code == OK), 0.5)
            for name, these in of.items()
        },
        backends=sample.backends if sample else None,
        sockets=sample.sockets if sample else None,
        ready=sample.ready if sample else None,
    )


def group(answers: Sequence[ClientAnswer], name: str) -> list[ClientAnswer]:
    """The answers to one group of clients. The first event is the hot one."""
    return [one for one in answers if name == ALL or (one.event == 0) == (name == HOT)]


def recovery(answers: Sequence[ClientAnswer], marks: PhaseTimes, *, stopped: str) -> Recovery:
    """How soon the system has recovered; `stopped` is the group that the incident had stopped."""
    after = [one for one in answers if marks.healed <= one.heard < marks.ended]
    first = min((one.heard for one in group(after, stopped) if one.code == OK), default=None)
    usual = median(per_second(answers, begins=marks.measured, ends=marks.struck) or [0])
    counts = per_second(answers, begins=marks.healed, ends=marks.ended)
    return Recovery(
        first_ok_seconds=None if first is None else round(first - marks.healed, 2),
        back_70_seconds=seconds_until(counts, 0.7 * usual),
        back_90_seconds=seconds_until(counts, 0.9 * usual),
        overloaded_share=_overloaded(one for one in after if one.heard < marks.healed + AT_ONCE_SECONDS),
        overloaded_share_late=_overloaded(one for one in after if one.heard >= marks.healed + LATE_SECONDS),
    )


def per_second(answers: Iterable[ClientAnswer], *, begins: float, ends: float) -> list[int]:
    """Holds granted in each whole second."""
    counts = [0] * max(int(ends - begins), 0)
    for one in answers:
        if one.code == OK and 0 <= one.heard - begins < len(counts):
            counts[int(one.heard - begins)] += 1
    return counts


def seconds_until(counts: Sequence[int], wanted: float) -> int | None:
    """After how many seconds the median of the next few reaches the wanted value: one good second is not enough."""
    for number in range(max(len(counts) - SMOOTHED_SECONDS + 1, 1) if counts else 0):
        if counts[number] >= wanted and median(counts[number : number + SMOOTHED_SECONDS]) >= wanted:
            return number
    return None


def _overloaded(answers: Iterable[ClientAnswer]) -> float:
    codes = Counter(one.code for one in answers)
    return round(codes[OVERLOADED] / codes.total(), 4) if codes else 0.0
