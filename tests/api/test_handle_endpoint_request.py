from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx2
import pytest

from earmark.api.app import ENDPOINTS
from earmark.api.auth.keys_and_tokens import Scope

if TYPE_CHECKING:
    from earmark.clock import MovableClock


@pytest.mark.parametrize("call", [call for call in ENDPOINTS if call.scope], ids=lambda call: call.name)
async def test_no_call_is_answered_without_a_key(stranger: httpx2.AsyncClient, call: object) -> None:
    """Every call that needs a principal refuses a client without one, before it reads the body."""
    path = re.sub(r"\{\w+\}", "b", call.path)  # type: ignore[attr-defined]
    answer = await stranger.request(call.method, path, content=b"{not json")  # type: ignore[attr-defined]
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "call", [call for call in ENDPOINTS if call.scope and call.scope is not Scope.BUY], ids=lambda call: call.name
)
async def test_a_guest_may_only_buy(stranger: httpx2.AsyncClient, event: str, call: object) -> None:
    """Selling and managing need their scope."""
    await stranger.post("/v1/guests")
    path = re.sub(r"\{\w+\}", event, call.path)  # type: ignore[attr-defined]
    answer = await stranger.request(call.method, path, json={})  # type: ignore[attr-defined]
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_a_guest_holds_for_themselves_alone(stranger: httpx2.AsyncClient, event: str) -> None:
    """The token names the buyer; the body cannot name another."""
    me = (await stranger.post("/v1/guests")).json()["buyer"]
    mine = await stranger.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})
    assert (mine.status_code, mine.json()["buyer"]) == (201, me)
    other = await stranger.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A2"]})
    assert other.status_code == 403
    assert (await stranger.get("/v1/bookings?buyer=alice")).status_code == 403
    assert (await stranger.post("/v1/guests")).json()["buyer"] == me


async def test_scripts_cannot_read_the_guests_token(stranger: httpx2.AsyncClient) -> None:
    """It is sent in an HttpOnly, SameSite=Strict cookie and nowhere else."""
    answer = await stranger.post("/v1/guests")
    cookie = answer.headers["Set-Cookie"]
    token = cookie.partition("=")[2].partition(";")[0]
    assert token.startswith("et_")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert token not in answer.text


async def test_a_key_of_one_kind_does_not_see_the_other(services: object, event: str, clock: MovableClock) -> None:
    """A live key finds no test event, nor its bookings."""
    from earmark.api.app import create_app
    from earmark.api.auth.keys_and_tokens import Authenticator
    from earmark.api.open_services_for_handlers import Services
    from earmark.observability.metrics.metrics_page import Metrics

    assert isinstance(services, Services)
    key = "ek_live_0123456789abcdef"
    live = Services(
        engine=services.engine,
        authenticator=Authenticator(admin_key=key),
        metrics=Metrics(version="x"),
        clock=clock,
        guests=False,
        seat_map_cache=services.seat_map_cache,
        payments=services.payments,
    )
    transport = httpx2.ASGITransport(app=create_app(live))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://shop", headers={"Authorization": f"Bearer {key}"}
    ) as other:
        assert (await other.get(f"/v1/events/{event}")).json()["code"] == "event_unknown"
        assert (await other.get("/v1/events")).json()["events"] == []
        hold = await other.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"]})
        assert hold.json()["code"] == "event_unknown"
        assert (await other.post("/v1/guests")).status_code == 404


async def test_the_map_is_sent_once_while_nothing_changes(shop: httpx2.AsyncClient, event: str) -> None:
    """304 for a client that has it already; a new version as soon as anything on it changes."""
    first = await shop.get(f"/v1/events/{event}/seats")
    same = await shop.get(f"/v1/events/{event}/seats", headers={"If-None-Match": first.headers["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"]})
    after = await shop.get(f"/v1/events/{event}/seats", headers={"If-None-Match": first.headers["ETag"]})
    assert after.status_code == 200
    assert after.json()["version"] != first.json()["version"]


async def test_a_seat_says_why_it_is_not_available(shop: httpx2.AsyncClient, event: str, clock: MovableClock) -> None:
    """Free, held, lapsed, sold, blocked: each in a sentence."""

    async def why(seat: str) -> tuple[str, str]:
        told = (await shop.get(f"/v1/events/{event}/seats/{seat}/explain")).json()
        return told["state"], told["why"]

    assert await why("A1") == ("available", "It is free.")
    held = await shop.post(
        "/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"], "ttl_seconds": 60}
    )
    state, sentence = await why("A1")
    assert state == "held"
    assert "not paid for" in sentence
    clock.advance(61)
    assert (await why("A1"))[0] == "available"
    assert (await shop.get(f"/v1/bookings/{held.json()['id']}")).json()["state"] == "expired"
    await shop.patch(f"/v1/events/{event}", json={"seats": [{"id": "A1", "blocked": True}]})
    assert (await why("A1"))[0] == "blocked"
    assert "last booking is expired" not in (await why("A1"))[1]


async def test_verbs_are_counted_by_outcome(shop: httpx2.AsyncClient, event: str) -> None:
    """An operator sees what was refused, and how long it took."""
    body = {"event_id": event, "buyer": "alice", "seats": ["A1"]}
    await shop.post("/v1/bookings", json=body)
    await shop.post("/v1/bookings", json=body | {"buyer": "bob"})
    page = (await shop.get("/metrics")).text
    assert 'earmark_verbs_total{outcome="ok",verb="hold"} 1.0' in page
    assert 'earmark_verbs_total{outcome="seats_taken",verb="hold"} 1.0' in page
    assert 'earmark_verb_seconds_count{verb="hold"} 2.0' in page


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1969-12-31T00:00:00Z", "2030-01-01T00:00:00"]
)
async def test_a_moment_that_no_store_can_keep_is_refused(shop: httpx2.AsyncClient, event: str, moment: str) -> None:
    """At the edges of the calendar a conversion would fail later, on every read."""
    made = await shop.post("/v1/events", json={"name": "x", "currency": "EUR", "starts_at": moment, "pools": []})
    changed = await shop.patch(f"/v1/events/{event}", json={"starts_at": moment})
    assert (made.status_code, changed.status_code) == (422, 422)
    assert changed.json()["errors"][0]["path"] == "starts_at"


async def test_an_event_may_have_a_name_in_any_script(shop: httpx2.AsyncClient) -> None:
    """Its address is written so that a header can carry it, and a replay does not invent another."""
    body = {
        "id": "コンサート",
        "name": "コンサート",
        "currency": "JPY",
        "pools": [{"id": "GA", "capacity": 1, "price": 1}],
    }
    made = await shop.post("/v1/events", json=body, headers={"Idempotency-Key": "k"})
    assert made.status_code == 201
    assert (await shop.get(made.headers["Location"])).json()["id"] == "コンサート"
    replayed_response = await shop.post("/v1/events", json=body, headers={"Idempotency-Key": "k"})
    assert (replayed_response.status_code, replayed_response.content) == (201, made.content)
    assert "Location" not in replayed_response.headers


async def test_a_layout_has_a_largest_size(shop: httpx2.AsyncClient) -> None:
    """Rows times seats count, not rows and seats."""
    body = {"name": "x", "currency": "EUR", "layout": {"rows": 300, "seats_per_row": 1000, "price": 1}}
    answer = await shop.post("/v1/events", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "layout")


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "9" * 5000, "٣", "1e2"])
async def test_a_page_has_a_sensible_size(shop: httpx2.AsyncClient, limit: str) -> None:
    """Anything else is refused, however long it is."""
    answer = await shop.get("/v1/events", params={"limit": limit})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "limit")


async def test_a_server_on_a_foreign_schema_is_not_ready(
    services: object, shop: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 and a problem, not a crash."""
    from earmark.api.open_services_for_handlers import Services
    from earmark.errors import SetupError

    async def foreign() -> None:
        raise SetupError(problem="The database has migration 9999")

    assert isinstance(services, Services)
    monkeypatch.setattr(services.engine.store, "check", foreign)
    answer = await shop.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "setup")
