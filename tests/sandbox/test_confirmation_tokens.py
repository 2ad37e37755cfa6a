"""Confirmation tokens over HTTP, with Stripe's official client: one payment each, and an action in the shop's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import stripe

from earmark.sandbox.confirmation_tokens import LIFE

from .support import create

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.sandbox.server import RunningSandbox


def issue(client: stripe.StripeClient, method: str = "pm_card_visa") -> str:
    """What Stripe.js would make of a card that a buyer typed."""
    token = client.v1.test_helpers.confirmation_tokens.create({"payment_method": method})
    assert (token.object, token.use_stripe_sdk) == ("confirmation_token", True)
    return token.id


def confirm(client: stripe.StripeClient, token: str, *, key: str = "one") -> Any:
    """Create and confirm an intent with a token in place of a method."""
    fields: Any = {"amount": 4500, "currency": "eur", "confirm": True, "confirmation_token": token}
    fields |= {"capture_method": "manual", "return_url": "https://shop.example/checkout"}
    return client.v1.payment_intents.create(fields, {"idempotency_key": key})


def test_a_token_confirms_a_payment_with_its_card(client: stripe.StripeClient) -> None:
    """As if the method had been named."""
    intent = confirm(client, issue(client, "pm_card_mastercard"))
    assert (intent.status, intent.payment_method) == ("requires_capture", "pm_card_mastercard")


def test_a_token_is_used_once_and_the_same_request_is_answered_again(client: stripe.StripeClient) -> None:
    """Under its key; another request with the token is refused."""
    token = issue(client)
    first = confirm(client, token, key="one")
    assert confirm(client, token, key="one").id == first.id
    with pytest.raises(stripe.InvalidRequestError) as refused:
        confirm(client, token, key="two")
    assert refused.value.param == "confirmation_token"


def test_a_token_ends_after_half_a_day(client: stripe.StripeClient, running: RunningSandbox) -> None:
    """As at Stripe."""
    token = issue(client)

    def wait(sandbox: Any) -> None:
        clock: MovableClock = sandbox.clock
        clock.advance(LIFE.total_seconds())

    running.do(wait)
    with pytest.raises(stripe.InvalidRequestError, match="ConfirmationToken"):
        confirm(client, token)


def test_the_action_of_a_token_is_handled_in_the_page(client: stripe.StripeClient) -> None:
    """By Stripe.js; with a method the buyer is sent to a page instead."""
    intent = confirm(client, issue(client, "pm_card_threeDSecure2Required"))
    assert (intent.status, intent.next_action.type) == ("requires_action", "use_stripe_sdk")
    sent = create(client, "pm_card_threeDSecure2Required")
    assert sent.next_action.type == "redirect_to_url"


def test_no_token_is_made_of_an_unknown_method(client: stripe.StripeClient) -> None:
    """A misspelt name is told at once."""
    with pytest.raises(stripe.InvalidRequestError, match="No such PaymentMethod"):
        issue(client, "pm_card_nonesuch")
