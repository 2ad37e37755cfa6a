"""`<earmark-seat-map>` on the page of another site: real browsers, two origins, and the policy that the page needs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from .conftest import KEY, free_port, new_page, running_demo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

HTML = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<link rel="icon" href="data:,"><script type="module" src="{earmark}/web/earmark-seat-map.js"></script>
</head><body><earmark-seat-map></earmark-seat-map></body></html>"""
POLICY = "default-src 'none'; img-src data:; script-src {earmark}; connect-src {earmark}"
OPEN = "(map, token) => { map.token = token; map.setAttribute('event', 'theatre'); }"


@contextmanager
def site(*, port: int, earmark: str) -> Iterator[str]:
    """Another web server, whose one page has the element."""

    class ShopPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = HTML.format(earmark=earmark).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY.format(earmark=earmark))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", port), ShopPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def open_shop(page: Page, shop: str, earmark: str) -> None:
    """Opens the page and gives it a buyer's token, as the shop's own server would have issued it."""
    headers = {"Authorization": f"Bearer {KEY}"}
    token = page.context.request.post(f"{earmark}/v1/tokens", headers=headers, data={"buyer": "alice"}).json()["token"]
    page.goto(shop)
    page.locator("earmark-seat-map").evaluate(OPEN, token)


def test_a_named_site_shows_the_map_live(browser: Browser, tmp_path: Path) -> None:
    """One script tag, the page's own policy, a token: nothing is blocked, and what is held appears."""
    port = free_port()
    page = new_page(browser)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    with (
        running_demo(tmp_path, port=free_port(), EARMARK_ALLOWED_ORIGINS=f"http://127.0.0.1:{port}") as earmark,
        site(port=port, earmark=earmark) as shop,
    ):
        open_shop(page, shop, earmark)
        expect(page.locator(".link")).to_have_text("Live")
        held = page.context.request.post(
            f"{earmark}/v1/bookings",
            headers={"Authorization": f"Bearer {KEY}"},
            data={"event_id": "theatre", "buyer": "alice", "seats": ["A1"]},
        )
        assert held.status == 201
        cell = page.get_by_role("gridcell", name="Stalls, row A, seat 1, €60.00, held for you")
        expect(cell).to_be_attached()
        page.context.close()
    assert complaints == []


def test_a_site_that_is_not_named_is_told_nothing(browser: Browser, tmp_path: Path) -> None:
    """The control: the browser keeps the modules from the page, so there is no map."""
    page = new_page(browser)
    with (
        running_demo(tmp_path, port=free_port()) as earmark,
        site(port=free_port(), earmark=earmark) as shop,
    ):
        open_shop(page, shop, earmark)
        expect(page.locator("earmark-seat-map")).to_have_count(1)
        expect(page.locator("earmark-seat-map:defined")).to_have_count(0)
        page.context.close()
