"""The command that runs the janitor's steps once, until nothing is left to delete."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.wiring import open_and_maintain_databases
from earmark.wiring.workers import janitor_for


def tidy(
    *,
    database: Database = None,
    from_start: Annotated[
        bool,
        Parameter(negative="", help="Go through the whole journal, not on from where the last run stopped."),
    ] = False,
) -> None:
    """Delete old records now, as the janitor does by itself.

    It deletes idempotency records past EARMARK_IDEMPOTENCY_SECONDS, webhook deliveries past
    EARMARK_WEBHOOK_LOG_SECONDS, mails that ended a week ago, heartbeats of processes that ended, which requests opened
    payments days ago, and who tried to pay more than an hour ago. Journal entries are never deleted.
    """
    settings = config.read(os.environ, database_url=database)
    cleared = asyncio.run(_tidy(settings, from_start=from_start))
    summary = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in cleared.items())
    Console(highlight=False, soft_wrap=True).print(f"Cleared: {summary}.")


async def _tidy(settings: config.Settings, *, from_start: bool) -> Counter[str]:
    store = await open_and_maintain_databases.open_store(settings.database_url)
    cleared: Counter[str] = Counter()
    try:
        await store.check()
        janitor = janitor_for(settings, store)
        more = True
        while more:
            done, more = await janitor.tidy(from_start=from_start)
            cleared.update(done)
            from_start = False
        return cleared
    finally:
        await store.close()
