"""The requests that attacks on payments send: one payment, as bytes or by a client, and the count of those opened."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from earmark.bench.http_bytes import request
from earmark.domain.live_or_test_mode import Mode

if TYPE_CHECKING:
    import httpx2

    from earmark.bench.attacks.attacked_server import AttackedServer

GOOD = "pm_card_visa"
"""A method with which a payment succeeds."""


def pay(booking: str, body: object, *, key: str | None = None, **credential: Any) -> bytes:
    """A request to pay; with a new idempotency key unless one is given."""
    return request("POST", f"/v1/bookings/{booking}/pay", key=key or secrets.token_hex(8), json=body, **credential)


async def send_payment(
    server: AttackedServer, booking: str, body: object, *, key: str | None = None, **credential: Any
) -> httpx2.Response:
    """The same request, sent by a well-behaved client."""
    path = f"/v1/bookings/{booking}/pay"
    return await server.send("POST", path, key=key or secrets.token_hex(8), json=body, **credential)


async def count_payments(server: AttackedServer, booking: str, *, mode: Mode = Mode.TEST) -> int:
    """The payments that the server has opened for a booking."""
    bearer = server.live_key if mode is Mode.LIVE else server.shop_key
    return len((await server.send("GET", f"/v1/bookings/{booking}/payments", bearer=bearer)).json()["payments"])


def forwarded(number: int) -> dict[str, str]:
    """An address of its own, as the trusted proxy reports it, so that one attack does not use up another's limit."""
    return {"X-Forwarded-For": f"203.0.113.{number}"}
