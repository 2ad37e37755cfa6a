"""Which gateway takes the money, and when, is the shop's choice: a buyer who could choose could pin seats for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.api.conftest import KEY
from tests.api.routes.test_payments import bank, held, pay

from earmark import config
from earmark.api.open_services_for_handlers import open_services
from earmark.domain.payment import PAYING_SECONDS_MAX, Capture
from earmark.errors import SetupError
from earmark.wiring.gateways import capture_for

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

SEATS = ("A1", "A2", "A3", "B1", "B2", "B3")
PROCESSING = "pm_card_processing"
DAY = 86_400


async def guest_hold(stranger: httpx2.AsyncClient, event: str) -> str:
    """A guest who holds every seat."""
    assert (await stranger.post("/v1/guests")).status_code == 201
    booking_id: str = (await stranger.post("/v1/bookings", json={"event_id": event, "seats": SEATS})).json()["id"]
    return booking_id


async def days_pass(services: Services, clock: MovableClock, *, days: int = 30) -> None:
    """The reconciler and the sweeper work, hour after hour of the first day and then once a day."""
    for seconds in [600] * 12 + [DAY] * days:
        clock.advance(seconds)
        await services.payments.driver.reconcile(limit=100)
        await services.engine.expire(limit=100)


async def states(shop: httpx2.AsyncClient, event: str) -> set[str]:
    """What the seats of the event are to a buyer."""
    return {seat["state"] for seat in (await shop.get(f"/v1/events/{event}/seats")).json()["seats"]}


@pytest.mark.parametrize("named", [{"capture": "automatic"}, {"capture": "manual"}, {"gateway": "sandbox"}])
async def test_a_guest_does_not_choose_the_gateway_or_when_it_takes_the_money(
    stranger: httpx2.AsyncClient, event: str, named: dict[str, str]
) -> None:
    """422 that names the field; the hold stays payable and releasable."""
    booking_id = await guest_hold(stranger, event)
    no = await pay(stranger, booking_id, method=PROCESSING, **named)
    [field] = named
    told = {"path": field, "message": "is chosen by the shop, so a buyer's request leaves it out"}
    assert (no.status_code, no.json()["code"], no.json()["errors"]) == (422, "invalid_request", [told])
    assert (await stranger.post(f"/v1/bookings/{booking_id}/release", json={})).json()["state"] == "released"


async def test_a_guest_whose_payment_never_ends_loses_the_seats(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """With manual capture the hour is the end of it, whatever the gateway says."""
    booking_id = await guest_hold(stranger, event)
    assert (await pay(stranger, booking_id, method=PROCESSING)).status_code == 202
    assert await states(shop, event) == {"held"}
    for _ in range(PAYING_SECONDS_MAX // 300 + 1):
        clock.advance(300)
        await services.payments.driver.reconcile(limit=100)
    assert (await shop.get(f"/v1/bookings/{booking_id}")).json()["state"] == "expired"
    assert await states(shop, event) == {"available"}


async def test_control_a_guest_with_automatic_capture_would_pin_seats_for_ever(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """The control: where the gateway captures by itself, only its own answer ends the wait."""
    services.payments.capture = Capture.AUTOMATIC
    booking_id = await guest_hold(stranger, event)
    assert (await pay(stranger, booking_id, method=PROCESSING)).status_code == 202
    await days_pass(services, clock)
    assert await states(shop, event) == {"held"}
    assert (await shop.get(f"/v1/bookings/{booking_id}/payments")).json()["payments"][0]["state"] == "needs_attention"


async def test_a_key_of_the_shop_chooses_both(shop: httpx2.AsyncClient, event: str, services: Services) -> None:
    """The scope `sell` acts for the shop."""
    booking_id = await held(shop, event, "A1")
    sold = await pay(shop, booking_id, capture="automatic", gateway="sandbox")
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")
    [intent] = bank(services).bank.intents()
    assert intent.automatic


@pytest.mark.parametrize("capture", Capture)
async def test_where_nothing_is_named_the_setting_says_when_money_is_taken(
    stranger: httpx2.AsyncClient, event: str, services: Services, capture: Capture
) -> None:
    """`EARMARK_CAPTURE` holds for guests and for keys that do not say."""
    services.payments.capture = capture
    assert (await pay(stranger, await guest_hold(stranger, event))).json()["state"] == "confirmed"
    [intent] = bank(services).bank.intents()
    assert intent.automatic is (capture is Capture.AUTOMATIC)


async def test_the_setting_reaches_the_server() -> None:
    """Of `serve`, as the environment says."""
    said = {"EARMARK_CAPTURE": "automatic", "EARMARK_DATABASE_URL": "memory:", "EARMARK_ADMIN_KEY": KEY}
    async with open_services(config.read(said)) as server:
        assert server.services.payments.capture is Capture.AUTOMATIC


def test_a_setting_that_is_neither_is_refused_with_what_it_may_be() -> None:
    """Before anything is sold."""
    with pytest.raises(SetupError, match="EARMARK_CAPTURE is one of manual, automatic, not 'later'"):
        capture_for(config.read({"EARMARK_CAPTURE": "later"}))
