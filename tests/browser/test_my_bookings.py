"""The buyer's own bookings: give back, more time, pay on, and cancel where the event lets buyers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from .make_events import make_event
from .test_checkout import VISA, pay, to_payment

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator

    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

SOON = (datetime.now(UTC) + timedelta(days=10)).isoformat()
SELF_SERVICE = {"starts_at": SOON, "buyer_cancel_until_seconds": 86_400}


def test_without_bookings_the_page_leads_to_the_seats(visitor: Visitor) -> None:
    """An empty page says where to go."""
    visitor.page.goto(f"{visitor.home}/bookings")
    expect(visitor.page.locator("#none")).to_contain_text("You have no bookings in this browser yet.")
    visitor.page.get_by_role("link", name="Choose seats").click()
    visitor.sees_shop()


def test_a_hold_is_given_back(context: Callable[[], Visitor], demo: Demo) -> None:
    """It is free for others at once, and listed as given back."""
    buyer, other = context(), context()
    event = make_event(buyer, demo)
    other.open(event=event)
    card = booking_of(buyer, event, "A1")
    other.sees("A1", "held")

    card.get_by_role("button", name="Give back").click()

    buyer.shows_alert("row A, seat 1: given back.")
    other.sees("A1", "available")
    expect(buyer.page.get_by_role("article")).to_contain_text("given back")


def test_a_hold_gets_more_time_and_is_paid_from_the_list(visitor: Visitor, demo: Demo) -> None:
    """The clock of the list is that of the basket."""
    card = booking_of(visitor, make_event(visitor, demo), "A1")
    expect(card.get_by_role("timer")).to_have_text(re.compile("9:5|10:0"))
    card.get_by_role("button", name="2 minutes more").click()
    visitor.shows_alert("You have more time")
    expect(visitor.page.get_by_role("timer")).to_have_text(re.compile("11:5|12:0"))
    visitor.page.get_by_role("link", name="Pay", exact=True).click()
    expect(visitor.page.locator("#details")).to_be_visible()


def test_a_hold_that_runs_out_moves_to_the_past(visitor: Visitor, demo: Demo) -> None:
    """The list follows the server without a reload."""
    booking_of(visitor, make_event(visitor, demo, hold_ttl_seconds=4), "A1")
    expect(visitor.page.get_by_role("region", name="Past")).to_contain_text("time ran out")


def test_a_buyer_cancels_and_is_told_what_comes_back(context: Callable[[], Visitor], demo: Demo) -> None:
    """By the event's rules, said before it is done; the seat is free again, and the refund is on record."""
    buyer, other = context(), context()
    event = make_event(buyer, demo, refund_fee_percent=10, **SELF_SERVICE)
    other.open(event=event)
    card = sold_to(buyer, event, "A1")
    expect(card).to_contain_text("You can cancel until")

    card.get_by_role("button", name="Cancel booking").click()

    dialog = buyer.page.get_by_role("dialog", name="Cancel this booking?")
    expect(dialog).to_contain_text("You get €40.50 back, the way you paid. €4.50 is kept as a fee.")
    buyer.press("Yes, cancel")
    buyer.shows_alert("Cancelled. €40.50 is on its way back to you.")
    other.sees("A1", "available")
    expect(buyer.page.get_by_role("region", name="Past")).to_contain_text("cancelled")
    assert refunds_of(buyer) == [4050]


def test_a_buyer_who_thinks_again_keeps_the_booking(visitor: Visitor, demo: Demo) -> None:
    """The safe answer has the focus, and Escape is no cancellation."""
    card = sold_to(visitor, make_event(visitor, demo, **SELF_SERVICE), "A1")
    card.get_by_role("button", name="Cancel booking").click()
    expect(visitor.page.get_by_role("button", name="Keep it")).to_be_focused()
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.get_by_role("dialog")).to_be_hidden()
    assert [one["state"] for one in visitor.bookings] == ["confirmed"]


def test_a_cancellation_that_the_event_does_not_offer_is_not_shown(visitor: Visitor, demo: Demo) -> None:
    """The control: no button where the server would refuse."""
    card = sold_to(visitor, make_event(visitor, demo, starts_at=SOON), "A1")
    expect(card).to_contain_text("booked")
    expect(card.get_by_role("button")).to_have_count(0)


def test_a_cancellation_that_came_too_late_is_said(visitor: Visitor, demo: Demo) -> None:
    """The rules may change while the page is open: the server decides, and the booking stays."""
    visitor.refusals_expected.add(409)
    event = make_event(visitor, demo, **SELF_SERVICE)
    card = sold_to(visitor, event, "A1")
    patch(visitor, demo, event, buyer_cancel_until_seconds=None)
    card.get_by_role("button", name="Cancel booking").click()
    visitor.press("Yes, cancel")
    visitor.shows_alert("This booking cannot be cancelled here. Please ask the organiser.")
    expect(visitor.page.get_by_role("article")).to_contain_text("booked")


def booking_of(visitor: Visitor, event: str, seat: str) -> Locator:
    """Holds the seat, and opens the list."""
    visitor.open(event=event)
    visitor.choose(seat)
    visitor.page.get_by_role("link", name="My bookings").click()
    card = visitor.page.get_by_role("article")
    expect(card).to_be_visible()
    return card


def sold_to(visitor: Visitor, event: str, seat: str) -> Locator:
    """Buys the seat, and opens the list."""
    visitor.open(event=event)
    visitor.choose(seat)
    to_payment(visitor)
    pay(visitor, VISA)
    expect(visitor.page.locator("#ticket")).to_be_visible()
    visitor.page.get_by_role("link", name="My bookings").click()
    card = visitor.page.get_by_role("article")
    expect(card).to_be_visible()
    return card


def refunds_of(visitor: Visitor) -> list[int]:
    (booking,) = visitor.bookings
    answer = visitor.context.request.get(f"{visitor.home}/v1/bookings/{booking['id']}/payments")
    return [refund["amount"] for payment in answer.json()["payments"] for refund in payment["refunds"]]


def patch(visitor: Visitor, demo: Demo, event: str, **fields: Any) -> None:
    headers = {"Authorization": f"Bearer {demo.key}"}
    answer = visitor.context.request.patch(f"{demo.url}/v1/events/{event}", headers=headers, data=fields)
    assert answer.ok, answer.text()
