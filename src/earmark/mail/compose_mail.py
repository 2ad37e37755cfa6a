"""Writes the mail about a booking: a template in the buyer's language, filled with fields from a fixed list.

A template is a text file: the first line is the subject, and paragraphs follow. A paragraph with a field that has no
value is left out. Values are put in once and never read as templates, and what goes into a header is one short line.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime, tzinfo
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime, getaddresses
from functools import cache
from importlib import resources
from string import Formatter
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking
from earmark.domain.contact import Contact, domain_in_ascii, email_flaw
from earmark.domain.format_for_language import known_language, moment_text, money_text
from earmark.domain.id_types import MailId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mail import MailKind
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.domain.booking import PoolLine, SeatLine

BREAKS = frozenset({"Cc", "Zl", "Zp", "Cs"})
"""Unicode's categories of what is no text: control characters, ends of lines and paragraphs, halves of characters."""
FIELDS = frozenset({"name", "event", "starts_at", "lines", "total", "booking", "ticket", "amount", "shop"})
"""What a template may name."""
HEADER_LENGTH_MAX = 200
LINES_MAX = 200
"""More lines than a booking can have: its seats and pools are at most a hundred."""
TEST_PREFIX = "[test] "
WORDS = {
    "en": {"seat": "Seat {seat}", "row": "row {row}, seat {number}", "each": "{units} x {name}, {price} each"},
    "de": {"seat": "Platz {seat}", "row": "Reihe {row}, Platz {number}", "each": "{units} x {name}, je {price}"},
}


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """Whom mails come from, and what all of them have in common."""

    address: Address
    timezone: tzinfo
    public_url: str | None = None

    @property
    def domain(self) -> str:
        """The right side of the ids of mails."""
        return self.address.domain


class MailContent(msgspec.Struct, frozen=True, kw_only=True):
    """What one mail is about, as it is when the mail is sent."""

    mail_id: MailId
    kind: MailKind
    booking: Booking
    event: Event
    contact: Contact
    now: datetime
    ticket_link: str | None = None
    amount: int | None = None
    """What went back, of a refund."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A mail that is ready to be sent, with its envelope."""

    mail_id: MailId
    sender: str
    recipient: str
    message: EmailMessage


class _Template(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    paragraphs: tuple[str, ...]


def sender_address(text: str) -> Address:
    """The address of EARMARK_MAIL_FROM: alone, or behind a name."""
    found = getaddresses([text])
    name, email = found[0] if len(found) == 1 else ("", "")
    if email_flaw(email) is not None or any(unicodedata.category(sign) in BREAKS for sign in text):
        raise SetupError(
            problem="EARMARK_MAIL_FROM is no address: write shop@example.com or The Shop <shop@example.com>."
        )
    return _address(name, email)


def compose(about: MailContent, sender: Sender) -> Letter:
    """The mail, in the buyer's language as far as it is known."""
    language = known_language(about.contact.language)
    template = _template(language, about.kind)
    values = _values(about, sender, language)
    recipient = _address(about.contact.name, about.contact.email)
    is_ascii = recipient.addr_spec.isascii() and sender.address.addr_spec.isascii()
    message = EmailMessage(policy=SMTP if is_ascii else SMTPUTF8)
    prefix = TEST_PREFIX if about.booking.mode is Mode.TEST else ""
    message["From"] = sender.address
    message["To"] = recipient
    message["Subject"] = one_line(prefix + template.subject.format_map(values))
    message["Date"] = format_datetime(about.now)
    message["Message-ID"] = f"<{about.mail_id}@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n\n".join(_filled(template.paragraphs, values)) + "\n")
    message["Content-Language"] = language
    return Letter(
        mail_id=about.mail_id, sender=sender.address.addr_spec, recipient=recipient.addr_spec, message=message
    )


def one_line(text: str) -> str:
    """A text for a header: no line end and no control character of any script, and not long."""
    plain = "".join(" " if unicodedata.category(sign) in BREAKS else sign for sign in text)
    line = " ".join(plain.split())
    return line if len(line) <= HEADER_LENGTH_MAX else f"{line[: HEADER_LENGTH_MAX - 1]}…"


def _address(name: str, email: str) -> Address:
    """Its domain as mail servers know it; what is before the @ stays as it was typed."""
    local, _, domain = email.rpartition("@")
    return Address(display_name=one_line(name), username=local, domain=domain_in_ascii(domain) or domain)


def _values(about: MailContent, sender: Sender, language: str) -> dict[str, str]:
    booking, event = about.booking, about.event
    starts_at, amount = event.starts_at, about.amount
    return {
        "name": one_line(about.contact.name),
        "event": one_line(event.name),
        "starts_at": moment_text(starts_at, language=language, zone=sender.timezone) if starts_at else "",
        "lines": "\n".join(_lines(booking, language)),
        "total": money_text(booking.total, booking.currency, language=language),
        "booking": str(booking.id),
        "ticket": about.ticket_link or "",
        "amount": "" if amount is None else money_text(amount, booking.currency, language=language),
        "shop": sender.public_url or "",
    }


def _lines(booking: Booking, language: str) -> list[str]:
    """One line for each seat and pool, with its price."""
    seats = [_seat(line, booking.currency, language) for line in booking.lines.seats]
    pools = [_pool(line, booking.currency, language) for line in booking.lines.pools]
    return [*seats, *pools][:LINES_MAX]


def _seat(line: SeatLine, currency: str, language: str) -> str:
    words = WORDS[language]
    if line.row is not None and line.number is not None:
        place = words["row"].format(row=line.row, number=line.number)
    else:
        place = words["seat"].format(seat=line.id)
    parts = [part for part in (line.section, place, line.category) if part]
    return f"- {', '.join(parts)}: {money_text(line.price, currency, language=language)}"


def _pool(line: PoolLine, currency: str, language: str) -> str:
    price = money_text(line.price, currency, language=language)
    return f"- {WORDS[language]['each'].format(units=line.units, name=line.id, price=price)}"


def _filled(paragraphs: tuple[str, ...], values: dict[str, str]) -> list[str]:
    """The paragraphs whose fields all have a value, with the values in them."""
    return [text.format_map(values) for text in paragraphs if all(values[name] for name in fields_of(text))]


def fields_of(text: str) -> set[str]:
    """The fields that a template's text names."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@cache
def _template(language: str, kind: MailKind) -> _Template:
    file = resources.files("earmark.mail") / "templates" / language / f"{kind.value}.txt"
    subject, _, body = file.read_text(encoding="utf-8").partition("\n")
    paragraphs = tuple(part.strip("\n") for part in body.split("\n\n") if part.strip())
    unknown = fields_of(subject + body) - FIELDS
    assert not unknown, f"{language}/{kind}: {unknown}"
    return _Template(subject=subject, paragraphs=paragraphs)
