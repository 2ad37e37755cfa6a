"""A page of another site in a real browser: it imports a module, becomes a guest, books and follows the map."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error

from .conftest import THEATRE, free_port, new_page, running_demo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

BOOK = """async ([api, event]) => {
    const module = await import(`${api}/web/format.js`);
    const asGuest = await (await fetch(`${api}/v1/guests`, { method: "POST" })).json();
    const headers = { Authorization: `Bearer ${asGuest.token}`, "Content-Type": "application/json" };
    const map = await fetch(`${api}/v1/events/${event}/seats`, { headers });
    const free = (await map.json()).seats.find((seat) => seat.state === "available");
    const body = JSON.stringify({ event_id: event, seats: [free.id] });
    const keyed = { ...headers, "Idempotency-Key": "k" };
    const hold = () => fetch(`${api}/v1/bookings`, { method: "POST", headers: keyed, body });
    const held = await hold(), again = await hold();
    const stream = await fetch(`${api}/v1/events/${event}/stream`, { headers: { ...headers, "Last-Event-ID": "0" } });
    const first = new TextDecoder().decode((await stream.body.getReader().read()).value);
    const refused = await fetch(`${api}/v1/bookings/unknown`, { headers });
    return {
        exports: Object.keys(module).length, tag: map.headers.get("ETag"), buyer: asGuest.buyer,
        heldBy: (await held.json()).buyer, replayed: again.headers.get("Idempotency-Replayed"),
        requestId: again.headers.get("X-Request-Id"), first, code: (await refused.json()).code,
    };
}"""
WITH_COOKIES = (
    """async ([api]) => fetch(`${api}/v1/bookings`, { credentials: "include" }).then(() => "read", () => "kept back")"""
)
CALL = """async ([api, path]) => fetch(`${api}${path}`).then((answer) => `read ${answer.status}`, () => "kept back")"""


class ShopPage(BaseHTTPRequestHandler):
    """A page of the shop's own site, which has nothing in it."""

    def do_GET(self) -> None:
        """The page, at any path."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href='data:,'><title>A shop</title>")

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@contextmanager
def shop_site() -> Iterator[str]:
    """A site of its own: another port is another origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ShopPage) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """Earmark, a site that it lists, and one that it does not."""
    with shop_site() as listed, shop_site() as unlisted:
        directory = tmp_path_factory.mktemp("demo")
        with running_demo(directory, port=free_port(), EARMARK_ALLOWED_ORIGINS=listed) as api:
            yield api, listed, unlisted


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = new_page(browser)
    yield opened
    opened.context.close()


def test_a_page_of_a_listed_site_imports_books_and_follows(page: Page, sites: tuple[str, str, str]) -> None:
    """All that a shop's own page needs, by header alone: no cookie is set."""
    api, listed, _ = sites
    page.goto(listed)
    done = page.evaluate(BOOK, [api, THEATRE])
    assert done["exports"] > 0
    assert done["heldBy"] == done["buyer"]
    assert (done["replayed"], done["code"]) == ("true", "booking_unknown")
    assert done["tag"]
    assert done["requestId"]
    assert done["first"].startswith("event: delta"), "it said which number it saw last"
    assert page.context.cookies(api) == []


def test_a_page_of_another_site_reads_nothing(page: Page, sites: tuple[str, str, str]) -> None:
    """Neither a call nor a module; and a listed one reads nothing with cookies, and nothing for operators."""
    api, listed, unlisted = sites
    page.goto(unlisted)
    for path in ("/v1/events", "/v1/bookings/unknown"):
        assert page.evaluate(CALL, [api, path]) == "kept back"
    with pytest.raises(Error, match="Failed to fetch"):
        page.evaluate(BOOK, [api, THEATRE])
    page.goto(listed)
    assert page.evaluate(CALL, [api, "/v1/events"]) == "read 401", "the control: a listed site reads why"
    assert page.evaluate(WITH_COOKIES, [api]) == "kept back"
    for path in ("/v1/ops", "/v1/webhooks", "/v1/locks", "/healthz", "/openapi.json", "/ops"):
        assert page.evaluate(CALL, [api, path]) == "kept back"
