"""How many mails an address is sent, and how many are sent about the bookings of one buyer, within a day.

A guest chooses the address that mails go to: without limits, the shop would send a stranger as many mails as a guest
makes bookings. A mail above a limit is skipped, and the booking is not touched.
"""

from __future__ import annotations

import msgspec

WINDOW_SECONDS = 86_400.0


class MailLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits within the window."""

    per_recipient: int = 20
    per_buyer: int = 50


LIMITS_DEFAULT = MailLimits()
