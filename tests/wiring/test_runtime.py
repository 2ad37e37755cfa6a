"""One runtime for every kind of process: one payment driver, workers on request, and a close in the right order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.conftest import KEY

from earmark.asgi import Service
from earmark.clock import SystemClock
from earmark.config import Settings
from earmark.domain import payment as payment_rules
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import StoreUnavailable
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.wiring.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BOUND_SECONDS = 30.0
"""How long a fact is waited for: far more than it takes."""


class WatchedGateway(SandboxGateway):
    """A sandbox that notes when its calls end and when it is closed."""

    def __init__(self) -> None:
        super().__init__(Sandbox(SystemClock()))
        self.notes: list[str] = []
        self.captures = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def capture(self, *arguments: Any, **named: Any) -> Any:
        """Answers only once the test allows it."""
        self.captures.set()
        await self.may_answer.wait()
        report = await super().capture(*arguments, **named)
        self.notes.append("captured")
        return report

    async def close(self) -> None:
        """Notes the moment."""
        self.notes.append("closed")
        await super().close()


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not await fact():  # noqa: ASYNC110 (a fact that can only be polled)
            await asyncio.sleep(0.01)


async def sell_one(shop: Earmark) -> str:
    """A held seat, paid for; the id of its booking."""
    await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    await shop.pay(held.id, method="pm_card_visa", gateway="own")
    return held.id


async def state_of(shop: Earmark, booking_id: str) -> str:
    (payment,) = await shop.payments(booking_id)
    return payment.state


async def test_payments_under_way_are_finished_before_their_gateway_is_closed() -> None:
    """A gateway that is closed under a running capture would leave the money unknown."""
    gateway = WatchedGateway()
    async with open_runtime(Settings(database_url="memory:"), gateways={"own": gateway}) as runtime:
        shop = Earmark(runtime.engine, mode=Mode.TEST, payments=runtime.payments)
        paying = asyncio.create_task(sell_one(shop))
        await asyncio.wait_for(gateway.captures.wait(), timeout=BOUND_SECONDS)
        runtime.payments.hurry()
        await paying
        assert gateway.notes == []
        asyncio.get_running_loop().call_later(0.05, gateway.may_answer.set)
    assert gateway.notes == ["captured", "closed"]


async def test_a_driver_that_closed_its_gateways_first_would_cut_the_payment_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: with the two steps exchanged, the gateway is closed while it captures."""

    async def close_gateways_first(driver: Any) -> None:
        for gateway in driver._gateways.values():
            await gateway.close()
        while driver._driving:
            await asyncio.wait(driver._driving.values())

    monkeypatch.setattr(PaymentDriver, "close", close_gateways_first)
    gateway = WatchedGateway()
    async with open_runtime(Settings(database_url="memory:"), gateways={"own": gateway}) as runtime:
        shop = Earmark(runtime.engine, mode=Mode.TEST, payments=runtime.payments)
        paying = asyncio.create_task(sell_one(shop))
        await asyncio.wait_for(gateway.captures.wait(), timeout=BOUND_SECONDS)
        runtime.payments.hurry()
        await paying
        asyncio.get_running_loop().call_later(0.05, gateway.may_answer.set)
    assert gateway.notes == ["closed", "captured"]


class UnclosableGateway(WatchedGateway):
    """A sandbox whose close fails."""

    async def close(self) -> None:
        """Notes the moment, and fails."""
        await super().close()
        raise OSError("the socket is gone")


async def close_with_one_that_fails() -> list[WatchedGateway]:
    """Open and close a runtime whose second of three gateways cannot be closed."""
    gateways = [WatchedGateway(), UnclosableGateway(), WatchedGateway()]
    with pytest.raises(OSError, match="the socket is gone"):
        async with open_runtime(
            Settings(database_url="memory:"), gateways={str(number): one for number, one in enumerate(gateways)}
        ):
            pass
    return gateways


async def test_a_gateway_that_fails_to_close_leaves_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    """Each has connections of its own. The error is raised once all are closed, and the log names its gateway."""
    gateways = await close_with_one_that_fails()
    assert [gateway.notes for gateway in gateways] == [["closed"]] * 3
    assert "gateway 1 was not closed: the socket is gone" in caplog.text


async def test_control_gateways_that_are_closed_in_turn_stay_open_behind_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third is never asked to close."""

    async def close_in_turn(driver: Any) -> None:
        for gateway in driver._gateways.values():
            await gateway.close()

    monkeypatch.setattr(PaymentDriver, "_close_gateways", close_in_turn)
    assert [gateway.notes for gateway in await close_with_one_that_fails()] == [["closed"], ["closed"], []]


async def test_the_store_is_closed_last_and_takes_nothing_more() -> None:
    """What a payment writes at the very end still finds the database."""
    async with open_runtime(Settings(database_url="memory:")) as runtime:
        assert (await runtime.engine.store.list_events(mode=Mode.TEST, after=None, limit=1)) == []
    with pytest.raises(StoreUnavailable):
        await runtime.engine.store.list_events(mode=Mode.TEST, after=None, limit=1)


@pytest.mark.parametrize("workers", [True, False])
async def test_the_library_completes_payments_at_the_callers_own_gateway(
    monkeypatch: pytest.MonkeyPatch, *, workers: bool
) -> None:
    """With workers the reconciler asks the gateway again; without them, the control, the payment stays open."""
    monkeypatch.setattr(payment_rules, "WAIT_SECONDS_MIN", 0.1)
    gateway = SandboxGateway(Sandbox(SystemClock()))
    gateway.script.add(Fault.ERROR_BEFORE, "capture")
    async with Earmark.open("memory:", mode="test", gateways={"own": gateway}, workers=workers) as shop:
        booking_id = await sell_one(shop)
        assert await state_of(shop, booking_id) == "authorised"
        if workers:

            async def is_captured() -> bool:
                return await state_of(shop, booking_id) == "captured"

            await until(is_captured)
        else:
            store = shop.engine.store

            async def is_overdue() -> bool:
                return (await store.seconds_to_next_payment(gateways=["own"]) or 0) < -0.5

            await until(is_overdue)
            assert await state_of(shop, booking_id) == "authorised"


async def test_the_library_expires_holds_without_a_call() -> None:
    """The sweeper runs beside the program: a hold whose time is over ends, and its units return."""
    async with Earmark.open("memory:", mode="test", workers=True) as shop:
        await shop.create_event("drop", name="A drop", currency="EUR", pools={"GA": (1, 900)})
        held = await shop.hold("drop", buyer="alice", pools={"GA": 1}, ttl_seconds=1)
        store = shop.engine.store

        async def is_swept() -> bool:
            entries = await shop.history(held.id)
            return [entry.verb for entry in entries] == ["hold", "expire"]

        await until(is_swept)
        (pool,) = (await store.read_map("drop")).pools  # type: ignore[arg-type]
        assert pool.free == 1


async def test_a_mounted_service_and_its_library_have_one_payment_driver() -> None:
    """A second driver would close the gateways while the first one still calls them."""
    service = Service(database_url="memory:", admin_key=KEY, migrate=False, log="off")
    async with service.running():
        drivers = [
            found for found in _alive() if isinstance(found, PaymentDriver) and found._engine is service.earmark.engine
        ]
        assert drivers == [service.earmark.payment_service.driver]


def _alive() -> list[object]:
    import gc

    return gc.get_objects()


class LoopBroken(BaseException):
    """What no round may raise and no loop catches."""


class BrokenWorker:
    """Its loop breaks, which a failed round never does."""

    name = "broken"

    async def act(self) -> float:
        """Breaks the loop, some time after it began."""
        await asyncio.sleep(0.01)
        raise LoopBroken


async def test_a_process_whose_workers_broke_does_not_stay_alive() -> None:
    """A program that waits for something else ends with the worker's error, so that it is started again."""
    async with open_runtime(Settings(database_url="memory:")) as runtime:
        with pytest.raises(BaseExceptionGroup):
            async with asyncio.timeout(BOUND_SECONDS), runtime.working([BrokenWorker()]):
                await asyncio.Event().wait()
        async with runtime.working([]):
            await asyncio.sleep(0)


async def test_a_body_that_is_cancelled_stays_cancelled() -> None:
    """The control: a cancellation from elsewhere is not taken for a broken worker."""
    async with open_runtime(Settings(database_url="memory:"), workers=True) as runtime:

        async def body() -> None:
            async with runtime.working():
                await asyncio.Event().wait()

        waiting = asyncio.create_task(body())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_program_may_start_thousands_of_calls_at_once() -> None:
    """No client gives up while they wait in the queue, so the library refuses none of them early."""
    async with Earmark.open("memory:", mode="test") as shop:
        await shop.create_event("drop", name="A drop", currency="EUR", pools={"GA": (10_000, 900)})
        calls = [shop.hold("drop", buyer=f"b{number}", pools={"GA": 1}) for number in range(4500)]
        assert len(await asyncio.gather(*calls)) == 4500
