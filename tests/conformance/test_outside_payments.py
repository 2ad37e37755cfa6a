"""A payment reference that a shop gives at confirm is unique within its mode, over every store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor
from earmark.errors import PaymentUsed

from .conftest import BEHIND_A_POOLER_TOO, SHOP

if TYPE_CHECKING:
    from earmark.domain.booking import Booking

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_TOO]

TESTER = Actor(name="tester", mode=Mode.TEST)
MODES = pytest.mark.parametrize("first, second", [(TESTER, SHOP), (SHOP, TESTER)], ids=["test first", "live first"])


async def hold(shop: Shop, actor: Actor, *seats: str) -> Booking:
    """In the event of the actor's mode."""
    return await shop.hold("ada", *seats, event_id="concert" if actor.mode is Mode.LIVE else "rehearsal", actor=actor)


@pytest.fixture
async def two_modes(shop: Shop) -> Shop:
    """A shop that sells a concert and tries a rehearsal of it."""
    await shop.create()
    await shop.create("rehearsal", mode=Mode.TEST)
    return shop


@MODES
async def test_a_reference_confirms_one_booking_in_each_mode(two_modes: Shop, first: Actor, second: Actor) -> None:
    """What was tried with `till-1` does not keep the shop's own `till-1` from confirming, nor the other way round."""
    for actor in (first, second):
        held = await hold(two_modes, actor, "A1")
        sold = await two_modes.confirm(held, "till-1", actor=actor)
        assert (sold.state, sold.payment_id, sold.mode) == (State.CONFIRMED, "till-1", actor.mode)
        assert await two_modes.confirm(held, "till-1", actor=actor) == sold


@MODES
async def test_within_a_mode_the_second_booking_is_still_refused(two_modes: Shop, first: Actor, second: Actor) -> None:
    """Also where the other mode has used the reference before, or after."""
    for actor in (first, second):
        await two_modes.confirm(await hold(two_modes, actor, "A1"), "till-1", actor=actor)
    for actor in (first, second):
        held = await hold(two_modes, actor, "A2")
        with pytest.raises(PaymentUsed) as refused:
            await two_modes.confirm(held, "till-1", actor=actor)
        assert refused.value.payment_id == "till-1"
        assert await two_modes.read(held) == held


async def test_one_batch_takes_a_reference_in_both_modes(two_modes: Shop) -> None:
    """Of two bookings in each mode that name it at once, the first of each mode has it."""
    asks = [(actor, await hold(two_modes, actor, seat)) for seat in ("A1", "A2") for actor in (TESTER, SHOP)]
    answers = await asyncio.gather(
        *(two_modes.confirm(held, "till-1", actor=actor) for actor, held in asks), return_exceptions=True
    )
    assert [isinstance(answer, PaymentUsed) for answer in answers] == [False, False, True, True]
    assert [answer.mode for answer in answers[:2]] == [Mode.TEST, Mode.LIVE]  # type: ignore[union-attr]
