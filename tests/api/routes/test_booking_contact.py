"""A booking's contact over HTTP: who may set and read it, when, and what it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY

from earmark.api.app import create_app
from earmark.client import AsyncClient
from earmark.errors import BookingResolved, BookingUnknown, ContactUnknown
from earmark.schemas.responses import Contact

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

ANN = {"name": "Ann Lee", "email": "ann@example.com", "language": "de"}


async def hold(shop: httpx2.AsyncClient, event: str, *, buyer: str = "ann", seat: str = "A1") -> str:
    """One seat is held; the booking's id."""
    answer = await shop.post("/v1/bookings", json={"event_id": event, "buyer": buyer, "seats": [seat]})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def bearer(shop: httpx2.AsyncClient, buyer: str) -> dict[str, str]:
    """The header of a buyer."""
    answer = await shop.post("/v1/tokens", json={"buyer": buyer})
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def test_a_contact_is_set_and_read(shop: httpx2.AsyncClient, event: str) -> None:
    """The same again is no error, and another one takes its place."""
    booking = await hold(shop, event)
    path = f"/v1/bookings/{booking}/contact"
    assert (await shop.get(path)).json()["code"] == "contact_unknown"
    for contact in (ANN, ANN, ANN | {"email": "lee@example.com"}):
        answer = await shop.post(path, json=contact)
        assert (answer.status_code, answer.json()) == (200, {"booking_id": booking, "mailed": False} | contact)
        assert (await shop.get(path)).json() == answer.json()


@pytest.mark.parametrize("mail, test_events", [(True, True), (True, False), (False, True)])
async def test_the_answer_says_whether_mails_are_sent(services: Services, *, mail: bool, test_events: bool) -> None:
    """The checkout page must not announce a mail that never comes: none about test events unless the shop says so."""
    own = msgspec.structs.replace(services, mail=mail, mail_test_events=test_events)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=create_app(own)),
        base_url="http://shop",
        headers={"Authorization": f"Bearer {KEY}"},
    ) as client:
        body = {"id": "play", "name": "A play", "currency": "EUR", "seats": [{"id": "A1", "price": 1}]}
        assert (await client.post("/v1/events", json=body)).status_code == 201
        path = f"/v1/bookings/{await hold(client, 'play')}/contact"
        for answer in (await client.post(path, json=ANN), await client.get(path)):
            assert answer.json()["mailed"] is (mail and test_events)


async def test_the_language_is_english_if_it_is_not_said(shop: httpx2.AsyncClient, event: str) -> None:
    """A page that knows none need not ask."""
    booking = await hold(shop, event)
    answer = await shop.post(f"/v1/bookings/{booking}/contact", json={"name": "\u5f20\u4f1f", "email": "z@example.com"})
    assert (answer.json()["name"], answer.json()["language"]) == ("\u5f20\u4f1f", "en")


async def test_a_buyer_sets_and_reads_the_contact_of_an_own_booking_only(shop: httpx2.AsyncClient, event: str) -> None:
    """Another buyer's booking does not exist for a buyer, and an address is personal."""
    path = f"/v1/bookings/{await hold(shop, event)}/contact"
    own, other = await bearer(shop, "ann"), await bearer(shop, "bob")
    assert (await shop.post(path, json=ANN, headers=own)).status_code == 200
    assert (await shop.get(path, headers=own)).json()["email"] == ANN["email"]
    for answer in (await shop.post(path, json=ANN, headers=other), await shop.get(path, headers=other)):
        assert (answer.status_code, answer.json()["code"]) == (404, "booking_unknown")


async def test_it_is_set_while_the_booking_is_held_paying_or_confirmed(
    shop: httpx2.AsyncClient, event: str, services: Services
) -> None:
    """Later there is nothing to write about; what was set stays to be read."""
    paying, sold, gone = [await hold(shop, event, seat=seat) for seat in ("A1", "A2", "A3")]
    key = {"Idempotency-Key": "pay"}
    await shop.post(f"/v1/bookings/{paying}/pay", json={"method": "pm_card_authenticationRequired"}, headers=key)
    await shop.post(f"/v1/bookings/{sold}/confirm", json={"payment_id": "till"})
    for booking, state in ((gone, "held"), (paying, "paying"), (sold, "confirmed")):
        assert (await shop.get(f"/v1/bookings/{booking}")).json()["state"] == state
        assert (await shop.post(f"/v1/bookings/{booking}/contact", json=ANN)).status_code == 200
    await shop.post(f"/v1/bookings/{sold}/cancel", json={})
    await shop.post(f"/v1/bookings/{gone}/release", json={})
    for booking in (sold, gone):
        answer = await shop.post(f"/v1/bookings/{booking}/contact", json=ANN | {"name": "Bob"})
        assert (answer.status_code, answer.json()["code"]) == (409, "booking_resolved")
        assert (await shop.get(f"/v1/bookings/{booking}/contact")).json()["name"] == "Ann Lee"
    await services.payments.close()


async def test_a_hold_that_has_lapsed_gets_none(shop: httpx2.AsyncClient, event: str, clock: MovableClock) -> None:
    """Swept or not."""
    booking = await hold(shop, event)
    clock.advance(601)
    answer = await shop.post(f"/v1/bookings/{booking}/contact", json=ANN)
    assert (answer.status_code, answer.json()["code"]) == (410, "booking_expired")


@pytest.mark.parametrize(
    "wrong, path",
    [
        ({"name": ""}, "name"),
        ({"name": "   "}, "name"),
        ({"name": "a" * 101}, "name"),
        ({"name": "You won: http://evil.example"}, "name"),
        ({"name": "Claim it at WWW.evil.example"}, "name"),
        ({"name": "http\uff1a\uff0f\uff0fevil.example"}, "name"),
        ({"name": "Ann\u2028Lee"}, "name"),
        ({"name": "Ann\x0bLee"}, "name"),
        ({"name": "Ann\r\nBcc: x@example.com"}, "name"),
        ({"name": "Ann\x85Lee"}, "name"),
        ({"name": "Ann\u202eLee"}, "name"),
        ({"email": "ann"}, "email"),
        ({"email": "ann@example.com\r\nBcc: x@example.com"}, "email"),
        ({"email": "ann@example.com,bob@example.com"}, "email"),
        ({"email": "a@" + "b." * 130 + "com"}, "email"),
        ({"language": "de\n"}, "language"),
        ({"language": "../../etc"}, "language"),
        ({"phone": "1"}, "phone"),
    ],
)
async def test_what_no_mail_can_be_sent_to_is_refused(
    shop: httpx2.AsyncClient, event: str, wrong: dict[str, Any], path: str
) -> None:
    """At the field that is wrong, and an address is not repeated."""
    booking = await hold(shop, event)
    answer = await shop.post(f"/v1/bookings/{booking}/contact", json=ANN | wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["path"] == path
    assert "example.com" not in answer.text


async def test_it_is_in_no_entry_and_no_answer_but_its_own(shop: httpx2.AsyncClient, event: str) -> None:
    """Neither in the booking, nor in its history, nor in lists, nor in what operators see, nor in metrics."""
    booking = await hold(shop, event)
    await shop.post(f"/v1/bookings/{booking}/contact", json=ANN, headers={"Idempotency-Key": "contact"})
    await shop.post(f"/v1/bookings/{booking}/confirm", json={"payment_id": "till"})
    for path in (
        *(f"/v1/bookings/{booking}", f"/v1/bookings/{booking}/history", "/v1/bookings", "/v1/ops", "/metrics"),
        *(f"/v1/events/{event}/seats", "/v1/idempotency/contact"),
    ):
        answer = (await shop.get(path)).text
        assert "ann@example.com" not in answer, path
        assert "Ann Lee" not in answer, path


async def test_the_client_has_it_too(services: Services, shop: httpx2.AsyncClient, event: str) -> None:
    """With the same errors as the library."""
    transport = httpx2.ASGITransport(app=create_app(services))
    async with AsyncClient("http://shop", key=KEY, transport=transport) as client:
        booking = await hold(shop, event)
        with pytest.raises(ContactUnknown):
            await client.contact(booking)
        kept = await client.set_contact(booking, name="Ann Lee", email="ann@example.com")
        assert kept == Contact(booking_id=booking, name="Ann Lee", email="ann@example.com", language="en", mailed=False)
        assert await client.contact(booking) == kept
        await client.release(booking)
        with pytest.raises(BookingResolved):
            await client.set_contact(booking, name="Ann Lee", email="ann@example.com")
        with pytest.raises(BookingUnknown):
            await client.set_contact("01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10", name="Ann Lee", email="ann@example.com")
