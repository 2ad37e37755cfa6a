"""An erasure deletes the contacts of the buyer's bookings and what is not sent to them, in its own transaction."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.mail.conftest import mailer, send_all
from tests.mail.smtp_sink import smtp_sink
from tests.webhooks.conftest import relay

from earmark.domain.contact import Contact
from earmark.domain.id_types import BookingId, Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.contacts_and_mails import ContactSave
from earmark.engine.ports.store import BookingFilter
from earmark.store import load_named_sql
from earmark.store.both_databases.mail_hashes import buyer_hash, recipient_hash
from earmark.store.both_databases.replace_buyer_name_in_texts import KEPT_FIELDS

from .conftest import ANN, HOURS, Place, event_body, shop_api_over

if TYPE_CHECKING:
    from .conftest import ShopApi

CONTACT = {"name": "Ann Lee", "email": ANN}
MAILED = {"mail_test_events": True}
PATIENCE_SECONDS = 30.0
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted) FROM pg_sleep(0.01)"


async def sell(place: Place, *, buyer: str = ANN, seat: str = "A1") -> str:
    """A sale with a contact, of a show that is over afterwards; the booking's id."""
    async with shop_api_over(place) as shop_api:
        if seat == "A1":
            await shop_api.post("events", event_body(place, "show"), key="show")
        booking = (await shop_api.post("bookings", {"event_id": "show", "buyer": buyer, "seats": [seat]}, key=seat))[
            "id"
        ]
        await shop_api.post(f"bookings/{booking}/contact", CONTACT | {"name": buyer}, key=f"{seat}-contact")
        await shop_api.post(f"bookings/{booking}/confirm", {"payment_id": f"till-{seat}"}, key=f"{seat}-paid")
    await relay(place.store, mail=True)
    return str(booking)


async def test_nothing_is_sent_to_an_erased_buyer(place: Place) -> None:
    """Neither what waited nor what a mailer had leased; another buyer's mail is sent."""
    own = await sell(place)
    other = await sell(place, buyer="bob", seat="A2")
    leased = await place.store.mails.claim(limit=1, lease_seconds=0.0)
    assert len(leased.mails) == 1
    place.clock.advance(2 * HOURS)
    done = await place.erase()
    assert (done.changed["contacts"], done.changed["unsent mails"]) == (1, 1)
    assert await place.store.contacts.read(BookingId(uuid.UUID(own))) is None
    assert await place.store.contacts.read(BookingId(uuid.UUID(other))) is not None
    async with smtp_sink() as sink, mailer(place.store, sink, settings=MAILED) as worker:
        await send_all(worker)
        assert [mail["To"].addresses[0].display_name for mail in sink.mails] == ["bob"]


async def test_a_mail_that_was_queued_behind_the_erasure_is_skipped(place: Place) -> None:
    """A relay that had read the contact before may write its mail after: it names no buyer, and finds no contact."""
    booking = await sell(place)
    place.clock.advance(2 * HOURS)
    await place.erase()
    mail = uuid.uuid4()
    number = 10**15 if place.file else "now()"
    columns = "(id, booking_id, entry_id, kind, created_at, due_at)"
    row = f"('{mail}', '{booking}', '{mail}', 'confirmed', {number}, {number})"
    await place.run(f"INSERT INTO mails {columns} VALUES {row}")
    async with smtp_sink() as sink, mailer(place.store, sink, settings=MAILED) as worker:
        await send_all(worker)
        assert sink.connections == 0
    assert (await place.store.mails.backlog(limit=9)).pending == 0


async def test_a_dry_run_counts_contacts_and_keeps_them(place: Place, named: ShopApi) -> None:
    """As it does for everything else."""
    tried = await place.erase(dry_run=True)
    assert named.answers
    assert (tried.changed["contacts"], tried.changed["unsent mails"]) == (1, 4)
    assert (await place.erase()).changed == tried.changed


async def test_a_mail_that_was_sent_stays_without_a_name(place: Place) -> None:
    """It counts what was sent, and nothing of the buyer is in it: no hash either, which a known name would match."""
    await sell(place)
    async with smtp_sink() as sink, mailer(place.store, sink, settings=MAILED) as worker:
        await send_all(worker)
        assert len(sink.mails) == 1
    hashes = (recipient_hash(Mode.TEST, ANN), buyer_hash(Mode.TEST, Buyer(ANN)))
    assert all([await place.mentions(one) for one in hashes]), "the control: before, they are there"
    place.clock.advance(2 * HOURS)
    done = await place.erase()
    assert (done.changed["contacts"], done.changed["unsent mails"]) == (1, 0)
    assert await place.mentions() == []
    assert [await place.mentions(one) for one in hashes] == [[], []]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
async def test_a_contact_that_is_set_during_the_erasure_does_not_outlive_it(
    postgres_place: Place, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """It waits for the lock of the booking, and then finds no booking of that name.

    Without the lock it is written behind the erasure's back, and stays.
    """
    place = postgres_place
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/confirm", {"payment_id": "till"}, key="2")
    place.clock.advance(2 * HOURS)
    if not guarded:
        statements = load_named_sql.statements("postgres")
        unlocked = statements["lock_booking_of_contact"].replace("FOR SHARE", "")
        monkeypatch.setitem(statements, "lock_booking_of_contact", unlocked)
    sql = load_named_sql.sql("postgres", "erase_buyer.sql")
    connection: Any = await asyncpg.connect(place.url)
    try:
        erasing = connection.transaction()
        await erasing.start()
        await connection.fetch(sql["erase_buyer"], ANN, "erased-x", place.clock.offset, list(KEPT_FIELDS))
        await connection.fetch(sql["erase_contacts"], "erased-x")
        contact = Contact(booking_id=BookingId(uuid.UUID(held["id"])), name="Ann Lee", email=ANN)
        setting = asyncio.create_task(place.store.contacts.save(contact, buyer=Buyer(ANN), queue=False, by_shop=False))
        if guarded:
            await blocked(connection)
        else:
            assert await setting is ContactSave.KEPT
        await erasing.commit()
    finally:
        await connection.close()
    assert await setting is (ContactSave.BOOKING_MOVED if guarded else ContactSave.KEPT)
    kept = await place.store.contacts.read(contact.booking_id)
    assert (kept is None) is guarded
    (booking,) = (await place.store.list_bookings(BookingFilter(mode=Mode.TEST, limit=9)))[1]
    assert booking.buyer == "erased-x"


async def blocked(connection: Any) -> None:
    """Wait until another transaction waits for a lock."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await connection.fetchval(WAITS):
            continue
