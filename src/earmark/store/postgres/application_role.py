"""The role that servers and workers connect as, where that is not the role that owns the tables.

An owner can switch off the triggers that guard the journal and the bookings. A role that was only granted rows cannot:
with a stolen password of such a server one can sell, but neither rewrite what happened nor empty a table.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from earmark.errors import SetupError
from earmark.store import queries


async def grant(connection: Any, role: str) -> None:
    """Let the role serve, after every migration: a new table is granted to no role by itself."""
    sql = queries.sql("postgres", "application_role.sql")
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
    try:
        await connection.execute(await connection.fetchval(sql["word_grants"], role))
    except asyncpg.InsufficientPrivilegeError as refused:
        raise SetupError(problem=f"Only the owner of the tables may grant them: {refused}") from refused
