"""Migrated SQLite files. Nearly every test that wants one wants the same, so it is migrated once and then copied."""

from __future__ import annotations

import tempfile
from pathlib import Path

from earmark.store import sqlite

_migrated: list[bytes] = []


async def make_migrated(path: Path) -> None:
    """A new file with the whole schema and nothing in it, as `earmark.store.sqlite.migrate` makes it."""
    if not _migrated:
        with tempfile.TemporaryDirectory(prefix="earmark-template-") as folder:
            template = Path(folder, "earmark.sqlite3")
            await sqlite.migrate(template)
            assert [file.name for file in Path(folder).iterdir()] == [template.name], "nothing is left in a journal"
            _migrated.append(template.read_bytes())
    with path.open("xb") as file:
        file.write(_migrated[0])
