from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import msgspec
import pytest

from earmark import config
from earmark.api.app import create_app
from earmark.api.middleware.allow_other_sites import origins_of
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services

SHOP = "https://shop.example"
KEY = "ek_test_0123456789abcdef"
ALLOWED = "access-control-allow-origin"


@pytest.fixture
async def page(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    """What a browser sends for a page; the operator has named one site."""
    named = msgspec.structs.replace(services, origins=origins_of(f"{SHOP}, https://other.example/"))
    transport = httpx2.ASGITransport(app=create_app(named))
    async with httpx2.AsyncClient(transport=transport, base_url="http://earmark") as client:
        yield client


async def test_a_page_of_a_named_site_may_read_the_api(page: httpx2.AsyncClient) -> None:
    """The preflight is answered, and the response names the site; no cookie is allowed with it."""
    asked = {"Origin": SHOP, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    preflight = await page.request("OPTIONS", "/v1/events/play/stream", headers=asked)
    assert (preflight.status_code, preflight.headers[ALLOWED]) == (204, SHOP)
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert "Last-Event-ID" in preflight.headers["access-control-allow-headers"]
    answer = await page.get("/v1/events", headers={"Origin": SHOP, "Authorization": f"Bearer {KEY}"})
    assert (answer.status_code, answer.headers[ALLOWED], answer.headers["vary"]) == (200, SHOP, "Origin")
    assert "ETag" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "https://shop.example.evil", "null", "http://shop.example"])
async def test_a_page_of_another_site_may_not(page: httpx2.AsyncClient, origin: str) -> None:
    """Only what the operator wrote is let in; the control is the named site above."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
    preflight = await page.request("OPTIONS", "/v1/events", headers=asked)
    answer = await page.get("/v1/events", headers={"Origin": origin, "Authorization": f"Bearer {KEY}"})
    assert ALLOWED not in preflight.headers
    assert ALLOWED not in answer.headers
    assert answer.headers["vary"] == "Origin"


async def test_without_the_setting_no_site_may(stranger: httpx2.AsyncClient) -> None:
    """As before: the API names no site, and OPTIONS is no method of it."""
    asked = {"Origin": SHOP, "Access-Control-Request-Method": "GET"}
    preflight = await stranger.request("OPTIONS", "/v1/events", headers=asked)
    assert preflight.status_code == 405
    assert ALLOWED not in preflight.headers


async def test_every_site_may_load_the_modules_but_no_page(page: httpx2.AsyncClient) -> None:
    """Modules are the same for all; the response says so once."""
    module = await page.get("/web/seat-map/element.js", headers={"Origin": SHOP})
    assert module.headers.get_list(ALLOWED) == ["*"]
    assert ALLOWED not in (await page.get("/", headers={"Origin": "https://evil.example"})).headers


@pytest.mark.parametrize("sites", ["*", "shop.example", "https://shop.example/page", "https://a.example, *"])
def test_what_is_no_site_is_refused(sites: str) -> None:
    """No browser names a site so; and an asterisk would let every page in."""
    with pytest.raises(SetupError, match="EARMARK_ORIGINS"):
        config.read({"EARMARK_ADMIN_KEY": KEY}, origins=sites)
    assert config.read({"EARMARK_ADMIN_KEY": KEY}, origins=f"{SHOP}, http://127.0.0.1:8080/").origins
