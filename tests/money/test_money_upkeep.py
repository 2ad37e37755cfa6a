"""What the janitor removes of the payments: which requests opened them, which buyers tried to pay. On all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.money.scripted_gateway import AUTHORISED, DECLINED, PROCESSING
from tests.money.test_declines import holds, tried
from tests.money.test_pay_keys import command_of, pay

from earmark.domain.decline_limits import WINDOW_SECONDS
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.payment import KEY_SECONDS_MIN
from earmark.errors import IdempotencyMismatch

if TYPE_CHECKING:
    from tests.money.conftest import Shop

    from earmark.domain.payment import PaymentKey


async def opened_by(shop: Shop, key: IdempotencyKey) -> PaymentKey | None:
    """What is known of a key."""

    async def read(transaction: object) -> PaymentKey | None:
        await transaction.begin([])  # type: ignore[attr-defined]
        found: PaymentKey | None = await transaction.read_payment_key(key)  # type: ignore[attr-defined]
        return found

    return await shop.engine.transact(read)


def keys(number: int) -> list[IdempotencyKey]:
    return [IdempotencyKey("key:shop", f"basket-{one}") for one in range(number)]


async def test_keys_that_opened_payments_are_removed_when_no_hold_of_theirs_can_be_paid(shop: Shop) -> None:
    """In batches, the oldest first, and not sooner: half a minute is left for a busy machine."""
    mine = await holds(shop, 3)
    for held, key in zip(mine, keys(3), strict=True):
        await pay(shop, command_of(shop, held, key=key))
        shop.clock.advance(10)
    upkeep = shop.store.upkeep
    shop.clock.advance(KEY_SECONDS_MIN - 60)
    assert await upkeep.forget_payment_keys(seconds=KEY_SECONDS_MIN, limit=9) == 0
    shop.clock.advance(60)
    assert await upkeep.forget_payment_keys(seconds=KEY_SECONDS_MIN, limit=2) == 2
    assert [await opened_by(shop, key) is not None for key in keys(3)] == [False, False, True]
    assert await upkeep.forget_payment_keys(seconds=KEY_SECONDS_MIN, limit=2) == 1
    assert await upkeep.forget_payment_keys(seconds=KEY_SECONDS_MIN, limit=2) == 0


async def test_the_key_of_a_payment_that_is_not_decided_stays(shop: Shop) -> None:
    """However old: another request with it is still refused, and the payment behind it is no hindrance."""
    first, second = await holds(shop, 2)
    shop.gateway.says |= {"authorise": PROCESSING, "status": PROCESSING, "void": PROCESSING}
    await pay(shop, command_of(shop, first, automatic=True))
    shop.gateway.says["authorise"] = AUTHORISED
    [other] = keys(1)
    await pay(shop, command_of(shop, second, key=other))
    shop.clock.advance(KEY_SECONDS_MIN)
    assert await shop.store.upkeep.forget_payment_keys(seconds=KEY_SECONDS_MIN, limit=1) == 1
    with pytest.raises(IdempotencyMismatch):
        await pay(shop, command_of(shop, first, body="mastercard", automatic=True))


async def test_a_buyers_tries_to_pay_are_removed_when_the_hour_is_over(shop: Shop) -> None:
    """Then it bounds nothing any more; until then it does."""
    mine = await holds(shop, 7)
    shop.gateway.says["authorise"] = DECLINED
    assert [await tried(shop, one, address="here") for one in mine[:6]] == ["held"] * 5 + ["buyer"]
    shop.clock.advance(600)
    upkeep = shop.store.upkeep
    assert await upkeep.forget_payers(seconds=WINDOW_SECONDS, limit=9) == 0
    assert await tried(shop, mine[6]) == "buyer"
    shop.clock.advance(WINDOW_SECONDS)
    assert await upkeep.forget_payers(seconds=WINDOW_SECONDS, limit=1) == 1, "the buyer's, or the address's"
    assert await upkeep.forget_payers(seconds=WINDOW_SECONDS, limit=9) == 1
    assert await upkeep.forget_payers(seconds=WINDOW_SECONDS, limit=9) == 0
    assert await tried(shop, await shop.hold("A1")) == "held"
