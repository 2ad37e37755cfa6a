"""How the database fares, by what it says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.cli.doctor import failover
from earmark.cli.doctor.findings import Finding, ill, note, well
from earmark.errors import SetupError
from earmark.store.migrations import WAY_OUT, check_current, newer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.store.database_facts import DatabaseFacts

SKEW_SECONDS_MAX = 1.0
READ_COMMITTED = "read committed"


def judge(vitals: DatabaseFacts) -> Iterator[Finding]:
    """Version, schema, isolation, clock, pooler, durability, failover."""
    yield well("database", f"{vitals.product} {vitals.version} answers in {vitals.seconds * 1000:.1f} ms.")
    yield schema(vitals)
    if vitals.isolation is not None:
        yield isolation(vitals)
        yield clock(vitals)
        yield pooler(vitals)
    yield durability(vitals)
    if vitals.replication is not None:
        yield failover.judge(vitals.replication)


def schema(vitals: DatabaseFacts) -> Finding:
    """New enough for this program, and if it is newer still, one that allows this program."""
    try:
        check_current(vitals.dialect, vitals.applied)
    except SetupError as old:
        if old.problem == WAY_OUT:
            return ill("schema", old.problem, "Start with a new database.")
        advice = "Upgrade Earmark on this machine." if "newer" in old.problem else "Run `earmark migrate`."
        return ill("schema", old.problem, advice)
    if ahead := newer(vitals.dialect, vitals.applied):
        said = f"The schema is newer than this Earmark and allows it to run ({', '.join(ahead)})."
        return note("schema", said, "Upgrade Earmark on this machine too, when the upgrade is to stay.")
    return well("schema", f"The schema is current ({len(vitals.applied)} steps).")


def isolation(vitals: DatabaseFacts) -> Finding:
    """Earmark asks for its level in every transaction, so another default only surprises others."""
    if vitals.isolation == READ_COMMITTED:
        return well("isolation", "Transactions are READ COMMITTED.")
    said = f"Transactions that ask for nothing are {str(vitals.isolation).upper()}, and not READ COMMITTED."
    advice = "Set default_transaction_isolation back to 'read committed' for this database and its role."
    return ill("isolation", said, advice)


def clock(vitals: DatabaseFacts, *, whose: str = "The database's clock", check: str = "clock") -> Finding:
    """Expiry is judged by the database alone. But tokens, ids and logs go by this machine's clock."""
    apart = vitals.skew_seconds
    if abs(apart) <= SKEW_SECONDS_MAX:
        return well(check, f"{whose} and this machine's agree to the second.")
    way = "ahead of" if apart > 0 else "behind"
    said = f"{whose} is {abs(apart):.1f} s {way} this machine's."
    return ill(check, said, "Let both machines keep their time by NTP. Holds end by the database's clock.")


def pooler(vitals: DatabaseFacts) -> Finding:
    """A pooler in transaction mode breaks what a connection remembers: settings and prepared statements."""
    if vitals.pooled and not vitals.told:
        said = "Something hands the connections round (PgBouncer, perhaps), and the URL does not say so."
        return ill("pooler", said, "Add pgbouncer=true to EARMARK_DATABASE_URL, or connect to PostgreSQL itself.")
    if vitals.told and not vitals.pooled:
        said = "The URL says pgbouncer=true, and there is no pooler: every transaction pays for it."
        return note("pooler", said, "Leave pgbouncer=true out of EARMARK_DATABASE_URL.")
    return well("pooler", "Behind a pooler, as the URL says." if vitals.pooled else "No pooler is in between.")


def durability(vitals: DatabaseFacts) -> Finding:
    """What was acknowledged must survive a crash."""
    if not vitals.lax:
        return well("durability", "What was acknowledged survives a crash.")
    said = f"A crash may lose what was acknowledged: {', '.join(vitals.lax)}."
    return ill("durability", said, "Turn these on: a sale that is forgotten is sold again.")
