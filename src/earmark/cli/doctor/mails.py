"""Checks that mails to buyers can be written and are sent in time, where a mail server is set up."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, age, note, ok, problem
from earmark.engine.ports.heartbeats import alive_seconds
from earmark.errors import SetupError
from earmark.mail import smtp_server_from_url
from earmark.wiring.mail import sender_for
from earmark.workers.mailer import Mailer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.config import Settings
    from earmark.engine.ports.store import Store

CHECK = "mails"
COUNT_MAX = 1000
LATE_SECONDS = 600.0
"""A mail server that asks Earmark to come back later is obeyed within minutes."""
ADVICE = "Look at the mail server, and at the log of the mailer."


async def findings(store: Store, settings: Settings) -> AsyncIterator[Finding]:
    """Whether the settings fit, whether a mailer runs, and what was not sent. Nothing where mails are off."""
    if settings.smtp_url is None:
        return
    try:
        smtp_server_from_url.parse(settings.smtp_url)
        sender_for(settings)
    except SetupError as wrong:
        yield problem(CHECK, wrong.problem, "No server starts with these settings.")
        return
    roll = await store.heartbeats.read(limit=COUNT_MAX)
    alive = timedelta(seconds=alive_seconds(settings.heartbeat_seconds))
    if not any(beat.role == Mailer.name and roll.now - beat.beat_at <= alive for beat in roll.heartbeats):
        yield problem(CHECK, "No mailer is running.", "Set EARMARK_SMTP_URL where the workers run, too.")
    left = await store.mails.backlog(limit=COUNT_MAX)
    late = left.oldest_at is not None and roll.now - left.oldest_at > timedelta(seconds=LATE_SECONDS)
    if late:
        said = f"{left.pending} mails are not sent, the oldest since {age(left.oldest_at, roll.now)}."
        yield problem(CHECK, said, ADVICE)
    if left.failed:
        yield note(CHECK, f"{left.failed} mails of the last week were given up.", "See docs/howto/mail.md.")
    if left.above_limit:
        said = f"{left.above_limit} mails of the last week were skipped as too many for an address or a buyer."
        yield note(CHECK, said, "See docs/howto/mail.md.")
    if not late:
        yield ok(CHECK, "Mails are sent in time.")
