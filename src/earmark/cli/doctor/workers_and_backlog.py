"""Checks that the workers run, and that no due hold and no journal entry waits for them too long."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, age, fixed, note, ok, problem
from earmark.engine.engine import Engine
from earmark.engine.ports.heartbeats import WELL, alive_seconds
from earmark.engine.ports.number_and_read_journal import START
from earmark.observability.alert_thresholds import LATE_SECONDS
from earmark.uuids import Uuid7Ids
from earmark.version import __version__
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from datetime import datetime

    from earmark.config import Settings
    from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
    from earmark.engine.ports.store import Store

BEATS_MAX = 1000
BATCH = 100
FAILS_ADVICE = "Its log has the whole error."


async def findings(store: Store, settings: Settings, *, fix: bool) -> AsyncIterator[Finding]:
    """Run these checks, in an order in which one finding explains the next."""
    for finding in beats(
        await store.heartbeats.read(limit=BEATS_MAX), seconds=alive_seconds(settings.heartbeat_seconds)
    ):
        yield await _forget(store, settings) if fix and finding.fixable else finding
    yield await sweeping(store, fix=fix)
    yield await relaying(store, fix=fix, mail=settings.smtp_url is not None)


def beats(roll: HeartbeatList, *, seconds: float) -> Iterator[Finding]:
    """Whether each role has a running worker, and whether its rounds succeed."""
    alive = [beat for beat in roll.heartbeats if roll.now - beat.beat_at <= timedelta(seconds=seconds)]
    silent = [beat for beat in roll.heartbeats if beat not in alive]
    if missing := [role for role in ROLES if role not in {beat.role for beat in alive}]:
        said = f"No {_listed(missing)} is running."
        yield problem("workers", said, "Run `earmark worker`, or serve with EARMARK_EMBEDDED_WORKERS=on.")
    for beat in alive:
        if beat.code not in WELL:
            since = f" since {beat.failing_since:%Y-%m-%d %H:%M:%S} UTC" if beat.failing_since else ""
            why = f" ({beat.because})" if beat.because else ""
            yield problem("workers", f"The {beat.role} on {beat.host} fails{since}: {beat.code}{why}.", FAILS_ADVICE)
    if old := sorted({f"{beat.version} on {beat.host}" for beat in alive if beat.version != __version__}):
        yield note("workers", f"Workers of other versions than {__version__} are running: {', '.join(old)}.")
    if silent:
        yield note(
            "workers", f"No heartbeat any more from: {_names(silent)}.", "They were killed, or hang.", fixable=True
        )
    if not missing:
        yield ok("workers", f"Running: {_names(alive)}.")


async def _forget(store: Store, settings: Settings) -> Finding:
    cleared = await store.heartbeats.clear(seconds=alive_seconds(settings.heartbeat_seconds), limit=BEATS_MAX)
    return fixed("workers", f"{cleared} heartbeats of ended workers were deleted.")


async def sweeping(store: Store, *, fix: bool) -> Finding:
    """Holds whose time is over: their seats can be sold, but lists and counts still include them."""
    left = await store.upkeep.backlog()
    if not _late(left.due_since, left.now):
        return ok("sweeping", "Holds end in time.")
    said = f"{left.due} holds are due and not ended, since {age(left.due_since, left.now)}."
    if not fix:
        return problem("sweeping", said, "Run `earmark worker`; `--fix` ends them now.", fixable=True)
    engine, ended = Engine(store, ids=Uuid7Ids()), 0
    while expired := await engine.expire(limit=BATCH, reason="doctor"):
        ended += len(expired)
    return fixed("sweeping", f"{ended} due holds were ended.")


async def relaying(store: Store, *, fix: bool, mail: bool = False) -> Finding:
    """Journal entries without a number: followers and webhooks do not get them yet."""
    left = await store.upkeep.backlog()
    if not _late(left.unsent_since, left.now):
        return ok("relaying", "Journal entries are numbered in time.")
    said = f"{left.unsent} journal entries have no number, the oldest since {age(left.unsent_since, left.now)}."
    if not fix:
        return problem("relaying", said, "Run `earmark worker`; `--fix` numbers them now.", fixable=True)
    given, after, behind = 0, START, True
    while behind or after != START:
        numbering = await store.outbox.number(after=after, limit=BATCH, tell=False, mail=mail)
        behind = (behind and after != START) or numbering.more
        given, after = given + numbering.count, numbering.after
    return fixed("relaying", f"{given} entries were numbered.")


def _late(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > timedelta(seconds=LATE_SECONDS)


def _names(some: list[HeartbeatRow]) -> str:
    return ", ".join(f"{beat.role} on {beat.host}" for beat in some)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
