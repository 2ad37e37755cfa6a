"""Declines by the buyers' address: counted where an operator has configured the proxies in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator
from earmark.domain.default_limits_for_all_events import Policy

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services

KEY = "ek_test_0123456789abcdef"


@pytest.fixture
def bounded(services: Services) -> Services:
    """A server whose operator has configured one proxy in front."""
    services.engine.policy = Policy(declines_per_buyer_max=None, declines_per_hold_max=None, declines_per_address_max=2)
    return msgspec.structs.replace(services, guests=True, trust_proxy=1, counts_addresses=True)


async def declined(
    services: Services, seat: str, event: str, *, address: str, as_key: str | None = None
) -> httpx2.Response:
    """One more guest, or the shop's own server, pays with a card that is declined."""
    transport = httpx2.ASGITransport(app=create_app(services))
    headers = {"X-Forwarded-For": address} | ({"Authorization": f"Bearer {as_key}"} if as_key else {})
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example", headers=headers) as client:
        if as_key is None:
            assert (await client.post("/v1/guests")).status_code == 201
        body: dict[str, Any] = {"event_id": event, "seats": [seat]} | ({"buyer": seat} if as_key else {})
        held = (await client.post("/v1/bookings", json=body)).json()
        return await client.post(
            f"/v1/bookings/{held['id']}/pay",
            json={"method": "pm_card_declined"},
            headers={"Idempotency-Key": f"pay-{seat}"},
        )


async def codes(services: Services, event: str, *addresses: str, **how: Any) -> list[int]:
    """What each is answered in turn, every one with a hold of their own."""
    seats = ("A1", "A2", "A3", "B1", "B2")
    answers = [
        await declined(services, seat, event, address=address, **how)
        for seat, address in zip(seats, addresses, strict=False)
    ]
    return [answer.status_code for answer in answers]


async def test_guests_at_one_address_are_bounded_together(bounded: Services, event: str) -> None:
    """409, with Retry-After; another address is not affected."""
    assert await codes(bounded, event, "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2") == [402, 402, 409, 402]
    last = await declined(bounded, "B2", event, address="192.0.2.1")
    assert (last.status_code, last.json()["code"], last.json()["per"]) == (409, "too_many_declines", "address")
    assert 0 < int(last.headers["Retry-After"]) <= 3600
    assert last.json()["detail"] == "Your payments were declined too often. Please try again later."


async def test_a_network_of_ipv6_counts_as_one(bounded: Services, event: str) -> None:
    """A household has more addresses than there are cards."""
    same, other = ("2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:2:ffff::3"), "2001:db8:1:3::1"
    assert await codes(bounded, event, *same, other) == [402, 402, 409, 402]


async def test_a_key_of_the_shop_is_not_bounded_by_its_address(bounded: Services, event: str) -> None:
    """All buyers of the shop come from its server."""
    assert await codes(bounded, event, *["192.0.2.1"] * 4, as_key=KEY) == [402] * 4


async def test_behind_a_proxy_that_is_not_configured_no_address_is_counted(bounded: Services, event: str) -> None:
    """The control: all buyers would share the proxy's."""
    unsaid = msgspec.structs.replace(bounded, trust_proxy=0, counts_addresses=False)
    assert await codes(unsaid, event, *["192.0.2.1"] * 4) == [402] * 4


def test_the_stored_name_of_an_address_contains_no_address() -> None:
    """It is the same for all servers of a shop, and another for the next shop."""
    one, twin, other = (Authenticator(admin_key=key) for key in (KEY, KEY, KEY + "0"))
    name = one.pseudonym("192.0.2.1")
    assert (name, len(name)) == (twin.pseudonym("192.0.2.1"), 32)
    assert name not in {one.pseudonym("192.0.2.2"), other.pseudonym("192.0.2.1")}
