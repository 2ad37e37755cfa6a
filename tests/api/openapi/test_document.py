from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark.api.app import ENDPOINTS, create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.api.open_services_for_handlers import Services


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            else:
                yield from refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


async def test_the_document_describes_every_call_and_refers_to_nothing_missing(stranger: httpx2.AsyncClient) -> None:
    """One table makes the routes and the document, so neither knows more than the other."""
    document = (await stranger.get("/openapi.json")).json()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert described == {(call.path, call.method) for call in ENDPOINTS}
    assert document["openapi"].startswith("3.1")
    parts = document["components"]
    known = {f"#/components/{part}/{name}" for part in ("schemas", "headers", "responses") for name in parts[part]}
    assert set(refs(document)) <= known


async def test_moments_are_described_as_such(stranger: httpx2.AsyncClient) -> None:
    """A client generator must know a time from a text."""
    schemas = (await stranger.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["Booking"]["properties"]["expires_at"]["format"] == "date-time"
    assert schemas["EventBody"]["additionalProperties"] is False


@pytest.mark.parametrize("call", [call for call in ENDPOINTS if call.example is not None], ids=lambda call: call.name)
async def test_examples_are_true(shop: httpx2.AsyncClient, event: str, call: Any) -> None:
    """What the reference shows can be sent as it stands."""
    assert event == "concert"
    held = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["B1"]})
    booking_id = held.json()["id"]
    if call.name == "cancel":
        await shop.post(f"/v1/bookings/{booking_id}/confirm", json={"payment_id": "till-1"})
    if call.name == "refund":
        card = {"method": "pm_card_visa"}
        await shop.post(f"/v1/bookings/{booking_id}/pay", json=card, headers={"Idempotency-Key": "first"})
    if call.name == "undo_admission":
        await shop.post(f"/v1/bookings/{booking_id}/confirm", json={"payment_id": "till-1"})
        (ticket,) = (await shop.get(f"/v1/bookings/{booking_id}/tickets")).json()["tickets"]
        await shop.post("/v1/tickets/check", json={"code": ticket["code"], **call.example})
    webhook = (await shop.post("/v1/webhooks", json={"url": "https://shop.example/earmark"})).json()["id"]
    path = call.path.format(event_id=event, booking_id=booking_id, webhook_id=webhook)
    body = {**call.example, "id": "another"} if call.name == "create_event" else call.example
    headers = {"Idempotency-Key": "example"} if call.keyed else {}
    answer = await shop.request(call.method, path, json=body, headers=headers)
    assert answer.status_code == call.status, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/checkout",
        "/bookings",
        "/docs",
        "/ops",
        "/web/shop/event-page.js",
        "/web/style.css",
        "/web/docs.js",
        "/web/ops.js",
        "/web/ops-cards.js",
        "/web/earmark-seat-map.js",
        "/web/seat-map/element.js",
        "/web/seat-map/styles.js",
    ],
)
async def test_pages_need_nothing_from_outside(stranger: httpx2.AsyncClient, path: str) -> None:
    """Our own files only, and a policy that would refuse anything else."""
    page = await stranger.get(path)
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert not re.search(r"""(src|href)=["']https?://|from ["']https?://|@import""", page.text)


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/%2e%2e/app.py",
        "/web/app.py",
        "/web/.",
        "/web/nothing.js",
        "/web/seat-map",
        "/web/seat-map/../../app.py",
        "/web/" + "a" * 300 + ".js",
    ],
)
async def test_only_the_page_s_own_files_are_served(stranger: httpx2.AsyncClient, path: str) -> None:
    """No way out of the folder."""
    answer = await stranger.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_the_document_is_rendered_once(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no key, and it is long: a client that has it gets 304."""
    worded: list[bytes] = []

    def hashed(body: bytes) -> Any:
        worded.append(body)
        return sha256(body)

    monkeypatch.setattr("earmark.api.app.sha256", hashed)
    transport = httpx2.ASGITransport(app=create_app(services))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        first, second = [await client.get("/openapi.json") for _ in range(2)]
        tag = first.headers["etag"]
        assert (first.content, tag) == (second.content, second.headers["etag"])
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            replayed_response = await client.get("/openapi.json", headers={"If-None-Match": known})
            assert (replayed_response.status_code, replayed_response.content, replayed_response.headers["etag"]) == (
                304,
                b"",
                tag,
            )
        assert (await client.get("/openapi.json", headers={"If-None-Match": '"other"'})).status_code == 200
    assert worded == [first.content]


async def test_a_browser_that_has_a_file_of_the_pages_is_not_sent_it_again(stranger: httpx2.AsyncClient) -> None:
    """A page of the shop is some forty files: a second visit costs their names and no bytes."""
    for path in ("/", "/checkout", "/web/shop/event-page.js"):
        first = await stranger.get(path)
        again = await stranger.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["Content-Security-Policy"] == first.headers["Content-Security-Policy"]
        other = await stranger.get(path, headers={"If-None-Match": '"another"'})
        assert (other.status_code, other.content) == (200, first.content)
