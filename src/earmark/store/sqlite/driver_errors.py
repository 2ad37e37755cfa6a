"""Which errors of SQLite mean that the file could not be reached or used, is busy, or that the disk is full."""

from __future__ import annotations

import sqlite3

from earmark.errors import StoreUnavailable

_SILENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)


def is_silence(failure: sqlite3.Error) -> bool:
    """Whether the file could not be reached or used, as opposed to SQL that is wrong or refused."""
    return _code(failure) in _SILENT


def is_busy(failure: sqlite3.Error) -> bool:
    """Whether another process was writing."""
    return _code(failure) == sqlite3.SQLITE_BUSY


def is_full(failure: sqlite3.Error) -> bool:
    """Whether the disk had no room left."""
    return _code(failure) == sqlite3.SQLITE_FULL


def unavailable(failure: sqlite3.Error) -> StoreUnavailable:
    """The outage to raise for this failure."""
    return StoreUnavailable(because=f"SQLite: {failure}")


def _code(failure: sqlite3.Error) -> int:
    """The primary result code; the extended ones keep it in their lowest byte."""
    return getattr(failure, "sqlite_errorcode", 0) & 0xFF
