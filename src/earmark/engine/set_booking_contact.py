"""Sets the contact of a booking, for the API and for the library.

A contact is no move of the booking: it has no entry in the journal, which is never deleted, and is in no message to a
webhook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.contact import check_contact_allowed
from earmark.errors import BookingUnknown, ContactUnknown, RowBusy

if TYPE_CHECKING:
    from earmark.domain.contact import Contact
    from earmark.domain.id_types import BookingId
    from earmark.engine.commands_and_results import Actor
    from earmark.engine.ports.store import Store

TRIES = 3
"""How often a booking that moved between the look and the write is judged again."""


async def set_contact(store: Store, contact: Contact, *, actor: Actor, mail: bool) -> Contact:
    """Keep the contact, in place of one before it. With `mail`, the mail about an earlier confirmation is queued.

    A buyer who corrects an address gets a mail that could not be sent; only the shop has one sent twice, so that no
    buyer can have mails sent to one address after the other.
    """
    for _ in range(TRIES):
        now, booking = await store.read_booking(contact.booking_id)
        if booking is None or not actor.may_see(booking):
            raise BookingUnknown(booking_id=str(contact.booking_id))
        check_contact_allowed(booking, now=now)
        if await store.contacts.save(contact, buyer=booking.buyer, queue=mail, again=actor.buyer is None):
            return contact
    raise RowBusy(because="the booking changes too often to set its contact")


async def read_contact(store: Store, booking_id: BookingId) -> Contact:
    """The contact of a booking that the caller may see."""
    contact = await store.contacts.read(booking_id)
    if contact is None:
        raise ContactUnknown(booking_id=str(booking_id))
    return contact
