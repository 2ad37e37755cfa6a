"""Rules for callbacks: accepted only with a right signature of exactly these bytes and of the current time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.payments.gateways.conftest import supporting

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.ports.gateway import CallbackRefused

from .harness import PRICE, Group, authorised, captured, refund_of

if TYPE_CHECKING:
    from earmark.engine.ports.gateway import Callback

    from .harness import GatewayHarness, SignedCallback

pytestmark = supporting(Group.CALLBACKS)

WINDOW = 300
NEAR = 30
"""Distance from the edge of the window, so that a slow machine does not cross it."""


async def last_callback(harness: GatewayHarness) -> SignedCallback:
    await captured(harness)
    return (await harness.callbacks())[-1]


async def read_all(harness: GatewayHarness) -> list[Callback]:
    return [harness.gateway.read_callback(callback.headers, callback.body) for callback in await harness.callbacks()]


async def test_a_callback_says_which_payment_it_is_about(harness: GatewayHarness) -> None:
    """It has our id, the gateway's id, the amount and the currency, which are compared with our record."""
    order = await authorised(harness)
    callbacks = await read_all(harness)
    assert callbacks
    for callback in callbacks:
        assert callback.payment_id == order.payment_id
        assert callback.gateway_id == order.gateway_id
        assert (callback.amount, callback.currency) == (PRICE, "EUR")
        assert callback.mode is Mode.TEST
        assert callback.kind


async def test_every_callback_has_its_own_id(harness: GatewayHarness) -> None:
    """Two events never have the same id."""
    await captured(harness)
    await captured(harness)
    callbacks = await read_all(harness)
    assert len({callback.id for callback in callbacks}) == len(callbacks) > 2


async def test_a_replay_has_the_same_id(harness: GatewayHarness) -> None:
    """The same event may be sent any number of times, always with the same id."""
    callback = await last_callback(harness)
    readings = [harness.gateway.read_callback(callback.headers, callback.body) for _ in range(3)]
    later = harness.sign(callback.body, at=harness.clock.now() + timedelta(seconds=NEAR))
    readings.append(harness.gateway.read_callback(later, callback.body))
    assert len({reading.id for reading in readings}) == 1


async def test_a_callback_about_a_refund_names_its_payment_and_not_its_amount(harness: GatewayHarness) -> None:
    """The amount of a refund is not the amount of the payment."""
    order = await captured(harness)
    before = len(await harness.callbacks())
    await harness.gateway.refund(refund_of(order, 1000))
    later = (await read_all(harness))[before:]
    assert later
    assert {callback.payment_id for callback in later} == {order.payment_id}
    assert {callback.gateway_id for callback in later} == {order.gateway_id}
    assert {callback.amount for callback in later} <= {None, PRICE}


async def test_header_names_are_case_insensitive(harness: GatewayHarness) -> None:
    """HTTP header names are case-insensitive."""
    callback = await last_callback(harness)
    for written in (str.lower, str.upper, str.title):
        headers = {written(name): value for name, value in callback.headers.items()}
        assert harness.gateway.read_callback(headers, callback.body).id


async def test_a_body_that_was_tampered_with_is_refused(harness: GatewayHarness) -> None:
    """One changed byte is enough, even a space."""
    callback = await last_callback(harness)
    for body in (
        callback.body.replace(b"4500", b"4501"),
        callback.body + b" ",
        callback.body[:-1],
        b"",
        b"\xff" + callback.body,
    ):
        assert body != callback.body
        with pytest.raises(CallbackRefused):
            harness.gateway.read_callback(callback.headers, body)


async def test_a_signature_with_another_secret_is_refused(harness: GatewayHarness) -> None:
    """Only the gateway has the shop's secret."""
    callback = await last_callback(harness)
    headers = harness.sign(callback.body, at=harness.clock.now(), secret="whsec_of_another_shop")
    with pytest.raises(CallbackRefused):
        harness.gateway.read_callback(headers, callback.body)
    assert harness.gateway.read_callback(harness.sign(callback.body, at=harness.clock.now()), callback.body).id


async def test_a_callback_without_a_signature_is_refused(harness: GatewayHarness) -> None:
    """A malformed signature is refused too."""
    callback = await last_callback(harness)
    [(name, value)] = [pair for pair in callback.headers.items() if "signature" in pair[0].lower()]
    moment, _, signature = value.partition(",")
    wrong = [
        "",
        "v1",
        "t=,v1=",
        moment,
        signature,
        f"{moment},v0={signature[3:]}",
        f"t=soon,{signature}",
        "é",
        "t=1,v1=é",
    ]
    assert harness.gateway.read_callback({name: value}, callback.body).id
    for header in wrong:
        with pytest.raises(CallbackRefused):
            harness.gateway.read_callback({name: header}, callback.body)
    with pytest.raises(CallbackRefused):
        harness.gateway.read_callback({}, callback.body)


@pytest.mark.parametrize("seconds", [-WINDOW - NEAR, WINDOW + NEAR, -86_400, 86_400])
async def test_a_callback_from_another_time_is_refused(harness: GatewayHarness, seconds: int) -> None:
    """An old signature may be a replay; one from the future could be replayed for longer."""
    callback = await last_callback(harness)
    headers = harness.sign(callback.body, at=harness.clock.now() + timedelta(seconds=seconds))
    with pytest.raises(CallbackRefused):
        harness.gateway.read_callback(headers, callback.body)


@pytest.mark.parametrize("seconds", [NEAR - WINDOW, WINDOW - NEAR])
async def test_clocks_may_differ_a_little(harness: GatewayHarness, seconds: int) -> None:
    """A signature within the window is accepted."""
    callback = await last_callback(harness)
    headers = harness.sign(callback.body, at=harness.clock.now() + timedelta(seconds=seconds))
    assert harness.gateway.read_callback(headers, callback.body).id


async def test_one_right_signature_among_several_is_accepted(harness: GatewayHarness) -> None:
    """While a secret is being replaced, callbacks are signed with both."""
    callback = await last_callback(harness)
    now = harness.clock.now()
    [(name, ours)] = [pair for pair in harness.sign(callback.body, at=now).items() if "signature" in pair[0].lower()]
    other = next(value for value in harness.sign(callback.body, at=now, secret="whsec_new").values() if "v1=" in value)
    both = f"{other},{ours.partition(',')[2]}"
    assert harness.gateway.read_callback({name: both}, callback.body).id


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'"event"', b'{"id": 1}', b"\xff\xfe"])
async def test_a_signed_body_that_is_no_event_is_refused(harness: GatewayHarness, body: bytes) -> None:
    """The signature is right, but the body is not an event."""
    headers = harness.sign(body, at=harness.clock.now())
    with pytest.raises(CallbackRefused):
        harness.gateway.read_callback(headers, body)
