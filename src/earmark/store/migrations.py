"""Numbered migrations: what there is, what was applied, and whether they still are the same.

`0001_tables.sql` is applied before `0002_guards.sql`, each once, and an applied file may never change: its checksum
is kept beside its number. Each store applies them in its own way; what is to be done is decided here.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the schema."""

    number: int
    name: str
    sql: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order."""
    folder = resources.files("earmark.store") / "sql" / dialect
    found = []
    for file in folder.iterdir():
        if named := _FILE.fullmatch(file.name):
            text = file.read_text(encoding="utf-8")
            checksum = hashlib.sha256(text.encode()).hexdigest()
            found.append(Migration(number=int(named[1]), name=named[2], sql=text, checksum=checksum))
    return tuple(sorted(found, key=lambda migration: migration.number))


def pending(dialect: str, applied: Mapping[int, str], *, without: Collection[str] = ()) -> Sequence[Migration]:
    """What is still to be applied, given the checksums of what was.

    `without` leaves out each step whose name ends so: "guards" are those of the bookings and those of the money.
    """
    known = {migration.number: migration for migration in migrations(dialect)}
    for number, checksum in sorted(applied.items()):
        if number not in known:
            problem = f"The database has migration {number:04}, which is newer than this Earmark: upgrade Earmark."
            raise SetupError(problem=problem)
        if known[number].checksum != checksum:
            problem = f"Migration {known[number]} differs from the one that was applied: restore the file."
            raise SetupError(problem=problem)
    return [step for step in known.values() if step.number not in applied and not step.name.endswith(tuple(without))]


def check_current(dialect: str, applied: Mapping[int, str]) -> None:
    """Refuse to work on a schema that is not the one this program was written for.

    A database has all guards or, as in a laboratory, none: old ones would refuse what the law allows by now.
    """
    guards = {step.number for step in migrations(dialect) if step.name.endswith("guards")}
    bare = bool(applied) and not guards & applied.keys()
    missing = [str(step) for step in pending(dialect, applied) if not bare or step.number not in guards]
    if missing:
        state = "has an old schema" if applied else "is empty"
        problem = f"The database {state} (missing {', '.join(missing)}). Run `earmark migrate` on it first."
        raise SetupError(problem=problem)
