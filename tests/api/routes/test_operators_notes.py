"""What operators typed is for the shop: a buyer reads what happened, and not their notes about it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx2
import msgspec
import pytest
from tests.api.routes.test_payments import pay

from earmark.api.app import create_app
from earmark.domain.id_types import BookingId, Buyer
from earmark.domain.payment import PaymentState, SettledAs
from earmark.engine.commands_and_results import Decided, PayResult
from earmark.payments import change_payment_without_report
from earmark.payments.choose_gateway_and_pay import PaymentService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

NOTE = "Rude on the phone, suspected reseller."


@pytest.fixture
async def alice(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    token = services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=7200)
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        yield client


async def settle(services: Services, booking_id: str, how: SettledAs) -> None:
    """As `earmark payments settle` does."""
    [(payment, _)] = await services.engine.store.list_payments(BookingId(UUID(booking_id)))
    assert payment.state is PaymentState.NEEDS_ATTENTION
    about = await services.engine.store.read_payment_snapshot(payment.id)
    assert about is not None
    ids = services.engine.ids
    await services.engine.transact(
        partial(change_payment_without_report.resolve_by_hand, how=how, note=NOTE, about=about, ids=ids)
    )


async def sold(alice: httpx2.AsyncClient, event: str, **how: Any) -> str:
    held = await alice.post("/v1/bookings", json={"event_id": event, "seats": ["A1", "A2"]})
    booking_id: str = held.json()["id"]
    assert (await pay(alice, booking_id, **how)).status_code == 200
    return booking_id


def paths(booking_id: str, event: str) -> list[str]:
    own = [f"/v1/bookings/{booking_id}{call}" for call in ("", "/history", "/payments")]
    return [*own, f"/v1/events/{event}/seats/A1/explain", f"/v1/events/{event}/seats/A1", "/v1/bookings"]


async def test_the_note_of_the_operator_who_settled_a_payment_is_for_the_shop(
    services: Services, shop: httpx2.AsyncClient, alice: httpx2.AsyncClient, event: str
) -> None:
    """The buyer reads that it was settled, in the history and in the payment; the shop reads why."""
    booking_id = await sold(alice, event, method="pm_card_refund_fail")
    refund = {"amount": 9000, "reason": NOTE}
    path = f"/v1/bookings/{booking_id}"
    assert (await shop.post(f"{path}/refunds", json=refund, headers={"Idempotency-Key": "back"})).status_code == 201
    await settle(services, booking_id, SettledAs.REFUNDED)
    for asked in paths(booking_id, event):
        assert NOTE not in (await alice.get(asked)).text, asked
    theirs = (await alice.get(f"{path}/history")).json()["entries"]
    ours = (await shop.get(f"{path}/history")).json()["entries"]
    assert [entry | {"reason": None} for entry in ours] == [entry | {"reason": None} for entry in theirs]
    assert (ours[-1]["actor"], ours[-1]["reason"], theirs[-1]["reason"]) == ("operator", NOTE, None)
    [payment] = (await alice.get(f"{path}/payments")).json()["payments"]
    assert (payment["state"], payment["message"]) == ("settled", None)
    [payment] = (await shop.get(f"{path}/payments")).json()["payments"]
    assert payment["message"] == NOTE, "the control: the shop sees what was typed"


async def test_what_a_shop_says_of_a_cancel_or_a_refund_is_for_its_journal(
    shop: httpx2.AsyncClient, alice: httpx2.AsyncClient, event: str
) -> None:
    """Also where the gateway's report of the refund repeats it."""
    booking_id = await sold(alice, event)
    path = f"/v1/bookings/{booking_id}"
    key = {"Idempotency-Key": "back"}
    assert (await shop.post(f"{path}/refunds", json={"amount": 100, "reason": NOTE}, headers=key)).status_code == 201
    assert (await shop.post(f"{path}/cancel", json={"reason": NOTE, "refund": "full"})).status_code == 200
    for asked in paths(booking_id, event):
        assert NOTE not in (await alice.get(asked)).text, asked
    reasons = [entry["reason"] for entry in (await shop.get(f"{path}/history")).json()["entries"]]
    assert reasons.count(NOTE) >= 3, "the control: both are in the journal, and in what the gateway reported"


async def test_a_repeat_of_pay_shows_a_buyer_no_note(
    services: Services, alice: httpx2.AsyncClient, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a payment that was settled meanwhile has the payment in it."""
    booking_id = await sold(alice, event, method="pm_card_refund_fail")
    [(payment, _)] = await services.engine.store.list_payments(BookingId(UUID(booking_id)))
    now, booking = await services.engine.store.read_booking(BookingId(UUID(booking_id)))
    assert booking is not None
    settled = msgspec.structs.replace(payment, state=PaymentState.SETTLED, code="kept_by_hand", message=NOTE)

    async def settled_answer(*_: object) -> Decided:
        return Decided(value=PayResult(booking=booking, payment=settled), now=now)

    monkeypatch.setattr(PaymentService, "pay", settled_answer)
    answer = await pay(alice, booking_id, key="another")
    assert (answer.status_code, answer.json()["payment"]["message"]) == (200, None)


async def test_a_buyer_reads_the_reasons_that_earmark_gives(
    services: Services, alice: httpx2.AsyncClient, event: str, clock: MovableClock
) -> None:
    """That a hold was swept, or a card declined, is no note."""
    held = await alice.post("/v1/bookings", json={"event_id": event, "seats": ["A3"]})
    path = f"/v1/bookings/{held.json()['id']}"
    assert (await pay(alice, held.json()["id"], method="pm_card_insufficient_funds")).status_code == 402
    clock.advance(3600)
    assert await services.engine.expire(limit=9)
    reasons = [entry["reason"] for entry in (await alice.get(f"{path}/history")).json()["entries"]]
    assert {"insufficient_funds", "swept"} <= set(reasons)
