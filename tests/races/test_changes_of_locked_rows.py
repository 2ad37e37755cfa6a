"""One row that a change needs stays locked: that change waits for it, and the changes of others are decided."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from .test_locked_rows import EVENTS, LET_GO_SECONDS, clock, locked, shop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.library import Earmark

__all__ = ["clock", "shop"]  # the fixtures

Asked = tuple[str, list[Any], "Awaitable[Any]"]


async def an_added_seat(shop: Earmark) -> Asked:
    """The seat that is to be added: the change names it, but only its booking says of which event it is."""
    held = await shop.hold("e1", buyer="ada", seats=["A2"])
    return "SELECT 1 FROM seats WHERE event_id = 'e1' AND id = 'A1'", [], shop.change(held.id, add=["A1"])


async def a_dropped_seat(shop: Earmark) -> Asked:
    """The seat that is to be given back."""
    held = await shop.hold("e1", buyer="ada", seats=["A1", "A2"])
    return "SELECT 1 FROM seats WHERE event_id = 'e1' AND id = 'A1'", [], shop.change(held.id, drop=["A1"])


async def a_new_pool(shop: Earmark) -> Asked:
    """A pool of which the booking has no unit yet."""
    held = await shop.hold("e1", buyer="ada", seats=["A2"])
    return "SELECT 1 FROM pools WHERE event_id = 'e1'", [], shop.change(held.id, pools={"GA": 1})


async def its_pool(shop: Earmark) -> Asked:
    """A pool of which it has units."""
    held = await shop.hold("e1", buyer="ada", pools={"GA": 2})
    return "SELECT 1 FROM pools WHERE event_id = 'e1'", [], shop.change(held.id, pools={"GA": 1})


async def its_buyers_total(shop: Earmark) -> Asked:
    """What the buyer has of the event."""
    held = await shop.hold("e1", buyer="ada", seats=["A2"])
    return "SELECT 1 FROM buyer_totals WHERE buyer = 'ada'", [], shop.change(held.id, add=["A1"])


async def its_booking(shop: Earmark) -> Asked:
    """The booking itself."""
    held = await shop.hold("e1", buyer="ada", seats=["A2"])
    return "SELECT 1 FROM bookings WHERE id = $1", [held.id], shop.change(held.id, add=["A1"])


async def a_lapsed_owner(shop: Earmark) -> Asked:
    """The expired hold that the added seat still points to."""
    old = await shop.hold("e1", buyer="old", seats=["A1"], ttl_seconds=60)
    held = await shop.hold("e1", buyer="ada", seats=["A2"], ttl_seconds=600)
    shop.engine.store._clock.advance(61)  # type: ignore[attr-defined] # the fixture's
    return "SELECT 1 FROM bookings WHERE id = $1", [old.id], shop.change(held.id, add=["A1"])


ROWS = [an_added_seat, a_dropped_seat, a_new_pool, its_pool, its_buyers_total, its_booking, a_lapsed_owner]


@pytest.mark.parametrize("row", ROWS, ids=[row.__name__ for row in ROWS])
async def test_other_changes_are_decided_while_a_row_is_locked(
    shop: Earmark, postgres_url: str, row: Callable[[Earmark], Awaitable[Asked]]
) -> None:
    """Whatever row it is, in the same batch and in later ones; and then the change itself is decided."""
    statement, arguments, asked = await row(shop)
    others = [await shop.hold(event, buyer="bob", seats=["A3"], pools={"GA": 1}) for event in EVENTS[1:]]
    async with locked(postgres_url, statement, *arguments):
        changes = [shop.change(held.id, add=["A4"], drop=["A3"], pools={"GA": 2}) for held in others]
        needs_it = asyncio.ensure_future(asked)
        told = await asyncio.wait_for(asyncio.gather(*changes), timeout=LET_GO_SECONDS)
        told += [await asyncio.wait_for(shop.change(held.id, add=["A5"]), timeout=LET_GO_SECONDS) for held in others]
        assert {one.state for one in told} == {"held"}
        assert not needs_it.done()
    assert (await asyncio.wait_for(needs_it, timeout=10)).version == 2
    assert not await shop.engine.store.find_flaws(limit=10)
