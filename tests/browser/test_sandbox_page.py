"""3-D Secure in the real demo: the page of the sandbox, in a real browser."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from .conftest import KEY, THEATRE

if TYPE_CHECKING:
    from .conftest import Visitor

pytestmark = pytest.mark.browser


def post(visitor: Visitor, path: str, **body: Any) -> Any:
    """A call of the shop's."""
    headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": os.urandom(8).hex()}
    return visitor.context.request.post(f"{visitor.home}{path}", data=body, headers=headers)


def paying(visitor: Visitor, seat: str, **how: str) -> tuple[str, str]:
    """A booking that waits for its buyer, and the address where the buyer authenticates."""
    booking = post(visitor, "/v1/bookings", event_id=THEATRE, buyer="alice", seats=[seat]).json()["id"]
    answer = post(visitor, f"/v1/bookings/{booking}/pay", method="pm_card_threeDSecure2Required", **how)
    assert answer.status == 202, answer.text()
    return booking, answer.json()["payment"]["action"]["url"]


def test_a_buyer_authenticates_in_the_demo_and_returns_to_the_shop(visitor: Visitor) -> None:
    """By the address in the answer, with nothing but the demo running; the map then shows the seat as sold."""
    visitor.open()
    [seat] = visitor.free_seats(1)
    _, url = paying(visitor, seat, return_url=f"{visitor.home}/?event={THEATRE}")
    visitor.page.goto(url)
    visitor.press("Authenticate")
    visitor.sees_shop()
    assert "redirect_status=succeeded" in visitor.page.url
    visitor.sees(seat, "sold")


def test_a_buyer_who_fails_pays_with_another_card(visitor: Visitor) -> None:
    """The hold is still there."""
    visitor.open()
    [seat] = visitor.free_seats(1)
    booking, url = paying(visitor, seat)
    visitor.page.goto(url)
    visitor.press("Fail")
    expect(visitor.page.get_by_text("The payment has failed")).to_be_visible()
    sold = post(visitor, f"/v1/bookings/{booking}/pay", method="pm_card_mastercard")
    assert (sold.status, sold.json()["state"]) == (200, "confirmed")
