"""The lock of a payer on PostgreSQL: payments that are opened at once count each other, and without it they do not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.money.conftest import Shop
from tests.money.scripted_gateway import AUTHORISED, DECLINED
from tests.money.test_declines import tried

from earmark.domain.decline_limits import Payer
from earmark.domain.default_limits_for_all_events import Policy
from earmark.store.both_databases import payments_and_refunds

if TYPE_CHECKING:
    import pytest

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.domain.decline_limits import PayerRef
    from earmark.store.postgres import PostgresStore
    from earmark.uuids import Uuid7Ids

LOOK = "SELECT tries FROM payers WHERE mode = $1 AND buyer = $2"


async def one_try_left(store: PostgresStore, ids: Uuid7Ids, clock: MovableClock) -> tuple[Shop, list[Booking]]:
    """Two holds of a buyer who has bought before, and may be declined once."""
    shop = Shop(store, ids=ids, clock=clock)
    shop.engine.policy = Policy(declines_per_buyer_max=1)
    await shop.open_another("concert")
    assert await tried(shop, await shop.hold("A1")) == "confirmed"
    shop.gateway.says["authorise"] = DECLINED
    return shop, [await shop.hold("A2"), await shop.hold("A3")]


async def test_two_concurrent_declines_count_as_one_try(
    postgres_store: PostgresStore, ids: Uuid7Ids, clock: MovableClock
) -> None:
    """The second waits for the first, and is refused."""
    shop, two = await one_try_left(postgres_store, ids, clock)
    assert sorted(await asyncio.gather(*(tried(shop, one) for one in two))) == ["buyer", "held"]
    assert shop.gateway.calls.count("authorise") == 2, "the sale, and one try"
    shop.gateway.says["authorise"] = AUTHORISED
    await shop.driver.close()


async def test_control_without_the_lock_both_are_tried(
    postgres_store: PostgresStore, ids: Uuid7Ids, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has written: one more card is tried than is allowed."""
    shop, two = await one_try_left(postgres_store, ids, clock)
    both_looked = asyncio.Barrier(2)

    async def look(steps: Any, ref: PayerRef) -> Payer:
        row = await steps.connection.fetchrow(LOOK, *ref)
        await both_looked.wait()
        return Payer(ref=ref, tries=payments_and_refunds._TRIES.decode(row["tries"]))

    monkeypatch.setattr(payments_and_refunds.PaymentSteps, "lock_payer", look)
    assert await asyncio.gather(*(tried(shop, one) for one in two)) == ["held", "held"]
    assert shop.gateway.calls.count("authorise") == 3
    await shop.driver.close()
