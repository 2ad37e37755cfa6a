"""Checks of the database: version, schema, isolation, clock, pooler, durability and failover."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.cli.doctor import postgres_failover
from earmark.cli.doctor.findings import Finding, note, ok, problem
from earmark.errors import SetupError
from earmark.store.both_databases.pending_migrations import WAY_OUT, check_current, newer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.store.both_databases.database_diagnostics import DatabaseFacts

SKEW_SECONDS_MAX = 1.0
READ_COMMITTED = "read committed"


def findings(vitals: DatabaseFacts) -> Iterator[Finding]:
    """Run the checks that apply to this kind of database."""
    yield ok("database", f"{vitals.product} {vitals.version} answers in {vitals.seconds * 1000:.1f} ms.")
    yield schema(vitals)
    if vitals.isolation is not None:
        yield isolation(vitals)
        yield clock(vitals)
        yield pooler(vitals)
    yield durability(vitals)
    if vitals.replication is not None:
        yield postgres_failover.findings(vitals.replication)


def schema(vitals: DatabaseFacts) -> Finding:
    """Whether the schema is new enough for this program, and where it is newer, allows this program."""
    try:
        check_current(vitals.dialect, vitals.applied)
    except SetupError as old:
        if old.problem == WAY_OUT:
            return problem("schema", old.problem, "Start with a new database.")
        advice = "Upgrade Earmark on this machine." if "newer" in old.problem else "Run `earmark migrate`."
        return problem("schema", old.problem, advice)
    if ahead := newer(vitals.dialect, vitals.applied):
        said = f"The schema is newer than this Earmark and allows it to run ({', '.join(ahead)})."
        return note("schema", said, "Upgrade Earmark on this machine too, when the upgrade is to stay.")
    return ok("schema", f"The schema is current ({len(vitals.applied)} steps).")


def isolation(vitals: DatabaseFacts) -> Finding:
    """Earmark sets its level in every transaction; another default affects the operator's own SQL."""
    if vitals.isolation == READ_COMMITTED:
        return ok("isolation", "Transactions are READ COMMITTED.")
    said = f"Transactions are {str(vitals.isolation).upper()} by default, and not READ COMMITTED."
    advice = "Set default_transaction_isolation back to 'read committed' for this database and its role."
    return problem("isolation", said, advice)


def clock(vitals: DatabaseFacts, *, whose: str = "The database's clock", check: str = "clock") -> Finding:
    """The database's clock alone decides expiry. But tokens, ids and logs use this machine's clock."""
    apart = vitals.skew_seconds
    if abs(apart) <= SKEW_SECONDS_MAX:
        return ok(check, f"{whose} and this machine's agree to the second.")
    way = "ahead of" if apart > 0 else "behind"
    said = f"{whose} is {abs(apart):.1f} s {way} this machine's."
    return problem(check, said, "Synchronise both machines with NTP. Holds end by the database's clock.")


def pooler(vitals: DatabaseFacts) -> Finding:
    """A pooler in transaction mode loses session state: settings and prepared statements."""
    if vitals.pooled and not vitals.told:
        said = "A connection pooler (such as PgBouncer) is in between, and the URL does not say so."
        return problem("pooler", said, "Add pgbouncer=true to EARMARK_DATABASE_URL, or connect to PostgreSQL itself.")
    if vitals.told and not vitals.pooled:
        said = "The URL says pgbouncer=true, and there is no pooler: every transaction is slower than it needs to be."
        return note("pooler", said, "Remove pgbouncer=true from EARMARK_DATABASE_URL.")
    return ok("pooler", "Behind a pooler, as the URL says." if vitals.pooled else "No pooler is in between.")


def durability(vitals: DatabaseFacts) -> Finding:
    """Whether settings that make commits survive a crash are on."""
    if not vitals.lax:
        return ok("durability", "What was acknowledged survives a crash.")
    said = f"A crash may lose what was acknowledged: {', '.join(vitals.lax)}."
    return problem("durability", said, "Turn these on: a sale that is forgotten is sold again.")
