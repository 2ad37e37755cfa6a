"""kill -9 before and after every await of the saga, for pay, refund and cancel.

In the end our books, the booking and the bank's ledger agree.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.money.mortal import Died, Fate, Mortal
from tests.money.world import PRICE, World

from earmark.clock import MovableClock
from earmark.domain.machine import State
from earmark.payments.sandbox.faults import Fault
from earmark.store.memory import MemoryStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.domain.booking import Booking

    Story = Callable[[World, Booking], Awaitable[None]]

MOMENTS_MAX = 200


async def pay(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held))


async def pay_at_once(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held, automatic=True))


async def pay_with_a_bad_card(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held, method="pm_card_declined"))


async def pay_and_lose_the_reply(world: World, held: Booking) -> None:
    world.sandbox.script.add(Fault.REPLY_LOST, "authorise")
    await world.pay(world.ask_to_pay(held))


async def pay_and_lose_the_capture(world: World, held: Booking) -> None:
    world.sandbox.script.add(Fault.ERROR_AFTER, "capture")
    await world.pay(world.ask_to_pay(held))


async def pay_with_a_capture_that_is_refused(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held, method="pm_card_capture_fail"))


async def pay_then_cancel(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held))
    await world.cancel(held)


async def pay_then_cancel_a_part(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held))
    await world.cancel(held, "A1")


async def pay_then_cancel_and_lose_the_refund(world: World, held: Booking) -> None:
    world.sandbox.script.add(Fault.REPLY_LOST, "refund")
    await world.pay(world.ask_to_pay(held))
    await world.cancel(held)


async def pay_then_refund(world: World, held: Booking) -> None:
    await world.pay(world.ask_to_pay(held))
    await world.refund(world.ask_to_refund(held, 1000))


STORIES: tuple[Story, ...] = (
    pay,
    pay_at_once,
    pay_with_a_bad_card,
    pay_and_lose_the_reply,
    pay_and_lose_the_capture,
    pay_with_a_capture_that_is_refused,
    pay_then_cancel,
    pay_then_cancel_a_part,
    pay_then_cancel_and_lose_the_refund,
    pay_then_refund,
)


async def live(
    story: Story, fate: Fate, *, second: Fate | None = None, reconciled: bool = True, again: bool = False
) -> tuple[World, list[str]]:
    """A story with a death in it, a restart, perhaps another death, and what does not agree in the end."""
    clock = MovableClock()
    store = MemoryStore(clock=clock)
    world = World(store, clock=clock, ids=Uuid7Ids())
    await world.open()
    held = await world.hold("A1", "A2")
    world.start(Mortal(store, fate), Mortal(world.gateway, fate))
    with contextlib.suppress(Died):
        await story(world, held)
    if second is not None:
        world.start(Mortal(store, second), Mortal(world.gateway, second))
        with contextlib.suppress(Died):
            await world.settle()
    world.start(store, world.gateway)
    if again and (await world.booking(held)).state is State.HELD:
        await world.pay(world.ask_to_pay(held))
    if reconciled:
        await world.settle()
    return world, await world.disagreements()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_whoever_dies_anywhere_leaves_a_story_that_ends_well(story: Story) -> None:
    """Every moment of the story, one death each; the reconciler of another process ends it."""
    whole = Fate()
    _, wrong = await live(story, whole)
    assert wrong == []
    assert 4 <= len(whole.moments) < MOMENTS_MAX
    for moment, where in enumerate(whole.moments):
        fate = Fate(moment)
        _, wrong = await live(story, fate)
        assert wrong == [], f"died {where}, which is moment {moment}"
        assert fate.moments[moment] == where


@pytest.mark.parametrize("story", [pay, pay_then_cancel], ids=lambda story: story.__name__)
async def test_the_reconciler_may_die_too(story: Story) -> None:
    """At every moment of seeing through what another death has left."""
    whole = Fate()
    await live(story, whole)
    pairs = 0
    for moment in range(len(whole.moments)):
        rest = Fate()
        await live(story, Fate(moment), second=rest)
        for later in range(len(rest.moments)):
            _, wrong = await live(story, Fate(moment), second=Fate(later))
            assert wrong == [], f"died {whole.moments[moment]}, then {rest.moments[later]}"
            pairs += 1
    assert pairs > len(whole.moments)


async def test_a_buyer_who_pays_again_after_a_death_is_charged_once() -> None:
    """With the payment that was opened before, or with a new one if the death came first."""
    whole = Fate()
    await live(pay, whole)
    for moment, where in enumerate(whole.moments):
        world, wrong = await live(pay, Fate(moment), again=True)
        assert wrong == [], where
        taken = [line.amount for line in world.bank.ledger if line.move == "captured"]
        assert taken == [2 * PRICE], where


async def test_without_a_reconciler_deaths_leave_orphans() -> None:
    """The control: these very deaths break the books if nobody looks after them."""
    whole = Fate()
    await live(pay, whole)
    outcomes = [await live(pay, Fate(moment), reconciled=False) for moment in range(len(whole.moments))]
    orphans = [wrong for _, wrong in outcomes if wrong]
    assert len(orphans) > 3
    assert any("set aside for ever" in line for wrong in orphans for line in wrong)
    assert any("paying for ever" in line for wrong in orphans for line in wrong)
