"""How an event can be paid: what a page is told, that it is true of every card, and that it names no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY
from tests.api.routes.test_payments import pay
from tests.payments.gateways.conformance.gateways_under_test import ANSWER_SECONDS_MAX, served_sandbox

from earmark.api.app import create_app
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox.payment_methods import OFFERED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.payments.gateways.conformance.gateways_under_test import Reach

    from earmark.api.open_services_for_handlers import Services

PUBLISHABLE = "pk_test_what_every_browser_may_know"
RETURN_URL = "http://shop/checkout?booking=1"


async def methods(client: httpx2.AsyncClient, event: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/events/{event}/payment-methods")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["event_id"], answer.json()["currency"]) == (event, "EUR")
    gateways: list[dict[str, Any]] = answer.json()["gateways"]
    return gateways


async def guest_hold(guest: httpx2.AsyncClient, event: str, seat: str = "A1") -> str:
    await guest.post("/v1/guests")
    booking_id: str = (await guest.post("/v1/bookings", json={"event_id": event, "seats": [seat]})).json()["id"]
    return booking_id


async def test_a_guest_is_told_the_test_cards_in_plain_words(stranger: httpx2.AsyncClient, event: str) -> None:
    """Method, brand, last digits, and what happens; the sandbox has no key for browsers."""
    await stranger.post("/v1/guests")
    [sandbox] = await methods(stranger, event)
    cards = sandbox.pop("cards")
    assert sandbox == {"gateway": "sandbox", "mode": "test", "capture": "manual", "publishable_key": None}
    assert cards[0] == {"method": "pm_card_visa", "brand": "visa", "last4": "4242", "does": "pays at once"}
    assert [card["method"] for card in cards] == [card.method for card in OFFERED]


async def test_without_a_key_or_token_nothing_is_told(stranger: httpx2.AsyncClient, event: str) -> None:
    """As with everything about an event."""
    assert (await stranger.get(f"/v1/events/{event}/payment-methods")).status_code == 401


async def test_an_event_that_the_caller_does_not_see_is_unknown(shop: httpx2.AsyncClient) -> None:
    """Whether there is one is not told either."""
    answer = await shop.get("/v1/events/nowhere/payment-methods")
    assert (answer.status_code, answer.json()["code"]) == (404, "event_unknown")


ENDS = {
    "pays": (200, None),
    "asks you": (202, "requires_action"),
    "always asks": (202, "requires_action"),
    "could ask": (200, None),
    "is declined, without a reason": (402, "card_declined"),
    "is declined: too little money": (402, "insufficient_funds"),
    "is declined: reported lost": (402, "lost_card"),
    "is declined: reported stolen": (402, "stolen_card"),
    "is declined: expired": (402, "expired_card"),
    "is declined: wrong security code": (402, "incorrect_cvc"),
    "is declined: the bank": (402, "processing_error"),
    "is blocked": (402, "fraudulent"),
    "needs authentication": (402, "card_declined"),
    "is processed": (202, "pending"),
    "stays in processing": (202, "pending"),
    "is accepted, then its money cannot": (402, "do_not_honor"),
}
"""How the words for a buyer begin, and how the answer to pay ends."""


@pytest.mark.parametrize("card", OFFERED, ids=lambda card: card.method)
async def test_an_offered_card_does_what_the_buyer_reads(stranger: httpx2.AsyncClient, event: str, card: Any) -> None:
    """Paid by a guest over the API, with the sandbox in the server."""
    status, word = ENDS[max((begin for begin in ENDS if card.does.startswith(begin)), key=len)]
    answer = await pay(stranger, await guest_hold(stranger, event), method=card.method)
    told = answer.json()
    seen = told["payment"]["state"] if status == 202 else told.get("why")
    assert (answer.status_code, seen) == (status, word)


class StripeShop:
    """A shop that takes cards for Stripe, with a sandbox behind the gateway."""

    def __init__(self, guest: httpx2.AsyncClient, shop: httpx2.AsyncClient, services: Services, do: Reach) -> None:
        self.guest = guest
        self.shop = shop
        self.services = services
        self.do = do

    def type_card(self, method: str) -> str:
        """What Stripe's Payment Element makes of a card that a buyer types."""
        return self.do(lambda sandbox: sandbox.confirmation_tokens.issue(method).id)


@pytest.fixture
async def stripe_shop(services: Services) -> AsyncIterator[StripeShop]:
    with served_sandbox() as (sandbox, do):
        gateway = StripeGateway(
            sandbox.key,
            webhook_secret=sandbox.secret,
            url=sandbox.base_url,
            seconds_max=ANSWER_SECONDS_MAX,
            clock=sandbox.clock,
        )
        own = dict(services.payments.gateways)
        payments = PaymentService(services.engine, own | {"stripe": gateway}, stripe_publishable_key=PUBLISHABLE)
        with_stripe = msgspec.structs.replace(services, payments=payments)
        app = httpx2.ASGITransport(app=create_app(with_stripe), raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with (
            httpx2.AsyncClient(transport=app, base_url="http://shop") as guest,
            httpx2.AsyncClient(transport=app, base_url="http://shop", headers=headers) as shop,
        ):
            yield StripeShop(guest, shop, with_stripe, do)
        await payments.close()


async def test_with_a_publishable_key_a_buyer_pays_at_stripe(stripe_shop: StripeShop, event: str) -> None:
    """A test event too: the page gets the key for browsers, and no other secret stands in the answer."""
    await stripe_shop.guest.post("/v1/guests")
    answer = await stripe_shop.guest.get(f"/v1/events/{event}/payment-methods")
    [stripe] = answer.json()["gateways"]
    told = {"gateway": "stripe", "mode": "test", "capture": "manual", "publishable_key": PUBLISHABLE, "cards": []}
    assert stripe == told
    assert not [secret for secret in ("sk_test", "rk_test", "whsec") if secret in answer.text]


async def test_the_shop_reads_every_gateway_and_the_default_first(stripe_shop: StripeShop, event: str) -> None:
    """It may name another one."""
    told = await methods(stripe_shop.shop, event)
    assert [(gateway["gateway"], gateway["publishable_key"]) for gateway in told] == [
        ("stripe", PUBLISHABLE),
        ("sandbox", None),
    ]


async def test_control_without_a_publishable_key_test_events_pay_at_the_sandbox(
    stripe_shop: StripeShop, event: str
) -> None:
    """No page can take a card for Stripe then: the secret key alone changes nothing."""
    stripe_shop.services.payments.stripe_publishable_key = None
    told = await methods(stripe_shop.shop, event)
    assert [gateway["gateway"] for gateway in told] == ["sandbox", "stripe"]
    assert stripe_shop.services.payments.choose(None, mode=told[0]["mode"]) == "sandbox"


async def test_a_guest_pays_with_what_the_payment_element_made(stripe_shop: StripeShop, event: str) -> None:
    """The saga is the same: authorised, confirmed, captured; the token is not shown."""
    booking_id = await guest_hold(stripe_shop.guest, event)
    token = stripe_shop.type_card("pm_card_visa")
    sold = await pay(stripe_shop.guest, booking_id, method=token, return_url=RETURN_URL)
    assert (sold.status_code, sold.json()["payment"]["state"]) == (200, "captured")
    assert sold.json()["payment"]["method"] == f"ctoken_…{token[-4:]}"


async def test_a_guest_acts_in_the_page_and_the_same_request_sells(stripe_shop: StripeShop, event: str) -> None:
    """The answer has the client secret for Stripe.js; sent again, it asks Stripe and tells that it is sold."""
    booking_id = await guest_hold(stripe_shop.guest, event)
    how = {"method": stripe_shop.type_card("pm_card_threeDSecure2Required"), "return_url": RETURN_URL}
    waits = await pay(stripe_shop.guest, booking_id, **how)
    payment = waits.json()["payment"]
    assert (waits.status_code, payment["state"], set(payment["action"])) == (202, "requires_action", {"client_secret"})
    stripe_shop.do(lambda sandbox: sandbox.bank.act(payment["gateway_id"], succeed=True))
    sold = await pay(stripe_shop.guest, booking_id, **how)
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")


async def test_a_guest_who_left_the_action_pays_with_another_card(stripe_shop: StripeShop, event: str) -> None:
    """The first intent is cancelled at Stripe before the second card is charged, once."""
    booking_id = await guest_hold(stripe_shop.guest, event)
    first = stripe_shop.type_card("pm_card_threeDSecure2Required")
    await pay(stripe_shop.guest, booking_id, method=first, return_url=RETURN_URL)
    second = stripe_shop.type_card("pm_card_mastercard")
    sold = await pay(stripe_shop.guest, booking_id, key="two", method=second, return_url=RETURN_URL)
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")
    statuses = stripe_shop.do(lambda sandbox: [intent.status.value for intent in sandbox.bank.intents()])
    assert statuses == ["succeeded", "canceled"]


async def test_a_token_that_stripe_does_not_know_is_a_wrong_request(stripe_shop: StripeShop, event: str) -> None:
    """422 at `method`, and the hold stays payable: no try is counted."""
    booking_id = await guest_hold(stripe_shop.guest, event)
    no = await pay(stripe_shop.guest, booking_id, method="ctoken_of_another_account", return_url=RETURN_URL)
    assert (no.status_code, no.json()["errors"][0]["path"]) == (422, "method")
    again = await pay(stripe_shop.guest, booking_id, key="two", method=stripe_shop.type_card("pm_card_visa"))
    assert (again.status_code, again.json()["state"]) == (200, "confirmed")
