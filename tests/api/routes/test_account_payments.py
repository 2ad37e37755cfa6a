"""Paying from accounts over HTTP: no answer contains a code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.payments.gateways.balance.account_shop import CODES, OLDER, PRICE, SECRET, open_account

from earmark.cli import register_secrets_for_redaction
from earmark.domain.live_or_test_mode import Mode
from earmark.observability import redaction
from earmark.payments.gateways.balance.account_access_codes import make_code
from earmark.payments.gateways.balance.gateway import BalanceGateway

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services


@pytest.fixture
def accounts(services: Services) -> Any:
    """The shop can be paid from accounts, too."""
    accounts: Any = services.engine.store.accounts
    gateways: Any = services.payments.gateways
    gateways["balance"] = BalanceGateway(accounts, codes=CODES, mode=Mode.TEST)
    return accounts


async def pay(shop: httpx2.AsyncClient, booking_id: str, code: str, *, key: str) -> httpx2.Response:
    """From an account."""
    body = {"gateway": "balance", "method": code}
    return await shop.post(f"/v1/bookings/{booking_id}/pay", json=body, headers={"Idempotency-Key": key})


async def test_no_answer_has_a_code_in_it(shop: httpx2.AsyncClient, event: str, accounts: Any) -> None:
    """The payment, its repeat, the booking, its payments and history, the key's answer, and a decline."""
    code = make_code()
    await open_account(accounts, code, PRICE, mode=Mode.TEST)
    told = []
    for seat in ("A1", "A2"):
        body = {"event_id": event, "buyer": "alice", "seats": [seat]}
        booking = (await shop.post("/v1/bookings", json=body)).json()["id"]
        told += [await pay(shop, booking, code, key=f"pay-{seat}") for _ in range(2)]
        own = f"/v1/bookings/{booking}"
        paths = (own, f"{own}/payments", f"{own}/history", f"/v1/idempotency/pay-{seat}")
        told += [await shop.get(path) for path in paths]
    assert [answer.status_code for answer in told] == [200] * 6 + [402, 402] + [200] * 4
    assert told[1].headers["Idempotency-Replayed"] == told[7].headers["Idempotency-Replayed"] == "true"
    assert told[1].content == told[0].content
    assert not [answer.text for answer in told if code in answer.text]
    sold = told[0].json()
    assert sold["payment_method"] == sold["payment"]["method"] == f"…{code[-4:]}"
    assert told[6].json()["why"] == "account_declined"


async def test_the_same_key_with_another_code_is_refused(shop: httpx2.AsyncClient, event: str, accounts: Any) -> None:
    """The recorded hash is under a key, and still distinguishes two requests."""
    body = {"event_id": event, "buyer": "alice", "seats": ["A1"]}
    booking = (await shop.post("/v1/bookings", json=body)).json()["id"]
    ends = []
    for _ in range(2):
        code = make_code()
        await open_account(accounts, code, PRICE, mode=Mode.TEST)
        ends.append((await pay(shop, booking, code, key="one")).json().get("code"))
    assert ends == [None, "idempotency_mismatch"]


def test_each_secret_of_accounts_is_redacted_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only one of them occurs."""
    monkeypatch.setattr(redaction, "_known", ())
    register_secrets_for_redaction.register_secrets({"EARMARK_ACCOUNT_SECRET": f"{SECRET},{OLDER}"}, [])
    for secret in (SECRET, OLDER):
        assert secret not in redaction.redact(f"it was {secret} before")
