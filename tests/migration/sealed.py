"""What an older release sold from accounts, for tests that seal it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.payments.gateways.balance.account_shop import PRICE, OldGateway, as_before, open_old_account, opened

from earmark.domain.payment import PaymentState

if TYPE_CHECKING:
    import pytest

CODE = "GIFT-CARD-OF-ALICE-9F2K"
SEALING = (
    "INSERT INTO sealings (transaction) VALUES (pg_current_xact_id()) "
    "ON CONFLICT (one) DO UPDATE SET transaction = excluded.transaction"
)


async def sell_as_before(url: str, patch: pytest.MonkeyPatch, *codes: str, event: str = "opera") -> list[str]:
    """Bookings that an older release sold, one for each code."""
    sold = []
    with patch.context() as before:
        as_before(before)
        async with opened(url, OldGateway, event=event) as shop:
            await shop.create_event()
            for code in dict.fromkeys(codes):
                await open_old_account(url, shop.accounts, code, 5 * PRICE)
            for code in codes:
                booking = await shop.hold()
                paid = await shop.earmark.pay(booking, method=code)
                assert paid.payment is not None
                assert paid.payment.state is PaymentState.CAPTURED
                sold.append(booking)
    return sold
