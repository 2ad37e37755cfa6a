"""What the PostgreSQL store checks in its database at start and for readiness, and what `earmark verify` finds."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from earmark.engine.ports.store import Flaw
from earmark.errors import NotWritable, SetupError
from earmark.store import load_named_sql
from earmark.store.both_databases.pending_migrations import check_current
from earmark.store.postgres.connections import check_isolation
from earmark.store.postgres.grant_and_check_application_role import check_grants
from earmark.store.postgres.migrate import read_applied
from earmark.store.postgres.session_settings import ANY_PLAN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from earmark.store.both_databases.pending_migrations import Applied
    from earmark.store.postgres.connections import PostgresConnections

OLDEST = 15_00_00
CHECK_SECONDS = 10.0
HANGING_SECONDS = 5.0
"""A commit that has waited for its standby for this long will hardly be answered."""


class StartupChecks:
    """The checks of the PostgreSQL store."""

    pgbouncer: bool
    _connections: PostgresConnections
    _borrowed: Callable[..., Awaitable[Any]]
    _look: Callable[..., Awaitable[Any]]
    read_rows: Callable[..., Awaitable[list[Any]]]

    async def find_flaws(self, *, limit: int) -> list[Flaw]:
        """Every query of `find_broken_invariants.sql`, in one snapshot, so that traffic does not look like a flaw."""

        async def find(connection: Any) -> list[Flaw]:
            flaws: list[Flaw] = []
            await connection.execute(ANY_PLAN)
            for query in load_named_sql.load("postgres", "find_broken_invariants.sql").values():
                promise, _, rule = query.why.partition(": ")
                found = await connection.fetch(query.sql, limit, timeout=600)
                flaws += [Flaw(promise=promise, rule=rule, row=row["row"]) for row in found]
            return flaws

        flaws: list[Flaw] = await self._look(find, bounded=False)
        return flaws

    async def check(self) -> None:
        """Check schema, version, isolation and what this role may write: every promise depends on them."""

        async def read(connection: Any) -> tuple[Mapping[int, Applied], int, str]:
            applied = await read_applied(connection)
            version = int(await connection.fetchval("SHOW server_version_num"))
            # Of a transaction that names none, as optimistic writes do; a pooler takes no such transactions.
            isolation = await connection.fetchval("SHOW transaction_isolation")
            await check_grants(connection)
            return applied, version, "read committed" if self.pgbouncer else isolation

        applied, version, isolation = await self._borrowed(read, retry=True, within=CHECK_SECONDS)
        check_current("postgres", applied)
        if version < OLDEST:
            raise SetupError(problem=f"Earmark needs PostgreSQL 15 or newer; this is {version // 10000}.")
        check_isolation(isolation)

    async def check_ready(self) -> None:
        """Check the same, and that what is written is kept: by a primary that takes writes and ends its commits."""
        await self.check()
        (found,) = await self.read_rows("readiness", timedelta(seconds=HANGING_SECONDS))
        if found["standby"] or found["read_only"]:
            what = "a standby" if found["standby"] else "read-only"
            raise NotWritable(why="read_only", because=f"the database is {what}")
        if hanging := found["hanging"]:
            raise NotWritable(why="commits_hang", because=f"{hanging} commits wait for a synchronous standby")
        await self._connections.check_commits()
