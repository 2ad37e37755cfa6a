"""Numbered migrations: what there is, what was applied, and which code may run on the result.

`0001_tables.sql` is applied before `0002_guards.sql`, each once, and an applied file may never change: its checksum
is kept beside its number. The first line of a file says which code may run once it was applied:

    -- expand           all code that ran before it goes on: it only adds
    -- contract 0005    only code that has migration 0005 or a newer one

The runner records that line with the migration, so code that does not have the file can read which code may run. Each
store applies migrations in its own way; what is to be done is decided here.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_FIRST_LINE = re.compile(r"-- (?:expand|contract (\d{4}))\n")
ANY_CODE = 1
"""The `oldest_code` of an expand."""
UNRELEASED = {
    "postgres": "753afb654f2ab8c2448622c7389e3fc93db2e0fa9257839c4db16f051a1e92ba",
    "sqlite": "5241c8aba08baac04452385a6d819c2a377c5acc1225343a14d9e356bb5c58cb",
}
"""By dialect, the checksum of the first migration in databases that a development version from before 0.1 made."""
WAY_OUT = (
    "This database was made by a development version from before Earmark 0.1. This version can neither use nor upgrade "
    "it, and has changed nothing. Start with a new database: set EARMARK_DATABASE_URL to an empty one and run `earmark "
    "migrate`. No command carries rows over: to keep them, read them with the version that made them, or with SQL."
)
PAUSE_DOUBLINGS_MAX = 2

Tell = Callable[[str], None]
"""Called with one sentence about what a runner waits for."""


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the schema."""

    number: int
    name: str
    sql: str
    checksum: str
    oldest_code: int
    """The number of the migration that code must have to run once this one was applied."""

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a database remembers of a migration."""

    name: str
    checksum: str
    oldest_code: int | None
    """As in `Migration`; None where the list of migrations does not say."""


class LockPatience(msgspec.Struct, frozen=True, kw_only=True):
    """How a runner waits for locks: briefly, so that nothing queues behind it for long, and repeatedly."""

    lock_seconds: float = 1.5
    """For one lock. Longer than PostgreSQL's `deadlock_timeout` of 1 s, after which an autovacuum gives way."""
    seconds_max: float = 60.0
    """For one migration, with the pauses between."""

    def pause(self, tries: int) -> float:
        """Seconds between two tries: at first as long as a try, then longer, and never the same for two runners."""
        longer = float(2 ** min(tries, PAUSE_DOUBLINGS_MAX))
        return self.lock_seconds * longer * random.uniform(0.75, 1.5)  # noqa: S311 (jitter, not a secret)


@cache
def tables(dialect: str) -> tuple[str, ...]:
    """The tables that the migrations of a dialect make, in order."""
    return tuple(name for step in migrations(dialect) for name in _TABLE.findall(step.sql))


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order."""
    folder = resources.files("earmark.store") / "sql" / dialect
    named = [(file, match) for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))]
    found = [parse(int(match[1]), match[2], file.read_text(encoding="utf-8")) for file, match in named]
    return tuple(sorted(found, key=lambda migration: migration.number))


def parse(number: int, name: str, text: str) -> Migration:
    """Read one file. Its first line is no part of the checksum, so that an expand can still be called a contract."""
    first = _FIRST_LINE.match(text)
    if first is None:
        problem = f"Migration {number:04}_{name} must begin with `-- expand` or `-- contract NNNN`."
        raise SetupError(problem=problem)
    oldest_code = ANY_CODE if first[1] is None else int(first[1])
    if oldest_code > number:
        raise SetupError(problem=f"Migration {number:04}_{name} requires code that is newer than itself.")
    checksum = hashlib.sha256(text[first.end() :].encode()).hexdigest()
    return Migration(number=number, name=name, sql=text, checksum=checksum, oldest_code=oldest_code)


def newer(dialect: str, applied: Mapping[int, Applied]) -> Sequence[str]:
    """The applied migrations that this program does not have, provided that it may run on every one of them."""
    known = {step.number for step in migrations(dialect)}
    own = max(known)
    found = []
    for number, row in sorted(applied.items()):
        if number in known:
            continue
        step = f"{number:04}_{row.name}"
        if row.oldest_code is None or row.oldest_code > own:
            needs = "no older code" if row.oldest_code is None else f"no code older than migration {row.oldest_code:04}"
            problem = f"The database has migration {step}, which is newer than this Earmark and allows {needs}"
            raise SetupError(problem=f"{problem}: upgrade Earmark on this machine.")
        found.append(step)
    return found


def tell_newer(dialect: str, applied: Mapping[int, Applied], tell: Tell) -> None:
    """Name the applied migrations that this program does not have, because nothing to apply does not mean equal."""
    for step in newer(dialect, applied):
        tell(f"The database has migration {step}, which is newer than this Earmark and allows it to run.")


def pending(dialect: str, applied: Mapping[int, Applied], *, without: Collection[str] = ()) -> Sequence[Migration]:
    """What is still to be applied, given what was.

    `without` leaves out each step whose name ends so: "guards" are the rules of selling and of money.
    """
    steps = [step for step in _missing(dialect, applied) if not step.name.endswith(tuple(without))]
    if steps and (ahead := newer(dialect, applied)):
        problem = (
            f"The database has migration {ahead[0]}, but not {steps[0]}: migrate it with the Earmark that has both."
        )
        raise SetupError(problem=problem)
    return steps


def check_current(dialect: str, applied: Mapping[int, Applied]) -> None:
    """Refuse to work on a schema that lacks what this program needs, or that does not allow this program.

    A database has all guards or, as in a benchmark, none: older guards would refuse what the rules allow by now.
    """
    guards = {step.number for step in migrations(dialect) if step.name.endswith("guards")}
    bare = bool(applied) and not guards & applied.keys()
    missing = [str(step) for step in _missing(dialect, applied) if not bare or step.number not in guards]
    if missing:
        state = "has an old schema" if applied else "is empty"
        problem = f"The database {state} (missing {', '.join(missing)}). Run `earmark migrate` on it first."
        raise SetupError(problem=problem)


def _missing(dialect: str, applied: Mapping[int, Applied]) -> Sequence[Migration]:
    """What this program has and the database does not, once what both have was found to be the same."""
    if 1 in applied and applied[1].checksum == UNRELEASED[dialect]:
        raise SetupError(problem=WAY_OUT)
    steps = migrations(dialect)
    for step in steps:
        if step.number in applied and applied[step.number].checksum != step.checksum:
            raise SetupError(problem=f"Migration {step} differs from the one that was applied: restore the file.")
    newer(dialect, applied)
    return [step for step in steps if step.number not in applied]
