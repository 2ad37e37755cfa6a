"""Erasing a buyer from a SQLite file: one transaction, and then no trace of the name in its pages or in its log."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import check_current
from earmark.store.both_databases.replace_buyer_name_in_texts import Erasure, Obstacle, Unnamer, callers_of
from earmark.store.sqlite import convert_rows_and_values
from earmark.store.sqlite.driver_errors import is_busy, is_silence, unavailable
from earmark.store.sqlite.migrate import read_applied
from earmark.store.sqlite.open_connection import connect, file_of

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.engine.ports.store import Clock

ERASED = {
    "outside payments": "erase_outside_payments",
    "bookings": "erase_bookings",
    "payments": "erase_payments",
    "refunds": "erase_refunds",
    "payment keys": "erase_payment_keys",
    "payers": "erase_payers",
    "totals": "erase_totals",
    "journal entries": "erase_journal",
    "deliveries": "erase_deliveries",
    "contacts": "erase_contacts",
    "unsent mails": "erase_mails",
}
"""In the order in which they are written."""
OVERWRITTEN = (
    "In the file the old rows are overwritten, and the write-ahead log is empty. The file was not written anew: pages "
    "that another program or an older Earmark freed before may still hold the name. --rewrite writes it anew; "
    "sales wait for that."
)
REWRITTEN = "The file was written anew, and the write-ahead log is empty: no old page holds the name."
NOT_EMPTIED = (
    "The rows are erased, but another process is reading, so the write-ahead log could not be emptied and still holds "
    "the name. Stop the servers and run on the file: PRAGMA wal_checkpoint(TRUNCATE);"
)
NOT_REWRITTEN = (
    "The rows are erased, but the file could not be written anew ({because}), and old pages may still hold the name. "
    "Stop the servers and run on the file: VACUUM; PRAGMA wal_checkpoint(TRUNCATE);"
)
LOG_TRIES = 50
LOG_BUSY_MS = 100
"""How long one try to empty the log waits for readers. Writers wait behind it, so it is short."""
PAUSE_SECONDS = 0.1
"""Between two tries, in which writers write."""


async def erase(
    place: str | Path, buyer: str, *, pseudonym: str, dry_run: bool, rewrite: bool, clock: Clock
) -> Erasure:
    """Erase, or with `dry_run` do the same and undo it. One transaction: SQLite has one writer, and others wait.

    With `rewrite`, the file is written anew, also where nothing of the buyer is left: a copy of it all, for which every
    writer waits.
    """
    asked: Any = {"pseudonym": pseudonym, "dry_run": dry_run, "rewrite": rewrite, "clock": clock}
    return await asyncio.to_thread(_erase, file_of(place), buyer, **asked)


def _erase(file: Path, buyer: str, *, pseudonym: str, dry_run: bool, rewrite: bool, clock: Clock) -> Erasure:
    if not file.exists():
        raise SetupError(problem=f"There is no database {file}. Run `earmark migrate` to make one.")
    try:
        with closing(connect(file, mode="rw")) as connection:
            check_current("sqlite", read_applied(connection))
            _add_functions(connection, Unnamer(buyer, pseudonym))
            connection.execute("BEGIN IMMEDIATE")
            done = _write(connection, buyer, pseudonym=pseudonym, now=convert_rows_and_values.to_moment(clock.now()))
            connection.execute("ROLLBACK" if dry_run or done.obstacles else "COMMIT")
            if dry_run or done.obstacles or not (rewrite or any(done.changed.values())):
                return done
            return _clean(connection, done, rewrite=rewrite)
    except sqlite3.DatabaseError as failure:
        if is_silence(failure):
            raise unavailable(failure) from failure
        raise


def _add_functions(connection: sqlite3.Connection, unnamer: Unnamer) -> None:
    """Add the functions that replace the name to this connection."""
    connection.create_function("unname", 2, unnamer.text, deterministic=True)
    connection.create_function("unname_json", 1, unnamer.json, deterministic=True)
    connection.create_function("unname_bytes", 1, unnamer.bytes, deterministic=True)


def _write(connection: sqlite3.Connection, buyer: str, *, pseudonym: str, now: int | None) -> Erasure:
    """Look for obstacles, find the rows, and rename; within the caller's transaction.

    The guards that refuse this are dropped and made again from their own text, whichever migration wrote it. Other
    connections see the file only with them, and a crash undoes it all. A guard that is not known here still refuses.
    """
    sql = load_named_sql.sql("sqlite", "erase_buyer.sql")
    known: dict[str, Any] = {"buyer": buyer, "alias": pseudonym, "now": now}
    found = connection.execute(sql["find_obstacles"], known).fetchall()
    if found:
        return Erasure(
            obstacles=tuple(
                Obstacle(row["booking_id"], row["event_id"], Mode(row["mode"]), row["why"]) for row in found
            )
        )
    bookings = connection.execute(sql["find_bookings"], known).fetchall()
    known["callers"] = convert_rows_and_values.to_json(callers_of(buyer))
    known["bookings"] = convert_rows_and_values.to_json([row["id"] for row in bookings])
    known["events"] = convert_rows_and_values.to_json(sorted({row["event_id"] for row in bookings}))
    for name in ("payments", "entries"):
        known[name] = convert_rows_and_values.to_json(
            [row["id"] for row in connection.execute(sql[f"find_{name}"], known)]
        )
    guards = connection.execute(sql["read_guards"]).fetchall()
    for guard in guards:
        connection.execute(f"DROP TRIGGER {guard['name']}")
    changed = {"stored answers": int(connection.execute(sql["count_answers"], known).fetchone()[0])}
    for kind, statement in ERASED.items():
        changed[kind] = connection.execute(sql[statement], known).rowcount
    connection.execute(sql["erase_mail_hashes"], known)
    for guard in guards:
        connection.execute(guard["sql"])
    return Erasure(changed=changed)


def _clean(connection: sqlite3.Connection, done: Erasure, *, rewrite: bool) -> Erasure:
    """Remove the name from the log and, with `rewrite`, from old pages."""
    because = _rewrite(connection) if rewrite else None
    if because is not None:
        return Erasure(changed=done.changed, warnings=(NOT_REWRITTEN.format(because=because),))
    if not _empty_log(connection):
        return Erasure(changed=done.changed, warnings=(NOT_EMPTIED,))
    return Erasure(changed=done.changed, notes=(REWRITTEN if rewrite else OVERWRITTEN,))


def _rewrite(connection: sqlite3.Connection) -> str | None:
    """A copy of every row takes the place of all pages. Why that failed, if it did."""
    try:
        # The copy that VACUUM makes need not fit into memory.
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")
    except sqlite3.OperationalError as failure:
        return str(failure)
    return None


def _empty_log(connection: sqlite3.Connection) -> bool:
    """The log has old pages: write the newest to the file, and truncate the log. False if that failed."""
    connection.execute(f"PRAGMA busy_timeout = {LOG_BUSY_MS}")
    for tried in range(LOG_TRIES):
        if tried:
            _pause()
        try:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as failure:
            if not is_busy(failure):
                raise
            busy = True
        if not busy:
            return True
    return False


def _pause() -> None:
    time.sleep(PAUSE_SECONDS)
