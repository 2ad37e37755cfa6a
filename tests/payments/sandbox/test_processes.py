"""Banks in the memory of several processes over one database: after a restart, and beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.payments.sandbox.support import PRICE

from earmark import config, wiring
from earmark.domain.ids import BookingId
from earmark.domain.payment import Payment, Refund, RefundState
from earmark.engine.engine import Engine
from earmark.engine.teller import Teller
from earmark.library import Earmark
from earmark.payments.sandbox.gateway import SandboxGateway
from earmark.payments.sandbox.house import Sandbox
from earmark.store.memory import MemoryStore

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.engine.gateway import Gateway
    from earmark.engine.ports import Store
    from earmark.uuids import Uuid7Ids

ACTION = "pm_card_authenticationRequired"


class Process:
    """A server: its own bank in its own memory, over the database of all."""

    def __init__(self, store: Store, gateways: dict[str, Gateway], ids: Uuid7Ids) -> None:
        engine = Engine(store, ids=ids)
        self.store = store
        self.earmark = Earmark(engine, live=False, gateways=gateways)
        self.teller = Teller(engine, gateways)
        gateway = gateways.get("sandbox")
        self.bank = gateway.bank if isinstance(gateway, SandboxGateway) else None

    async def paid(self, seat: str, method: str = "pm_card_visa") -> str:
        """A booking for which a buyer has asked to pay."""
        booking = await self.earmark.hold("play", buyer="alice", seats=[seat])
        await self.earmark.pay(booking.id, method=method)
        return booking.id

    async def payment(self, booking: str) -> tuple[Payment, list[Refund]]:
        """The one payment of a booking, and its refunds."""
        [(payment, refunds)] = await self.store.list_payments(BookingId(UUID(booking)))
        return payment, list(refunds)


@pytest.fixture
async def store(clock: MovableClock, ids: Uuid7Ids) -> Store:
    """A database that outlives every process."""
    opened = MemoryStore(clock=clock)
    shop = Earmark(Engine(opened, ids=ids), live=False)
    await shop.create("play", name="A play", currency="EUR", seats={"A1": PRICE, "A2": PRICE, "A3": PRICE})
    return opened


def started(store: Store, clock: MovableClock, ids: Uuid7Ids) -> Process:
    return Process(store, wiring.open_sandbox(clock), ids)


async def test_after_a_restart_no_payment_has_the_id_of_an_older_one(
    store: Store, clock: MovableClock, ids: Uuid7Ids
) -> None:
    """A bank that begins anew gives ids that no bank before it gave."""
    first = await started(store, clock, ids).paid("A1")
    second = await started(store, clock, ids).paid("A2")
    process = started(store, clock, ids)
    (one, _), (other, _) = await process.payment(first), await process.payment(second)
    assert one.gateway_id != other.gateway_id


@pytest.mark.parametrize("seed", [None, 0])
async def test_a_refund_never_comes_out_of_the_payment_of_another_booking(
    store: Store, clock: MovableClock, ids: Uuid7Ids, seed: int | None
) -> None:
    """The bank that took the money is gone: the refund waits. With ids that repeat it is another buyer's money."""
    first = await Process(store, {"sandbox": SandboxGateway(Sandbox(clock, seed=seed))}, ids).paid("A1")
    restarted = Process(store, {"sandbox": SandboxGateway(Sandbox(clock, seed=seed))}, ids)
    second = await restarted.paid("A2")
    await restarted.earmark.refund(first, amount=PRICE)
    [refund] = (await restarted.payment(first))[1]
    assert restarted.bank is not None
    [theirs] = restarted.bank.intents()
    assert theirs.id == (await restarted.payment(second))[0].gateway_id
    confused = seed is not None  # the control: ids from a seed repeat, as they are asked to
    assert (theirs.refunded == PRICE) is confused
    assert (refund.state is RefundState.DONE) is confused


async def test_two_banks_have_neither_a_secret_nor_a_key_in_common(clock: MovableClock) -> None:
    """What signs callbacks cannot be read in the source, unless it was set."""
    one, other = Sandbox(clock), Sandbox(clock)
    assert one.secret != other.secret
    assert one.key != other.key
    assert Sandbox(clock, secret="whsec_ours").secret == "whsec_ours"
    assert Sandbox(clock, seed=7).bank.authorise(amount=1, currency="EUR", method="pm_card_visa").id == (
        Sandbox(clock, seed=7).bank.authorise(amount=1, currency="EUR", method="pm_card_visa").id
    )


async def test_the_secret_of_a_servers_bank_can_be_set() -> None:
    """For a test outside of the server that signs callbacks itself."""
    settings = config.read({"EARMARK_SANDBOX_SECRET": "whsec_ours"})
    gateway = wiring.open_sandbox(secret=settings.sandbox_secret)["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    assert gateway.sandbox.secret == "whsec_ours"
