"""The page about paying names what the element has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import codes, read, section, table

from earmark.api.page_security_headers import STRIPE_POLICY

PAGE = read("docs/howto/pay-on-a-checkout-page.md")
WEB = Path(__file__).parents[2] / "src" / "earmark" / "web" / "payment"
ELEMENT = (WEB / "earmark-payment.js").read_text(encoding="utf-8")


def first_column(heads: str) -> list[str]:
    """The names in the first column of the table with this head."""
    part = PAGE[PAGE.index(heads) :]
    return [name for row in table(part[: part.index("\n\n")]) for name in codes(row[0])]


def test_every_property_and_event_is_named() -> None:
    """In the tables, and none that the element does not have."""
    [listed] = re.findall(r"const PROPERTIES = \[(.*)\];", ELEMENT)
    assert sorted(first_column("| property |")) == sorted(re.findall(r'"(\w+)"', listed))
    assert sorted(first_column("| event |")) == sorted(set(re.findall(r'#emit\("([\w-]+)"', ELEMENT)))


def test_every_state_is_named() -> None:
    """As the element's attribute has them."""
    shown = re.findall(r"^  (\w+): \[", (WEB / "payment-view.js").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(first_column("| state | |")) == sorted(shown)


def test_the_policy_on_the_page_is_that_of_the_code() -> None:
    """Every host of Stripe's, at its directive."""
    told = {codes(row[0])[0]: codes(row[1]) for row in table(section(PAGE, "## At Stripe"))}
    parts = [part.split() for part in STRIPE_POLICY.split("; ")]
    named = {name: [host for host in sources if "://" in host] for name, *sources in parts}
    assert told == {name: hosts for name, hosts in named.items() if hosts}
