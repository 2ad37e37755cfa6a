"""The role that servers and workers connect as, where that is not the role that owns the tables.

An owner can switch off the triggers that guard the journal and the bookings. A role that was only granted rows cannot:
with a stolen password of such a server one can sell, but neither rewrite what happened nor empty a table.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from earmark.errors import SetupError
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import tables

OWNERS_ALONE = frozenset({"erasures"})
"""Tables that a server neither reads nor writes."""
LOCKS = "earmark_locks"
"""A table that no migration makes, where locks are kept on PostgreSQL."""


async def grant(connection: Any, role: str) -> None:
    """Let the role serve, after every migration: a new table is granted to no role by itself."""
    sql = load_named_sql.sql("postgres", "grant_and_check_application_role.sql")
    found = await connection.fetchrow(sql["describe_role"], role)
    if found is None:
        raise SetupError(
            problem=f"There is no role {role!r} to grant anything to. Make it first: "
            f"CREATE ROLE {role} LOGIN PASSWORD '…';"
        )
    if found["is_superuser"] or found["is_owner"]:
        why = "is a superuser" if found["is_superuser"] else "owns the tables"
        raise SetupError(
            problem=f"The role {role!r} {why}, so it could switch off the guards whatever it is granted. "
            "Let servers and workers connect as another role, and run `earmark migrate` as this one."
        )
    if found["makes_tables"]:
        schema = found["schema"]
        raise SetupError(
            problem=f"The role {role!r} may make tables and functions in the schema {schema}, and mislead guards by "
            f'them. Take that away first: REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, "{role}";'
        )
    try:
        await connection.execute(await connection.fetchval(sql["word_grants"], role, [*_served(), LOCKS]))
    except asyncpg.InsufficientPrivilegeError as refused:
        raise SetupError(problem=f"Only the owner of the tables may grant them: {refused}") from refused


async def check_grants(connection: Any) -> None:
    """Refuse to serve where a table is missing among those that this session may write: a new one is, until granted."""
    sql = load_named_sql.sql("postgres", "grant_and_check_application_role.sql")
    if missing := await connection.fetchrow(sql["missing_grants"], _served()):
        raise SetupError(
            problem=f"The role {missing['role']!r} may not read and write {', '.join(missing['tables'])}. "
            f"Let the owner of the tables run: earmark migrate --application-role {missing['role']}"
        )


def _served() -> list[str]:
    return [name for name in tables("postgres") if name not in OWNERS_ALONE]
