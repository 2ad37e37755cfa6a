"""The mailer: sends the mails in the queue to the contacts of bookings, and tries again until the server takes them.

Every mail is sent at least once, with one Message-ID at every try, so that a mailbox recognises a repeat. Any number of
mailers may run; each leases mails that no other has, so what one leaves undone when it dies another does. Sessions with
the server run in threads with a deadline: a server that hangs delays mails and no other worker.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from earmark.domain.mail import MailState, next_try
from earmark.domain.mail_limits import LIMITS_DEFAULT
from earmark.engine.ports.contacts_and_mails import MailResult
from earmark.errors import Outage
from earmark.mail.smtp_sender import Fate
from earmark.observability import logs
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from earmark.domain.mail import Mail
    from earmark.domain.mail_limits import MailLimits
    from earmark.engine.ports.contacts_and_mails import MailLease, Mails
    from earmark.mail.compose_mail import Letter
    from earmark.mail.smtp_sender import SessionResult, SmtpSender

SESSIONS_MAX = 4
"""How many connections to the server there are at once."""
EACH_MAX = 10
"""How many mails one connection carries."""
SPARE_SECONDS = 20.0
GRACE_SECONDS = 2.0
"""How long a mailer that stops waits for sessions under way."""

log = logs.get()


class Composer(Protocol):
    """Reads what a mail is about and writes it."""

    async def letter(self, mail: Mail, *, now: datetime) -> Letter | str:
        """The mail, or a code that says why there is nothing to send."""
        ...


class Mailer:
    """A worker that sends the mails that are due."""

    name = "mailer"

    def __init__(
        self,
        mails: Mails,
        composer: Composer,
        sender: SmtpSender,
        *,
        sessions_max: int = SESSIONS_MAX,
        each_max: int = EACH_MAX,
        limits: MailLimits = LIMITS_DEFAULT,
        interval_seconds_max: float = 1.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._mails = mails
        self._composer = composer
        self._sender = sender
        self._sessions_max = sessions_max
        self._each_max = each_max
        self._limits = limits
        self._interval_seconds_max = interval_seconds_max
        self._chance = chance
        # Longer than a session can take: only the mails of a mailer that died are leased again.
        self.lease_seconds = sender.session_seconds + SPARE_SECONDS
        self._running: set[asyncio.Task[str | None]] = set()

    async def act(self) -> float:
        """Start a session for due mails where there is room; return when one is done, or after a moment."""
        started = len(self._running) < self._sessions_max and await self._start_one()
        if not self._running:
            # Jitter keeps mailers apart.
            return self._interval_seconds_max * random.uniform(0.8, 1.0)  # noqa: S311 (jitter, not a secret)
        if not started or len(self._running) >= self._sessions_max:
            await asyncio.wait(self._running, timeout=self._interval_seconds_max, return_when=asyncio.FIRST_COMPLETED)
        self._collect_finished()
        return 0.0

    async def close(self) -> None:
        """Begin nothing more, and wait briefly for sessions under way. Another mailer sends the rest."""
        self._sender.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=GRACE_SECONDS)
        # What was sent by then is still recorded, so that no other mailer sends it again.
        self._sender.abort()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    async def _start_one(self) -> bool:
        lease = await self._mails.claim(limit=self._each_max, lease_seconds=self.lease_seconds, limits=self._limits)
        if lease.mails:
            self._running.add(asyncio.create_task(self._run(lease), name="mails"))
        return bool(lease.mails)

    def _collect_finished(self) -> None:
        """Forget finished sessions. Raises what one raised, or a failed round where the server was of no use."""
        done = [task for task in self._running if task.done()]
        self._running.difference_update(done)
        ended = [task for task in done if not task.cancelled()]
        for failure in [error for task in ended if (error := task.exception())]:
            raise failure
        for trouble in [code for task in ended if (code := task.result())]:
            raise RoundFailed(f"the mail server could not be used: {trouble}", code=trouble)

    async def _run(self, lease: MailLease) -> str | None:
        """Write, send and record some mails; return what was wrong with the server, if anything was."""
        began, now = time.monotonic(), lease.now
        results: list[MailResult] = []
        letters: list[tuple[Letter, Mail]] = []
        for mail in lease.mails:
            above_limit = lease.above_limit.get(mail.id)
            written = self._skipped(mail, above_limit, now=now) if above_limit else await self._write(mail, now=now)
            if isinstance(written, MailResult):
                results.append(written)
            else:
                letters.append((written, mail))
        session = await self._sender.send([letter for letter, _ in letters]) if letters else None
        results += self._judge([mail for _, mail in letters], session, now=now)
        await self._mails.record(results)
        counted = Counter(result.state.value for result in results)
        trouble = session.trouble if session else None
        above = dict(Counter(lease.above_limit.values()))
        write = log.warning if counted[MailState.FAILED] or above else log.info
        write("mail", **counted, **above, trouble=trouble, took_ms=round((time.monotonic() - began) * 1000))
        return trouble

    async def _write(self, mail: Mail, *, now: datetime) -> Letter | MailResult:
        """The mail; or what becomes of it where there is nothing to send, or where it cannot be written."""
        try:
            written = await self._composer.letter(mail, now=now)
        except Outage:
            raise
        except Exception:  # the other mails can be written, and this one is given up in the end
            log.exception("mail", mail_id=str(mail.id), booking=str(mail.booking_id), outcome="not_written")
            return self._later(mail, "not_written", now=now)
        return self._skipped(mail, written, now=now) if isinstance(written, str) else written

    def _judge(self, mails: Sequence[Mail], session: SessionResult | None, *, now: datetime) -> list[MailResult]:
        """What each mail becomes. Where the connection failed before a mail was tried, that counts as its try."""
        known = {result.mail_id: result for result in session.results} if session else {}
        judged = []
        for mail in mails:
            result = known.get(mail.id)
            if result is not None and result.fate is Fate.SENT:
                judged.append(self._result(mail, MailState.SENT, now=now))
            elif result is not None and result.fate is Fate.REFUSED:
                judged.append(self._result(mail, MailState.FAILED, now=now, error=result.code))
            elif result is None and known:
                judged.append(self._result(mail, MailState.PENDING, now=now, tried=False))
            else:
                code = result.code if result is not None else session.trouble if session else None
                judged.append(self._later(mail, code, now=now))
        return judged

    def _skipped(self, mail: Mail, why: str, *, now: datetime) -> MailResult:
        """Not sent, and why; the booking is not touched."""
        return self._result(mail, MailState.SKIPPED, now=now, error=why)

    def _later(self, mail: Mail, code: str | None, *, now: datetime) -> MailResult:
        """Again later, or never where it was tried often enough."""
        due_at = next_try(mail.tries, now=now, chance=self._chance())
        state = MailState.FAILED if due_at is None else MailState.PENDING
        return self._result(mail, state, now=due_at or now, error=code)

    @staticmethod
    def _result(
        mail: Mail, state: MailState, *, now: datetime, tried: bool = True, error: str | None = None
    ) -> MailResult:
        return MailResult(mail_id=mail.id, attempt=mail.tries, state=state, due_at=now, tried=tried, error=error)
