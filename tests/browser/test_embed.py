"""The ten lines of docs/howto/embed-the-shop.md on a site of its own, from the first seat to the ticket."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from .conftest import free_port, new_page, running_demo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "embed-the-shop.md"
POLICY = "default-src 'none'; script-src 'self' {earmark}; connect-src {earmark}; img-src data:"


def blocks(kind: str) -> str:
    """The one block of this kind in the guide."""
    [found] = re.findall(rf"^   ```{kind}\n(.*?)^   ```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


class Site(ThreadingHTTPServer):
    """The theatre's own site: what the guide says, with the address of Earmark in it."""

    earmark = ""


class Pages(BaseHTTPRequestHandler):
    """Its two files, under the policy that the guide names."""

    server: Site

    def do_GET(self) -> None:
        """The page, or its script."""
        is_script = self.path == "/shop.js"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if is_script else "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY.format(earmark=self.server.earmark))
        self.end_headers()
        text = blocks("js") if is_script else blocks("html") + '<link rel="icon" href="data:,">'
        self.wfile.write(text.replace("https://tickets.example", self.server.earmark).encode())

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@contextmanager
def theatre_site() -> Iterator[Site]:
    with Site(("127.0.0.1", 0), Pages) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The theatre's site, and Earmark, which lists it."""
    with theatre_site() as server:
        home = f"http://127.0.0.1:{server.server_port}"
        directory = tmp_path_factory.mktemp("demo")
        with running_demo(directory, port=free_port(), EARMARK_ALLOWED_ORIGINS=home) as earmark:
            server.earmark = earmark
            yield home, earmark


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = new_page(browser)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.context.close()
    assert complaints == []


def choose(page: Page, *seats: str) -> None:
    """Chooses seats on the site's page, and waits until they are held."""
    expect(page.locator("earmark-seat-map .link")).to_have_attribute("data-link", "live")
    expect(page.locator("#basket")).not_to_be_empty()
    for seat in seats:
        page.locator("earmark-seat-map").evaluate("(map, id) => map.focusSeat(id)", seat)
        page.keyboard.press("Space")
        page.wait_for_function(
            "id => document.querySelector('earmark-seat-map').seat(id)?.state === 'heldForYou'", arg=seat
        )
        expect(page.locator("#checkout")).to_be_enabled()


def token_of(page: Page) -> str:
    """The token that the checkout of this tab keeps."""
    return str(
        page.evaluate("JSON.parse(Object.entries(sessionStorage).find(([at]) => at.includes('handed'))[1]).token")
    )


def strangers_link(page: Page, home: str, *, seat: str) -> tuple[str, str]:
    """The link to the checkout of a stranger who chose this seat, and the token in it."""
    page.goto(home)
    choose(page, seat)
    page.get_by_role("button", name="Checkout").click()
    expect(page.locator("#details")).to_be_visible()
    token, address = token_of(page), page.url
    page.evaluate("sessionStorage.clear()")
    return f"{address}#token={token}", token


def test_the_page_is_ten_lines() -> None:
    """As the guide says."""
    assert len(blocks("html").splitlines()) <= 10
    assert len(blocks("js").splitlines()) <= 5


def test_a_buyer_comes_from_another_site_to_the_ticket(page: Page, site: tuple[str, str]) -> None:
    """Holds there, pays here as the same buyer; and the token is in no address that a server or another page sees."""
    home, earmark = site
    requests: list[tuple[str, dict[str, str]]] = []
    page.on("request", lambda request: requests.append((request.url, request.headers)))
    page.goto(home)
    choose(page, "E5", "E6")
    expect(page.locator("#basket")).to_contain_text(
        re.compile(r"row E, seat 5 and Stalls, row E, seat 6 · €90.00 · 9:5")
    )

    page.get_by_role("button", name="Checkout").click()

    expect(page.locator("#order-total")).to_have_text("€90.00")
    assert "token" not in page.url
    page.get_by_label("Name").fill("Ann Lee")
    page.get_by_label("E-mail address").fill("ann@example.com")
    page.get_by_role("button", name="Continue to payment").click()
    page.locator('input[value="pm_card_threeDSecure2Required"]').check()
    page.get_by_role("button", name="Pay €90.00").click()
    page.get_by_role("button", name="Authenticate").click()
    expect(page.locator("#ticket")).to_be_visible()
    token = token_of(page)
    assert token.startswith("et_")
    sent_to = [
        url for url, headers in requests if token in url.partition("#")[0] or token in headers.get("referer", "")
    ]
    assert sent_to == []
    assert {urlsplit(url).netloc for url, _ in requests} <= {urlsplit(one).netloc for one in (home, earmark)} | {""}
    assert page.context.cookies() == []


def test_the_checkout_can_be_reloaded_and_its_link_is_worth_nothing_to_others(
    page: Page, browser: Browser, site: tuple[str, str]
) -> None:
    """The tab knows the buyer until it is closed; the address alone names a booking that is not shown to others."""
    home, _ = site
    page.goto(home)
    choose(page, "F5")
    page.get_by_role("button", name="Checkout").click()
    expect(page.locator("#details")).to_be_visible()
    page.reload()
    expect(page.locator("#details")).to_be_visible()
    other = new_page(browser)
    other.goto(page.url)
    expect(other.get_by_role("heading", name="This booking was not found")).to_be_visible()
    other.context.close()
    page.go_back()
    assert page.url.startswith(home)
    page.go_forward()
    expect(page.locator("#details")).to_be_visible()
    assert "token" not in page.url


def test_the_token_is_used_for_its_one_booking_alone(page: Page, site: tuple[str, str]) -> None:
    """Who this browser was before stays so on every other page, in that tab as well."""
    home, earmark = site
    own = page.context.new_page()
    own.goto(f"{earmark}/?event=theatre")
    expect(own.locator("#basket")).to_be_visible()
    page.goto(home)
    choose(page, "G5")
    page.get_by_role("button", name="Checkout").click()
    expect(page.locator("#details")).to_be_visible()
    own.goto(f"{earmark}/bookings")
    expect(own.locator("#none")).to_be_visible()
    page.goto(f"{earmark}/bookings")
    expect(page.locator("#none")).to_be_visible()


@pytest.mark.parametrize("path, seat", [("?event=theatre", "H3"), ("bookings", "H4")])
def test_a_link_with_a_token_changes_nothing_on_other_pages(
    page: Page, site: tuple[str, str], path: str, seat: str
) -> None:
    """A stranger's link would else make the buyer choose and pay as the stranger's guest, who reads it all."""
    home, earmark = site
    _, token = strangers_link(page, home, seat=seat)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.headers.get("authorization", "")))
    page.goto(f"{earmark}/{path}#token={token}")
    expect(page.locator("#none" if path == "bookings" else "#basket-empty")).to_be_visible()
    assert not any(token in header for header in sent)
    assert token not in page.evaluate("JSON.stringify(sessionStorage)")


def test_a_checkout_that_no_listed_site_led_to_asks_first(browser: Browser, page: Page, site: tuple[str, str]) -> None:
    """Before a name or a card can be typed; also after a reload, and leaving forgets the token."""
    home, _ = site
    link, token = strangers_link(page, home, seat="H6")
    victim = new_page(browser)
    victim.goto(link)
    for _ in ("opened", "reloaded"):
        expect(victim.get_by_role("heading", name="This order was begun on another page")).to_be_visible()
        expect(victim.locator("#question-text")).to_have_text(re.compile(r"row H, seat 6\. .+\. €\d+\.00\.$"))
        for hidden in ("#details", "#pay", "#order", "#steps", "#bar"):
            expect(victim.locator(hidden)).to_be_hidden()
        victim.reload()
    victim.get_by_role("button", name="Leave").click()
    expect(victim.locator("#basket-empty")).to_be_visible()
    assert token not in victim.evaluate("JSON.stringify(sessionStorage)")

    victim.goto(link)
    victim.get_by_role("button", name="Continue").click()
    expect(victim.locator("#details")).to_be_visible()
    victim.reload()
    expect(victim.locator("#details")).to_be_visible()
    victim.context.close()


def test_a_token_that_is_over_is_told_and_forgotten(browser: Browser, site: tuple[str, str]) -> None:
    """The tab is not locked out: it becomes a guest like any other, at once."""
    _, earmark = site
    page = new_page(browser)
    page.goto(f"{earmark}/checkout?booking=01a1f5e9-0000-7000-8000-000000000000#token=et_over")
    expect(page.locator("#notice")).to_contain_text("Your visit here has ended. Go back to the page where you chose")
    expect(page.get_by_role("heading", name="This booking was not found")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    page.goto(f"{earmark}/bookings")
    expect(page.locator("#none")).to_be_visible()
    page.context.close()


def test_a_site_page_whose_token_is_over_becomes_another_guest(browser: Browser, site: tuple[str, str]) -> None:
    """The buyer is told, and the next seat is held."""
    home, _ = site
    page = new_page(browser)
    page.goto(home)
    choose(page, "J5")
    is_over = re.compile(r"/v1/bookings")

    def refuse(route: Route) -> None:
        problem = {"title": "Unauthorized", "status": 401, "code": "unauthorized"}
        route.fulfill(status=401, json=problem, headers={"Access-Control-Allow-Origin": home})

    def begin_anew(route: Route) -> None:
        page.unroute(is_over)
        route.continue_()

    page.route(is_over, refuse)
    page.route(re.compile(r"/v1/guests$"), begin_anew)
    page.locator("earmark-seat-map").evaluate("(map, id) => map.focusSeat(id)", "J6")
    page.keyboard.press("Space")
    expect(page.locator("#basket")).to_contain_text("Your visit here had ended, and a new one has begun.")
    page.wait_for_function("() => document.querySelector('earmark-seat-map').seat('J5')?.state === 'held'")
    choose(page, "J7")
    expect(page.locator("#basket")).to_contain_text("row J, seat 7")
    page.context.close()


def test_a_site_page_drops_the_last_seat_and_holds_nothing(page: Page, site: tuple[str, str]) -> None:
    """The button is for a basket with something in it."""
    home, _ = site
    page.goto(home)
    choose(page, "E1")
    page.keyboard.press("Space")
    expect(page.locator("#checkout")).to_be_disabled()
    expect(page.locator("#basket")).to_contain_text("Nothing yet.")
