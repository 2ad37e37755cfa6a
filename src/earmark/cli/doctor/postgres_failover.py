"""Checks replication: whether a failover would lose acknowledged bookings, and whether commits hang."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.store.both_databases.database_diagnostics import Replication, Standby

CHECK = "failover"
WAITING_SECONDS_MAX = 5.0
"""A commit that has waited longer for its standby is waiting for one that does not answer."""
CONFIRMS = frozenset({"sync", "quorum"})
NEEDS_NO_STANDBY = frozenset({"off", "local"})
_COUNTED = re.compile(r"\s*(?:(?:first|any)\s+)?(\d+)\s*\(", re.IGNORECASE)


def findings(replication: Replication) -> Finding:
    """What a failover would lose, and which setting to change."""
    if replication.in_recovery:
        said = "This server is a standby: it refuses every write."
        advice = (
            "Name all servers in EARMARK_DATABASE_URL, and no target_session_attrs but read-write. "
            "If they are named, none of them takes writes now: promote one."
        )
        return problem(CHECK, said, advice)
    if _is_hidden(replication):
        said = "This role may not see the standbys, so it is not known what a failover would lose."
        if _is_stuck(replication):
            said += f" {_waiting(replication)}."
        return problem(CHECK, said, "GRANT pg_read_all_stats to the role in EARMARK_DATABASE_URL.")
    return _named(replication) if replication.synchronous_standby_names else _unnamed(replication)


def why_no_write(replication: Replication | None) -> str | None:
    """Why a write would be refused here, or hang; None where neither is known."""
    if replication is None:
        return None
    if replication.in_recovery:
        return "this server is a standby."
    if _hangs(replication) or _is_stuck(replication):
        return "commits wait for a standby that does not answer."
    return None


def needed(names: str) -> int:
    """How many standbys a commit waits for: as `FIRST 2 (a, b)`, `ANY 2 (a, b)` and `2 (a, b)` say, else one."""
    found = _COUNTED.match(names)
    return int(found[1]) if found else 1


def _named(replication: Replication) -> Finding:
    if replication.synchronous_commit in NEEDS_NO_STANDBY:
        return _unwaited(replication)
    if _hangs(replication):
        return _absent(replication)
    if _is_stuck(replication):
        return _silent(replication)
    return _waited(replication)


def _unnamed(replication: Replication) -> Finding:
    if not replication.standbys:
        said = "No standby is connected: the loss of this machine would lose everything since the last backup."
        return note(CHECK, said, "See docs/howto/high-availability.md.")
    said = f"A failover may lose acknowledged bookings: commits wait for no standby, and {_lags(replication.standbys)}."
    advice = "Name the standbys in synchronous_standby_names; with Patroni, set synchronous_mode to true."
    return problem(CHECK, said, advice)


def _unwaited(replication: Replication) -> Finding:
    setting = f"synchronous_commit = {replication.synchronous_commit}"
    lags = f", and {_lags(replication.standbys)}" if replication.standbys else ""
    said = f"A failover may lose acknowledged bookings: commits do not wait for the standby ({setting}){lags}."
    return problem(CHECK, said, "Set synchronous_commit to on, for this database and for the role that Earmark uses.")


def _hangs(replication: Replication) -> bool:
    """Whether a commit waits for more standbys than are there."""
    if not replication.synchronous_standby_names or replication.synchronous_commit in NEEDS_NO_STANDBY:
        return False
    if _is_hidden(replication):
        return False
    return len(_confirming(replication)) < needed(replication.synchronous_standby_names)


def _is_hidden(replication: Replication) -> bool:
    return any(standby.sync_state is None for standby in replication.standbys)


def _absent(replication: Replication) -> Finding:
    names, there = replication.synchronous_standby_names, len(_confirming(replication))
    said = (
        f"Every commit hangs: it waits for {_count(needed(names))} of synchronous_standby_names = '{names}', "
        f"and {there or 'none'} is connected."
    )
    advice = (
        "Start the standby. Where it is gone for good, take its name out of synchronous_standby_names; "
        "until another one follows, a failover would lose bookings."
    )
    return problem(CHECK, said, advice)


def _is_stuck(replication: Replication) -> bool:
    return replication.waiting_seconds > WAITING_SECONDS_MAX


def _silent(replication: Replication) -> Finding:
    said = f"{_waiting(replication)}; {_lags(replication.standbys)}."
    return problem(CHECK, said, "Look at the standby: it is connected and confirms nothing.")


def _waiting(replication: Replication) -> str:
    commits, seconds = replication.waiting_commits, replication.waiting_seconds
    return f"Commits hang: {commits} wait for a standby, the oldest for {seconds:.0f} s"


def _waited(replication: Replication) -> Finding:
    confirming = _confirming(replication)
    names = _listed(confirming)
    if replication.synchronous_commit == "remote_write":
        said = (
            f"A failover to {names} loses nothing, unless that machine loses its power too: commits do not wait for "
            f"its disk (synchronous_commit = remote_write)."
        )
        return note(CHECK, said, "Set synchronous_commit to on.")
    said = f"A failover to {names} loses nothing that was acknowledged: every commit waits for it."
    if len(confirming) > needed(replication.synchronous_standby_names):
        said = f"A failover loses nothing that was acknowledged if the one of {names} is promoted that has most."
    if others := [standby for standby in replication.standbys if standby not in confirming]:
        said += f" A failover to {_listed(others)} may: {_lags(others)}."
    return ok(CHECK, said)


def _confirming(replication: Replication) -> list[Standby]:
    return [standby for standby in replication.standbys if standby.sync_state in CONFIRMS]


def _lags(standbys: Sequence[Standby]) -> str:
    return ", ".join(f"{standby.name} is {_bytes(standby)} bytes behind" for standby in standbys)


def _bytes(standby: Standby) -> str:
    return "an unknown number of" if standby.lag_bytes is None else f"{standby.lag_bytes:,}"


def _listed(standbys: Sequence[Standby]) -> str:
    return ", ".join(str(standby.name) for standby in standbys)


def _count(number: int) -> str:
    return "one" if number == 1 else str(number)
