"""Sets the contact of a booking, for the API and for the library.

A contact is no move of the booking: it has no entry in the journal, which is never deleted, and is in no message to a
webhook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.domain.contact import check_contact_allowed
from earmark.engine.ports.contacts_and_mails import ContactSave
from earmark.errors import BookingUnknown, ContactUnknown, InvalidRequest, RowBusy

if TYPE_CHECKING:
    from earmark.domain.contact import Contact
    from earmark.domain.id_types import BookingId
    from earmark.engine.commands_and_results import Actor
    from earmark.engine.ports.store import Store

ADDRESS_STAYS = "cannot be changed any more, as a mail about this booking is on its way; ask the shop to change it"
TRIES = 3
"""How often a booking that moved between the look and the write is judged again."""


async def set_contact(store: Store, contact: Contact, *, actor: Actor, mail: bool) -> Contact:
    """Keep the contact, in place of one before it. With `mail`, the mail about an earlier confirmation is queued.

    A buyer who corrects an address gets a mail that could not be sent. Once a mail waits or was sent, only the shop
    changes the address: else a buyer could have mails sent to one stranger after the other, one at each partial
    cancellation.
    """
    for _ in range(TRIES):
        now, booking = await store.read_booking(contact.booking_id)
        if booking is None or not actor.may_see(booking):
            raise BookingUnknown(booking_id=str(contact.booking_id))
        check_contact_allowed(booking, now=now)
        saved = await store.contacts.save(contact, buyer=booking.buyer, queue=mail, by_shop=actor.buyer is None)
        if saved is ContactSave.ADDRESS_STAYS:
            raise InvalidRequest.at("email", ADDRESS_STAYS)
        if saved is ContactSave.KEPT:
            return contact
    raise RowBusy(because="the booking changes too often to set its contact")


async def read_contact(store: Store, booking_id: BookingId) -> Contact:
    """The contact of a booking that the caller may see."""
    contact = await store.contacts.read(booking_id)
    if contact is None:
        raise ContactUnknown(booking_id=str(booking_id))
    return contact
