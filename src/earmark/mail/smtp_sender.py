"""Sends mails through one SMTP server with the standard library's `smtplib`, in a thread of its own, with deadlines.

A session is one connection with some mails on it. Each step of it has a timeout, and the session as a whole a deadline:
then its socket is closed and its thread is left behind, which a hung name lookup may keep for a while. Such a thread
keeps no process from ending.

What the server says is used as a number only. Its text may repeat an address, so it is neither logged nor stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.id_types import MailId
from earmark.mail.smtp_server_from_url import SmtpServer, Tls

if TYPE_CHECKING:
    from earmark.mail.compose_mail import Letter

STEP_SECONDS_MAX = 10.0
SESSION_SECONDS_MAX = 40.0
PERMANENT = 500
"""From this code on a server refuses for good (RFC 5321)."""

_CODES = (
    (smtplib.SMTPAuthenticationError, "login_refused"),
    (smtplib.SMTPNotSupportedError, "no_starttls_or_login"),
    (smtplib.SMTPServerDisconnected, "smtp_disconnected"),
    (ssl.SSLError, "tls_failed"),
)


class Fate(StrEnum):
    """What became of one mail."""

    SENT = "sent"
    LATER = "later"
    REFUSED = "refused"


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mail, with a code that says why it was not sent."""

    mail_id: MailId
    fate: Fate
    code: str | None = None


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a session went. Mails without a result were not tried."""

    results: Sequence[SendResult]
    trouble: str | None = None
    """What ended the session early: a code of the connection or of the login, and not of one mail."""


class SmtpSender:
    """Opens a connection for each session. It holds nothing between them."""

    def __init__(
        self,
        server: SmtpServer,
        *,
        step_seconds: float = STEP_SECONDS_MAX,
        session_seconds: float = SESSION_SECONDS_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = server
        self._step_seconds = step_seconds
        self.session_seconds = session_seconds
        self._tls = tls or ssl.create_default_context()
        self._sessions: set[_Session] = set()
        self._aborting = asyncio.Event()

    async def send(self, letters: Sequence[Letter]) -> SessionResult:
        """Send these, one after the other over one connection; return at the deadline at the latest."""
        session = _Session(self._server, letters, step_seconds=self._step_seconds, tls=self._tls)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def run() -> None:
            session.run()
            # The loop may have ended before a thread that was left behind.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=run, name="smtp session", daemon=True).start()
        self._sessions.add(session)
        waits = [asyncio.create_task(event.wait()) for event in (ended, self._aborting)]
        try:
            await asyncio.wait(waits, timeout=self.session_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sessions.discard(session)
            for wait in waits:
                wait.cancel()
            result = session.result() if ended.is_set() else session.give_up()
        return result

    def stop(self) -> None:
        """Begin no other mail: sessions under way end after the one that they are sending."""
        for session in self._sessions:
            session.stop()

    def abort(self) -> None:
        """End the sessions under way now."""
        self._aborting.set()


class _Session:
    """One connection. It runs in a thread, and the event loop may end it."""

    def __init__(
        self, server: SmtpServer, letters: Sequence[Letter], *, step_seconds: float, tls: ssl.SSLContext
    ) -> None:
        self._server = server
        self._letters = letters
        self._step_seconds = step_seconds
        self._tls = tls
        self._lock = threading.Lock()
        self._smtp: smtplib.SMTP | None = None
        self._stopping = False
        self._under_way: Letter | None = None
        self._results: list[SendResult] = []
        self._trouble: str | None = None

    def run(self) -> None:
        """Connect, log in, send all, and say goodbye."""
        try:
            smtp = self._open()
        except (smtplib.SMTPException, OSError, UnicodeError) as failure:
            self._trouble = _code_of_connection(failure)
            return
        try:
            for letter in self._letters:
                if self._stopping or not self._send(smtp, letter):
                    break
            with contextlib.suppress(smtplib.SMTPException, OSError):
                smtp.quit()
        finally:
            smtp.close()

    def stop(self) -> None:
        """Send no other mail."""
        self._stopping = True

    def give_up(self) -> SessionResult:
        """Close the socket under the thread. The mail under way may have been sent: it is tried again."""
        with self._lock:
            self._stopping = True
            smtp = self._smtp
        if smtp is not None and smtp.sock is not None:
            with contextlib.suppress(OSError):
                smtp.sock.shutdown(socket.SHUT_RDWR)
        if self._under_way is not None:
            self._add(self._under_way, Fate.LATER, "smtp_silent")
        return SessionResult(results=tuple(self._results), trouble="smtp_silent")

    def result(self) -> SessionResult:
        """What became of the mails, once the thread has ended."""
        return SessionResult(results=tuple(self._results), trouble=self._trouble)

    def _open(self) -> smtplib.SMTP:
        """A connection that is protected as the URL says, and logged in. The server's certificate is verified."""
        server = self._server
        own_name = socket.gethostname()
        local = own_name if own_name.isascii() and "." in own_name else "[127.0.0.1]"
        smtp: smtplib.SMTP
        if server.tls is Tls.FROM_THE_START:
            smtp = smtplib.SMTP_SSL(server.host, server.port, local, timeout=self._step_seconds, context=self._tls)
        else:
            smtp = smtplib.SMTP(server.host, server.port, local, timeout=self._step_seconds)
        with self._lock:
            self._smtp = smtp
        try:
            smtp.ehlo_or_helo_if_needed()
            if server.tls is Tls.STARTTLS:
                smtp.starttls(context=self._tls)
                smtp.ehlo()
            if server.user is not None and server.password is not None:
                smtp.login(server.user, server.password)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _send(self, smtp: smtplib.SMTP, letter: Letter) -> bool:
        """Send one mail; False where the connection is of no use any more."""
        self._under_way = letter
        try:
            smtp.send_message(letter.message, letter.sender, [letter.recipient])
        except smtplib.SMTPRecipientsRefused as refused:
            code = next(iter(refused.recipients.values()))[0]
            self._refused(letter, code)
        except smtplib.SMTPDataError as refused:
            self._refused(letter, refused.smtp_code)
        except smtplib.SMTPSenderRefused as refused:
            # The shop's own address: that is for the operator to set right, and no fault of the mail.
            self._add(letter, Fate.LATER, f"smtp_{refused.smtp_code}")
            self._trouble = "sender_refused"
        except smtplib.SMTPNotSupportedError:
            self._add(letter, Fate.REFUSED, "no_smtputf8")
        except (smtplib.SMTPException, OSError) as failure:
            self._trouble = _code_of_connection(failure)
            self._add(letter, Fate.LATER, self._trouble)
        except ValueError:
            # This one cannot be put into bytes: the others can.
            self._add(letter, Fate.REFUSED, "not_writable")
        else:
            self._add(letter, Fate.SENT, None)
        return self._trouble is None and smtp.sock is not None

    def _refused(self, letter: Letter, code: int) -> None:
        self._add(letter, Fate.REFUSED if code >= PERMANENT else Fate.LATER, f"smtp_{code}")

    def _add(self, letter: Letter, fate: Fate, code: str | None) -> None:
        """Note a result, the first one of each mail; after the deadline the event loop has the last word."""
        with self._lock:
            if all(known.mail_id != letter.mail_id for known in self._results):
                self._results.append(SendResult(mail_id=letter.mail_id, fate=fate, code=code))
        self._under_way = None


def _code_of_connection(failure: Exception) -> str:
    """Which step failed, as a word: the first kind that fits."""
    if isinstance(failure, TimeoutError) or isinstance(failure.__context__, TimeoutError):
        return "smtp_silent"
    for kind, code in _CODES:
        if isinstance(failure, kind):
            return code
    return f"smtp_{failure.smtp_code}" if isinstance(failure, smtplib.SMTPResponseException) else "smtp_unreachable"
