"""The control of the conformance tests: each broken gateway fails the rule that it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from _pytest.outcomes import Failed

from earmark.domain.payment import ReportedState
from earmark.engine.ports.gateway import GatewayRefused, RefundReport, Report, ReportedRefundState
from earmark.sandbox import sign_and_verify_callbacks
from earmark.sandbox.gateway import SandboxGateway
from earmark.uuids import Uuid7Ids

from . import test_authorise_capture_void, test_callbacks, test_refunds
from .gateways_under_test import in_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from datetime import datetime

    from earmark.engine.ports.gateway import Callback, Order, Record, RefundOrder

    from .harness import GatewayHarness


class IgnoresPaymentIds(SandboxGateway):
    """Treats every order as a new payment."""

    async def authorise(self, order: Order) -> Report:
        """Replace the id by a new one."""
        return await super().authorise(msgspec.structs.replace(order, payment_id=Uuid7Ids().payment_id()))


class SearchesOnlyByGatewayId(SandboxGateway):
    """Reports absent without looking for our id."""

    async def status(self, order: Order) -> Report:
        """Only with a gateway id."""
        return await super().status(order) if order.gateway_id else Report(state=ReportedState.ABSENT)


class CapturesTooEarly(SandboxGateway):
    """Captures when it should only authorise."""

    async def authorise(self, order: Order) -> Report:
        """Captured, and reported as authorised."""
        report = await super().authorise(msgspec.structs.replace(order, automatic=True))
        return msgspec.structs.replace(report, state=ReportedState.AUTHORISED, captured=0)


class ReportsEveryRefundAsDone(SandboxGateway):
    """Reports refunds as done that were refused."""

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Report done in every case."""
        report = await super().refund(refund)
        return msgspec.structs.replace(report, state=ReportedRefundState.DONE)


class IgnoresRefundIds(SandboxGateway):
    """Makes another refund when the same one is requested again."""

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Replace the id by a new one."""
        return await super().refund(msgspec.structs.replace(refund, refund_id=Uuid7Ids().refund_id()))


class RaisesInsteadOfReporting(SandboxGateway):
    """Raises where a report of the state is due."""

    async def void(self, order: Order) -> Report:
        """Raise for a captured payment."""
        report = await super().void(order)
        if report.state is ReportedState.CAPTURED:
            raise GatewayRefused("payment_intent_unexpected_state")
        return report


class ListsNoRefunds(SandboxGateway):
    """Lists payments without their refunds."""

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Each record with a refunded amount of zero."""
        async for record in super().books(since=since):
            yield msgspec.structs.replace(record, refunded=0)


class AcceptsEverySignature(SandboxGateway):
    """Accepts every callback."""

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Sign the body before reading it."""
        assert headers is not None
        secret, now = self.sandbox.secret, self.sandbox.clock.now()
        return super().read_callback(
            {sign_and_verify_callbacks.HEADER: sign_and_verify_callbacks.sign(body, secret=secret, now=now)}, body
        )


BREAKS: list[tuple[type[SandboxGateway], Callable[[GatewayHarness], Awaitable[None]]]] = [
    (IgnoresPaymentIds, test_authorise_capture_void.test_the_same_order_again_is_the_same_payment),
    (IgnoresPaymentIds, test_authorise_capture_void.test_the_same_id_with_another_amount_is_refused),
    (SearchesOnlyByGatewayId, test_authorise_capture_void.test_a_payment_is_found_by_our_id),
    (CapturesTooEarly, test_authorise_capture_void.test_money_is_set_aside_and_not_taken),
    (RaisesInsteadOfReporting, test_authorise_capture_void.test_a_void_after_the_capture_says_that_it_was_captured),
    (ListsNoRefunds, test_authorise_capture_void.test_listed_payments_agree_with_their_status),
    (ReportsEveryRefundAsDone, test_refunds.test_parts_are_refunded_until_nothing_is_left),
    (ReportsEveryRefundAsDone, test_refunds.test_more_than_is_left_is_refused_whole),
    (IgnoresRefundIds, test_refunds.test_a_repeated_refund_pays_nothing_more),
    (AcceptsEverySignature, test_callbacks.test_a_signature_with_another_secret_is_refused),
    (AcceptsEverySignature, test_callbacks.test_a_callback_without_a_signature_is_refused),
]


@pytest.mark.parametrize("broken, rule", BREAKS, ids=lambda one: one.__name__)
async def test_a_broken_gateway_fails_the_rule_that_it_breaks(
    broken: type[SandboxGateway], rule: Callable[[GatewayHarness], Awaitable[None]]
) -> None:
    """The rule passes with the intact gateway and fails with the broken one."""
    async with in_process() as whole:
        await rule(whole)
    async with in_process(broken) as harness:
        with pytest.raises((AssertionError, Failed, GatewayRefused)):
            await rule(harness)
