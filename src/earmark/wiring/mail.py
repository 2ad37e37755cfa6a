"""Makes the mailer of a process from its settings, where there is a mail server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId
from earmark.domain.mail import MailKind, is_mailed, is_outdated
from earmark.domain.mail_limits import MailLimits
from earmark.engine.commands_and_results import Actor
from earmark.errors import Refusal, SetupError
from earmark.mail import smtp_server_from_url
from earmark.mail.compose_mail import Letter, MailContent, Sender, compose, sender_address
from earmark.mail.smtp_sender import SmtpSender
from earmark.tickets.new_ticket_secrets import NEW_SECRETS
from earmark.workers.mailer import Mailer

if TYPE_CHECKING:
    import ssl
    from datetime import datetime, tzinfo

    from earmark.config import Settings
    from earmark.domain.id_types import EntryId
    from earmark.domain.mail import Mail
    from earmark.engine.ports.store import Store

MAILER = "mailer"

TicketLink = Callable[[BookingId], Awaitable[str | None]]
"""Where a buyer finds the ticket of a booking; None where there is none."""


def ticket_link_for(settings: Settings, store: Store) -> TicketLink:
    """Links to ticket pages, which are made with the first; none where it is not set where the pages are."""

    async def ticket_link(booking_id: BookingId) -> str | None:
        if settings.public_url is None:
            return None
        _, booking = await store.read_booking(booking_id)
        if booking is None or booking.state is not State.CONFIRMED:
            return None
        actor = Actor(name=MAILER, mode=booking.mode)
        try:
            found = await store.tickets.of_booking(booking_id, actor=actor, new=NEW_SECRETS)
        except Refusal:
            return None
        return f"{settings.public_url.rstrip('/')}/t/{found.page.secret}"

    return ticket_link


def mailer_for(settings: Settings, store: Store, *, tls: ssl.SSLContext | None = None) -> Mailer | None:
    """The mailer; None where no mail server is set up."""
    if settings.smtp_url is None:
        return None
    server = smtp_server_from_url.parse(settings.smtp_url)
    composer = composer_for(settings, store)
    limits = MailLimits(per_recipient=settings.mails_per_recipient_max, per_buyer=settings.mails_per_buyer_max)
    return Mailer(store.mails, composer, SmtpSender(server, tls=tls), limits=limits)


def composer_for(settings: Settings, store: Store) -> MailComposer:
    """What writes the mails of a shop."""
    ticket_link, test_events = ticket_link_for(settings, store), settings.mail_test_events
    return MailComposer(store, sender_for(settings), ticket_link=ticket_link, test_events=test_events)


def sender_for(settings: Settings) -> Sender:
    """Whom mails come from; refuses settings that a mail could not be written with."""
    if settings.mail_from is None:
        raise SetupError(problem="EARMARK_SMTP_URL is set, so EARMARK_MAIL_FROM must say whom mails come from.")
    url = settings.public_url
    if url is not None and not url.startswith(("http://", "https://")):
        raise SetupError(problem="EARMARK_PUBLIC_URL must begin with https:// or http://.")
    return Sender(
        address=sender_address(settings.mail_from),
        timezone=_zone(settings.mail_timezone),
        public_url=url.rstrip("/") if url else None,
    )


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (OSError, KeyError, ValueError) as unknown:
        problem = f"EARMARK_MAIL_TIMEZONE: this machine knows no time zone {name!r}; write one such as Europe/Berlin."
        raise SetupError(problem=problem) from unknown


class MailComposer:
    """Reads what a mail is about when it is sent: a contact that was erased meanwhile gets none."""

    def __init__(self, store: Store, sender: Sender, *, ticket_link: TicketLink, test_events: bool = False) -> None:
        self._store = store
        self._test_events = test_events
        self._sender = sender
        self._ticket_link = ticket_link

    async def letter(self, mail: Mail, *, now: datetime) -> Letter | str:
        """The mail, or why there is nothing to send."""
        contact = await self._store.contacts.read(mail.booking_id)
        if contact is None:
            return "no_contact"
        _, booking = await self._store.read_booking(mail.booking_id)
        event = await self._store.read_event(booking.event_id) if booking else None
        if booking is None or event is None or is_outdated(mail.kind, booking):
            return "outdated"
        if not is_mailed(booking.mode, mail=True, test_events=self._test_events):
            return "test_event"
        amount = await self._refunded(mail.booking_id, mail.entry_id) if mail.kind is MailKind.REFUNDED else None
        tells_of_tickets = mail.kind in {MailKind.CONFIRMED, MailKind.REDUCED}
        about = MailContent(
            mail_id=mail.id,
            kind=mail.kind,
            booking=booking,
            event=event,
            contact=contact,
            now=now,
            ticket_link=await self._ticket_link(booking.id) if tells_of_tickets else None,
            amount=amount,
        )
        return compose(about, self._sender)

    async def _refunded(self, booking_id: BookingId, entry_id: EntryId) -> int | None:
        """How much the entry says went back."""
        entries = await self._store.read_history(booking_id)
        found = [entry.facts["payment"]["refunded"] for entry in entries if entry.id == entry_id]
        return found[0] if found else None
