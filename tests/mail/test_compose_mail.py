"""What a mail says, whatever buyers and shops are called, and that no value becomes a header or a template."""

from __future__ import annotations

from datetime import UTC, datetime
from email import message_from_bytes, policy
from importlib import resources
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking, Lines, PoolLine, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.contact import Contact
from earmark.domain.format_for_language import LANGUAGES
from earmark.domain.id_types import BookingId, Buyer, EventId, MailId, PoolId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mail import MailKind
from earmark.errors import SetupError
from earmark.mail.compose_mail import FIELDS, HEADER_LENGTH_MAX, MailContent, Sender, compose, fields_of, sender_address

if TYPE_CHECKING:
    from email.message import EmailMessage

NOW = datetime(2030, 1, 1, 18, 0, tzinfo=UTC)
BOOKING = BookingId(UUID("01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10"))
CONTACT = Contact(booking_id=BOOKING, name="Ann Lee", email="ann@example.com")
TEMPLATES = [(language, kind) for language in LANGUAGES for kind in MailKind]


def content(*, contact: dict[str, Any] | None = None, event: dict[str, Any] | None = None, **more: Any) -> MailContent:
    """A sale of a seat with names, a seat without, and three units."""
    seats = (
        SeatLine(id=SeatId("B12"), price=4500, section="Balcony", row="B", number=12, category="best"),
        SeatLine(id=SeatId("X"), price=100),
    )
    lines = Lines(seats=seats, pools=(PoolLine(id=PoolId("GA"), units=3, price=1200),))
    show = Event(id=EventId("show"), name="A show", currency="EUR", mode=Mode.LIVE, created_at=NOW, starts_at=NOW)
    booking = Booking(
        id=BOOKING,
        event_id=show.id,
        buyer=Buyer("b-17"),
        mode=Mode.LIVE,
        state=State.CONFIRMED,
        lines=lines,
        total=lines.total,
        currency="EUR",
        created_at=NOW,
        expires_at=NOW,
    )
    own = MailContent(
        mail_id=MailId(UUID(int=7)),
        kind=MailKind.CONFIRMED,
        booking=booking,
        event=msgspec.structs.replace(show, **(event or {})),
        contact=msgspec.structs.replace(CONTACT, **(contact or {})),
        now=NOW,
    )
    return msgspec.structs.replace(own, **more)


def sender(mail_from: str = "The Shop <shop@shop.example>", **more: Any) -> Sender:
    return Sender(address=sender_address(mail_from), timezone=ZoneInfo("Europe/Berlin"), **more)


def read(about: MailContent, own: Sender | None = None) -> EmailMessage:
    """The mail as a mailbox reads it from its bytes."""
    letter = compose(about, own or sender())
    return message_from_bytes(letter.message.as_bytes(), policy=policy.default)


def test_a_mail_says_what_was_booked_in_english_and_in_german() -> None:
    """Lines as people find them, amounts and moments as the language writes them."""
    own = sender(public_url="https://shop.example")
    english = read(content(ticket_link="https://shop.example/t/x"), own).get_content().replace("\r\n", "\n")
    assert english == (
        "Hello Ann Lee,\n\n"
        "thank you. Your booking for A show is confirmed:\n\n"
        "When: Tuesday, 1 January 2030, 19:00 CET\n\n"
        "- Balcony, row B, seat 12, best: EUR 45.00\n- Seat X: EUR 1.00\n- 3 x GA, EUR 12.00 each\nTotal: EUR 82.00\n\n"
        "Your ticket: https://shop.example/t/x\n\n"
        f"Booking number: {BOOKING}\n\n"
        "https://shop.example\n"
    )
    german = read(content(contact={"language": "de"})).get_content()
    assert "Dienstag, 1. Januar 2030, 19:00 Uhr CET" in german
    assert "- Balcony, Reihe B, Platz 12, best: 45,00 EUR" in german


def test_a_paragraph_without_its_value_is_left_out() -> None:
    """An event without a start, a booking without a ticket, a shop without an address."""
    text = read(content(event={"starts_at": None})).get_content()
    assert "When" not in text
    assert "ticket" not in text
    assert text.rstrip().endswith(str(BOOKING))


@pytest.mark.parametrize("language, kind", TEMPLATES)
def test_every_kind_of_mail_is_there_in_every_language(language: str, kind: MailKind) -> None:
    """With the fields that its English one has, and no others."""
    folder = resources.files("earmark.mail") / "templates"
    texts = [(folder / one / f"{kind}.txt").read_text(encoding="utf-8") for one in (language, "en")]
    assert fields_of(texts[0]) == fields_of(texts[1]) <= FIELDS
    mail = read(content(kind=kind, amount=1250, contact={"language": language}))
    assert "{" not in mail.get_content() + mail["Subject"]
    assert mail["Content-Language"] == language


@pytest.mark.parametrize(
    "name",
    [
        "Zoë Ünsal",
        "\u5f20\u4f1f",
        'O\'Neil, "Ann" <x@y.example>',
        "\U0001f642 Ann",
        "a" * 200,
        "Ann; Bcc: x@y.example",
        "{total}",
    ],
)
def test_a_name_of_any_script_arrives_as_it_was_typed(name: str) -> None:
    """In the address and in the text; a quote, a comma or a brace in it is a character and nothing more."""
    mail = read(content(contact={"name": name}))
    (address,) = mail["To"].addresses
    assert (address.display_name, address.addr_spec) == (name, CONTACT.email)
    assert f"Hello {name}," in mail.get_content()


@pytest.mark.parametrize("break_", ["\r\n", "\n", "\r", "\u2028", "\x85", "\x0b", "\x00"])
def test_no_value_begins_a_header_of_its_own(break_: str) -> None:
    """A line end in a name or in the name of an event is a space, also where a check let it pass."""
    evil = f"Ann{break_}Bcc: victim@example.com{break_}{break_}spam"
    mail = read(content(contact={"name": evil}, event={"name": evil}))
    assert mail["Bcc"] is None
    assert sorted(set(mail.keys())) == sorted(mail.keys()), "each header is there once"
    assert mail["Subject"] == "Your booking: Ann Bcc: victim@example.com spam"
    assert mail.get_content().startswith("Hello Ann Bcc: victim@example.com spam,")


def test_a_very_long_value_is_cut_in_a_header_and_whole_in_no_line_too_long_for_smtp() -> None:
    """RFC 5321 allows 998 bytes in a line."""
    letter = compose(content(event={"name": "\N{LATIN SMALL LETTER SHARP S}" * 5000}), sender())
    mail = message_from_bytes(letter.message.as_bytes(), policy=policy.default)
    assert len(mail["Subject"]) == HEADER_LENGTH_MAX
    assert mail["Subject"].endswith("…")
    assert max(map(len, letter.message.as_bytes().splitlines())) < 998


def test_a_domain_of_any_script_is_written_as_mail_servers_know_it() -> None:
    """And what is before the @ stays, for which the message needs SMTPUTF8."""
    letter = compose(content(contact={"email": "ann@bücher.example"}), sender())
    assert letter.recipient == "ann@xn--bcher-kva.example"
    letter = compose(content(contact={"email": "zoë@bücher.example"}), sender())
    assert letter.recipient == "zoë@xn--bcher-kva.example"
    assert "zoë@xn--bcher-kva.example".encode() in letter.message.as_bytes()


def test_a_test_booking_is_marked() -> None:
    """So that no test mail is taken for a real one."""
    about = content()
    test = msgspec.structs.replace(about, booking=msgspec.structs.replace(about.booking, mode=Mode.TEST))
    assert read(test)["Subject"] == "[test] Your booking: A show"


@pytest.mark.parametrize(
    "text", ["", "shop", "shop@", "Shop <shop@shop.example>\r\nBcc: x@y.example", "a@b.example, c@d.example"]
)
def test_a_sender_that_is_no_address_is_refused_at_the_start(text: str) -> None:
    """By the name of the setting, and without repeating its value."""
    with pytest.raises(SetupError, match="EARMARK_MAIL_FROM"):
        sender_address(text)
