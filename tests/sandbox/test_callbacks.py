from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.payments.methods import Method

from earmark.engine.ports.gateway import Callback, CallbackRefused
from earmark.sandbox.callbacks import Post
from earmark.sandbox.faults import Fault
from earmark.sandbox.signature import HEADER, sign

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
    """Whoever is called."""

    def __init__(self, gateway: SandboxGateway) -> None:
        self.heard: list[Callback] = []
        self.deaf = 0
        self._gateway = gateway
        gateway.courier.deliver = self.take

    async def take(self, headers: Mapping[str, str], body: bytes) -> None:
        """Take a callback, or not."""
        if self.deaf:
            self.deaf -= 1
            raise ConnectionError("nobody is there")
        self.heard.append(self._gateway.read_callback(headers, body))

    @property
    def kinds(self) -> list[str]:
        """What was heard, in order."""
        return [callback.kind for callback in self.heard]


@pytest.fixture
def shop(gateway: SandboxGateway) -> Shop:
    return Shop(gateway)


async def test_what_happens_is_told_once_and_in_order(gateway: SandboxGateway, shop: Shop) -> None:
    """On demand; nothing is sent twice by itself."""
    captured(gateway.bank)
    assert await gateway.deliver_callbacks() == 3
    assert shop.kinds == [CREATED, AUTHORISED, SUCCEEDED]
    assert await gateway.deliver_callbacks() == 0
    assert len(gateway.courier.having(Post.SENT)) == 3


async def test_a_callback_has_the_facts_of_its_payment(
    gateway: SandboxGateway, shop: Shop, clock: MovableClock
) -> None:
    """Ours and the gateway's id, and what it is about."""
    asked = order(clock)
    report = await gateway.authorise(asked)
    await gateway.deliver_callbacks()
    callback = shop.heard[-1]
    assert callback == Callback(
        id=callback.id,
        kind=AUTHORISED,
        live=False,
        payment_id=asked.payment_id,
        booking_id=asked.booking_id,
        gateway_id=report.gateway_id,
        amount=PRICE,
        currency="EUR",
    )


@pytest.mark.parametrize("method", [Method.VISA, Method.DISPUTE, Method.REFUND_FAIL])
async def test_a_callback_about_a_refund_or_a_dispute_leads_to_its_payment(
    gateway: SandboxGateway, shop: Shop, clock: MovableClock, method: Method
) -> None:
    """Their own amount is not that of the payment, and is not told as if it were."""
    asked = order(clock, method)
    report = await gateway.authorise(asked)
    await gateway.capture(asked)
    assert report.gateway_id is not None
    if method is not Method.DISPUTE:
        gateway.bank.refund(report.gateway_id, amount=1)
    await gateway.deliver_callbacks()
    assert {callback.payment_id for callback in shop.heard} == {asked.payment_id}
    assert {callback.gateway_id for callback in shop.heard} == {report.gateway_id}
    assert {callback.amount for callback in shop.heard} == {PRICE, None}


async def test_a_duplicate_has_the_same_id(gateway: SandboxGateway, shop: Shop) -> None:
    """So that whoever remembers ids takes it once."""
    gateway.script.add(Fault.DUPLICATE, AUTHORISED)
    authorised(gateway.bank)
    await gateway.deliver_callbacks()
    assert shop.kinds == [CREATED, AUTHORISED, AUTHORISED]
    assert shop.heard[1] == shop.heard[2]


async def test_a_lost_callback_never_comes(gateway: SandboxGateway, shop: Shop) -> None:
    """It is known to have been lost."""
    gateway.script.add(Fault.LOSE, AUTHORISED)
    captured(gateway.bank)
    await gateway.deliver_callbacks()
    assert shop.kinds == [CREATED, SUCCEEDED]
    assert [letter.event.kind for letter in gateway.courier.having(Post.LOST)] == [AUTHORISED]


async def test_callbacks_may_change_places(gateway: SandboxGateway, shop: Shop) -> None:
    """What was told first comes after what was told next, and before the one after that."""
    gateway.script.add(Fault.REORDER, CREATED)
    captured(gateway.bank)
    await gateway.deliver_callbacks()
    assert shop.kinds == [AUTHORISED, CREATED, SUCCEEDED]


async def test_a_callback_that_waits_for_another_is_sent_when_there_is_none(
    gateway: SandboxGateway, shop: Shop
) -> None:
    """On demand it comes; by itself it would wait."""
    gateway.script.add(Fault.REORDER, AUTHORISED)
    authorised(gateway.bank)
    await gateway.deliver_callbacks(flush=False)
    assert shop.kinds == [CREATED]
    await gateway.deliver_callbacks()
    assert shop.kinds == [CREATED, AUTHORISED]


async def test_a_callback_may_be_late(gateway: SandboxGateway, shop: Shop, clock: MovableClock) -> None:
    """By days, if need be; then it is signed when it is sent, or nobody would take it."""
    gateway.script.add(Fault.DELAY, AUTHORISED, seconds=3 * 86_400)
    authorised(gateway.bank)
    await gateway.deliver_callbacks()
    assert shop.kinds == [CREATED]
    clock.advance(3 * 86_400)
    await gateway.deliver_callbacks()
    assert shop.kinds == [CREATED, AUTHORISED]


async def test_what_was_not_taken_is_sent_again_later(gateway: SandboxGateway, shop: Shop, clock: MovableClock) -> None:
    """Not at once, and the same event."""
    authorised(gateway.bank, confirm=False)
    shop.deaf = 1
    assert await gateway.deliver_callbacks() == 0
    assert [letter.problem for letter in gateway.courier.having(Post.QUEUED)] == ["nobody is there"]
    clock.advance(gateway.courier.retry_seconds)
    assert await gateway.deliver_callbacks() == 1
    assert [callback.id for callback in shop.heard] == [gateway.bank.events[0].id]
    assert [(letter.tries, letter.problem) for letter in gateway.courier.having(Post.SENT)] == [(2, None)]


async def test_the_bank_gives_up_on_a_shop_that_is_deaf(gateway: SandboxGateway, shop: Shop) -> None:
    """After a bounded number of tries."""
    gateway.courier.tries_max, gateway.courier.retry_seconds = 3, 0
    authorised(gateway.bank, confirm=False)
    shop.deaf = 100
    await gateway.deliver_callbacks()
    (letter,) = gateway.courier.letters
    assert (letter.state, letter.tries, shop.deaf) == (Post.LOST, 3, 97)


async def test_an_event_can_be_lost_or_sent_again_by_hand(gateway: SandboxGateway, shop: Shop) -> None:
    """Whatever became of it before."""
    authorised(gateway.bank)
    created, later = gateway.bank.events
    assert gateway.courier.lose(created.id) == 1
    await gateway.deliver_callbacks()
    assert shop.kinds == [AUTHORISED]
    gateway.courier.redeliver(created.id)
    gateway.courier.redeliver(later.id)
    await gateway.deliver_callbacks()
    assert shop.kinds == [AUTHORISED, CREATED, AUTHORISED]
    with pytest.raises(KeyError):
        gateway.courier.redeliver("evt_none")


async def test_a_callback_that_was_overheard_is_worth_nothing_later(
    gateway: SandboxGateway, clock: MovableClock
) -> None:
    """Nor is one that somebody else wrote."""
    authorised(gateway.bank)
    headers, body = gateway.courier.sealed(gateway.bank.events[0])
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
    """Even when it is signed."""
    headers = {HEADER: sign(body, secret=gateway.sandbox.secret, now=clock.now())}
    with pytest.raises(CallbackRefused):
        gateway.read_callback(headers, body)


async def test_a_callback_about_somebody_elses_payment_has_no_id_of_ours(gateway: SandboxGateway, shop: Shop) -> None:
    """Another shop may use the same account."""
    authorised(gateway.bank, metadata={})
    authorised(gateway.bank, metadata={"payment_id": "theirs"})
    await gateway.deliver_callbacks()
    assert {callback.payment_id for callback in shop.heard} == {None}


def test_the_body_is_json(gateway: SandboxGateway) -> None:
    """In the shape of an event."""
    authorised(gateway.bank)
    _, body = gateway.courier.sealed(gateway.bank.events[1])
    said = msgspec.json.decode(body)
    assert (said["object"], said["type"], said["livemode"]) == ("event", AUTHORISED, False)
    assert said["data"]["object"]["status"] == "requires_capture"
