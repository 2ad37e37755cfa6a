"""Erasing a buyer from PostgreSQL, as the role that owns the tables."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError, StoreUnavailable
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import check_current
from earmark.store.both_databases.replace_buyer_name_in_texts import KEPT_FIELDS, Erasure, Obstacle
from earmark.store.postgres import connect_to_writable_host
from earmark.store.postgres.driver_errors import reason
from earmark.store.postgres.migrate import BUSY, SILENT, read_applied, split_url

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock

LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"
TRIES = 3
"""How often a row that another transaction has locked, or a deadlock, is tried again."""
PASSES_MAX = 3
PAUSE_SECONDS = 0.2
OBSTACLE = "EM002"
NOTHING_CHANGED = "nothing was changed"
ERASED_BEFORE = "what was found before is erased, run the command again"
CAME_BACK = (
    "A booking of this buyer was made while the name was erased, so it still has the name. "
    "Run the command again when that booking is over."
)
OLD_VERSIONS = (
    "PostgreSQL's files hold old versions of the rows, with the name, until VACUUM FULL or pg_repack has rewritten the "
    "tables. VACUUM FULL locks each table meanwhile: see docs/howto/erase-a-buyer.md."
)


async def erase(url: str, buyer: str, *, pseudonym: str, dry_run: bool, clock: Clock) -> Erasure:
    """Erase, or with `dry_run` do the same and undo it.

    One transaction renames all rows: in parts, a total would not add up to the bookings of one name. It locks rows of
    this buyer, and the webhooks that have deliveries about them. A request that was answered from what it read before
    may still write the name behind it: the next pass, in a transaction of its own, finds that.
    """
    connection = await _connect(url)
    try:
        check_current("postgres", await read_applied(connection))
        sql = load_named_sql.sql("postgres", "erase_buyer.sql")
        await _check_role(connection, sql)
        changed: Counter[str] = Counter()
        for _ in range(PASSES_MAX):
            kept = ERASED_BEFORE if any(changed.values()) else NOTHING_CHANGED
            done = await _once(connection, sql, buyer, pseudonym=pseudonym, dry_run=dry_run, clock=clock, kept=kept)
            changed.update(done.changed)
            came_back = not dry_run and await connection.fetchval(sql["has_bookings"], buyer)
            if dry_run or came_back or not any(done.changed.values()):
                break
        if not any(changed.values()):
            return done
        if not dry_run:
            await connection.execute(sql["renew_statistics"])
        warnings, notes = (CAME_BACK,) if came_back else (), () if dry_run else (OLD_VERSIONS,)
        return Erasure(changed=dict(changed), warnings=warnings, notes=notes)
    except SILENT as silence:
        raise StoreUnavailable(because=str(silence) or type(silence).__name__) from silence
    finally:
        await connection.close()


async def _once(
    connection: Any, sql: dict[str, str], buyer: str, *, pseudonym: str, dry_run: bool, clock: Clock, kept: str
) -> Erasure:
    """One pass. `kept` is what an error says about earlier passes, which have committed."""
    for tries in range(1, TRIES + 1):
        scope = connection.transaction(isolation="read_committed")
        await scope.start()
        try:
            await connection.execute(LOCK_TIMEOUT)
            found = await connection.fetch(sql["erase_buyer"], buyer, pseudonym, clock.offset, list(KEPT_FIELDS))
            found += await connection.fetch(sql["erase_contacts"], pseudonym)
        except BUSY as busy:
            await scope.rollback()
            if tries == TRIES:
                because = f"another transaction has locked a row of this buyer; {kept}: {busy}"
                raise StoreUnavailable(because=because) from busy
            await asyncio.sleep(PAUSE_SECONDS)
        except asyncpg.PostgresError as refused:
            await scope.rollback()
            if refused.sqlstate != OBSTACLE:
                raise
            if obstacles := await connection.fetch(sql["find_obstacles"], buyer, clock.offset):
                return Erasure(obstacles=tuple(_obstacle(row) for row in obstacles))
        else:
            await (scope.rollback() if dry_run else scope.commit())
            return Erasure(changed={row["what"]: row["changed"] for row in found})
    raise StoreUnavailable(because=f"bookings of this buyer are changing; {kept}")


async def _check_role(connection: Any, sql: dict[str, str]) -> None:
    session = await connection.fetchrow(sql["describe_session"])
    if not session["is_owner"]:
        raise SetupError(
            problem=f"The role {session['role']!r} may not erase a buyer: only {session['owner']!r} may, which owns "
            "the tables. Give the URL with that role, as for `earmark migrate`: --database postgresql://"
            f"{session['owner']}@host/name, or EARMARK_DATABASE_URL."
        )


def _obstacle(row: Any) -> Obstacle:
    return Obstacle(str(row["booking_id"]), row["event_id"], Mode(row["mode"]), row["why"])


async def _connect(url: str) -> Any:
    dsn, _ = split_url(url)
    named = {"application_name": "earmark erase-buyer"}
    try:
        return await connect_to_writable_host.connect(
            dsn, connect_to_writable_host.hosts_of(dsn), statement_cache_size=0, server_settings=named
        )
    except (OSError, asyncpg.TargetServerAttributeNotMatched) as silence:
        raise StoreUnavailable(because=reason(silence)) from silence
    except (asyncpg.PostgresError, ValueError) as refused:
        raise SetupError(problem=f"PostgreSQL refused the connection: {refused}") from refused
