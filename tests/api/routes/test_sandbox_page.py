"""3-D Secure at the sandbox inside a server: the page where the buyer authenticates, and what the shop then sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from earmark import config
from earmark.errors import SetupError
from earmark.wiring.gateways import sandbox_url

if TYPE_CHECKING:
    import httpx2

METHOD = "pm_card_threeDSecure2Required"
EVERYWHERE = "0.0.0.0"  # noqa: S104 (nothing listens here)
RETURN = "https://shop.example/thanks?order=7"


class Buyer:
    """A hold that requires 3-D Secure, and its buyer in a browser without any key."""

    def __init__(self, shop: httpx2.AsyncClient, browser: httpx2.AsyncClient, booking: str) -> None:
        self.shop = shop
        self.browser = browser
        self.booking = booking
        self.page = ""

    async def pay(self, key: str, **how: Any) -> httpx2.Response:
        """Pay, and learn where to authenticate."""
        answer = await self.shop.post(
            f"/v1/bookings/{self.booking}/pay", json={"method": METHOD} | how, headers={"Idempotency-Key": key}
        )
        if answer.status_code == 202:
            url = urlsplit(answer.json()["payment"]["action"]["url"])
            self.page = f"{url.path}?{url.query}"
        return answer

    async def press(self, button: str, **changes: str) -> httpx2.Response:
        """Press a button on the page, as a browser does."""
        shown = await self.browser.get(self.page)
        assert shown.status_code == 200, shown.text
        assert f"value='{button}'" in shown.text
        return await self.browser.post(self.page, data={"answer": button} | changes)

    async def state(self) -> str:
        """The booking, as the shop sees it."""
        return str((await self.shop.get(f"/v1/bookings/{self.booking}")).json()["state"])


@pytest.fixture
async def buyer(shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str) -> Buyer:
    """With one seat on hold."""
    held = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"]})
    return Buyer(shop, stranger, held.json()["id"])


async def test_a_buyer_authenticates_and_the_seat_is_sold(buyer: Buyer) -> None:
    """At once: no worker has to look first."""
    assert (await buyer.pay("one")).json()["state"] == "paying"
    done = await buyer.press("authorise")
    assert (done.status_code, "succeeded" in done.text) == (200, True)
    assert await buyer.state() == "confirmed"


async def test_a_buyer_who_fails_may_pay_with_another_card(buyer: Buyer) -> None:
    """The seat is still held, and a new payment with another method sells it."""
    await buyer.pay("one")
    done = await buyer.press("refuse")
    assert "failed" in done.text
    assert await buyer.state() == "held"
    again = await buyer.pay("one")
    assert (again.status_code, again.json()["why"]) == (402, "payment_intent_authentication_failure")
    sold = await buyer.pay("two", method="pm_card_mastercard")
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")


async def test_a_card_that_is_declined_after_authentication_is_shown(buyer: Buyer) -> None:
    """The page says so, and the hold is free for another card."""
    await buyer.pay("one", method="pm_card_threeDSecureRequiredChargeDeclined")
    assert "failed" in (await buyer.press("authorise")).text
    assert await buyer.state() == "held"


@pytest.mark.parametrize("button, said", [("authorise", "succeeded"), ("refuse", "failed")])
async def test_the_buyer_is_redirected_to_the_shop(buyer: Buyer, button: str, said: str) -> None:
    """With what Stripe adds to the address."""
    await buyer.pay("one", return_url=RETURN)
    back = await buyer.press(button)
    assert back.status_code == 303
    where = urlsplit(back.headers["Location"])
    assert (where.netloc, parse_qs(where.query)["order"]) == ("shop.example", ["7"])
    assert parse_qs(where.query)["redirect_status"] == [said]


async def test_without_the_secret_no_client_acts_for_the_buyer(buyer: Buyer) -> None:
    """Nor twice, nor with a body that has no end."""
    await buyer.pay("one")
    path = buyer.page.partition("?")[0]
    assert (await buyer.browser.get(path)).status_code == 404
    assert (await buyer.browser.get(f"{path}?client_secret=guessed")).status_code == 404
    for target in (path, f"{path}?client_secret=guessed"):
        assert (await buyer.browser.post(target, data={"answer": "authorise"})).status_code == 404
    assert (await buyer.press("authorise", answer="perhaps")).status_code == 404
    assert (await buyer.press("authorise", more="x" * 100_000)).status_code == 413
    assert await buyer.state() == "paying"
    await buyer.press("authorise")
    assert (await buyer.browser.get(buyer.page)).status_code == 404


async def test_the_page_may_load_nothing_and_be_framed_by_no_site(buyer: Buyer) -> None:
    """Its one style is named by its hash; the address, which has the secret, is sent to no other site."""
    await buyer.pay("one")
    shown = await buyer.browser.get(buyer.page)
    policy = shown.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "style-src 'sha256-" in policy
    assert shown.headers["Referrer-Policy"] == "no-referrer"
    assert shown.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "settings, url",
    [
        ({}, "http://127.0.0.1:8080"),
        ({"EARMARK_HOST": EVERYWHERE, "EARMARK_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"EARMARK_HOST": "::"}, "http://127.0.0.1:8080"),
        ({"EARMARK_HOST": "shop.internal"}, "http://shop.internal:8080"),
        ({"EARMARK_SANDBOX_URL": "https://shop.example/earmark/"}, "https://shop.example/earmark"),
    ],
)
def test_the_page_is_where_buyers_reach_the_server(settings: dict[str, str], url: str) -> None:
    """By default at the address that it listens on; behind a proxy, or mounted, as the setting says."""
    assert sandbox_url(config.read(settings)) == url


def test_an_address_that_no_browser_can_open_is_refused() -> None:
    """When the server starts, and not when a buyer is sent there."""
    with pytest.raises(SetupError, match="EARMARK_SANDBOX_URL"):
        sandbox_url(config.read({"EARMARK_SANDBOX_URL": "shop.example"}))


async def test_the_page_leads_a_buyer_back_who_gives_no_answer(buyer: Buyer) -> None:
    """By a link to the page that the shop has named; the payment stays open, and another card ends it."""
    await buyer.pay("one", return_url=f"{RETURN}&seat='A1'")
    shown = await buyer.browser.get(buyer.page)
    assert "href='https://shop.example/thanks?order=7&amp;seat=&#x27;A1&#x27;'" in shown.text
    assert await buyer.state() == "paying"
    assert (await buyer.pay("two", method="pm_card_visa")).json()["state"] == "confirmed"


async def test_without_a_page_of_the_shop_there_is_no_link(buyer: Buyer) -> None:
    """It would lead nowhere."""
    await buyer.pay("one")
    assert "<a " not in (await buyer.browser.get(buyer.page)).text
