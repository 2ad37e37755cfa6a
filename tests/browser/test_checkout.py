"""From the seats to the ticket: details, payment with 3-D Secure, other cards, reloads, and time that is up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from .conftest import SCREEN, free_port, new_page, new_visitor, running_demo
from .make_events import call, make_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Route, ViewportSize

    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

PHONE: ViewportSize = {"width": 390, "height": 844}
DECLINED, CONFLICT = 402, 409
VISA = "pm_card_visa"
ASKS = "pm_card_threeDSecure2Required"
POOR = "pm_card_visa_chargeDeclinedInsufficientFunds"


@pytest.mark.parametrize("screen", [SCREEN, PHONE], ids=["desktop", "phone"])
def test_from_the_map_to_the_ticket_with_authentication(
    context: Callable[[], Visitor], demo: Demo, screen: ViewportSize
) -> None:
    """Choose, change the basket, give a name, authenticate at the bank, have the ticket; another buyer sees it all."""
    buyer, other = context(), context()
    event = make_event(buyer, demo)
    buyer.page.set_viewport_size(screen)
    buyer.open(event=event)
    other.open(event=event)
    buyer.choose("A1", "A2")
    other.sees("A2", "held")
    buyer.toggle("A1")
    other.sees("A1", "available")

    to_payment(buyer)
    pay(buyer, ASKS)
    buyer.press("Authenticate")

    expect(buyer.page.get_by_role("heading", name="It is yours")).to_be_visible()
    expect(buyer.page.locator("#ticket")).to_contain_text("row A, seat 2: booked")
    assert "payment_intent" not in buyer.page.url
    other.sees("A2", "sold")
    buyer.page.get_by_role("link", name="Open your tickets").click()
    expect(buyer.page.locator("#tickets")).to_contain_text("Row A, Seat 2")
    buyer.page.go_back()
    buyer.page.get_by_role("link", name="Back to the event").click()
    buyer.sees_shop()
    buyer.sees("A2", "yours")
    expect(buyer.page.locator("#basket-empty")).to_be_visible()


@pytest.mark.parametrize("mailed", [True, False, None], ids=["mailed", "not mailed", "not said"])
def test_a_mail_is_promised_only_where_one_is_sent(visitor: Visitor, demo: Demo, *, mailed: bool | None) -> None:
    """Else the buyer is shown the link of the tickets, to keep."""

    def say(route: Route) -> None:
        answer = route.fetch()
        kept = {key: value for key, value in answer.json().items() if key != "mailed"}
        route.fulfill(response=answer, json=kept | ({} if mailed is None else {"mailed": mailed}))

    visitor.page.route("**/contact", say)
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    to_payment(visitor)
    pay(visitor, VISA)
    tickets = visitor.page.get_by_role("link", name="Open your tickets").get_attribute("href")
    if mailed:
        expect(visitor.page.locator("#ticket-mail")).to_have_text("We are sending your tickets to ann@example.com.")
        expect(visitor.page.locator("#ticket-keep")).to_be_hidden()
    else:
        expect(visitor.page.locator("#ticket-mail")).to_be_hidden()
        expect(visitor.page.locator("#ticket-keep")).to_have_text(
            f"Keep this link: it opens your tickets, on every device. {tickets}"
        )
        expect(visitor.page.locator("#ticket-keep a")).to_have_attribute("href", str(tickets))


@pytest.mark.parametrize("prefix", ["", "/app"])
def test_tickets_are_found_under_a_prefix(visitor: Visitor, prefix: str) -> None:
    """The server's answer has the prefix under which it is mounted, and the page adds it no second time."""

    def mounted(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith("/tickets"):
            route.fulfill(json={"booking_id": "b", "page": f"{prefix}/t/secret", "tickets": []})
        else:
            route.fulfill(response=route.fetch(url=f"{visitor.home}{path.removeprefix(prefix)}"))

    visitor.page.route(re.compile("/app/|/tickets$"), mounted)
    visitor.page.goto(f"{visitor.home}/bookings")
    found = visitor.page.evaluate("async (module) => (await import(module)).ticketPage('b')", f"{prefix}/web/api.js")
    assert found == f"{visitor.home}{prefix}/t/secret"


def test_a_price_that_was_not_shown_is_not_paid(visitor: Visitor, demo: Demo) -> None:
    """The basket grew where this page did not hear of it: the new sum is shown, and the buyer presses again."""
    visitor.refusals_expected.add(CONFLICT)
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    to_payment(visitor)
    (booking,) = visitor.held
    change = f"{demo.url}/v1/bookings/{booking['id']}/change"
    body = {"add_seats": ["B2"], "drop_seats": [], "pools": {}}
    assert visitor.context.request.post(change, headers={"Idempotency-Key": "more"}, data=body).ok

    expect(visitor.page.locator(".payment-pay")).to_have_text("Pay €45.00")
    pay(visitor, VISA)

    expect(visitor.page.locator(".payment-alert")).to_contain_text("Your order has changed, and costs €90.00 now.")
    expect(visitor.page.locator("#order-total")).to_have_text("€90.00")
    assert [one["state"] for one in visitor.bookings] == ["held"]
    pay(visitor, VISA, label="Pay €90.00")
    expect(visitor.page.locator("#ticket-text")).to_contain_text("row B, seat 2: booked")


def test_a_declined_card_keeps_the_seats_and_another_card_pays(visitor: Visitor, demo: Demo) -> None:
    """The reason is said, nothing is lost, and the basket can still be changed before the next try."""
    visitor.refusals_expected.add(DECLINED)
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("B1")
    to_payment(visitor)
    pay(visitor, POOR)
    expect(visitor.page.locator("#pay")).to_contain_text(
        "There is not enough money on this card. You were not charged."
    )
    visitor.page.get_by_role("link", name="Change your seats").click()
    visitor.sees_shop()
    visitor.choose("B2")
    visitor.press("Checkout")
    expect(visitor.page.locator("#order-total")).to_have_text("€90.00")

    pay(visitor, VISA)

    expect(visitor.page.locator("#ticket-title")).to_be_focused()
    (booking,) = visitor.bookings
    assert (booking["state"], len(booking["seats"])) == ("confirmed", 2)


def test_a_buyer_who_leaves_the_bank_pays_with_another_card(visitor: Visitor, demo: Demo) -> None:
    """Back without an answer: the basket of the event says that a payment is open, and the checkout ends it."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    visitor.choose("A1")
    to_payment(visitor)
    pay(visitor, ASKS)
    expect(visitor.page.get_by_role("button", name="Authenticate")).to_be_visible()
    visitor.open(event=event)
    expect(visitor.page.locator("#basket-paying")).to_contain_text("A payment for this basket is under way")
    visitor.toggle("A3")
    visitor.shows_alert("A payment for this basket is under way")
    assert [len(one["seats"]) for one in visitor.bookings] == [1]

    visitor.page.locator("#notice-act").click()
    expect(visitor.page.locator("earmark-payment")).to_contain_text("Your bank still wants to confirm that it is you.")
    pay(visitor, VISA)

    expect(visitor.page.locator("#ticket")).to_be_visible()


def test_a_reload_at_every_step_leads_back_to_it(visitor: Visitor, demo: Demo) -> None:
    """Nothing is kept in the page: what is shown follows from the server."""
    visitor.refusals_expected.add(DECLINED)
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    visitor.press("Checkout")
    steps = {"details": None, "pay": None, "ticket": None}
    for step in steps:
        expect(visitor.page.locator(f'[data-step="{step}"]')).to_have_attribute("aria-current", "step")
        visitor.page.reload()
        expect(visitor.page.locator(f'[data-step="{step}"]')).to_have_attribute("aria-current", "step")
        expect(visitor.page.locator(f"#{step}")).to_be_visible()
        if step == "details":
            give_details(visitor)
        elif step == "pay":
            expect(visitor.page.locator("#pay-contact")).to_contain_text("Tickets for Ann Lee, ann@example.com.")
            pay(visitor, VISA)


def test_a_server_that_restarts_amid_a_payment_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    """The seats stay the buyer's, and the page goes on as soon as the server is back."""
    port = free_port()
    database = f"sqlite:///{tmp_path}/shop.sqlite3"
    page = new_page(browser)
    with running_demo(tmp_path, "--database", database, port=port) as url:
        guest = new_visitor(page, url)
        guest.open()
        (seat,) = guest.free_seats(1)
        guest.choose(seat)
        to_payment(guest)
    with running_demo(tmp_path, "--database", database, port=port):
        pay(guest, VISA)
        expect(guest.page.locator("#ticket")).to_be_visible()
    page.context.close()


def test_the_details_are_checked_in_words(visitor: Visitor, demo: Demo) -> None:
    """What is wrong stands at its field, is read aloud with it, and the first of them has the focus."""
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    visitor.press("Checkout")
    visitor.press("Continue to payment")
    name, email = (visitor.page.get_by_label(label) for label in ("Name", "E-mail address"))
    expect(name).to_be_focused()
    expect(name).to_have_accessible_description("Please enter your name.")
    name.fill("Ann Lee")
    email.fill("ann@")
    visitor.press("Continue to payment")
    expect(email).to_be_focused()
    expect(email).to_have_accessible_description(
        "Please check the e-mail address: it should look like name@example.org."
    )
    expect(email).to_have_attribute("aria-invalid", "true")
    expect(name).to_have_attribute("aria-invalid", "false")


def test_what_costs_nothing_is_booked_without_a_card(visitor: Visitor, demo: Demo) -> None:
    """No card is asked for where nothing is to be paid."""
    visitor.open(event=make_event(visitor, demo, layout={"rows": 1, "seats_per_row": 4, "price": 0}, pools=[]))
    visitor.choose("A1")
    visitor.press("Checkout")
    give_details(visitor, button="Continue")
    expect(visitor.page.get_by_role("radio")).to_have_count(0)
    visitor.press("Book now, it is free")
    expect(visitor.page.locator("#ticket")).to_be_visible()


def test_time_that_runs_out_at_the_checkout_is_told_and_can_be_had_again(visitor: Visitor, demo: Demo) -> None:
    """The buyer is not left before a form that cannot be sent any more."""
    visitor.open(event=make_event(visitor, demo, hold_ttl_seconds=4))
    visitor.choose("A1")
    visitor.press("Checkout")
    expect(visitor.page.get_by_role("heading", name="Time is up")).to_be_visible()
    expect(visitor.page.locator("#ended")).to_contain_text("You were not charged.")
    visitor.press("Try to get them again")
    expect(visitor.page.locator("#details")).to_be_visible()
    assert [one["state"] for one in visitor.bookings] == ["expired", "held"]


def test_seats_that_are_gone_when_they_are_wanted_again_are_said(context: Callable[[], Visitor], demo: Demo) -> None:
    """The other way out is to choose again at the event."""
    buyer, other = context(), context()
    buyer.refusals_expected.add(409)
    event = make_event(buyer, demo, hold_ttl_seconds=3)
    buyer.open(event=event)
    buyer.choose("A1")
    buyer.press("Checkout")
    expect(buyer.page.locator("#ended")).to_be_visible()
    call(other, demo, "/v1/bookings", event_id=event, buyer="faster", seats=["A1"], ttl_seconds=600)

    buyer.press("Try to get them again")

    buyer.shows_alert("Another buyer was faster")
    buyer.page.get_by_role("link", name="Choose again").click()
    buyer.sees_shop()


def test_a_payment_that_takes_its_time_ends_without_a_press(visitor: Visitor, demo: Demo) -> None:
    """The seats stay the buyer's meanwhile, no clock runs, and the ticket comes by itself."""
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    to_payment(visitor)
    pay(visitor, "pm_card_processing_then_paid")
    expect(visitor.page.locator("earmark-payment")).to_contain_text("Your payment is being processed.")
    expect(visitor.page.locator("#order-clock")).to_be_hidden()
    expect(visitor.page.locator("#ticket")).to_be_visible(timeout=40_000)


def test_a_seat_added_in_another_tab_is_in_the_price_that_is_paid(visitor: Visitor, demo: Demo) -> None:
    """No buyer pays another sum than the one on the button."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    visitor.choose("A1")
    to_payment(visitor)
    expect(visitor.page.get_by_role("button", name="Pay €45.00")).to_be_visible()
    tab = new_visitor(visitor.context.new_page(), visitor.home)
    tab.open(event=event)

    tab.choose("A2")

    expect(visitor.page.locator("#order-total")).to_have_text("€90.00")
    expect(visitor.page.get_by_role("button", name="Pay €90.00")).to_be_visible()
    tab.page.close()


def test_a_payment_that_ends_by_itself_is_listed_without_a_reload(visitor: Visitor, demo: Demo) -> None:
    """The list follows the payment without a reload."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    visitor.choose("A1")
    to_payment(visitor)
    pay(visitor, "pm_card_processing_then_paid")
    expect(visitor.page.locator("earmark-payment")).to_contain_text("Your payment is being processed.")
    visitor.page.goto(f"{visitor.home}/bookings")
    expect(visitor.page.get_by_role("article")).to_contain_text("payment under way")
    expect(visitor.page.get_by_role("region", name="Yours")).to_contain_text("booked", timeout=40_000)


def test_the_clock_of_the_checkout_can_be_given_more_time(visitor: Visitor, demo: Demo) -> None:
    """Typing takes some buyers longer."""
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    visitor.press("Checkout")
    visitor.press("2 minutes more")
    expect(visitor.page.locator("#order-clock")).to_have_text(re.compile("11:[0-9][0-9]"))


def test_the_clock_stays_in_sight_on_a_phone(visitor: Visitor, demo: Demo) -> None:
    """The cards are a long list: time and sum stay above it."""
    visitor.page.set_viewport_size(PHONE)
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    to_payment(visitor)
    expect(visitor.page.get_by_role("radio").first).to_be_visible()
    visitor.page.get_by_role("button", name="Pay €45.00").scroll_into_view_if_needed()
    expect(visitor.page.locator("#bar-clock")).to_be_in_viewport(ratio=1)
    expect(visitor.page.locator("#bar-total")).to_have_text("€45.00")


def test_the_box_office_marks_a_hold_as_paid(visitor: Visitor, demo: Demo) -> None:
    """With its key in the tab, which no other request carries."""
    carried: list[str] = []
    visitor.page.on("request", lambda one: carried.append(one.url) if "authorization" in one.headers else None)
    visitor.open(event=make_event(visitor, demo), key=demo.key)
    visitor.choose("A1")
    to_payment(visitor)
    assert carried == []
    visitor.press("Mark as paid (box office)")
    expect(visitor.page.locator("#ticket")).to_be_visible()
    assert [url.rpartition("/")[2] for url in carried] == ["confirm"]


def test_the_booking_of_another_buyer_is_not_shown(context: Callable[[], Visitor], demo: Demo) -> None:
    """A link to a checkout shows nothing to a browser that did not choose the seats."""
    buyer, other = context(), context()
    buyer.open(event=make_event(buyer, demo))
    buyer.choose("A1")
    (booking,) = buyer.held
    other.refusals_expected.add(404)
    other.page.goto(f"{other.home}/checkout?booking={booking['id']}")
    expect(other.page.get_by_role("heading", name="This booking was not found")).to_be_visible()


def test_from_the_map_to_the_ticket_by_keyboard_alone(visitor: Visitor, demo: Demo) -> None:
    """No step needs a mouse, and the focus is where the buyer goes on."""
    visitor.open(event=make_event(visitor, demo))
    keyboard = visitor.page.keyboard
    tab_to(visitor, "[role=gridcell]", "map")
    for key in ("ArrowRight", "ArrowDown", "Space"):
        keyboard.press(key)
    visitor.sees("B2", "heldForYou")
    tab_to(visitor, "#basket-checkout")
    keyboard.press("Enter")
    expect(visitor.page.locator("#details")).to_be_visible()
    tab_to(visitor, "#details-name")
    keyboard.type("Ann Lee")
    keyboard.press("Tab")
    keyboard.type("ann@example.com")
    keyboard.press("Enter")
    expect(visitor.page.locator("#pay-title")).to_be_focused()
    expect(visitor.page.get_by_role("radio").first).to_be_visible()
    tab_to(visitor, "input[type=radio]")
    keyboard.press("Space")
    tab_to(visitor, ".payment-pay")
    keyboard.press("Enter")
    expect(visitor.page.locator("#ticket-title")).to_be_focused()


def to_payment(visitor: Visitor) -> None:
    """From the basket, over the details, to the payment."""
    visitor.press("Checkout")
    give_details(visitor)


def give_details(visitor: Visitor, *, button: str = "Continue to payment") -> None:
    visitor.page.get_by_label("Name").fill("Ann Lee")
    visitor.page.get_by_label("E-mail address").fill("ann@example.com")
    visitor.press(button)
    expect(visitor.page.locator("#pay")).to_be_visible()


def pay(visitor: Visitor, card: str, *, label: str | None = None) -> None:
    visitor.page.locator("earmark-payment legend").wait_for()
    visitor.page.locator("earmark-payment details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    visitor.page.locator(f'input[value="{card}"]').check()
    if label:
        expect(visitor.page.locator(".payment-pay")).to_have_text(label)
    visitor.page.locator(".payment-pay").click()


def tab_to(visitor: Visitor, selector: str, shadow_of: str | None = None) -> None:
    """Presses the tab key until the focus is there."""
    inner = f"document.getElementById('{shadow_of}').shadowRoot." if shadow_of else "document."
    for _ in range(60):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate(f"() => Boolean({inner}activeElement?.matches('{selector}'))"):
            return
    pytest.fail(f"the tab key does not reach {selector}")
