"""Sold out means sold out: lapsed holds are ended, as many as it takes, before a pool or a limit refuses for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.engine import make_room_in_steps as module
from earmark.engine.engine import Engine
from earmark.errors import LimitExceeded, PoolExhausted
from earmark.library import Earmark
from earmark.schemas.requests import PoolChange
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store

LAPSED = 60
TTL_SECONDS = 60


async def full_of_lapsed_holds(store: Store, clock: MovableClock, *, buyer: str | None = None) -> Earmark:
    """A pool of sixty (or a buyer's limit of sixty), all of it in holds that ran out a moment ago, and no sweeper."""
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    if buyer:
        await shop.create_event("fair", name="A fair", currency="EUR", pools={"GA": (1000, 1)}, per_buyer_max=LAPSED)
    else:
        await shop.create_event("fair", name="A fair", currency="EUR", pools={"GA": (LAPSED, 1)})
    holds = (shop.hold("fair", buyer=buyer or f"b{n}", pools={"GA": 1}, ttl_seconds=TTL_SECONDS) for n in range(LAPSED))
    await asyncio.gather(*holds)
    clock.advance(TTL_SECONDS + 1)
    return shop


async def test_one_claim_on_all_that_lapsed_is_granted(store: Store, clock: MovableClock) -> None:
    """However many holds have to end for it: it is not limited to fifty."""
    shop = await full_of_lapsed_holds(store, clock)
    held = await shop.hold("fair", buyer="ada", pools={"GA": LAPSED})
    assert held.state == "held"
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("fair", buyer="bob", pools={"GA": 1})
    assert not refused.value.transient, "nothing has lapsed that could come back"
    assert not await store.find_flaws(limit=10)


async def test_as_many_buyers_as_there_are_lapsed_units_are_served(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, and though only a few holds are ended in one transaction."""
    monkeypatch.setattr(module, "MAKE_ROOM_HOLDS_MAX", 7)
    shop = await full_of_lapsed_holds(store, clock)
    asked = (shop.hold("fair", buyer=f"new-{n}", pools={"GA": 2}) for n in range(LAPSED // 2))
    held = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in held if isinstance(one, BaseException)] == []
    assert not await store.find_flaws(limit=10)


async def test_a_buyers_limit_counts_none_of_the_lapsed(store: Store, clock: MovableClock) -> None:
    """Sixty lapsed holds of one buyer, and a limit of sixty: sixty more are granted, and not one beyond."""
    shop = await full_of_lapsed_holds(store, clock, buyer="ada")
    assert (await shop.hold("fair", buyer="ada", pools={"GA": LAPSED})).state == "held"
    with pytest.raises(LimitExceeded) as refused:
        await shop.hold("fair", buyer="ada", pools={"GA": 1})
    assert not refused.value.transient


async def test_a_claim_larger_than_what_lapsed_is_refused_for_good(store: Store, clock: MovableClock) -> None:
    """All that lapsed is ended for it, and it still does not fit."""
    shop = await full_of_lapsed_holds(store, clock)
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("fair", buyer="ada", pools={"GA": LAPSED + 1})
    assert (refused.value.available, refused.value.transient) == (LAPSED, False)


async def test_a_pool_shrinks_to_what_is_really_in_use(store: Store, clock: MovableClock) -> None:
    """An operator's change ends as many lapsed holds as a buyer's hold does."""
    shop = await full_of_lapsed_holds(store, clock)
    await shop.change_event("fair", pools=[PoolChange(id="GA", capacity=1)])
    assert (await shop.hold("fair", buyer="ada", pools={"GA": 1})).state == "held"


async def test_room_is_made_once_per_transaction_without_the_loop(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where one transaction is all there is, a buyer is refused with fewer free units than have lapsed."""
    make_room_in = Engine.make_room_in

    async def once(self: Engine, ref: object, *, units: int, lock_seconds: float = 5, **_: Any) -> object:
        assert units == LAPSED
        room = await make_room_in(self, ref, units=1, lock_seconds=lock_seconds)
        return type(room)(ended=0, units=0, passed_over=False)

    monkeypatch.setattr(Engine, "make_room_in", once)
    shop = await full_of_lapsed_holds(store, clock)
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("fair", buyer="ada", pools={"GA": LAPSED})
    assert refused.value.available == module.MAKE_ROOM_HOLDS_MAX
