"""Named SQL: every query lives in a `.sql` file, under a name and with a line on why it exists."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

_NAMED = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)", re.MULTILINE)
_IN_BOTH = (
    "transaction_reads_and_locks.sql",
    "transaction_writes.sql",
    "idempotency_and_lost_commits.sql",
    "event_and_booking_reads.sql",
    "seat_map.sql",
    "payments_and_refunds.sql",
    "number_and_read_journal.sql",
    "prepaid_accounts.sql",
    "tickets.sql",
    "api_keys.sql",
    "reads_to_follow_seat_changes.sql",
    "heartbeats.sql",
    "clear_keys_count_backlog_recount_pools.sql",
    "webhooks.sql",
)
FILES = {
    "postgres": (*_IN_BOTH, "optimistic_transaction.sql", "server_and_connection_checks.sql"),
    "sqlite": _IN_BOTH,
}
"""By database, the files whose statements its store runs."""


class Query(NamedTuple):
    """One statement, its name and the reason for it."""

    name: str
    why: str
    sql: str


@cache
def load(dialect: str, file: str) -> dict[str, Query]:
    """The named queries of one file, by name."""
    text = (resources.files("earmark.store") / "sql" / dialect / file).read_text(encoding="utf-8")
    starts = list(_NAMED.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        start[1]: Query(
            name=start[1],
            why=" ".join(line.removeprefix("--").strip() for line in start[2].splitlines()),
            sql=text[start.end() : end].strip().removesuffix(";"),
        )
        for start, end in zip(starts, ends, strict=True)
    }


def sql(dialect: str, file: str) -> dict[str, str]:
    """Just the statements of one file, by name."""
    return {query.name: query.sql for query in load(dialect, file).values()}


@cache
def statements(dialect: str) -> dict[str, str]:
    """All that a store and its transactions run, by name. Read only: every store of the process shares it."""
    return {name: text for file in FILES[dialect] for name, text in sql(dialect, file).items()}
