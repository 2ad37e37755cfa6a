"""Which request a key opened a payment with, on each of the stores: also for another process, and after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.money.scripted_gateway import AUTHORISED, DECLINED, PROCESSING

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.payment import payment_id_for
from earmark.engine.commands_and_results import KeyedRequest, Pay
from earmark.engine.engine import Engine
from earmark.errors import IdempotencyMismatch
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.open_and_conclude_payment import open_payment

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.booking import Booking

KEY = IdempotencyKey("key:shop", "basket-7")
DAY = 86_400


def command_of(shop: Shop, booking: Booking, *, body: str = "visa", key: IdempotencyKey = KEY, **how: Any) -> Pay:
    """A request to pay, as the server makes it."""
    request_hash = f"pay {booking.id} {body}".encode()
    idempotency = KeyedRequest(
        key=key, request_hash=request_hash, write=lambda paid, _: (200, paid.booking.state.value.encode())
    )
    told: dict[str, Any] = {
        "payment_id": payment_id_for(key, booking.id),
        "gateway": "scripted",
        "method": "card",
        "idempotency": idempotency,
    }
    return Pay(**shop.about(booking), **(told | how))


async def pay(shop: Shop, ask: Pay, *, driver: PaymentDriver | None = None) -> Any:
    """By this process or another."""
    return await (driver or shop.driver).open_and_drive(ask, within=30)


def another_process(shop: Shop) -> PaymentDriver:
    """A process that knows nothing but what is stored."""
    return PaymentDriver(Engine(shop.store, ids=shop.engine.ids), {"scripted": shop.gateway})


async def test_another_request_with_the_key_is_refused_by_every_process(shop: Shop) -> None:
    """While the payment is open, and when it has ended."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    await pay(shop, command_of(shop, held))
    for driver in (shop.driver, another_process(shop)):
        with pytest.raises(IdempotencyMismatch):
            await pay(shop, command_of(shop, held, body="mastercard"), driver=driver)
    shop.gateway.says["status"] = AUTHORISED
    await shop.reconcile(seconds=60)
    with pytest.raises(IdempotencyMismatch):
        await pay(shop, command_of(shop, held, body="mastercard"))
    assert (await pay(shop, command_of(shop, held))).record.body == b"confirmed"


async def test_another_request_with_the_key_is_refused_after_a_crash(shop: Shop) -> None:
    """The process was killed when the payment was recorded and its gateway not called yet."""
    held = await shop.hold("A1")
    await open_payment(shop.engine, command_of(shop, held))
    driver = another_process(shop)
    with pytest.raises(IdempotencyMismatch):
        await pay(shop, command_of(shop, held, body="mastercard"), driver=driver)
    assert shop.gateway.calls == []
    assert (await pay(shop, command_of(shop, held), driver=driver)).record.body == b"confirmed"


async def test_without_the_record_another_request_takes_the_key_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the second request is bound to the key, and the first one is refused."""
    held = await shop.hold("A1")
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING}
    await pay(shop, command_of(shop, held))
    monkeypatch.setattr("earmark.payments.open_and_conclude_payment._refuse_another", lambda *_, **__: None)
    shop.gateway.says["status"] = AUTHORISED
    assert (await pay(shop, command_of(shop, held, body="mastercard"))).record.body == b"confirmed"
    with pytest.raises(IdempotencyMismatch):
        await pay(shop, command_of(shop, held))


async def test_a_key_pays_for_another_booking_when_its_time_is_over(shop: Shop) -> None:
    """And not before."""
    first, second = await shop.hold("A1"), await shop.hold("A2")
    shop.gateway.says |= {"authorise": DECLINED}
    await open_payment(shop.engine, command_of(shop, first))
    with pytest.raises(IdempotencyMismatch):
        await pay(shop, command_of(shop, second))
    await shop.reconcile(seconds=DAY)
    third = await shop.hold("A2")
    shop.gateway.says |= {"authorise": AUTHORISED}
    assert (await pay(shop, command_of(shop, third))).record.body == b"confirmed"
