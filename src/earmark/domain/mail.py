"""A mail about a booking: which journal entries make one, when it is tried again, and what became of it.

    pending ──the server took it──► sent
       │ ▲
       │ └── the server said "later", or nothing: again, later and later
       ├──► failed    refused for good, or tried too often
       └──► skipped   there is no contact any more, or nothing to tell any more

A mail row has no name and no address: whom it goes to is read when it is sent.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import BookingId, EntryId, MailId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook_messages import REFUND_MADE, type_of

if TYPE_CHECKING:
    from earmark.domain.booking import Booking
    from earmark.domain.journal_entry import Entry

TRIES_MAX = 20
"""With the pauses between, about two and a half days."""
KEPT_SECONDS = 7 * 86_400.0
"""How long a mail that has ended is kept."""
WAIT_SECONDS_FIRST = 30.0
WAIT_SECONDS_MAX = 6 * 3_600.0


class MailKind(StrEnum):
    """What a mail tells."""

    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    REDUCED = "reduced"
    REFUNDED = "refunded"


class MailState(StrEnum):
    """Where a mail stands."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"
    SKIPPED = "skipped"


KIND_BY_TYPE = {
    "booking.confirmed": MailKind.CONFIRMED,
    "booking.cancelled": MailKind.CANCELLED,
    "booking.reduced": MailKind.REDUCED,
    REFUND_MADE: MailKind.REFUNDED,
}
"""By the type that a webhook's message about the same entry has. Late money that went back is a refund too."""


class Mail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One mail to a booking's contact. The id is the mail's own, at every try."""

    id: MailId
    booking_id: BookingId
    entry_id: EntryId
    kind: MailKind
    tries: int = 0


def kind_of(entry: Entry) -> MailKind | None:
    """What mail an entry makes; None where it makes none."""
    kind = type_of(entry) if entry.booking_id is not None else None
    return KIND_BY_TYPE.get(kind) if kind else None


def mail_id_of(entry_id: EntryId, kind: MailKind) -> MailId:
    """One id for one entry, the same in every process that computes it: a repeated mail can be recognised."""
    return MailId(uuid5(UUID(str(entry_id)), kind.value))


def mail_of(entry: Entry) -> Mail | None:
    """The mail about an entry; None where there is nothing to tell."""
    kind = kind_of(entry)
    if kind is None or entry.booking_id is None:
        return None
    return Mail(id=mail_id_of(entry.id, kind), booking_id=entry.booking_id, entry_id=entry.id, kind=kind)


def is_outdated(kind: MailKind, booking: Booking) -> bool:
    """Whether the booking has moved on, so that the mail would say what is not so any more."""
    return kind in {MailKind.CONFIRMED, MailKind.REDUCED} and booking.state is not State.CONFIRMED


def is_mailed(mode: Mode, *, mail: bool, test_events: bool) -> bool:
    """Whether mails about bookings of this mode are sent, where `mail` says that there is a mail server.

    A test booking costs nothing: where guests can make one, they could have mails sent to strangers without end.
    """
    return mail and (mode is Mode.LIVE or test_events)


def next_try(tries: int, *, now: datetime, chance: float) -> datetime | None:
    """When to try again after so many tries: each pause twice as long; None when it was tried often enough.

    `chance` is from 0 to 1: half of a pause is left to it, so that mails that failed together do not return together.
    """
    if tries >= TRIES_MAX:
        return None
    wait = min(WAIT_SECONDS_MAX, WAIT_SECONDS_FIRST * 2.0 ** max(tries - 1, 0))
    return now + timedelta(seconds=wait * (0.5 + chance / 2))
