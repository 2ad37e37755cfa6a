"""Letters to buyers: sold, expired, refunded, and a note to the shop when a payment needs an operator.

Every change of a booking is a journal entry of its event, numbered without a gap. This program reads the entries after
the last number that it stored, sends a letter where a buyer should know, and stores the number. If it crashes in
between, it sends that one letter again, and loses none.

Run it: `python examples/letters.py`. It writes the letters to a folder; a shop sends them by its mail server.
"""

import asyncio
import logging
import os
import tempfile
from email.message import EmailMessage
from pathlib import Path

import structlog

from earmark import Earmark
from earmark.domain.id_types import EventId
from earmark.domain.journal_entry import Entry
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.testing import MovableClock
from earmark.workers.journal_numbering_and_publishing_relay import OutboxRelay

PLAY = "letters:play"
SEATS = {"A1": 4500, "A2": 4500, "A3": 4500}  # prices in cents
SHOP = "box-office@shop.example"
PAGE = 100


def subject_of(entry: Entry) -> str | None:
    """The subject of the letter about this entry; None where no letter is needed."""
    money = entry.facts.get("payment") or {}
    if money.get("to") == "needs_attention":
        return "A payment needs you"
    if money.get("refunded"):
        return "Your money is on its way back"
    if entry.verb == "confirm":
        return "Your seats are yours"
    if entry.verb == "cancel":
        return "Your booking was changed" if entry.after == "confirmed" else "Your booking was cancelled"
    if entry.verb == "expire":
        return "Your hold has run out"
    return None


async def letter_about(shop: Earmark, entry: Entry, subject: str) -> EmailMessage:
    """To the buyer, or to the shop where an operator has to act."""
    assert entry.booking_id is not None
    booking = await shop.booking(entry.booking_id)
    letter = EmailMessage()
    letter["From"] = SHOP
    letter["To"] = SHOP if subject == "A payment needs you" else booking.buyer
    letter["Subject"] = subject
    # One id per entry: a mail server that sees it twice may drop the second.
    letter["Message-ID"] = f"<{entry.id}@shop.example>"
    seats = ", ".join(seat.id for seat in booking.seats) or "none"
    letter.set_content(f"Booking {booking.id}\nSeats: {seats}\n")
    return letter


async def send_letters(shop: Earmark, event_id: str, *, folder: Path) -> None:
    """Send a letter for each new entry, and store the number of the last entry read."""
    cursor = folder / "cursor"
    last = int(cursor.read_text()) if cursor.exists() else 0
    while entries := await shop.engine.store.outbox.read_numbered(EventId(event_id), after=last, limit=PAGE):
        for numbered in entries:
            entry = numbered.entry
            if entry.booking_id is not None and (subject := subject_of(entry)):
                letter = await letter_about(shop, entry, subject)
                (folder / f"{numbered.sequence:06}.eml").write_bytes(bytes(letter))
                print(f"{numbered.sequence}: {letter['Subject']} -> {letter['To']}")
            last = numbered.sequence
            cursor.write_text(str(last))


async def all_sent(shop: Earmark, *, folder: Path) -> bool:
    """Whether every entry has been read."""
    (count,) = (await shop.engine.store.outbox.count([EventId(PLAY)])).values()
    return str(count) == (folder / "cursor").read_text()


async def main() -> None:
    """Alice buys and cancels one seat, Bob takes too long."""
    clock = MovableClock()  # A clock that the program advances. Leave it out in your shop.
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/shop.sqlite3"
        async with Earmark.open(url, clock=clock) as shop:
            # `earmark serve` and `earmark worker` run one for you.
            relay = OutboxRelay(shop.engine.store.outbox, EntryFeed())
            await shop.create_event(PLAY, name="A play", currency="EUR", seats=SEATS)
            alice = await shop.hold(PLAY, buyer="alice@mail.example", seats=["A1", "A2"])
            await shop.hold(PLAY, buyer="bob@mail.example", seats=["A3"], ttl_seconds=60)
            await shop.confirm(alice.id, payment_id="card-1")
            await relay.act()
            await send_letters(shop, PLAY, folder=folder)
            clock.advance(61)
            await shop.sweep()
            await shop.cancel(alice.id, seats=["A2"])
            await relay.act()
            await send_letters(shop, PLAY, folder=folder)
            await send_letters(shop, PLAY, folder=folder)  # Nothing is new, so nothing is sent.
            print("all sent:", await all_sent(shop, folder=folder))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    asyncio.run(main())
