"""A booking that ran out and is sold after all has everything again, on every store, or nothing is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from earmark.domain.booking_state_machine import State
from earmark.engine.ports.store import Changes, SeatUpdate

from .conftest import BEHIND_A_POOLER_IN_A_PROOF
from .payment_support import REFUSED
from .steps_support import ANN, BOB, GA, SHOW, Shop, seat_ref, total_ref

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

pytestmark = BEHIND_A_POOLER_IN_A_PROOF


@pytest.fixture
async def shop(store: Store, clock: MovableClock, ids: Uuid7Ids) -> Shop:
    shop = Shop(store, clock=clock, ids=ids)
    await shop.open()
    return shop


async def _lost(shop: Shop) -> Booking:
    """Ann's hold of A1, A2 and two units, which ran out; Bob then held A2 and let go of it."""
    held = await shop.hold("A1", "A2", units=2)
    lost = await shop.move(held, State.EXPIRED, ended_at=shop.clock.now())
    await shop.move(await shop.hold("A2", buyer=BOB), State.RELEASED, ended_at=shop.clock.now())
    return lost


def _reclaiming(shop: Shop, lost: Booking) -> Changes:
    """What late money writes."""
    facts = {"confirmed_at": shop.clock.now(), "ended_at": None, "payment_id": "pay-1", "payment_method": "card"}
    sold = msgspec.structs.replace(lost, state=State.CONFIRMED, version=lost.version + 1, **facts)
    changes = shop.moving(lost, sold)
    return msgspec.structs.replace(changes, moved=[], reclaimed=[sold])


async def test_a_reclaimed_booking_has_its_seats_units_and_count_again(shop: Shop) -> None:
    """One seat still pointed to it, the other to a released booking: both are its own, and counted."""
    lost = await _lost(shop)
    changes = _reclaiming(shop, lost)
    await shop.write(changes)
    shown = {on_map.seat.id: on_map.owner_id for on_map in (await shop.store.read_map(SHOW)).seats}
    assert (shown["A1"], shown["A2"], shown["A3"]) == (lost.id, lost.id, None)  # type: ignore[index]
    pools = await shop.step(lambda tx: tx.lock_pools([GA]))
    assert (pools[GA].held, pools[GA].sold) == (0, 2)
    assert await shop.step(lambda tx: tx.lock_totals([total_ref(ANN)])) == {total_ref(ANN): 4}
    assert (await shop.store.read_booking(lost.id))[1] == changes.reclaimed[0]
    assert await shop.store.find_flaws(limit=10) == []


async def test_a_hold_that_saw_the_seats_before_a_reclaim_has_to_look_again(shop: Shop) -> None:
    """The fence of every seat rises, also of the one that pointed to the booking all along."""
    lost = await _lost(shop)
    refs = [seat_ref("A1"), seat_ref("A2"), seat_ref("A3")]
    before = await shop.step(lambda tx: tx.read_seats(refs))
    await shop.write(_reclaiming(shop, lost))
    after = await shop.step(lambda tx: tx.read_seats(refs))
    assert [after[ref].fence > before[ref].fence for ref in refs] == [True, True, False]
    assert await shop.step(lambda tx: tx.lock_seats(list(before.values()))) == {seat_ref("A3")}


async def test_a_booking_of_units_alone_is_reclaimed_too(shop: Shop) -> None:
    """It has no seat to point to it."""
    lost = await shop.move(await shop.hold(units=2), State.EXPIRED, ended_at=shop.clock.now())
    await shop.write(_reclaiming(shop, lost))
    pools = await shop.step(lambda tx: tx.lock_pools([GA]))
    assert (pools[GA].held, pools[GA].sold) == (0, 2)


@pytest.mark.parametrize("gone", ["held by another", "blocked"])
async def test_a_booking_is_not_reclaimed_without_all_of_its_seats(shop: Shop, gone: str) -> None:
    """Whatever a verb believes, and nothing of it is kept: neither seats nor units nor the count."""
    lost = await _lost(shop)
    if gone == "blocked":
        await shop.write(Changes(seat_changes=[SeatUpdate(ref=seat_ref("A2"), blocked=True)]))
    else:
        await shop.hold("A2", buyer=BOB)
    before = await shop.store.read_map(SHOW)
    with pytest.raises(REFUSED):
        await shop.write(_reclaiming(shop, lost))
    after = await shop.store.read_map(SHOW)
    assert (list(after.seats), list(after.pools)) == (list(before.seats), list(before.pools))
    assert (await shop.store.read_booking(lost.id))[1] == lost
