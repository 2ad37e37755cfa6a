"""How many mails an address is sent, and how many are sent about the bookings of one buyer, within a day.

A guest chooses the address that mails go to: without limits, the shop would send a stranger as many mails as a guest
makes bookings. A mail above a limit is skipped, and the booking is not touched.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.contact import domain_in_ascii

if TYPE_CHECKING:
    from earmark.domain.id_types import Buyer
    from earmark.domain.live_or_test_mode import Mode

WINDOW_SECONDS = 86_400.0


class MailLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits within the window."""

    per_recipient: int = 20
    per_buyer: int = 50


LIMITS_DEFAULT = MailLimits()


def recipient_hash(mode: Mode, email: str) -> str:
    """What mails to an address are counted by: the same for capitals, and for tags behind a `+`."""
    local, _, domain = email.casefold().rpartition("@")
    return _hash(mode, "recipient", f"{local.partition('+')[0]}@{domain_in_ascii(domain) or domain}")


def buyer_hash(mode: Mode, buyer: Buyer) -> str:
    """What mails about a buyer's bookings are counted by."""
    return _hash(mode, "buyer", buyer)


def _hash(mode: Mode, what: str, text: str) -> str:
    return sha256(f"{mode.value}\0{what}\0{text}".encode()).hexdigest()
