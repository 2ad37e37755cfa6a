"""<earmark-payment> with Stripe's keys: a stand-in answers for Stripe.js, and a sandbox for Stripe's API."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from earmark.api.page_security_headers import SECURITY_HEADERS, STRIPE_POLICY
from earmark.clock import SystemClock
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.server import RunningSandbox, run_in_thread

from .checkout_page import Checkout, checkout_of
from .conftest import KEY, Demo, free_port, running_demo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from .conftest import Visitor

pytestmark = pytest.mark.browser

PUBLISHABLE = "pk_test_of_the_browser_tests"
STRIPE_JS = "https://js.stripe.com/v3/"
DECLINED = 402
HEADERS = SECURITY_HEADERS | {"Content-Security-Policy": STRIPE_POLICY}
STAND_IN = """
window.Stripe = (key) => ({
  elements: (options) => {
    window.stripeWasTold = { key, options };
    const field = Object.assign(document.createElement("input"), { ariaLabel: "Card" });
    return {
      create: () => ({
        on: (_, listener) => field.addEventListener("input", listener),
        mount: (place) => place.append(field),
      }),
      submit: async () => (field.value ? {} : { error: { message: "Your card number is incomplete." } }),
      field,
    };
  },
  createConfirmationToken: async ({ elements }) => {
    return { confirmationToken: { id: await window.typeCard(elements.field.value) } };
  },
  handleNextAction: ({ clientSecret }) => new Promise((resolve) => {
    const dialog = Object.assign(document.createElement("dialog"), { ariaLabel: "Your bank" });
    for (const answer of ["Yes, it is me", "No", "Close"]) {
      const button = Object.assign(document.createElement("button"), { textContent: answer });
      button.onclick = async () => {
        if (answer !== "Close") await window.actAtBank(clientSecret, answer !== "No");
        dialog.remove();
        resolve({});
      };
      dialog.append(button);
    }
    document.body.append(dialog);
    dialog.showModal();
  }),
});
"""
"""What the element uses of Stripe.js. A buyer types the name of a test method in place of a card's number."""


@pytest.fixture(scope="module")
def bank() -> Iterator[RunningSandbox]:
    """The sandbox that the demo's gateway takes for Stripe."""
    with run_in_thread(Sandbox(SystemClock())) as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, bank: RunningSandbox) -> Iterator[Demo]:
    """The demo of a shop with Stripe's test keys."""
    keys = {
        "EARMARK_STRIPE_KEY": bank.sandbox.key,
        "EARMARK_STRIPE_WEBHOOK_SECRET": bank.sandbox.secret,
        "EARMARK_STRIPE_PUBLISHABLE_KEY": PUBLISHABLE,
        "EARMARK_STRIPE_URL": bank.url,
    }
    with running_demo(tmp_path_factory.mktemp("demo"), port=free_port(), **keys) as url:
        yield Demo(url=url, key=KEY)


@dataclass(kw_only=True)
class StripeCheckout(Checkout):
    """The page, and a bank in place of Stripe's."""

    bank: RunningSandbox

    def type(self, method: str) -> None:
        """Types a card into Stripe's form."""
        self.page.get_by_label("Card").fill(method)

    def answer(self, button: str) -> None:
        """Answers in the window of the buyer's bank."""
        self.page.get_by_role("dialog").get_by_role("button", name=button).click()

    def intents(self) -> list[str]:
        """The statuses of the booking's intents at the bank, the oldest first."""

        def find(sandbox: Sandbox) -> list[str]:
            mine = [one for one in sandbox.bank.intents() if one.metadata.get("booking_id") == self.booking]
            return [one.status.value for one in reversed(mine)]

        return self.bank.do(find)


@pytest.fixture
def shown(visitor: Visitor, bank: RunningSandbox) -> Iterator[Callable[..., StripeCheckout]]:
    """Opens the page with these headers, with Stripe's script and no other foreign one."""
    prepare(visitor.page, bank)

    def show(headers: dict[str, str] = HEADERS, state: str = "ready") -> StripeCheckout:
        opened = checkout_of(visitor, headers=headers, state=state)
        return StripeCheckout(visitor=visitor, booking=opened.booking, bank=bank)

    yield show
    assert set(visitor.foreign_requests) <= {STRIPE_JS}
    visitor.foreign_requests.clear()


def prepare(page: Page, bank: RunningSandbox) -> None:
    """Answers the page's request for Stripe.js, and does what Stripe does behind it. A page is prepared once."""
    page.route(STRIPE_JS, lambda route: route.fulfill(body=STAND_IN, content_type="text/javascript"))
    if getattr(page, "is_prepared", False):
        return

    def act(client_secret: str, succeed: bool) -> None:  # noqa: FBT001 (called by a page)
        intent = client_secret.partition("_secret")[0]
        bank.do(lambda sandbox: sandbox.bank.act(intent, succeed=succeed))

    page.expose_function("typeCard", lambda method: bank.do(lambda one: one.confirmation_tokens.issue(method).id))
    page.expose_function("actAtBank", act)
    page.is_prepared = True  # type: ignore[attr-defined]


def test_a_buyer_pays_with_stripes_form(shown: Callable[..., StripeCheckout]) -> None:
    """The form is told key, amount, currency and capture; the token is charged once."""
    checkout = shown()
    told = checkout.page.evaluate("window.stripeWasTold")
    options = {"mode": "payment", "amount": 4500, "currency": "eur", "captureMethod": "manual"}
    assert told == {"key": PUBLISHABLE, "options": options}
    expect(checkout.page.get_by_role("radio")).to_have_count(0)
    checkout.type("pm_card_visa")
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["succeeded"]
    assert checkout.visitor.foreign_requests == [STRIPE_JS]


def test_what_is_typed_wrong_is_told_before_anything_is_sent(shown: Callable[..., StripeCheckout]) -> None:
    """In Stripe's own words; then the buyer types it right."""
    checkout = shown()
    checkout.press("Pay €45.00")
    checkout.hears("Your card number is incomplete.")
    checkout.type("pm_card_visa")
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["succeeded"]


def test_a_declined_card_and_then_another_are_two_tokens(shown: Callable[..., StripeCheckout]) -> None:
    """The reason stands above the form."""
    checkout = shown()
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.type("pm_card_visa_chargeDeclinedInsufficientFunds")
    checkout.press("Pay €45.00")
    checkout.hears("There is not enough money on this card.")
    checkout.type("pm_card_visa")
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["canceled", "succeeded"]


def test_a_buyer_authenticates_in_the_page(shown: Callable[..., StripeCheckout]) -> None:
    """In a window of Stripe's; afterwards the server asks Stripe at once."""
    checkout = shown()
    checkout.type("pm_card_threeDSecure2Required")
    checkout.press("Pay €45.00")
    checkout.sees("waiting", "Answer in the window that opened.")
    checkout.answer("Yes, it is me")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["succeeded"]


def test_a_buyer_who_fails_in_the_page_hears_it(shown: Callable[..., StripeCheckout]) -> None:
    """And the seats are still held for another card."""
    checkout = shown()
    checkout.visitor.refusals_expected.add(DECLINED)
    checkout.type("pm_card_threeDSecure2Required")
    checkout.press("Pay €45.00")
    checkout.answer("No")
    checkout.hears("Your bank could not confirm that it was you.")
    checkout.type("pm_card_mastercard")
    checkout.press("Pay €45.00")
    checkout.sees("paid", "Paid.")


@pytest.mark.parametrize("reload", [False, True])
def test_a_buyer_who_closes_the_window_pays_with_another_card(
    shown: Callable[..., StripeCheckout], *, reload: bool
) -> None:
    """The first intent is cancelled at Stripe, then the second is charged; also after a reload."""
    checkout = shown()
    checkout.type("pm_card_threeDSecure2Required")
    checkout.press("Pay €45.00")
    checkout.answer("Close")
    checkout.sees("acting", "Your bank still wants to confirm that it is you.")
    if reload:
        checkout.reload()
        checkout.sees("acting", "Your bank still wants to confirm that it is you.")
    checkout.type("pm_card_mastercard")
    checkout.press("Pay €45.00 with this card")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["canceled", "succeeded"]


def test_a_buyer_who_closed_the_window_opens_it_again(shown: Callable[..., StripeCheckout]) -> None:
    """The same payment goes on."""
    checkout = shown()
    checkout.type("pm_card_threeDSecure2Required")
    checkout.press("Pay €45.00")
    checkout.answer("Close")
    checkout.press("Continue at your bank")
    checkout.answer("Yes, it is me")
    checkout.sees("paid", "Paid.")
    assert checkout.intents() == ["succeeded"]


def test_control_under_the_policy_of_other_pages_stripes_script_is_blocked(
    shown: Callable[..., StripeCheckout],
) -> None:
    """The browser refuses it, the buyer reads why, and nothing is sent; so the checkout page's own policy is needed."""
    checkout = shown(dict(SECURITY_HEADERS), "unavailable")
    checkout.hears("The form for your card could not be loaded.")
    assert checkout.page.evaluate("window.Stripe") is None
    assert all(re.search("Content Security Policy", told) for told in checkout.visitor.complaints)
    checkout.visitor.complaints.clear()
    assert checkout.intents() == []
