"""The hashes by which mails are counted: of the address that one goes to, and of the buyer whose booking it is about.

Test mails have others than live ones: with bookings that cost nothing a guest could else keep a stranger's own mails
away.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from earmark.domain.contact import domain_in_ascii

if TYPE_CHECKING:
    from earmark.domain.id_types import Buyer
    from earmark.domain.live_or_test_mode import Mode


def recipient_hash(mode: Mode, email: str) -> str:
    """What mails to an address are counted by: the same for capitals, and for tags behind a `+`."""
    local, _, domain = email.casefold().rpartition("@")
    return _hash(mode, "recipient", f"{local.partition('+')[0]}@{domain_in_ascii(domain) or domain}")


def buyer_hash(mode: Mode, buyer: Buyer) -> str:
    """What mails about a buyer's bookings are counted by."""
    return _hash(mode, "buyer", buyer)


def _hash(mode: Mode, what: str, text: str) -> str:
    return sha256(f"{mode.value}\0{what}\0{text}".encode()).hexdigest()
