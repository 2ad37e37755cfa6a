"""What pages may load, told to the browser: what this server has, and on the checkout page Stripe where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from earmark.payments.choose_gateway_and_pay import PaymentService

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
STRIPE_POLICY = (
    f"{POLICY}; script-src 'self' https://js.stripe.com; frame-src https://js.stripe.com https://hooks.stripe.com; "
    "connect-src 'self' https://api.stripe.com"
)
"""Stripe.js comes from js.stripe.com alone: Stripe allows no copy of it."""
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def checkout_page_headers(payments: PaymentService) -> dict[str, str]:
    """The headers of the checkout page: those of every page, and Stripe's hosts where it takes cards for Stripe."""
    if payments.stripe_publishable_key is None:
        return dict(SECURITY_HEADERS)
    return SECURITY_HEADERS | {"Content-Security-Policy": STRIPE_POLICY}
