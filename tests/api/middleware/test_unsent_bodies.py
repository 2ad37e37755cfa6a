"""Bodies that a client announces and never sends: no path of a server waits for them without an end."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest
from starlette.routing import Route
from tests.api.conftest import KEY
from tests.api.real import served

from earmark.api.app import ENDPOINTS, create_app
from earmark.api.middleware.read_and_decode_body import BodyTimeout
from earmark.sandbox import read_body_within_limits, stripe_endpoints
from earmark.sandbox.assemble_sandbox import Sandbox

if TYPE_CHECKING:
    import httpx2
    from starlette.types import ASGIApp

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

BOUND_SECONDS = 60.0
"""How long a fact is waited for: far more than it takes."""
SHORT_SECONDS = 0.05
METHOD = "pm_card_threeDSecure2Required"


def _every_path(services: Services) -> list[tuple[str, str]]:
    """The calls, and every other route of the application, with a name for what a path leaves open."""
    pages: Any = create_app(services)._app._otherwise  # type: ignore[attr-defined]
    routes = [route for route in pages.routes if isinstance(route, Route)]
    assert len(routes) > len(ENDPOINTS), "the pages are in it too"
    found = [(method, route.path) for route in routes for method in route.methods or ()]
    return [(method, re.sub(r"\{\w+\}", "b", path)) for method, path in found if method != "HEAD"]


async def ask(services: Services, method: str, target: str, *, key: str | None = None) -> int:
    """The status of a request whose body is announced and not sent."""
    return await ask_app(create_app(services), method, target, key=key)


async def ask_app(app: ASGIApp, method: str, target: str, *, key: str | None = None) -> int:
    """The same of any application."""
    url, said = urlsplit(target), [(b"content-length", b"9"), (b"content-type", b"application/json")]
    sent: list[dict[str, Any]] = []

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": url.path,
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": said + ([(b"authorization", f"Bearer {key}".encode())] if key else []),
        "client": ("198.51.100.7", 1),
        "server": ("shop", 80),
    }
    await app(scope, never, send)  # type: ignore[arg-type]
    return int(sent[0]["status"])


@pytest.fixture
def hasty(services: Services) -> Services:
    """A server that waits for a body for a moment only."""
    return msgspec.structs.replace(services, body_timeout=BodyTimeout(SHORT_SECONDS))


@pytest.fixture
async def page(shop: httpx2.AsyncClient, event: str) -> str:
    """Where the buyer of a test payment authenticates."""
    held = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"]})
    path = f"/v1/bookings/{held.json()['id']}/pay"
    answer = await shop.post(path, json={"method": METHOD}, headers={"Idempotency-Key": "one"})
    url = urlsplit(answer.json()["payment"]["action"]["url"])
    return f"{url.path}?{url.query}"


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "the admin key"])
async def test_no_path_waits_for_a_body_that_is_never_sent(hasty: Services, key: str | None) -> None:
    """Whatever the path: a thousand such connections of one client would be all that a server has."""
    async with asyncio.timeout(BOUND_SECONDS):
        for method, path in _every_path(hasty):
            assert await ask(hasty, method, path, key=key) < 500, (method, path)


async def test_without_the_secret_no_body_is_read(services: Services, page: str) -> None:
    """The address alone shows that there is nothing to do here, and a client without it cannot make the server wait."""
    path = urlsplit(page).path
    async with asyncio.timeout(BOUND_SECONDS):
        for target in ("/sandbox/action/x", path, f"{path}?client_secret=guessed"):
            assert await ask(services, "POST", target) == 404


async def test_a_buyers_body_is_waited_for_as_long_as_that_of_a_call(hasty: Services, page: str) -> None:
    """And no longer; the payment still waits for its buyer."""
    async with asyncio.timeout(BOUND_SECONDS):
        assert await ask(hasty, "POST", page) == 408
    assert await ask(hasty, "GET", page) == 200


async def test_without_a_deadline_the_page_waits_for_ever(
    hasty: Services, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same body, read as it comes."""

    async def wait(coming: Any, _: float) -> Any:
        return await coming

    monkeypatch.setattr(read_body_within_limits, "within", wait)
    waiting = asyncio.create_task(ask(hasty, "POST", page))
    _, pending = await asyncio.wait([waiting], timeout=10 * SHORT_SECONDS)
    waiting.cancel()
    assert pending


async def test_nor_does_the_sandbox_as_a_server(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`earmark sandbox`: with its key, and in the calls that script it, which need none."""
    bounded = read_body_within_limits.within

    async def hasty(coming: Any, _: float) -> Any:
        return await bounded(coming, SHORT_SECONDS)

    monkeypatch.setattr(read_body_within_limits, "within", hasty)
    sandbox = Sandbox(clock)
    app = stripe_endpoints.create_app(sandbox)
    routes = [route for route in app.routes if isinstance(route, Route)]
    async with asyncio.timeout(BOUND_SECONDS):
        for method, path in [(method, route.path) for route in routes for method in route.methods or ()]:
            assert await ask_app(app, method, re.sub(r"\{\w+\}", "b", path), key=sandbox.key) < 500, (method, path)


async def test_a_real_server_closes_the_connection_of_a_body_that_is_never_sent(services: Services) -> None:
    """It gets its refusal, and its connection is free for another client."""
    ask_for = b"POST /sandbox/action/x HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\n"
    async with served(services) as url, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        writer.write(ask_for)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 404 ")
