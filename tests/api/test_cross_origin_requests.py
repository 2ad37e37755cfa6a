"""Pages of other sites: those of listed sites call what buyers call, without cookies; no other page reads anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.api.conftest import KEY

from earmark import config
from earmark.api.app import ENDPOINTS, HEALTH, METRICS, create_app
from earmark.api.auth import authenticate
from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.cross_origin_requests import REQUEST_HEADERS, AllowedOrigins
from earmark.api.middleware.rate_limits import RateLimits
from earmark.config_checks import origins_of
from earmark.domain.id_types import Buyer
from earmark.engine.group_commit import BatchQueue
from earmark.errors import SetupError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.endpoint_declaration import Endpoint
    from earmark.api.open_services_for_handlers import Services

PAGE, OTHER_PAGE, UNLISTED = "https://shop.example", "http://localhost:3000", "https://elsewhere.example"
FOR_BUYERS = {
    *("list_events", "read_event", "show_map", "show_seat", "explain_seat", "stream"),
    *("hold", "list_bookings", "read_booking", "show_history", "change", "extend", "release", "cancel"),
    *("set_contact", "read_contact", "read_tickets"),
    *("pay", "list_payment_methods", "list_payments", "show_key_result", "issue_guest"),
    *("set_contact", "read_contact", "read_tickets"),
}
ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.fixture
def listed(services: Services) -> Services:
    """The same services, with two other sites listed."""
    return msgspec.structs.replace(services, origins=AllowedOrigins([PAGE, OTHER_PAGE]))


def client_of(services: Services, *, prefix: str = "", **headers: str) -> httpx2.AsyncClient:
    app: Any = create_app(services)
    if prefix:
        app = Starlette(routes=[Mount(prefix, app)])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=f"http://here{prefix}", headers=headers)


@pytest.fixture
async def page(listed: Services, event: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A page of a listed site, with the token of a buyer."""
    assert event == "concert"
    token = listed.authenticator.issue(Buyer("alice"), now=listed.clock.now(), seconds=3600)
    async with client_of(listed, Origin=PAGE, Authorization=f"Bearer {token}") as client:
        yield client


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"\{\w+\}", "concert", endpoint.path)


def shared(response: httpx2.Response) -> dict[str, str]:
    """What the response says about pages of other sites."""
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def readable_by(response: httpx2.Response, origin: str) -> bool:
    """Whether a browser lets a page of this origin read it; none may be read with cookies."""
    assert "access-control-allow-credentials" not in response.headers
    assert "origin" in response.headers.get("vary", "").lower()
    return response.headers.get("access-control-allow-origin") == origin


def test_what_pages_may_call_is_what_a_buyer_may_call() -> None:
    """The list of this test, so that a new endpoint for buyers is seen here too."""
    assert {endpoint.name for endpoint in ENDPOINTS if endpoint.scope is Scope.BUY or endpoint.before_token} == (
        FOR_BUYERS
    )


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, METRICS], ids=lambda endpoint: endpoint.name)
async def test_a_preflight_is_answered_where_buyers_call_and_nowhere_else(listed: Services, endpoint: Endpoint) -> None:
    """Never for events' operators, keys, webhooks, locks, the console or health."""
    async with client_of(listed, Origin=PAGE) as browser:
        asked = {**ASKING, "Access-Control-Request-Method": endpoint.method}
        answer = await browser.options(path_of(endpoint), headers=asked)
    methods = {method.strip() for method in shared(answer).get("access-control-allow-methods", "").split(",")}
    assert (endpoint.method in methods) == (endpoint.name in FOR_BUYERS)
    if endpoint.name not in FOR_BUYERS:
        return
    assert (answer.status_code, answer.content) == (204, b"")
    assert readable_by(answer, PAGE)
    assert shared(answer)["access-control-allow-headers"] == ", ".join(REQUEST_HEADERS)
    assert shared(answer)["access-control-max-age"] == "7200"


async def test_a_path_that_operators_use_too_allows_only_what_buyers_may(listed: Services) -> None:
    """`POST /v1/events` and `PATCH` make events; pages of other sites only read them."""
    async with client_of(listed, Origin=PAGE) as browser:
        for path in ("/v1/events", "/v1/events/concert"):
            answer = await browser.options(path, headers=ASKING)
            assert shared(answer)["access-control-allow-methods"] == "GET"
        made = await browser.post("/v1/events", json={}, headers={"Authorization": f"Bearer {KEY}"})
        assert (made.status_code, shared(made)) == (422, {}), "a page cannot read it, though the key was good"


async def test_each_listed_site_gets_its_own_name_and_another_gets_nothing(page: httpx2.AsyncClient) -> None:
    """The origin is echoed: a list or `*` would be no answer to a browser, or one to every site."""
    for origin in (PAGE, OTHER_PAGE):
        answer = await page.get("/v1/events/concert", headers={"Origin": origin})
        assert answer.status_code == 200
        assert readable_by(answer, origin)
        exposed = shared(answer)["access-control-expose-headers"]
        assert exposed == "ETag, Idempotency-Replayed, Retry-After, X-Request-Id"
    for origin in (UNLISTED, "null", f"{PAGE}.evil.example", PAGE.upper(), f"{PAGE}/", "http://shop.example", ""):
        for answer in (
            await page.get("/v1/events/concert", headers={"Origin": origin}),
            await page.options("/v1/events/concert", headers={"Origin": origin} | ASKING),
        ):
            assert shared(answer) == {}, origin
            assert answer.headers["vary"] == "Origin"


async def test_a_response_to_no_page_says_that_it_depends_on_the_origin(page: httpx2.AsyncClient) -> None:
    """Else a cache could give it to a page of a listed site, which then may not read it."""
    del page.headers["Origin"]
    for path in ("/v1/events/concert/seats", "/web/api.js"):
        answer = await page.get(path)
        assert (answer.status_code, answer.headers["vary"], shared(answer)) == (200, "Origin", {})
    for path in ("/healthz", "/openapi.json", "/web/index.html"):
        assert "vary" not in (await page.get(path)).headers, "it is the same for all"


async def test_without_the_setting_nothing_is_said_of_other_sites(services: Services, event: str) -> None:
    """The default: no header more than before, and no preflight."""
    async with client_of(services, Origin=PAGE, Authorization=f"Bearer {KEY}") as browser:
        for path in (f"/v1/events/{event}", f"/v1/events/{event}/stream", "/web/api.js", "/v1/bookings/unknown"):
            answer = await browser.get(path)
            assert (shared(answer), "vary" in answer.headers) == ({}, False)
        refused = await browser.options(f"/v1/events/{event}", headers=ASKING)
        assert (refused.status_code, shared(refused)) == (405, {})


async def test_an_options_that_is_no_preflight_is_a_method_that_the_path_does_not_have(
    page: httpx2.AsyncClient,
) -> None:
    """405 with the methods, as without the setting."""
    answer = await page.options("/v1/bookings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_a_page_books_and_reads_each_answer(page: httpx2.AsyncClient) -> None:
    """A hold, the same again, a map with its tag, an unchanged map, more time, a payment and its end."""
    keyed = {"Idempotency-Key": "basket-1"}
    held = await page.post("/v1/bookings", json={"event_id": "concert", "seats": ["A1"]}, headers=keyed)
    again = await page.post("/v1/bookings", json={"event_id": "concert", "seats": ["A1"]}, headers=keyed)
    assert (held.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    shown = await page.get("/v1/events/concert/seats")
    unchanged = await page.get("/v1/events/concert/seats", headers={"If-None-Match": shown.headers["etag"]})
    assert unchanged.status_code == 304
    booking = f"/v1/bookings/{held.json()['id']}"
    more = await page.post(f"{booking}/extend", json={"seconds": 60})
    paid = await page.post(f"{booking}/pay", json={"method": "pm_card_visa"}, headers={"Idempotency-Key": "pay-1"})
    assert (more.status_code, paid.status_code) == (200, 200), paid.text
    listed = await page.get("/v1/bookings")
    assert [one["state"] for one in listed.json()["bookings"]] == ["confirmed"]
    assert all(readable_by(answer, PAGE) for answer in (held, again, shown, unchanged, more, paid, listed))


async def test_a_page_follows_the_map(page: httpx2.AsyncClient) -> None:
    """A stream that a page reads by `fetch`, with its token in a header and the number that it saw last."""
    answer = await page.get("/v1/events/concert/stream", headers={"Last-Event-ID": "0"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"event: " in answer.content
    assert readable_by(answer, PAGE)


async def test_a_page_can_read_why_it_was_refused(
    page: httpx2.AsyncClient, listed: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem that a page cannot read is to its buyer a failure without a reason."""
    asked = {"event_id": "concert", "seats": ["A1"]}
    answers = [
        await page.get("/v1/events/concert", headers={"Authorization": "Bearer wrong"}),
        await page.get("/v1/bookings/unknown"),
        await page.get("/v1/events/unknown/stream"),
        await page.post("/v1/bookings", json={"event_id": "concert"}),
        await page.post("/v1/bookings", content=b"{}", headers={"Content-Type": "text/plain"}),
    ]

    async def silent(*_: object, **__: object) -> None:
        raise StoreUnavailable(because="it is silent")

    with monkeypatch.context() as broken:
        broken.setattr(listed.engine.store, "read_event", silent)
        answers.append(await page.get("/v1/events/concert"))
    with monkeypatch.context() as full:
        full.setattr(BatchQueue, "is_full", True)
        answers.append(await page.post("/v1/bookings", json=asked))
    limited = msgspec.structs.replace(listed, limits=RateLimits(per_buyer=0.1, timer=lambda: 0.0))
    async with client_of(limited, **page.headers) as busy:
        await busy.get("/v1/events")
        answers.append(await busy.get("/v1/events"))
    assert [answer.status_code for answer in answers] == [401, 404, 404, 422, 415, 503, 503, 429]
    assert [answer.status_code for answer in answers if not readable_by(answer, PAGE)] == []
    assert all("retry-after" in answer.headers for answer in answers[-3:])


async def test_modules_may_be_imported_and_pages_may_not_be_read(page: httpx2.AsyncClient) -> None:
    """A page imports the map's module from here. The pages themselves stay this server's, and in no frame."""
    for file in ("api.js", "earmark-seat-map.js", "style.css"):
        module = await page.get(f"/web/{file}")
        assert module.status_code == 200
        assert readable_by(module, PAGE)
        assert shared(await page.get(f"/web/{file}", headers={"Origin": UNLISTED})) == {}
    for path in ("/", "/docs", "/ops", "/web/ops.html", "/openapi.json", "/metrics", *(one.path for one in HEALTH)):
        answer = await page.get(path)
        assert (answer.status_code, shared(answer)) == (200, {}), path
    assert "frame-ancestors 'none'" in (await page.get("/")).headers["content-security-policy"]


async def test_the_checkout_is_told_which_sites_are_listed(page: httpx2.AsyncClient) -> None:
    """From a page of any other site it asks the buyer first; pages of other sites need not read the list."""
    answer = await page.get("/web/allowed-origins.json")
    assert (answer.json(), shared(answer)) == ({"origins": [PAGE, OTHER_PAGE]}, {})


async def test_under_a_prefix_pages_call_the_same(listed: Services, event: str) -> None:
    """Where Earmark is mounted, the other application's routes come first."""
    async with client_of(listed, prefix="/tickets", Origin=PAGE, Authorization=f"Bearer {KEY}") as browser:
        asked = await browser.options(f"/v1/events/{event}/seats", headers=ASKING)
        assert (asked.status_code, shared(asked)["access-control-allow-methods"]) == (204, "GET")
        assert readable_by(await browser.get(f"/v1/events/{event}/seats"), PAGE)
        assert readable_by(await browser.get("/web/api.js"), PAGE)
        assert (await browser.options("/v1/ops", headers=ASKING)).status_code == 405


FOREIGN = [
    {"Origin": UNLISTED},
    {"Origin": PAGE},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "https://here.evil.example"},
    {"Origin": "http://here:8080"},
    {"Origin": "http://here", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://here", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://here", "X-Forwarded-Proto": "https"},
]
OWN = [
    {},
    {"Origin": "http://here"},
    {"Origin": "http://here:80"},
    {"Origin": "https://here"},
    {"Origin": "https://behind.a.proxy.example", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "https://here", "X-Forwarded-Proto": "https"},
]


def with_cookie(services: Services, headers: dict[str, str]) -> dict[str, str]:
    """A guest's cookie, under the name that fits, beside these headers."""
    token = services.authenticator.issue(Buyer("guest_1"), now=services.clock.now(), seconds=60)
    name = "__Host-earmark_guest" if "X-Forwarded-Proto" in headers else "earmark_guest"
    return headers | {"Cookie": f"{name}={token}"}


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_request_from_another_site_is_never_known_by_its_cookie(
    listed: Services, event: str, headers: dict[str, str]
) -> None:
    """A browser sends the cookie by itself, also for a page of another host of the same domain."""
    async with client_of(msgspec.structs.replace(listed, trust_proxy=1), **with_cookie(listed, headers)) as browser:
        assert (await browser.get(f"/v1/events/{event}")).status_code == 401
        assert (await browser.get(f"/v1/events/{event}/stream")).status_code == 401
        assert (await browser.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})).status_code == 401


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_a_page_of_this_server_is_known_by_its_cookie(
    listed: Services, event: str, headers: dict[str, str]
) -> None:
    """By what its browser says of it, else by the address: also behind a proxy that ends TLS or names another host."""
    async with client_of(msgspec.structs.replace(listed, trust_proxy=1), **with_cookie(listed, headers)) as browser:
        assert (await browser.get(f"/v1/events/{event}")).status_code == 200


async def test_control_without_the_guard_the_cookie_speaks_for_another_site(
    listed: Services, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the guard off, a page of another host of this domain holds seats in the guest's name."""
    monkeypatch.setattr(authenticate, "is_from_elsewhere", lambda *_, **__: False)
    async with client_of(listed, **with_cookie(listed, {"Origin": UNLISTED})) as browser:
        answer = await browser.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})
        assert (answer.status_code, answer.json()["buyer"]) == (201, "guest_1")


async def test_a_guest_of_a_listed_site_gets_the_token_and_no_cookie(listed: Services, event: str) -> None:
    """Its browser would not keep a cookie; the token works as a header, and is exchanged for one of the same name."""
    async with client_of(listed, Origin=PAGE) as browser:
        made = await browser.post("/v1/guests")
        assert (made.status_code, set(made.json())) == (201, {"buyer", "expires_at", "token"})
        assert (made.headers.get("set-cookie"), made.headers["cache-control"]) == (None, "no-store")
        assert readable_by(made, PAGE)
        browser.headers["Authorization"] = f"Bearer {made.json()['token']}"
        held = await browser.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})
        assert (held.status_code, held.json()["buyer"]) == (201, made.json()["buyer"])
        again = await browser.post("/v1/guests")
        assert again.json()["buyer"] == made.json()["buyer"]
        browser.headers["Authorization"] = f"Bearer {again.json()['token']}"
        assert [one["id"] for one in (await browser.get("/v1/bookings")).json()["bookings"]] == [held.json()["id"]]
        browser.headers["Authorization"] = f"Bearer {again.json()['token']}x"
        assert (await browser.post("/v1/guests")).json()["buyer"] != made.json()["buyer"], "the control: no name stays"


async def test_a_buyer_s_token_is_not_exchanged_for_a_guest_s(listed: Services) -> None:
    """A token that a key issued ends with that key."""
    token = listed.authenticator.issue(Buyer("alice"), now=listed.clock.now(), seconds=60)
    async with client_of(listed, Origin=PAGE) as browser:
        key = {"Authorization": f"Bearer {KEY}"}
        issued = (await browser.post("/v1/tokens", json={"buyer": "bob"}, headers=key)).json()["token"]
        names = [
            (await browser.post("/v1/guests", headers={"Authorization": f"Bearer {one}"})).json()["buyer"]
            for one in (token, issued)
        ]
    assert names[0] == "alice", "the control: a guest's own"
    assert names[1].startswith("guest_")


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_a_guest_of_this_server_s_page_gets_a_cookie_and_no_token(
    listed: Services, headers: dict[str, str]
) -> None:
    """Scripts cannot read the token there; also where this server's own origin is listed."""
    itself = AllowedOrigins([PAGE, "http://here", "https://here"])
    async with client_of(msgspec.structs.replace(listed, trust_proxy=1, origins=itself), **headers) as browser:
        made = await browser.post("/v1/guests")
    assert (made.status_code, set(made.json())) == (201, {"buyer", "expires_at"})
    assert "HttpOnly" in made.headers["set-cookie"]


async def test_a_page_of_a_site_that_is_not_listed_makes_no_guest(listed: Services) -> None:
    """Its request has no cookie that counts, so a new cookie would take the guest's name, and with it the bookings."""
    async with client_of(listed, **with_cookie(listed, {"Origin": UNLISTED})) as browser:
        refused = await browser.post("/v1/guests")
        assert (refused.status_code, refused.json()["code"], shared(refused)) == (403, "forbidden", {})
        assert "set-cookie" not in refused.headers
        listed_page = await browser.post("/v1/guests", headers={"Origin": PAGE})
        assert listed_page.json()["buyer"] != "guest_1", "the cookie gives a page of another site no name either"


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "null",
        "shop.example",
        "https://*.shop.example",
        "https://shop.example/",
        "https://shop.example/tickets",
        "https://Shop.example",
        "https://shop.example:443",
        "http://shop.example:80",
        "https://shop.example:65536",
        "https://user@shop.example",
        "https://bücher.example",
        "ftp://shop.example",
        "https://shop.example https://other.example",
        "https://shop.example,",
        "https://",
    ],
)
def test_an_origin_that_no_browser_sends_stops_the_start(text: str) -> None:
    """It would match no page, and its operator would search the fault elsewhere."""
    with pytest.raises(SetupError, match=r"^EARMARK_ALLOWED_ORIGINS has .+ Name each site by its scheme and host"):
        config.read({"EARMARK_ALLOWED_ORIGINS": text})


def test_sites_are_listed_with_spaces_or_without() -> None:
    """Each once, as browsers send it: a host, an address, and a port of its own."""
    text = f"{PAGE}, {OTHER_PAGE},http://[::1]:8080,http://192.0.2.1,https://xn--bcher-kva.example,{PAGE}"
    settings = config.read({"EARMARK_ALLOWED_ORIGINS": text})
    origins = AllowedOrigins(origins_of(settings.allowed_origins))
    assert all(one.strip().encode() in origins for one in text.split(","))
    assert not AllowedOrigins(origins_of(config.read({}).allowed_origins))
