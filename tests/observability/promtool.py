"""Prometheus itself as the judge of our alerts: `promtool test rules`, where it is installed.

Pages become series, a sample a minute: twenty minutes as it was before, then as it is after. The question is whether
the alert fired at any time, its `for` included. Each question is put twice, once with each answer expected, and one
of the two must be right: a question that promtool does not understand has no answer, and never counts as silence.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import yaml  # type: ignore[import-untyped]
from tests.observability.promql import UNITS, Labels, Page, Query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

UNTESTED = "ALERTS ARE NOT JUDGED BY PROMETHEUS HERE"
MISSING = "promtool is not installed, and a small part of its language stands in. On Debian: apt-get install prometheus"
CALM_MINUTES = 20
MINUTES = 60
COUNTED = ("_total", "_count", "_sum", "_bucket")
SECONDS_MAX = 60.0
_WINDOW = re.compile(r"\[(\d+)([smhd])\]")
_VERDICT = re.compile(r"^Unit Testing:\s+(\S+)\s+(SUCCESS|FAILED)", re.MULTILINE)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, and the pages that it sees; times on them are by a clock that said `now`."""

    rule: dict[str, Any]
    before: Page
    after: Page
    now: float


def program() -> str | None:
    """Where promtool is, if it is."""
    return shutil.which("promtool")


def judge(scenarios: Sequence[Scenario], *, rules: Path, folder: Path) -> list[bool]:
    """Which of them fire."""
    promtool = program()
    assert promtool is not None, MISSING
    files = []
    for number, scenario in enumerate(scenarios):
        for fires in (True, False):
            files.append(folder / f"{number}-{'fires' if fires else 'silent'}.yml")
            alone = _alone(scenario, rules=rules, folder=folder)
            files[-1].write_text(yaml.safe_dump(_question(scenario, rules=alone, fires=fires)), encoding="utf-8")
    command = [promtool, "test", "rules", *(file.name for file in files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    verdicts = dict(_VERDICT.findall(done.stdout + done.stderr))
    right = [verdicts.get(file.name) == "SUCCESS" for file in files]
    for number, scenario in enumerate(scenarios):
        fires, silent = right[2 * number : 2 * number + 2]
        assert fires is not silent, (
            f"promtool does not know about {scenario.rule['alert']}:\n{done.stdout}{done.stderr}"
        )
    return right[::2]


def _alone(scenario: Scenario, *, rules: Path, folder: Path) -> Path:
    """The rules without the other alerts, which would all be judged with it at every minute."""
    alert = scenario.rule["alert"]
    alone = folder / f"{alert}-alone.rules.yml"
    if not alone.exists():
        said = yaml.safe_load(rules.read_text(encoding="utf-8"))
        for group in said["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule.get("alert", alert) == alert]
        said["groups"] = [group for group in said["groups"] if group["rules"]]
        alone.write_text(yaml.safe_dump(said), encoding="utf-8")
    return alone


def _question(scenario: Scenario, *, rules: Path, fires: bool) -> dict[str, Any]:
    fired = f'ALERTS{{alertname="{scenario.rule["alert"]}",alertstate="firing"}}'
    asked = {
        "expr": f"max(max_over_time({fired}[{MINUTES}m]))",
        "eval_time": f"{MINUTES}m",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }
    series = [{"series": name, "values": values} for name, values in _series(scenario)]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    return {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}


def _series(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Every series that the rule reads, minute by minute."""
    query = Query(scenario.rule["expr"], before=scenario.before, after=scenario.after, now=scenario.now)
    query.run()
    windows = {float(count) * UNITS[unit] / 60 for count, unit in _WINDOW.findall(scenario.rule["expr"])}
    assert len(windows) <= 1, "one window in a rule, or say here which is whose"
    window = 1.0 if scenario.rule["for"] == "0m" or not windows else windows.pop()
    for name in sorted({name for name, _ in query.selected}):
        before, after = scenario.before.get(name, {}), scenario.after.get(name, {})
        for labels in sorted(before.keys() | after.keys(), key=sorted):
            values = _values(name, before.get(labels), after.get(labels), window=window, now=scenario.now)
            yield f"{name}{{{_worded(labels)}}}", values


def _values(name: str, before: float | None, after: float | None, *, window: float, now: float) -> str:
    """In the notation of promtool: `a+bxn` is a, and n more, each by b greater than the one before it."""
    rest = MINUTES - CALM_MINUTES
    if name.endswith("_timestamp_seconds") and after is not None:
        return f"{after - now:+}+60x{MINUTES}"
    calm = f"_x{CALM_MINUTES}" if before is None else f"{_number(before)}+0x{CALM_MINUTES - 1}"
    if after is None:
        return calm
    if not name.endswith(COUNTED) or after == before:
        return f"{calm} {_number(after)}+0x{rest}"
    start, grows = before or 0.0, after - (before or 0.0)
    if window <= 1:
        return f"{calm} {_number(after)}+0x{rest}"
    # A rate is of the whole window: so much in each of its minutes, for as long as we look.
    return f"{calm} {start + grows / window!r}+{grows / window!r}x{rest}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Inf" if math.isinf(value) else repr(value)


def _worded(labels: Labels) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels))
