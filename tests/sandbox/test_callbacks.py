"""Callbacks of the sandbox: sent in order, retried, and duplicated, reordered, delayed or lost by the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.sandbox.payment_methods import Method

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.gateway import Callback, CallbackRefused
from earmark.sandbox.callbacks import CallbackState
from earmark.sandbox.faults import Fault
from earmark.sandbox.sign_and_verify_callbacks import HEADER, sign

from .support import PRICE, authorised, captured, order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.clock import MovableClock
    from earmark.sandbox.gateway import SandboxGateway

CREATED, AUTHORISED, SUCCEEDED = (
    "payment_intent.created",
    "payment_intent.amount_capturable_updated",
    "payment_intent.succeeded",
)


class Shop:
    """A shop that receives callbacks and can reject some."""

    def __init__(self, gateway: SandboxGateway) -> None:
        self.accepted: list[Callback] = []
        self.rejections = 0
        self._gateway = gateway
        gateway.callbacks.deliver = self.receive

    async def receive(self, headers: Mapping[str, str], body: bytes) -> None:
        """Accept a callback, or fail as long as `rejections` are left."""
        if self.rejections:
            self.rejections -= 1
            raise ConnectionError("the shop is down")
        self.accepted.append(self._gateway.read_callback(headers, body))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the accepted callbacks, in order."""
        return [callback.kind for callback in self.accepted]


@pytest.fixture
def shop(gateway: SandboxGateway) -> Shop:
    return Shop(gateway)


async def test_every_event_is_sent_once_and_in_order(gateway: SandboxGateway, shop: Shop) -> None:
    """Callbacks are sent on demand, and no delivery is sent twice."""
    captured(gateway.bank)
    assert await gateway.callbacks.send_due(flush=True) == 3
    assert shop.kinds == [CREATED, AUTHORISED, SUCCEEDED]
    assert await gateway.callbacks.send_due(flush=True) == 0
    assert len(gateway.callbacks.in_state(CallbackState.SENT)) == 3


async def test_a_callback_has_the_ids_and_amount_of_its_payment(
    gateway: SandboxGateway, shop: Shop, clock: MovableClock
) -> None:
    """Our ids, the gateway's id, amount and currency."""
    ordered = order(clock)
    report = await gateway.authorise(ordered)
    await gateway.callbacks.send_due(flush=True)
    callback = shop.accepted[-1]
    assert callback == Callback(
        id=callback.id,
        kind=AUTHORISED,
        mode=Mode.TEST,
        payment_id=ordered.payment_id,
        booking_id=ordered.booking_id,
        gateway_id=report.gateway_id,
        amount=PRICE,
        currency="EUR",
    )


@pytest.mark.parametrize("method", [Method.VISA, Method.DISPUTE, Method.REFUND_FAIL])
async def test_a_callback_about_a_refund_or_a_dispute_leads_to_its_payment(
    gateway: SandboxGateway, shop: Shop, clock: MovableClock, method: Method
) -> None:
    """The amount of a refund or a dispute is not reported as the payment's."""
    ordered = order(clock, method)
    report = await gateway.authorise(ordered)
    await gateway.capture(ordered)
    assert report.gateway_id is not None
    if method is not Method.DISPUTE:
        gateway.bank.refund(report.gateway_id, amount=1)
    await gateway.callbacks.send_due(flush=True)
    assert {callback.payment_id for callback in shop.accepted} == {ordered.payment_id}
    assert {callback.gateway_id for callback in shop.accepted} == {report.gateway_id}
    assert {callback.amount for callback in shop.accepted} == {PRICE, None}


async def test_a_duplicate_has_the_same_id(gateway: SandboxGateway, shop: Shop) -> None:
    """A shop that stores ids handles it once."""
    gateway.script.add(Fault.DUPLICATE, AUTHORISED)
    authorised(gateway.bank)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [CREATED, AUTHORISED, AUTHORISED]
    assert shop.accepted[1] == shop.accepted[2]


async def test_a_lost_callback_is_never_sent(gateway: SandboxGateway, shop: Shop) -> None:
    """Its state is `lost`."""
    gateway.script.add(Fault.LOSE, AUTHORISED)
    captured(gateway.bank)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [CREATED, SUCCEEDED]
    assert [delivery.event.kind for delivery in gateway.callbacks.in_state(CallbackState.LOST)] == [AUTHORISED]


async def test_callbacks_can_be_reordered(gateway: SandboxGateway, shop: Shop) -> None:
    """A reordered callback is sent after the next one and before the one after that."""
    gateway.script.add(Fault.REORDER, CREATED)
    captured(gateway.bank)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [AUTHORISED, CREATED, SUCCEEDED]


async def test_a_reordered_callback_without_a_successor_is_sent_by_a_flush(gateway: SandboxGateway, shop: Shop) -> None:
    """Without a flush it waits."""
    gateway.script.add(Fault.REORDER, AUTHORISED)
    authorised(gateway.bank)
    await gateway.callbacks.send_due()
    assert shop.kinds == [CREATED]
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [CREATED, AUTHORISED]


async def test_a_callback_can_be_delayed(gateway: SandboxGateway, shop: Shop, clock: MovableClock) -> None:
    """It is signed when it is sent, or the shop would refuse it after days."""
    gateway.script.add(Fault.DELAY, AUTHORISED, seconds=3 * 86_400)
    authorised(gateway.bank)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [CREATED]
    clock.advance(3 * 86_400)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [CREATED, AUTHORISED]


async def test_a_rejected_callback_is_sent_again_later(
    gateway: SandboxGateway, shop: Shop, clock: MovableClock
) -> None:
    """After the retry time, with the same event."""
    authorised(gateway.bank, confirm=False)
    shop.rejections = 1
    assert await gateway.callbacks.send_due(flush=True) == 0
    assert [delivery.problem for delivery in gateway.callbacks.in_state(CallbackState.QUEUED)] == ["the shop is down"]
    clock.advance(gateway.callbacks.retry_seconds)
    assert await gateway.callbacks.send_due(flush=True) == 1
    assert [callback.id for callback in shop.accepted] == [gateway.bank.events[0].id]
    assert [(delivery.tries, delivery.problem) for delivery in gateway.callbacks.in_state(CallbackState.SENT)] == [
        (2, None)
    ]


async def test_a_callback_is_lost_after_the_last_attempt(gateway: SandboxGateway, shop: Shop) -> None:
    """The number of attempts is bounded."""
    gateway.callbacks.tries_max, gateway.callbacks.retry_seconds = 3, 0
    authorised(gateway.bank, confirm=False)
    shop.rejections = 100
    await gateway.callbacks.send_due(flush=True)
    (delivery,) = gateway.callbacks.deliveries
    assert (delivery.state, delivery.tries, shop.rejections) == (CallbackState.LOST, 3, 97)


async def test_a_test_can_lose_or_resend_an_event(gateway: SandboxGateway, shop: Shop) -> None:
    """In any state of its deliveries."""
    authorised(gateway.bank)
    created, later = gateway.bank.events
    assert gateway.callbacks.lose(created.id) == 1
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [AUTHORISED]
    gateway.callbacks.redeliver(created.id)
    gateway.callbacks.redeliver(later.id)
    await gateway.callbacks.send_due(flush=True)
    assert shop.kinds == [AUTHORISED, CREATED, AUTHORISED]
    with pytest.raises(KeyError):
        gateway.callbacks.redeliver("evt_none")


async def test_a_replayed_or_changed_callback_is_refused(gateway: SandboxGateway, clock: MovableClock) -> None:
    """The signature covers the body and expires."""
    authorised(gateway.bank)
    headers, body = gateway.callbacks.signed(gateway.bank.events[0])
    assert gateway.read_callback(headers, body).kind == CREATED
    with pytest.raises(CallbackRefused):
        gateway.read_callback(headers, body.replace(b"4500", b"4501"))
    clock.advance(302)
    with pytest.raises(CallbackRefused):
        gateway.read_callback(headers, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b"\xff",
        b'{"id": "evt_1"}',
        b'{"id": "evt_1", "type": "x", "livemode": false, "data": {"object": 1}}',
        b'{"id": "evt_1", "type": "x", "livemode": false, "data": {"object": {"object": "payment_intent", "id": 1}}}',
    ],
)
async def test_a_body_that_is_no_event_is_refused(gateway: SandboxGateway, clock: MovableClock, body: bytes) -> None:
    """Even with a right signature."""
    headers = {HEADER: sign(body, secret=gateway.sandbox.secret, now=clock.now())}
    with pytest.raises(CallbackRefused):
        gateway.read_callback(headers, body)


async def test_a_callback_about_another_programs_payment_has_no_id_of_ours(gateway: SandboxGateway, shop: Shop) -> None:
    """Another program may use the same gateway account."""
    authorised(gateway.bank, metadata={})
    authorised(gateway.bank, metadata={"payment_id": "theirs"})
    await gateway.callbacks.send_due(flush=True)
    assert {callback.payment_id for callback in shop.accepted} == {None}


def test_the_body_is_json(gateway: SandboxGateway) -> None:
    """The body is an Event object of Stripe's API."""
    authorised(gateway.bank)
    _, body = gateway.callbacks.signed(gateway.bank.events[1])
    event = msgspec.json.decode(body)
    assert (event["object"], event["type"], event["livemode"]) == ("event", AUTHORISED, False)
    assert event["data"]["object"]["status"] == "requires_capture"
