"""The rules can fail: gateways that break them are found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from _pytest.outcomes import Failed

from earmark.domain.payment import Standing
from earmark.engine.ports.gateway import GatewayRefused, RefundReport, RefundStanding, Report
from earmark.sandbox import signature
from earmark.sandbox.gateway import SandboxGateway
from earmark.uuids import Uuid7Ids

from . import test_callbacks, test_core, test_refunds
from .worlds import in_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from datetime import datetime

    from earmark.engine.ports.gateway import Callback, Order, Record, RefundOrder

    from .support import World


class Forgetful(SandboxGateway):
    """Every order is a new one."""

    async def authorise(self, order: Order) -> Report:
        """With another id each time."""
        return await super().authorise(msgspec.structs.replace(order, payment_id=Uuid7Ids().payment_id()))


class Hasty(SandboxGateway):
    """Says absent of what it did not look for."""

    async def status(self, order: Order) -> Report:
        """By the gateway's id alone."""
        return await super().status(order) if order.gateway_id else Report(standing=Standing.ABSENT)


class Eager(SandboxGateway):
    """Takes the money when it is only to be set aside."""

    async def authorise(self, order: Order) -> Report:
        """Captured at once, and said to be set aside."""
        report = await super().authorise(msgspec.structs.replace(order, automatic=True))
        return msgspec.structs.replace(report, standing=Standing.AUTHORISED, captured=0)


class Generous(SandboxGateway):
    """Says that it gave back what it did not."""

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Always done."""
        report = await super().refund(refund)
        return msgspec.structs.replace(report, standing=RefundStanding.DONE)


class Repeating(SandboxGateway):
    """A refund that is asked for again is another one."""

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """With another id each time."""
        return await super().refund(msgspec.structs.replace(refund, refund_id=Uuid7Ids().refund_id()))


class Stubborn(SandboxGateway):
    """Takes a state that does not fit for a wrong call."""

    async def void(self, order: Order) -> Report:
        """An error where a report is due."""
        report = await super().void(order)
        if report.standing is Standing.CAPTURED:
            raise GatewayRefused("payment_intent_unexpected_state")
        return report


class Careless(SandboxGateway):
    """Keeps half its books."""

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Without the refunds."""
        async for record in super().books(since=since):
            yield msgspec.structs.replace(record, refunded=0)


class Trusting(SandboxGateway):
    """Believes every callback."""

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Signs it itself."""
        assert headers is not None
        secret, now = self.sandbox.secret, self.sandbox.clock.now()
        return super().read_callback({signature.HEADER: signature.sign(body, secret=secret, now=now)}, body)


BREAKS: list[tuple[type[SandboxGateway], Callable[[World], Awaitable[None]]]] = [
    (Forgetful, test_core.test_the_same_order_again_is_the_same_payment),
    (Forgetful, test_core.test_the_same_id_with_another_amount_is_refused),
    (Hasty, test_core.test_a_payment_is_found_by_our_id),
    (Eager, test_core.test_money_is_set_aside_and_not_taken),
    (Stubborn, test_core.test_a_void_after_the_capture_says_that_it_was_captured),
    (Careless, test_core.test_books_add_up),
    (Generous, test_refunds.test_parts_are_refunded_until_nothing_is_left),
    (Generous, test_refunds.test_more_than_is_left_is_refused_whole),
    (Repeating, test_refunds.test_the_same_refund_again_gives_nothing_more),
    (Trusting, test_callbacks.test_a_signature_with_another_secret_is_refused),
    (Trusting, test_callbacks.test_a_callback_without_a_signature_is_refused),
]


@pytest.mark.parametrize("broken, rule", BREAKS, ids=lambda one: one.__name__)
async def test_a_gateway_that_breaks_a_rule_is_found_out(
    broken: type[SandboxGateway], rule: Callable[[World], Awaitable[None]]
) -> None:
    """The same rule holds of the whole gateway and fails of the broken one."""
    async with in_process() as whole:
        await rule(whole)
    async with in_process(broken) as world:
        with pytest.raises((AssertionError, Failed, GatewayRefused)):
            await rule(world)
