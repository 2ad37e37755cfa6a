"""Callbacks: believed only with the right signature over the very bytes, made now."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.payments.conftest import supporting

from earmark.engine.ports.gateway import CallbackRefused

from .support import PRICE, Group, authorised, captured, refund_of

if TYPE_CHECKING:
    from earmark.engine.ports.gateway import Callback

    from .support import Letter, World

pytestmark = supporting(Group.CALLBACKS)

WINDOW = 300
NEAR = 30
"""Off the edge of the window, so that a machine that stalls stays on its side of it."""


async def last_letter(world: World) -> Letter:
    await captured(world)
    return (await world.letters())[-1]


async def read_all(world: World) -> list[Callback]:
    return [world.gateway.read_callback(letter.headers, letter.body) for letter in await world.letters()]


async def test_a_callback_says_which_payment_it_is_about(world: World) -> None:
    """Our id, the gateway's, the amount and the currency: the facts that are compared with ours."""
    order = await authorised(world)
    callbacks = await read_all(world)
    assert callbacks
    for callback in callbacks:
        assert callback.payment_id == order.payment_id
        assert callback.gateway_id == order.gateway_id
        assert (callback.amount, callback.currency) == (PRICE, "EUR")
        assert callback.live is False
        assert callback.kind


async def test_callbacks_have_an_id_each(world: World) -> None:
    """Two events are never taken for one."""
    await captured(world)
    await captured(world)
    callbacks = await read_all(world)
    assert len({callback.id for callback in callbacks}) == len(callbacks) > 2


async def test_a_replay_has_the_same_id(world: World) -> None:
    """The same event may come any number of times: the id tells."""
    letter = await last_letter(world)
    readings = [world.gateway.read_callback(letter.headers, letter.body) for _ in range(3)]
    later = world.sign(letter.body, at=world.clock.now() + timedelta(seconds=NEAR))
    readings.append(world.gateway.read_callback(later, letter.body))
    assert len({reading.id for reading in readings}) == 1


async def test_a_callback_about_a_refund_names_its_payment_and_not_its_amount(world: World) -> None:
    """The amount of a part would not be that of the payment."""
    order = await captured(world)
    before = len(await world.letters())
    await world.gateway.refund(refund_of(order, 1000))
    later = (await read_all(world))[before:]
    assert later
    assert {callback.payment_id for callback in later} == {order.payment_id}
    assert {callback.gateway_id for callback in later} == {order.gateway_id}
    assert {callback.amount for callback in later} <= {None, PRICE}


async def test_the_names_of_headers_have_no_case(world: World) -> None:
    """Servers write them as they like."""
    letter = await last_letter(world)
    for written in (str.lower, str.upper, str.title):
        headers = {written(name): value for name, value in letter.headers.items()}
        assert world.gateway.read_callback(headers, letter.body).id


async def test_a_body_that_was_tampered_with_is_refused(world: World) -> None:
    """One byte is enough, even one that means nothing."""
    letter = await last_letter(world)
    for body in (
        letter.body.replace(b"4500", b"4501"),
        letter.body + b" ",
        letter.body[:-1],
        b"",
        b"\xff" + letter.body,
    ):
        assert body != letter.body
        with pytest.raises(CallbackRefused):
            world.gateway.read_callback(letter.headers, body)


async def test_a_signature_with_another_secret_is_refused(world: World) -> None:
    """Only the gateway has ours."""
    letter = await last_letter(world)
    headers = world.sign(letter.body, at=world.clock.now(), secret="whsec_of_somebody_else")
    with pytest.raises(CallbackRefused):
        world.gateway.read_callback(headers, letter.body)
    assert world.gateway.read_callback(world.sign(letter.body, at=world.clock.now()), letter.body).id


async def test_a_callback_without_a_signature_is_refused(world: World) -> None:
    """And so is one whose signature is none."""
    letter = await last_letter(world)
    [(name, value)] = [pair for pair in letter.headers.items() if "signature" in pair[0].lower()]
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
    assert world.gateway.read_callback({name: value}, letter.body).id
    for header in wrong:
        with pytest.raises(CallbackRefused):
            world.gateway.read_callback({name: header}, letter.body)
    with pytest.raises(CallbackRefused):
        world.gateway.read_callback({}, letter.body)


@pytest.mark.parametrize("seconds", [-WINDOW - NEAR, WINDOW + NEAR, -86_400, 86_400])
async def test_a_callback_from_another_time_is_refused(world: World, seconds: int) -> None:
    """An old one may be a replay by somebody who listened, and one from the future is stored up for later."""
    letter = await last_letter(world)
    headers = world.sign(letter.body, at=world.clock.now() + timedelta(seconds=seconds))
    with pytest.raises(CallbackRefused):
        world.gateway.read_callback(headers, letter.body)


@pytest.mark.parametrize("seconds", [NEAR - WINDOW, WINDOW - NEAR])
async def test_clocks_may_differ_a_little(world: World, seconds: int) -> None:
    """Within the window it is taken."""
    letter = await last_letter(world)
    headers = world.sign(letter.body, at=world.clock.now() + timedelta(seconds=seconds))
    assert world.gateway.read_callback(headers, letter.body).id


async def test_a_signature_is_taken_among_several(world: World) -> None:
    """While a secret is being exchanged, callbacks are signed with both."""
    letter = await last_letter(world)
    now = world.clock.now()
    [(name, ours)] = [pair for pair in world.sign(letter.body, at=now).items() if "signature" in pair[0].lower()]
    other = next(value for value in world.sign(letter.body, at=now, secret="whsec_new").values() if "v1=" in value)
    both = f"{other},{ours.partition(',')[2]}"
    assert world.gateway.read_callback({name: both}, letter.body).id


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'"event"', b'{"id": 1}', b"\xff\xfe"])
async def test_a_signed_body_that_is_no_event_is_refused(world: World, body: bytes) -> None:
    """Whoever signed it, there is nothing to read."""
    headers = world.sign(body, at=world.clock.now())
    with pytest.raises(CallbackRefused):
        world.gateway.read_callback(headers, body)
