"""The metrics of the money, as Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from earmark.errors import StoreUnavailable
from earmark.observability.metrics.metrics_page import WATCH_SECONDS

if TYPE_CHECKING:
    import httpx2
    import pytest

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

ATTENTION = "earmark_payments_needing_attention"
OPEN = "earmark_payments_open"
OLDEST = "earmark_payments_open_oldest_seconds"


async def read(client: httpx2.AsyncClient, clock: MovableClock) -> dict[str, dict[str, float]]:
    """Each gauge of the money, by gateway where it has one, and by mode; some time after the last reading."""
    clock.advance(WATCH_SECONDS)
    return await read_now(client)


async def read_now(client: httpx2.AsyncClient) -> dict[str, dict[str, float]]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {
        family.name: {
            " ".join(sample.labels[name] for name in ("gateway", "mode") if name in sample.labels): sample.value
            for sample in family.samples
        }
        for family in families
        if family.name.startswith("earmark_payments")
    }


async def pay(shop: httpx2.AsyncClient, event: str, *seats: str, method: str) -> str:
    held = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": list(seats)})
    booking_id: str = held.json()["id"]
    await shop.post(f"/v1/bookings/{booking_id}/pay", json={"method": method}, headers={"Idempotency-Key": booking_id})
    return booking_id


async def refund(shop: httpx2.AsyncClient, booking_id: str) -> None:
    body: dict[str, Any] = {"amount": 4500}
    answer = await shop.post(f"/v1/bookings/{booking_id}/refunds", json=body, headers={"Idempotency-Key": "back"})
    assert answer.status_code == 201, answer.text


async def test_a_shop_in_order_shows_zero_for_each_of_its_gateways(
    stranger: httpx2.AsyncClient, clock: MovableClock
) -> None:
    """A number that is there can be alarmed on; one that is missing cannot."""
    nothing = {"live": 0, "test": 0}
    assert await read(stranger, clock) == {
        ATTENTION: {"sandbox live": 0, "sandbox test": 0},
        OPEN: nothing,
        OLDEST: nothing,
    }


async def test_a_refused_refund_fires_the_alert(
    shop: httpx2.AsyncClient, event: str, clock: MovableClock, stranger: httpx2.AsyncClient
) -> None:
    """By gateway, until an operator has settled it."""
    await refund(shop, await pay(shop, event, "A1", method="pm_card_refund_fail"))
    assert (await read(stranger, clock))[ATTENTION] == {"sandbox live": 0, "sandbox test": 1}


async def test_an_open_payment_shows_its_age(
    shop: httpx2.AsyncClient, event: str, clock: MovableClock, stranger: httpx2.AsyncClient
) -> None:
    """The oldest one's, in seconds."""
    await pay(shop, event, "A1", method="pm_card_processing")
    clock.advance(300)
    await pay(shop, event, "A2", method="pm_card_processing")
    seen = await read(stranger, clock)
    assert seen[OPEN] == {"live": 0, "test": 2}
    assert 300 <= seen[OLDEST]["test"] < 600
    assert seen[OLDEST]["live"] == 0, "a test payment does not hide a live one"


async def test_the_payments_are_counted_at_most_every_few_seconds(
    shop: httpx2.AsyncClient, event: str, clock: MovableClock, stranger: httpx2.AsyncClient
) -> None:
    """Every client may read the page."""
    await read(stranger, clock)
    await pay(shop, event, "A1", method="pm_card_processing")
    assert (await read_now(stranger))[OPEN]["test"] == 0
    assert (await read(stranger, clock))[OPEN]["test"] == 1


async def test_a_store_that_does_not_answer_leaves_the_figures_out(
    stranger: httpx2.AsyncClient, clock: MovableClock, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old zero would say that all is well. The other metrics are there."""
    await read(stranger, clock)

    async def silent(**_: object) -> None:
        raise StoreUnavailable(because="gone")

    monkeypatch.setattr(services.engine.store, "watch_money", silent)
    assert await read(stranger, clock) == {}
    assert "earmark_info" in (await stranger.get("/metrics")).text
