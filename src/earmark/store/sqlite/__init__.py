"""SQLite: the embedded store, one file and one writer."""

from earmark.store.sqlite.migrate import migrate
from earmark.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "migrate"]
