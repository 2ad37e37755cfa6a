"""A key and its payment over HTTP: one request, from the moment that the payment is opened to the end of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.api.routes.test_payments import CALLBACK, bank, held, pay

from earmark.domain.payment import PAYING_SECONDS_MAX
from earmark.workers.old_row_janitor import Janitor

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

WAITS = "pm_card_authenticationRequired"
DAY = 86_400
LOOK_UP = "/v1/idempotency/one"


async def act(stranger: httpx2.AsyncClient, services: Services, *, succeed: bool = True) -> None:
    """The buyer does what the bank requires, and the gateway calls about it."""
    [intent] = bank(services).bank.intents()
    bank(services).bank.act(intent.id, succeed=succeed)
    headers, body = bank(services).callbacks.signed(bank(services).bank.events[-1])
    assert (await stranger.post(CALLBACK, content=body, headers=headers)).status_code == 200


async def look_up(shop: httpx2.AsyncClient) -> tuple[str, int | None, Any]:
    """What the look-up of the key returns."""
    told = (await shop.get(LOOK_UP)).json()
    return told["state"], told.get("status"), told.get("answer")


async def test_another_body_with_the_key_of_an_open_payment_is_refused_at_once(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services
) -> None:
    """And the first one is answered with the sale, whatever came between."""
    booking_id = await held(shop, event, "A1")
    assert (await pay(shop, booking_id, method=WAITS)).status_code == 202
    other = await pay(shop, booking_id)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    await act(stranger, services)
    assert (await pay(shop, booking_id)).status_code == 422
    sold = await pay(shop, booking_id, method=WAITS)
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")


@pytest.mark.parametrize("method", [WAITS, "pm_card_visa"])
async def test_a_key_pays_for_one_booking_and_after_a_day_for_another(
    shop: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock, method: str
) -> None:
    """Whether its payment has ended or was given up meanwhile."""
    await pay(shop, await held(shop, event, "A1"), method=method)
    early = await pay(shop, await held(shop, event, "A2"))
    assert (early.status_code, early.json()["code"]) == (422, "idempotency_mismatch")
    clock.advance(DAY)
    await Janitor(services.engine.store, clock=clock).tidy()
    assert await look_up(shop) == ("in_progress" if method == WAITS else "unknown", None, None)
    replayed_response = await pay(shop, await held(shop, event, "A3"))
    assert (replayed_response.status_code, replayed_response.json()["state"]) == (200, "confirmed")


@pytest.mark.parametrize("succeed", [True, False])
async def test_the_look_up_returns_the_end_that_a_callback_brought(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services, *, succeed: bool
) -> None:
    """And paying again with the key is answered with the same bytes."""
    booking_id = await held(shop, event, "A1")
    await pay(shop, booking_id, method=WAITS)
    assert await look_up(shop) == ("in_progress", None, None)
    await act(stranger, services, succeed=succeed)
    state, status, answer = await look_up(shop)
    assert (state, status) == ("done", 200 if succeed else 402)
    replayed_response = await pay(shop, booking_id, method=WAITS)
    assert (replayed_response.status_code, replayed_response.json()) == (status, answer)
    assert replayed_response.headers["Idempotency-Replayed"] == "true"
    assert await look_up(shop) == (state, status, answer)


async def test_the_look_up_returns_that_a_worker_gave_the_payment_up(
    shop: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """Such an end is not recorded: paying again is decided anew, and refused for the same reason."""
    booking_id = await held(shop, event, "A1")
    await pay(shop, booking_id, method=WAITS)
    clock.advance(PAYING_SECONDS_MAX)
    await services.payments.driver.reconcile(limit=100)
    state, status, answer = await look_up(shop)
    assert (state, status, answer["code"]) == ("done", 410, "booking_expired")
    assert (await pay(shop, booking_id, method=WAITS)).json()["code"] == "booking_expired"
