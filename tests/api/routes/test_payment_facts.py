"""A payment has the gateway's id of it and when the gateway decided, and so has each refund of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.api.routes.test_payments import bank, pay

from earmark.api.app import create_app
from earmark.domain.id_types import Buyer
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

WHY = "Rude on the phone."


@pytest.fixture
async def alice(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    token = services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=7200)
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        yield client


async def held(buyer: httpx2.AsyncClient, event: str, *seats: str) -> str:
    answer = await buyer.post("/v1/bookings", json={"event_id": event, "seats": list(seats)})
    booking_id: str = answer.json()["id"]
    return booking_id


async def listed(caller: httpx2.AsyncClient, booking_id: str) -> list[dict[str, Any]]:
    payments: list[dict[str, Any]] = (await caller.get(f"/v1/bookings/{booking_id}/payments")).json()["payments"]
    return payments


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_payment_has_the_gateways_id_and_when_it_was_processed(
    alice: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """The buyer reads both: with them a bank or a support team finds the charge, and they give no access."""
    booking_id = await held(alice, event, "A1")
    clock.advance(seconds=30)
    began = clock.now()
    paid = (await pay(alice, booking_id)).json()["payment"]
    [intent] = bank(services).bank.intents()
    assert paid["gateway_id"] == intent.id
    assert began <= moment(paid["processed_at"]) <= clock.now()
    clock.advance(seconds=30)
    [replayed_response] = await listed(alice, booking_id)
    assert (replayed_response["gateway_id"], replayed_response["processed_at"], replayed_response["refunds"]) == (
        intent.id,
        paid["processed_at"],
        [],
    )


async def test_a_payment_that_is_being_decided_was_not_processed_yet(
    alice: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """The gateway has a name for it already. It is processed when that has decided, and not when it was opened."""
    booking_id = await held(alice, event, "A1")
    waiting = (await pay(alice, booking_id, method="pm_card_authenticationRequired")).json()["payment"]
    assert waiting["gateway_id"]
    assert waiting["processed_at"] is None
    clock.advance(seconds=40)
    bank(services).bank.act(waiting["gateway_id"], succeed=True)
    sold = (await pay(alice, booking_id, method="pm_card_authenticationRequired")).json()["payment"]
    assert moment(sold["processed_at"]) - moment(sold["created_at"]) >= timedelta(seconds=40)


async def test_a_decline_is_a_decision_too(alice: httpx2.AsyncClient, event: str, clock: MovableClock) -> None:
    """The list of payments shows when it was."""
    booking_id, began = await held(alice, event, "A1"), clock.now()
    assert (await pay(alice, booking_id, method="pm_card_insufficient_funds")).status_code == 402
    [declined] = await listed(alice, booking_id)
    assert declined["state"] == "failed"
    assert began <= moment(declined["processed_at"]) <= clock.now()


async def test_refunds_are_listed_with_the_same(
    shop: httpx2.AsyncClient, alice: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """Each with its own id and moment. An operator's note is for the shop."""
    booking_id = await held(alice, event, "A1")
    sold = (await pay(alice, booking_id)).json()["payment"]
    clock.advance(seconds=60)
    began = clock.now()
    body, key = {"amount": 1000, "reason": WHY}, {"Idempotency-Key": "back"}
    assert (await shop.post(f"/v1/bookings/{booking_id}/refunds", json=body, headers=key)).status_code == 201
    [payment] = await listed(shop, booking_id)
    [refund] = payment["refunds"]
    [made] = bank(services).bank.refunds(payment["gateway_id"])
    assert (refund["gateway_id"], refund["amount"], refund["state"], refund["reason"]) == (made.id, 1000, "done", WHY)
    assert began <= moment(refund["processed_at"]) <= clock.now()
    assert payment["processed_at"] == sold["processed_at"], "a refund is a decision of its own"
    [theirs] = await listed(alice, booking_id)
    assert theirs == payment | {"refunds": [refund | {"reason": None}]}


def test_an_answer_of_before_is_still_read() -> None:
    """A repeat gets the first answer byte for byte, which an older server may have given without these fields."""
    old = b"""{"id": "p", "booking_id": "b", "gateway": "stripe", "method": "pm", "state": "captured",
               "amount": {"amount": 1, "currency": "EUR"}, "captured": 1, "refunding": 0, "refunded": 0, "code": null,
               "message": null, "action": null, "created_at": "2030-01-01T00:00:00Z"}"""
    read = msgspec.json.decode(old, type=responses.Payment)
    assert (read.gateway_id, read.processed_at) == (None, None)
    line = msgspec.json.decode(b'{"id": "A1", "price": 4500}', type=responses.SeatLine)
    assert (line.row, line.number, line.section) == (None, None, None)
