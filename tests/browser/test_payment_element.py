"""<earmark-payment> in the real demo, on a page of these tests: every way a payment goes, and what a reload shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.browser.checkout_page import Checkout, checkout_of
from tests.browser.conftest import KEY, THEATRE

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from .conftest import Visitor

pytestmark = pytest.mark.browser

DECLINED = 402
ASKS = "pm_card_threeDSecure2Required"
VISA = "pm_card_visa"


@pytest.fixture
def checkout(visitor: Visitor) -> Checkout:
    """A guest who holds a seat, on the page that pays for it."""
    return checkout_of(visitor)


def test_a_visa_card_pays_and_a_reload_shows_that_it_is_paid(checkout: Checkout) -> None:
    """One charge; the page is told once for each load."""
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid. Your booking is confirmed.")
    assert checkout.events("earmark-paid") == [{"state": "confirmed"}]
    checkout.reload()
    checkout.sees("paid", "Paid. Your booking is confirmed.")
    assert checkout.charges() == [("captured", VISA)]


def test_a_declined_card_says_why_and_another_card_pays(checkout: Checkout) -> None:
    """The reason is in plain words, also after a reload; the next try has a key of its own."""
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.choose("pm_card_visa_chargeDeclinedInsufficientFunds")
    checkout.press("Pay €45.00")
    told = "There is not enough money on this card. You were not charged. Please choose another card."
    checkout.hears(told)
    assert checkout.events("earmark-declined") == [{"why": "insufficient_funds", "state": "held"}]
    checkout.reload()
    checkout.hears(told)
    assert checkout.events("earmark-declined") == []
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert [state for state, _ in checkout.charges()] == ["failed", "captured"]


@pytest.mark.parametrize("card", ["LostCard", "StolenCard"])
def test_a_buyer_is_not_told_that_a_card_is_stolen(checkout: Checkout, card: str) -> None:
    """Stripe asks shops not to: a thief would learn it too."""
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.choose(f"pm_card_visa_chargeDeclined{card}")
    checkout.press("Pay €45.00")
    checkout.hears("Your bank declined this card.")


def test_a_buyer_authenticates_and_comes_back_to_a_paid_booking(checkout: Checkout) -> None:
    """The bank's page is opened by itself; afterwards the secret is out of the address bar."""
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    expect(checkout.page.get_by_role("heading", name="Sandbox bank")).to_be_visible()
    checkout.visitor.press("Authenticate")
    checkout.sees("paid", "Paid.")
    assert "payment_intent" not in checkout.page.url
    assert checkout.charges() == [("captured", ASKS)]


def test_a_buyer_who_fails_at_the_bank_hears_it_and_pays_with_another_card(checkout: Checkout) -> None:
    """Back from the bank the server is asked, and the hold is still there."""
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    checkout.visitor.press("Fail")
    checkout.hears("Your bank could not confirm that it was you.")
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")


@pytest.mark.parametrize("leave", ["by the link", "by the browser's back"])
def test_a_buyer_who_leaves_the_bank_pays_with_another_card(checkout: Checkout, leave: str) -> None:
    """The open payment is ended first: one charge, and the first intent is void."""
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    expect(checkout.page.get_by_role("heading", name="Sandbox bank")).to_be_visible()
    if leave == "by the link":
        checkout.page.get_by_role("link", name="Back to the shop without an answer").click()
    else:
        checkout.page.go_back()
    checkout.sees("acting", "Your bank still wants to confirm that it is you.")
    checkout.reload()
    checkout.sees("acting", "Your bank still wants to confirm that it is you.")
    checkout.choose(VISA)
    checkout.press("Pay €45.00 with this card")
    checkout.sees("paid", "Paid.")
    assert checkout.charges() == [("failed", ASKS), ("captured", VISA)]


def test_a_buyer_who_left_the_bank_goes_on_there(checkout: Checkout) -> None:
    """The same page, and no second payment."""
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    checkout.page.get_by_role("link", name="Back to the shop without an answer").click()
    checkout.press("Continue at your bank")
    checkout.visitor.press("Authenticate")
    checkout.sees("paid", "Paid.")
    assert checkout.charges() == [("captured", ASKS)]


def test_a_buyer_who_pays_at_the_bank_in_another_tab_sees_it_here(checkout: Checkout) -> None:
    """The page asks the server while it waits, and offers no second payment afterwards."""
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    expect(checkout.page.get_by_role("heading", name="Sandbox bank")).to_be_visible()
    bank = checkout.page.url
    checkout.page.get_by_role("link", name="Back to the shop without an answer").click()
    checkout.sees("acting", "Your bank still wants")
    answered = checkout.page.context.request.post(bank, form={"answer": "authorise"}, max_redirects=0)
    assert answered.status == 303
    checkout.sees("paid", "Paid.")
    expect(checkout.page.get_by_role("button", name="Pay")).to_have_count(0)


def test_a_payment_in_processing_keeps_the_seats_and_offers_no_second_one(checkout: Checkout) -> None:
    """The page waits, also after a reload, and shows by itself that it is paid."""
    checkout.choose("pm_card_processing_then_paid")
    checkout.press("Pay €45.00")
    checkout.sees("processing", "Your seats stay yours meanwhile, and you need not pay again.")
    assert checkout.events("earmark-processing") == [{"state": "paying"}]
    expect(checkout.page.get_by_role("button", name=re.compile("Pay"))).to_have_count(0)
    checkout.reload()
    checkout.sees("processing", "Your payment is being processed.")
    checkout.sees("paid", "Paid.", seconds=60)
    assert checkout.charges() == [("captured", "pm_card_processing_then_paid")]


def test_a_free_booking_needs_no_card(visitor: Visitor) -> None:
    """One button, and no list of cards."""
    checkout = checkout_of(visitor, price=0)
    expect(checkout.page.get_by_role("radio")).to_have_count(0)
    checkout.press("Book now, it is free")
    checkout.sees("paid", "Your booking is confirmed.")
    checkout.reload()
    checkout.sees("paid", "Your booking is confirmed.")
    assert checkout.charges() == []


def test_a_double_click_and_a_lost_answer_pay_once(checkout: Checkout) -> None:
    """The first answer is cut off on its way; the same key is sent again, and the form is locked meanwhile."""
    keys: list[str] = []

    def lose_first(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            return route.continue_()
        route.fetch()
        return route.abort()

    checkout.visitor.losses_expected = True
    checkout.page.route("**/pay", lose_first)
    checkout.choose(VISA)
    checkout.page.get_by_role("button", name="Pay €45.00").dblclick()
    checkout.sees("paid", "Paid.")
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert checkout.charges() == [("captured", VISA)]


def test_a_reload_while_the_request_is_under_way_pays_once(checkout: Checkout) -> None:
    """The request did not arrive: the card is still chosen, and Pay sends the same key."""
    keys: list[str] = []

    def never_arrives(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            route.continue_()

    checkout.page.route("**/pay", never_arrives)
    checkout.choose(VISA)
    with checkout.page.expect_request("**/pay"):
        checkout.press("Pay €45.00")
    expect(checkout.card(VISA)).to_be_disabled()
    checkout.reload()
    expect(checkout.card(VISA)).to_be_checked()
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_server_that_does_not_answer_is_asked_until_it_does(checkout: Checkout) -> None:
    """The buyer reads that nothing is charged twice, then that nothing arrived; the same try goes on."""
    checkout.visitor.losses_expected = True
    lost = "**/pay"
    checkout.page.route(lost, lambda route: route.abort())
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.hears("Your payment has not arrived, and you were not charged.")
    checkout.page.unroute(lost)
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert checkout.charges() == [("captured", VISA)]


def test_a_capture_that_fails_ends_the_booking_in_plain_words(checkout: Checkout) -> None:
    """The page is told that the booking is over."""
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.choose("pm_card_capture_fail")
    checkout.press("Pay €45.00")
    checkout.hears("Your bank did not accept this payment. You were not charged, and the seats are free again.")
    assert checkout.state() == "over"
    assert [event["state"] for event in checkout.events("earmark-ended")] == ["cancelled"]
    checkout.reload()
    checkout.sees("over", "This booking can no longer be paid.")


def test_with_the_keyboard_alone(checkout: Checkout) -> None:
    """One stop for the cards, one for those behind it, arrows choose; after a decline the reason has the focus."""
    checkout.visitor.refusals_expected.add(DECLINED)
    keyboard = checkout.page.keyboard
    checkout.page.locator("h1").focus()
    keyboard.press("Tab")
    expect(checkout.card(VISA)).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("Enter")
    expect(checkout.card("pm_card_visa_chargeDeclined")).to_be_visible()
    keyboard.press("Shift+Tab")
    for _ in range(5):
        keyboard.press("ArrowDown")
    expect(checkout.card("pm_card_visa_chargeDeclined")).to_be_checked()
    keyboard.press("Tab")
    keyboard.press("Enter")
    checkout.hears("Your bank declined this card.")
    expect(checkout.page.get_by_role("alert")).to_be_focused()
    for key in ("Tab", "Tab", "ArrowUp"):
        keyboard.press(key)
    keyboard.press("Enter")
    checkout.sees("paid", "Paid.")
    expect(checkout.page.get_by_role("status")).to_be_focused()


def test_every_card_is_large_enough_for_a_finger(checkout: Checkout) -> None:
    """44 pixels, the button too; each has its name and what will happen."""
    assert [card.is_visible() for card in checkout.page.locator(".payment-card").all()[:4]] == [True, True, True, False]
    checkout.page.get_by_text("More test cards").click()
    for target in checkout.page.locator(".payment-card, .payment-more summary, .payment-pay").all():
        box = target.bounding_box()
        assert box is not None
        assert box["height"] >= 44
    expect(checkout.page.get_by_text("This card is declined: too little money.")).to_be_visible()
    expect(checkout.page.get_by_text("Visa … 4242")).to_be_visible()


def test_pay_without_a_card_asks_for_one(checkout: Checkout) -> None:
    """And sends nothing."""
    checkout.press("Pay €45.00")
    checkout.hears("Please choose a card.")
    assert checkout.charges() == []


def test_the_words_are_german_on_a_german_page(visitor: Visitor) -> None:
    """Cards, amounts and reasons."""
    visitor.refusals_expected.add(DECLINED)
    checkout = checkout_of(visitor, language="de")
    checkout.page.get_by_text("Weitere Testkarten").click()
    expect(checkout.page.get_by_text("Wird abgelehnt: zu wenig Geld.")).to_be_visible()
    expect(checkout.page.get_by_text("This card")).to_have_count(0)
    checkout.choose("pm_card_chargeDeclinedExpiredCard")
    checkout.press("45,00 € bezahlen")
    checkout.hears("Diese Karte ist abgelaufen. Es wurde nichts abgebucht.")


def test_both_languages_have_the_same_words(checkout: Checkout) -> None:
    """A missing one would show as nothing; every offered card has its own in German."""
    told = checkout.page.evaluate(
        """async () => {
          const [en, de] = await Promise.all(["en", "de"].map((one) => import(`/web/texts/payment-${one}.js`)));
          const names = ({ default: texts }) => [...Object.keys(texts), ...Object.keys(texts.reasons)].sort();
          const { gateways } = await (await fetch("/v1/events/theatre/payment-methods")).json();
          const untold = gateways[0].cards.filter((card) => de.default.cardDoes(card) === card.does);
          return { en: names(en), de: names(de), untold };
        }"""
    )
    assert told["en"] == told["de"]
    assert told["untold"] == []


def test_an_open_payment_that_cannot_be_replaced_any_more_is_said(checkout: Checkout) -> None:
    """Once the hold's own time is over the server answers with the open payment: the buyer stays on the page."""
    answers: list[str] = []

    def same_again(route: Route) -> None:
        if answers:
            return route.fulfill(status=202, body=answers[0], content_type="application/json")
        answer = route.fetch()
        answers.append(answer.text())
        return route.fulfill(response=answer)

    checkout.page.route("**/pay", same_again)
    checkout.choose(ASKS)
    checkout.press("Pay €45.00")
    checkout.page.get_by_role("link", name="Back to the shop without an answer").click()
    checkout.choose(VISA)
    checkout.press("Pay €45.00 with this card")
    checkout.hears("Your first payment cannot be replaced any more. Please finish it at your bank.")
    checkout.press("Continue at your bank")
    checkout.visitor.press("Authenticate")
    checkout.sees("paid", "Paid.")
    assert checkout.charges() == [("captured", ASKS)]


@pytest.mark.parametrize(
    "status, code, words",
    [
        (503, "gateway_unavailable", "The shop cannot take payments right now. You were not charged"),
        (409, "too_many_declines", "Too many cards were declined."),
        (422, "invalid_request", "This did not work: it is not right"),
    ],
)
def test_a_refusal_is_said_in_plain_words_and_the_form_is_open_again(
    checkout: Checkout, status: int, code: str, words: str
) -> None:
    """With the same card: a refusal that comes to nothing keeps the buyer where they are."""
    problem = json.dumps({"code": code, "detail": "it is not right"})
    checkout.visitor.refusals_expected.add(status)
    checkout.page.route("**/pay", lambda route: route.fulfill(status=status, body=problem))
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.hears(words)
    assert checkout.state() == "ready"
    expect(checkout.card(VISA)).to_be_checked()


def test_an_event_without_a_way_to_pay_says_so(visitor: Visitor) -> None:
    """No button that cannot work."""
    none = json.dumps({"event_id": "one", "currency": "EUR", "gateways": []})
    visitor.page.route("**/payment-methods", lambda route: route.fulfill(body=none, content_type="application/json"))
    checkout = checkout_of(visitor, state="unavailable")
    checkout.hears("This event cannot be paid online at the moment.")
    expect(checkout.page.get_by_role("button", name="Pay")).to_have_count(0)


def test_a_page_may_give_a_buyers_token(checkout: Checkout) -> None:
    """In place of the guest's cookie, which is then not sent."""
    request = checkout.page.context.request
    office, home = {"Authorization": f"Bearer {KEY}"}, checkout.visitor.home
    token = request.post(f"{home}/v1/tokens", data={"buyer": "alice"}, headers=office).json()["token"]
    claim = {"event_id": THEATRE, "buyer": "alice", "pools": {"standing": 1}}
    checkout.booking = request.post(f"{home}/v1/bookings", data=claim, headers=office).json()["id"]
    checkout.page.evaluate(
        "(given) => Object.assign(document.querySelector('earmark-payment'), given)",
        {"token": token, "booking": checkout.booking},
    )
    expect(checkout.page.get_by_role("button", name="Pay €12.00")).to_be_visible()
    checkout.choose(VISA)
    checkout.press("Pay €12.00")
    checkout.sees("paid", "Paid.")
    assert checkout.charges() == [("captured", VISA)]


def test_a_booking_whose_time_is_over_is_not_paid(checkout: Checkout) -> None:
    """Released in another tab: the page says so, and no card is charged."""
    checkout.visitor.refusals_expected.add(409)
    released = checkout.page.context.request.post(
        f"{checkout.visitor.home}/v1/bookings/{checkout.booking}/release", data={}
    )
    assert released.ok
    checkout.choose(VISA)
    checkout.press("Pay €45.00")
    checkout.sees("over", "This booking can no longer be paid.")
    assert checkout.charges() == []
