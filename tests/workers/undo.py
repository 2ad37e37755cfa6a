"""Undoing what a verb has committed in memory: a test says afterwards that it shall have failed."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.engine.ports.store import Store


@contextmanager
def undone_on_error(store: Store) -> Iterator[None]:
    """When the block raises, the store is as it was before."""
    assert isinstance(store, MemoryStore)
    connection = store.access.writer.connection()
    with closing(sqlite3.connect(":memory:")) as before:
        connection.backup(before)
        try:
            yield
        except BaseException:
            before.backup(connection)
            raise
