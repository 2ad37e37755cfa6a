"""Contacts and mails as a store keeps them.

A mail is written in the transaction that gives its entry a number, so none is lost and none is there twice. A mailer
leases mails; if the lease ends without a result, they are leased again. So a mail is sent at least once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from earmark.domain.id_types import MailId
from earmark.domain.mail import Mail, MailState
from earmark.domain.mail_limits import LIMITS_DEFAULT, MailLimits

if TYPE_CHECKING:
    from earmark.domain.contact import Contact
    from earmark.domain.id_types import BookingId, Buyer


class MailLease(msgspec.Struct, frozen=True, kw_only=True):
    """Due mails, leased to one mailer, and the moment of the lease."""

    mails: Sequence[Mail]
    now: datetime
    above_limit: Mapping[MailId, str] = {}
    """Why a mail of these is not to be sent, where too many were: `recipient_limit` or `buyer_limit`."""


class MailResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one leased mail."""

    mail_id: MailId
    attempt: int
    """Which one it was: if it was given out again meanwhile, only a success still counts."""
    state: MailState
    due_at: datetime
    tried: bool = True
    """Whether it was tried at all."""
    error: str | None = None
    """A code of Earmark's own: what a mail server says may repeat the address."""


class MailBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """What is not sent, counted up to a limit."""

    pending: int
    oldest_at: datetime | None
    """When the oldest of the pending ones was queued."""
    failed: int
    """Those that are still kept."""
    above_limit: int = 0
    """Those that were skipped as too many, and are still kept."""


class ContactSave(StrEnum):
    """What became of a contact that was to be kept."""

    KEPT = "kept"
    BOOKING_MOVED = "booking_moved"
    """The booking is not this buyer's any more, or not active."""
    ADDRESS_STAYS = "address_stays"
    """A mail about the booking waits or was sent, and the address would be another."""


class Contacts(Protocol):
    """Where the contacts of bookings are kept."""

    async def read(self, booking_id: BookingId) -> Contact | None:
        """The contact of a booking; None when it has none."""
        ...

    async def save(self, contact: Contact, *, buyer: Buyer, queue: bool, by_shop: bool) -> ContactSave:
        """Keep it as the booking's contact, if the booking is still this buyer's and still active.

        Once a mail was queued only the shop changes the address; with `queue` not set there are no mails.

        With `queue`, the mail about a confirmation that came first is queued in the same transaction, once. One that
        failed or was skipped is queued again; for the shop also one that was sent, where the address is another now.
        """
        ...


class Mails(Protocol):
    """Where mails wait to be sent."""

    async def claim(self, *, limit: int, lease_seconds: float, limits: MailLimits = LIMITS_DEFAULT) -> MailLease:
        """Due mails, the longest due first, at most `limit`: for so long no other mailer is given them.

        With it, which of them are above the limits. Mailers that lease at once may each miss what the other has leased.
        """
        ...

    async def record(self, results: Sequence[MailResult]) -> None:
        """Record what became of leased mails, in one transaction."""
        ...

    async def backlog(self, *, limit: int) -> MailBacklog:
        """Pending and failed mails, counted over at most `limit` rows each."""
        ...

    async def prune(self, *, before: datetime, limit: int) -> int:
        """Delete mails that ended before this moment, so many at most; how many those were."""
        ...


class KeepsMails(Protocol):
    """A store that keeps contacts and mails."""

    @property
    def contacts(self) -> Contacts:
        """The contacts of this store's bookings."""
        ...

    @property
    def mails(self) -> Mails:
        """The mails of this store."""
        ...
