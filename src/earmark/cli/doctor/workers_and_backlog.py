"""Checks the workers and what they should have done: due holds, journal entries, counts, and open payments."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, fixed, note, ok, problem
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.engine.ports.heartbeats import WELL, alive_seconds
from earmark.engine.ports.number_and_read_journal import START
from earmark.observability.alert_thresholds import LATE_SECONDS, OPEN_PAYMENT_SECONDS
from earmark.uuids import Uuid7Ids
from earmark.version import __version__
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.config import Settings
    from earmark.engine.ports.heartbeats import HeartbeatList, HeartbeatRow
    from earmark.engine.ports.payment_monitoring_reads import MoneyWatch
    from earmark.engine.ports.store import Flaw, Store

BEATS_MAX = 1000
BATCH = 100
FAILS_ADVICE = "Its log has the whole error."
FLAWS_MAX = 20
RECOUNTS_MAX = 1000
MONEY_MAX = 1000

LIVE_ADVICE = "Does any process run the reconciler, with its gateway set up? Some banks take days for a refund."
TEST_ADVICE = (
    "A test payment at a server's own sandbox is known to that process alone. Once that process has ended, the "
    "reconciler of any server gives it up after a day."
)
COUNTS = frozenset(
    {
        "a pool's counts are the sum of its active bookings",
        "a buyer's total is the sum of the buyer's active bookings",
    }
)
"""The rules of `earmark verify` whose violations a recount corrects."""


async def findings(store: Store, settings: Settings, *, fix: bool) -> AsyncIterator[Finding]:
    """Run all checks, in an order in which one finding explains the next."""
    for finding in beats(
        await store.heartbeats.read(limit=BEATS_MAX), seconds=alive_seconds(settings.heartbeat_seconds)
    ):
        yield await _forget(store, settings) if fix and finding.fixable else finding
    yield await sweeping(store, fix=fix)
    yield await relaying(store, fix=fix)
    async for finding in counts(store, fix=fix):
        yield finding
    async for finding in money(store):
        yield finding


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
    said = f"{left.due} holds are due and not ended, since {_age(left.due_since, left.now)}."
    if not fix:
        return problem("sweeping", said, "Run `earmark worker`; `--fix` ends them now.", fixable=True)
    engine, ended = Engine(store, ids=Uuid7Ids()), 0
    while expired := await engine.expire(limit=BATCH, reason="doctor"):
        ended += len(expired)
    return fixed("sweeping", f"{ended} due holds were ended.")


async def relaying(store: Store, *, fix: bool) -> Finding:
    """Journal entries without a number: followers and webhooks do not get them yet."""
    left = await store.upkeep.backlog()
    if not _late(left.unsent_since, left.now):
        return ok("relaying", "Journal entries are numbered in time.")
    said = f"{left.unsent} journal entries have no number, the oldest since {_age(left.unsent_since, left.now)}."
    if not fix:
        return problem("relaying", said, "Run `earmark worker`; `--fix` numbers them now.", fixable=True)
    given, after, behind = 0, START, True
    while behind or after != START:
        numbering = await store.outbox.number(after=after, limit=BATCH, tell=False)
        behind = (behind and after != START) or numbering.more
        given, after = given + numbering.count, numbering.after
    return fixed("relaying", f"{given} entries were numbered.")


async def counts(store: Store, *, fix: bool) -> AsyncIterator[Finding]:
    """What `earmark verify` finds: counts that drifted, which a recount corrects, and broken promises."""
    flaws = await store.find_flaws(limit=FLAWS_MAX)
    drifted = [flaw for flaw in flaws if flaw.rule in COUNTS]
    if drifted and fix:
        set_ = await store.upkeep.recount(limit=RECOUNTS_MAX)
        if set_:
            yield fixed("counts", f"{set_} counts were corrected to the sum of the bookings.")
        flaws = await store.find_flaws(limit=FLAWS_MAX)
        drifted = [flaw for flaw in flaws if flaw.rule in COUNTS]
    if drifted:
        said = f"{len(drifted)} counts are not the sum of the bookings: {drifted[0].row}"
        yield problem("counts", said, "`--fix` corrects them, each under its lock.", fixable=True)
    yield _promises([flaw for flaw in flaws if flaw.rule not in COUNTS])


def _promises(broken: list[Flaw]) -> Finding:
    if not broken:
        return ok("promises", "Every promise that `earmark verify` checks is kept.")
    said = f"{len(broken)} rows break a promise: {broken[0].rule}: {broken[0].row}"
    return problem("promises", said, "Keep a copy of the database, and see `earmark verify`.")


async def money(store: Store) -> AsyncIterator[Finding]:
    """Payments that only an operator can settle, and payments that have been open for too long."""
    live = await store.watch_money(limit=MONEY_MAX, mode=Mode.LIVE)
    test = await store.watch_money(limit=MONEY_MAX, mode=Mode.TEST)
    found = [*_flagged(live, problem, "Payments"), *_flagged(test, note, "Test payments")]
    found += [*_open_long(live, "payment", LIVE_ADVICE), *_open_long(test, "test payment", TEST_ADVICE)]
    for finding in found or [ok("money", "No payment needs review.")]:
        yield finding


def _flagged(watch: MoneyWatch, level: Callable[[str, str, str], Finding], what: str) -> Iterator[Finding]:
    if watch.attention:
        counts_ = ", ".join(f"{count} at {gateway}" for gateway, count in sorted(watch.attention.items()))
        yield level("money", f"{what} need review: {counts_}.", "See `earmark payments attention`.")


def _open_long(watch: MoneyWatch, what: str, advice: str) -> Iterator[Finding]:
    if watch.open_since and watch.now - watch.open_since > timedelta(seconds=OPEN_PAYMENT_SECONDS):
        said = f"The oldest open {what} or refund is open for {_age(watch.open_since, watch.now)}."
        yield note("money", said, advice)


def _late(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > timedelta(seconds=LATE_SECONDS)


def _age(since: datetime | None, now: datetime) -> str:
    assert since is not None
    return f"{(now - since).total_seconds():.0f} s"


def _names(some: list[HeartbeatRow]) -> str:
    return ", ".join(f"{beat.role} on {beat.host}" for beat in some)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
