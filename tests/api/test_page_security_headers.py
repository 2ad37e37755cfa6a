"""What the pages may load: nothing from outside, but for Stripe on the checkout page of a shop that uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from earmark.api.page_security_headers import SECURITY_HEADERS, checkout_page_headers
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.wiring.gateways import open_sandbox

if TYPE_CHECKING:
    import httpx2

    from earmark.api.open_services_for_handlers import Services

WEB = Path(__file__).parents[2] / "src" / "earmark" / "web"
POLICY = "Content-Security-Policy"


def hosts(policy: str) -> dict[str, list[str]]:
    """The hosts that a policy names, by directive."""
    parts = (part.split() for part in policy.split(";"))
    return {name: named for name, *sources in parts if (named := [one for one in sources if "://" in one])}


def test_the_checkout_page_names_no_other_host_without_stripes_keys(services: Services) -> None:
    """It is as strict as every page."""
    assert checkout_page_headers(services.payments) == SECURITY_HEADERS
    assert hosts(SECURITY_HEADERS[POLICY]) == {}


def test_the_checkout_page_of_a_shop_with_stripe_names_stripes_hosts_alone(services: Services) -> None:
    """Script, frames and requests, and nothing else; the other rules stay."""
    payments = PaymentService(services.engine, open_sandbox(), stripe_publishable_key="pk_test_1")
    told = checkout_page_headers(payments)
    assert hosts(told[POLICY]) == {
        "script-src": ["https://js.stripe.com"],
        "frame-src": ["https://js.stripe.com", "https://hooks.stripe.com"],
        "connect-src": ["https://api.stripe.com"],
    }
    assert told[POLICY].startswith(SECURITY_HEADERS[POLICY])
    assert "unsafe" not in told[POLICY]
    assert told | {POLICY: ""} == SECURITY_HEADERS | {POLICY: ""}


@pytest.mark.parametrize("page", ["/", "/docs", "/ops", "/web/payment/earmark-payment.js"])
async def test_every_other_page_stays_strict(shop: httpx2.AsyncClient, page: str) -> None:
    """Whatever the checkout page may load."""
    answer = await shop.get(page)
    assert (answer.status_code, answer.headers[POLICY]) == (200, SECURITY_HEADERS[POLICY])


@pytest.mark.parametrize("file", sorted(str(file.relative_to(WEB)) for file in WEB.rglob("*.js")))
async def test_every_script_is_served_with_what_it_imports(shop: httpx2.AsyncClient, file: str) -> None:
    """By its path, in folders too."""
    answer = await shop.get(f"/web/{file}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    for imported in re.findall(r'^import .*?"(\.[^"]+)";$', answer.text, re.MULTILINE):
        assert (await shop.get(str(answer.url.join(imported)))).status_code == 200, imported


@pytest.mark.parametrize("file", ["payment", "payment/", "../config.py", "payment/../../config.py", "%2e%2e/config.py"])
async def test_nothing_beside_the_pages_files_is_served(shop: httpx2.AsyncClient, file: str) -> None:
    """Neither a folder nor a file outside of it."""
    assert (await shop.get(f"/web/{file}")).status_code == 404


def test_only_one_module_names_stripes_script() -> None:
    """It is loaded from Stripe at run time, where a shop has a publishable key, and no copy of it is kept."""
    naming = [str(file.relative_to(WEB)) for file in WEB.rglob("*.*") if "js.stripe.com/" in file.read_text("utf-8")]
    assert naming == ["payment/stripe-card-form.js"]
