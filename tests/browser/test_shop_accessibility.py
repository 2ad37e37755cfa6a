"""The shop's pages by the rules of WCAG 2.2 that a program can check (axe-core), light and dark, in both languages."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from playwright.sync_api import expect

from .make_events import make_event
from .test_checkout import VISA, pay

if TYPE_CHECKING:
    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
DECLINED = 402


def test_axe_is_the_published_file() -> None:
    """Version 4.14.1 as its makers published it, under the MPL 2.0, which stands beside it."""
    assert sha256(AXE.read_bytes()).hexdigest() == AXE_SHA256


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_the_shop_breaks_a_rule(
    visitor: Visitor, demo: Demo, scheme: Literal["light", "dark"], language: str
) -> None:
    """Each page with something on it, in each state that a buyer comes through."""
    visitor.refusals_expected |= {404, DECLINED}
    visitor.page.emulate_media(color_scheme=scheme)
    event = make_event(visitor, demo, per_buyer_max=3)
    visitor.page.goto(f"{visitor.home}/?event={event}&lang={language}")
    visitor.sees_shop()
    check(visitor, "the event")
    visitor.choose("A1", "A2", "A3")
    check(visitor, "the basket, with the limit reached")
    visitor.page.goto(f"{visitor.home}/bookings")
    expect(visitor.page.locator("article")).to_be_visible()
    check(visitor, "a booking that is held")
    visitor.page.locator("article a.main").click()
    expect(visitor.page.locator("#details")).to_be_visible()
    visitor.page.locator("#details-next").click()
    check(visitor, "details that are missing")
    visitor.page.locator("#details-name").fill("Ann Lee")
    visitor.page.locator("#details-email").fill("ann@example.com")
    visitor.page.locator("#details-next").click()
    expect(visitor.page.get_by_role("radio").first).to_be_visible()
    pay(visitor, "pm_card_visa_chargeDeclined")
    expect(visitor.page.locator(".payment-alert")).to_be_visible()
    check(visitor, "a declined card")
    pay(visitor, VISA)
    expect(visitor.page.locator("#ticket")).to_be_visible()
    check(visitor, "the ticket")
    visitor.page.goto(f"{visitor.home}/checkout?booking=00000000-0000-7000-8000-000000000000")
    expect(visitor.page.locator("#ended")).to_be_visible()
    check(visitor, "no such booking")


def test_a_missing_label_is_found(visitor: Visitor) -> None:
    """The control: the check sees what is wrong."""
    visitor.open()
    visitor.page.locator("#basket-toggle").evaluate(
        "one => document.querySelector('main').append(document.createElement('input'))"
    )
    assert [one["id"] for one in violations(visitor)] == ["label"]


def check(visitor: Visitor, state: str) -> None:
    found = [(one["id"], node["html"], node["failureSummary"]) for one in violations(visitor) for node in one["nodes"]]
    assert not found, f"{state}: {found}"


def violations(visitor: Visitor) -> list[Any]:
    page = visitor.page
    page.evaluate("() => Promise.all(document.getAnimations().map(one => one.finished.catch(() => {})))")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    answer = page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", TAGS)
    return list(answer["violations"])
