"""What every server serves beside bookings: its health, its metrics and its OpenAPI document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .support import Caller, Json, Service, answered, become_guest, calling, refused, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = {
    "/v1/events": {"get", "post"},
    "/v1/events/{}": {"get", "patch"},
    "/v1/events/{}/seats": {"get"},
    "/v1/events/{}/seats/{}": {"get"},
    "/v1/bookings": {"get", "post"},
    "/v1/bookings/{}": {"get"},
    "/v1/bookings/{}/history": {"get"},
    "/v1/bookings/{}/extend": {"post"},
    "/v1/bookings/{}/confirm": {"post"},
    "/v1/bookings/{}/release": {"post"},
    "/v1/bookings/{}/cancel": {"post"},
    "/v1/guests": {"post"},
}


async def test_health_needs_no_key(service: Service) -> None:
    """A load balancer has no key: liveness and readiness are public, and contain nothing secret."""
    async with calling(service, token="") as anonymous:
        for path in ("/healthz", "/readyz"):
            response = await anonymous.http.get(path)
            assert response.status_code == 200, response.text
            assert service.key not in response.text


async def test_the_metrics_are_prometheus_text(shop: Caller) -> None:
    """Names begin with the product's, and the verbs are counted by name and outcome."""
    event = await shop.theatre()
    await shop.sold(event, seats=["A1"])
    response = await shop.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(("text/plain", "application/openmetrics-text"))
    counted = re.findall(r"^earmark_\w+\{.*\} [0-9.e+]+$", response.text, re.MULTILINE)
    for verb in ("hold", "confirm"):
        assert any(f'"{verb}"' in line for line in counted), counted


async def test_the_description_names_every_call(service: Service) -> None:
    """The API describes itself in OpenAPI 3.1, call by call, with the shape of its problems."""
    async with calling(service, token="") as anonymous:
        described: Json = answered(await anonymous.http.get("/openapi.json"), 200)
    assert described["openapi"].startswith("3.1")
    paths = {re.sub(r"\{[^}]*\}", "{}", path): set(operations) for path, operations in described["paths"].items()}
    for path, methods in CALLS.items():
        assert methods <= paths.get(path, set()), path
    hold = described["paths"]["/v1/bookings"]["post"]
    assert {"201", "409", "422"} <= set(hold["responses"])
    assert "application/problem+json" in hold["responses"]["409"]["content"]


async def test_the_reference_is_a_page(service: Service) -> None:
    """The page shows the OpenAPI document and needs no other server."""
    async with calling(service, token="") as anonymous:
        response = await anonymous.http.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", response.text)


async def test_guests_are_accepted_only_where_it_is_configured(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """A server without the guests setting refuses guests, and still serves callers with a key."""
    service = serve(database=new_database("sqlite"), directory=tmp_path, guests=False)
    try:
        async with calling(service, token="") as anonymous:
            response = await anonymous.http.post("/v1/guests")
        refused(response, (401, 403, 404))
        assert "set-cookie" not in response.headers
        async with calling(service) as shop:
            await shop.held(await shop.theatre(), seats=["A1"])
    finally:
        service.stop()


async def test_secrets_stay_out_of_the_log(service: Service, shop: Caller) -> None:
    """Neither the shop's key nor a guest's token is ever written down."""
    async with calling(service, token="") as anonymous:
        buyer, token = await become_guest(anonymous)
    async with calling(service, token=token) as guest:
        event = await shop.theatre()
        await guest.held(event, buyer=buyer, seats=["A1"])
    written = service.log()
    assert service.key not in written
    assert token not in written
