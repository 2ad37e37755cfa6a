"""Test payments in a server whose workers run elsewhere: their sandbox is in the memory of that server alone."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.api.conftest import KEY

from earmark import config
from earmark.api.open_services_for_handlers import Opened, open_services
from earmark.domain import payment as payment_rules
from earmark.domain.live_or_test_mode import Mode
from earmark.library import Earmark
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.wiring import runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

BOUND_SECONDS = 60.0
"""How long a fact is waited for: far more than it takes."""
OVERDUE_SECONDS = 0.3
"""For longer than this the control waits: three times as long as a reconciler may pause."""
PAUSE_SECONDS = 0.1
SETTINGS = {"EARMARK_DATABASE_URL": "memory:", "EARMARK_ADMIN_KEY": KEY, "EARMARK_EMBEDDED_WORKERS": "off"}


async def paying(server: Opened) -> AsyncIterator[str]:
    """The state of a test payment whose capture had no answer, again and again."""
    services = server.services
    gateway = services.payments.gateways["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    gateway.script.add(Fault.ERROR_BEFORE, "capture")
    shop = Earmark(services.engine, mode=Mode.TEST, gateways=services.payments.gateways)
    await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.pay(held.id, method="pm_card_visa")
    while True:
        (payment,) = await shop.payments(held.id)
        yield payment.state
        await asyncio.sleep(0.01)


async def test_a_server_without_workers_sees_its_own_test_payments_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker can: it has no sandbox, and another server has another one."""
    monkeypatch.setattr(runtime, "SANDBOX_SECONDS", PAUSE_SECONDS)
    monkeypatch.setattr(payment_rules, "WAIT_SECONDS_MIN", PAUSE_SECONDS)
    async with open_services(config.read(SETTINGS)) as server, asyncio.timeout(BOUND_SECONDS):
        assert server.workers == []
        seen = [state async for state in _until(paying(server), "captured")]
    assert seen[0] == "authorised", "it had no answer at first"


async def test_without_its_own_reconciler_such_a_payment_is_due_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(runtime.Runtime, "reconciling_sandbox", lambda _: nullcontext())
    monkeypatch.setattr(payment_rules, "WAIT_SECONDS_MIN", PAUSE_SECONDS)
    async with open_services(config.read(SETTINGS)) as server, asyncio.timeout(BOUND_SECONDS):
        store = server.services.engine.store
        async for state in paying(server):
            assert state == "authorised"
            if (await store.seconds_to_next_payment(gateways=["sandbox"]) or 0) < -OVERDUE_SECONDS:
                break


async def _until(states: AsyncIterator[str], last: str) -> AsyncIterator[str]:
    async for state in states:
        yield state
        if state == last:
            return
