"""Builds a gateway's orders from payments and refunds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.engine.ports.gateway import Order, RefundOrder

if TYPE_CHECKING:
    from earmark.domain.payment import Payment, Refund


def order_of(payment: Payment) -> Order:
    """The order for a payment, as its gateway needs it."""
    return Order(
        payment_id=payment.id,
        booking_id=payment.booking_id,
        event_id=payment.event_id,
        amount=payment.amount,
        currency=payment.currency,
        method=payment.method,
        automatic=payment.automatic,
        created_at=payment.created_at,
        return_url=payment.return_url,
        gateway_id=payment.gateway_id,
    )


def refund_order_of(refund: Refund, payment: Payment) -> RefundOrder:
    """The order for a refund, as its gateway needs it."""
    return RefundOrder(
        refund_id=refund.id,
        payment=order_of(payment),
        amount=refund.amount,
        created_at=refund.created_at,
        gateway_id=refund.gateway_id,
    )
