"""A booking's contact: the buyer's name, e-mail address and language, and what each of them may be.

A name stands in mails that a guest can have sent: it has no link, and no room for a message.

The address is kept as it was typed. It is checked for what can go into a mail's header and to a mail server, and not
for whether a mailbox exists: only a mail shows that.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.booking_state_machine import ACTIVE_STATES, State
from earmark.domain.id_types import BookingId
from earmark.errors import BookingExpired, BookingResolved, InvalidRequest

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking

LANGUAGE_DEFAULT = "en"
EMAIL_LENGTH_MAX = 254
"""RFC 5321: a path of 256 characters has two angle brackets."""
LOCAL_LENGTH_MAX = 64
NAME_LENGTH_MAX = 100
LINK_MARKS = ("://", "www.")
"""What mail programs make a link of."""

_FORBIDDEN = re.compile(r'[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff()<>\[\]:;,"\\@]')
"""What would end or begin another part of a header or of an SMTP command, and white space."""
_LABEL = re.compile(r"(?!-)[^\W_](?:[^\W_]|-(?!\Z)){0,62}")


class Contact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whom a mail about a booking goes to."""

    booking_id: BookingId
    name: str
    email: str
    language: str = LANGUAGE_DEFAULT


def check_name(name: str) -> None:
    """Refuse what is no name of a person."""
    if why := name_flaw(name):
        raise InvalidRequest.at("name", why)


def name_flaw(name: str) -> str | None:
    """Why this is no name of a person: only spaces, or a link; None where it may be one."""
    if not name.strip():
        return "must have more than spaces"
    # Letters of full width and capitals read the same.
    plain = unicodedata.normalize("NFKC", name).casefold()
    if any(mark in plain for mark in LINK_MARKS):
        return "must be a person's name, without :// and www."
    return None


def check_email(email: str) -> None:
    """Refuse what is no address; the error does not repeat it."""
    if why := email_flaw(email):
        raise InvalidRequest.at("email", why)


def email_flaw(email: str) -> str | None:
    """Why this is no address; None where it is one."""
    local, at, domain = email.rpartition("@")
    if not at or not local or not domain or "@" in local:
        return "must have one @, with something on each side"
    if len(email) > EMAIL_LENGTH_MAX or len(local) > LOCAL_LENGTH_MAX:
        return f"must have at most {LOCAL_LENGTH_MAX} characters before the @ and {EMAIL_LENGTH_MAX} in all"
    if _FORBIDDEN.search(local) or local.startswith(".") or local.endswith(".") or ".." in local:
        return "has characters that are not allowed before the @"
    if "." not in domain or not all(_LABEL.fullmatch(label) for label in domain.split(".")):
        return "must have the name of a domain after the @"
    if domain_in_ascii(domain) is None:
        return "must have the name of a domain after the @"
    return None


def domain_in_ascii(domain: str) -> str | None:
    """The domain as mail servers know it (`xn--…`); None where it has no such form."""
    try:
        return domain.encode("idna").decode("ascii")
    except UnicodeError:
        return None


def check_contact_allowed(booking: Booking, *, now: datetime) -> None:
    """A contact is set while a booking is held, paying or confirmed: later there is nothing to write about."""
    if booking.state is State.EXPIRED or booking.is_due(now):
        raise BookingExpired(expires_at=booking.expires_at)
    if booking.state not in ACTIVE_STATES:
        raise BookingResolved(state=booking.state.value)
