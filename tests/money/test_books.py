"""Our books beside a gateway's: what agrees, what differs and will be looked at, and what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.money.shop_and_bank import CARD, PRICE, World

from earmark.cli import compare_payments_with_gateway as walk
from earmark.cli.compare_payments_with_gateway import compare
from earmark.domain.id_types import BookingId, EventId, PaymentId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment, PaymentState, ReportedState
from earmark.engine.ports.gateway import GatewaySilent, Record, Report
from earmark.payments import gateway_comparison_rules
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.model import PAYMENT_ID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.engine.ports.gateway import Gateway, Order
    from earmark.engine.ports.store import Store
    from earmark.payments.gateway_comparison_rules import Comparison
    from earmark.uuids import Uuid7Ids


@pytest.fixture
async def world(store: Store, clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[World]:
    """A shop and a bank."""
    world = World(store, clock=clock, ids=ids)
    await world.open()
    yield world
    await world.driver.close()


async def compared(world: World, gateway: Gateway | None = None) -> Comparison:
    since = world.clock.now() - timedelta(days=20)
    return await compare(world.store, gateway or world.gateway, since=since)


async def sold(world: World, *seats: str, method: str = CARD) -> tuple[Booking, Payment]:
    paid = await world.pay(world.ask_to_pay(await world.hold(*seats), method=method))
    return paid.booking, paid.payment


def rules(found: Comparison) -> list[str]:
    return [flaw.rule for flaw in found.flaws]


class LyingGateway(SandboxGateway):
    """Never answers to a capture, and says of a void that it was made when it was not."""

    async def capture(self, order: Order) -> Report:
        """Nothing is taken."""
        raise GatewaySilent(f"no answer about {order.payment_id}")

    async def void(self, order: Order) -> Report:
        """Nothing is voided."""
        return Report(state=ReportedState.VOIDED, gateway_id=order.gateway_id)


async def test_the_books_agree_after_sales_refunds_and_refusals(world: World) -> None:
    """Each payment, to the cent."""
    booking, _ = await sold(world, "A1", "A2")
    await world.refund(world.ask_to_refund(booking, 1000))
    undone, _ = await sold(world, "A3")
    await world.cancel(undone)
    await sold(world, "A4", method="pm_card_declined")
    found = await compared(world)
    assert (found.agree, found.flaws, found.still_open, found.foreign) == (3, [], [], 0)


async def test_a_capture_that_we_did_not_request_is_found(world: World) -> None:
    """While the reconciler will still look it is open; when it will not, it is wrong."""
    forgetful = LyingGateway(world.sandbox)
    world.start(world.store, forgetful)
    booking, payment = await sold(world, "A1")
    await world.cancel(booking)
    young = await compared(world, forgetful)
    assert (young.flaws, [flaw.rule for flaw in young.still_open]) == ([], [gateway_comparison_rules.SET_ASIDE])
    for _ in range(4):
        world.clock.advance(20 * 3600)
        await world.driver.reconcile(limit=10)
    assert rules(await compared(world, forgetful)) == [gateway_comparison_rules.SET_ASIDE]
    [intent] = world.bank.find(str(payment.id))
    world.bank.capture(intent.id)
    found = await compared(world, forgetful)
    assert rules(found) == [gateway_comparison_rules.TOOK]
    assert found.flaws[0].row.endswith(f"captured 0 here and {PRICE} there")
    assert str(payment.id) in found.flaws[0].row
    assert str(booking.id) in found.flaws[0].row


async def test_a_refund_that_we_do_not_know_is_found(world: World) -> None:
    """An operator refunded on the gateway's own page."""
    await sold(world, "A1")
    _, payment = await sold(world, "A2")
    assert payment.gateway_id is not None
    world.bank.refund(payment.gateway_id, amount=1000)
    found = await compared(world)
    assert (found.agree, rules(found)) == (1, [gateway_comparison_rules.GAVE_BACK])
    assert found.flaws[0].row.endswith("refunded 0 here and 1000 there")


async def test_a_charge_for_a_payment_that_is_not_here_is_found(world: World) -> None:
    """Its row is gone, with a restored backup perhaps, and the money is not."""
    lost = str(uuid4())
    _charge(world, lost)
    found = await compared(world)
    assert rules(found) == [gateway_comparison_rules.ORPHAN]
    assert f"took {PRICE} EUR for payment {lost}" in found.flaws[0].row


async def test_control_money_that_was_refunded_or_was_never_ours_is_no_flaw(world: World) -> None:
    """An orphan that was refunded is made good, and other charges of the account are not Earmark's business."""
    intent_id = _charge(world, str(uuid4()))
    world.bank.refund(intent_id)
    _charge(world, None)
    found = await compared(world)
    assert (found.flaws, found.foreign) == ([], 1)


async def test_a_second_charge_for_one_payment_is_found(world: World) -> None:
    """Both carry our id, and only one is known here."""
    _, payment = await sold(world, "A1")
    again = _charge(world, str(payment.id))
    found = await compared(world)
    assert rules(found) == [gateway_comparison_rules.TWICE]
    assert f"{PRICE} EUR more was taken as {again}" in found.flaws[0].row


async def test_a_payment_that_the_gateway_does_not_know_is_found(world: World) -> None:
    """It took money by our books, and not by the gateway's."""
    await sold(world, "A1")
    found = await compared(world, SandboxGateway(Sandbox(world.clock, seed=world.seed)))
    assert rules(found) == [gateway_comparison_rules.UNKNOWN_THERE]
    assert f"captured {PRICE} here" in found.flaws[0].row


async def test_a_declined_payment_that_the_gateway_forgot_is_no_flaw(world: World) -> None:
    """No money is missing."""
    await sold(world, "A1", method="pm_card_declined")
    found = await compared(world, SandboxGateway(Sandbox(world.clock, seed=world.seed)))
    assert (found.agree, found.flaws) == (1, [])


async def test_a_payment_from_before_the_first_page_is_no_orphan(world: World) -> None:
    """It is looked up by its id: the gateway may have recorded it later than it began."""
    _, payment = await sold(world, "A1")
    found = await compare(world.store, world.gateway, since=payment.created_at + timedelta(minutes=5))
    assert (found.agree, found.flaws) == (1, [])


async def test_every_page_of_our_books_is_turned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payments that the gateway does not know are found on the last page, too."""
    monkeypatch.setattr(walk, "PAGE_SIZE", 2)
    payments = [(await sold(world, seat))[1] for seat in ("A1", "A2", "A3", "A4", "B1")]
    found = await compared(world, SandboxGateway(Sandbox(world.clock, seed=world.seed)))
    assert rules(found) == [gateway_comparison_rules.UNKNOWN_THERE] * len(payments)
    later = payments[0].created_at + timedelta(days=1)
    assert await world.store.page_payments("sandbox", since=later, after=None, limit=9) == []
    assert await world.store.page_payments("bank", since=payments[0].created_at, after=None, limit=9) == []


async def test_a_payment_that_goes_on_while_the_books_are_read_is_looked_at_again(world: World) -> None:
    """Our page is older than theirs then."""
    booking, _ = await sold(world, "A1")

    class Busy(SandboxGateway):
        async def books(self, *, since: datetime) -> AsyncIterator[Record]:
            await world.refund(world.ask_to_refund(booking, 1000))
            async for record in super().books(since=since):
                yield record

    found = await compared(world, Busy(world.sandbox))
    assert (found.agree, found.flaws, found.still_open) == (1, [], [])


async def test_a_payment_that_needs_attention_is_still_open(world: World) -> None:
    """An operator was notified. What they then do at the gateway agrees with what they settle here."""
    booking, payment = await sold(world, "A1", method="pm_card_refund_fail")
    await world.refund(world.ask_to_refund(booking, PRICE))
    about = await world.store.read_payment_snapshot(payment.id)
    assert about is not None
    assert about.payment.state is PaymentState.NEEDS_ATTENTION
    found = await compared(world)
    assert (found.flaws, found.agree + len(found.still_open)) == ([], 1)


# -- the comparison itself -----------------------------------------------------------------------------------------


def ours(**known: Any) -> Payment:
    fields: dict[str, Any] = {
        "id": PaymentId(uuid4()),
        "booking_id": BookingId(uuid4()),
        "event_id": EventId("concert"),
        "mode": Mode.LIVE,
        "gateway": "bank",
        "gateway_id": "pi_1",
        "method": "card",
        "amount": PRICE,
        "currency": "EUR",
        "automatic": False,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "state": PaymentState.CAPTURED,
        "captured": PRICE,
    }
    return Payment(**fields | known)


def theirs(**known: Any) -> Record:
    fields: dict[str, Any] = {
        "payment_id": None,
        "gateway_id": "pi_1",
        "state": ReportedState.CAPTURED,
        "currency": "EUR",
        "captured": PRICE,
        "refunded": 0,
    }
    return Record(**fields | known)


@pytest.mark.parametrize(
    "here, there, expected",
    [
        ({}, {}, []),
        ({}, {"captured": PRICE - 1}, [gateway_comparison_rules.TOOK]),
        ({}, {"captured": PRICE + 1}, [gateway_comparison_rules.TOOK]),
        ({"captured": 0, "state": PaymentState.FAILED}, {}, [gateway_comparison_rules.TOOK]),
        ({}, {"refunded": 1}, [gateway_comparison_rules.GAVE_BACK]),
        ({"refunding": 5, "refunded": 5}, {"refunded": 4}, [gateway_comparison_rules.GAVE_BACK]),
        ({}, {"currency": "USD"}, [gateway_comparison_rules.CURRENCY]),
        (
            {"captured": 0, "state": PaymentState.VOIDED},
            {"captured": 0, "state": ReportedState.AUTHORISED},
            [gateway_comparison_rules.SET_ASIDE],
        ),
        ({"captured": 0, "state": PaymentState.FAILED}, {"captured": 0, "state": ReportedState.DECLINED}, []),
        (
            {},
            {"captured": 1, "refunded": 1},
            [gateway_comparison_rules.TOOK, gateway_comparison_rules.GAVE_BACK],
        ),
    ],
)
def test_every_way_to_differ_has_its_rule(here: dict[str, Any], there: dict[str, Any], expected: list[str]) -> None:
    """And what is the same has none."""
    assert [flaw.rule for flaw in gateway_comparison_rules.differences(ours(**here), theirs(**there))] == expected


@pytest.mark.parametrize("refunded, wrong", [(0, False), (PRICE, False), (PRICE + 1, True)])
def test_what_an_operator_settled_may_have_been_refunded_there_or_elsewhere(refunded: int, *, wrong: bool) -> None:
    """Never more than was taken, though."""
    settled = ours(state=PaymentState.SETTLED, refunding=PRICE, code="refunded_by_hand")
    assert bool(gateway_comparison_rules.differences(settled, theirs(refunded=refunded))) is wrong


def test_control_the_same_of_a_payment_that_was_not_settled_is_wrong() -> None:
    """So it is the operator's decision that makes it right."""
    assert gateway_comparison_rules.differences(ours(), theirs(refunded=PRICE))


def test_more_than_was_requested_is_right_once_an_operator_has_settled_it() -> None:
    """Our books count at most what was requested."""
    more = theirs(captured=PRICE + 100)
    assert gateway_comparison_rules.differences(ours(state=PaymentState.SETTLED), more) == []
    assert gateway_comparison_rules.differences(ours(), more)


def _charge(world: World, payment_id: str | None) -> str:
    """The bank takes money that no process requested."""
    metadata = {PAYMENT_ID: payment_id} if payment_id else {}
    charged = world.bank.authorise(amount=PRICE, currency="EUR", method=CARD, automatic=True, metadata=metadata)
    return charged.id
