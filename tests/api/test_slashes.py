"""A slash at the end of a path never redirects a caller, least of all to plain HTTP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Router
from tests.api.conftest import KEY

from earmark.api import app as api

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services

PATHS = sorted(
    {call.path for call in (*api.ENDPOINTS, api.METRICS)} | {*api.PAGES, "/openapi.json", "/web/shop/event-page.js"}
)
FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7", "X-Forwarded-Host": "shop.example"}


@pytest.mark.parametrize("prefix", ["", "/tickets"])
@pytest.mark.parametrize("hops, headers", [(0, {}), (0, FORWARDED), (1, FORWARDED)])
async def test_no_path_redirects(services: Services, prefix: str, hops: int, headers: dict[str, str]) -> None:
    """Behind a proxy that terminates TLS this server sees plain HTTP, and a redirect would name that scheme."""
    whole = api.create_app(msgspec.structs.replace(services, trust_proxy=hops))
    app = Starlette(routes=[Mount(prefix, whole)]) if prefix else whole
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    shown = {"Authorization": f"Bearer {KEY}"} | headers
    redirected = []
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=shown) as client:
        for path in PATHS:
            named = prefix + re.sub(r"\{\w+\}", "x", path)
            for asked in {named.rstrip("/") + "/", named.rstrip("/") + "//"}:
                for method in ("GET", "POST", "DELETE"):
                    answer = await client.request(method, asked)
                    if answer.is_redirect or "http://" in answer.headers.get("location", ""):
                        redirected.append((method, asked, answer.headers.get("location")))
        assert redirected == []
        slash = await client.get(f"{prefix}/v1/events/")
        assert (slash.status_code, slash.json()["code"]) == (404, "not_found")
        assert (await client.get(f"{prefix}/")).status_code == 200, "the page itself ends with one"


async def test_the_control_redirects_to_plain_http(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard off: a caller that came by TLS is sent on without it."""
    monkeypatch.setattr(Router, "redirect_slashes", property(lambda _: True, lambda *_: None), raising=False)
    transport = httpx2.ASGITransport(app=api.create_app(msgspec.structs.replace(services, trust_proxy=1)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=FORWARDED) as client:
        answer = await client.get("/v1/events/")
    assert (answer.status_code, answer.headers["Location"]) == (307, "http://shop/v1/events")
