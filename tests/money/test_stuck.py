"""Payments that get nowhere by asking for the same thing again, and what sees them through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.money.conftest import PRICE
from tests.money.world import World
from tests.payments.conformance.worlds import stripe_shaped

from earmark.clock import MovableClock
from earmark.domain import payment as law
from earmark.domain.machine import State
from earmark.domain.payment import PaymentState
from earmark.engine.teller import Teller
from earmark.payments.sandbox.faults import Fault
from earmark.payments.sandbox.model import Move
from earmark.payments.stripe import StripeGateway
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    import pytest

    from earmark.domain.booking import Booking
    from earmark.engine.ports import Store


async def unanswered(world: World, fault: Fault) -> Booking:
    """A buyer whose card was asked for once, and whose key is answered with a 500 for ever."""
    await world.open()
    world.sandbox.script.sticky_errors = True
    world.sandbox.script.add(fault, "authorise")
    held = await world.hold("A1", ttl=1700)
    paid = await world.pay(world.ask_to_pay(held))
    assert paid.payment.state is PaymentState.UNKNOWN
    return held


async def wait(world: World, *, seconds: int) -> None:
    """Time passes, and the reconciler does its rounds."""
    for _ in range(seconds // 30):
        world.clock.advance(30)
        await world.teller.reconcile(limit=10)


async def test_a_500_that_is_repeated_for_ever_does_not_lose_the_sale(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """The card was charged and only the answer is stuck: the payment is looked up by our id, and charged once."""
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_AFTER)
    await wait(world, seconds=600)
    assert (await world.booking(held)).state is State.CONFIRMED
    assert [world.bank.total(move) for move in (Move.AUTHORISED, Move.CAPTURED)] == [PRICE, PRICE]
    assert await world.disagreements() == []


async def test_a_500_that_is_repeated_and_did_nothing_ends_with_the_hold(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """There is nothing to find: nothing is charged, and the seat is free again."""
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_BEFORE)
    await wait(world, seconds=1200)
    await world.settle()
    assert (await world.booking(held)).state is State.EXPIRED
    assert world.bank.ledger == []
    assert await world.disagreements() == []


async def test_control_without_the_look_the_sale_is_lost(
    store: Store, clock: MovableClock, ids: Uuid7Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same order again and again is the same 500."""
    monkeypatch.setattr(law, "is_to_be_looked_up", lambda _: False)
    world = World(store, clock=clock, ids=ids)
    held = await unanswered(world, Fault.ERROR_AFTER)
    await wait(world, seconds=1200)
    assert (await world.booking(held)).state is State.EXPIRED


async def test_stripe_that_repeats_a_500_does_not_lose_the_sale() -> None:
    """The same through the official SDK, over a socket."""
    with stripe_shaped() as (sandbox, do):
        clock = sandbox.clock
        assert isinstance(clock, MovableClock)
        world = World(MemoryStore(clock=clock), clock=clock, ids=Uuid7Ids())
        world.sandbox, world.bank = sandbox, sandbox.bank
        gateway = StripeGateway(
            sandbox.key, webhook_secret=sandbox.secret, url=sandbox.base_url, clock=clock, seconds_max=20
        )
        world.teller = Teller(world.engine, {"sandbox": gateway})
        held = await unanswered(world, Fault.ERROR_AFTER)
        await wait(world, seconds=600)
        assert (await world.booking(held)).state is State.CONFIRMED
        assert do(lambda box: [box.bank.total(move) for move in (Move.AUTHORISED, Move.CAPTURED)]) == [PRICE, PRICE]
        await world.teller.close()
