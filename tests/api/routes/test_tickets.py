"""Tickets over HTTP: the permanent link, what a door sends and gets, and which callers may do it."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.api.conftest import KEY, house_over

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import GUEST_SECONDS, Authenticator, hash_of, new_key, new_key_id
from earmark.api.middleware.rate_limits import FAILURES_BURST, SLOW_LINKS_MAX
from earmark.domain.api_key import Scope
from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.tickets.new_ticket_secrets import new_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock


@pytest.fixture
async def keyed_services(sqlite_store: Any, clock: MovableClock) -> AsyncIterator[Services]:
    """Services that know stored keys."""
    house = house_over(sqlite_store, clock)
    authenticator = Authenticator(admin_key=KEY, keys=sqlite_store.keys)
    yield msgspec.structs.replace(house, authenticator=authenticator)
    await authenticator.close()
    await house.payments.close()


async def sold(shop: httpx2.AsyncClient, event: str, *seats: str, units: int = 0, buyer: str = "canary-alice") -> Any:
    """A sale, and the answer about its tickets."""
    body = {"event_id": event, "buyer": buyer, "seats": list(seats), "pools": {"GA": units} if units else {}}
    booking = (await shop.post("/v1/bookings", json=body)).json()["id"]
    paid = await shop.post(f"/v1/bookings/{booking}/confirm", json={"payment_id": f"till-{booking}"})
    assert paid.status_code == 200, paid.text
    answer = await shop.get(f"/v1/bookings/{booking}/tickets")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def check(shop: httpx2.AsyncClient, code: str, nonce: str, **more: Any) -> Any:
    answer = await shop.post("/v1/tickets/check", json={"code": code, "nonce": nonce} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def of_page(tickets: Any) -> str:
    secret: str = tickets["page"].rpartition("/")[2]
    return secret


async def test_the_owner_gets_the_link_and_no_other_buyer(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, services: Services, event: str
) -> None:
    """With the buyer's token, for as long as it is valid; the link itself stays good afterwards."""
    tickets = await sold(shop, event, "A1", units=1, buyer="alice")
    path = f"/v1/bookings/{tickets['booking_id']}/tickets"
    for buyer, status in (("alice", 200), ("bob", 404)):
        token = services.authenticator.issue(Buyer(buyer), now=services.clock.now(), seconds=60)
        answer = await stranger.get(path, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status
        assert status != 200 or (answer.json(), answer.headers["Cache-Control"]) == (tickets, "no-store")
    assert (await stranger.get(path)).status_code == 401


async def test_the_link_outlives_the_guests_cookie(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, services: Services, event: str, clock: MovableClock
) -> None:
    """The cookie ends after some hours; without any, the page is the same."""
    await stranger.post("/v1/guests", json={})
    held = (await stranger.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})).json()
    await shop.post(f"/v1/bookings/{held['id']}/confirm", json={"payment_id": "till-1"})
    tickets = (await stranger.get(f"/v1/bookings/{held['id']}/tickets")).json()
    clock.advance(GUEST_SECONDS + 1)
    assert (await stranger.get(f"/v1/bookings/{held['id']}/tickets")).status_code == 401
    stranger.cookies.clear()
    page = (await stranger.get(f"/v1/tickets/page/{of_page(tickets)}")).json()
    assert [one["code"] for one in page["tickets"]] == [one["code"] for one in tickets["tickets"]]
    assert services.clock is clock


async def test_all_that_a_link_opens_is_kept_by_no_cache_and_shown_by_no_search_engine(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    """And its address is sent to no other page. The page itself names no buyer and no payment."""
    body = {"id": "gala", "name": "A gala", "currency": "EUR", "starts_at": "2031-05-02T18:30:00Z"}
    await shop.post("/v1/events", json=body | {"layout": {"rows": 1, "seats_per_row": 2, "price": 500}})
    tickets = await sold(shop, "gala", "A1")
    secret = of_page(tickets)
    for path in (f"/t/{secret}", f"/t/{secret}/calendar.ics", f"/v1/tickets/page/{secret}"):
        answer = await stranger.get(path)
        assert answer.status_code == 200, path
        names = ("Referrer-Policy", "X-Robots-Tag", "Cache-Control")
        assert [answer.headers[name] for name in names] == ["no-referrer", "noindex", "no-store"]
        assert "canary-alice" not in answer.text
        assert "till-" not in answer.text
    page = await stranger.get(f"/t/{secret}")
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert '<meta name="robots" content="noindex">' in page.text
    assert (await stranger.post(f"/t/{secret}")).status_code == 405, "it only reads"


async def test_a_wrong_link_is_not_found_and_too_many_are_slowed_down(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str
) -> None:
    """And the page of another visitor at the same address, such as that of a proxy, still opens."""
    known = of_page(await sold(shop, event, "A1"))
    wrong = await stranger.get(f"/t/{new_secret()}")
    assert (wrong.status_code, wrong.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    statuses = [(await stranger.get(f"/v1/tickets/page/{new_secret()}")).status_code for _ in range(FAILURES_BURST)]
    assert statuses == [*[404] * (FAILURES_BURST - 1), 429]
    refused = await stranger.get(f"/v1/tickets/page/{new_secret()}")
    assert (refused.status_code, refused.json()["per"], "Retry-After" in refused.headers) == (429, "address", True)
    assert (await stranger.get(f"/v1/tickets/page/{known}")).status_code == 200


async def test_a_crowd_of_wrong_links_is_looked_up_one_at_a_time(
    shop: httpx2.AsyncClient,
    stranger: httpx2.AsyncClient,
    services: Services,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once an address has sent too many: the rest waits, and what is more than the queue holds is refused at once."""
    known = of_page(await sold(shop, event, "A1"))
    at_once, most = 0, 0
    open_page = services.engine.store.tickets.open_page

    async def counted(secret: str) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        at_once -= 1
        return await open_page(secret)

    monkeypatch.setattr(services.engine.store.tickets, "open_page", counted)
    crowd = [stranger.get(f"/v1/tickets/page/{new_secret()}") for _ in range(FAILURES_BURST)]
    await asyncio.gather(*crowd)
    assert most > 1, "the control: before, they are looked up together"
    most = 0
    crowd = [stranger.get(f"/v1/tickets/page/{new_secret()}") for _ in range(2 * SLOW_LINKS_MAX)]
    answers = await asyncio.gather(*crowd)
    assert {answer.status_code for answer in answers} == {429}
    assert most == 1
    assert (await stranger.get(f"/v1/tickets/page/{known}")).status_code == 200


async def test_good_links_are_not_counted(shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str) -> None:
    """The control: many visitors of one address open their pages."""
    secrets = [of_page(await sold(shop, event, units=1)) for _ in range(10)]
    opened = [(await stranger.get(f"/v1/tickets/page/{secret}")).status_code for secret in secrets * 4]
    assert opened == [200] * 40


CROWD = FAILURES_BURST + SLOW_LINKS_MAX + 10


async def opened_at_once(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, services: Services, event: str, patch: pytest.MonkeyPatch
) -> set[int]:
    """The statuses of a crowd at an entrance, behind one address: all links are sent before the first is looked up."""
    known = of_page(await sold(shop, event, "A1"))
    limits, all_came, came = services.limits, asyncio.Event(), 0
    open_page, look_up = services.engine.store.tickets.open_page, limits.look_up_link

    def counted(address: str) -> Any:
        nonlocal came
        came += 1
        if came == CROWD:
            all_came.set()
        return look_up(address)

    async def late(secret: str) -> Any:
        await all_came.wait()
        return await open_page(secret)

    patch.setattr(limits, "look_up_link", counted)
    patch.setattr(services.engine.store.tickets, "open_page", late)
    answers = await asyncio.gather(*(stranger.get(f"/v1/tickets/page/{known}") for _ in range(CROWD)))
    return {answer.status_code for answer in answers}


async def test_a_crowd_of_good_links_behind_one_address_is_not_refused(
    shop: httpx2.AsyncClient,
    stranger: httpx2.AsyncClient,
    services: Services,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every page opens, though none was found yet when the last was sent."""
    assert await opened_at_once(shop, stranger, services, event, monkeypatch) == {200}


async def test_control_counted_before_it_is_found_wrong_a_good_link_is_refused(
    shop: httpx2.AsyncClient,
    stranger: httpx2.AsyncClient,
    services: Services,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bucket of wrong links is empty before the first answer, and the slow lane full."""
    wrong_links = services.limits._wrong_links
    monkeypatch.setattr(wrong_links, "wait", wrong_links.take)
    assert await opened_at_once(shop, stranger, services, event, monkeypatch) == {200, 429}


async def test_a_door_admits_once_and_may_undo(shop: httpx2.AsyncClient, event: str) -> None:
    """The answer has the seat, the event and the time of the first admission."""
    (ticket,) = (await sold(shop, event, "A1"))["tickets"]
    first = await check(shop, ticket["code"], "1", event_id=event)
    assert (first["result"], first["reason"], first["place"]["id"], first["event"]["id"]) == (
        "admitted",
        None,
        "A1",
        event,
    )
    second = await check(shop, ticket["code"], "2")
    assert (second["result"], second["reason"]) == ("refused", "already_admitted")
    assert second["admitted_at"] == first["scanned_at"] == first["admitted_at"]
    assert await check(shop, ticket["code"], "1", event_id=event) == first
    undone = await shop.post("/v1/tickets/undo", json={"nonce": "1"})
    assert (undone.status_code, undone.json()["nonce"]) == (200, "1")
    assert (await check(shop, ticket["code"], "1"))["reason"] == "undone"
    assert (await check(shop, ticket["code"], "3"))["result"] == "admitted"
    twice = await shop.post("/v1/tickets/check", json={"code": "another", "nonce": "3"})
    assert (twice.status_code, twice.json()["code"]) == (422, "idempotency_mismatch")


async def test_the_link_has_the_prefix_of_a_mounted_service(
    services: Services, shop: httpx2.AsyncClient, event: str
) -> None:
    """A shop that serves Earmark under a path of its own can send the link as it stands."""
    tickets = await sold(shop, event, "A1")
    mounted = Starlette(routes=[Mount("/box-office", app=create_app(services))])
    transport = httpx2.ASGITransport(app=mounted)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        path = f"/box-office/v1/bookings/{tickets['booking_id']}/tickets"
        answer = await client.get(path, headers={"Authorization": f"Bearer {KEY}"})
        assert answer.json()["page"] == f"/box-office{tickets['page']}"
        page = await client.get(answer.json()["page"])
    assert (page.status_code, "../web/ticket.js" in page.text) == (200, True)


async def test_a_key_of_a_door_does_nothing_else(keyed_services: Services) -> None:
    """It checks tickets; it sells nothing, and reads no booking and no buyer. A shop's other keys check none."""
    transport = httpx2.ASGITransport(app=create_app(keyed_services), raise_app_exceptions=False)
    secrets = {}
    for scope in (Scope.CHECK, Scope.SELL):
        secrets[scope] = new_key(mode=Mode.TEST)
        await keyed_services.engine.store.keys.create(
            new_key_id(),
            name=scope,
            mode=Mode.TEST,
            scopes=frozenset({scope}),
            secret_hash=hash_of(secrets[scope]),
        )
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:

        async def status(scope: Scope, method: str, path: str, body: Any = None) -> int:
            headers = {"Authorization": f"Bearer {secrets[scope]}"}
            return (await client.request(method, path, json=body, headers=headers)).status_code

        body = {"code": "x", "nonce": "1"}
        assert await status(Scope.CHECK, "POST", "/v1/tickets/check", body) == 200
        assert await status(Scope.CHECK, "GET", "/v1/bookings") == 403
        assert await status(Scope.CHECK, "POST", "/v1/tokens", {"buyer": "alice"}) == 403
        assert await status(Scope.SELL, "POST", "/v1/tickets/check", body) == 403


async def test_a_list_for_a_door_has_hashes_only(shop: httpx2.AsyncClient, event: str) -> None:
    """Page by page, with what is not valid and what has admitted; a seat by its id."""
    tickets = (await sold(shop, event, "A1", "A2", units=1))["tickets"]
    await check(shop, tickets[1]["code"], "1")
    pages: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await shop.get(
            f"/v1/events/{event}/tickets/offline-list?limit=2" + (f"&cursor={cursor}" * bool(cursor))
        )
        assert answer.status_code == 200, answer.text
        assert not any(ticket["code"] in answer.text for ticket in tickets)
        pages.append(answer.json())
        cursor = pages[-1]["next_cursor"]
    listed = [one for page in pages for one in page["tickets"]]
    assert [one["hash"] for one in listed] == [hashlib.sha256(one["code"].encode()).hexdigest() for one in tickets]
    assert [(one["place"]["id"], one["reason"], one["admitted_at"] is None) for one in listed] == [
        ("A1", None, True),
        ("A2", None, False),
        ("GA", None, True),
    ]


async def test_the_list_for_a_door_says_until_when_buyers_may_cancel(
    shop: httpx2.AsyncClient, clock: MovableClock
) -> None:
    """While they may: null where the event lets none cancel, and from the limit on."""
    starts = clock.now() + timedelta(hours=2)
    body = {"id": "gala", "name": "A gala", "currency": "EUR", "starts_at": starts.isoformat()}
    await shop.post("/v1/events", json=body | {"layout": {"rows": 1, "seats_per_row": 2, "price": 500}})

    async def until() -> str | None:
        found: str | None = (await shop.get("/v1/events/gala/tickets/offline-list")).json()["buyers_may_cancel_until"]
        return found

    assert await until() is None
    await shop.patch("/v1/events/gala", json={"buyer_cancel_until_seconds": 3600})
    assert datetime.fromisoformat(await until() or "") == starts - timedelta(hours=1)
    clock.advance(3600 - 1)
    assert await until() is not None
    clock.advance(1)
    assert await until() is None


async def test_a_door_sends_back_what_it_admitted_and_is_told_of_double_admissions(
    shop: httpx2.AsyncClient, event: str
) -> None:
    """Sent again, the answer is the same; the audit has every scan with its key and both times."""
    one, two = (await sold(shop, event, "A1", "A2"))["tickets"]
    online = await check(shop, two["code"], "online")
    scans = [
        {"code": two["code"], "nonce": "2", "scanned_at": "2030-03-01T18:43:00Z"},
        {"code": one["code"].upper(), "nonce": "1", "scanned_at": "2030-03-01T18:42:00Z"},
    ]
    answer = await shop.post("/v1/tickets/offline-scans", json={"scans": scans})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["double_admissions"] == 1
    assert [(scan["nonce"], scan["result"], scan["reason"]) for scan in told["scans"]] == [
        ("1", "admitted", None),
        ("2", "conflict", "already_admitted"),
    ]
    assert told["scans"][0]["scanned_at"] == "2030-03-01T18:42:00Z" != told["scans"][0]["received_at"]
    assert told["scans"][1]["admitted_at"] == online["admitted_at"]
    assert (await shop.post("/v1/tickets/offline-scans", json={"scans": scans})).json() == told
    audit = (await shop.get(f"/v1/events/{event}/tickets/scans")).json()["scans"]
    assert [(scan["nonce"], scan["admitted"], scan["reason"], scan["offline"]) for scan in audit] == [
        ("online", True, None, False),
        ("1", True, None, True),
        ("2", True, "already_admitted", True),
    ]
    assert {scan["caller"].partition("key:")[1] for scan in audit} == {"key:"}
    paged = await shop.get(f"/v1/events/{event}/tickets/scans?limit=2")
    rest = await shop.get(f"/v1/events/{event}/tickets/scans?cursor={paged.json()['next_cursor']}")
    assert [*paged.json()["scans"], *rest.json()["scans"]] == audit


async def test_a_door_is_told_of_its_scan_by_its_own_nonce(shop: httpx2.AsyncClient, event: str) -> None:
    """Also where the server had refused a scan of this nonce, and the answer was lost: it is a conflict."""
    (ticket,) = (await sold(shop, event, "A1"))["tickets"]
    await check(shop, ticket["code"], "1")
    assert (await check(shop, ticket["code"], "2"))["result"] == "refused"
    scans = [{"code": ticket["code"], "nonce": "2", "scanned_at": "2030-03-01T18:43:00Z"}]
    told = (await shop.post("/v1/tickets/offline-scans", json={"scans": scans})).json()
    assert [(scan["nonce"], scan["result"]) for scan in told["scans"]] == [("2", "conflict")]
    assert (await shop.post("/v1/tickets/offline-scans", json={"scans": scans})).json() == told
    audit = (await shop.get(f"/v1/events/{event}/tickets/scans")).json()["scans"]
    assert [(scan["admitted"], scan["offline"]) for scan in audit] == [(True, False), (False, False), (True, True)]


@pytest.mark.parametrize(
    "path, body",
    [
        ("check", {"code": "", "nonce": "1"}),
        ("check", {"code": "x", "nonce": ""}),
        ("check", {"code": "x", "nonce": "a space"}),
        ("check", {"code": "x" * 201, "nonce": "1"}),
        ("check", {"code": "x", "nonce": "1", "event_id": "no event!"}),
        ("offline-scans", {"scans": []}),
        ("offline-scans", {"scans": [{"code": "x", "nonce": "1", "scanned_at": "2030-03-01T18:42:00"}]}),
    ],
)
async def test_a_scan_that_no_scanner_sends_is_refused(shop: httpx2.AsyncClient, path: str, body: Any) -> None:
    """With the field that is wrong."""
    answer = await shop.post(f"/v1/tickets/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("code", ["\x00", "\N{SNOWMAN}" * 32, "' OR 1=1 --", "%", "../../etc"])
async def test_any_text_is_a_code_that_no_ticket_has(shop: httpx2.AsyncClient, code: str) -> None:
    """A scanner reads whatever a visitor shows."""
    assert (await check(shop, code, "1"))["reason"] == "unknown"


async def test_no_secret_is_logged(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the link nor the code; a door's request is logged by its route."""
    tickets = await sold(shop, event, "A1")
    await stranger.get(tickets["page"])
    await check(shop, tickets["tickets"][0]["code"], "1")
    said = capsys.readouterr()
    for secret in (of_page(tickets), tickets["tickets"][0]["code"]):
        assert secret not in said.out + said.err
    assert KEY not in said.out + said.err


@pytest.mark.parametrize("path", ["/door", "/web/door.js", "/web/texts/ticket-en.js", "/web/vendor/lean-qr/index.mjs"])
async def test_the_pages_files_are_served(stranger: httpx2.AsyncClient, path: str) -> None:
    """Scripts with a media type that a browser runs."""
    answer = await stranger.get(path)
    assert answer.status_code == 200
    kind = "text/html" if path == "/door" else "text/javascript"
    assert answer.headers["Content-Type"].startswith(kind)
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/web/vendor/lean-qr/README.md", "/web/vendor", "/web/texts/../../config.py"])
async def test_no_other_file_is_served(stranger: httpx2.AsyncClient, path: str) -> None:
    """Neither a folder nor what stands beside the scripts."""
    assert (await stranger.get(path)).status_code == 404
