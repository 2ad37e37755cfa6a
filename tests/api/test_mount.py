"""The service under a prefix of another application."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from earmark.api.open_services_for_handlers import open_services
from earmark.asgi import Service, mount
from earmark.client import AsyncClient
from earmark.errors import SetupError
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark.config import Settings

KEY = "ek_test_0123456789abcdef"
SECONDS_MAX = 30


@pytest.fixture(params=[FastAPI, Starlette])
def app(request: pytest.FixtureRequest) -> Any:
    """A shop of its own, with a lifespan of its own."""
    request.param.said = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        request.param.said.append("begins")
        yield
        request.param.said.append("ends")

    return request.param(lifespan=lifespan)


@pytest.fixture
async def service(app: Any, tmp_path: Path) -> AsyncIterator[Service]:
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    service = mount(app, "/shop/tickets", database_url=url, admin_key=KEY, guests=True, webhook_private=True)
    async with app.router.lifespan_context(app):
        yield service


@pytest.fixture
async def browser(app: Any, service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    assert service.settings.guests
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://shop") as client:
        yield client


async def test_the_client_takes_the_prefix_as_part_of_the_address(app: Any, service: Service) -> None:
    """And the routes of the shop have the same events, by plain calls."""
    transport = httpx2.ASGITransport(app=app)
    async with AsyncClient("http://shop/shop/tickets/", key=KEY, transport=transport) as earmark:
        await earmark.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
        held = await earmark.hold("play", buyer="alice", seats=["A1"], key="basket-7")
        assert (await service.earmark.booking(held.id)).seats == held.seats
        assert await earmark.hold("play", buyer="alice", seats=["A1"], key="basket-7") == held
    assert type(app).said[-1] == "begins"


async def test_a_key_means_the_same_under_every_prefix(app: Any, service: Service) -> None:
    """A service that moves to another path, or is reached by two, still recognises the request."""
    app.mount("/elsewhere", service)
    transport = httpx2.ASGITransport(app=app)
    async with (
        AsyncClient("http://shop/shop/tickets", key=KEY, transport=transport) as first,
        AsyncClient("http://shop/elsewhere", key=KEY, transport=transport) as second,
    ):
        await first.create_event("play", name="A play", currency="EUR", pools={"GA": (5, 100)})
        held = [await shop.hold("play", buyer="alice", pools={"GA": 1}, key="k") for shop in (first, second)]
    assert held[0] == held[1]


async def test_what_it_points_at_is_under_the_prefix(browser: httpx2.AsyncClient) -> None:
    """Where a new event or webhook is, which methods a path takes, and for which paths a guest's cookie is."""
    body = {"id": "play", "name": "A play", "currency": "EUR", "pools": [{"id": "GA", "capacity": 1, "price": 1}]}
    authorised = {"Authorization": f"Bearer {KEY}"}
    made = await browser.post("/shop/tickets/v1/events", json=body, headers=authorised)
    assert made.headers["location"] == "/shop/tickets/v1/events/play"
    assert (await browser.get(made.headers["location"], headers=authorised)).json()["id"] == "play"
    hook = await browser.post("/shop/tickets/v1/webhooks", json={"url": "http://127.0.0.1:9/"}, headers=authorised)
    assert hook.headers["location"] == f"/shop/tickets/v1/webhooks/{hook.json()['id']}"
    assert (await browser.get(hook.headers["location"], headers=authorised)).json()["id"] == hook.json()["id"]
    stray = await browser.delete("/shop/tickets/v1/bookings")
    assert (stray.status_code, stray.headers["allow"]) == (405, "GET, POST")
    described = (await browser.get("/shop/tickets/openapi.json")).json()
    assert described["servers"] == [{"url": "/shop/tickets"}]
    guest = await browser.post("/shop/tickets/v1/guests")
    assert "Path=/shop/tickets;" in guest.headers["set-cookie"]


@pytest.mark.parametrize("page", ["", "checkout", "bookings", "docs"])
async def test_a_page_finds_its_parts_under_the_prefix(browser: httpx2.AsyncClient, page: str) -> None:
    """Every file that it names is named from where it stands; so it works at the root and anywhere else."""
    place = httpx2.URL(f"http://shop/shop/tickets/{page}")
    html = (await browser.get(place)).text
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert any(link.endswith(".js") for link in named)
    for link in named:
        assert (await browser.get(place.join(link))).status_code == 200, link


@pytest.mark.parametrize(
    "file", ["api.js", "shop/event-page.js", "shop/checkout-page.js", "shop/bookings-page.js", "docs.js"]
)
async def test_a_script_sends_requests_relative_to_its_page(browser: httpx2.AsyncClient, file: str) -> None:
    """No request and no link of a script begins at the root of the host."""
    script = (await browser.get(f"/shop/tickets/web/{file}")).text
    assert not re.search(r"""(fetch\(|href: ?)["'`]/""", script)


async def test_without_its_lifespan_it_reports_that(tmp_path: Path) -> None:
    """503 and a reason instead of a trace; and no key is no service."""
    service = Service(database_url=f"sqlite:///{tmp_path}/shop.sqlite3", admin_key=KEY)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=service), base_url="http://shop") as stranger:
        told = await stranger.get("/healthz")
        assert (told.status_code, told.json()["code"]) == (503, "setup")
    with pytest.raises(SetupError, match="lifespan"):
        _ = service.earmark
    with pytest.raises(SetupError, match="admin_key"):
        Service(database_url="memory:")


async def test_it_can_be_served_by_itself(tmp_path: Path) -> None:
    """Any ASGI server opens and closes it by the protocol of lifespans."""
    service = Service(database_url=f"sqlite:///{tmp_path}/shop.sqlite3", admin_key=KEY)
    told: list[str] = []

    async def receive() -> dict[str, str]:
        if told:
            assert [event async for event in service.earmark.events()] == []
        return {"type": "lifespan.shutdown" if told else "lifespan.startup"}

    async def send(message: Any) -> None:
        told.append(message["type"])

    await service({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize(
    "when, said",
    [
        ("at its start", ["lifespan.startup.failed"]),
        ("at its end", ["lifespan.startup.complete", "lifespan.shutdown.failed"]),
    ],
)
async def test_a_failure_names_the_phase_that_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, said: list[str]
) -> None:
    """After the start is complete, a server takes no failed start: it is the shutdown that failed."""
    service = Service(database_url=f"sqlite:///{tmp_path}/shop.sqlite3", admin_key=KEY)

    @asynccontextmanager
    async def failing(settings: Settings) -> AsyncIterator[Any]:
        if when == "at its start":
            raise SetupError(problem="the database is away")
        async with open_services(settings) as opened:
            yield opened
        raise SetupError(problem="the database is away")

    monkeypatch.setattr("earmark.asgi.open_services", failing)
    told: list[dict[str, str]] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.shutdown" if told else "lifespan.startup"}

    async def send(message: Any) -> None:
        told.append(message)

    with pytest.raises(SetupError, match="away"):
        await service({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in told] == said
    assert told[-1]["message"] == "the database is away"


class OpenRequests:
    """A live stream, and a request to pay whose gateway does not answer, both under way."""

    def __init__(self, browser: httpx2.AsyncClient, paying: asyncio.Task[httpx2.Response]) -> None:
        self.browser = browser
        self.sent: list[bytes] = []
        self.paying = paying
        self.following: asyncio.Task[None] | None = None

    async def follow(self, app: Any) -> None:
        """Open the stream, and wait for its snapshot. Its client stays."""
        stays, begun = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, str]:
            await stays.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message.get("body", b""))
            if self.sent[-1]:
                begun.set()

        path = "/shop/tickets/v1/events/play/stream"
        scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
        scope |= {"scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
        scope |= {"headers": [(b"authorization", f"Bearer {KEY}".encode())], "client": ("127.0.0.1", 1)}
        self.following = asyncio.create_task(app(scope, receive, send))
        await begun.wait()

    @property
    def waiting(self) -> set[asyncio.Task[Any]]:
        """Both requests."""
        assert self.following is not None
        return {self.following, self.paying}


@pytest.fixture
async def open_requests(app: Any, service: Service, browser: httpx2.AsyncClient) -> AsyncIterator[OpenRequests]:
    browser.headers["Authorization"] = f"Bearer {KEY}"
    gateway = service.earmark.payment_service.gateways["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    gateway.script.add(Fault.HANG, "authorise")
    await service.earmark.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    held = await service.earmark.hold("play", buyer="alice", seats=["A1"])
    path, headers = f"/shop/tickets/v1/bookings/{held.id}/pay", {"Idempotency-Key": "one"}
    paying = asyncio.create_task(browser.post(path, json={"method": "pm_card_visa"}, headers=headers))
    opened = OpenRequests(browser, paying)
    async with asyncio.timeout(SECONDS_MAX):
        while not gateway.sandbox.pipeline.calls:  # noqa: ASYNC110 (only the bank knows that it was asked)
            await asyncio.sleep(0)
        await opened.follow(app)
    yield opened
    gateway.timeout_seconds = 0
    await gateway.close()
    for request in opened.waiting:
        request.cancel()


async def test_a_host_that_stops_says_so_and_no_request_keeps_it(service: Service, open_requests: OpenRequests) -> None:
    """A server ends once its connections are closed: a stream would keep its own for an hour.

    The stream ends with the reason, a buyer whose gateway still decides is answered 202, and probes fail.
    """
    assert (await open_requests.browser.get("/shop/tickets/readyz")).status_code == 200
    service.begin_shutdown()
    service.begin_shutdown()
    await asyncio.wait_for(asyncio.gather(*open_requests.waiting), timeout=SECONDS_MAX)
    assert b'"reason":"stopping"' in b"".join(open_requests.sent)
    answer = open_requests.paying.result()
    assert (answer.status_code, answer.json()["state"]) == (202, "paying")
    assert (await open_requests.browser.get("/shop/tickets/readyz")).status_code == 503
    assert (await open_requests.browser.get("/shop/tickets/v1/events/play")).status_code == 200


async def test_control_a_service_that_is_not_told_keeps_its_host(open_requests: OpenRequests) -> None:
    """Both requests stay open, and the service is ready for more."""
    _, pending = await asyncio.wait(open_requests.waiting, timeout=0.3)
    assert pending == open_requests.waiting
    assert (await open_requests.browser.get("/shop/tickets/readyz")).status_code == 200


async def test_begin_shutdown_may_be_called_by_any_thread_and_before_or_after_the_service_runs(tmp_path: Path) -> None:
    """A host learns of its end in a signal handler, at any time. The next start begins anew."""
    service = Service(database_url=f"sqlite:///{tmp_path}/shop.sqlite3", admin_key=KEY)
    service.begin_shutdown()
    transport = httpx2.ASGITransport(app=service)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client, service.running():
        assert (await client.get("/readyz")).status_code == 200
        await asyncio.to_thread(service.begin_shutdown)
        assert (await client.get("/readyz")).status_code == 503
    service.begin_shutdown()
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client, service.running():
        assert (await client.get("/readyz")).status_code == 200


def test_begin_shutdown_may_meet_the_end_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread the service may end at any moment: also between asking whether it is open, and telling it."""
    told: list[str] = []
    reads = iter([lambda: told.append("begin")])
    service = Service(database_url="memory://", admin_key=KEY)
    # Only the first read finds it open.
    monkeypatch.setattr(Service, "_begin_shutdown", property(lambda _: next(reads, None)), raising=False)
    service.begin_shutdown()
    assert told == ["begin"]


async def test_the_other_routes_of_the_application_are_untouched(app: Any, browser: httpx2.AsyncClient) -> None:
    """Its own routes answer as before."""
    app.router.routes.insert(0, Route("/hello", lambda _: PlainTextResponse("hello")))
    assert (await browser.get("/hello")).text == "hello"
