"""A checkout page for tests: <earmark-payment> and nothing else, answered in the browser under the demo's origin."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from earmark.api.page_security_headers import SECURITY_HEADERS

from .conftest import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Locator, Page, Route

    from .conftest import Visitor

CHECKOUT = "/checkout-of-the-tests"
PAGE = """<!doctype html>
<html lang="{language}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Checkout</title>
<link rel="icon" href="/web/icon.svg"><link rel="stylesheet" href="/web/style.css">
<script type="module" src="{checkout}.js"></script>
<h1 tabindex="-1">Checkout</h1>
<earmark-payment booking="{booking}"></earmark-payment>
</html>
"""
SCRIPT = """
window.told = [];
for (const name of ["earmark-paid", "earmark-declined", "earmark-processing", "earmark-ended"]) {
  addEventListener(name, ({ detail }) => {
    window.told.push([name, detail.booking ? { state: detail.booking.state } : detail]);
  });
}
import("/web/payment/earmark-payment.js");
"""


@dataclass(kw_only=True)
class Checkout:
    """A guest on the page that pays for their booking."""

    visitor: Visitor
    booking: str

    @property
    def page(self) -> Page:
        """The guest's page."""
        return self.visitor.page

    def card(self, method: str) -> Locator:
        """The radio button of a test card."""
        return self.page.locator(f'input[value="{method}"]')

    def choose(self, method: str) -> None:
        """Chooses a test card."""
        self.page.locator("earmark-payment details").evaluate_all("all => all.forEach((one) => (one.open = true))")
        self.card(method).check()

    def press(self, label: str) -> None:
        """Presses the button that says exactly this."""
        self.visitor.press(label)

    def state(self) -> str | None:
        """The state that the element shows."""
        return self.page.locator("earmark-payment").get_attribute("data-state")

    def sees(self, state: str, words: str, *, seconds: float = 15) -> None:
        """Waits until the element shows this state, and reads these words aloud."""
        element = self.page.locator("earmark-payment")
        expect(element).to_have_attribute("data-state", state, timeout=1000 * seconds)
        expect(self.page.get_by_role("status")).to_contain_text(words)

    def hears(self, words: str) -> None:
        """Waits until these words are read aloud at once."""
        expect(self.page.get_by_role("alert")).to_contain_text(words)

    def events(self, name: str) -> list[Any]:
        """What the page was told by events of this name since it was loaded."""
        return [detail for told, detail in self.page.evaluate("window.told") if told == name]

    def reload(self) -> None:
        """Loads the page again, and waits until the element has asked the server."""
        self.page.reload()
        expect(self.page.locator("earmark-payment")).not_to_have_attribute("data-state", "loading")

    def charges(self) -> list[tuple[str, str]]:
        """The payments of the booking: state and method, the oldest first."""
        answer = self.page.context.request.get(
            f"{self.visitor.home}/v1/bookings/{self.booking}/payments", headers={"Authorization": f"Bearer {KEY}"}
        )
        return [(payment["state"], payment["method"]) for payment in answer.json()["payments"]]


def checkout_of(
    visitor: Visitor,
    *,
    price: int = 4500,
    language: str = "en",
    headers: Mapping[str, str] = SECURITY_HEADERS,
    state: str = "ready",
) -> Checkout:
    """A guest who holds one seat at this price, and has opened the page."""
    event = f"one-seat-{os.urandom(6).hex()}"
    request = visitor.page.context.request
    box_office = {"Authorization": f"Bearer {KEY}"}
    plan = {"id": event, "name": "One seat", "currency": "EUR", "seats": [{"id": "A1", "price": price}]}
    assert request.post(f"{visitor.home}/v1/events", data=plan, headers=box_office).ok
    assert request.post(f"{visitor.home}/v1/guests", data={}).ok
    held = request.post(f"{visitor.home}/v1/bookings", data={"event_id": event, "seats": ["A1"]})
    assert held.ok, held.text()
    booking = str(held.json()["id"])
    visitor.page.route(f"**{CHECKOUT}*", lambda route: _answer(route, headers))
    visitor.page.route("**/sandbox/action/**", _lead_back)
    visitor.page.goto(f"{visitor.home}{CHECKOUT}?booking={booking}&language={language}")
    expect(visitor.page.locator("earmark-payment")).to_have_attribute("data-state", state)
    return Checkout(visitor=visitor, booking=booking)


def _lead_back(route: Route) -> None:
    """Where the bank's page redirects, a page that loads the next: Playwright answers no request of a redirect."""
    if route.request.method != "POST":
        route.continue_()
        return
    answer = route.fetch(max_redirects=0)
    if answer.status != 303:
        route.fulfill(response=answer)
        return
    location = html.escape(answer.headers["location"])
    route.fulfill(body=f'<meta http-equiv="refresh" content="0;url={location}">', content_type="text/html")


def _answer(route: Route, headers: Mapping[str, str]) -> None:
    """The page, or its script; with the headers that the product gives its checkout page."""
    url = urlsplit(route.request.url)
    if url.path.endswith(".js"):
        route.fulfill(body=SCRIPT, content_type="text/javascript", headers=dict(headers))
        return
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    page = PAGE.format(language=asked["language"], booking=asked["booking"], checkout=CHECKOUT)
    route.fulfill(body=page, content_type="text/html", headers=dict(headers))
