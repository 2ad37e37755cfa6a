"""A crowd that asks for more than it may have costs few transactions, and is refused truthfully."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.engine.commands_and_results import TryAgain
from earmark.engine.engine import Engine
from earmark.engine.verbs.hold import MAKE_ROOM_ROUNDS_MAX, _Granting
from earmark.errors import LimitExceeded, PoolExhausted
from earmark.library import Earmark
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.clock import MovableClock
    from earmark.engine.commands_and_results import Hold
    from earmark.engine.ports.store import Store

CROWD = 100
TRANSACTIONS_MAX = 12
"""Two batches and one read, and a few more where the crowd was parted among several connections."""
TTL_SECONDS = 60


class CountedTransactions:
    """How many transactions a store has run since the count began."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._transact = store.transact
        monkeypatch.setattr(store, "transact", self.transact)

    def transact(self, *arguments: Any, **options: Any) -> Any:
        """Run it."""
        self.count += 1
        return self._transact(*arguments, **options)


@pytest.fixture
async def shop(store: Store) -> Earmark:
    """A pool that is large enough, and at most four for each buyer."""
    shop = Earmark(Engine(store, ids=Uuid7Ids()))
    await shop.create_event("drop", name="A drop", currency="EUR", pools={"GA": (1000, 900)}, per_buyer_max=4)
    return shop


async def ask_for(shop: Earmark, units: int, *, ttl_seconds: int | None = None) -> list[Any]:
    """Each buyer of the crowd asks for so many."""
    holds = (shop.hold("drop", buyer=f"b{n}", pools={"GA": units}, ttl_seconds=ttl_seconds) for n in range(CROWD))
    return await asyncio.gather(*holds, return_exceptions=True)


def assert_limited(told: Sequence[Any], *, have: int) -> None:
    """All for good, with what they have."""
    assert {type(one) for one in told} == {LimitExceeded}
    assert {(one.have, one.transient) for one in told} == {(have, False)}


@pytest.mark.parametrize("have", [0, 4])
async def test_a_crowd_over_its_limit_costs_few_transactions(
    shop: Earmark, store: Store, have: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buyer who has nothing has no lapsed hold; which of the others have one is found by one read."""
    if have:
        await ask_for(shop, have)
    transactions = CountedTransactions(store, monkeypatch)
    assert_limited(await ask_for(shop, 5), have=have)
    assert transactions.count <= TRANSACTIONS_MAX


@pytest.mark.parametrize("have", [0, 4])
async def test_control_without_what_is_known_each_buyer_costs_a_transaction(
    shop: Earmark, store: Store, have: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: every refusal first looked for lapsed holds, in a transaction for each buyer."""
    judge = _Granting._judge

    def ask_for_room(self: _Granting, command: Hold, *, limit: int | None) -> TryAgain | None:
        try:
            return judge(self, command, limit=limit)
        except LimitExceeded as over:
            return TryAgain(refusal=over, rounds_max=MAKE_ROOM_ROUNDS_MAX, full=command.total_ref, short=1)

    async def not_known(refs: Sequence[object], **_: Any) -> list[bool]:
        return [True] * len(refs)

    if have:
        await ask_for(shop, have)
    monkeypatch.setattr(_Granting, "_judge", ask_for_room)
    monkeypatch.setattr(shop.engine._holds._without_room, "_have_due", not_known)
    transactions = CountedTransactions(store, monkeypatch)
    assert_limited(await ask_for(shop, 5), have=have)
    assert transactions.count > CROWD


async def test_what_lapsed_counts_for_no_buyer_of_a_crowd(shop: Earmark, clock: MovableClock) -> None:
    """The read finds every buyer who has a lapsed hold: each is granted as much as one without."""
    await ask_for(shop, 4, ttl_seconds=TTL_SECONDS)
    clock.advance(TTL_SECONDS + 1)
    assert {getattr(one, "state", one) for one in await ask_for(shop, 4)} == {"held"}


async def test_a_pool_in_which_nothing_is_held_refuses_at_once(
    shop: Earmark, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is free or sold, so no hold can lapse: no transaction looks for one."""
    await shop.create_event("fair", name="A fair", currency="EUR", pools={"GA": (3, 900)})
    held = await shop.hold("fair", buyer="ann", pools={"GA": 1})
    await shop.confirm(held.id, payment_id="till-1")
    transactions = CountedTransactions(store, monkeypatch)
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("fair", buyer="bob", pools={"GA": 3})
    assert (refused.value.available, refused.value.transient) == (2, False)
    assert transactions.count == 1


async def test_a_pool_in_which_units_are_held_is_searched_before_it_refuses(
    shop: Earmark, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one of them might have lapsed."""
    await shop.create_event("fair", name="A fair", currency="EUR", pools={"GA": (3, 900)})
    await shop.hold("fair", buyer="ann", pools={"GA": 1})
    transactions = CountedTransactions(store, monkeypatch)
    with pytest.raises(PoolExhausted) as refused:
        await shop.hold("fair", buyer="bob", pools={"GA": 3})
    assert (refused.value.available, refused.value.transient) == (2, False)
    assert transactions.count == 3
