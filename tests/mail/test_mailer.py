"""Mails are sent through a real server, once per confirmation, whatever fails in between."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.webhooks.conftest import relay

from earmark.domain.contact import Contact
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mail import TRIES_MAX
from earmark.engine.commands_and_results import Actor
from earmark.engine.engine import Engine
from earmark.engine.set_booking_contact import set_contact
from earmark.errors import InvalidRequest
from earmark.library import Earmark
from earmark.mail import compose_mail
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.wiring.gateways import open_sandbox
from earmark.workers.old_row_janitor import MAILS_SECONDS, Janitor

from .conftest import ANN, HOUR, PATIENCE_SECONDS, PLAY, mailer, mailer_to, sell, send_all, set_late_contact
from .smtp_sink import SmtpSink, smtp_sink

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids


async def counts(store: Store) -> tuple[int, int]:
    """How many mails wait, and how many were given up."""
    left = await store.mails.backlog(limit=100)
    return left.pending, left.failed


def text_of(sink: SmtpSink, number: int = 0) -> str:
    """The text of a mail that arrived."""
    body: str = sink.mails[number].get_content()
    return body.replace("\r\n", "\n")


async def test_a_confirmation_is_sent_once(shop: Earmark, sink: SmtpSink) -> None:
    """To the contact, with the lines, the total and the number of the booking; and not again in later rounds."""
    sold = await sell(shop)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        await send_all(own)
    (mail,) = sink.mails
    assert mail["To"] == f"Ann Lee <{ANN}>"
    assert mail["From"] == "The Shop <shop@shop.example>"
    assert mail["Subject"] == "Your booking: Das Käthchen \N{EN DASH} ein Spiel"
    assert mail["Message-ID"].endswith("@shop.example>")
    assert sink.envelopes[0][1].lower() == f"rcpt to:<{ANN}>"
    text = text_of(sink)
    assert "- Seat A1: EUR 1,234.50" in text
    assert "- 2 x GA, EUR 12.00 each" in text
    assert "Total: EUR 1,258.50" in text
    assert sold.id in text
    assert "ticket" not in text, "there is no ticket page"
    assert await counts(shop.engine.store) == (0, 0)


async def test_nothing_is_queued_where_mails_are_off(shop: Earmark, sink: SmtpSink) -> None:
    """The relay of a shop without a mail server writes no mails, and none appear when one is set up later."""
    held = await shop.hold(PLAY, buyer="ann", seats=["A1"])
    await shop.set_contact(held.id, name="Ann", email=ANN)
    await shop.confirm(held.id, payment_id="till")
    await relay(shop.engine.store, mail=False)
    await relay(shop.engine.store, mail=True)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    assert sink.connections == 0


async def test_a_booking_without_a_contact_gets_none(shop: Earmark, sink: SmtpSink) -> None:
    """There is nowhere to send it to."""
    await sell(shop, email=None)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    assert sink.connections == 0


async def test_a_ticket_is_linked_where_there_is_one(shop: Earmark, sink: SmtpSink) -> None:
    """The port says where; the mail has a paragraph for it."""

    async def link(booking_id: Any) -> str:
        return f"https://shop.example/t/of-{booking_id}"

    sold = await sell(shop)
    async with mailer(shop.engine.store, sink, ticket_link=link) as own:
        await send_all(own)
    assert f"Your ticket: https://shop.example/t/of-{sold.id}\n" in text_of(sink)


async def test_the_link_opens_the_page_of_the_tickets(shop: Earmark, sink: SmtpSink) -> None:
    """The mail makes them, where they were not asked for before; without the shop's address there is no link."""
    sold = await sell(shop)
    async with mailer(shop.engine.store, sink, settings={"public_url": "https://shop.example/"}) as own:
        await send_all(own)
    page = await shop.engine.store.tickets.open_page(text_of(sink).partition("https://shop.example/t/")[2][:32])
    assert page is not None
    assert str(page.booking.id) == sold.id
    assert len(page.tickets) == 3
    await sell(shop, 2)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    assert "/t/" not in text_of(sink, 1)


async def test_cancellations_are_told_whole_and_in_part(shop: Earmark, sink: SmtpSink) -> None:
    """First what remains, then that nothing does; in the buyer's language."""
    sold = await sell(shop, language="de-AT")
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        await shop.cancel(sold.id, pools={"GA": 1})
        await relay(shop.engine.store, mail=True)
        await send_all(own)
        await shop.cancel(sold.id)
        await relay(shop.engine.store, mail=True)
        await send_all(own)
    subjects = [mail["Subject"].partition(":")[0] for mail in sink.mails]
    assert subjects == ["Ihre Buchung", "Ihre Buchung wurde geändert", "Storniert"]
    assert "- 1 x GA, je 12,00 EUR\nSumme: 1.246,50 EUR" in text_of(sink, 1)
    assert len({mail["Message-ID"] for mail in sink.mails}) == 3


async def test_a_confirmation_that_is_cancelled_before_it_is_sent_is_left_out(shop: Earmark, sink: SmtpSink) -> None:
    """A buyer is not told that a booking stands when it does not."""
    sold = await sell(shop)
    await shop.cancel(sold.id)
    await relay(shop.engine.store, mail=True)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    assert [mail["Subject"].partition(":")[0] for mail in sink.mails] == ["Cancelled"]
    assert await counts(shop.engine.store) == (0, 0)


async def test_a_refund_is_told_when_the_gateway_has_made_it(
    store: Store, ids: Uuid7Ids, sink: SmtpSink, clock: MovableClock
) -> None:
    """With the amount that went back, and not before; test mails say so in their subject."""
    engine = Engine(store, ids=ids)
    gateways = open_sandbox(clock)
    shop = Earmark(engine, mode="test", payments=PaymentService(engine, gateways))
    await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 5000})
    held = await shop.hold(PLAY, buyer="ann", seats=["A1"])
    await shop.set_contact(held.id, name="Ann", email=ANN)
    await shop.pay(held.id, method="pm_card_visa")
    await shop.refund(held.id, amount=1250)
    await relay(store, mail=True)
    async with mailer(store, sink, settings={"mail_test_events": True}) as own:
        await send_all(own)
    await shop.payment_service.close()
    assert [mail["Subject"] for mail in sink.mails] == ["[test] Your booking: A play", "[test] Refund: A play"]
    assert "we have refunded EUR 12.50 for A play" in text_of(sink, 1)


@pytest.mark.parametrize("test_events", [True, False])
async def test_mails_about_test_events_are_sent_only_where_the_shop_says_so(
    store: Store, ids: Uuid7Ids, sink: SmtpSink, *, test_events: bool
) -> None:
    """A test booking costs nothing: a guest could have any number of mails sent to strangers, as the control shows."""
    shop = Earmark(Engine(store, ids=ids), mode="test")
    await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 1}, pools={"GA": (9, 1)})
    sold = await sell(shop, email="stranger@example.com")
    await shop.cancel(sold.id)
    await relay(store, mail=True)
    async with mailer(store, sink, settings={"mail_test_events": test_events}) as own:
        await send_all(own)
    assert [mail["Subject"] for mail in sink.mails] == (["[test] Cancelled: A play"] if test_events else [])
    assert await counts(store) == (0, 0)


@pytest.mark.parametrize("answers", [{"RCPT": "451 busy"}, {"END": "452 no room"}, {"DATA": "421 goodbye"}])
async def test_a_mail_is_tried_again_when_the_server_says_later(
    shop: Earmark, sink: SmtpSink, clock: MovableClock, answers: dict[str, str]
) -> None:
    """Not at once, and then with the same Message-ID."""
    await sell(shop)
    sink.answers |= answers
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        tried = sink.connections
        await send_all(own)
        assert sink.connections == tried == 1, "not before its time"
        assert await counts(shop.engine.store) == (1, 0)
        sink.answers.clear()
        clock.advance(31)
        await send_all(own)
    assert len(sink.mails) == 1
    assert await counts(shop.engine.store) == (0, 0)


@pytest.mark.parametrize("answers", [{"RCPT": "550 no such mailbox"}, {"END": "554 looks like spam"}])
async def test_a_mail_that_is_refused_for_good_is_given_up(
    shop: Earmark, sink: SmtpSink, clock: MovableClock, answers: dict[str, str]
) -> None:
    """It is not sent again, and the next mail of the connection is sent all the same."""
    await sell(shop, 1)
    await sell(shop, 2)
    store = shop.engine.store
    sink.answers |= answers

    async def heal() -> None:
        sink.answers.clear()

    sink.on_data = heal
    async with mailer(store, sink, each_max=1, sessions_max=1) as own:
        await own.act()
        while (await counts(store))[1] == 0:
            await own.act()
        sink.answers.clear()
        await send_all(own)
        clock.advance(24 * HOUR)
        await send_all(own)
    assert len(sink.mails) == 1
    assert await counts(store) == (0, 1)


@pytest.mark.parametrize(
    "answers, code",
    [
        ({"MAIL": "550 not your domain"}, "sender_refused"),
        ({"CONNECT": "554 no service"}, "smtp_554"),
        ({"EHLO": "502 no", "HELO": "502 no"}, "smtp_502"),
    ],
)
async def test_a_server_that_refuses_the_shop_costs_no_mail(
    shop: Earmark, sink: SmtpSink, clock: MovableClock, answers: dict[str, str], code: str
) -> None:
    """A wrong sender or a closed server is the operator's to set right: the mail waits, and the round has failed."""
    await sell(shop)
    sink.answers |= answers
    async with mailer(shop.engine.store, sink) as own:
        failed = await send_all(own)
        assert failed == [code]
        sink.answers.clear()
        clock.advance(31)
        assert await send_all(own) == []
    assert len(sink.mails) == 1


async def test_a_login_that_is_refused_costs_no_mail(shop: Earmark, sink: SmtpSink, clock: MovableClock) -> None:
    """A password that was changed at the server, until the operator changes it here."""
    await sell(shop)
    url = f"smtp://shop:secret@127.0.0.1:{sink.port}?starttls=off"
    sink.answers["AUTH"] = "535 wrong"
    own = mailer_to(shop.engine.store, url)
    assert await send_all(own) == ["login_refused"]
    sink.answers.clear()
    clock.advance(31)
    assert await send_all(own) == []
    assert len(sink.mails) == 1
    assert any(line.startswith("AUTH") for line in sink.commands)


async def test_a_mail_is_given_up_after_so_many_tries(shop: Earmark, sink: SmtpSink, clock: MovableClock) -> None:
    """A server that says "later" for days is not asked for ever."""
    await sell(shop)
    sink.answers["RCPT"] = "450 later"
    async with mailer(shop.engine.store, sink) as own:
        for _ in range(TRIES_MAX + 3):
            await send_all(own)
            clock.advance(7 * HOUR)
    assert sink.connections == TRIES_MAX
    assert await counts(shop.engine.store) == (0, 1)


async def test_a_server_that_hangs_is_left_at_the_deadline(shop: Earmark, sink: SmtpSink, clock: MovableClock) -> None:
    """The round fails as silent; the mail is tried again."""
    await sell(shop)
    sink.hangs_at = "DATA"
    async with mailer(shop.engine.store, sink, seconds=0.2) as own:
        assert await send_all(own) == ["smtp_silent"]
    sink.hangs_at = None
    clock.advance(31)
    async with mailer(shop.engine.store, sink) as own:
        assert await send_all(own) == []
    assert len(sink.mails) == 1


async def test_a_server_that_hangs_does_not_stop_the_event_loop(shop: Earmark, sink: SmtpSink) -> None:
    """While a session hangs, a round returns within its interval: other workers and requests go on."""
    await sell(shop)
    sink.hangs_at = "EHLO"
    async with mailer(shop.engine.store, sink) as own:
        assert await own.act() == 0.0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not sink.commands:
                assert await own.act() == 0.0
        assert (await shop.hold(PLAY, buyer="bob", seats=["A9"])).state == "held"


async def test_a_mailer_that_stops_records_what_it_has_sent(
    shop: Earmark, sink: SmtpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second mail of a session hangs: the first is not sent again by the next mailer."""
    monkeypatch.setattr("earmark.workers.mailer.GRACE_SECONDS", 0.1)
    await sell(shop, 1)
    await sell(shop, 2)
    own = mailer_to(shop.engine.store, sink.url)

    async def hang_next() -> None:
        sink.hangs_at = "MAIL"

    sink.on_data = hang_next
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sink.hangs_at is None or sum(line.startswith(("mail", "MAIL")) for line in sink.commands) < 2:
            await own.act()
    await own.close()
    assert await counts(shop.engine.store) == (1, 0)
    assert len(sink.mails) == 1


async def test_two_mailers_share_the_mails(shop: Earmark, sink: SmtpSink) -> None:
    """Each mail is leased to one of them, so none is sent twice."""
    for number in range(1, 9):
        await sell(shop, number)
    store = shop.engine.store
    async with mailer(store, sink, each_max=2) as one, mailer(store, sink, each_max=2) as other:
        await asyncio.gather(send_all(one), send_all(other))
    ids = [mail["Message-ID"] for mail in sink.mails]
    assert len(ids) == len(set(ids)) == 8


async def test_a_contact_that_comes_after_the_confirmation_gets_the_mail(shop: Earmark, sink: SmtpSink) -> None:
    """Once: set again the same, or numbered later by the relay, it makes no second mail."""
    held = await shop.hold(PLAY, buyer="ann", seats=["A1"])
    await shop.confirm(held.id, payment_id="till")
    await set_late_contact(shop, held.id)
    await relay(shop.engine.store, mail=True)
    await set_late_contact(shop, held.id)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        await set_late_contact(shop, held.id)
        await send_all(own)
    assert len(sink.mails) == 1


async def test_a_corrected_address_gets_what_could_not_be_sent(shop: Earmark, sink: SmtpSink) -> None:
    """Also from the buyer, who mistyped it."""
    sold = await sell(shop, email="anm@example.com")
    sink.answers["RCPT"] = "550 no such mailbox"
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        sink.answers.clear()
        await set_late_contact(shop, sold.id, buyer="ann")
        await send_all(own)
    assert [mail["To"] for mail in sink.mails] == [f"Ann Lee <{ANN}>"]


async def test_only_the_shop_has_a_mail_sent_to_one_address_after_the_other(shop: Earmark, sink: SmtpSink) -> None:
    """A buyer could else send mails to strangers for as long as there are addresses: also while a mail waits."""
    sold = await sell(shop)
    stranger = {"email": "stranger@example.com", "buyer": "ann"}
    async with mailer(shop.engine.store, sink) as own:
        with pytest.raises(InvalidRequest, match="cannot be changed any more"):
            await set_late_contact(shop, sold.id, **stranger)
        await send_all(own)
        with pytest.raises(InvalidRequest, match="cannot be changed any more"):
            await set_late_contact(shop, sold.id, **stranger)
        await set_late_contact(shop, sold.id, buyer="ann")
        await shop.cancel(sold.id, pools={"GA": 1})
        await relay(shop.engine.store, mail=True)
        await send_all(own)
        assert [mail["To"] for mail in sink.mails] == [f"Ann Lee <{ANN}>"] * 2
        sink.mails.pop()
        await set_late_contact(shop, sold.id, email="right@example.com")
        await send_all(own)
    assert [mail["To"] for mail in sink.mails][1:] == ["Ann Lee <right@example.com>"]


async def test_the_address_stays_when_the_mail_is_not_kept_any_more(
    shop: Earmark, sink: SmtpSink, clock: MovableClock
) -> None:
    """The janitor removes mails after a week: a partial cancellation could else tell another stranger each week."""
    sold = await sell(shop)
    store = shop.engine.store
    async with mailer(store, sink) as own:
        await send_all(own)
    clock.advance(MAILS_SECONDS + 1)
    assert (await Janitor(store, clock=clock).tidy())[0]["mails"] == 1
    with pytest.raises(InvalidRequest, match="cannot be changed any more"):
        await set_late_contact(shop, sold.id, email="stranger@example.com", buyer="ann")


async def test_partial_cancellations_would_reach_a_stranger_each_without_the_rule(
    shop: Earmark, sink: SmtpSink
) -> None:
    """The control: the shop, which the rule does not bind, moves the address, and each address is mailed."""
    sold = await sell(shop, email="s1@example.com")
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        await set_late_contact(shop, sold.id, email="s2@example.com")
        await shop.cancel(sold.id, pools={"GA": 1})
        await relay(shop.engine.store, mail=True)
        await send_all(own)
    assert {mail["To"].addresses[0].addr_spec for mail in sink.mails} == {"s1@example.com", "s2@example.com"}


async def test_a_link_in_a_name_would_be_in_the_mail(shop: Earmark, sink: SmtpSink) -> None:
    """The control of the rule for names: a name that was not checked is in the first line of the mail."""
    sold = await sell(shop, email=None)
    contact = Contact(booking_id=BookingId(UUID(sold.id)), name="You won: http://evil.example", email=ANN)
    await set_contact(shop.engine.store, contact, actor=Actor(name="test", mode=Mode.LIVE), mail=True)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    assert "Hello You won: http://evil.example," in text_of(sink)
    with pytest.raises(InvalidRequest):
        await shop.set_contact(sold.id, name=contact.name, email=ANN)


async def test_a_mail_that_cannot_be_written_does_not_stop_the_others(
    shop: Earmark, sink: SmtpSink, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, as it may be a bug that the next release mends, and given up in the end."""
    broken, _ = await sell(shop, 1), await sell(shop, 2)
    write = compose_mail.compose

    def compose(about: Any, sender: Any) -> Any:
        if str(about.booking.id) == broken.id:
            raise KeyError("no such currency")
        return write(about, sender)

    monkeypatch.setattr("earmark.wiring.mail.compose", compose)
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
        assert len(sink.mails) == 1
        assert await counts(shop.engine.store) == (1, 0)
        for _ in range(TRIES_MAX):
            clock.advance(7 * HOUR)
            await send_all(own)
    assert await counts(shop.engine.store) == (0, 1)
    assert len(sink.mails) == 1


async def test_the_janitor_removes_mails_that_ended_long_ago(
    shop: Earmark, sink: SmtpSink, clock: MovableClock
) -> None:
    """And those that wait stay."""
    store = shop.engine.store
    await sell(shop, 1)
    async with mailer(store, sink) as own:
        await send_all(own)
    await sell(shop, 2)
    janitor = Janitor(store, clock=clock)
    assert (await janitor.tidy())[0]["mails"] == 0
    clock.advance(MAILS_SECONDS + 1)
    assert (await janitor.tidy())[0]["mails"] == 1
    assert await counts(store) == (1, 0)


KILLED = """
import asyncio, sys
from earmark.config import Settings
from earmark.wiring.mail import mailer_for
from earmark.wiring.open_and_maintain_databases import open_store

async def main(database, url):
    store = await open_store(database)
    mailer = mailer_for(Settings(smtp_url=url, mail_from="shop@shop.example"), store)
    while True:
        await mailer.act()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_mailer_that_is_killed_while_it_sends_loses_no_mail(
    place: tuple[Store, str], ids: Uuid7Ids, clock: MovableClock
) -> None:
    """Killed after the server has the mail and before that is recorded: it is sent again, with the same Message-ID."""
    store, url = place
    shop = Earmark(Engine(store, ids=ids))
    await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 1}, pools={"GA": (9, 1)})
    await sell(shop)
    async with smtp_sink() as sink:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, sink.url)
        killed = asyncio.Event()

        async def kill() -> None:
            process.kill()
            killed.set()

        sink.on_data = kill
        async with asyncio.timeout(PATIENCE_SECONDS):
            await killed.wait()
        await process.wait()
        sink.on_data = None
        assert await counts(store) == (1, 0), "leased, and not recorded"
        async with mailer(store, sink) as own:
            await send_all(own)
            assert len(sink.mails) == 1, "the lease of the one that died is not over"
            clock.advance(own.lease_seconds + 60)
            await send_all(own)
        first, second = sink.mails
        assert first["Message-ID"] == second["Message-ID"]
        assert await counts(store) == (0, 0)
